"""Kubernetes: what objects in YAML or JSON mean for storage, and what a pod is missing.

Sources: the Kubernetes API reference; the drivers' own documentation for their parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.doctor import kubernetes_ids
from stoker.doctor import kubernetes_ids as ids
from stoker.doctor.check import Check, Target
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.host import container_of
from stoker.doctor.identity import MOUNTINFO, parse_mountinfo
from stoker.doctor.kinds import LINE_UNKNOWN, Kind
from stoker.doctor.kubernetes_pod import PodSpec, judge_pod
from stoker.doctor.node import Missing, Node
from stoker.doctor.subject import Subject
from stoker.doctor.yaml_text import MAX_DEPTH, Value, parse

_DEVICE_MAPPER: Final = re.compile(r"(?:^|[./-])(?:topo)?lvm|(?:^|[.])zfs[.]|^local\.csi\.openebs\.io$")
_RAW_LOCAL: Final = "kubernetes.io/no-provisioner"
_NFS: Final = re.compile(r"(?:^|[./-])nfs(?:[./-]|$)")
_FUSE: Final = re.compile(r"(?:^|[./-])(?:s3|gcsfuse|blobfuse|juicefs)(?:[./-]|$)")
_SHARED_CLIENT: Final = re.compile(r"(?:^|[./-])(?:fsx|lustre|beegfs|weka|cephfs|spectrumscale)(?:[./-]|$)")
_NETWORK_DISK: Final = re.compile(
    r"^(?:ebs\.csi\.aws\.com|pd\.csi\.storage\.gke\.io|disk\.csi\.azure\.com|rbd\.csi\.ceph\.com)$"
)
_MANY: Final = ("ReadWriteMany", "ReadOnlyMany")
_MODES: Final = (*_MANY, "ReadWriteOnce", "ReadWriteOncePod")
_EMPTY_DIR: Final = "kubernetes.io~empty-dir"


@dataclass(frozen=True)
class KubernetesObject:
    """An object: its kind, name and all of it."""

    kind: str
    name: str
    body: Mapping[str, Value]

    @property
    def subject(self) -> str:
        """As in StorageClass fast."""
        return f"{self.kind} {self.name}".strip()

    def at(self, *path: str) -> Value:
        """The value at a path of keys, "" if there is none."""
        return at(self.body, *path)


def at(value: Value | Mapping[str, Value], *path: str) -> Value:
    """The value at a path of keys, "" if there is none."""
    found: object = value
    for key in path:
        found = found.get(key, "") if isinstance(found, Mapping) else ""
    return found if isinstance(found, str | list | dict) else ""


def text_at(value: Value | Mapping[str, Value], *path: str) -> str:
    """The text at a path of keys, "" if there is none."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def texts_at(value: Value | Mapping[str, Value], *path: str) -> list[str]:
    """The texts of a list at a path of keys."""
    found = at(value, *path)
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def detect(text: str) -> bool:
    """Whether it holds Kubernetes objects, as YAML or JSON."""
    if text.lstrip().startswith("{"):
        return '"apiVersion"' in text and '"kind"' in text
    return bool(re.search(r"^apiVersion:\s*\S", text, re.MULTILINE) and re.search(r"^kind:\s*\S", text, re.MULTILINE))


def objects(text: str) -> tuple[list[KubernetesObject], list[str]]:
    """The objects, those of lists too, and the lines that are not understood."""
    documents, strange = parse(text)
    found: list[KubernetesObject] = []
    for document in documents:
        items = at(document, "items") if text_at(document, "kind").endswith("List") else [document]
        found += [
            KubernetesObject(text_at(item, "kind"), text_at(item, "metadata", "name"), item)
            for item in (items if isinstance(items, list) else [])
            if isinstance(item, dict) and text_at(item, "kind")
        ]
    return found, strange


