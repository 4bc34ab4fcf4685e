"""md arrays: /proc/mdstat, and `mdadm --detail --export`. Pure.

Source: drivers/md/md.c (md_seq_show) of the kernel; mdadm's Detail.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from stoker.doctor import raid_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.texts import fields, whole

_HEAD: Final = re.compile(r"^(md\w*)\s*:\s*(active|inactive|broken|readonly|read-auto|clean)\b(.*)$")
_MEMBER: Final = re.compile(r"^([^\s\[\]]+)\[(\d{1,6})\]((?:\([A-Z]+\))*)$")
_COUNTS: Final = re.compile(r"\[(\d{1,6})/(\d{1,6})\]\s*\[([U_]+)\]")
_SUPER: Final = re.compile(r"\bsuper external:(\S+)")
_PROGRESS: Final = re.compile(
    r"(recovery|resync|reshape|check|repair)\s*=\s*(?:(\d{1,3}[.,]\d{1,2})%|(DELAYED|PENDING|REMOTE))(.*)$"
)
_KNOWN: Final = re.compile(r"^(?:\d+ blocks\b|bitmap:|\[[=>.]+\]|resync=|recovery=|reshape=|unused devices)")
_LEVEL: Final = re.compile(r"raid\d{1,2}|linear|multipath|faulty|container")
_REDUNDANT: Final = re.compile(r"raid(?:1|4|5|6|10)")
_PERSONALITIES: Final = "Personalities :"


@dataclass
class Array:
    """One array as mdstat has it. `total` and `active` are None where the kernel shows none: raid0, linear."""

    name: str
    state: str
    level: str
    line: str
    members: dict[str, str] = field(default_factory=dict)
    total: int | None = None
    active: int | None = None
    external: str = ""
    work: str = ""
    progress: str = ""
    more: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)


def detect(text: str) -> bool:
    """Whether it is /proc/mdstat."""
    return any(line.startswith(_PERSONALITIES) or _HEAD.match(line) for line in text.splitlines())


def parse(text: str) -> list[Array]:
    """The arrays in their order. Lines of an array in an unknown form are kept in `strange`."""
    found: list[Array] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            found.append(_array(head, line))
        elif line[:1].isspace() and line.strip() and found:
            _continue(found[-1], line.strip())
    return found


def _array(head: re.Match[str], line: str) -> Array:
    array = Array(head[1], head[2], "", line)
    for word in head[3].split():
        member = _MEMBER.match(word)
        if member:
            array.members[member[1]] = member[3]
        elif word.startswith("("):
            array.state += f" {word}"
        elif not array.level and _LEVEL.fullmatch(word):
            array.level = word
        else:
            array.strange.append(line)
    return array


def _continue(array: Array, line: str) -> None:
    counts, outside, work = _COUNTS.search(line), _SUPER.search(line), _PROGRESS.search(line)
    if counts:
        array.total, array.active = int(counts[1]), int(counts[2])
    if outside:
        array.external = outside[1]
    if work:
        array.work = work[1]
        finish = fields(work[4]).get("finish", "")
        array.progress = f"{work[2]}%{', ' + finish + ' to go' if finish else ''}" if work[2] else work[3].lower()
    if not (counts or outside or work or _KNOWN.match(line)):
        array.strange.append(line)
    array.more.append(line)


def explain(text: str, source: str) -> list[Finding]:
    """The state of all arrays."""
    arrays = parse(text)
    if not arrays:
        line = next((line for line in text.splitlines() if line.strip()), "")
        if line.startswith(_PERSONALITIES) and "unused devices" in text:
            return [ids.NO_ARRAY.info("md", "no array", Evidence(line, source), fix="")]
        return [LINE_UNKNOWN.unknown("md", "no array in a form that is known", Evidence(line, source))]
    return [finding for array in arrays for finding in judge(array, source)]


def judge(array: Array, source: str) -> list[Finding]:
    """Findings about one array."""
    lines = [Evidence(line, source) for line in (array.line, *array.more)]
    found = [
        LINE_UNKNOWN.unknown(array.name, "a line of it is not understood", Evidence(s, source)) for s in array.strange
    ]
    if array.state.startswith("inactive") or array.state == "broken":
        if array.external and not array.external.startswith("/"):
            what = f"a container of {array.external} metadata, inactive as they are"
            return [*found, ids.CONTAINER.info(array.name, what, *lines, fix="")]
        return [*found, ids.INACTIVE.fail(array.name, f"is {array.state}: {', '.join(array.members)}", *lines)]
    found += _health(array, lines)
    if array.level and array.level != "raid0":
        found.append(ids.NOT_DIRECT.info(array.name, f"{array.level}: GPUDirect takes only RAID 0", lines[0]))
    if array.level in ("raid0", "linear"):
        what = f"{array.level} of {len(array.members)}: one lost member loses all"
        what += "; the only level that GPUDirect takes" if array.level == "raid0" else ""
        found.append(ids.NO_REDUNDANCY.info(array.name, what, lines[0]))
    return found


def _health(array: Array, lines: list[Evidence]) -> list[Finding]:
    failed = [name for name, marks in array.members.items() if "(F)" in marks]
    spares = [name for name, marks in array.members.items() if "(S)" in marks]
    lost = (array.total or 0) - (array.active or 0)
    shown = f"{array.level} has {array.active} of {array.total} members" if array.total else array.level
    shown += f", failed: {', '.join(failed)}" if failed else ""
    if lost > 0 and array.work == "recovery" and array.progress not in ("delayed", "pending"):
        spare = f" onto {', '.join(spares)}" if spares else ""
        return [ids.REBUILDING.warn(array.name, f"{shown}; rebuilding{spare}, {array.progress}", *lines)]
    if failed and array.total is None:
        return [ids.DEGRADED.warn(array.name, f"{shown}; whether it is being rebuilt is not told", *lines)]
    if lost > 0:
        then = f"rebuilding is {array.progress}" if array.work == "recovery" else "nothing is being rebuilt"
        then += "" if spares or array.work else ", no spare"
        return [ids.DEGRADED.fail(array.name, f"{shown}; {then}", *lines)]
    if array.work:
        return [ids.BACKGROUND.warn(array.name, f"{shown}; {array.work} {array.progress}", *lines)]
    if not _LEVEL.fullmatch(array.level) or (_REDUNDANT.fullmatch(array.level) and array.total is None):
        return [LINE_UNKNOWN.unknown(array.name, "whether it has all members is not told", *lines)]
    if array.total is None:
        what = f"{array.level} of {len(array.members)} is active; the kernel shows no counts for this level"
        return [ids.HEALTHY.ok(array.name, what, *lines)]
    return [ids.HEALTHY.ok(array.name, shown, *lines)]


def detect_export(text: str) -> bool:
    """Whether it is `mdadm --detail --export`."""
    values = fields(text)
    return "MD_LEVEL" in values and "MD_DEVICES" in values and text.lstrip().startswith("MD_")


def explain_export(text: str, source: str) -> list[Finding]:
    """Whether an array has all members, and what cuFile needs to know of it."""
    values = fields(text)
    level, count = values.get("MD_LEVEL", ""), whole(values.get("MD_DEVICES"))
    name = f"md {values['MD_NAME']}" if values.get("MD_NAME") else "md array"
    roles = {k: v for k, v in values.items() if k.startswith("MD_DEVICE_") and k.endswith("_ROLE")}
    lines = [Evidence(f"{k}={v}", source) for k, v in values.items() if k in ("MD_LEVEL", "MD_DEVICES") or k in roles]
    if level == "container":
        return [ids.CONTAINER.info(name, "a container of external metadata", *lines, fix="")]
    if count is None or not _LEVEL.fullmatch(level) or not roles:
        first = lines or [Evidence(next(iter(text.splitlines()), ""), source)]
        return [LINE_UNKNOWN.unknown(name, "level or members are not told", *first)]
    active = sum(whole(role) is not None for role in roles.values())
    what = f"{level} with {active} of {count} members" + (
        f" and {len(roles) - active} spare or failed" if len(roles) > active else ""
    )
    found = [ids.HEALTHY.ok(name, what, *lines) if active >= count else ids.DEGRADED.fail(name, what, *lines)]
    if level == "raid0":
        found.append(ids.UDEV.info(name, "udev must import this for cuFile to know the volume", lines[0]))
        found.append(
            ids.NO_REDUNDANCY.info(
                name, f"{level} of {count}: one lost member loses all; the only level that GPUDirect takes", lines[0]
            )
        )
    else:
        found.append(ids.NOT_DIRECT.info(name, f"{level}: GPUDirect takes only RAID 0", lines[0]))
    return found
