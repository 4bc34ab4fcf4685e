"""What an object store says, as an error of stoker: the one place where its statuses and codes are given a meaning.

Everything is read from the text of the client's exception, which holds the status line, the XML body of the answer
and the client's own account of the cause. Nothing of the body is passed on but code, message and request id: it may
hold what was signed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stoker.errors import (
    AccessDenied,
    AlreadyExists,
    CapacityError,
    ConfigError,
    NotFound,
    PreconditionFailed,
    StokerError,
    StoreError,
    Throttled,
    TimedOut,
    Truncated,
    Unavailable,
    UnsupportedError,
)

_STATUS: Final = re.compile(r"status code: (\d{3})")
_FIELD: Final = re.compile(r"<(Code|Message|RequestId|ActualObjectSize)>([^<]*)</")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*)?(?:OtherError\(\s*)?(\w+)")
_OS_MESSAGE: Final = re.compile(r'message: "([^"]+)"|error: "([^"]+)"')
_RETRIES: Final = re.compile(r"after (\d+) retries, max_retries: (\d+)")
_TEXT_MAX: Final = 300

_THROTTLING: Final = frozenset(
    {"SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"}
)
_CREDENTIALS: Final = frozenset(
    {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)
_FULL: Final = frozenset(  # of Ceph (with 403), MinIO and others
    {"InsufficientCapacity", "InsufficientStorage", "QuotaExceeded"}
    | {"XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"}
)
_FULL_HINT: Final = "free some space there, or have the quota of the bucket or the user raised"
_PASSING: Final = frozenset(  # answered with 400, and yet the same request may succeed
    {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "InternalError"}
)
_BUSY: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_HINTS: Final = {
    "NoSuchBucket": "the bucket does not exist; stoker makes no buckets",
    "AccessDenied": "the credentials may not do this; without the right to list, a missing object looks the same",
    "ExpiredToken": "the session token has expired: renew the credentials",
    "InvalidAccessKeyId": "the access key is not known here: check AWS_ACCESS_KEY_ID, AWS_PROFILE and the endpoint",
    "SignatureDoesNotMatch": "the secret key does not fit the access key, or a proxy changes requests",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
}
_CERTIFICATE_HINT: Final = (
    "give the certificate that signed it with AWS_CA_BUNDLE=/path/to/ca.pem; for tests only: "
    "AWS_ALLOW_INVALID_CERTIFICATES=true"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What can be known of a failed request. `status` is 0 if there was no answer."""

    kind: str
    status: int
    code: str
    message: str
    request_id: str
    text: str
    account: str

    @classmethod
    def of(cls, error: Exception) -> Answer:
        """Take apart the client's exception."""
        text, _, account = str(error).partition("\n\nDebug source")
        status = _STATUS.search(text)
        fields = dict(_FIELD.findall(text))
        return cls(
            kind=type(error).__name__,
            status=int(status[1]) if status else 0,
            code=fields.get("Code", ""),
            message=fields.get("Message", ""),
            request_id=fields.get("RequestId", ""),
            text=text,
            account=account,
        )

    def reason(self) -> str:
        """Why, in a few words: the server's where it answered, else the client's."""
        if self.status:
            said = f"{self.status} {self.code}".rstrip()
            return f"{said}: {self.message.lower()}" if self.message else said
        found = _OS_MESSAGE.search(self.account)
        if found:
            return (found[1] or found[2]).lower()
        if "UnexpectedEof" in self.account or "IncompleteMessage" in self.account:
            return "the connection ended early"
        last = self.text.rsplit(" - ", 1)[-1].replace("\n", " ").strip()
        return last[:_TEXT_MAX].lower()

    def attempt(self) -> str:
        """Which attempt it was, where the client itself made the request again."""
        found = _RETRIES.search(self.text)
        return f" (attempt {int(found[1]) + 1} of {int(found[2]) + 1})" if found else ""


def translate(error: Exception, doing: str, where: str) -> StokerError:
    """The StokerError for a client's `error`, met while `doing` something ("cannot read 'a/b'") at URL `where`."""
    answer = Answer.of(error)
    place = f"{where} (request {answer.request_id})" if answer.request_id else where
    what = f"{doing}: {answer.reason()}{answer.attempt()}"
    hint = _HINTS.get(answer.code, "")
    if answer.status:
        return _answered(answer, what, place, hint)
    return _unanswered(answer, what, place)


def was_answered(error: StokerError) -> bool:
    """Whether `error` came of an answer that is none: a 200 that broke off, or was no XML or had no ETag.

    The client asks again by itself for all else, and then says how often it did.
    """
    return error.__cause__ is not None and "RetryError" not in str(error.__cause__)


def answers_whole(error: StokerError) -> bool:
    """Whether `error` is what became of a 200 that came for a range: a whole object, or a page that is none."""
    return "NotPartial" in str(error.__cause__)


def _answered(answer: Answer, what: str, place: str, hint: str) -> StokerError:
    status, code = answer.status, answer.code
    if status == 416:  # noqa: PLR2004  range not satisfiable
        return Truncated(f"{what}, the object ends earlier", place)
    if code in _BUSY:
        return Unavailable(what, place, "another request for the same key is under way")
    if status == 404:  # noqa: PLR2004  not found
        gone = code == "NoSuchUpload"  # an upload that was completed, aborted or cleaned up meanwhile
        return Unavailable(what, place) if gone else NotFound(what, place, hint)
    if answer.kind == "AlreadyExistsError":
        return AlreadyExists(what, place)
    if status == 412:  # noqa: PLR2004  precondition failed
        return PreconditionFailed(what, place)
    if status == 507 or code in _FULL:  # noqa: PLR2004  insufficient storage
        return CapacityError(what, place, _FULL_HINT)
    if status in (401, 403) or code in _CREDENTIALS:
        return AccessDenied(what, place, hint or _HINTS["AccessDenied"])
    if status in (429, 503) or code in _THROTTLING:
        return Throttled(what, place)
    if status == 501:  # noqa: PLR2004  not implemented
        return UnsupportedError(what, place)
    if status < 500 and code not in _PASSING:  # noqa: PLR2004  the request is at fault, and stays so
        return StoreError(what, place, hint)
    return Unavailable(what, place)


def _unanswered(answer: Answer, what: str, place: str) -> StokerError:
    certificate = _CERTIFICATE.search(answer.account)
    if certificate:
        doing = what.partition(":")[0]
        return AccessDenied(
            f"{doing}: the server's certificate is not trusted: {certificate[1]}", place, _CERTIFICATE_HINT
        )
    if answer.kind == "FileNotFoundError":
        return NotFound(what, place)
    if answer.kind == "UnauthenticatedError":
        return AccessDenied(what, place, "no credentials could be had: see the table of docs/reference/s3.md")
    if answer.kind == "InvalidPathError":
        return StoreError(what, place, "the bucket holds an object there whose name no key can have; move it away")
    if "incorrectly configured region" in answer.text:
        return ConfigError(f"{what.partition(':')[0]}: the bucket is in another region", place, "set AWS_REGION to it")
    if "NotPartial" in answer.account:
        return UnsupportedError(
            f"{what.partition(':')[0]}: the server answers a request for a range with the whole object", place
        )
    if "kind: Timeout" in answer.account or "TimedOut" in answer.account:
        return TimedOut(f"{what.partition(':')[0]}: no answer in time{answer.attempt()}", place)
    return Unavailable(what, place)
