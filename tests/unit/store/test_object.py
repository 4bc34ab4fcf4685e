"""What the object store does beyond the contract: credentials, forks, parts, bytes that are not right."""

import json
import logging
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from stoker.errors import (
    AccessDenied,
    CapacityError,
    ClosedError,
    ConfigError,
    NotFound,
    PreconditionFailed,
    StoreError,
    Truncated,
    Unavailable,
)
from stoker.store import object as object_module
from stoker.store.object import ObjectStore, parse_url
from stoker.store.object_options import ObjectOptions
from stoker.store.open import open_store
from stoker.store.retry import RetryPolicy, RetryStore
from stoker.units import MIB
from stoker.values import ByteRange, Key

KEY = Key("object")


@pytest.fixture
def store(object_server):
    with closing(ObjectStore(object_server.new_url(), environ=object_server.environ)) as store:
        yield store


@pytest.fixture
def store_at():
    """Makes a store at a server of canned replies."""

    def make(server, environ=None, **options):
        options = {"endpoint": server.endpoint, "allow_http": True, **options}
        environ = server.environ() if environ is None else environ
        return ObjectStore("s3://bucket/pre", ObjectOptions(**options), environ=environ)

    return make


# --- URLs -------------------------------------------------------------------------------------------------------------


def test_a_url_is_a_bucket_and_a_prefix():
    for url, expected in (
        ("s3://bucket", ("bucket", "")),
        ("s3://bucket/", ("bucket", "")),
        ("S3://bucket/a/b/", ("bucket", "a/b")),
        ("s3://bucket/a b/ü", ("bucket", "a b/ü")),
    ):
        assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///a", "s3://b/a//c", "s3://b/../c", "s3://b?x=1", "s3://b/a#c", "s3://key:secret@b/a", "gs://b"],
)
def test_a_url_that_names_no_bucket_is_refused(url):
    with pytest.raises(ConfigError):
        parse_url(url)


def test_a_name_that_is_too_long_with_its_prefix_is_refused(store):
    with pytest.raises(ConfigError, match="1024"):
        store.write(Key("k" * 1020), b"1")


def test_a_url_opens_a_store_that_retries(object_server, monkeypatch):
    for name, value in {**object_server.environ, "AWS_MAX_ATTEMPTS": "3"}.items():
        monkeypatch.setenv(name, value)
    url = object_server.new_url()
    with closing(open_store(url)) as store:
        assert isinstance(store, RetryStore)
        assert store.policy.attempts == 3
        assert store.url == url
        store.write(KEY, b"1", if_absent=True)
        assert store.read(KEY) == b"1"


def test_opening_asks_nothing_and_loads_no_client(tmp_path):
    script = (
        "import sys; from stoker.store.open import open_store; s = open_store('s3://nowhere/at/all'); s.close()\n"
        "print('obstore' in sys.modules, s.url)"
    )
    environ = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "False s3://nowhere/at/all\n"


# --- a forked child ---------------------------------------------------------------------------------------------------

