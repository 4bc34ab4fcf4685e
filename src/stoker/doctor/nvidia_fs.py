"""/proc/driver/nvidia-fs: stats, modules, version, peer_distance.

Format: the module's source (nvfs-stat.c, nvfs-proc.c, nvfs-pci.c), NVIDIA/gds-nvidia-fs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from stoker.doctor import gds_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN, Sample
from stoker.doctor.texts import fields, line_with, whole

# What a storage module is for. wekafsio is a static entry: it is listed whether Weka is there or not.
MODULES: Final = {
    "nvme": "NVMe",
    "nvme_rdma": "NVMe-oF",
    "scsi_mod": "SCSI",
    "sfxvdriver": "ScaleFlux",
    "nvmeib_common": "NVMesh",
    "lnet": "Lustre",
    "beegfs": "BeeGFS",
    "mmfslinux": "GPFS",
    "rpcrdma": "NFS",
    "scatefs": "ScaTeFS",
}
STATIC_MODULE: Final = "wekafsio"
_OLDEST: Final = (2, 12)
_CROSS_ROOT: Final = 0x100
_VERSION: Final = re.compile(r"\s*version:\s*(\d{1,6})\.(\d{1,6})\S*\s*")
_MODULE: Final = re.compile(r"^([A-Za-z_]\w*): (\S.*)$")
_STATS: Final = re.compile(r"^NVFS (?:statistics|Driver)\(ver", re.MULTILINE)
_PEERS: Final = re.compile(r"^gpu\s+peer\s+peerrank\s+p2pdist\b", re.MULTILINE)
_GPU: Final = re.compile(r"^GPU\s+(\S+)\s+uuid:\S+\s*:(.*)$")


@dataclass
class Stats:
    """The counters. None where the module does not print them: `rw_stats_enabled` is 0, or another version."""

    enabled: bool | None = None
    reads: int | None = None
    read_mib: int | None = None
    writes: int | None = None
    errors: int = 0
    cache_mib: dict[str, int] = field(default_factory=dict)
    cross_root_percent: dict[str, int] = field(default_factory=dict)


def detect(text: str) -> bool:
    """Whether it is one of these files."""
    return _form(text) != ""


def _form(text: str) -> str:
    if _STATS.search(text):
        return "stats"
    if _PEERS.search(text):
        return "peers"
    if _VERSION.fullmatch(text):
        return "version"
    lines = [line for line in text.splitlines() if line.strip()]
    names = parse_modules(text)
    plain = bool(lines) and all(_MODULE.match(line.strip()) for line in lines)
    return "modules" if plain and (names & set(MODULES) or STATIC_MODULE in names) else ""


def parse_modules(text: str) -> frozenset[str]:
    """Names of the registered modules, with the static one."""
    matches = (_MODULE.match(line.strip()) for line in text.splitlines())
    return frozenset(match[1] for match in matches if match)


def parse_version(text: str) -> tuple[int, int] | None:
    """The module's version."""
    match = _VERSION.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else None


def parse_stats(text: str) -> Stats:
    """The counters of a stats file; what is not there stays None."""
    found = Stats()
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        name, values, gpu = name.strip(), fields(rest), _GPU.match(line)
        if name == "IO stats":
            found.enabled = {"Enabled": True, "Disabled": False}.get(rest.split(",")[0].strip())
        elif name == "Reads" and "n" in values:
            found.reads, found.read_mib = whole(values["n"]), whole(values.get("readMiB"))
        elif name == "Writes" and "n" in values:
            found.writes = whole(values["n"])
        elif gpu:
            shown = {"cache_mib": "Cache_MiB", "cross_root_percent": "cross_root_port(%)"}
            for attribute, key in shown.items():
                number = whole(fields(gpu[2]).get(key))
                if number is not None:
                    getattr(found, attribute)[gpu[1]] = number
        if name in ("Reads", "Writes"):
            found.errors += max(0, whole(values.get("err")) or 0) + max(0, whole(values.get("io_state_err")) or 0)
    return found


def explain(text: str, source: str) -> list[Finding]:
    """What one of these files says."""
    form = _form(text)
    if form == "stats":
        return _explain_stats(text, source)
    if form == "peers":
        return _explain_peers(text, source)
    if form == "version":
        return explain_version(text, source)
    if form == "modules":
        return explain_modules(text, source)
    line = next((line for line in text.splitlines() if line.strip()), "")
    return [LINE_UNKNOWN.unknown("nvidia-fs", "none of its files that is known", Evidence(line, source))]


def explain_version(text: str, source: str) -> list[Finding]:
    """The module's version against what libcufile needs."""
    version, line = parse_version(text), Evidence(text.strip(), source)
    if version is None:
        return [LINE_UNKNOWN.unknown("nvidia-fs", "its version is not understood", line)]
    shown = f"module {version[0]}.{version[1]} (not the GDS release)"
    if version < _OLDEST:
        return [ids.NVIDIA_FS_OLD.warn("nvidia-fs", f"{shown} is older than libcufile 1.16 needs", line)]
    return [ids.NVIDIA_FS_OLD.ok("nvidia-fs", shown, line)]


