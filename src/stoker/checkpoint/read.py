"""Reading files of a step so that no unverified byte gets out: whole 4 MiB chunks, checked against the receipt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.checkpoint.layout import Home
from stoker.checkpoint.manifest import FileRecord, Receipt, WrittenFile, decode_receipt, describe_bytes
from stoker.errors import DigestMismatch, FormatError, Truncated
from stoker.io.checksum import CHUNK_BYTES, xxh3_128
from stoker.io.direct import aligned_memory
from stoker.io.safetensors import SIZE_BYTES, Header, header_bytes, parse_header
from stoker.values import ByteRange, Key


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, stop) of a file go to `target`."""

    start: int
    stop: int
    target: memoryview


class StepReader:
    """Reads the files of one step's directory. Thread-safe."""

    def __init__(self, home: Home, directory: str) -> None:
        self._home = home
        self._directory = directory

    def where(self, name: str) -> str:
        """The place of a file, for messages."""
        return f"{self._home.url}/{self._directory}/{name}"

    def receipt(self, record: FileRecord) -> Receipt:
        """A receipt, checked against the manifest's record of it. Raises NotFound, Truncated, DigestMismatch."""
        data = self._home.read(Key(f"{self._directory}/{record.name}"))
        if len(data) < record.bytes:
            raise Truncated(f"{record.name!r} has {len(data):,} of {record.bytes:,} bytes", self.where(record.name))
        found = describe_bytes(record.name, data)
        if found != record:
            raise DigestMismatch(
                f"{record.name!r} has digest {found.root} and {found.bytes:,} bytes, "
                f"the manifest says {record.root} and {record.bytes:,}",
                self.where(record.name),
            )
        return decode_receipt(data, self.where(record.name))

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
        key = Key(f"{self._directory}/{file.name}")
        ordered = sorted(spans, key=lambda span: span.start)
        count = 0
        first = 0  # the first span that may still need bytes
        for number, digest in enumerate(file.chunks):
            chunk = ByteRange(number * CHUNK_BYTES, min((number + 1) * CHUNK_BYTES, file.bytes))
            while first < len(ordered) and ordered[first].stop <= chunk.start:
                first += 1
            if first == len(ordered):
                break
            if ordered[first].start >= chunk.stop:
                continue
            data = scratch[: chunk.length].data
            self._home.read_into(key, chunk.start, data)
            found = xxh3_128(data)
            if found != digest:
                raise DigestMismatch(
                    f"chunk {number} of {file.name!r} (bytes {chunk.start:,} to {chunk.stop:,}) has digest {found}, "
                    f"its receipt says {digest}",
                    self.where(file.name),
                    hint="the bytes changed on storage since they were written",
                )
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
