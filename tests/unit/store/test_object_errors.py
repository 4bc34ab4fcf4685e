"""What a server says, or does not say, becomes the error that fits; what it was shown in secret stays out of it."""

import time

import pytest

from stoker.errors import (
    AccessDenied,
    AlreadyExists,
    CapacityError,
    ConfigError,
    NotFound,
    PreconditionFailed,
    StoreError,
    Throttled,
    TimedOut,
    Truncated,
    Unavailable,
    UnsupportedError,
)
from stoker.store.object import ObjectStore
from stoker.store.object_options import ObjectOptions
from stoker.values import ByteRange, Key

KEY = Key("dir/object")


@pytest.fixture
def open_at():
    """Makes a store at a server of canned replies."""

    def make(server, **options):
        options = {"allow_http": True, "endpoint": server.endpoint, **options}
        return ObjectStore("s3://bucket/pre", ObjectOptions(**options), environ=server.environ())

    return make


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", AccessDenied),
        (401, "", AccessDenied),
        (403, "InvalidAccessKeyId", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (400, "ExpiredToken", AccessDenied),
        (404, "NoSuchKey", NotFound),
        (404, "NoSuchBucket", NotFound),
        (404, "", NotFound),
        (412, "PreconditionFailed", PreconditionFailed),
        (416, "InvalidRange", Truncated),
        (429, "TooManyRequests", Throttled),
        (503, "SlowDown", Throttled),
        (503, "", Throttled),
        (400, "RequestTimeout", Unavailable),
        (400, "InvalidRequest", StoreError),
        (405, "MethodNotAllowed", StoreError),
        (409, "OperationAborted", Unavailable),
        (500, "InternalError", Unavailable),
        (502, "", Unavailable),
        (504, "", Unavailable),
        (501, "NotImplemented", UnsupportedError),
        (507, "InsufficientStorage", CapacityError),
        (403, "QuotaExceeded", CapacityError),  # as Ceph says it
        (400, "XMinioAdminBucketQuotaExceeded", CapacityError),
    ],
)
def test_each_status_is_one_error_with_code_and_request(status, code, kind, canned, replies, open_at):
    store = open_at(canned(replies.error(status, code, "Because.")))
    with pytest.raises(StoreError if kind is StoreError else kind) as caught:
        store.read(KEY, ByteRange(0, 4))
    assert type(caught.value) is kind
    assert "'dir/object'" in caught.value.what
    assert "s3://bucket/pre" in caught.value.where
    if kind not in (NotFound, Truncated):
        assert str(status) in caught.value.what
        assert code in caught.value.what
    if code and kind is not Truncated:
        assert "REQ-1" in caught.value.where
    assert len(str(caught.value).split("\n")) <= 3


def test_a_write_that_meets_another_is_told_from_one_that_was_too_late(canned, replies, open_at):
    from stoker.store.conditional import ConditionalPut

    for status, code, kind in (
        (412, "PreconditionFailed", AlreadyExists),
        (409, "ConditionalRequestConflict", Unavailable),
    ):
        store = open_at(canned(replies.error(status, code)))
        assert isinstance(store._first, ConditionalPut)
        with pytest.raises(kind):
            store._bucket.put_first("pre/x", "x", b"1", "token")


def test_nothing_that_was_signed_is_passed_on(canned, replies, open_at):
    hidden = "<StringToSign>hush</StringToSign><AWSAccessKeyId>whose</AWSAccessKeyId>"
    body = replies.error(403, "SignatureDoesNotMatch", "No.", extra=hidden)
    with pytest.raises(AccessDenied) as caught:
        open_at(canned(body)).read(KEY)
    for secret in ("hush", "whose"):
        assert secret not in str(caught.value)


def test_silence_is_a_timeout_before_and_in_the_middle(canned, replies, open_at):
    def half(stream):
        stream.sendall(replies.whole(b"12345", says=10))
        replies.stall(stream)

    for reply in (replies.stall, half):
        with pytest.raises(TimedOut, match="no answer in time") as caught:
            open_at(canned(reply), stall_timeout_s=0.3).read(KEY)
        assert caught.value.retryable


@pytest.mark.alone
def test_bytes_that_come_slowly_but_come_are_no_timeout(canned, replies, open_at):
    def slowly(stream):
        stream.sendall(replies.whole(says=24))
        for _ in range(24):
            time.sleep(0.05)
            stream.sendall(b"1")

    assert open_at(canned(slowly), stall_timeout_s=1.0).read(KEY) == b"1" * 24


def test_a_request_as_a_whole_has_a_limit_too(canned, replies, open_at):
    with pytest.raises(TimedOut):
        open_at(canned(replies.stall), request_timeout_s=0.2, stall_timeout_s=20.0).write(KEY, b"1")


@pytest.mark.parametrize(
    ("reply", "text"),
    [("reset", "reset"), (b"", "error sending request|ended early"), (b"hello\r\n\r\n", "cannot read")],
)
def test_a_connection_that_is_cut_may_be_tried_again(reply, text, canned, replies, open_at):
    server = canned(getattr(replies, reply) if isinstance(reply, str) else reply)
    with pytest.raises(Unavailable, match=text) as caught:
        open_at(server).read(KEY)
    assert caught.value.retryable


def test_a_server_that_is_not_there_is_unavailable(canned, replies, open_at):
    server = canned(replies.whole())
    store = open_at(server)
    endpoint = server.endpoint
    server.close()
    server.close = lambda: None
    with pytest.raises(Unavailable, match="refused"):
        store.stat(KEY)
    assert endpoint.startswith("http://")


def test_a_bucket_of_another_region_is_a_wrong_setting(canned, replies, open_at):
    server = canned(replies.error(301, "PermanentRedirect", headers="x-amz-bucket-region: eu-west-1\r\n"))
    with pytest.raises(ConfigError, match="another region") as caught:
        open_at(server).read(KEY)
    assert "AWS_REGION" in caught.value.hint


def test_a_server_that_knows_no_ranges_is_refused_by_name(canned, replies, open_at):
    with pytest.raises(UnsupportedError, match="range"):
        open_at(canned(replies.whole(b"x" * 100))).read(KEY, ByteRange(0, 4))


def test_a_certificate_that_nobody_known_signed_is_refused_by_name(certificate, canned, replies, open_at):
    _, context = certificate
    store = open_at(canned(replies.whole(b"bytes"), tls=context))
    with pytest.raises(AccessDenied, match="certificate is not trusted: UnknownIssuer") as caught:
        store.read(KEY)
    assert not caught.value.retryable
    assert "AWS_CA_BUNDLE" in caught.value.hint


def test_a_certificate_is_trusted_when_it_is_configured_or_all_are(certificate, canned, replies, open_at):
    file, context = certificate
    server = canned(replies.whole(b"bytes"), tls=context)
    assert open_at(server, ca_bundle=file).read(KEY) == b"bytes"
    assert open_at(server, any_certificate=True).read(KEY) == b"bytes"


def test_a_bundle_that_is_not_there_is_named(canned, replies, open_at, tmp_path):
    with pytest.raises(NotFound, match="certificates"):
        open_at(canned(replies.whole()), ca_bundle=tmp_path / "none.pem").stat(KEY)
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises((StoreError, ConfigError)):
        open_at(canned(replies.whole()), ca_bundle=tmp_path / "bad.pem").stat(KEY)
