"""Stock clients work against the server: boto3 and obstore."""

from __future__ import annotations

import hashlib

import pytest

from stoker.testing.fault_server import (
    Answer,
    Cut,
    FaultServer,
    First,
    IgnoreCondition,
    Reset,
    Rule,
    Script,
    WrongETag,
)

MIB = 1 << 20


@pytest.fixture
def paged():
    with FaultServer(page_keys=3) as server:
        yield server


@pytest.fixture
def boto():
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    config = pytest.importorskip("botocore.config")

    def make(server, attempts=1):
        named = {
            "endpoint_url": server.url,
            "region_name": "us-east-1",
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
        }
        retries = {"total_max_attempts": attempts, "mode": "standard"}
        client = boto3.client("s3", config=config.Config(retries=retries), **named)
        made.append(client)
        return client

    made = []
    yield make
    for client in made:
        client.close()


def code_of(call, **named):
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError) as caught:
        call(Bucket="bucket", **named)
    return caught.value.response["Error"]["Code"], caught.value.response["ResponseMetadata"]["HTTPStatusCode"]


def test_boto3_puts_gets_and_deletes(server, boto):
    client, data = boto(server), bytes(range(256)) * 100
    put = client.put_object(Bucket="bucket", Key="a b/ü+&", Body=data, Metadata={"who": "me"}, ContentType="text/x")
    assert put["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
    got = client.get_object(Bucket="bucket", Key="a b/ü+&")
    assert (got["Body"].read(), got["Metadata"], got["ContentType"]) == (data, {"who": "me"}, "text/x")
    ranged = client.get_object(Bucket="bucket", Key="a b/ü+&", Range="bytes=-10")
    assert (ranged["Body"].read(), ranged["ContentRange"]) == (data[-10:], "bytes 25590-25599/25600")
    assert client.head_object(Bucket="bucket", Key="a b/ü+&")["ContentLength"] == len(data)
    client.delete_object(Bucket="bucket", Key="a b/ü+&")
    assert code_of(client.get_object, Key="a b/ü+&") == ("NoSuchKey", 404)
    assert code_of(client.head_object, Key="a b/ü+&") == ("404", 404)


def test_boto3_streams_in_chunks_with_a_checksum_behind(server, boto, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(300_000))
    client = boto(server)
    with path.open("rb") as file:
        client.put_object(Bucket="bucket", Key="key", Body=file, ChecksumAlgorithm="CRC32")
    assert server.get("key") == bytes(300_000)


def test_boto3_sees_every_page_once(paged, boto):
    names = [f"a/{number:02}" for number in range(10)] + ["b/1", "b/2", "c", "ü &<>"]
    for name in names:
        paged.put(name, b"1")
    client = boto(paged)
    pages = list(client.get_paginator("list_objects_v2").paginate(Bucket="bucket"))
    assert [item["Key"] for page in pages for item in page["Contents"]] == names
    assert [page["KeyCount"] for page in pages] == [3, 3, 3, 3, 2]
    folders = list(client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Delimiter="/"))
    assert [item["Prefix"] for page in folders for item in page.get("CommonPrefixes", [])] == ["a/", "b/"]
    assert [item["Key"] for page in folders for item in page.get("Contents", [])] == ["c", "ü &<>"]
    assert len(paged.requests("ListObjectsV2")) == 7
    done = client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": name} for name in names[:12]]})
    assert (len(done["Deleted"]), paged.keys()) == (12, ["c", "ü &<>"])


def test_boto3_uploads_in_parts(server, boto):
    client = boto(server)
    upload = client.create_multipart_upload(Bucket="bucket", Key="key", Metadata={"who": "me"})["UploadId"]
    named = {"Bucket": "bucket", "Key": "key", "UploadId": upload}
    pieces = [bytes([number]) * (5 * MIB) for number in (1, 2)] + [b"end"]
    parts = [
        {"PartNumber": number, "ETag": client.upload_part(PartNumber=number, Body=piece, **named)["ETag"]}
        for number, piece in enumerate(pieces, 1)
    ]
    assert [part["Size"] for part in client.list_parts(**named)["Parts"]] == [5 * MIB, 5 * MIB, 3]
    assert client.list_multipart_uploads(Bucket="bucket")["Uploads"][0]["UploadId"] == upload
    done = client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **named)
    assert done["ETag"].endswith('-3"')
    assert server.get("key") == b"".join(pieces)
    assert client.head_object(Bucket="bucket", Key="key")["Metadata"] == {"who": "me"}
    assert "Uploads" not in client.list_multipart_uploads(Bucket="bucket")
    upload = client.create_multipart_upload(Bucket="bucket", Key="key")["UploadId"]
    client.abort_multipart_upload(Bucket="bucket", Key="key", UploadId=upload)
    assert code_of(client.list_parts, Key="key", UploadId=upload) == ("NoSuchUpload", 404)


