"""What benchmarks print: fio (JSON and job files), DLIO and MLPerf Storage summaries, mdtest.

Formats: fio 3.x --output-format=json; dlio_benchmark statscounter.py; mdtest of IOR. Target of accelerator utilisation:
MLPerf Storage, 0.90 (0.70 for cosmoflow, which a summary does not name: its own word on the target counts first).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from stoker.doctor.finding import Evidence, Finding, FindingId
from stoker.doctor.kinds import LINE_UNKNOWN, Kind
from stoker.doctor.subject import Subject
from stoker.doctor.texts import line_with, real
from stoker.units import format_rate

_TARGET_PERCENT: Final = 90.0
_BUSY_PERCENT: Final = 95.0
_MDTEST: Final = re.compile(r"^\s*(\w+(?: \w+)?)\s{2,}([\d.,]+)\s+([\d.,]+)\s+([\d.,]+)\s+([\d.,]+)\s*$")
_MDTEST_HEAD: Final = re.compile(r"^SUMMARY rate\b", re.MULTILINE)
_MDTEST_OPERATIONS: Final = frozenset(("Directory", "File", "Tree"))
_SECTION: Final = re.compile(r"^\[[^\]\n]+\]\s*$", re.MULTILINE)
_TRUE: Final = frozenset(("1", "true", "yes"))

BENCH_RESULT = FindingId(
    "bench-result",
    meaning="What a benchmark measured.",
    why="It is what the storage gave to that pattern, on that day; compare it with what training asks for.",
    fix="none is needed",
)
BENCH_PAGE_CACHE = FindingId(
    "bench-page-cache",
    meaning="A benchmark may have measured memory: it went through the page cache, or its data fit into it.",
    why="The number says nothing about the storage; training on more data than memory will be slower.",
    fix="use direct=1 in fio; in DLIO make the data set several times as large as the host's memory",
)
BENCH_DEVICE_BUSY = FindingId(
    "bench-device-busy",
    meaning="A block device was in use nearly all the time of a benchmark.",
    why="The result is near what the device can do at that depth; parallel devices may do more at a greater one.",
    fix="none is needed; to see whether it is the ceiling, repeat with twice the depth",
)
BENCH_STARVED = FindingId(
    "bench-accelerators-starved",
    meaning="DLIO or MLPerf Storage: accelerators computed for less of the time than the benchmark asks.",
    why="Storage does not keep up with that many accelerators; real GPUs would wait as these emulated ones did.",
    fix="fewer accelerators a host, or faster storage: stoker doctor --why while it runs tells what holds it up",
)
IDS: Final = (BENCH_RESULT, BENCH_PAGE_CACHE, BENCH_DEVICE_BUSY, BENCH_STARVED)


def _json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float | None:
    """The number, if it is a finite one."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300  # noqa: PLR2004
    return float(value) if sound else None


def detect_fio(text: str) -> bool:
    """Whether it is fio's JSON."""
    found = _json(text)
    return "fio version" in found and isinstance(found.get("jobs"), list)


def explain_fio(text: str, source: str) -> list[Finding]:
    """Each job of each group by itself, whether it was direct, and how busy devices were."""
    report = _json(text)
    found: list[Finding] = []
    jobs = report.get("jobs")
    common = report.get("global options")
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, dict):
            found += _explain_job(job, common if isinstance(common, dict) else {}, text, source)
    devices = report.get("disk_util")
    for device in devices if isinstance(devices, list) else ():
        util = _number(device.get("util")) if isinstance(device, dict) else None
        if util is not None and util >= _BUSY_PERCENT:
            line = Evidence(line_with(text, '"util"'), source)
            found.append(
                BENCH_DEVICE_BUSY.info(f"fio {device.get('name')}", f"was in use {util:.0f}% of the time", line)
            )
    if not found:
        found.append(LINE_UNKNOWN.unknown("fio", "no job with a result is in it", Evidence(text[:80], source)))
    return found


def _explain_job(job: Mapping[str, Any], common: Mapping[str, Any], text: str, source: str) -> list[Finding]:
    options = {**common, **(job["job options"] if isinstance(job.get("job options"), dict) else {})}
    subject = f"fio {job.get('jobname')} (group {job.get('groupid')})"
    line = Evidence(line_with(text, f'"jobname": "{job.get("jobname")}"') or line_with(text, '"jobs"'), source)
    found = []
    for direction in ("read", "write"):
        part = job[direction] if isinstance(job.get(direction), dict) else {}
        speed = _number(part.get("bw_bytes"))
        if speed is None or not part.get("total_ios"):
            continue
        what = f"{direction} {format_rate(speed)}, {_number(part.get('iops')) or 0:.0f} requests/s"
        latency = part.get("clat_ns")
        percentile = latency.get("percentile") if isinstance(latency, dict) else None
        slow = _number(percentile.get("99.000000")) if isinstance(percentile, dict) else None
        if slow is not None:
            what += f", 1 in 100 slower than {slow / 1e6:.1f} ms"
        shape = " ".join(f"{name}={options[name]}" for name in ("rw", "bs", "iodepth", "numjobs") if name in options)
        found.append(BENCH_RESULT.info(subject, f"{what} ({shape})" if shape else what, line))
    if found and str(options.get("direct", "0")).lower() not in _TRUE:
        found.append(BENCH_PAGE_CACHE.warn(subject, "went through the page cache: direct=1 was not given", line))
    if _number(job.get("error")):
        found.append(BENCH_RESULT.warn(subject, f"ended with error {job['error']}", line, fix="see fio's own output"))
    return found


