"""What tests of several rooms need: a process that modes of files bind."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

_OVERRIDES = (1 << 1) | (1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: capabilities(7)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@pytest.fixture
def obeys_modes() -> Iterator[None]:
    """This thread, and those it starts, may read and write what modes of files allow: as it is for all but root."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(0x20080522, 0), (_Sets * 2)()
    assert libc.capget(ctypes.byref(header), sets) == 0
    held = sets[0].effective & _OVERRIDES
    sets[0].effective &= ~_OVERRIDES
    assert libc.capset(ctypes.byref(header), sets) == 0
    yield
    sets[0].effective |= held
    assert libc.capset(ctypes.byref(header), sets) == 0