def test_boto3_conditions_hold_or_are_ignored_by_script(server, boto):
    client = boto(server)
    etag = client.put_object(Bucket="bucket", Key="key", Body=b"1", IfNoneMatch="*")["ETag"]
    assert code_of(client.put_object, Key="key", Body=b"2", IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert code_of(client.put_object, Key="key", Body=b"2", IfMatch='"x"') == ("PreconditionFailed", 412)
    client.put_object(Bucket="bucket", Key="key", Body=b"3", IfMatch=etag)
    assert code_of(client.get_object, Key="key", IfMatch=etag) == ("PreconditionFailed", 412)
    server.play(Script((Rule(IgnoreCondition()),)))
    client.put_object(Bucket="bucket", Key="key", Body=b"4", IfNoneMatch="*")
    assert server.get("key") == b"4"


def test_boto3_meets_faults(server, boto):
    from botocore.exceptions import ConnectionClosedError, ResponseStreamingError

    server.put("key", b"12345")
    server.play(Script((Rule(Answer(), First(2)), Rule(Reset(), First(1)), Rule(Cut(2), First(1)), Rule(WrongETag()))))
    assert code_of(boto(server).get_object, Key="key") == ("SlowDown", 503)
    assert code_of(boto(server).get_object, Key="key") == ("SlowDown", 503)
    with pytest.raises(ConnectionClosedError):
        boto(server).get_object(Bucket="bucket", Key="key")
    with pytest.raises(ResponseStreamingError):
        boto(server).get_object(Bucket="bucket", Key="key")["Body"].read()
    assert boto(server).get_object(Bucket="bucket", Key="key")["ETag"] == f'"{"0" * 32}"'
    assert len(server.requests()) == 5


def test_boto3_retries_are_counted_exactly(server, boto):
    server.put("key", b"12345")
    server.play(Script((Rule(Answer(), First(1)),)))
    assert boto(server, attempts=3).get_object(Bucket="bucket", Key="key")["Body"].read() == b"12345"
    assert [record.status for record in server.requests("GetObject")] == [503, 200]


@pytest.fixture
def obstore():
    return pytest.importorskip("obstore", reason="obstore is not installed")


@pytest.fixture
def bucket_of(obstore):
    def make(server, retries=0):
        from obstore.store import S3Store

        return S3Store(
            server.bucket,
            config={
                "aws_endpoint": server.url,
                "access_key_id": "key",
                "secret_access_key": "secret",
                "region": "us-east-1",
            },
            client_options={"allow_http": True},
            retry_config={"max_retries": retries},
        )

    return make


def test_obstore_puts_gets_lists_and_deletes(paged, obstore, bucket_of):
    bucket, data = bucket_of(paged), bytes(range(256)) * 100
    names = [f"a/{number}" for number in range(7)] + ["space in name", "ünï/日本", "ü&<>'\"", "a%2Fb"]
    for name in names:
        assert obstore.put(bucket, name, data)["e_tag"] == f'"{hashlib.md5(data).hexdigest()}"'
    assert paged.keys() == sorted(names)
    assert {meta["path"] for page in obstore.list(bucket) for meta in page} == set(names)
    assert len(paged.requests("ListObjectsV2")) == 4
    assert obstore.get(bucket, names[8]).bytes() == data
    assert obstore.get_range(bucket, "a/1", start=10, end=20) == data[10:20]
    assert obstore.get(bucket, "a/1", options={"range": {"suffix": 5}}).bytes() == data[-5:]
    assert obstore.head(bucket, "a/1")["size"] == len(data)
    obstore.delete(bucket, names)
    assert paged.keys() == []
    assert len(paged.requests("DeleteObjects")) == 1
    with pytest.raises(FileNotFoundError):
        obstore.get(bucket, "a/1")


def test_obstore_uploads_in_parts(server, obstore, bucket_of):
    data = bytes(range(256)) * (12 * MIB // 256)
    obstore.put(bucket_of(server), "key", data, chunk_size=5 * MIB, use_multipart=True)
    assert server.get("key") == data
    assert len(server.requests("UploadPart")) == 3
    file = obstore.open_writer(bucket_of(server), "cut", buffer_size=5 * MIB)
    file.write(data)
    with pytest.raises(RuntimeError), file:
        raise RuntimeError
    assert len(server.requests("AbortMultipartUpload")) == 1
    assert server.keys() == ["key"]


def test_obstore_creates_if_nothing_is_there(server, obstore, bucket_of):
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    bucket = bucket_of(server)
    first = obstore.put(bucket, "key", b"1", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(bucket, "key", b"2", mode="create")
    obstore.put(bucket, "key", b"3", mode={"e_tag": first["e_tag"]})
    with pytest.raises(PreconditionError):
        obstore.get(bucket, "key", options={"if_match": first["e_tag"]})
    assert server.get("key") == b"3"


def test_obstore_retries_are_counted_exactly(server, obstore, bucket_of):
    server.put("key", b"12345")
    server.play(Script((Rule(Answer(), First(2)),)))
    assert obstore.get(bucket_of(server, retries=3), "key").bytes() == b"12345"
    assert [record.status for record in server.requests()] == [503, 503, 200]
