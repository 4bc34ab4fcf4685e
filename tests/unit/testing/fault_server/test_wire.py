"""Requests are taken apart as they are; what is no request is refused."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.testing.fault_server.wire import BadRequest, Gone, Inbound, decode_aws_chunked, parse_head


def inbound(*pieces):
    ours, theirs = socket.socketpair()
    for piece in pieces:
        theirs.sendall(piece)
    theirs.close()
    return ours, Inbound(ours)


def test_a_head_says_bucket_key_query_and_headers():
    request = parse_head(b"GET /bucket/a%20b/%C3%BC?list-type=2&x=&y=a%2Fb HTTP/1.1\r\nHost: h\r\nX-Amz-Meta-A:  B ")
    assert (request.method, request.bucket, request.key) == ("GET", "bucket", "a b/ü")
    assert request.query == {"list-type": "2", "x": "", "y": "a/b"}
    assert request.headers == {"host": "h", "x-amz-meta-a": "B"}
    assert not request.has_body


def test_a_target_may_be_a_whole_url_and_a_key_may_hold_slashes_and_plus():
    assert parse_head(b"GET http://h:1/b//a/+/%2B?q=1 HTTP/1.1").key == "/a/+/+"
    assert parse_head(b"GET / HTTP/1.0").headers == {"connection": "close"}


@pytest.mark.parametrize("text", [b"", b"GET /", b"GET / FTP/1.1", b"GET / HTTP/1.1\r\nno colon", b"GET  / HTTP/1.1"])
def test_what_is_no_head_is_refused(text):
    with pytest.raises(BadRequest):
        parse_head(text)


def test_two_requests_in_one_packet_are_two_and_a_close_in_between_is_the_end():
    ours, stream = inbound(b"PUT /b/1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET /b/2 HTTP/1.1\r\n\r\n")
    with ours:
        first = stream.head()
        stream.body(first)
        assert first.body == b"abc"
        assert stream.head().key == "2"
        assert stream.head() is None


@pytest.mark.parametrize("text", [b"GET /b/1 HTT", b"PUT /b/1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nab"])
def test_a_client_that_leaves_in_the_middle_is_gone(text):
    ours, stream = inbound(text)
    with ours, pytest.raises(Gone):
        stream.body(stream.head())


@pytest.mark.parametrize(
    "text",
    [
        b"Content-Length: x\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 99999999999999\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nffffffffffff\r\nabc",
    ],
)
def test_bodies_whose_length_cannot_be_are_refused_before_memory_is_taken(text):
    ours, stream = inbound(b"PUT /b/1 HTTP/1.1\r\n" + text)
    with ours, pytest.raises(BadRequest):
        stream.body(stream.head())


def test_a_head_without_end_is_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000)
        with pytest.raises(BadRequest, match="too large"):
            Inbound(ours).head()


def test_a_chunked_body_is_put_together_and_its_trailers_are_kept():
    text = b"PUT /b/1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\nrest"
    ours, stream = inbound(text)
    with ours:
        request = stream.head()
        stream.body(request)
        assert (request.body, request.trailers) == (b"abcde", {"a": "b"})


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
def test_what_is_aws_chunked_comes_back(pieces):
    text = b"".join(b"%x;chunk-signature=abc\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    trailers = {}
    assert decode_aws_chunked(text + b"0\r\nx-amz-checksum-crc32:abcd==\r\n\r\n", trailers) == b"".join(pieces)
    assert trailers == {"x-amz-checksum-crc32": "abcd=="}


@pytest.mark.parametrize("text", [b"", b"3\r\nab\r\n0\r\n", b"3\r\nabc\r\n", b"x\r\n"])
def test_a_broken_aws_chunked_body_is_refused(text):
    with pytest.raises(BadRequest):
        decode_aws_chunked(text, {})
