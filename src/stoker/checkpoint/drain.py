"""Copying a committed step outward: files, receipts, and the manifest last, which is the commit in the far tier."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stoker import crash
from stoker.checkpoint.commit import check_newest, leave_evidence
from stoker.checkpoint.drain_plan import DrainPlan, Held, PaceLimits, RankPart, pace, pause_s, plan_drain
from stoker.checkpoint.inventory import check_manifest, read_manifest
from stoker.checkpoint.layout import MANIFEST_NAME, StepId, receipt_name
from stoker.checkpoint.manifest import FileRecord, Manifest, WrittenFile, describe_bytes
from stoker.checkpoint.read import StepReader, read_receipts
from stoker.errors import AlreadyExists, NotFound, SaveFailed, Truncated
from stoker.io.checksum import CHUNK_BYTES
from stoker.io.direct import aligned_memory
from stoker.store.base import Store
from stoker.values import Key


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """How drains behave. `read_back`: read every file again at the far end and check its digests before the commit."""

    limits: PaceLimits = field(default_factory=PaceLimits)
    read_back: bool = False


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did: bytes copied, and bytes found there that an earlier try had copied."""

    copied_bytes: int
    kept_bytes: int


class Pacer:
    """Holds a drain to a pace, until `hurry` is set. `interval_s`: the time between saves, or None."""

    def __init__(
        self, limits: PaceLimits, interval_s: float | None, hurry: threading.Event, clock: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._interval_s = interval_s
        self._hurry = hurry
        self._clock = clock
        self._begun = clock()
        self._moved_bytes = 0
        self.bytes_per_s = limits.floor_bytes_per_s

    def begin(self, step_bytes: int) -> None:
        """A copy of `step_bytes` begins now."""
        self.bytes_per_s = pace(step_bytes, self._interval_s, self._limits)
        self._begun, self._moved_bytes = self._clock(), 0

    def moved(self, count: int) -> None:
        """So many bytes were copied: wait if that was too fast."""
        self._moved_bytes += count
        wait_s = pause_s(self._moved_bytes, self._clock() - self._begun, self.bytes_per_s)
        if wait_s > 0:
            self._hurry.wait(wait_s)


def unpaced() -> Pacer:
    """A pacer that never waits."""
    hurry = threading.Event()
    hurry.set()
    return Pacer(PaceLimits(), None, hurry, time.monotonic)


class StepDrain:
    """The drain of one step, committed in `near`, to `far`, by a process of `generation`."""

    def __init__(self, near: Store, far: Store, step: StepId, generation: int) -> None:
        self._near = near
        self._far = far
        self._step = step
        self._generation = generation
        self._reader = StepReader(near, step.name)

    def is_committed(self) -> bool:
        """Whether the far tier has the step already. Raises IntegrityError if what is there is no manifest of it."""
        try:
            read_manifest(self._far, self._step.name, self._step)
        except NotFound:
            return False
        return True

    def run(self, pacer: Pacer, *, read_back: bool = False) -> Drained:
        """Copy what is missing and commit. Costs one verified read and one write of each missing byte.

        Nothing that is at the far end is taken for a file of the step unless it is proven; nothing makes the step
        visible there before all its files have been seen by name with their sizes. Killed, it can be run again. Raises
        Fenced if a newer generation has begun, DigestMismatch, NotFound or Truncated for damage in `near`, StoreError,
        SaveFailed.
        """
        text = self._near.read(self._key(MANIFEST_NAME))
        manifest = check_manifest(text, self._step, f"{self._near.url}/{self._key(MANIFEST_NAME)}")
        check_newest(self._far, self._generation)
        if self.is_committed():
            leave_evidence(self._far, self._step)
            return Drained(0, sum(file.bytes for file in manifest.files))
        plan = self._plan(manifest)
        pacer.begin(plan.copied_bytes)
        for part in plan.parts:
            for file in part.files:
                self._copy_file(file, pacer)
            self._copy_receipt(part.receipt, pacer)
        if read_back:
            self._read_back(manifest)
        check_newest(self._far, self._generation)
        self._commit(text)
        leave_evidence(self._far, self._step)
        return Drained(plan.copied_bytes, plan.kept_bytes)

    def _plan(self, manifest: Manifest) -> DrainPlan:
        receipts = read_receipts(self._reader, manifest)
        records = {record.name: record for record in manifest.files}
        step = [RankPart(records[receipt_name(receipt.rank)], receipt.files) for receipt in receipts]
        return plan_drain(step, self._look(step))

    def _look(self, step: list[RankPart]) -> Held:
        """What is there. The listing says what is worth asking for; what is kept was asked for by name."""
        prefix = f"{self._step.name}/"
        listed = {info.key.removeprefix(prefix) for info in self._far.list(prefix)}
        sizes: dict[str, int] = {}
        receipts = set()
        for part in step:
            if part.receipt.name not in listed or not self._is_there(part.receipt):
                continue
            receipts.add(part.receipt.name)
            sizes |= {file.name: size for file in part.files if (size := self._size(file.name)) is not None}
        return Held(sizes, frozenset(receipts))

    def _is_there(self, record: FileRecord) -> bool:
        try:
            return describe_bytes(record.name, self._far.read(self._key(record.name))) == record
        except NotFound:
            return False

    def _size(self, name: str) -> int | None:
        try:
            return self._far.stat(self._key(name)).size_bytes
        except NotFound:
            return None

    def _copy_file(self, file: WrittenFile, pacer: Pacer) -> None:
        with self._far.writer(self._key(file.name), size_bytes=file.bytes) as out:
            for chunk in self._chunks(self._reader, file):
                out.write(chunk)
                pacer.moved(len(chunk))
            out.commit()
        crash.point("drain-file-copied")
        self._check_size(file.name, file.bytes)

    def _copy_receipt(self, record: FileRecord, pacer: Pacer) -> None:
        self._far.write(self._key(record.name), self._reader.small(record))
        crash.point("drain-receipt-copied")
        self._check_size(record.name, record.bytes)
        pacer.moved(record.bytes)

    def _check_size(self, name: str, size_bytes: int) -> None:
        found = self._far.stat(self._key(name)).size_bytes
        if found != size_bytes:
            raise Truncated(f"{name!r} has {found:,} of {size_bytes:,} bytes after it was copied", self._far.url)

    def _read_back(self, manifest: Manifest) -> None:
        reader = StepReader(self._far, self._step.name)
        for receipt in read_receipts(reader, manifest):
            for file in receipt.files:
                for _ in self._chunks(reader, file):
                    pass

    def _chunks(self, reader: StepReader, file: WrittenFile) -> Iterator[memoryview]:
        """The verified chunks of a file, one after the other in the same memory."""
        scratch = aligned_memory(min(CHUNK_BYTES, file.bytes)).data
        for number in range(len(file.chunks)):
            chunk = scratch[: min(CHUNK_BYTES, file.bytes - number * CHUNK_BYTES)]
            reader.chunk(file, number, chunk)
            yield chunk

    def _commit(self, text: bytes) -> None:
        key = self._key(MANIFEST_NAME)
        try:
            self._far.write(key, text, if_absent=True)
        except AlreadyExists:  # of another process that drained the same step: the bytes are the same
            if self._far.read(key) != text:
                raise SaveFailed(f"there is another step named {self._step.name!r}", self._far.url) from None
        crash.point("drain-committed")

    def _key(self, name: str) -> Key:
        return Key(f"{self._step.name}/{name}")
