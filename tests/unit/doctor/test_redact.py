"""The redactor: nothing private stays, the form does, and the same becomes the same."""

from __future__ import annotations

import pytest

from stoker.doctor.redact import Redactor

PRIVATE = {
    "nas7.example.com:/x at 10.20.30.40": "10.20.30.40",
    "traddr=192.168.7.9,trsvcid=4420": "192.168.7.9",
    "peer fd12:3456:789a::17 up": "fd12:3456:789a::17",
    "link/ether b8:ce:f6:12:34:56 brd": "b8:ce:f6:12:34:56",
    "node guid: 0xb8cef60300123456": "b8cef60300123456",
    "uuid:6f1c0e1a-1234-5678-9abc-def012345678": "6f1c0e1a-1234-5678-9abc-def012345678",
    "GPU 0(UUID: 0123456789abcdef0123456789abcdef)": "0123456789abcdef0123456789abcdef",
    "nqn.2014-08.org.nvmexpress:uuid:abc": "org.nvmexpress",
    '"SerialNumber" : "S64HNE0R400123",': "S64HNE0R400123",
    "ID_SERIAL_SHORT=S64HNE0R": "S64HNE0R",
    "wwid:eui.0025385b01234567": "0025385b01234567",
    "s3://acme-secret-data/train": "acme-secret-data",
    "AWS_SECRET_ACCESS_KEY=abc/def+ghi": "abc/def+ghi",
    '"rdma_dc_key": "0xffeeddcc",': "0xffeeddcc",
    "/hom" + "e/alice/cufile.json": "alice",
    "https://user:pw@minio.acme.corp:9000/x": "acme",
    "gpu-node-17 booted": "gpu-node-17",
}


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_private_is_replaced(text):
    redacted = Redactor(["gpu-node-17"])(text)
    assert PRIVATE[text] not in redacted


@pytest.mark.parametrize(
    "text",
    [
        "GDS release version: 1.16.0.49",
        "GPU 0000:8b:00.0 numa 1",
        "node:127.0.0.1",
        "22 27 0:21 / /proc rw,relatime - proc proc rw",
        "Reads				: n=1000 ok=1000 err=0 readMiB=1000",
        "29-11-2026 15:31:15:489 [pid=812 tid=812] WARN",
        "nvme0n1 259:0 0 0 0",
    ],
)
def test_what_is_not_private_stays(text):
    assert Redactor(["host"])(text) == text


@pytest.mark.parametrize("text", PRIVATE)
def test_redacting_again_with_the_same_redactor_changes_nothing(text):
    redact = Redactor(["gpu-node-17"])
    once = redact(text)
    assert redact(once) == once


def test_the_same_becomes_the_same_and_another_another():
    redact = Redactor()
    assert redact("10.0.0.1 10.0.0.2 10.0.0.1") == "192.0.2.1 192.0.2.2 192.0.2.1"


def test_an_address_that_is_one_of_the_replacements_is_not_mixed_up():
    first, second = Redactor()("10.0.0.1 192.0.2.1").split()
    assert first != second
