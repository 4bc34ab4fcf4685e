"""What S3 does, asked by a plain HTTP client."""

from __future__ import annotations

import hashlib
import re
import zlib
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree as ET

import pytest

from stoker.testing.fault_server import FaultServer
from stoker.testing.fault_server.operations import parse_range

DATA = bytes(range(256)) * 40


def code(answer):
    return ET.fromstring(answer.body).findtext("Code")


def quoted_md5(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


def test_an_object_comes_back_with_its_facts(client):
    headers = {"Content-Type": "text/x", "x-amz-meta-who": "me", "Cache-Control": "no-store", "Other": "x"}
    put = client.request("PUT", "/bucket/a/key", DATA, headers)
    assert (put.status, put.headers["ETag"]) == (200, quoted_md5(DATA))
    got = client.get("a/key")
    assert (got.status, got.body, got.headers["ETag"]) == (200, DATA, quoted_md5(DATA))
    assert got.headers["Content-Length"] == str(len(DATA))
    assert (got.headers["Content-Type"], got.headers["x-amz-meta-who"]) == ("text/x", "me")
    assert (got.headers["Cache-Control"], got.headers["Other"]) == ("no-store", None)
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", got.headers["Last-Modified"])
    head = client.request("HEAD", "/bucket/a/key")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(DATA)))
    assert {h.headers["x-amz-request-id"] for h in (put, got, head)} == {f"{n:016X}" for n in (1, 2, 3)}


@pytest.mark.parametrize(
    ("span", "start", "stop"),
    [("0-0", 0, 1), ("10-19", 10, 20), ("10200-", 10_200, 10_240), ("0-99999", 0, 10_240), ("-5", 10_235, 10_240)],
)
def test_a_range_is_that_range(server, client, span, start, stop):
    server.put("key", DATA)
    got = client.get("key", span)
    assert (got.status, got.body) == (206, DATA[start:stop])
    assert got.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(DATA)}"


@pytest.mark.parametrize(
    "text", ["", "bytes", "bytes=", "bytes=-", "items=0-1", "bytes=5-4", "bytes=a-b", "bytes=0-1,3-4"]
)
def test_what_is_no_range_is_the_whole(text):
    assert parse_range(text, 100) is None


@pytest.mark.parametrize("span", ["10240-", "10240-10250", "-0"])
def test_a_range_behind_the_end_is_416_and_says_the_size(server, client, span):
    server.put("key", DATA)
    got = client.get("key", span)
    assert (got.status, code(got), got.headers["Content-Range"]) == (416, "InvalidRange", "bytes */10240")


def test_errors_say_their_code_and_the_request(client):
    got = client.get("missing")
    assert (got.status, code(got), got.headers["Content-Type"]) == (404, "NoSuchKey", "application/xml")
    assert ET.fromstring(got.body).findtext("RequestId") == got.headers["x-amz-request-id"]
    assert code(client.request("GET", "/other/key")) == "NoSuchBucket"
    head = client.request("HEAD", "/bucket/missing")
    assert (head.status, head.body) == (404, b"")
    for path in ("/bucket/key?acl", "/bucket", "/", "/bucket/key?partNumber=1", "/bucket?versions"):
        assert client.request("GET", path).status == 501, path
    copy = client.request("PUT", "/bucket/copy", b"", {"x-amz-copy-source": "/bucket/key"})
    assert (copy.status, client.get("copy").status) == (501, 404)


def test_conditions_of_a_get_hold(server, client):
    etag = server.put("key", DATA)
    other = '"00000000000000000000000000000000"'
    for good in (etag, etag.strip('"'), "*", f"{other}, {etag}"):
        assert client.get("key", If_Match=good).status == 200
    bad = client.get("key", "0-1", If_Match=other)
    assert (bad.status, code(bad)) == (412, "PreconditionFailed")
    assert client.get("key", If_None_Match=other).status == 200
    same = client.get("key", If_None_Match=etag)
    assert (same.status, same.body, same.headers["ETag"]) == (304, b"", etag)


