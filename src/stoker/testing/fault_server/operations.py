"""What S3 does: each operation takes a whole request and makes an answer."""

from __future__ import annotations

import hashlib
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Final
from xml.etree import ElementTree as ET

from stoker.testing.fault_server.faults import (
    Answer,
    Changed,
    ErrorBody,
    Fault,
    IgnoreCondition,
    IgnoreRange,
    Reset,
    ShortRange,
    WrongETag,
)
from stoker.testing.fault_server.listing import (
    NAMESPACE,
    begins_after,
    cut_page,
    encoded,
    page_size,
    page_xml,
)
from stoker.testing.fault_server.objects import (
    Condition,
    Objects,
    Refused,
    StoredObject,
    md5,
    names,
    precondition_failed,
)
from stoker.testing.fault_server.reply import Header, Reply, element, error_xml, xml_reply
from stoker.testing.fault_server.uploads import Uploads, assemble
from stoker.testing.fault_server.wire import Request, is_aws_chunked

# What a query may ask for beside what is done here: to be refused, not passed over.
_UNSUPPORTED: Final = frozenset(
    {"acl", "attributes", "cors", "encryption", "legal-hold", "lifecycle", "object-lock", "policy", "replication"}
    | {"restore", "retention", "select", "tagging", "torrent", "versionId", "versioning", "versions", "website"}
)
_KEPT_HEADERS: Final = frozenset(
    {"cache-control", "content-disposition", "content-encoding", "content-language", "content-type", "expires"}
)
_CHECKSUMS: Final[dict[str, Callable[[bytes | bytearray], bytes]]] = {
    "content-md5": md5,
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "x-amz-checksum-sha1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda body: hashlib.sha256(body).digest(),
}
_SHA256_DIGITS: Final = 64


