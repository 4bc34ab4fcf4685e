"""An object store from this node: whether it answers, whose clock is wrong, what it keeps of S3, how fast it is.

Reads at most 16 MiB of one object, and writes nothing unless the conditional write is asked for. The clock is that of
the header Date, which any answer has, a refusal too. What the client cannot ask for, as a list of unfinished uploads,
is said to be unknown.
"""

from __future__ import annotations

import itertools
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from stoker.doctor import object_ids as ids
from stoker.doctor.check import Check, Target, run_checks
from stoker.doctor.finding import Evidence, Finding, Severity
from stoker.doctor.node import Node
from stoker.errors import AccessDenied, NotFound, StokerError, Throttled, UnsupportedError
from stoker.store.object import ObjectStore, parse_url
from stoker.store.object_options import ObjectOptions
from stoker.store.object_profile import read_profile
from stoker.units import MIB, format_bytes, format_rate
from stoker.values import ByteRange, ObjectInfo

LIMIT_S: Final = 10.0
SKEW_WARN_S: Final = 60.0
SKEW_FAIL_S: Final = 900.0  # what is signed further off is refused: RequestTimeTooSkewed
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.1
_LARGE_BYTES: Final = 8 * MIB
_LISTED: Final = 1000
_CONNECT_S: Final = 3.0

T = TypeVar("T")


def diagnose_stores(node: Node, targets: list[Target], *, probe: bool, limit_s: float = LIMIT_S) -> list[Finding]:
    """Findings of the targets that are URLs, from a live node; ends after `limit_s`, whatever hangs.

    `probe`: also try a conditional write, with an object of no other use that is removed again.
    """
    stores = [target for target in targets if target.url]
    known = [target for target in stores if target.url.lower().startswith("s3://")]
    others = [target for target in stores if target not in known]
    found = [
        ids.UNREACHABLE.unknown(target.url, "only s3:// is looked at", fix="give s3://bucket/prefix")
        for target in others
    ]
    conditional = _conditional_write if probe else _conditional_write_untried
    checks = [
        Check("clock", "clock of an object store", _check_clock, per_target=True),
        Check("reads", "object store", _check_reads, per_target=True),
        Check("condition", "conditional write", conditional, per_target=True),
    ]
    return [*found, *(run_checks(checks, node, known, limit_s=limit_s) if known else [])]


def options_of(environ: Mapping[str, str]) -> ObjectOptions:
    """The usual settings, with short timeouts and no second attempts: here each failure is a fact."""
    return replace(
        ObjectOptions.from_environ(environ),
        attempts=1,
        connect_timeout_s=_CONNECT_S,
        stall_timeout_s=4.0,
        request_timeout_s=8.0,
    )


@dataclass
class Tally:
    """Requests made a few times each, and how many were refused as too many."""

    pause_s: float = _PAUSE_S
    requests: int = 0
    throttled: list[str] = field(default_factory=list)

    def of(self, request: Callable[[], T]) -> T:
        """The answer. Raises what the last attempt did; only throttling is tried again."""
        for attempt in range(_ATTEMPTS):
            self.requests += 1
            try:
                return request()
            except Throttled as error:
                self.throttled.append(error.what)
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(self.pause_s * 2**attempt)
        raise AssertionError("the last attempt ends the loop")


def _check_reads(node: Node, target: Target) -> list[Finding]:
    """Reachable, allowed, ranges, first byte, throughput; what was throttled meanwhile."""
    tally, environ = Tally(), node.environment()
    found: list[Finding] = []
    try:
        with closing(ObjectStore(target.url, options_of(environ), environ=environ)) as store:
            found += _look(store, target, tally)
    except StokerError as error:
        found.append(failure(error, target))
    if tally.throttled:
        what = f"{len(tally.throttled)} of {tally.requests} requests were refused as too many"
        found.append(ids.THROTTLED.warn(target.url, what, Evidence(tally.throttled[0], target.url)))
    found.append(
        ids.STALE_UPLOADS.unknown(target.url, "unfinished uploads cannot be listed from here", fix=_uploads_fix(target))
    )
    return found


def _look(store: ObjectStore, target: Target, tally: Tally) -> list[Finding]:
    begin = time.monotonic()
    listed = tally.of(lambda: list(itertools.islice(store.list(), _LISTED)))
    listing_s = time.monotonic() - begin
    count = f"{len(listed)}{' or more' if len(listed) == _LISTED else ''} objects"
    found = [ids.UNREACHABLE.ok(target.url, f"answers: {count} listed in {listing_s * 1e3:.0f} ms")]
    some = next((o for o in listed if o.size_bytes >= _LARGE_BYTES), None)
    some = some or max(listed, key=lambda o: o.size_bytes, default=None)
    if some is None or some.size_bytes < 2:  # noqa: PLR2004 - a range needs a byte that it leaves out
        return [*found, ids.RANGE.unknown(target.url, "there is no object to read a part of")]
    return [*found, *_read(store, some, target, tally)]