def test_conditions_of_a_put_hold(client):
    def put(data, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.request("PUT", "/bucket/key", data, named).status

    assert put(b"1", If_Match=quoted_md5(b"1")) == 404
    assert put(b"1", If_None_Match="*") == 200
    assert put(b"2", If_None_Match="*") == 412
    assert put(b"3", If_Match=quoted_md5(b"2")) == 412
    assert put(b"4", If_Match=quoted_md5(b"1")) == 200
    assert client.get("key").body == b"4"
    assert client.request("DELETE", "/bucket/key", None, {"If-Match": quoted_md5(b"1")}).status == 412
    assert client.request("DELETE", "/bucket/key").status == 204
    assert client.request("DELETE", "/bucket/key").status == 204
    assert client.get("key").status == 404


def test_one_of_many_writers_is_the_first(client):
    with ThreadPoolExecutor(16) as pool:
        put = pool.map(
            lambda n: client.request("PUT", "/bucket/key", b"%d" % n, {"If-None-Match": "*"}).status, range(16)
        )
        assert sorted(put) == [200] + [412] * 15


def test_checksums_that_do_not_fit_are_refused_and_nothing_is_stored(client):
    right = {
        "Content-MD5": b64encode(hashlib.md5(DATA).digest()).decode(),
        "x-amz-checksum-crc32": b64encode(zlib.crc32(DATA).to_bytes(4, "big")).decode(),
        "x-amz-checksum-sha256": b64encode(hashlib.sha256(DATA).digest()).decode(),
        "x-amz-content-sha256": hashlib.sha256(DATA).hexdigest(),
        "x-amz-decoded-content-length": str(len(DATA)),
    }
    for name, value in right.items():
        bad = client.request("PUT", "/bucket/key", DATA + b"x", {name: value})
        assert bad.status == 400, name
        assert code(bad) in ("BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody")
    assert client.get("key").status == 404
    assert client.request("PUT", "/bucket/key", DATA, right).status == 200


def test_aws_chunked_bodies_are_stored_without_their_chunks(client):
    body = b"5;chunk-signature=1\r\nhello\r\n0;chunk-signature=2\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"
    headers = {"Content-Encoding": "aws-chunked", "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
    assert client.request("PUT", "/bucket/key", body, headers).status == 200
    got = client.get("key")
    assert (got.body, got.headers["Content-Encoding"]) == (b"hello", None)
    wrong = client.request("PUT", "/bucket/key", body.replace(b"hello", b"hullo"), headers)
    assert (wrong.status, code(wrong)) == (400, "BadDigest")
    assert client.request("PUT", "/bucket/key", b"5\r\nhel", headers).status == 400
    gzip = {"Content-Encoding": "gzip,aws-chunked"}
    assert client.request("PUT", "/bucket/key", b"0\r\n\r\n", gzip).status == 200
    assert client.get("key").headers["Content-Encoding"] == "gzip"


def test_a_chunked_body_is_stored(client):
    assert client.request("PUT", "/bucket/key", iter([b"abc", b"de"])).status == 200
    assert client.get("key").body == b"abcde"


def listing(client, query):
    root = ET.fromstring(client.request("GET", f"/bucket?list-type=2&{query}").body)
    keys = [item.findtext("{*}Key") for item in root.findall("{*}Contents")]
    folders = [item.findtext("{*}Prefix") for item in root.findall("{*}CommonPrefixes")]
    return keys, folders, root


def test_a_listing_has_prefix_delimiter_start_and_what_an_object_is(server, client):
    for key in ("a/1", "a/2", "a/b/3", "b", "ü&<"):
        server.put(key, key.encode())
    assert listing(client, "")[0] == ["a/1", "a/2", "a/b/3", "b", "ü&<"]
    assert listing(client, "prefix=a/&delimiter=/")[:2] == (["a/1", "a/2"], ["a/b/"])
    assert listing(client, "start-after=a/2")[0] == ["a/b/3", "b", "ü&<"]
    assert listing(client, "encoding-type=url&prefix=%C3%BC")[0] == ["%C3%BC%26%3C"]
    item = listing(client, "prefix=b")[2].find("{*}Contents")
    assert (item.findtext("{*}Size"), item.findtext("{*}ETag")) == ("1", quoted_md5(b"b"))
    assert listing(client, "prefix=b")[2].findtext("{*}IsTruncated") == "false"
    for wrong in ("max-keys=x", "continuation-token=%FF"):
        assert client.request("GET", f"/bucket?list-type=2&{wrong}").status == 400
    assert code(client.request("GET", "/none?list-type=2")) == "NoSuchBucket"


def test_pages_are_as_large_as_asked_and_allowed(server, client):
    for number in range(5):
        server.put(f"{number}", b"")
    keys, _, root = listing(client, "max-keys=2")
    assert (keys, root.findtext("{*}IsTruncated")) == (["0", "1"], "true")
    token = root.findtext("{*}NextContinuationToken")
    assert listing(client, f"max-keys=9&continuation-token={token}")[0] == ["2", "3", "4"]
    assert listing(client, "max-keys=5000")[2].findtext("{*}MaxKeys") == "1000"


def start_upload(client, path="/bucket/key"):
    return ET.fromstring(client.request("POST", f"{path}?uploads").body).findtext("{*}UploadId")


def complete(client, upload, parts, headers=None):
    body = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in parts)
    text = f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{body}</CompleteMultipartUpload>'
    return client.request("POST", f"/bucket/key?uploadId={upload}", text.encode(), headers)


def put_part(client, upload, number, data):
    return client.request("PUT", f"/bucket/key?partNumber={number}&uploadId={upload}", data).headers["ETag"]


def test_an_upload_in_parts_is_one_object_when_it_is_complete(server, client):
    upload = start_upload(client)
    large = bytes(5 << 20)
    second, first = put_part(client, upload, 2, b"end"), put_part(client, upload, 1, large)
    assert client.get("key").status == 404
    listed = ET.fromstring(client.request("GET", f"/bucket/key?uploadId={upload}").body)
    assert [part.findtext("{*}Size") for part in listed.findall("{*}Part")] == [str(5 << 20), "3"]
    done = complete(client, upload, [(1, first), (2, second)])
    digest = hashlib.md5(hashlib.md5(large).digest() + hashlib.md5(b"end").digest()).hexdigest()
    assert ET.fromstring(done.body).findtext("{*}ETag") == f'"{digest}-2"'
    assert server.get("key") == large + b"end"
    assert client.get("key", "-3").headers["ETag"] == f'"{digest}-2"'
    assert code(complete(client, upload, [(1, first)])) == "NoSuchUpload"


def test_an_upload_that_is_not_right_is_refused(client):
    upload = start_upload(client)
    one, two = put_part(client, upload, 1, b"1"), put_part(client, upload, 2, b"2")
    assert code(complete(client, upload, [(1, one), (2, two)])) == "EntityTooSmall"
    assert code(complete(client, upload, [(2, two), (1, one)])) == "InvalidPartOrder"
    assert code(complete(client, upload, [(1, two)])) == "InvalidPart"
    assert code(complete(client, upload, [(3, one)])) == "InvalidPart"
    assert code(complete(client, upload, [])) == "MalformedXML"
    assert code(client.request("POST", f"/bucket/key?uploadId={upload}", b"<")) == "MalformedXML"
    for number in ("0", "10001", "x"):
        assert client.request("PUT", f"/bucket/key?partNumber={number}&uploadId={upload}", b"1").status == 400
    assert client.request("PUT", f"/bucket/other?partNumber=1&uploadId={upload}", b"1").status == 404
    assert client.get("key").status == 404


def test_an_upload_completes_only_if_its_condition_holds(server, client):
    upload = start_upload(client)
    part = put_part(client, upload, 1, b"mine")
    server.put("key", b"theirs")
    assert complete(client, upload, [(1, part)], {"If-None-Match": "*"}).status == 412
    assert server.get("key") == b"theirs"


def test_uploads_are_listed_until_they_are_aborted(client):
    upload = start_upload(client, "/bucket/a/key")

    def ids(prefix):
        root = ET.fromstring(client.request("GET", f"/bucket?uploads&prefix={prefix}").body)
        return [item.findtext("{*}UploadId") for item in root.findall("{*}Upload")]

    assert (ids("a/"), ids("b")) == ([upload], [])
    assert client.request("DELETE", f"/bucket/a/key?uploadId={upload}").status == 204
    assert ids("") == []
    assert client.request("DELETE", f"/bucket/a/key?uploadId={upload}").status == 404


def test_many_are_deleted_at_once(server, client):
    for key in ("1", "2", "3"):
        server.put(key, b"")
    body = b"<Delete><Object><Key>1</Key></Object><Object><Key>2</Key></Object><Object><Key>9</Key></Object></Delete>"
    done = ET.fromstring(client.request("POST", "/bucket?delete", body).body)
    assert [item.findtext("{*}Key") for item in done.findall("{*}Deleted")] == ["1", "2", "9"]
    assert server.keys() == ["3"]
    quiet = client.request("POST", "/bucket?delete", body.replace(b"<Object>", b"<Quiet>true</Quiet><Object>", 1))
    assert ET.fromstring(quiet.body).findall("{*}Deleted") == []


def test_buckets_are_made_and_dropped(client):
    assert client.request("HEAD", "/second").status == 404
    assert client.request("PUT", "/second").status == 200
    assert client.request("HEAD", "/second").status == 200
    assert client.request("PUT", "/second/key", b"1").status == 200
    assert client.get("key").status == 404
    assert client.request("DELETE", "/second").status == 409
    client.request("DELETE", "/second/key")
    assert client.request("DELETE", "/second").status == 204
    assert client.request("PUT", "/second/key", b"1").status == 404


def test_the_files_of_a_directory_are_objects_that_cannot_be_written(tmp_path, client_of):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "key").write_bytes(DATA)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path.parent / "outside").write_bytes(b"secret")
    with FaultServer(directory=tmp_path) as server:
        client = client_of(server)
        assert listing(client, "")[0] == ["a/key", "empty"]
        got = client.get("a/key", "1-2")
        assert (got.body, got.headers["ETag"]) == (DATA[1:3], quoted_md5(DATA))
        assert client.get("empty").body == b""
        for missing in ("a", "a/", "none", "..%2Foutside", "../outside", "a/./key", "a%00"):
            assert client.get(missing).status == 404, missing
        assert client.request("PUT", "/bucket/new", b"1").status == 403
        assert client.request("DELETE", "/bucket/a/key").status == 403
        assert client.request("POST", "/bucket/new?uploads").status == 403
        assert (tmp_path / "a" / "key").read_bytes() == DATA
