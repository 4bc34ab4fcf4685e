"""cufile.log: which process, which file went direct or fell back, and why.

Format: ` DD-MM-YYYY hh:mm:ss:ms [pid=.. tid=..] LEVEL  unit:line text`; milliseconds are not padded, blank lines occur,
line numbers change with each release, so only texts count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from stoker.doctor import gds_ids as ids
from stoker.doctor.finding import Evidence, Finding, FindingId, Severity
from stoker.doctor.kinds import LINE_UNKNOWN

_LINE: Final = re.compile(
    r"^\s*(\d\d-\d\d-\d{4} \d\d:\d\d:\d\d:\d+) \[pid=(\d+) tid=(\d+)\]\s+([A-Z]+)\s+(\S*):(\d+)\s*(.*)$"
)
_UNREAD_SHOWN: Final = 5

# (text, finding, severity, what it says of a process). All that match a line count.
_MEANINGS: Final[tuple[tuple[re.Pattern[str], FindingId, Severity, str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), known, severity, what)
    for pattern, known, severity, what in (
        (
            r"running in compatible mode",
            ids.LOG_PROCESS_COMPAT,
            Severity.WARN,
            "runs in compatible mode: nothing is direct",
        ),
        (
            r"using cuFile posix read/write",
            ids.LOG_FILE_COMPAT,
            Severity.WARN,
            "a file fell back to CPU copies in silence",
        ),
        (
            r"cufile IO mode: POSIX|fallback to compat",
            ids.LOG_FILE_COMPAT,
            Severity.WARN,
            "I/O fell back to CPU copies",
        ),
        (
            r"GPUDirect Storage not supported on current file",
            ids.LOG_REFUSED,
            Severity.FAIL,
            "a file was refused: it cannot be direct, and compat is not allowed",
        ),
        (
            r"gds path taken|nvfs_io_submit\b.*is_unaligned 0",
            ids.LOG_DIRECT,
            Severity.OK,
            "I/O went direct by nvidia-fs",
        ),
        (r"is_unaligned [1-9]", ids.BOUNCE, Severity.WARN, "I/O was unaligned and bounced on the GPU"),
        (
            r"nvidia-fs\.ko driver not loaded|failed to open /proc/driver/nvidia-fs",
            ids.NVIDIA_FS_ABSENT,
            Severity.WARN,
            "does not see nvidia-fs",
        ),
        (r"NVMe Driver not registered", ids.CAUSE_NVME, Severity.WARN, "the nvme module has no nvidia-fs hooks"),
        (r"\bdm-\d+|/dev/mapper/", ids.CAUSE_DM, Severity.WARN, "the file lies on device mapper"),
        (
            r"udev property not found|error getting volume attributes",
            ids.CAUSE_UDEV,
            Severity.WARN,
            "udev data of the device is not visible (/run/udev)",
        ),
        (
            r"error creating udev_device for block device dev_no: 0:",
            ids.CAUSE_ANONYMOUS,
            Severity.WARN,
            "the file has no block device: overlay, tmpfs or network",
        ),
        (
            r"Unsupported block device|RAID (?:level|member) not supported",
            ids.CAUSE_BLOCK,
            Severity.WARN,
            "the block device has no direct route",
        ),
        (
            r"mount options not specified|journal options not found|can't verify data=ordered",
            ids.CAUSE_EXT4,
            Severity.WARN,
            "the mount does not show data=ordered",
        ),
        (r"Inc-bar-usage failed", ids.CAUSE_BAR, Severity.WARN, "BAR1 of the GPU is exhausted"),
        (r"MAP ioctl failed|\bmap failed", ids.CAUSE_PIN, Severity.FAIL, "GPU memory could not be pinned"),
        (r"nvidia_peermem\.ko is not loaded", ids.CAUSE_PEERMEM, Severity.INFO, "userspace RDMA is off"),
        (r"No valid ip addresses specified", ids.CAUSE_ADDRESSES, Severity.INFO, "no RDMA addresses are configured"),
        (
            r"libcuda\.so|missing cuda symbols|cuInit Failed|CUDA_ERROR_NO_DEVICE",
            ids.CAUSE_CUDA,
            Severity.WARN,
            "has no CUDA driver or no GPU",
        ),
    )
)
_HARMLESS: Final = re.compile(r"No matching pair for network device")
_OUTCOMES: Final = (ids.LOG_PROCESS_COMPAT, ids.LOG_FILE_COMPAT, ids.LOG_REFUSED, ids.LOG_DIRECT)


@dataclass(frozen=True)
class LogLine:
    """A line of the log; `raw` is the line as it stands."""

    time: str
    pid: str
    level: str
    text: str
    raw: str


def detect(text: str) -> bool:
    """Whether it holds lines of cufile.log."""
    return any(_LINE.match(line) for line in text.splitlines())


def parse(text: str) -> list[LogLine]:
    """The lines of the log's form; others are passed over."""
    matches = (_LINE.match(line) for line in text.splitlines())
    return [LogLine(m[1], m[2], m[4], m[7], m[0].strip()) for m in matches if m]


def explain(text: str, source: str) -> list[Finding]:
    """For each process what came of its I/O, and the causes that the log names."""
    by_pid: dict[str, list[LogLine]] = {}
    for line in parse(text):
        by_pid.setdefault(line.pid, []).append(line)
    if not by_pid:
        first = next((line for line in text.splitlines() if line.strip()), "")
        return [LINE_UNKNOWN.unknown("cufile.log", "no line of its form", Evidence(first, source))]
    return [finding for pid, lines in by_pid.items() for finding in _explain_process(pid, lines, source)]


def _explain_process(pid: str, lines: Iterable[LogLine], source: str) -> list[Finding]:
    subject = f"process {pid}"
    met: dict[tuple[FindingId, Severity, str], list[Evidence]] = {}
    unread: list[Evidence] = []
    for line in lines:
        hits = [(known, severity, what) for pattern, known, severity, what in _MEANINGS if pattern.search(line.text)]
        # A volume that is only described is no complaint about it.
        hits = [hit for hit in hits if not (hit[0] is ids.CAUSE_DM and "dumping volume attributes" in line.text)]
        for hit in hits:
            met.setdefault(hit, []).append(Evidence(line.raw, source))
        if not hits and line.level in ("ERROR", "WARN") and not _HARMLESS.search(line.text):
            unread.append(Evidence(line.raw, source))
    found = [known.found(severity, subject, what, *lines) for (known, severity, what), lines in met.items()]
    found += [LINE_UNKNOWN.unknown(subject, "a complaint is not understood", line) for line in unread[:_UNREAD_SHOWN]]
    if not found:
        found.append(ids.LOG_QUIET.unknown(subject, "nothing is said about direct or not"))
    return found
