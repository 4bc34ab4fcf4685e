"""Checksums: crc32c for what is read often, xxh3_128 for what is kept. The only importer of crc32c and xxhash.

Both run at more than 8 GB/s on one core. A one-shot xxhash call holds the interpreter lock, `update` does not, so
digests here are always taken through `update`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any, Final

import xxhash

from stoker.io.buffers import ReadBuffer, view
from stoker.units import MIB

CHUNK_BYTES: Final = 4 * MIB


def _load_crc32c() -> Any:
    """crc32c's extension module alone: the package around it loads argparse, email and importlib.metadata, to know its
    own version, which takes 15 ms of each process that is started.
    """
    package = None if "crc32c" in sys.modules else PathFinder.find_spec("crc32c")
    inner = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if inner is None or inner.loader is None:  # found by other means, as in a zip file, or built another way
        import crc32c  # noqa: PLC0415

        return crc32c
    module = module_from_spec(inner)
    inner.loader.exec_module(module)
    return module


_crc32c: Final[Callable[..., int]] = _load_crc32c().crc32c

# The same as below for a flat view of bytes, without anything around it: for loops over small ones.
crc32c_of_view: Final[Callable[[memoryview], int]] = _crc32c


def crc32c(data: ReadBuffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of `data`, continuing from `value`; 0..2^32-1."""
    return int(_crc32c(view(data), value))


def xxh3_128(data: ReadBuffer) -> str:
    """xxh3_128 of `data` with seed 0: 32 hex digits, big-endian as xxhash prints it."""
    digest = xxhash.xxh3_128()
    digest.update(view(data))
    return digest.hexdigest()


def chunk_digests(data: memoryview) -> Iterator[str]:
    """The xxh3_128 of each 4 MiB chunk of `data` (the last may be shorter); nothing for no bytes."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield xxh3_128(data[start : start + CHUNK_BYTES])


def root_digest(chunks: Iterable[str]) -> str:
    """xxh3_128 over the chunk digests (their 16 raw bytes, in order): the digest of a whole file."""
    digest = xxhash.xxh3_128()
    for chunk in chunks:
        digest.update(bytes.fromhex(chunk))
    return digest.hexdigest()