def _read(store: ObjectStore, some: ObjectInfo, target: Target, tally: Tally) -> list[Finding]:
    begin = time.monotonic()
    try:
        tally.of(lambda: store.read(some.key, ByteRange(1, 2)))
    except UnsupportedError as error:
        line = Evidence(error.what, target.url)
        return [ids.RANGE.fail(target.url, "a request for a part is answered with the whole object", line)]
    first_s = time.monotonic() - begin
    size = min(_LARGE_BYTES, some.size_bytes)
    begin = time.monotonic()
    tally.of(lambda: store.read(some.key, ByteRange(0, size)))
    rate = size / max(time.monotonic() - begin, 1e-9)
    what = f"first byte after {first_s * 1e3:.0f} ms; {format_bytes(size)} in one request at {format_rate(rate)}"
    return [ids.RANGE.ok(target.url, "reads parts of objects"), ids.SPEED.info(target.url, what)]


def failure(error: StokerError, target: Target) -> Finding:
    """What a failed request means."""
    line = Evidence(str(error.what), error.where or target.url)
    if "RequestTimeTooSkewed" in error.what:
        return ids.CLOCK_SKEW.fail(target.url, "the server refuses requests signed by this clock", line)
    if isinstance(error, AccessDenied):
        return ids.DENIED.fail(target.url, "the credentials may not list or read here", line, fix=error.hint or None)
    if isinstance(error, NotFound):
        return ids.UNREACHABLE.fail(target.url, "the bucket is not there", line)
    if isinstance(error, Throttled):
        return ids.THROTTLED.fail(target.url, "every attempt was refused as too many requests", line)
    return ids.UNREACHABLE.fail(target.url, "does not answer as an object store does", line, fix=error.hint or None)


def _conditional_write(node: Node, target: Target) -> list[Finding]:
    environ = node.environment()
    try:
        with closing(ObjectStore(target.url, options_of(environ), environ=environ)) as store:
            kept = store.keeps_if_absent()
    except StokerError as error:
        line = Evidence(error.what, error.where or target.url)
        return [ids.CONDITIONAL.unknown(target.url, "the conditional write could not be tried", line)]
    if kept:
        return [ids.CONDITIONAL.ok(target.url, "lets exactly one of two writers be the first")]
    return [ids.CONDITIONAL.warn(target.url, "does not keep If-None-Match: two writers both win")]


def _conditional_write_untried(_node: Node, target: Target) -> list[Finding]:
    return [ids.CONDITIONAL.info(target.url, "whether a conditional write is kept was not tried: --probe writes one")]


def _check_clock(node: Node, target: Target) -> list[Finding]:
    """The header Date against the clock, in the middle of the request."""
    try:
        where, context = _plain_url(node.environment(), target)
    except StokerError as error:
        return [
            ids.CLOCK_SKEW.unknown(target.url, "the server's clock was not read", Evidence(error.what, error.where))
        ]
    begin = node.clock_s()
    date = _date_of(where, context)
    middle = (begin + node.clock_s()) / 2
    try:
        there = parsedate_to_datetime(date).timestamp() + 0.5  # whole seconds, cut
    except (TypeError, ValueError):
        line = Evidence(f"Date: {date}" if date else "no header Date", where)
        return [ids.CLOCK_SKEW.unknown(target.url, "the server's clock was not read", line)]
    return [skew(target, middle - there, Evidence(f"Date: {date}", where))]


def skew(target: Target, ahead_s: float, line: Evidence) -> Finding:
    """What a clock that is `ahead_s` before the server's means."""
    off_s = abs(ahead_s)
    severity = Severity.OK
    if off_s > SKEW_WARN_S:
        severity = Severity.FAIL if off_s > SKEW_FAIL_S else Severity.WARN
    word = "ahead of" if ahead_s > 0 else "behind"
    what = f"this clock is {off_s:.0f} s {word} the server's" if off_s > 1 else "this clock agrees with the server's"
    return ids.CLOCK_SKEW.found(severity, target.url, what, line)


def _plain_url(environ: Mapping[str, str], target: Target) -> tuple[str, ssl.SSLContext]:
    """Where an unsigned request goes, and what to trust there. Raises ConfigError, AccessDenied."""
    options = ObjectOptions.from_environ(environ)
    bucket, _ = parse_url(target.url)
    endpoint = options.endpoint or read_profile(environ, options.profile).endpoint
    context = ssl.create_default_context()
    if options.ca_bundle is not None:
        try:
            context.load_verify_locations(options.ca_bundle)
        except OSError as error:
            raise AccessDenied(f"the certificates cannot be read: {error}", str(options.ca_bundle)) from error
    if options.any_certificate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if endpoint is None:
        return f"https://{bucket}.s3.{options.region or 'us-east-1'}.amazonaws.com/", context
    return f"{endpoint.rstrip('/')}/{bucket}", context


def _date_of(where: str, context: ssl.SSLContext) -> str:
    """The header Date of any answer, a refusal too; "" without an answer or without the header."""
    request = urllib.request.Request(where, method="HEAD")  # noqa: S310 - the options take http and https alone
    try:
        with urllib.request.urlopen(request, timeout=_CONNECT_S, context=context) as answer:  # noqa: S310 - same
            return str(answer.headers.get("Date", ""))
    except urllib.error.HTTPError as error:
        with error:
            return str(error.headers.get("Date", ""))
    except (OSError, ValueError):
        return ""


def _uploads_fix(target: Target) -> str:
    bucket, prefix = parse_url(target.url) if target.url.lower().startswith("s3://") else ("BUCKET", "")
    return f"aws s3api list-multipart-uploads --bucket {bucket}" + (f" --prefix {prefix}/" if prefix else "")
