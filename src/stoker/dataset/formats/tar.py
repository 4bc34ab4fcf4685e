"""Tar as stoker writes it: ustar, pax only where ustar cannot say it, nothing that depends on when or by whom. Pure.

A member is a header (512 bytes, or a pax header of 1024 bytes and more before it), the bytes, and zeros up to a
multiple of 512. An archive ends with two blocks of zeros and is not padded to a record of 10 KiB: no reader needs it,
and it would cost 9 KiB a shard.
"""

from __future__ import annotations

from typing import Final

BLOCK_BYTES: Final = 512
TRAILER: Final = bytes(2 * BLOCK_BYTES)

_NAME_BYTES = 100
_PREFIX_BYTES = 155
_OCTAL_SIZE_MAX = 8**11 - 1  # 8 GiB - 1: eleven octal digits
_NUL = b"\x00"
_PAX_NAME = b"././@PaxHeader"


def padding(size: int) -> int:
    """Zeros after `size` bytes of content: 0..511."""
    return -size % BLOCK_BYTES


def member_header(path: str, size: int) -> bytes:
    """Everything before the content of a regular file of `size` bytes stored as `path`.

    Mode 0644, owner 0, mtime 0. A pax header comes first where the path is not ASCII or fits no ustar name, or the
    size takes more than eleven octal digits.
    """
    name, prefix, records = _names(path), b"", b""
    if name is None:
        records += _record("path", path.encode())
        short = path.encode("ascii", "replace")[:_NAME_BYTES].rstrip(b"/")
    else:
        prefix, short = name
    if size > _OCTAL_SIZE_MAX:
        records += _record("size", b"%d" % size)
        size = 0
    header = _block(short, prefix, size, b"0")
    if not records:
        return header
    return _block(_PAX_NAME, b"", len(records), b"x") + records + bytes(padding(len(records))) + header


def member_bytes(path: str, size: int) -> int:
    """Bytes of the whole member: header, content, padding."""
    header = BLOCK_BYTES
    if size > _OCTAL_SIZE_MAX or _names(path) is None:
        header = len(member_header(path, size))
    return header + size + padding(size)


def _names(path: str) -> tuple[bytes, bytes] | None:
    """The (prefix, name) of ustar for a path, cut at the first slash that makes both fit; None if nothing does."""
    if not path.isascii():
        return None
    encoded = path.encode()
    if len(encoded) <= _NAME_BYTES:
        return b"", encoded
    cut = encoded.find(b"/", len(encoded) - _NAME_BYTES - 1)
    if 0 < cut <= _PREFIX_BYTES and cut + 1 < len(encoded):
        return encoded[:cut], encoded[cut + 1 :]
    return None


def _record(keyword: str, value: bytes) -> bytes:
    """One pax record, `LENGTH keyword=value` and a line feed, whose length counts its own digits."""
    body = b" %s=%s\n" % (keyword.encode(), value)
    length = len(body)
    while length != len(body) + len(b"%d" % length):
        length = len(body) + len(b"%d" % length)
    return b"%d" % length + body


def _block(name: bytes, prefix: bytes, size: int, kind: bytes) -> bytes:
    mode, owner, mtime = b"0000644\x00", b"0000000\x00", b"00000000000\x00"
    head = name.ljust(_NAME_BYTES, _NUL) + mode + owner + owner + b"%011o\x00" % size + mtime
    magic, device = b"ustar\x0000", b"0000000\x00"
    tail = kind + bytes(100) + magic + bytes(64) + device + device + prefix.ljust(_PREFIX_BYTES + 12, _NUL)
    checksum = sum(head) + 8 * ord(" ") + sum(tail)
    return head + b"%06o\x00 " % checksum + tail