FORKING = """
import os, signal, sys
from stoker.errors import UnsupportedError
from stoker.store.object import ObjectStore
from stoker.values import Key
url, used = sys.argv[1:]
store = ObjectStore(url)
if used == "used":
    store.write(Key("object"), b"1")
pid = os.fork()
if pid == 0:
    signal.alarm(20)  # a client that hangs dies of it
    try:
        for one in (store, ObjectStore(url)):
            if used == "used":
                try:
                    one.read(Key("object"))
                except UnsupportedError as error:
                    assert "spawn" in error.hint
                else:
                    os._exit(3)
            else:
                one.write(Key("object"), b"1")
        os._exit(0)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(4)
_, status = os.waitpid(pid, 0)
if used == "used":
    assert store.read(Key("object")) == b"1"
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("used", ["used", "unused"])
def test_a_forked_child_is_told_at_once_if_the_parent_used_the_client_and_works_if_not(object_server, used):
    done = subprocess.run(
        [sys.executable, "-c", FORKING, object_server.new_url(), used],
        env={**os.environ, **object_server.environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- http and credentials ---------------------------------------------------------------------------------------------


def test_credentials_do_not_go_over_http_unless_that_is_allowed(canned, replies):
    server = canned(replies.whole(b"bytes"))
    environ = server.environ()
    del environ["AWS_ALLOW_HTTP"]
    with pytest.raises(ConfigError, match="http://") as caught:
        ObjectStore("s3://bucket", environ=environ)
    assert "AWS_ALLOW_HTTP" in caught.value.hint
    with closing(ObjectStore("s3://bucket", environ={**environ, "AWS_SKIP_SIGNATURE": "true"})) as store:
        assert store.read(KEY) == b"bytes"
    assert b"authorization" not in server.requests[0].lower()


def signed_by(request):
    """The access key that a request was signed with, and its session token."""
    lines = request.decode().split("\r\n")
    access = next(line.partition("Credential=")[2].partition("/")[0] for line in lines if "Credential=" in line)
    token = next((line.partition(": ")[2] for line in lines if line.lower().startswith("x-amz-security-token")), None)
    return access, token


def test_static_credentials_with_their_token_sign(canned, replies, store_at):
    server = canned(replies.whole(b"1"))
    store_at(server, {**server.environ(), "AWS_SESSION_TOKEN": "tok"}).read(KEY)
    assert signed_by(server.requests[0]) == ("key", "tok")


def test_a_profile_signs_and_one_that_the_caller_names_wins_over_the_environment(canned, replies, store_at, tmp_path):
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id = TEAM\naws_secret_access_key = s\n")
    files = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"), "AWS_CONFIG_FILE": "/nonexistent"}
    server = canned(replies.whole(b"1"))
    store_at(server, {**files, "AWS_PROFILE": "team"}, profile="team").stat(KEY)
    store_at(server, {**server.environ(), **files}, profile="team").stat(KEY)
    store_at(server, {**server.environ(), **files, "AWS_PROFILE": "team"}, profile="team").stat(KEY)
    assert [signed_by(request)[0] for request in server.requests] == ["TEAM", "TEAM", "key"]


def test_the_endpoint_and_region_of_a_profile_are_used(canned, replies, tmp_path):
    server = canned(replies.whole(b"1"))
    (tmp_path / "config").write_text(f"[default]\nregion = eu-north-1\nendpoint_url = {server.endpoint}\n")
    environ = {**server.environ(), "AWS_CONFIG_FILE": str(tmp_path / "config")}
    del environ["AWS_ENDPOINT_URL"]
    ObjectStore("s3://bucket", environ=environ).read(KEY)
    assert b"/eu-north-1/s3/" in server.requests[0]


KEYS = {
    "Code": "Success",
    "AccessKeyId": "THERE",
    "SecretAccessKey": "s",
    "Token": "tok",
    "Expiration": "2099-01-01T00:00:00Z",
}


def test_an_instance_is_asked_for_credentials_with_a_session_of_its_own(canned, replies, store_at, monkeypatch):
    metadata = canned(replies.whole(b"session"), replies.whole(b"role"), replies.whole(json.dumps(KEYS).encode()))
    server = canned(replies.whole(b"1"))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", metadata.endpoint)
    store_at(server, {}).read(KEY)
    assert signed_by(server.requests[0]) == ("THERE", "tok")
    assert metadata.requests[0].startswith(b"PUT /latest/api/token")
    assert b"x-aws-ec2-metadata-token: session" in metadata.requests[2]


def test_a_container_is_asked_for_credentials_with_its_token(canned, replies, store_at, monkeypatch, tmp_path):
    agent = canned(replies.whole(json.dumps(KEYS).encode()))
    server = canned(replies.whole(b"1"))
    (tmp_path / "token").write_text("proof")
    environ = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent.endpoint}/creds",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    store_at(server, environ).read(KEY)
    assert signed_by(server.requests[0]) == ("THERE", "tok")
    assert b"authorization: proof" in agent.requests[0]


@pytest.mark.parametrize("where", ["environment", "profile"])
def test_a_token_file_is_exchanged_for_credentials(where, certificate, canned, replies, monkeypatch, tmp_path):
    file, context = certificate
    keys = "<AccessKeyId>THERE</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>tok</SessionToken>"
    keys += "<Expiration>2099-01-01T00:00:00Z</Expiration>"
    answer = (
        f"<R><AssumeRoleWithWebIdentityResult><Credentials>{keys}</Credentials></AssumeRoleWithWebIdentityResult></R>"
    )
    issuer, server = canned(replies.whole(answer.encode()), tls=context), canned(replies.whole(b"1"))
    (tmp_path / "token").write_text("proof")
    if where == "environment":
        environ = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}
    else:
        text = f"[default]\nrole_arn = arn:aws:iam::1:role/r\nweb_identity_token_file = {tmp_path / 'token'}\n"
        (tmp_path / "config").write_text(text)
        environ = {"AWS_CONFIG_FILE": str(tmp_path / "config")}
    environ |= {"AWS_ENDPOINT_URL_STS": issuer.endpoint}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    options = ObjectOptions(endpoint=server.endpoint, allow_http=True, ca_bundle=file)
    ObjectStore("s3://bucket", options, environ=environ).read(KEY)
    assert signed_by(server.requests[0]) == ("THERE", "tok")
    assert b"WebIdentityToken=proof" in issuer.requests[0]


def test_without_credentials_it_says_so_instead_of_asking_the_network(canned, replies, store_at):
    server = canned(replies.whole(b"1"))
    with pytest.raises(ConfigError, match="no credentials"):
        store_at(server, {"AWS_EC2_METADATA_DISABLED": "true"}).read(KEY)
    assert server.requests == []


def test_a_profile_whose_keys_are_gone_is_denied(canned, replies, store_at, tmp_path):
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id = TEAM\naws_secret_access_key = s\n")
    server = canned(replies.whole(b"1"))
    store = store_at(server, {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}, profile="team")
    (tmp_path / "credentials").write_text("")
    with pytest.raises(AccessDenied, match="profile 'team'") as caught:
        store.read(KEY)
    assert len(str(caught.value).split("\n")) <= 3


def test_encryption_and_who_pays_are_said_with_each_write(canned, replies, store_at):
    server = canned(replies.whole())
    store_at(server, kms_key="alias/k", requester_pays=True).write(KEY, b"1")
    head = server.requests[0].lower()
    assert b"x-amz-server-side-encryption: aws:kms\r\n" in head
    assert b"x-amz-server-side-encryption-aws-kms-key-id: alias/k\r\n" in head
    assert b"x-amz-request-payer: requester\r\n" in head


# --- reading ----------------------------------------------------------------------------------------------------------


def test_bytes_that_are_too_few_or_of_another_place_are_never_delivered(canned, replies, store_at):
    def announced_longer(data):
        return replies.part(data, 0, 100, says=10).replace(b"Content-Length: 10", b"Content-Length: 4")

    for wrong in (
        replies.part(b"01234", 0, 100, says=10),  # cut
        replies.part(b"01234", 0, 100),  # another range than asked for
        replies.part(b"0123456789", 5, 100),
        announced_longer(b"0123"),  # a proxy that shortens and corrects the length
    ):
        with pytest.raises(Unavailable):
            store_at(canned(wrong)).read(KEY, ByteRange(0, 10))
    with pytest.raises(Unavailable):
        store_at(canned(replies.whole(b"012", says=10))).read(KEY)


def test_bytes_that_were_wrong_are_read_again_and_right(canned, replies, store_at):
    right = replies.part(b"0123456789", 0, 100)
    wrong = [
        replies.part(b"01234", 0, 100, says=10),
        replies.part(b"9999999999", 5, 100),
        replies.error(503),
        replies.reset,
    ]
    server = canned(*wrong, right)
    store = RetryStore(store_at(server), RetryPolicy(base_s=0.001))
    buffer = np.zeros(10, np.uint8)
    store.read_into(KEY, 0, buffer)
    assert buffer.tobytes() == b"0123456789"
    assert (store.stats().attempts, len(server.requests)) == (5, 5)


def test_a_server_that_fails_for_ever_ends_with_the_attempt_and_the_request(canned, replies, store_at):
    server = canned(replies.error(503, "SlowDown", "Reduce your request rate."))
    store = RetryStore(store_at(server), RetryPolicy(attempts=3, base_s=0.001))
    with pytest.raises(StoreError, match=r"503 SlowDown.*\(attempt 3 of 3\)") as caught:
        store.read(KEY)
    assert "REQ-1" in caught.value.where
    assert len(server.requests) == 3


def test_an_object_that_ends_earlier_is_not_asked_for_again(canned, replies, store_at):
    store = RetryStore(store_at(canned(replies.part(b"01234", 0, 5))))
    with pytest.raises(Truncated, match="ends at byte 5, wanted up to 10"):
        store.read(KEY, ByteRange(0, 10))
    assert store.stats().attempts == 1


def test_a_large_read_is_of_one_version(store, monkeypatch):
    monkeypatch.setattr(object_module, "REQUEST_MAX_BYTES", 1000)
    store.write(KEY, bytes(range(250)) * 16)
    buffer = bytearray(3500)
    store.read_into(KEY, 300, buffer)
    assert buffer == (bytes(range(250)) * 16)[300:3800]
    part = store._bucket.part

    def changing(name, key, start, stop, pin):
        if start == 1000:
            store.write(KEY, bytes(4000))
        return part(name, key, start, stop, pin)

    monkeypatch.setattr(store._bucket, "part", changing)
    with pytest.raises(PreconditionFailed):
        store.read_into(KEY, 0, bytearray(2000))


def test_a_change_is_noticed_at_a_server_that_does_not_look(canned, replies, store_at, monkeypatch):
    monkeypatch.setattr(object_module, "REQUEST_MAX_BYTES", 4)
    server = canned(replies.part(b"0123", 0, 100, "e1"), replies.part(b"4567", 4, 100, "e2"))
    with pytest.raises(PreconditionFailed, match="'e2', was 'e1'"):
        store_at(server).read_into(KEY, 0, bytearray(8))
    assert b'if-match: "e1"' in server.requests[1].lower()


# --- writing ----------------------------------------------------------------------------------------------------------


def uploads(object_server):
    return object_server.request("GET", f"/{object_server.bucket}?uploads")[1]


def test_a_small_object_is_one_request_and_a_large_one_is_parts(object_server, store):
    for size, parts in ((0, ""), (7 * MIB, ""), (20 * MIB, "-3")):
        small = ObjectStore(store.url, replace(store.options, part_bytes=8 * MIB), environ=object_server.environ)
        with small.writer(KEY) as writer:
            for start in range(0, size, 1 * MIB):
                writer.write(bytes(min(MIB, size - start)))
            info = writer.commit()
        assert info.size_bytes == size
        assert info.version.partition("-")[2] == parts.lstrip("-")


@pytest.mark.parametrize("how", ["discard", "error"])
def test_a_discarded_upload_is_aborted_at_the_server(object_server, store, how):
    small = ObjectStore(store.url, replace(store.options, part_bytes=8 * MIB), environ=object_server.environ)
    prefix = store.url.rpartition("/")[2].encode()
    with small.writer(KEY) as writer:
        writer.write(bytes(20 * MIB))
        assert prefix in uploads(object_server)
        if how == "discard":
            writer.discard()
        else:
            with pytest.raises(LookupError), writer:
                raise LookupError
    assert prefix not in uploads(object_server)


def test_what_the_caller_does_to_a_buffer_later_does_not_reach_the_object(object_server, store):
    small = ObjectStore(store.url, replace(store.options, part_bytes=8 * MIB), environ=object_server.environ)
    buffer = bytearray(b"a" * (5 * MIB))
    with small.writer(KEY) as writer:
        for letter in b"bcd":
            writer.write(buffer)
            buffer[:] = bytes([letter]) * len(buffer)
        writer.commit()
    assert store.read(KEY) == b"a" * (5 * MIB) + b"b" * (5 * MIB) + b"c" * (5 * MIB)


def test_more_than_ten_thousand_parts_are_refused_before_they_are_sent(store, monkeypatch):
    from stoker.store import object_writer

    monkeypatch.setattr(object_writer, "PARTS_MAX", 1)
    with store.writer(KEY) as writer, pytest.raises(CapacityError, match=r"parts of 32\.0 MiB"):
        writer.write(bytes(33 * MIB))
    assert list(store.list()) == []


def test_a_large_write_at_once_goes_in_parts(store, monkeypatch):
    monkeypatch.setattr(object_module, "SINGLE_PUT_MAX_BYTES", MIB)
    data = np.arange(3 * MIB // 8).view(np.uint8)
    info = store.write(KEY, data)
    assert info == store.stat(KEY)
    assert store.read(KEY) == data.tobytes()


def test_an_object_in_parts_carries_the_token_of_its_writer(object_server, store):
    small = ObjectStore(store.url, replace(store.options, part_bytes=8 * MIB), environ=object_server.environ)
    tokens = []
    for size in (9 * MIB, 9 * MIB, 1):
        with small.writer(KEY) as writer:
            writer.write(bytes(size))
            writer.commit()
        tokens.append(writer._token)
        assert small._bucket.head(small._base + KEY, KEY).token == tokens[-1]
    assert len(set(tokens)) == 3


BEGUN = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
COMPLETE = b"<CompleteMultipartUploadResult><ETag>&quot;e9&quot;</ETag></CompleteMultipartUploadResult>"


def test_a_part_that_fails_is_sent_again(canned, replies, store_at):
    sent = [replies.error(503, "SlowDown"), replies.reset, replies.whole(etag="p1"), replies.whole(etag="p2")]
    head = replies.whole(etag="e9", says=9 * MIB)
    server = canned(replies.whole(BEGUN), *sent, replies.whole(COMPLETE), head)
    with store_at(server, part_bytes=8 * MIB, parts_in_flight=1).writer(KEY) as writer:
        writer.write(bytes(9 * MIB))
        info = writer.commit()
    assert (info.size_bytes, info.version) == (9 * MIB, "e9")
    assert [request.split()[0] for request in server.requests] == [b"POST", *[b"PUT"] * 4, b"POST", b"HEAD"]


def test_an_upload_that_is_not_as_long_as_what_was_sent_is_an_error(canned, replies, store_at):
    head = replies.whole(etag="e9", says=8 * MIB)
    server = canned(replies.whole(BEGUN), replies.whole(), replies.whole(), replies.whole(COMPLETE), head)
    with store_at(server, part_bytes=8 * MIB).writer(KEY) as writer:
        writer.write(bytes(9 * MIB))
        with pytest.raises(Unavailable, match="9,437,184 bytes were sent, 8,388,608 are there"):
            writer.commit()


@pytest.mark.parametrize("failing", [2, 3])
def test_an_upload_that_fails_at_its_end_is_aborted(failing, canned, replies, store_at, caplog):
    answers = [replies.whole(BEGUN), replies.whole(), replies.whole(), replies.whole()]
    answers[failing] = replies.error(403, "AccessDenied")
    server = canned(*answers)
    store = store_at(server, part_bytes=8 * MIB, parts_in_flight=1)
    with store.writer(KEY) as writer:
        writer.write(bytes(9 * MIB))
        with pytest.raises(AccessDenied):
            writer.commit()
        with pytest.raises(ClosedError):
            writer.commit()
    assert [request.split()[0] for request in server.requests].count(b"DELETE") == 1
    assert caplog.text == ""


def test_an_upload_that_fails_is_aborted_and_if_that_fails_too_it_is_said(canned, replies, store_at, caplog):
    for aborted, said in ((replies.whole(), ""), (replies.error(403, "AccessDenied"), "could not be aborted")):
        server = canned(replies.whole(BEGUN), replies.error(403, "AccessDenied"), aborted)
        store = store_at(server, part_bytes=8 * MIB, parts_in_flight=1, attempts=1)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "stoker.store"), store.writer(KEY) as writer:
            with pytest.raises(AccessDenied):  # noqa: PT012  which of the writes notices is the client's choice
                for _ in range(4):
                    writer.write(bytes(9 * MIB))
            writer.discard()
        assert server.requests[-1].startswith(b"DELETE /bucket/pre/object?uploadId=u ")
        assert said in caplog.text
        assert bool(caplog.text) is bool(said)


# --- listing ----------------------------------------------------------------------------------------------------------


def test_names_of_others_that_no_key_can_have_are_passed_over_or_named(object_server, store):
    store.write(Key("dir/good"), b"1")
    prefix = store.url.removeprefix("s3://")
    assert object_server.request("PUT", f"/{prefix}/dir/e%CC%81")[0] == 200  # not NFC
    assert [str(info.key) for info in store.list()] == ["dir/good"]
    assert object_server.request("PUT", f"/{prefix}/dir//empty-part")[0] == 200
    with pytest.raises(StoreError, match=r"empty-part|empty path segment") as caught:
        list(store.list())
    assert "name no key can have" in caught.value.hint
    assert not caught.value.retryable


def test_a_bucket_that_is_not_there_is_not_found(object_server):
    store = ObjectStore("s3://no-such-bucket/x", environ=object_server.environ)
    for use in (lambda: list(store.list()), lambda: store.read(KEY), lambda: store.write(KEY, b"1")):
        with pytest.raises(NotFound, match=r"404|no object"):
            use()
