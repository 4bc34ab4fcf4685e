"""dcgm-exporter's metrics: whether GPUs work, and whether the numbers can be believed.

Sources: dcgm-exporter default-counters.csv and README; dcgm_fields.h for blank values; Prometheus text format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stoker.doctor import gpu_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.texts import real

IDLE_BELOW: Final = 0.6
FULL_RATIO: Final = 0.8
# What x16 links carry in practice, in bytes/s, by generation.
USABLE_BYTES_PER_S: Final = {3: 12.5e9, 4: 25e9, 5: 55e9, 6: 110e9}
_LANES: Final = 16
_BLANK_FROM: Final = 1.4e14  # of fp64; those of int64 are larger still
_BLANK_INT32: Final = (2147483632, 2147483647)
_LINE: Final = re.compile(r"^(DCGM_FI_\w+)\{(.*)\}\s+(\S+)(?:\s+-?\d+)?\s*$")
_TYPE: Final = re.compile(r"^# TYPE (\w+) counter\s*$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Newer releases call ratios ..._UTIL_RATIO.
_FIELDS: Final = {
    "gr": re.compile(r"DCGM_FI_PROF_GR_ENGINE_(?:ACTIVE|\w*RATIO)"),
    "sm": re.compile(r"DCGM_FI_PROF_SM_(?!OCC)(?:ACTIVE|\w*RATIO)"),
    "tensor": re.compile(r"DCGM_FI_PROF_PIPE_TENSOR_(?:ACTIVE|UTIL_RATIO)"),
    "rx": re.compile(r"DCGM_FI_PROF_PCIE_RX(?:_BYTES\w*)?"),
    "util": re.compile(r"DCGM_FI_DEV_GPU_UTIL"),
    "generation": re.compile(r"DCGM_FI_DEV_PCIE_LINK_GEN"),
    "width": re.compile(r"DCGM_FI_DEV_PCIE_LINK_WIDTH"),
}
_RATIOS: Final = ("gr", "sm", "tensor")
_ROUNDING: Final = 1.01
_UTIL_BUSY_PERCENT: Final = 50


@dataclass
class GpuMetrics:
    """The metrics of a GPU, or of a MIG instance of it. `blank`: fields that the exporter has no value for."""

    values: dict[str, float] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    blank: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

    def evidence(self, source: str, *names: str) -> list[Evidence]:
        """The lines of these fields, as far as they are there."""
        return [Evidence(self.lines[name], source) for name in names if name in self.lines]


def detect(text: str) -> bool:
    """Whether it has metrics of DCGM."""
    return bool(re.search(r"^DCGM_FI_\w+\{", text, re.MULTILINE))


def parse(text: str) -> tuple[dict[str, GpuMetrics], list[str]]:
    """GPU -> metrics, and the lines that are not understood."""
    found: dict[str, GpuMetrics] = {}
    strange: list[str] = []
    sums = set(_TYPE.findall(text))  # older exporters give bytes since the start, not a second: of no use in one scrape
    for line in text.splitlines():
        if not line.startswith("DCGM_FI_"):
            continue
        match = _LINE.match(line)
        labels = dict(_LABEL.findall(match[2])) if match else {}
        gpu = labels.get("gpu") or labels.get("device") or labels.get("UUID")
        if match is None or not gpu:
            strange.append(line)
            continue
        instance = f" instance {labels['GPU_I_ID']}" if labels.get("GPU_I_ID") else ""
        name = next((name for name, pattern in _FIELDS.items() if pattern.fullmatch(match[1])), None)
        if name is not None and match[1] not in sums:
            _take(found.setdefault(f"GPU {gpu}{instance}", GpuMetrics()), name, match[3], line)
    return found, strange


def _take(metrics: GpuMetrics, name: str, text: str, line: str) -> None:
    metrics.lines[name] = line
    value = real(text)
    if text.lower() in ("nan", "n/a", "-") or (value is not None and _is_blank(name, value)):
        metrics.blank.append(name)
    elif value is None or value < 0 or (name in _RATIOS and value > _ROUNDING):
        metrics.strange.append(name)
    else:
        metrics.values[name] = value


def _is_blank(name: str, value: float) -> bool:
    """Whether it is one of the numbers that stand for no value; bytes/s may be as large as those of int32."""
    return value >= _BLANK_FROM or (name != "rx" and _BLANK_INT32[0] <= value <= _BLANK_INT32[1])


def explain(text: str, source: str) -> list[Finding]:
    """For each GPU: starved, busy, or not to be known."""
    gpus, strange = parse(text)
    found = [LINE_UNKNOWN.unknown("GPUs", "a metric is not understood", Evidence(line, source)) for line in strange]
    for subject, metrics in gpus.items():
        for name in metrics.strange:
            line = Evidence(metrics.lines[name], source)
            found.append(LINE_UNKNOWN.unknown(subject, "a value is not what this metric can be", line))
        if metrics.blank:
            lines = metrics.evidence(source, *metrics.blank)
            found.append(ids.INVALID.unknown(subject, "has no value for some metrics", *lines))
        found += judge(subject, metrics, source)
    if not gpus and not strange:
        found.append(ids.INVALID.unknown("GPUs", "no metric that is known is in it"))
    return found


def judge(subject: str, metrics: GpuMetrics, source: str) -> list[Finding]:
    """By the share of time in which multiprocessors work; without it by that in which some kernel runs."""
    values = metrics.values
    shown = metrics.evidence(source, "sm", "gr", "tensor", "rx", "util")
    util = values.get("util")
    measured = [values[name] for name in _RATIOS if name in values]
    if measured and not any(measured) and util is not None and util > _UTIL_BUSY_PERCENT:
        what = f"all profiling metrics are 0 while GPU_UTIL is {util:g}%: they are stuck"
        return [ids.INVALID.unknown(subject, what, *shown)]
    found = _judge_link(subject, values, metrics.evidence(source, "rx"))
    sm, gr = values.get("sm"), values.get("gr")
    if sm is None and gr is None:
        what = "no metric of activity can be used"
        if util is not None:
            what = f"GPU_UTIL {util:g}% says only in how much of the time some kernel ran"
        return [*found, ids.KERNELS.unknown(subject, what, *shown)]
    if sm is not None:
        tensor = f", tensor cores {values['tensor']:.0%}" if "tensor" in values else ""
        what = f"multiprocessors work {sm:.0%} of the time{tensor}"
        if sm >= IDLE_BELOW:
            return [*found, ids.BUSY.ok(subject, f"{what}: it computes, storage is not to blame", *shown)]
        idle = f"idle {1 - gr:.0%} of the time, " if gr is not None else ""
        return [*found, ids.IDLE.warn(subject, f"starves: {idle}{what}{_link_words(values)}", *shown)]
    if gr is not None and gr < IDLE_BELOW:
        return [*found, ids.IDLE.warn(subject, f"starves: idle {1 - gr:.0%} of the time{_link_words(values)}", *shown)]
    return [*found, ids.KERNELS.info(subject, f"some kernel runs {gr:.0%} of the time; its share is not known", *shown)]


def _capacity(values: Mapping[str, float]) -> float | None:
    """What the link carries, bytes/s; None if its generation is not in the metrics."""
    whole = USABLE_BYTES_PER_S.get(int(values.get("generation", 0)))
    return whole * min(values.get("width", _LANES), _LANES) / _LANES if whole else None


def _link_words(values: Mapping[str, float]) -> str:
    """What is said of the link where it is not the limit."""
    received = values.get("rx")
    if received is None:
        return ""
    capacity = _capacity(values)
    if capacity is not None:
        of = f"of about {capacity / 1e9:.3g} GB/s that its link carries"
    else:
        of = "while a x16 link carries about 25 GB/s (Gen4) or 55 GB/s (Gen5)"
    limit = capacity or USABLE_BYTES_PER_S[4]
    end = ": the PCIe link is not the limit" if received < FULL_RATIO * limit else ""
    return f"; PCIe receives {received / 1e9:.2g} GB/s {of}{end}"


def _judge_link(subject: str, values: Mapping[str, float], lines: list[Evidence]) -> list[Finding]:
    received = values.get("rx")
    capacity = _capacity(values) or USABLE_BYTES_PER_S[5]
    if received is None or received < FULL_RATIO * capacity:
        return []
    what = f"receives {received / 1e9:.3g} GB/s of about {capacity / 1e9:.3g} GB/s that its link carries"
    return [ids.PCIE_FULL.warn(subject, what, *lines)]
