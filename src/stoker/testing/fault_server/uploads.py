"""Uploads in parts, until they are completed or aborted."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from stoker.testing.fault_server.objects import Refused, md5, names
from stoker.testing.fault_server.wire import Request

PART_MIN_BYTES: Final = 5 << 20
PARTS_MAX: Final = 10_000


@dataclass(slots=True)
class Upload:
    """One upload: part number -> (ETag with quotes, bytes)."""

    bucket: str
    key: str
    headers: Mapping[str, str]
    parts: dict[int, tuple[str, bytes | bytearray]] = field(default_factory=dict)


class Uploads:
    """The uploads that are open. Thread-safe."""

    def __init__(self) -> None:
        self._open: dict[str, Upload] = {}
        self._lock = threading.Lock()

    def create(self, bucket: str, key: str, headers: Mapping[str, str]) -> str:
        """Begin an upload; its id."""
        upload_id = secrets.token_hex(16)
        with self._lock:
            self._open[upload_id] = Upload(bucket, key, headers)
        return upload_id

    def find(self, request: Request) -> Upload:
        """The upload that `request` names. Raises Refused: NoSuchUpload."""
        upload_id = request.query.get("uploadId", "")
        with self._lock:
            upload = self._open.get(upload_id)
        if upload is None or (upload.bucket, upload.key) != (request.bucket, request.key):
            raise Refused(404, "NoSuchUpload", "The specified upload does not exist.", {"UploadId": upload_id})
        return upload

    def put_part(self, request: Request) -> str:
        """Keep a part; its ETag. The same number again replaces it."""
        upload, text = self.find(request), request.query.get("partNumber", "")
        if not text.isdecimal() or not 1 <= int(text) <= PARTS_MAX:
            raise Refused(400, "InvalidArgument", f"Part number must be an integer between 1 and {PARTS_MAX}")
        etag = f'"{md5(request.body).hex()}"'
        with self._lock:
            upload.parts[int(text)] = (etag, request.body)
        return etag

    def close(self, upload_id: str) -> None:
        """Forget an upload: it is completed or aborted."""
        with self._lock:
            self._open.pop(upload_id, None)

    def open_ones(self, bucket: str, prefix: str) -> list[tuple[str, str]]:
        """(key, id) of each upload to keys that begin with `prefix`, by key."""
        with self._lock:
            return sorted(
                (upload.key, upload_id)
                for upload_id, upload in self._open.items()
                if upload.bucket == bucket and upload.key.startswith(prefix)
            )


def assemble(upload: Upload, wanted: Sequence[tuple[int, str]]) -> tuple[bytes, str]:
    """The bytes of the parts `wanted`, (number, ETag) each, and the ETag of them all. Raises Refused."""
    if not wanted:
        raise Refused(400, "MalformedXML", "The XML you provided was not well-formed: no parts")
    numbers = [number for number, _ in wanted]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise Refused(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
    pieces, digests = [], []
    for number, etag in wanted:
        kept, data = upload.parts.get(number, ("", b""))
        if not kept or not names(etag, kept):
            raise Refused(400, "InvalidPart", "One or more of the specified parts could not be found.")
        if len(data) < PART_MIN_BYTES and number != numbers[-1]:
            raise Refused(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")
        pieces.append(data)
        digests.append(bytes.fromhex(kept.strip('"')))
    return b"".join(pieces), f'"{md5(b"".join(digests)).hex()}-{len(digests)}"'
