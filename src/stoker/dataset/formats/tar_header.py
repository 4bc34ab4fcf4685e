"""Headers of tar archives as anyone may have made them: what one block, or one extended header, says. Pure.

Read are v7, ustar, GNU, star and pax. Nothing in a header is believed before it is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from stoker.errors import FormatError

SIZE_MAX: Final = 2**62
SPARSE: Final = b"GNU.sparse"

_CHECKSUM = slice(148, 156)
_SIZE = slice(124, 136)
_OCTAL = re.compile(rb"[0-7]*\Z")
_DECIMAL = re.compile(rb"[0-9]{1,19}\Z")
_LENGTH_DIGITS = 20
_COMPRESSED: Final[Mapping[bytes, str]] = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}


class TarHeader(NamedTuple):
    """One header block: the name as it is stored, the size it claims, its type, and whether more blocks follow it."""

    name: bytes
    size: int
    type: bytes
    continued: bool


def parse_block(block: bytes, where: str) -> TarHeader:
    """What a block of 512 bytes says. Raises FormatError if it is not a header, or its numbers are none."""
    _check_sum(block, where)
    magic = block[257:263]
    name = _text(block[:100])
    if magic == b"ustar\0":  # GNU's own magic has times where ustar has the prefix
        prefix = _text(block[345:476] if block[508:512] == b"tar\0" else block[345:500])
        name = prefix + b"/" + name if prefix else name
    kind = block[156:157]
    sparse = kind == b"S" and block[482] != 0
    return TarHeader(name, _number(block[_SIZE], where), kind, sparse)


def parse_pax(data: bytes, where: str) -> dict[bytes, bytes]:
    """The records of a pax header that matter here: `path`, `size`, and a mark for those of sparse files.

    An empty value takes back what an earlier header said. Raises FormatError for what is not a row of records.
    """
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + _LENGTH_DIGITS)
        digits = data[at:space] if space > at else b""
        if not _DECIMAL.match(digits):
            if not data[at:].strip(b"\0"):
                break
            raise FormatError(f"a pax header has no length at its byte {at}", where)
        stop = at + int(digits)
        if not space < stop <= len(data) or data[stop - 1] != ord("\n"):
            raise FormatError(f"a pax record claims {int(digits)} bytes, and does not end there", where)
        keyword, equals, value = data[space + 1 : stop - 1].partition(b"=")
        if not equals:
            raise FormatError(f"a pax record has no '=': {keyword[:40]!r}", where)
        if keyword in (b"path", b"size"):
            found[keyword] = value
        elif keyword.startswith(SPARSE):
            found[SPARSE] = b"1"
        at = stop
    return found


def pax_size(value: bytes, where: str) -> int:
    """The size that a pax record states. Raises FormatError unless it is a number of bytes that can be."""
    if not _DECIMAL.match(value) or int(value) > SIZE_MAX:
        raise FormatError(f"a pax header states an impossible size: {value[:40]!r}", where)
    return int(value)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _check_sum(block: bytes, where: str) -> None:
    """Raise FormatError unless the block's checksum is right, as unsigned or (old tars) as signed bytes."""
    stated = block[_CHECKSUM].strip(b" \0")
    rest = block[: _CHECKSUM.start] + block[_CHECKSUM.stop :]
    total = sum(rest) + 8 * ord(" ")
    if stated and _OCTAL.match(stated):
        signed = total - 256 * sum(byte > 127 for byte in rest)  # noqa: PLR2004  the sign bit
        if int(stated, 8) in (total, signed):
            return
    for magic, name in _COMPRESSED.items():
        if block.startswith(magic):
            raise FormatError(f"not a tar archive but {name}", where, "unpack it, then index or pack what is in it")
    raise FormatError("not a tar header: its checksum is wrong", where, "the archive is damaged, or is no tar")


def _number(field: bytes, where: str) -> int:
    """A size: octal digits, or base 256 where the first bit is set. Raises FormatError if it is negative or absurd."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40 or value > SIZE_MAX:
            raise FormatError(f"a header states an impossible size: {field.hex()}", where)
        return value
    text = field.partition(b"\0")[0].strip(b" ")
    if not _OCTAL.match(text):
        raise FormatError(f"a header states an impossible size: {field!r}", where)
    return int(text or b"0", 8)
