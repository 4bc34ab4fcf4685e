"""What the spec of a pod has and lacks for reading data into GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.doctor import kubernetes_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.yaml_text import Value

_MANY: Final = ("ReadWriteMany", "ReadOnlyMany")
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3}
_SHM: Final = "/dev/shm"  # noqa: S108 - it is looked at, not written to
_SHM_SHARE: Final = 0.5


@dataclass(frozen=True)
class PodSpec:
    """The spec of pods, of which `copies` are made."""

    body: Mapping[str, Value]
    copies: int

    @property
    def containers(self) -> list[dict[str, Value]]:
        """Its containers."""
        return _dicts(self.body.get("containers"))

    @property
    def volumes(self) -> dict[str, dict[str, Value]]:
        """Its volumes by name."""
        return {str(volume.get("name")): volume for volume in _dicts(self.body.get("volumes"))}

    def mounted(self, path: str) -> dict[str, Value] | None:
        """The volume that a container has at a path."""
        for container in self.containers:
            for mount in _dicts(container.get("volumeMounts")):
                if str(mount.get("mountPath", "")).rstrip("/") == path:
                    return self.volumes.get(str(mount.get("name")), {})
        return None

    @property
    def wants_gpus(self) -> bool:
        """Whether a container asks for GPUs."""
        return any(key.endswith("/gpu") for container in self.containers for key in _limits(container))

    @property
    def memory_limit_bytes(self) -> int | None:
        """The sum of the containers' memory limits; None if one has none."""
        limits = [size_bytes(str(_limits(container).get("memory", ""))) for container in self.containers]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if known and len(known) == len(limits) else None


def _dicts(value: object) -> list[dict[str, Value]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _dict(value: object) -> dict[str, Value]:
    return value if isinstance(value, dict) else {}


def _limits(container: Mapping[str, Value]) -> dict[str, Value]:
    return _dict(_dict(container.get("resources")).get("limits"))


def size_bytes(text: str) -> int | None:
    """A Kubernetes quantity of bytes, as 64Gi or 1.5T; None if it is none."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGT]i|[kKMGT]?)", text)
    return int(float(match[1]) * (_BINARY | _UNITS)[match[2]]) if match else None


def judge_pod(subject: str, spec: PodSpec, modes: Mapping[str, Sequence[str]], source: str) -> list[Finding]:
    """Findings of one spec. `modes`: access modes of the claims that are given with it, by name."""
    found: list[Finding] = []
    for name, volume in spec.volumes.items():
        found += _judge_volume(subject, name, volume, spec, modes, source)
    if spec.wants_gpus:
        found += _judge_gpu_pod(subject, spec, source)
    return found


def _judge_gpu_pod(subject: str, spec: PodSpec, source: str) -> list[Finding]:
    found: list[Finding] = []
    if spec.mounted("/run/udev") is not None or spec.mounted("/run") is not None:
        found.append(
            ids.UDEV.ok(subject, "has /run/udev, which cuFile needs", Evidence("mountPath: /run/udev", source))
        )
    else:
        found.append(ids.UDEV.warn(subject, "has no /run/udev: cuFile cannot tell block devices"))
    found += _judge_shm(subject, spec, source)
    paths = [str(_dict(volume.get("hostPath")).get("path", "")) for volume in spec.volumes.values()]
    privileged = any(str(_dict(c.get("securityContext")).get("privileged")) == "true" for c in spec.containers)
    if not privileged and not any(path.rstrip("/") == "/dev" or path.startswith("/dev/nvidia-fs") for path in paths):
        what = "gets no /dev/nvidia-fs* by itself: GPUDirect by nvidia-fs is not available in it"
        found.append(ids.NVIDIA_FS.warn(subject, what))
    return found


def _judge_shm(subject: str, spec: PodSpec, source: str) -> list[Finding]:
    volume = spec.mounted(_SHM)
    if volume is None:
        return [ids.SHM.warn(subject, "has no volume at /dev/shm, which then has 64 MiB")]
    shared = _dict(volume.get("emptyDir"))
    if shared.get("medium") != "Memory":
        return [ids.SHM.warn(subject, "has a volume at /dev/shm that is not memory")]
    limit = str(shared.get("sizeLimit", ""))
    line = Evidence(f"emptyDir: medium Memory, sizeLimit {limit or '(none)'}", source)
    memory, size = spec.memory_limit_bytes, size_bytes(limit)
    if memory is not None and size is not None and size >= _SHM_SHARE * memory:
        what = (
            f"shared memory of {limit} counts in the memory limit of {memory >> 20} MiB: little is left for processes"
        )
        return [ids.SHM.warn(subject, what, line)]
    return [ids.SHM.ok(subject, f"has memory at /dev/shm{f', up to {limit}' if limit else ''}", line)]


def _judge_volume(
    subject: str,
    name: str,
    volume: Mapping[str, Value],
    spec: PodSpec,
    modes: Mapping[str, Sequence[str]],
    source: str,
) -> list[Finding]:
    claim = str(_dict(volume.get("persistentVolumeClaim")).get("claimName", ""))
    if claim and spec.copies > 1:
        return [_judge_shared(subject, claim, modes.get(claim), spec.copies, source)]
    template = _dict(_dict(_dict(volume.get("ephemeral")).get("volumeClaimTemplate")).get("spec"))
    if template:
        asked = template.get("accessModes")
        shown = ", ".join(map(str, asked)) if isinstance(asked, list) else ""
        line = Evidence(f"volumeClaimTemplate: [{shown}] {template.get('storageClassName', '')}", source)
        what = f"volume {name!r} is made for each pod ({shown}): a cache of its own"
        return [ids.ACCESS.info(subject, what, line)]
    if "emptyDir" in volume and _dict(volume.get("emptyDir")).get("medium") != "Memory":
        line = Evidence(f"name: {name}, emptyDir", source)
        what = f"volume {name!r} is an emptyDir on the kubelet's disk, mostly the root disk: no place for a cache"
        return [ids.EMPTY_DIR.warn(subject, what, line)]
    return []


def _judge_shared(subject: str, claim: str, modes: Sequence[str] | None, copies: int, source: str) -> Finding:
    line = Evidence(f"claimName: {claim}" + (f", accessModes: [{', '.join(modes)}]" if modes else ""), source)
    what = f"claim {claim!r} is shared by {copies} pods"
    if not modes:
        return ids.ACCESS.info(subject, f"{what}: it must be ReadWriteMany or ReadOnlyMany", line)
    if any(mode in _MANY for mode in modes):
        return ids.ACCESS.ok(subject, f"{what} and may be", line)
    return ids.ACCESS.warn(
        subject, f"{what}, but is for one {'pod' if modes == ['ReadWriteOncePod'] else 'node'}", line
    )
