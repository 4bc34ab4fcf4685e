"""The live probe of GPUDirect on one file: what was seen, which rung of proof that is, and the child that looks.

Rungs: P0 predicted by rules; P1 admitted: registered with compatible mode disallowed; P2 counted: all reads and bytes
were counted as direct, none as copied; P3 corroborated: nvidia-fs counted the same bytes. P4, traced in the kernel,
needs root and is never claimed. A child makes the calls, read-only, on at most 64 MiB, for at most 20 s.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from stoker.doctor import gds
from stoker.doctor.check import Target
from stoker.doctor.finding import Evidence, Finding, FindingId
from stoker.doctor.gds_p2pdma import NVIDIA_VERSION
from stoker.doctor.gds_route import Expected, expect
from stoker.doctor.identity import identify
from stoker.doctor.node import Missing, Node
from stoker.doctor.subject import Subject
from stoker.errors import StokerError, UnsupportedError
from stoker.io.cufile import GDS_BLOCK, CuFile, ReadCounters, RouteChoice
from stoker.units import MIB, format_bytes

LIMIT_S: Final = 20.0
READ_MAX_BYTES: Final = 64 * MIB
READ_BYTES: Final = MIB
_GPUS: Final = "/proc/driver/nvidia/gpus"
_STDERR_SHOWN: Final = 400

GDS_PROOF = FindingId(
    "gds-proof",
    meaning="What a probe of GPUDirect on a real file proved, with its rung P0 to P3.",
    why="Only counted reads prove that a path is direct; gdscheck, labels of benchmarks and speed do not.",
    fix="see the reason, cufile.log and stoker doctor gds PATH without --probe",
)
GDS_PREDICTION = FindingId(
    "gds-prediction-wrong",
    meaning="What the rules predict for a path and what its reads did are not the same.",
    why="Something on this node is not as the rules see it; what was counted is what happens.",
    fix="report it with the output of stoker doctor --capture DIR PATH",
)
SUBJECT: Final = Subject("gds-probe", ids=(GDS_PROOF, GDS_PREDICTION))


class Rung(StrEnum):
    """How far a path is proved to be direct."""

    PREDICTED = "P0"
    ADMITTED = "P1"
    COUNTED = "P2"
    CORROBORATED = "P3"


class Stage(StrEnum):
    """How far the probe came."""

    NOT_STARTED = "not started"
    OPEN = "open"
    REGISTER = "register"
    READ = "read"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Observation:
    """What the child saw. `stage` is where it stopped, `error` why; bytes and counters are of the reads alone.

    `nvfs_bytes`: what nvidia-fs counted meanwhile, None if it does not count.
    """

    stage: Stage
    error: str = ""
    refused: bool = False
    version: str = ""
    requested_bytes: int = 0
    returned_bytes: int = 0
    counted: ReadCounters = field(default_factory=ReadCounters)
    nvfs_bytes: int | None = None
    cpu_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Observation:
        """What `to_json` gave. Raises KeyError, TypeError, ValueError for anything else."""
        counted = ReadCounters(**values["counted"])
        return replace(Observation(**{**values, "counted": counted}), stage=Stage(values["stage"]))


def rung_of(seen: Observation) -> Rung:
    """The highest rung that an observation proves. Counts are believed only if they account for every byte."""
    if seen.stage in (Stage.NOT_STARTED, Stage.OPEN, Stage.REGISTER):
        return Rung.PREDICTED
    counted = seen.counted
    direct = counted.total - counted.posix
    whole = seen.stage is Stage.DONE and seen.returned_bytes == seen.requested_bytes == counted.bytes > 0
    if not whole or counted.posix or direct <= 0:
        return Rung.ADMITTED
    if counted.nvfs and seen.nvfs_bytes is not None and seen.nvfs_bytes >= seen.returned_bytes - MIB:
        return Rung.CORROBORATED  # nvidia-fs counts whole MiB
    return Rung.COUNTED


def route_of(seen: Observation) -> RouteChoice:
    """What was done with reads that were to be direct."""
    counted = seen.counted
    if seen.refused:
        return RouteChoice("gds", "refused", seen.error)
    if seen.stage is not Stage.DONE:
        return RouteChoice("gds", "unknown", seen.error or f"the probe ended at {seen.stage}")
    if counted.posix:
        return RouteChoice("gds", "compat", f"{counted.posix} of {counted.total} reads were copied by the CPU")
    if rung_of(seen) in (Rung.COUNTED, Rung.CORROBORATED):
        routes = {"nvidia-fs": counted.nvfs, "PCI P2PDMA": counted.p2pdma}
        rest = counted.total - sum(routes.values())
        routes["a route that is not told apart, as userspace RDMA"] = max(0, rest)
        return RouteChoice("gds", "gds", ", ".join(f"{count} by {name}" for name, count in routes.items() if count))
    what = f"{seen.requested_bytes:,} bytes asked for, {seen.returned_bytes:,} came, {counted.bytes:,} were counted"
    return RouteChoice("gds", "unknown", what)


def probe(library: CuFile, fd: int, size_bytes: int) -> Observation:
    """Register the open file and read its whole blocks, at most 64 MiB, counted. Vendor errors end it, as a value."""
    size = min(size_bytes, READ_MAX_BYTES) // GDS_BLOCK * GDS_BLOCK
    seen = Observation(Stage.REGISTER, version=library.version(), requested_bytes=size)
    try:
        handle = library.register(fd)
        seen = replace(seen, stage=Stage.READ)
        before, cpu_s = library.counters(), _cpu_s()
        done = 0
        while done < size:
            got = library.read(handle, min(READ_BYTES, size - done), done)
            if got <= 0:
                break
            done += got
        counted = library.counters().since(before)
        return replace(seen, stage=Stage.DONE, returned_bytes=done, counted=counted, cpu_s=_cpu_s() - cpu_s)
    except StokerError as error:
        return replace(seen, error=error.what, refused=isinstance(error, UnsupportedError))


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def cannot_probe(node: Node) -> str:
    """Why the vendor's library must not be touched here, or "": a driver, its device node and a GPU are needed."""
    version = node.read(NVIDIA_VERSION)
    if isinstance(version, Missing):
        return f"no NVIDIA driver is seen ({NVIDIA_VERSION}: {version.reason})"
    names = node.listing("/dev")
    if not isinstance(names, tuple) or "nvidiactl" not in names:
        return "/dev/nvidiactl is not here: the GPU is not given to this container"
    gpus = node.listing(_GPUS)
    if not isinstance(gpus, tuple) or not gpus:
        return f"the driver lists no GPU ({_GPUS})"
    return ""


