"""A subject: the kinds, checks and finding ids that belong together."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.doctor.check import Check
from stoker.doctor.finding import FindingId
from stoker.doctor.kinds import Kind


@dataclass(frozen=True)
class Subject:
    """What one part of the doctor brings: listed in `registry.SUBJECTS`."""

    name: str
    ids: tuple[FindingId, ...]
    kinds: tuple[Kind, ...] = ()
    checks: tuple[Check, ...] = ()
