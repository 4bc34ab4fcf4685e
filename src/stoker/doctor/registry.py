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

CHECK_IDS: Final = tuple(f"C{number:02}" for number in range(1, 24))
# What a plain `stoker doctor` does not look at, whole checks or parts of one, and why. Stands in the reference.
LEFT_OUT: Final[dict[str, str]] = {
    "C04": "The symbols of the kernel (10 MB of text) and the generation of the GPU: the other conditions rule it out, "
    "and a probe proves it.",
    "C07": "It reads data into a GPU, through a library that can hang: only when asked, by "
    "`stoker doctor gds PATH --probe`.",
    "C09": "stoker's direct reads begin and end at what the file system asks for, whatever the offsets in a data set "
    "are: the edges go through aligned memory beside. How often is known to the running process alone. Unaligned "
    "reads of cuFile are counted: `stoker doctor gds PATH --probe`, `stoker doctor explain gds-stats`.",
    "C11": "ACS: the capabilities of a bridge need root.",
    "C12": "SMART and its critical warning need root; `nvme smart-log DEVICE` says them.",
    "C22": "Shares of the page cache and depth of prefetch need two moments or the run itself: `stoker doctor --why`, "
    "`stoker report RUN`.",
}


def checks_as_markdown() -> str:
    """What each check looks at, and what is left out, as it stands in docs/reference/findings.md."""
    lines = ["| check | looks at | left out, and why |", "|---|---|---|"]
    for id_ in CHECK_IDS:
        looks = [check.subject + (" (each)" if check.per_target else "") for check in CHECKS if check.id == id_]
        lines.append(f"| {id_} | {', '.join(looks) or 'nothing'} | {LEFT_OUT.get(id_, '')} |".replace("|  |", "| |"))
    return "\n".join(lines)


def as_markdown(subject: Subject) -> str:
    """The finding ids of a subject as they stand in docs/reference/findings.md."""
    lines: list[str] = []
    for known in subject.ids:
        lines += [f"### {known.name}", "", known.meaning, "", f"- Why it matters: {known.why}", f"- Fix: {known.fix}"]
        lines += [f"- Source: {known.reference}", ""] if known.reference else [""]
    return "\n".join(lines).rstrip("\n")
