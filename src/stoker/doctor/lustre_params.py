"""Settings of a Lustre client, as `lctl get_param` prints them: `osc.fs-OST0000-osc-ffff.max_rpcs_in_flight=8`. Pure.

Source: Lustre Operations Manual, chapter 39 (tuning) and its appendix on parameters.
"""

from __future__ import annotations

import re
from typing import Final

from stoker.doctor import filesystem_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.texts import real

ASKED: Final = ("osc.*.max_rpcs_in_flight", "llite.*.statahead_max", "llite.*.max_read_ahead_mb")
_SETTING: Final = re.compile(
    r"^(?:osc|mdc|llite)\.(\S+)\.(max_rpcs_in_flight|statahead_max|max_read_ahead_mb|checksums)=(.*)$"
)
_USUAL_RPCS: Final = 8.0


def detect(text: str) -> bool:
    """Whether it is settings of a client, of which one at least is known."""
    return any(_SETTING.match(line) for line in text.splitlines())


def explain(text: str, source: str) -> list[Finding]:
    """Settings that keep a client slow; what is the same on many targets is said once."""
    found: list[Finding] = []
    rows: dict[tuple[str, str], list[Evidence]] = {}
    for line in text.splitlines():
        match = _SETTING.match(line.strip())
        if match:
            rows.setdefault((match[2], match[3].strip()), []).append(Evidence(line, source))
    for (name, value), lines in rows.items():
        number = real(value)
        if number is None:
            found.append(LINE_UNKNOWN.unknown("Lustre", f"the value of {name} is not understood", *lines))
        elif number == 0 and name in ("statahead_max", "max_read_ahead_mb"):
            found.append(ids.LUSTRE_SETTINGS.warn("Lustre", f"{name} is 0: reading ahead is off", *lines))
        elif name == "max_rpcs_in_flight" and number < _USUAL_RPCS:
            what = f"{name} is {value} on {len(lines)} targets, less than the default of {_USUAL_RPCS:.0f}"
            found.append(ids.LUSTRE_SETTINGS.warn("Lustre", what, *lines))
        else:
            found.append(ids.LUSTRE_SETTINGS.info("Lustre", f"{name} is {value}", *lines, fix=""))
    if not found:
        first = next((line for line in text.splitlines() if line.strip()), "")
        return [LINE_UNKNOWN.unknown("Lustre", "no setting that is known", Evidence(first, source))]
    return found
