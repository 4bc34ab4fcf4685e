"""The GPUs of a node: their PCIe links, BAR1, the IOMMU; and what exporters say of their work.

Sources: `nvidia-smi --help-query-gpu`; Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from typing import Final

from stoker.doctor import dcgm, gpu_ids
from stoker.doctor import gpu_ids as ids
from stoker.doctor.check import Check, Target
from stoker.doctor.finding import Evidence, Finding, FindingId
from stoker.doctor.kinds import LINE_UNKNOWN, Kind
from stoker.doctor.node import Host, Missing, Node
from stoker.doctor.subject import Subject
from stoker.doctor.texts import real, whole
from stoker.units import MIB

BAR_SMALL_BYTES: Final = 256 * MIB
_GPUS: Final = "/proc/driver/nvidia/gpus"
_INFINIBAND: Final = "/sys/class/infiniband"
_LINK_FILES: Final = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
_ASKED: Final = (
    *("index", "name", "pcie.link.gen.current", "pcie.link.gen.max"),
    *("pcie.link.width.current", "pcie.link.width.max", "utilization.gpu"),
)
_QUERY: Final = ("nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv")
_NONE: Final = ("[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]")
_IDLE_PERCENT: Final = 5


# ---- nvidia-smi --query-gpu


def parse_query(text: str) -> list[dict[str, str]]:
    """The rows of the CSV by their names, units cut off; empty without a head line."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    except csv.Error:
        return []
    if not rows or not any(cell.startswith("pcie.link.") for cell in rows[0]):
        return []
    names = [re.sub(r" \[.*\]$", "", cell) for cell in rows[0]]
    return [
        {name: re.sub(r" (?:%|MiB|W)$", "", cell) for name, cell in zip(names, row, strict=False)} for row in rows[1:]
    ]


def detect_query(text: str) -> bool:
    """Whether it is `nvidia-smi --query-gpu=...pcie.link... --format=csv`."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return bool(re.search(r"(?:^|, )pcie\.link\.(?:gen|width)\.\w+", first))


def explain_query(text: str, source: str) -> list[Finding]:
    """The link of each GPU."""
    rows = parse_query(text)
    found: list[Finding] = []
    for row in rows:
        subject = f"GPU {row['index']}" if "index" in row else "a GPU"
        line = Evidence(", ".join(f"{name} {value}" for name, value in row.items()), source)
        found += _judge_row(subject, row, line)
    return found or [LINE_UNKNOWN.unknown("GPUs", "no row of a GPU is in it", Evidence(text.strip()[:200], source))]


def _judge_row(subject: str, row: Mapping[str, str], line: Evidence) -> list[Finding]:
    width, most = row.get("pcie.link.width.current"), row.get("pcie.link.width.max")
    speed, fastest = row.get("pcie.link.gen.current"), row.get("pcie.link.gen.max")
    values = [value for value in (width, most, speed, fastest) if value is not None]
    if any(value in _NONE for value in values):
        return [ids.INVALID.unknown(subject, "the driver does not say what its link is", line)]
    if any(whole(value) is None for value in values):
        return [LINE_UNKNOWN.unknown(subject, "its link is not understood", line)]
    used = real(row.get("utilization.gpu"))
    idle = used is None or used < _IDLE_PERCENT
    return _judge_link(ids.PCIE_LINK, subject, (width, most), (speed, fastest), line, idle=idle)


def _judge_link(
    known: FindingId,
    subject: str,
    widths: tuple[str | None, str | None],
    speeds: tuple[str | None, str | None],
    line: Evidence,
    *,
    idle: bool,
) -> list[Finding]:
    """(now, most) of lanes and of speed; idle: a lower speed saves power and is no fault."""
    lanes, most = whole(widths[0]), whole(widths[1])
    speed, fastest = (_number(text) for text in speeds)
    if lanes is None or most is None:
        return []
    if lanes < most:
        return [known.warn(subject, f"its PCIe link has {lanes} of {most} lanes", line)]
    if speed is not None and fastest is not None and speed < fastest:
        what = f"its PCIe link runs at {speeds[0]} of {speeds[1]}"
        if idle:
            return [known.info(subject, f"{what}: it is idle, or its load is not known", line)]
        return [known.warn(subject, f"{what} under load", line)]
    return [known.ok(subject, f"its PCIe link is whole: {lanes} lanes" + (f", {speeds[0]}" if speeds[0] else ""), line)]


def _number(text: str | None) -> float | None:
    match = re.match(r"[\d.]{1,9}", text or "")
    return real(match[0]) if match else None


# ---- checks


def _gpus(node: Node) -> tuple[str, ...]:
    found = node.listing(_GPUS)
    return () if isinstance(found, Missing) else found


def _link(node: Node, device: str) -> dict[str, str]:
    texts = {name: node.read(f"{device}/{name}", 64) for name in _LINK_FILES}
    return {name: text.strip() for name, text in texts.items() if isinstance(text, str)}


def _judge_files(
    known: FindingId, subject: str, values: Mapping[str, str], source: str, *, idle: bool
) -> list[Finding]:
    line = Evidence(", ".join(f"{name} {value}" for name, value in values.items()), source)
    widths = (values.get("current_link_width"), values.get("max_link_width"))
    speeds = (values.get("current_link_speed"), values.get("max_link_speed"))
    return _judge_link(known, subject, widths, speeds, line, idle=idle)


def check_links(node: Node, _target: Target) -> list[Finding]:
    """C11: the PCIe links of GPUs and RDMA cards, by /sys, else by nvidia-smi."""
    found: list[Finding] = []
    gpus = _gpus(node)
    for gpu in gpus:
        path = f"/sys/bus/pci/devices/{gpu.lower()}"
        found += _judge_files(ids.PCIE_LINK, f"GPU {gpu}", _link(node, path), path, idle=True)
    if gpus and not found:
        output = node.run(_QUERY)
        if not isinstance(output, Missing) and detect_query(output.stdout):
            found += explain_query(output.stdout, "nvidia-smi --query-gpu")
    cards = node.listing(_INFINIBAND)
    for card in () if isinstance(cards, Missing) else cards:
        path = f"{_INFINIBAND}/{card}/device"
        found += _judge_files(ids.NIC_LINK, card, _link(node, path), path, idle=False)
    return found


def check_bar(node: Node, _target: Target) -> list[Finding]:
    """C11: the size of BAR1, the largest window of the device."""
    found: list[Finding] = []
    for gpu in _gpus(node):
        path = f"/sys/bus/pci/devices/{gpu.lower()}/resource"
        text = node.read(path, 4096)
        if isinstance(text, Missing):
            continue
        size_bytes, line = largest_window(text)
        if size_bytes is None:
            found.append(LINE_UNKNOWN.unknown(f"GPU {gpu}", "its windows are not understood", Evidence(line, path)))
        elif size_bytes <= BAR_SMALL_BYTES:
            what = f"BAR1 has {size_bytes // MIB} MiB only"
            found.append(ids.BAR.warn(f"GPU {gpu}", what, Evidence(line, path)))
        else:
            found.append(ids.BAR.ok(f"GPU {gpu}", f"BAR1 has {size_bytes // MIB} MiB", Evidence(line, path)))
    return found


def largest_window(text: str) -> tuple[int | None, str]:
    """The largest of the first six windows in a device's `resource` (start, end, flags), and its line."""
    best: tuple[int | None, str] = (None, text.partition("\n")[0])
    for line in text.splitlines()[:6]:
        match = re.fullmatch(r"(0x[0-9a-f]{1,16}) (0x[0-9a-f]{1,16}) 0x[0-9a-f]{1,16}", line.strip())
        if match is None:
            return None, line
        start, end = int(match[1], 16), int(match[2], 16)
        size_bytes = end - start + 1 if end > start else 0
        if best[0] is None or size_bytes > best[0]:
            best = (size_bytes, line)
    return best