def diagnose_gds(node: Node, path: str, seen: Observation | None) -> tuple[list[Finding], dict[str, Any]]:
    """Findings of a path, and the key `gds` of the JSON: the prediction, and what the probe saw, if there was one."""
    found = [*gds.check_driver(node, Target(path)), *gds.check_config(node, Target(path))]
    found += gds.check_path(node, Target(path))
    identity = identify(node, path)
    prediction = None
    if not isinstance(identity, Missing) and gds.has_gpu(node):
        prediction = expect(identity, gds.read_driver(node), gds.read_config(node))
    more: dict[str, Any] = {"prediction": str(prediction) if prediction else "unknown", "rung": str(Rung.PREDICTED)}
    if seen is not None:
        found += judge(path, seen, prediction.expected if prediction else Expected.UNKNOWN)
        more |= {"rung": str(rung_of(seen)), "engine": asdict(route_of(seen)), "observation": seen.to_json()}
    return found, more


def judge(path: str, seen: Observation, expected: Expected) -> list[Finding]:
    """Findings of an observation, and whether it contradicts the prediction."""
    rung, route, counted = rung_of(seen), route_of(seen), seen.counted
    lines = [Evidence(f"requested {route.requested}, effective {route.effective}: {route.reason}", "probe")]
    if seen.stage is Stage.DONE:
        text = f"reads {counted.total}, copied {counted.posix}, nvidia-fs {counted.nvfs}, P2PDMA {counted.p2pdma}"
        lines.append(Evidence(f"{text}, {counted.bytes:,} bytes; {seen.cpu_s:.2f} s of CPU", f"cuFile {seen.version}"))
    findings: list[Finding] = []
    if route.effective == "gds":
        what = f"direct, proof {rung}: {format_bytes(seen.returned_bytes)}, {route.reason}"
        bounced = f"; {counted.unaligned} reads were unaligned and bounced on the GPU" if counted.unaligned else ""
        findings.append((GDS_PROOF.warn if bounced else GDS_PROOF.ok)(path, what + bounced, *lines))
    elif route.effective == "compat":
        findings.append(GDS_PROOF.warn(path, f"not direct, proof {rung}: {route.reason}", *lines))
    elif route.effective == "refused":
        findings.append(GDS_PROOF.fail(path, f"refused, proof {rung}: {route.reason}", *lines))
    else:
        findings.append(GDS_PROOF.unknown(path, f"not proved, rung {rung}: {route.reason}", *lines))
    contradicted = {
        Expected.DIRECT: route.effective in ("compat", "refused"),
        Expected.COMPAT: route.effective == "gds",
        Expected.REFUSED: route.effective == "gds",
    }.get(expected, False)
    if contradicted:
        what = f"{expected} was predicted; its reads were {route.effective}"
        findings.append(GDS_PREDICTION.warn(path, what, *lines[:1]))
    return findings


def choose_file(path: Path) -> Path | None:
    """The file itself, or the first large enough file in a directory; None if there is none."""
    if path.is_file():
        return path
    if path.is_dir():
        for entry in sorted(path.iterdir())[:10_000]:
            if entry.is_file() and entry.stat().st_size >= GDS_BLOCK:
                return entry
    return None


def run_child(path: Path, command: Sequence[str] | None = None, limit_s: float = LIMIT_S) -> Observation:
    """Probe `path` in a child with a time limit: the vendor's library may spin, or close what is not its own."""
    command = command or [sys.executable, "-m", "stoker.doctor.gds_probe_child"]
    environment = {"CUFILE_LOGFILE_PATH": os.devnull, **os.environ}
    with subprocess.Popen(  # noqa: S603 - our own module, with the path as an argument
        [*command, str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    ) as child:
        try:
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return Observation(Stage.NOT_STARTED, f"cuFile did not answer in {limit_s:g} s, and was ended")
    try:
        return Observation.from_json(json.loads(out))
    except (ValueError, KeyError, TypeError):
        last = err.decode("utf-8", "replace").strip()[-_STDERR_SHOWN:]
        return Observation(Stage.NOT_STARTED, f"the probe ended with status {child.returncode}: {last}")
