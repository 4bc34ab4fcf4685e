"""`gds_stats` and `gdsio`: what cuFile counted, and what a benchmark printed.

Format: NVIDIA GPUDirect Storage guide 19.16 (gds_stats -l 3); later releases add `pcie p2pdma=` and `nvfs=`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stoker.doctor import gds_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.texts import fields, real, whole

_GPU: Final = re.compile(r"GPU (\d+)\s*\(UUID:\s*([\w-]+)\)\s*(.*)")
_PART: Final = re.compile(r"(Read|Write|BufRegister):\s")
_GDSIO: Final = re.compile(r"IoType:\s*(\S+)\s+XferType:\s*(\S+)\s+Threads:\s*(\S+)\s.*?IOSize:\s*(\d+)")
_THROUGHPUT: Final = re.compile(r"Throughput:\s*([\d.,]+)\s*GiB/sec")


@dataclass(frozen=True)
class Counted:
    """The reads, or the writes, of a GPU. None: the release does not print it."""

    total: int
    posix: int | None
    p2pdma: int | None
    nvfs: int | None
    unaligned: int | None
    errors: int | None


@dataclass(frozen=True)
class GpuStats:
    """A GPU's line of PER_GPU STATS: direction -> counters."""

    gpu: str
    counted: dict[str, Counted]
    line: str


def detect_stats(text: str) -> bool:
    """Whether it is the output of gds_stats."""
    return bool(re.search(r"GPU \d+\s*\(UUID:\s*[\w-]+\)\s*Read:", text)) or "cuFile STATS VERSION" in text


def parse_stats(text: str) -> list[GpuStats]:
    """The lines of the GPUs; a direction without a readable `n=` is left out."""
    found = []
    for line in text.splitlines():
        match = _GPU.search(line)
        if match is None:
            continue
        parts = _PART.split(match[3])
        counted = {}
        for name, part in zip(parts[1::2], parts[2::2], strict=False):
            values = fields(part.replace("pcie p2pdma=", "p2pdma="))
            total = whole(values.get("n"))
            if name != "BufRegister" and total is not None:
                names = ("posix", "p2pdma", "nvfs", "unalign", "err")
                counted[name.lower()] = Counted(total, *(whole(values.get(key)) for key in names))
        found.append(GpuStats(match[1], counted, line))
    return found


def explain_stats(text: str, source: str) -> list[Finding]:
    """Direct, copied, or in part, of what reached cuFile."""
    found: list[Finding] = []
    gpus = parse_stats(text)
    for gpu in gpus:
        line = Evidence(gpu.line, source)
        if not gpu.counted:
            found.append(LINE_UNKNOWN.unknown(f"GPU {gpu.gpu}", "its counters are not understood", line))
        busy = {name: counted for name, counted in gpu.counted.items() if counted.total > 0}
        if gpu.counted and not busy:
            found.append(ids.STATS_NONE.unknown(f"GPU {gpu.gpu}", "cuFile counted no reads and no writes", line))
        for name, counted in busy.items():
            found += _judge(f"GPU {gpu.gpu} {name}s", counted, line)
    if not gpus:
        found.append(ids.STATS_NONE.unknown("cuFile", "no counters of a GPU: level 3 is needed"))
    return found


def _judge(subject: str, counted: Counted, line: Evidence) -> list[Finding]:
    found: list[Finding] = []
    routes = {"nvidia-fs": counted.nvfs, "PCI P2PDMA": counted.p2pdma}
    by = ", ".join(f"{count} by {name}" for name, count in routes.items() if count)
    if counted.posix is None or counted.posix > counted.total or counted.posix < 0:
        found.append(LINE_UNKNOWN.unknown(subject, "how many were copied by the CPU is not understood", line))
    elif counted.posix == 0:
        what = f"all {counted.total} that reached cuFile were direct" + (f" ({by})" if by else "")
        rest = counted.total - sum(count or 0 for count in routes.values())
        if rest and None not in routes.values():
            what += f", {rest} by a route that is not told apart (userspace RDMA, for one)"
        found.append(ids.STATS_DIRECT.ok(subject, what, line))
    else:
        share = 100 * counted.posix / counted.total
        what = f"{counted.posix} of {counted.total} ({share:.0f}%) were copied by the CPU (compatible mode)"
        found.append(ids.STATS_COMPAT.warn(subject, what + (f"; {by}" if by else ""), line))
    if counted.unaligned:
        found.append(
            ids.BOUNCE.warn(subject, f"{counted.unaligned} of {counted.total} were unaligned and bounced", line)
        )
    if counted.errors:
        found.append(ids.NVIDIA_FS_ERRORS.warn(subject, f"{counted.errors} errors", line))
    return found


def detect_gdsio(text: str) -> bool:
    """Whether it holds result lines of gdsio."""
    return bool(_GDSIO.search(text))


def explain_gdsio(text: str, source: str) -> list[Finding]:
    """What was measured, and that the label is no proof."""
    found = []
    for line in text.splitlines():
        match, throughput = _GDSIO.search(line), _THROUGHPUT.search(line)
        speed = real(throughput[1]) if throughput else None
        if match is None:
            if "XferType" in line:
                found.append(LINE_UNKNOWN.unknown("gdsio", "a result is not understood", Evidence(line, source)))
            continue
        shown = f"{speed:.2f} GiB/s" if speed is not None else "an unreadable throughput"
        what = f"{shown} of {match[4]} KiB with {match[3]} threads; {match[2]} is what was asked for, not what happened"
        found.append(ids.GDSIO_LABEL.info(f"gdsio {match[1]} {match[2]}", what, Evidence(line, source)))
    return found
