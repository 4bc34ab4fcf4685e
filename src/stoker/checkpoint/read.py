"""Reading files of a step so that no unverified byte gets out: whole 4 MiB chunks, checked against the receipt.

Where a step lies in several tiers, each chunk comes from the nearest one whose bytes are right.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stoker.checkpoint.layout import parse_receipt
from stoker.checkpoint.manifest import FileRecord, Manifest, Receipt, WrittenFile, decode_receipt, describe_bytes
from stoker.errors import DigestMismatch, FormatError, IntegrityError, NewerFormat, NotFound, StoreError, Truncated
from stoker.io.checksum import CHUNK_BYTES, xxh3_128
from stoker.io.direct import aligned_memory
from stoker.io.safetensors import SIZE_BYTES, Header, header_bytes, parse_header
from stoker.store.base import Store
from stoker.values import ByteRange, Key

T = TypeVar("T")
_log = logging.getLogger("stoker.checkpoint")


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, stop) of a file go to `target`."""

    start: int
    stop: int
    target: memoryview


class StepReader:
    """Reads the files of one step's directory. Thread-safe.

    `others` hold further copies of the step, nearest first: where one of `store` is gone, cannot be read or is not
    what it was, theirs serve. It is said once; `fallbacks` names the files.
    """

    def __init__(self, store: Store, directory: str, others: Sequence[Store] = ()) -> None:
        self._stores = (store, *others)
        self._directory = directory
        self._lock = threading.Lock()
        self._fallbacks: set[str] = set()

    @property
    def fallbacks(self) -> frozenset[str]:
        """The files of which some bytes came from another copy than the nearest."""
        with self._lock:
            return frozenset(self._fallbacks)

    def where(self, name: str, store: Store | None = None) -> str:
        """The place of a file, for messages: the nearest copy if no store is given."""
        return f"{(store or self._stores[0]).url}/{self._directory}/{name}"

    def note_fallback(self, name: str, store: Store, error: Exception) -> None:
        """Remember that `name` comes from `store`, because of what was wrong with a nearer copy."""
        with self._lock:
            first = not self._fallbacks
            self._fallbacks.add(name)
        if first:
            what = error.what if isinstance(error, StoreError | IntegrityError) else str(error)
            _log.warning(
                "%s serves %r of %s; remove or repair the nearer copy: %s", store.url, name, self._directory, what
            )

    def small(self, record: FileRecord) -> bytes:
        """All bytes of a small file, checked against its record. Raises NotFound, Truncated, DigestMismatch."""
        return self._nearest(record.name, lambda store: self._small(store, record))

    def receipt(self, record: FileRecord) -> Receipt:
        """A receipt, checked against the manifest's record of it. Raises NotFound, Truncated, DigestMismatch."""
        return decode_receipt(self.small(record), self.where(record.name))

    def chunk(self, file: WrittenFile, number: int, target: memoryview) -> None:
        """Fill `target` with chunk `number` of the file, verified. Raises NotFound, Truncated, DigestMismatch."""
        self._nearest(file.name, lambda store: self._chunk(store, file, number, target))

    def header(self, file: WrittenFile) -> tuple[Header, int]:
        """What the file holds, from verified bytes; and how many bytes were verified. Raises FormatError as well."""
        where = self.where(file.name)
        data = bytearray(min(file.bytes, CHUNK_BYTES))  # most headers are smaller than the chunk that is read anyway
        count = self.fill(file, [Span(0, len(data), memoryview(data))]) if data else 0
        size = header_bytes(data[:SIZE_BYTES], file.bytes, where)
        if size > len(data):
            data = bytearray(size)
            count += self.fill(file, [Span(0, len(data), memoryview(data))])
        return parse_header(data, file.bytes, where), count

    def fill(self, file: WrittenFile, spans: Sequence[Span]) -> int:
        """Fill every span from verified bytes; returns how many bytes were read and verified.

        Reads each chunk that a span touches once, in order, into 4 MiB of scratch memory. When it raises, spans may
        hold anything. Raises NotFound, Truncated, DigestMismatch naming the file and the chunk.
        """
        scratch = aligned_memory(min(CHUNK_BYTES, file.bytes))
        ordered = sorted(spans, key=lambda span: span.start)
        count = 0
        first = 0  # the first span that may still need bytes
        for number in range(len(file.chunks)):
            chunk = ByteRange(number * CHUNK_BYTES, min((number + 1) * CHUNK_BYTES, file.bytes))
            while first < len(ordered) and ordered[first].stop <= chunk.start:
                first += 1
            if first == len(ordered):
                break
            if ordered[first].start >= chunk.stop:
                continue
            data = scratch[: chunk.length].data
            self.chunk(file, number, data)
            count += chunk.length
            for index in range(first, len(ordered)):
                span = ordered[index]
                if span.start >= chunk.stop:
                    break
                start, stop = max(span.start, chunk.start), min(span.stop, chunk.stop)
                if start < stop:
                    span.target[start - span.start : stop - span.start] = data[start - chunk.start : stop - chunk.start]
        if spans and max(span.stop for span in spans) > file.bytes:
            raise FormatError(f"{file.name!r} has no bytes beyond {file.bytes:,}", self.where(file.name))
        return count

    def _small(self, store: Store, record: FileRecord) -> bytes:
        where = self.where(record.name, store)
        data = store.read(Key(f"{self._directory}/{record.name}"))
        if len(data) < record.bytes:
            raise Truncated(f"{record.name!r} has {len(data):,} of {record.bytes:,} bytes", where)
        found = describe_bytes(record.name, data)
        if found != record:
            raise DigestMismatch(
                f"{record.name!r} has digest {found.root} and {found.bytes:,} bytes, "
                f"the manifest says {record.root} and {record.bytes:,}",
                where,
            )
        return data

    def _chunk(self, store: Store, file: WrittenFile, number: int, target: memoryview) -> None:
        start = number * CHUNK_BYTES
        store.read_into(Key(f"{self._directory}/{file.name}"), start, target)
        found = xxh3_128(target)
        if found != file.chunks[number]:
            raise DigestMismatch(
                f"chunk {number} of {file.name!r} (bytes {start:,} to {start + len(target):,}) has digest {found}, "
                f"its receipt says {file.chunks[number]}",
                self.where(file.name, store),
                hint="the bytes changed on storage since they were written",
            )

    def _nearest(self, name: str, read: Callable[[Store], T]) -> T:
        """What `read` makes of the nearest copy of which it makes anything."""
        failures: list[StoreError | IntegrityError] = []
        for store in self._stores:
            try:
                found = read(store)
            except NewerFormat:
                raise
            except (StoreError, IntegrityError) as error:
                failures.append(error)
                continue
            if failures:
                self.note_fallback(name, store, failures[0])
            return found
        raise worst(failures)