def explain_modules(text: str, source: str) -> list[Finding]:
    """Which back ends are hooked."""
    hooked = sorted(parse_modules(text) - {STATIC_MODULE})
    lines = [Evidence(line, source) for line in text.splitlines() if line.strip()]
    if not hooked:
        what = f"no storage module is registered ({STATIC_MODULE} is always listed): its route is closed"
        return [ids.HOOKS.warn("nvidia-fs", what, *lines)]
    names = ", ".join(f"{name} ({MODULES[name]})" if name in MODULES else name for name in hooked)
    return [ids.HOOKS.info("nvidia-fs", f"registered: {names}", *lines, fix="")]


def _explain_stats(text: str, source: str) -> list[Finding]:
    stats, found = parse_stats(text), []
    reads = Evidence(line_with(text, "Reads"), source)
    if stats.enabled is False or stats.reads is None:
        line = Evidence(line_with(text, "IO stats"), source)
        found.append(
            ids.COUNTERS_OFF.unknown("nvidia-fs", "reads are not counted: whether I/O is direct is unknown", line)
        )
    else:
        what = f"{stats.reads} reads since it was loaded; I/O is counted and can be compared"
        found.append(ids.NVIDIA_FS_IO.info("nvidia-fs", what, reads))
    if stats.errors:
        lines = [Evidence(line, source) for line in text.splitlines() if line.startswith(("Reads", "Writes"))]
        found.append(ids.NVIDIA_FS_ERRORS.warn("nvidia-fs", f"{stats.errors} failed reads or writes", *lines))
    for gpu, percent in stats.cross_root_percent.items():
        if percent > 0:
            line = Evidence(line_with(text, f"GPU {gpu}"), source)
            found.append(ids.CROSS_ROOT.warn(f"GPU {gpu}", f"{percent}% of its DMA crosses PCIe root ports", line))
    return found


def compare(before: Sample, after: Sample, between_s: float | None) -> list[Finding]:
    """Whether the nvidia-fs route was used between two stats files."""
    first, second = parse_stats(before.text), parse_stats(after.text)
    if None in (first.reads, second.reads) or not _STATS.search(before.text):
        return []
    assert first.reads is not None
    assert second.reads is not None
    reads, mib = second.reads - first.reads, (second.read_mib or 0) - (first.read_mib or 0)
    lines = [Evidence(line_with(s.text, "Reads"), s.source) for s in (before, after)]
    found = []
    if reads < 0:
        found.append(
            ids.NVIDIA_FS_IO.unknown("nvidia-fs", "the counters went back: the module was loaded again", *lines)
        )
    elif reads == 0:
        what = "no read was counted: another route, compatible mode, or no I/O"
        found.append(ids.NVIDIA_FS_IO.unknown("nvidia-fs", what, *lines))
    else:
        speed = f", {mib / between_s:.0f} MiB/s" if between_s else ""
        what = f"{reads} reads, {mib} MiB went direct by nvidia-fs{speed}"
        found.append(ids.NVIDIA_FS_IO.ok("nvidia-fs", what, *lines))
    for gpu, cache in second.cache_mib.items():
        if cache > first.cache_mib.get(gpu, 0):
            line = Evidence(line_with(after.text, f"GPU {gpu}"), after.source)
            found.append(ids.BOUNCE.warn(f"GPU {gpu}", f"its bounce buffers grew to {cache} MiB", line))
    return found


def _explain_peers(text: str, source: str) -> list[Finding]:
    found: list[Finding] = []
    names: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if words[:2] == ["gpu", "peer"]:
            names = words
        elif words and names:
            found.append(_explain_peer(dict(zip(names, words, strict=False)), Evidence(line, source)))
    return found


def _explain_peer(row: dict[str, str], line: Evidence) -> Finding:
    distance, numa = _hex(row.get("p2pdist")), _hex(row.get("numa"))
    subject = f"GPU {row.get('gpu', '')} and {row.get('class', 'peer')} {row.get('peer', '')}"
    if distance is None:
        return LINE_UNKNOWN.unknown(subject, "the distance is not understood", line)
    where = f", device on NUMA node {numa}" if numa is not None and numa < 1 << 15 else ""
    if distance & ~(_CROSS_ROOT - 1):
        what = f"DMA crosses a PCIe root port (distance {distance:#x}){where}: use another one for this GPU"
        return ids.CROSS_ROOT.warn(subject, what, line)
    return ids.PEER_NEAR.ok(subject, f"{distance} hops under one root port{where}", line)


def _hex(text: str | None) -> int | None:
    return int(text, 16) if text and re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,8}", text) else None
