"""What the server holds: objects in memory, over the files of a directory that is only read."""

from __future__ import annotations

import hashlib
import mmap
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_INVERT: Final = bytes(255 - value for value in range(256))


class Refused(Exception):
    """The answer is an error: status, code and message as S3 says them. `extra`: more elements of the XML."""

    def __init__(self, status: int, code: str, message: str, extra: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.extra = dict(extra or {})


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of an object. `etag` has its quotes; `headers` are given back as they were put."""

    data: memoryview
    etag: str
    modified_s: float
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold of what is there; empty texts ask nothing."""

    if_match: str = ""
    if_none_match: str = ""

    def check(self, found: StoredObject | None, key: str) -> None:
        """Raise Refused unless the condition of a write holds."""
        if self.if_match and found is None:
            raise no_such_key(key)
        if self.if_match and found is not None and not names(self.if_match, found.etag):
            raise precondition_failed("If-Match")
        if self.if_none_match and found is not None and names(self.if_none_match, found.etag):
            raise precondition_failed("If-None-Match")


class Objects:
    """Buckets of objects. `directory`: its files are objects of `bucket`, and that bucket takes no writes.

    Thread-safe; an object is replaced as a whole.
    """

    def __init__(self, bucket: str, directory: Path | None = None) -> None:
        self._buckets: dict[str, dict[str, StoredObject]] = {bucket: {}}
        self._read_only = bucket if directory is not None else None
        self._files = None if directory is None else Files(directory)
        self._lock = threading.Lock()

    def make_bucket(self, bucket: str) -> None:
        """Make a bucket; no error if it is there."""
        with self._lock:
            self._buckets.setdefault(bucket, {})

    def drop_bucket(self, bucket: str) -> None:
        """Remove an empty bucket."""
        if self.keys(bucket):
            raise Refused(409, "BucketNotEmpty", "The bucket you tried to delete is not empty")
        with self._lock:
            del self._buckets[bucket]

    def get(self, bucket: str, key: str) -> StoredObject:
        """The object as it is now. Raises Refused: NoSuchKey, NoSuchBucket."""
        found = self.find(bucket, key)
        if found is None:
            raise no_such_key(key)
        return found

    def find(self, bucket: str, key: str) -> StoredObject | None:
        """The object, or None. Raises Refused: NoSuchBucket."""
        found = self._bucket(bucket).get(key)
        if found is None and self._files is not None and bucket == self._read_only:
            return self._files.find(key)
        return found

    def put(self, bucket: str, key: str, stored: StoredObject, condition: Condition) -> None:
        """Replace an object if `condition` holds, in one step."""
        self.check_writable(bucket)
        with self._lock:
            condition.check(self._bucket(bucket).get(key), key)
            self._bucket(bucket)[key] = stored

    def delete(self, bucket: str, key: str, condition: Condition) -> None:
        """Remove an object if `condition` holds; no error if it is not there."""
        self.check_writable(bucket)
        with self._lock:
            if condition != Condition():
                condition.check(self._bucket(bucket).get(key), key)
            self._bucket(bucket).pop(key, None)

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """Keys that begin with `prefix`, in the order of their bytes."""
        names_ = set(self._bucket(bucket).copy())
        if self._files is not None and bucket == self._read_only:
            names_ |= self._files.keys()
        # Code points sort as their UTF-8 does.
        return sorted(key for key in names_ if key.startswith(prefix))

    def change(self, bucket: str, key: str) -> None:
        """Replace an object, if it is there, by one of the same size whose every byte is inverted."""
        found = self.find(bucket, key)
        if found is not None:
            data = bytes(found.data).translate(_INVERT)
            with self._lock:
                self._bucket(bucket)[key] = StoredObject(
                    memoryview(data), f'"{md5(data).hex()}"', time.time(), found.headers
                )

    def check_writable(self, bucket: str) -> None:
        """Raise Refused for a bucket that is not there or is a directory."""
        self._bucket(bucket)
        if bucket == self._read_only:
            raise Refused(403, "AccessDenied", "The bucket is a directory that is only read")

    def _bucket(self, bucket: str) -> dict[str, StoredObject]:
        found = self._buckets.get(bucket)
        if found is None:
            raise Refused(404, "NoSuchBucket", "The specified bucket does not exist", {"BucketName": bucket})
        return found


class Files:
    """The files under a directory as objects, mapped when they are asked for. A file must not change meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mapped: dict[str, StoredObject] = {}
        self._lock = threading.Lock()

    def find(self, key: str) -> StoredObject | None:
        """The file that `key` names, or None."""
        if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
            return None
        with self._lock:
            if key not in self._mapped:
                path = self._directory / key
                if not path.is_file():
                    return None
                data = _map(path)
                self._mapped[key] = StoredObject(data, f'"{md5(data).hex()}"', path.stat().st_mtime)
            return self._mapped[key]

    def keys(self) -> set[str]:
        """The names of all files."""
        return {path.relative_to(self._directory).as_posix() for path in self._directory.rglob("*") if path.is_file()}


def names(header: str, etag: str) -> bool:
    """Whether a condition's header names `etag`: one of a list, or any by `*`; quotes may be missing."""
    return any(
        tag == "*" or tag.removeprefix("W/").strip('"') == etag.strip('"')
        for tag in (part.strip() for part in header.split(","))
    )


def md5(data: memoryview | bytes | bytearray) -> bytes:
    """The digest that S3 makes ETags of."""
    return hashlib.md5(data, usedforsecurity=False).digest()


def no_such_key(key: str) -> Refused:
    """Nothing is stored there."""
    return Refused(404, "NoSuchKey", "The specified key does not exist.", {"Key": key})


def precondition_failed(condition: str) -> Refused:
    """A condition does not hold."""
    message = "At least one of the pre-conditions you specified did not hold"
    return Refused(412, "PreconditionFailed", message, {"Condition": condition})


def _map(path: Path) -> memoryview:
    if not path.stat().st_size:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