def explain(text: str, source: str) -> list[Finding]:
    """What each object means for storage."""
    known, strange = objects(text)
    found = [LINE_UNKNOWN.unknown("Kubernetes", "a line is not understood", Evidence(line, source)) for line in strange]
    modes = {
        one.name: texts_at(one.body, "spec", "accessModes") for one in known if one.kind == "PersistentVolumeClaim"
    }
    for one in known:
        if one.kind == "StorageClass":
            found += _judge_class(one, source)
        elif one.kind in ("PersistentVolume", "PersistentVolumeClaim"):
            found += _judge_modes(one, source)
            found += _judge_volume(one, source) if one.kind == "PersistentVolume" else []
        for spec in pod_specs(one.body):
            found += judge_pod(one.subject, spec, modes, source)
    if not known and not strange:
        found.append(LINE_UNKNOWN.unknown("Kubernetes", "no object is in it"))
    return found


def pod_specs(body: Value | Mapping[str, Value], copies: int = 1, depth: int = 0) -> Iterator[PodSpec]:
    """The specs of pods anywhere in an object, with how many pods are made of each."""
    if depth > MAX_DEPTH:
        return
    if isinstance(body, Mapping):
        count = max((_count(body.get(key)) for key in ("parallelism", "replicas")), default=1)
        copies *= max(count, 1)
        if isinstance(body.get("containers"), list):
            yield PodSpec(body, copies)
        for each in body.values():
            yield from pod_specs(each, copies, depth + 1)
    elif isinstance(body, list):
        for each in body:
            yield from pod_specs(each, copies, depth + 1)


def _count(value: object) -> int:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}", value) else 1


def _judge_class(one: KubernetesObject, source: str) -> list[Finding]:
    provisioner = text_at(one.body, "provisioner")
    line = Evidence(f"provisioner: {provisioner}", source)
    found: list[Finding] = []
    if _DEVICE_MAPPER.search(provisioner):
        what = "makes local volumes by LVM or ZFS: no GPUDirect, although the disk is a local NVMe"
        found.append(ids.LVM.warn(one.subject, what, line))
    elif provisioner == _RAW_LOCAL:
        found.append(ids.LOCAL.info(one.subject, "raw local disks: GPUDirect is possible on NVMe", line))
    elif _FUSE.search(provisioner):
        found.append(ids.FUSE.warn(one.subject, "FUSE: never GPUDirect", line))
    elif _NFS.search(provisioner):
        found += _judge_nfs(one.subject, texts_at(one.body, "mountOptions"), source)
    elif _SHARED_CLIENT.search(provisioner):
        what = "a shared file system; its client decides about GPUDirect"
        found.append(ids.CLASS.info(one.subject, what, line))
    elif _NETWORK_DISK.match(provisioner):
        what = "disks over the network for one node: no local NVMe, whatever they are called on the node"
        found.append(ids.CLASS.info(one.subject, what, line))
    else:
        found.append(ids.CLASS.unknown(one.subject, f"what {provisioner!r} makes volumes of is not known", line))
    mode = text_at(one.body, "volumeBindingMode")
    if found[0].id in (ids.LVM.name, ids.LOCAL.name) and mode in ("", "Immediate"):
        line = Evidence(f"volumeBindingMode: {mode or '(not set: Immediate)'}", source)
        found.append(ids.BINDING.warn(one.subject, "binds local volumes before a pod has its node", line))
    return found


def _judge_modes(one: KubernetesObject, source: str) -> list[Finding]:
    modes = texts_at(one.body, "spec", "accessModes")
    line = Evidence(f"accessModes: [{', '.join(modes)}]", source)
    strange = [mode for mode in modes if mode not in _MODES]
    if strange:
        return [LINE_UNKNOWN.unknown(one.subject, f"the access mode {strange[0]!r} is not known", line)]
    if not modes:
        return []
    many = any(mode in _MANY for mode in modes)
    return [ids.ACCESS.info(one.subject, f"{', '.join(modes)}: for {'many nodes' if many else 'one node'}", line)]