def operation_of(request: Request) -> str:
    """The name that S3 gives the operation; "Unsupported" for what is none of those below."""
    query, method = request.query, request.method
    if _UNSUPPORTED & query.keys() or not request.bucket or "x-amz-copy-source" in request.headers:
        return "Unsupported"
    if not request.key:
        if method == "GET":
            if "uploads" in query:
                return "ListMultipartUploads"
            return "ListObjectsV2" if query.get("list-type") == "2" else "Unsupported"
        names_ = {"HEAD": "HeadBucket", "PUT": "CreateBucket", "DELETE": "DeleteBucket"}
        return "DeleteObjects" if method == "POST" and "delete" in query else names_.get(method, "Unsupported")
    if "uploadId" in query:
        names_ = {"GET": "ListParts", "PUT": "UploadPart", "POST": "CompleteMultipartUpload"}
        return (names_ | {"DELETE": "AbortMultipartUpload"}).get(method, "Unsupported")
    if "partNumber" in query:
        return "Unsupported"
    if method == "POST":
        return "CreateMultipartUpload" if "uploads" in query else "Unsupported"
    names_ = {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject"}
    return names_.get(method, "Unsupported")


class Operations:
    """Carries requests out on what the server holds. Thread-safe."""

    def __init__(self, objects: Objects, page_keys: int) -> None:
        self.objects = objects
        self.uploads = Uploads()
        self._page_keys = page_keys

    def perform(self, operation: str, request: Request, fault: Fault | None) -> Reply:
        """The answer to a request: as S3's, but for what `fault` changes in it. Errors are answers too."""
        if isinstance(fault, ErrorBody):
            return refusal(Refused(200, fault.code, "We encountered an internal error."), request)
        if isinstance(fault, Answer):
            if fault.done:
                self.perform(operation, request, None)
            told = refusal(Refused(fault.status, fault.code, "This answer is in the script."), request)
            later = () if fault.retry_after_s is None else (("Retry-After", str(fault.retry_after_s)),)
            return replace(told, headers=(*told.headers, *later))
        if isinstance(fault, Reset) and not fault.done and request.method not in ("GET", "HEAD"):
            return Reply(200)
        try:
            if isinstance(fault, Changed) and request.key:
                self.objects.change(request.bucket, request.key)
            if request.body or is_aws_chunked(request.headers):
                _check_body(request)
            return self._perform(operation, request, fault)
        except Refused as refused:
            return refusal(refused, request)

    def _perform(self, operation: str, request: Request, fault: Fault | None) -> Reply:
        if operation in ("GetObject", "HeadObject"):
            return self._get(request, fault)
        condition = _condition(request, fault)
        if operation == "PutObject":
            return self._put(request, condition)
        if operation == "DeleteObject":
            self.objects.delete(request.bucket, request.key, condition)
            return Reply(204)
        if operation == "CompleteMultipartUpload":
            return self._complete(request, condition)
        simple: dict[str, Callable[[Request], Reply]] = {
            "ListObjectsV2": self._list,
            "DeleteObjects": self._delete_many,
            "CreateMultipartUpload": self._create_upload,
            "UploadPart": self._upload_part,
            "AbortMultipartUpload": self._abort,
            "ListMultipartUploads": self._list_uploads,
            "ListParts": self._list_parts,
            "CreateBucket": self._create_bucket,
            "DeleteBucket": self._delete_bucket,
            "HeadBucket": self._head_bucket,
        }
        if operation not in simple:
            raise Refused(501, "NotImplemented", "The fault server does not do this")
        return simple[operation](request)

    def _get(self, request: Request, fault: Fault | None) -> Reply:
        stored, headers = self.objects.get(request.bucket, request.key), request.headers
        facts = _facts(stored, fault.etag if isinstance(fault, WrongETag) else stored.etag)
        if not isinstance(fault, IgnoreCondition):
            if "if-match" in headers and not names(headers["if-match"], stored.etag):
                raise precondition_failed("If-Match")
            if "if-none-match" in headers and names(headers["if-none-match"], stored.etag):
                return Reply(304, facts)
        size = len(stored.data)
        span = None if isinstance(fault, IgnoreRange) else parse_range(headers.get("range", ""), size)
        if span is None:
            return _object_reply(200, facts, stored.data, request)
        start, stop = span
        if isinstance(fault, ShortRange):
            stop = start + (stop - start + 1) // 2
        told = ("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        return _object_reply(206, (*facts, told), stored.data[start:stop], request)

    def _put(self, request: Request, condition: Condition) -> Reply:
        stored = _stored(request.body, f'"{md5(request.body).hex()}"', _kept(request))
        self.objects.put(request.bucket, request.key, stored, condition)
        return Reply(200, (("ETag", stored.etag),))

    def _list(self, request: Request) -> Reply:
        prefix, encoding = request.query.get("prefix", ""), request.query.get("encoding-type", "")
        keys = self.objects.keys(request.bucket, prefix)
        count = page_size(request, self._page_keys)
        page = cut_page(keys, prefix, request.query.get("delimiter", ""), begins_after(request), count)
        contents = []
        for key in page.keys:
            stored = self.objects.find(request.bucket, key)
            if stored is not None:  # deleted meanwhile
                told = element("LastModified", iso_time(stored.modified_s)) + element("ETag", stored.etag)
                told += element("Size", len(stored.data)) + element("StorageClass", "STANDARD")
                contents.append(f"<Contents>{element('Key', encoded(key, encoding))}{told}</Contents>")
        return xml_reply(200, page_xml(request, page, "".join(contents), count))

    def _delete_many(self, request: Request) -> Reply:
        root, deleted = _parse_xml(request.body), []
        for item in root.findall("{*}Object"):
            key = item.findtext("{*}Key") or ""
            self.objects.delete(request.bucket, key, Condition())
            deleted.append(f"<Deleted>{element('Key', key)}</Deleted>")
        told = "" if root.findtext("{*}Quiet") == "true" else "".join(deleted)
        return xml_reply(200, f'<DeleteResult xmlns="{NAMESPACE}">{told}</DeleteResult>')

    def _create_upload(self, request: Request) -> Reply:
        self.objects.check_writable(request.bucket)
        upload_id = self.uploads.create(request.bucket, request.key, _kept(request))
        return xml_reply(200, _result("InitiateMultipartUpload", request, element("UploadId", upload_id)))

    def _upload_part(self, request: Request) -> Reply:
        return Reply(200, (("ETag", self.uploads.put_part(request)),))

    def _complete(self, request: Request, condition: Condition) -> Reply:
        upload, wanted = self.uploads.find(request), []
        for part in _parse_xml(request.body).findall("{*}Part"):
            number = part.findtext("{*}PartNumber") or ""
            wanted.append((int(number) if number.isdecimal() else 0, part.findtext("{*}ETag") or ""))
        data, etag = assemble(upload, wanted)
        self.objects.put(request.bucket, request.key, _stored(data, etag, upload.headers), condition)
        self.uploads.close(request.query["uploadId"])
        return xml_reply(200, _result("CompleteMultipartUpload", request, element("ETag", etag)))

    def _abort(self, request: Request) -> Reply:
        self.uploads.find(request)
        self.uploads.close(request.query["uploadId"])
        return Reply(204)

    def _list_uploads(self, request: Request) -> Reply:
        self.objects.keys(request.bucket)  # refuses a bucket that is not there
        found = "".join(
            f"<Upload>{element('Key', key)}{element('UploadId', upload_id)}</Upload>"
            for key, upload_id in self.uploads.open_ones(request.bucket, request.query.get("prefix", ""))
        )
        told = element("Bucket", request.bucket) + element("IsTruncated", "false")
        return xml_reply(
            200, f'<ListMultipartUploadsResult xmlns="{NAMESPACE}">{told}{found}</ListMultipartUploadsResult>'
        )

    def _list_parts(self, request: Request) -> Reply:
        parts = sorted(self.uploads.find(request).parts.items())
        found = "".join(
            f"<Part>{element('PartNumber', number)}{element('ETag', etag)}{element('Size', len(data))}</Part>"
            for number, (etag, data) in parts
        )
        return xml_reply(200, _result("ListParts", request, element("IsTruncated", "false") + found))

    def _create_bucket(self, request: Request) -> Reply:
        self.objects.make_bucket(request.bucket)
        return Reply(200, (("Location", f"/{request.bucket}"),))

    def _delete_bucket(self, request: Request) -> Reply:
        self.objects.drop_bucket(request.bucket)
        return Reply(204)

    def _head_bucket(self, request: Request) -> Reply:
        self.objects.keys(request.bucket)
        return Reply(200)


def refusal(refused: Refused, request: Request) -> Reply:
    """An error as an answer; that to a HEAD has no body."""
    extra = {**refused.extra, "RequestId": request.id}
    reply = xml_reply(refused.status, error_xml(refused.code, refused.message, extra))
    size = refused.extra.get("ActualObjectSize")
    if size is not None:
        reply = replace(reply, headers=(*reply.headers, ("Content-Range", f"bytes */{size}")))
    return Reply(reply.status, reply.headers) if request.method == "HEAD" else reply


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """[start, stop) that a header Range asks for; None if it asks for nothing that S3 knows. Raises Refused."""
    unit, _, span = text.partition("=")
    first, dash, last = span.strip().partition("-")
    if unit.strip() != "bytes" or not dash or not (first or last):
        return None
    if (first and not first.isdecimal()) or (last and not last.isdecimal()):
        return None
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= size:
        extra = {"RangeRequested": text, "ActualObjectSize": str(size)}
        raise Refused(416, "InvalidRange", "The requested range is not satisfiable", extra)
    return start, stop


def iso_time(seconds: float) -> str:
    """A time as listings have it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _facts(stored: StoredObject, etag: str) -> tuple[Header, ...]:
    kept = {"content-type": "binary/octet-stream"} | dict(stored.headers)
    facts = {"ETag": etag, "Last-Modified": formatdate(stored.modified_s, usegmt=True), "Accept-Ranges": "bytes"}
    return (*facts.items(), *kept.items())


def _object_reply(status: int, headers: tuple[Header, ...], data: memoryview, request: Request) -> Reply:
    if request.method == "HEAD":
        return Reply(status, headers, length=len(data))
    return Reply(status, headers, data)


def _stored(data: bytes | bytearray, etag: str, kept: Mapping[str, str]) -> StoredObject:
    return StoredObject(memoryview(data), etag, time.time(), kept)


def _kept(request: Request) -> dict[str, str]:
    """Headers that are given back with the object. Of aws-chunked, which ends here, nothing is."""
    found = {
        name: value
        for name, value in request.headers.items()
        if name in _KEPT_HEADERS or name.startswith("x-amz-meta-")
    }
    rest = [part for part in found.pop("content-encoding", "").split(",") if part.strip() not in ("", "aws-chunked")]
    return found | ({"content-encoding": ",".join(rest).strip()} if rest else {})


def _condition(request: Request, fault: Fault | None) -> Condition:
    if isinstance(fault, IgnoreCondition):
        return Condition()
    return Condition(request.headers.get("if-match", ""), request.headers.get("if-none-match", ""))


def _check_body(request: Request) -> None:
    """Raise Refused if the body is not what its headers and trailers say."""
    told = {**request.headers, **request.trailers}
    decoded = told.get("x-amz-decoded-content-length", "")
    if decoded.isdecimal() and int(decoded) != len(request.body):
        raise Refused(400, "IncompleteBody", f"The request body has {len(request.body)} bytes, not {decoded}")
    for name, digest in _CHECKSUMS.items():
        if name in told and b64encode(digest(request.body)).decode() != told[name]:
            raise Refused(400, "BadDigest", f"The {name} you specified did not match what we received.")
    sha256 = told.get("x-amz-content-sha256", "")
    if len(sha256) == _SHA256_DIGITS and hashlib.sha256(request.body).hexdigest() != sha256:
        raise Refused(400, "XAmzContentSHA256Mismatch", "x-amz-content-sha256 does not match what was computed.")


def _parse_xml(body: bytes | bytearray) -> ET.Element:
    try:
        return ET.fromstring(bytes(body))  # noqa: S314  from a test on this machine
    except ET.ParseError as error:
        raise Refused(400, "MalformedXML", "The XML you provided was not well-formed") from error


def _result(name: str, request: Request, inner: str) -> str:
    told = element("Bucket", request.bucket) + element("Key", request.key) + inner
    return f'<{name}Result xmlns="{NAMESPACE}">{told}</{name}Result>'
