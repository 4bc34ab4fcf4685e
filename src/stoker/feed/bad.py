"""Bad samples: what takes their place, and how many are too many.

A sample is bad if its bytes do not match their checksum or end early, if they cannot be decoded, or if the map function
raises on it. Under "substitute" and "mask" its batch is made once more with another sample of the data set: in epoch
e, for sample s of N, the first of s_k = mix(h(5, e, s) ^ k) mod N, k = 0, 1, ..., that is neither s nor bad itself (h
and mix of docs/reference/order.md). No rank, restart or other sample has a say in it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stoker.dataset.describe import BadPolicy
from stoker.dataset.order import OrderedBatch
from stoker.dataset.splitmix import Hasher, Purpose, mix
from stoker.errors import StokerError, TooManyBadSamples
from stoker.feed.batch import BadSample

FLOOR: Final = 10  # so many are never too many: a ratio of few samples says nothing
_TRIES: Final = 16
_SHOWN: Final = 3
_LOGGED: Final = 10

_log = logging.getLogger("stoker.feed")


def substitutes(seed: int, epoch: int, sample: int, sample_count: int) -> list[int]:
    """The samples that may take the place of `sample` in an epoch, the first one first; 16 tries, itself left out."""
    root = int(Hasher(seed).hash(Purpose.SUBSTITUTE, epoch, np.array([sample], np.int64))[0])
    found = [mix(root ^ number) % sample_count for number in range(_TRIES)]
    return [each for each in found if each != sample]


class Replacements:
    """What is known to be bad, and what takes its place, in one feeder. For one thread at a time."""

    def __init__(self, policy: BadPolicy, budget_ratio: float, seed: int, sample_count: int) -> None:
        self._policy = policy
        self._budget_ratio = budget_ratio
        self._seed = seed
        self._sample_count = sample_count
        self.change_count = 0  # of what `apply` says
        self._bad: dict[tuple[int, int], tuple[str, str]] = {}  # epoch, sample -> its key, what is wrong with it
        self._found: dict[int, tuple[str, ...]] = {}  # step -> keys of what was found bad while it was made

    def note(self, ordered: OrderedBatch, error: BaseException, keys: Sequence[str]) -> BaseException | None:
        """None if the batch that `error` ended is to be made once more; else what is to be told of it."""
        if self._policy == "raise" or not isinstance(error, StokerError):
            return error
        row = error.sample_row
        if row is None or not error.is_bad_sample:
            return error
        self._bad[ordered.epoch, int(ordered.samples[row])] = keys[row], error.what
        self.change_count += 1
        self._found[ordered.step] = found = (*self._found.get(ordered.step, ()), keys[row])
        allowed = int(FLOOR + self._budget_ratio * (ordered.step + 1) * len(ordered.samples))
        if len(found) <= allowed:
            return None
        del self._found[ordered.step]
        return too_many(
            len(found), f"the {len(ordered.samples)} samples of step {ordered.step}", allowed, found, error.what
        )

    def apply(self, ordered: OrderedBatch) -> tuple[OrderedBatch, tuple[BadSample, ...]]:
        """A batch with what takes the place of bad samples, and which these are."""
        epoch = ordered.epoch
        if not any(known == epoch for known, _ in self._bad):
            return ordered, ()
        samples, valid = ordered.samples.copy(), ordered.valid.copy()
        found = []
        for row, sample in enumerate(samples.tolist()):
            known = self._bad.get((epoch, sample))
            if known is None:
                continue
            samples[row] = self._substitute(epoch, sample, *known)
            masked = self._policy == "mask"
            if valid[row]:
                found.append(BadSample(row, *known, masked))
            if masked:
                valid[row] = False
        return replace(ordered, samples=samples, valid=valid), tuple(found)

    def _substitute(self, epoch: int, sample: int, key: str, what: str) -> int:
        for other in substitutes(self._seed, epoch, sample, self._sample_count):
            if (epoch, other) not in self._bad:
                return other
        raise TooManyBadSamples(f"sample {key!r} is bad, and so is all that could take its place: {what}")


def too_many(count: int, whole: str, allowed: int, keys: Sequence[str], what: str) -> TooManyBadSamples:
    """The error for more bad samples than there may be."""
    more = f" and {count - len(keys[:_SHOWN])} more" if count > len(keys[:_SHOWN]) else ""
    shown = ", ".join(map(repr, keys[:_SHOWN]))
    return TooManyBadSamples(
        f"{count} of {whole} are bad, and {allowed} may be: {shown}{more}; the last: {what}",
        hint="the data or the map function are at fault; a larger budget_ratio of on_bad() goes on",
    )


@dataclass(slots=True)
class BadBudget:
    """How many bad samples a rank has met, and may: `FLOOR` and `ratio` of the samples of its batches so far."""

    ratio: float
    samples: int = 0
    substituted: int = 0
    masked: int = 0
    first_keys: tuple[str, ...] = ()

    def spend(self, bad: Sequence[BadSample], samples: int) -> None:
        """Count those of one more batch. Raises TooManyBadSamples, and then counts nothing."""
        if not bad:
            self.samples += samples
            return
        count = self.substituted + self.masked + len(bad)
        allowed = int(FLOOR + self.ratio * (self.samples + samples))
        keys = (*self.first_keys, *(each.key for each in bad))[:_SHOWN]
        if count > allowed:
            raise too_many(count, f"{self.samples + samples} samples", allowed, keys, bad[-1].what)
        for each in bad[: max(0, _LOGGED - self.substituted - self.masked)]:
            done = "masked" if each.masked else "substituted"
            _log.warning("sample %r is %s: %s; look at it", each.key, done, each.what)
        self.samples += samples
        self.masked += sum(each.masked for each in bad)
        self.substituted += sum(not each.masked for each in bad)
        self.first_keys = keys