def read_receipts(reader: StepReader, manifest: Manifest) -> list[Receipt]:
    """The receipts of all ranks, in order, each checked against the manifest. Raises FormatError as well."""
    records = {record.name: record for record in manifest.files}
    by_rank = {rank: record for name, record in records.items() if (rank := parse_receipt(name)) is not None}
    if set(by_rank) != set(range(manifest.world)):
        raise FormatError(f"the manifest has receipts of {len(by_rank)} of {manifest.world} ranks", reader.where(""))
    receipts = []
    for rank in range(manifest.world):
        receipt = reader.receipt(by_rank[rank])
        said = (receipt.step, receipt.generation, receipt.rank, receipt.world)
        if said != (manifest.step, manifest.generation, rank, manifest.world):
            raise FormatError(
                f"the receipt of rank {rank} is of another step or rank: {said}", reader.where(by_rank[rank].name)
            )
        for file in receipt.files:
            if records.get(file.name) != FileRecord(file.name, file.bytes, file.root):
                raise FormatError(f"receipt and manifest differ on {file.name!r}", reader.where(file.name))
        receipts.append(receipt)
    return receipts


def worst(failures: Sequence[StoreError | IntegrityError]) -> StoreError | IntegrityError:
    """Of what was wrong with each copy, the error that says most: that a copy is not there says least."""
    return min(failures, key=lambda error: isinstance(error, NotFound))