def check_iommu(node: Node, _target: Target) -> list[Finding]:
    """C11: whether an IOMMU is on, on x86 with GPUs."""
    host = node.host()
    if not _gpus(node) or not isinstance(host, Host) or host.machine not in ("x86_64", "AMD64"):
        return []
    groups = node.listing("/sys/kernel/iommu_groups")
    if isinstance(groups, Missing):
        return []
    arguments = node.read("/proc/cmdline", 8192)
    line = Evidence(f"{len(groups)} groups", "/sys/kernel/iommu_groups")
    if not groups:
        return [ids.IOMMU.ok("IOMMU", "is off", line)]
    if isinstance(arguments, str) and re.search(r"\biommu=(?:pt|.*,pt)\b", arguments):
        return [
            ids.IOMMU.info("IOMMU", "is on, passing through (iommu=pt)", line, Evidence(arguments, "/proc/cmdline"))
        ]
    return [ids.IOMMU.warn("IOMMU", f"is on, with {len(groups)} groups", line)]


def check_activity(node: Node, _target: Target) -> list[Finding]:
    """C21: what nvidia-smi says of the GPUs' work, which is little."""
    if not _gpus(node):
        return []
    output = node.run(_QUERY)
    if isinstance(output, Missing):
        return [ids.KERNELS.unknown("GPUs", f"how busy they are cannot be seen: nvidia-smi: {output.reason}")]
    found: list[Finding] = []
    for row in parse_query(output.stdout):
        used, line = row.get("utilization.gpu", ""), Evidence(", ".join(row.values()), "nvidia-smi --query-gpu")
        subject = f"GPU {row.get('index', '?')}"
        if real(used) is None:
            found.append(ids.INVALID.unknown(subject, f"how busy it is, is not told: {used!r}", line))
        else:
            what = f"some kernel ran {used}% of the last moment; how much of the GPU it used is not known"
            found.append(ids.KERNELS.info(subject, what, line))
    return found


KINDS: Final[Sequence[Kind]] = (
    Kind("dcgm", dcgm.detect, dcgm.explain),
    Kind("nvidia-smi", detect_query, explain_query),
)

CHECKS: Final = (
    Check("C11", "PCIe links", check_links),
    Check("C11", "BAR1", check_bar),
    Check("C11", "IOMMU", check_iommu),
    Check("C21", "GPU activity", check_activity),
)

SUBJECT: Final = Subject("gpu", ids=gpu_ids.IDS, kinds=tuple(KINDS), checks=CHECKS)
