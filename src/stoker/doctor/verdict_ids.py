"""The finding that sums up a path."""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId

PATH_VERDICT = FindingId(
    "path-verdict",
    "All that is known of a path in one line: what it is, what GPUDirect is expected to do, the last measurement, and "
    "what the last run on this node waited for. As bad as the worst of these.",
    "Each part has a finding of its own; together they say whether the path can feed the GPUs.",
    "what the worst part asks for; what is not known: stoker doctor storage PATH, stoker doctor gds PATH --probe",
)
IDS: Final = (PATH_VERDICT,)