def _jobs(text: str) -> dict[str, dict[str, str]]:
    """Section -> option -> value, "" for an option without one; comments are left out."""
    jobs: dict[str, dict[str, str]] = {}
    options: dict[str, str] = {}
    for raw in text.splitlines():
        line = raw.strip()
        if _SECTION.fullmatch(line):
            options = jobs.setdefault(line[1:-1], {})
        elif line and line[0] not in "#;":
            key, _, value = line.partition("=")
            options[key.strip()] = value.strip()
    return jobs


def detect_job_file(text: str) -> bool:
    """Whether it is a job file of fio: sections, of which one says what to read or write."""
    if not _SECTION.search(text) or text.lstrip().startswith("{"):
        return False
    jobs = _jobs(text)
    return any("rw" in options or "readwrite" in options for options in jobs.values()) and any(
        {"ioengine", "bs", "iodepth", "size", "filename", "directory", "numjobs"} & set(o) for o in jobs.values()
    )


def explain_job_file(text: str, source: str) -> list[Finding]:
    """Whether each job would measure the storage or the page cache."""
    jobs = _jobs(text)
    common = jobs.get("global", {})
    found = []
    for name, own in jobs.items():
        if name == "global":
            continue
        options = {**common, **own}
        line = Evidence(f"[{name}]", source)
        what = " ".join(f"{key}={options[key]}" for key in ("rw", "bs", "iodepth", "numjobs") if key in options)
        is_direct = options.get("direct", "0").lower() in _TRUE or options.get("buffered") == "0"
        if is_direct:
            after = ", after the jobs before it" if "stonewall" in options or "wait_for_previous" in options else ""
            found.append(
                BENCH_RESULT.info(f"fio job {name}", f"would measure {what}, past the page cache{after}", line)
            )
        else:
            found.append(BENCH_PAGE_CACHE.warn(f"fio job {name}", f"would measure {what} through the page cache", line))
    if not found:
        found.append(LINE_UNKNOWN.unknown("fio job file", "no job is in it", Evidence(text[:80], source)))
    return found


def detect_dlio(text: str) -> bool:
    """Whether it is a summary of DLIO."""
    metric = _json(text).get("metric")
    return isinstance(metric, dict) and any(str(key).startswith("train_") for key in metric)


def explain_dlio(text: str, source: str) -> list[Finding]:
    """Accelerator utilisation against its target, and whether the data could have been in memory."""
    report = _json(text)
    metric = report.get("metric")
    metric = metric if isinstance(metric, dict) else {}
    mean = _number(metric.get("train_au_mean_percentage"))
    accelerators = f"{report.get('num_accelerators', '?')} accelerators"
    line = Evidence(line_with(text, "train_au_mean_percentage"), source)
    found: list[Finding] = []
    if mean is None:
        found.append(LINE_UNKNOWN.unknown("DLIO", "no mean accelerator utilisation is in it", line))
    else:
        verdict = metric.get("train_au_meet_expectation")
        failed = verdict == "fail" if isinstance(verdict, str) else mean < _TARGET_PERCENT
        told = f"accelerator utilisation {mean:.0f}%"
        if failed:
            what = f"{told} with {accelerators} misses the target ({_TARGET_PERCENT:.0f}%, 70% for cosmoflow): starved"
            found.append(BENCH_STARVED.warn("DLIO", what, line))
        else:
            found.append(BENCH_STARVED.ok("DLIO", f"{told} with {accelerators} meets the target", line))
    speed = _number(metric.get("train_io_mean_MB_per_second"))
    if speed is not None:
        line = Evidence(line_with(text, "train_io_mean_MB_per_second"), source)
        found.append(BENCH_RESULT.info("DLIO", f"training read {format_rate(speed * 1e6)}", line))
    caching = report.get("potential_caching")
    if isinstance(caching, list) and caching:
        line = Evidence(f'"potential_caching": {caching[:8]}', source)
        if any(caching):
            found.append(BENCH_PAGE_CACHE.warn("DLIO", "the data of a host fit into its memory", line))
        else:
            found.append(
                BENCH_PAGE_CACHE.ok("DLIO", "the data of a host are larger than its memory: a fair test", line)
            )
    return found


def detect_mdtest(text: str) -> bool:
    """Whether it holds mdtest's table of rates."""
    return bool(_MDTEST_HEAD.search(text)) and bool(_rates(text))


def _rates(text: str) -> dict[str, tuple[float, str]]:
    """Operation -> (mean a second, line)."""
    found = {}
    for line in text.splitlines():
        match = _MDTEST.match(line)
        mean = real(match[4]) if match else None
        if match and mean is not None and match[1].split()[0] in _MDTEST_OPERATIONS:
            found[match[1]] = (mean, line)
    return found


def explain_mdtest(text: str, source: str) -> list[Finding]:
    """Operations a second; what listing and opening a data set cost is stat and read of files."""
    rates = _rates(text)
    if not rates:
        return [LINE_UNKNOWN.unknown("mdtest", "no rates are understood", Evidence(text[:80], source))]
    found = []
    for operation, (mean, line) in rates.items():
        use = {"File stat": ": what listing a data set of files costs", "File read": ": what opening its files costs"}
        what = f"{mean:,.0f} a second{use.get(operation, '')}"
        found.append(BENCH_RESULT.info(f"mdtest {operation.lower()}", what, Evidence(line, source)))
    return found


SUBJECT: Final = Subject(
    "bench",
    ids=IDS,
    kinds=(
        Kind("fio-json", detect_fio, explain_fio),
        Kind("fio-job", detect_job_file, explain_job_file),
        Kind("dlio", detect_dlio, explain_dlio),
        Kind("mdtest", detect_mdtest, explain_mdtest),
    ),
)
