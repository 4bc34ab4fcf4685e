"""All subjects, in the order the doctor looks at them. A new subject is one more line here."""

from __future__ import annotations

from typing import Final

from stoker.doctor import (
    bench,
    check,
    diskstats,
    filesystem,
    gds,
    gds_probe,
    gpu,
    host,
    kinds,
    kubernetes,
    network,
    nvme,
    object_ids,
    own,
    raid,
    stall_report,
    storage,
    verdict,
)
from stoker.doctor.finding import FindingId
from stoker.doctor.subject import Subject

SUBJECTS: Final[tuple[Subject, ...]] = (
    Subject("doctor", ids=(*kinds.IDS, *check.IDS)),
    gds.SUBJECT,
    nvme.SUBJECT,
    raid.SUBJECT,
    diskstats.SUBJECT,
    filesystem.SUBJECT,
    network.SUBJECT,
    host.SUBJECT,
    gpu.SUBJECT,
    kubernetes.SUBJECT,
    own.SUBJECT,
    gds_probe.SUBJECT,
    stall_report.SUBJECT,
    bench.SUBJECT,
    storage.SUBJECT,
    object_ids.SUBJECT,
    verdict.SUBJECT,
)

KINDS: Final = tuple(kind for subject in SUBJECTS for kind in subject.kinds)
KIND_NAMES: Final = tuple(dict.fromkeys(kind.name for kind in KINDS))
CHECKS: Final = tuple(check for subject in SUBJECTS for check in subject.checks)
FINDING_IDS: Final[dict[str, FindingId]] = {known.name: known for subject in SUBJECTS for known in subject.ids}


def as_markdown(subject: Subject) -> str:
    """The finding ids of a subject as they stand in docs/reference/findings.md."""
    lines: list[str] = []
    for known in subject.ids:
        lines += [f"### {known.name}", "", known.meaning, "", f"- Why it matters: {known.why}", f"- Fix: {known.fix}"]
        lines += [f"- Source: {known.reference}", ""] if known.reference else [""]
    return "\n".join(lines).rstrip("\n")
