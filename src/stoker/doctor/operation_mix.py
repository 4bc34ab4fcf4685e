"""Whether a client's time goes into data or into metadata, from counts and times of its operations. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stoker.doctor import filesystem_ids as ids
from stoker.doctor.finding import Evidence, Finding

_OPERATIONS_A_READ: Final = 2.0
_TIME_SHARE: Final = 0.5


@dataclass(frozen=True)
class OperationMix:
    """Operations and the time in them, in one unit for both; 0 where times are not told."""

    data_count: int
    metadata_count: int
    data_time: float
    metadata_time: float

    @property
    def metadata_time_ratio(self) -> float | None:
        """Share of the time that goes into metadata; None where times are not told."""
        time = self.data_time + self.metadata_time
        return self.metadata_time / time if time > 0 else None

    @property
    def metadata_count_ratio(self) -> float:
        """Share of the operations that are metadata's."""
        return self.metadata_count / max(1, self.data_count + self.metadata_count)


def judge_mix(subject: str, mix: OperationMix, lines: list[Evidence]) -> list[Finding]:
    """A finding, or none where nothing was done."""
    if mix.data_count + mix.metadata_count <= 0:
        return []
    share = mix.metadata_time_ratio
    what = f"metadata is {mix.metadata_count_ratio:.0%} of the operations"
    what += f" and {share:.0%} of the time" if share is not None else "; times are not told"
    many = mix.metadata_count >= _OPERATIONS_A_READ * mix.data_count
    if many and share is not None and share >= _TIME_SHARE:
        each = f"{mix.metadata_count / mix.data_count:.1f} for each read or write; " if mix.data_count else ""
        return [ids.MIX.warn(subject, each + what, *lines)]
    if many or (share is not None and share >= _TIME_SHARE):
        return [ids.MIX.info(subject, what, *lines)]
    return [ids.MIX.ok(subject, f"data dominates: {what}", *lines)]
