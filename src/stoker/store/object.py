"""`ObjectStore`: objects in a bucket of an S3-compatible server."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from stoker.errors import ClosedError, ConfigError, Truncated
from stoker.io.buffers import ReadBuffer, WriteBuffer, view
from stoker.store.base import StoreLimits
from stoker.store.conditional import PROBE_DIR, ConditionalPut
from stoker.store.object_bucket import Bucket, Pin, version_of
from stoker.store.object_client import ObjectClient
from stoker.store.object_options import ObjectOptions, part_bytes_for
from stoker.store.object_writer import ObjectUpload
from stoker.store.retries import Retries, RetryPolicy
from stoker.units import MIB, format_bytes
from stoker.values import KEY_MAX_BYTES, ByteRange, Key, ObjectInfo

IF_ABSENT_MAX_BYTES: Final = 64 * MIB
SINGLE_PUT_MAX_BYTES: Final = 64 * MIB  # what is larger goes in parts
REQUEST_MAX_BYTES: Final = 256 * MIB  # what is larger is read by several requests, of one version

_LIMITS: Final = StoreLimits(if_absent_max_bytes=IF_ABSENT_MAX_BYTES, promotes=False, latency_s=30e-3)


class ObjectStore:
    """Objects in a bucket, at `url`, `s3://bucket/prefix`: key `a/b` is the object `prefix/a/b`.

    The client is made at first use; a forked child of a process that has used one gets UnsupportedError. Operations
    are made once: put `RetryStore` around it. What that cannot make again (requests of a writer, and those behind the
    first of several) is made again here, `options.attempts` times in all, or as the `RetryStore` does it. `environ`:
    where credentials are looked up, `options` by default too.
    """

    def __init__(
        self, url: str, options: ObjectOptions | None = None, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        bucket, prefix = parse_url(url)
        self.options = ObjectOptions.from_environ(environ) if options is None else options
        self._base = f"{prefix}/" if prefix else ""
        self._url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        client = ObjectClient(bucket, self.options, environ)
        self._use(Bucket(client, self._url, Retries(RetryPolicy(attempts=self.options.attempts))))
        self._closed = False

    def with_retries(self, retries: Retries) -> ObjectStore:
        """The same store by the same client, that makes again by `retries` what only it can make again."""
        other = copy.copy(self)
        other._use(Bucket(self._bucket.client, self._url, retries))  # noqa: SLF001  a copy of itself
        return other

    def _use(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._first = ConditionalPut(bucket, self._base)

    @property
    def url(self) -> str:
        """s3://bucket/prefix."""
        return self._url

    @property
    def limits(self) -> StoreLimits:
        """A small read costs some 30 ms; nothing can be promoted."""
        return _LIMITS

    def stat(self, key: Key) -> ObjectInfo:
        """Size and version (the ETag). One request. Raises NotFound, AccessDenied."""
        stored = self._bucket.head(self._name(key), key)
        return ObjectInfo(Key(key), stored.size_bytes, stored.etag)

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Fill `buffer` with the object's bytes from `start` on; one copy, from the client's memory.

        One request up to 256 MiB; more for larger buffers, all of one version of the object, else PreconditionFailed.
        Two calls may see two versions. Raises NotFound, Truncated; Unavailable if fewer bytes came than announced.
        """
        name, target = self._name(key), view(buffer)
        if not target:
            self._check_start(name, key, start)
            return
        pin = Pin()

        def fill(at: int, part: memoryview) -> None:
            for piece in self._bucket.part(name, key, start + at, start + at + len(part), pin):
                part[: len(piece)] = piece
                part = part[len(piece) :]

        if len(target) <= REQUEST_MAX_BYTES:
            fill(0, target)
            return
        for at in range(0, len(target), REQUEST_MAX_BYTES):
            part = target[at : at + REQUEST_MAX_BYTES]
            self._bucket.retries.run(partial(fill, at, part))

    def read(self, key: Key, range: ByteRange | None = None) -> bytes:  # noqa: A002  the field's word
        """The object, or a range of it, by one request. Raises NotFound, Truncated."""
        name = self._name(key)
        if range is None:
            return b"".join(self._bucket.whole(name, key))
        if not range.length:
            self._check_start(name, key, range.start)
            return b""
        return b"".join(self._bucket.part(name, key, range.start, range.stop, Pin()))

    def read_version(self, info: ObjectInfo, range: ByteRange) -> bytes:  # noqa: A002  the field's word
        """A range of the version of an object that `stat` or `list` saw; PreconditionFailed if it is another now."""
        name = self._name(info.key)
        return b"".join(self._bucket.part(name, info.key, range.start, range.stop, Pin(info.version)))

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Store `data` under `key`: one request, in parts above 64 MiB. Raises AlreadyExists if `if_absent`.

        The first call with `if_absent` tries whether the server keeps the condition: see `stoker.store.conditional`.
        """
        name, size = self._name(key), view(data).nbytes
        if if_absent:
            if size > IF_ABSENT_MAX_BYTES:
                raise ConfigError(
                    f"{format_bytes(size)} are too many for a write that must be the first: "
                    f"at most {format_bytes(IF_ABSENT_MAX_BYTES)}",
                    where=f"{key!r} in {self.url}",
                    hint="write large objects with writer(), and a small one last that stands for them",
                )
            etag = self._first.write(name, key, data)
        elif size > SINGLE_PUT_MAX_BYTES:
            return self._write_parts(Key(key), data, size)
        else:
            etag = self._bucket.put(name, key, view(data))
        if etag is None:  # it is settled who wrote it: to fail now would be to forget that
            etag = self._bucket.look(name, key).etag
        return ObjectInfo(Key(key), size, etag)

    def keeps_if_absent(self) -> bool:
        """Whether the server itself lets one writer win: tried once, by five requests. Raises what a write does."""
        self._check_open()
        return self._first.is_kept()

    def writer(self, key: Key, *, size_bytes: int = 0) -> ObjectUpload:
        """Write an object piece by piece, in parts that are large enough for `size_bytes`, if that is known.

        Without it the largest object has 10,000 parts of the options' `part_bytes` (312 GiB by default).
        """
        name, options = self._name(key), self.options
        part_bytes = part_bytes_for(size_bytes, options.part_bytes)
        return ObjectUpload(self._bucket, name, Key(key), part_bytes, options.parts_in_flight)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`; all of the prefix's directory is listed, 1,000 a request.

        Names that no key can have are passed over where the client shows them; a name with an empty part makes it
        give up: StoreError.
        """
        self._check_open()
        return self._list(prefix)

    def delete(self, key: Key) -> None:
        """Remove an object; no error if it is not there. One request."""
        self._bucket.delete(self._name(key), key)

    def path(self, key: Key) -> Path | None:
        """None: there are no files."""
        self._name(key)
        return None

    def close(self) -> None:
        """Refuse further use. Idempotent."""
        self._closed = True

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        directory, slash, _ = prefix.rpartition("/")
        if slash:
            try:
                Key(directory)
            except ConfigError:  # no key can begin like this
                return
        for meta in self._bucket.list(f"{self._base}{directory}".rstrip("/")):
            name = meta["path"].removeprefix(self._base)
            if not name.startswith(prefix) or name.startswith(f"{PROBE_DIR}/"):
                continue
            try:
                key = Key(name)
            except ConfigError:  # made by others
                continue
            yield ObjectInfo(key, meta["size"], version_of(meta))

    def _write_parts(self, key: Key, data: ReadBuffer, size_bytes: int) -> ObjectInfo:
        with self.writer(key, size_bytes=size_bytes) as writer:
            rest = view(data)
            while rest:
                writer.write(rest[: self.options.part_bytes])
                rest = rest[self.options.part_bytes :]
            return writer.commit()

    def _check_start(self, name: str, key: Key, start: int) -> None:
        """What a read of no bytes checks: that the object is there and does not end before."""
        size = self._bucket.head(name, key).size_bytes
        if start > size:
            raise Truncated(f"object {str(key)!r} ends at byte {size:,}, wanted up to {start:,}", self.url)

    def _name(self, key: str) -> str:
        self._check_open()
        name = self._base + Key(key)
        if len(name.encode()) > KEY_MAX_BYTES:
            raise ConfigError(f"not an object key: {key!r}: with its prefix it is longer than {KEY_MAX_BYTES} bytes")
        return name

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed", self.url)


def parse_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of `s3://bucket/prefix`; the prefix may be empty. Raises ConfigError."""
    parts = urlsplit(url)
    bucket, prefix = parts.netloc, parts.path.strip("/")
    if parts.scheme.lower() != "s3" or not bucket or "@" in bucket or ":" in bucket or parts.query or parts.fragment:
        raise ConfigError("not the URL of a bucket", url, "write it as s3://bucket/prefix")
    return bucket, Key(prefix) if prefix else ""