def _judge_volume(one: KubernetesObject, source: str) -> list[Finding]:
    if one.at("spec", "local"):
        line = Evidence(f"local: {text_at(one.body, 'spec', 'local', 'path')}", source)
        return [ids.LOCAL.info(one.subject, "a local disk or folder: GPUDirect is possible if it is raw NVMe", line)]
    driver = text_at(one.body, "spec", "csi", "driver")
    line = Evidence(f"driver: {driver}", source)
    options = texts_at(one.body, "spec", "mountOptions")
    if one.at("spec", "nfs") or (driver and _NFS.search(driver)):
        return _judge_nfs(one.subject, options, source)
    if driver and _FUSE.search(driver):
        return _judge_fuse(one, line, source)
    if driver and not _SHARED_CLIENT.search(driver):
        return [ids.CLASS.unknown(one.subject, f"what {driver!r} lies on is not known", line)]
    return []


def _judge_nfs(subject: str, options: Sequence[str], source: str) -> list[Finding]:
    line = Evidence(f"mountOptions: [{', '.join(options)}]", source)
    asked = {part.partition("=")[0]: part.partition("=")[2] for option in options for part in option.split(",")}
    if asked.get("proto") == "rdma" or "rdma" in asked:
        what = "asks for RDMA; that it got it, only proto=rdma in the mountinfo of the pod or node confirms"
        return [ids.NFS.info(subject, what, line)]
    what = "asks for no RDMA: TCP, so no GPUDirect"
    what += "" if "nconnect" in asked else ", and one connection (no nconnect)"
    return [ids.NFS.warn(subject, what, line)]


def _judge_fuse(one: KubernetesObject, line: Evidence, source: str) -> list[Finding]:
    what = "FUSE: never GPUDirect"
    capacity = text_at(one.body, "spec", "capacity", "storage")
    what += f"; its capacity of {capacity} is ignored" if capacity else ""
    found = [ids.FUSE.warn(one.subject, what, line)]
    cache = text_at(one.body, "spec", "csi", "volumeAttributes", "cache")
    if cache.lower() == "emptydir":
        what = "its cache is an emptyDir: check that the kubelet's disk is NVMe, and not the root disk"
        found.append(ids.EMPTY_DIR.warn(one.subject, what, Evidence(f"cache: {cache}", source)))
    elif not cache:
        found.append(ids.FUSE.info(one.subject, "has no cache: each epoch is read over the network", line))
    return found


# ---- a pod, from inside


def check_pod(node: Node, _target: Target) -> list[Finding]:
    """C01: in a pod, /run/udev and where its emptyDirs lie. Nothing elsewhere."""
    if "Kubernetes" not in container_of(node):
        return []
    found: list[Finding] = []
    udev = node.listing("/run/udev/data")
    if isinstance(udev, Missing):
        line = Evidence(udev.reason, "/run/udev/data")
        gpus = isinstance(node.listing("/proc/driver/nvidia/gpus"), tuple)
        what = "is not in this pod: cuFile cannot tell block devices"
        found.append(ids.UDEV.warn("/run/udev", what, line) if gpus else ids.UDEV.info("/run/udev", what, line))
    text = node.read(MOUNTINFO)
    for mount in parse_mountinfo(text) if isinstance(text, str) else []:
        # Of a bind mount, the folder of the node is the mount's root, by the file system it is on.
        if _EMPTY_DIR not in mount.root or mount.fs_type == "tmpfs":
            continue
        line = Evidence(mount.line, MOUNTINFO)
        if mount.root.startswith("/var/lib/kubelet/"):
            what = f"is an emptyDir on the root disk of the node ({mount.source}, {mount.fs_type})"
            found.append(ids.EMPTY_DIR.warn(mount.point, what, line))
        else:
            what = f"is an emptyDir on {mount.source} ({mount.fs_type}), a file system of the kubelet's own"
            found.append(ids.EMPTY_DIR.info(mount.point, what, line))
    return found


KINDS: Final = (Kind("kubernetes", detect, explain),)
CHECKS: Final = (Check("C01", "pod", check_pod),)
SUBJECT: Final = Subject("kubernetes", ids=kubernetes_ids.IDS, kinds=KINDS, checks=CHECKS)
