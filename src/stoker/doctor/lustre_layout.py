"""`lfs getstripe`: where the data of a Lustre file lies; plain, progressive (PFL), Data-on-MDT, mirrored. Pure.

Source: Lustre Operations Manual, chapters 19 and 20; lfs-getstripe(1). Only components that are instantiated (flag
`init`) hold data; a stripe count of -1 is all targets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from stoker.doctor import filesystem_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.texts import whole

_PAIR: Final = re.compile(r"(l[a-z]+_[a-z_.]+|stripe_count|stripe_size|stripe_offset|pattern):\s*(\S+)")
_COUNT: Final = re.compile(r"\b(?:lmm_)?stripe_count:\s*-?\d")
_PATTERNS: Final = ("raid0", "mdt", "overstriped", "released", "compat", "foreign", "parity")
_NUMBERED: Final = {"1": "raid0", "100": "mdt"}  # as Lustre before 2.11 prints them
_LEAST_BYTES: Final = 64 << 10
_SMALL_BYTES: Final = 1 << 20


@dataclass
class Component:
    """A part of a file's layout. `end` is None for the end of the file; `in_use` whether it holds data."""

    line: str = ""
    start: int = 0
    end: int | None = None
    stripe_count: int | None = None
    stripe_size_bytes: int | None = None
    pattern: tuple[str, ...] = ("raid0",)
    in_use: bool = True


@dataclass
class Layout:
    """The layout of one file or folder. `told_count`: how many components it says that it has."""

    path: str
    components: list[Component] = field(default_factory=list)
    told_count: int | None = None

    @property
    def stripe_count(self) -> int | None:
        """The most targets that hold data at one place of the file: 0 if it all lies on the metadata target."""
        counts = [c.stripe_count for c in self.components if c.in_use and "mdt" not in c.pattern]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts) or not self.components:
            return None
        return -1 if -1 in known else max(known, default=0)


def detect(text: str) -> bool:
    """Whether it is `lfs getstripe`, as text or YAML."""
    return bool(_COUNT.search(text))


def parse(text: str) -> list[Layout]:
    """The layouts in their order."""
    found: list[Layout] = []
    for line in text.splitlines():
        pairs = _PAIR.findall(line)
        if line[:1] == "/" and not pairs:
            found.append(Layout(line.strip()))
        elif pairs:
            if not found:
                found.append(Layout(""))
            for key, value in pairs:
                _add(found[-1], key.removeprefix("lmm_"), value, line.strip())
    return [layout for layout in found if layout.components]


def _add(layout: Layout, key: str, value: str, line: str) -> None:
    parts = layout.components
    if key == "lcm_entry_count":
        layout.told_count = whole(value)
        return
    if key == "lcme_id" or (key == "stripe_count" and not parts) or (not parts and key.startswith("lcme_")):
        parts.append(Component(line))
    if not parts:
        return
    part = parts[-1]
    if key == "lcme_flags":
        flags = value.split(",")
        part.in_use = "init" in flags and "stale" not in flags
    elif key == "lcme_extent.e_start":
        part.start = whole(value) or 0
    elif key == "lcme_extent.e_end":
        part.end = whole(value)
    elif key == "stripe_count":
        part.stripe_count, part.line = whole(value), line
    elif key == "stripe_size":
        part.stripe_size_bytes = whole(value)
    elif key == "pattern":
        part.pattern = tuple(_NUMBERED.get(word, word) for word in value.split(","))


def explain(text: str, source: str) -> list[Finding]:
    """What the layouts of all files mean for reading them."""
    layouts = parse(text)
    if not layouts:
        line = next((line for line in text.splitlines() if line.strip()), "")
        return [LINE_UNKNOWN.unknown("Lustre", "no output of lfs getstripe that is known", Evidence(line, source))]
    return [finding for layout in layouts for finding in judge(layout, source)]


def judge(layout: Layout, source: str) -> list[Finding]:
    """Findings of one file."""
    subject, found = layout.path or "Lustre file", []
    used = [part for part in layout.components if part.in_use]
    lines = [Evidence(part.line, source) for part in used or layout.components]
    for part in layout.components:
        strange = [word for word in part.pattern if word not in _PATTERNS]
        if strange:
            what = f"pattern {', '.join(strange)} is not known"
            found.append(LINE_UNKNOWN.unknown(subject, what, Evidence(part.line, source)))
        if part.in_use and "mdt" in part.pattern:
            what = f"the first {_size(part.end)} lie on the metadata target; such reads are not direct"
            found.append(ids.LUSTRE_DOM.info(subject, what, Evidence(part.line, source)))
        if "released" in part.pattern:
            found.append(ids.LUSTRE_RELEASED.warn(subject, "its data was archived", Evidence(part.line, source)))
        small = part.stripe_size_bytes
        if part.in_use and "mdt" not in part.pattern and small is not None and _LEAST_BYTES <= small < _SMALL_BYTES:
            found.append(ids.LUSTRE_SMALL_STRIPE.warn(subject, f"stripes of {small >> 10} KiB", *lines))
    if any(finding.id == LINE_UNKNOWN.name for finding in found):
        return found
    return found + _stripes(subject, layout, lines)


def _stripes(subject: str, layout: Layout, lines: list[Evidence]) -> list[Finding]:
    count, told = layout.stripe_count, layout.told_count
    if told is not None and len(layout.components) < told:
        what = f"only {len(layout.components)} of its {told} components are here"
        return [LINE_UNKNOWN.unknown(subject, what, *lines)]
    if count is None:
        return [LINE_UNKNOWN.unknown(subject, "its number of stripes is not told", *lines)]
    later = [part for part in layout.components if not part.in_use]
    unused = f"; component from {_size(later[0].start)} on is not in use yet" if later else ""
    if count == 0:
        if any("mdt" in part.pattern for part in layout.components if part.in_use):
            return []  # all that is in use lies on the metadata target: said above, and no error
        return [ids.LUSTRE_STRIPES.info(subject, "the default of the file system", *lines, fix="")]
    if count == 1 and not later:
        what = "one storage target holds all of it: a large file that many read is bound to it"
        return [ids.LUSTRE_ONE_STRIPE.warn(subject, what, *lines)]
    shown = "all targets" if count == -1 else f"{count} target{'' if count == 1 else 's'}"
    return [ids.LUSTRE_STRIPES.ok(subject, f"data over {shown}{unused}", *lines)]


def _size(count: int | None) -> str:
    if count is None:
        return "bytes"
    return f"{count >> 20} MiB" if count >= 1 << 20 and count % (1 << 20) == 0 else f"{count} bytes"
