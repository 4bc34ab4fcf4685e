"""Files without a place (memfd): what shared memory, and messages that are too large, lie in. Without numpy."""

from __future__ import annotations

import errno
import os
from typing import Final

from stoker.errors import CapacityError, UnsupportedError
from stoker.units import format_bytes

_LEAST_BYTES: Final = 64  # a file of nothing cannot be mapped


def anonymous_file(name: str, content: bytes = b"") -> int:
    """An open file without a place, with this content, read from its beginning on."""
    fd = make_memfd(name, 0)
    try:
        os.ftruncate(fd, 0)
        left = memoryview(content)
        while left:
            left = left[os.pwrite(fd, left, len(content) - len(left)) :]
    except OSError as error:
        os.close(fd)
        raise refused(error, len(content)) from error
    return fd


def make_memfd(name: str, size_bytes: int) -> int:
    """An open file of that size, all zeros, that is in no file system. Raises CapacityError, UnsupportedError."""
    if not hasattr(os, "memfd_create"):
        raise UnsupportedError("this platform has no memfd", hint="stoker runs on Linux")
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        raise refused(error, size_bytes) from error
    try:
        resize(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def resize(fd: int, size_bytes: int) -> None:
    """Make such a file larger. Raises CapacityError, UnsupportedError."""
    try:
        os.ftruncate(fd, max(size_bytes, _LEAST_BYTES))
    except (OSError, OverflowError) as error:
        raise refused(error, size_bytes) from error


def refused(error: OSError | OverflowError, size_bytes: int) -> CapacityError | UnsupportedError:
    """The error for memory that the system does not give."""
    code = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(code).lower() if code else str(error)
    if code in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return UnsupportedError(
            f"this process may have no shared memory: {reason}",
            hint="a sandbox (seccomp, gVisor) must allow memfd_create, and ftruncate and mmap of what it gives",
        )
    if code in (errno.EMFILE, errno.ENFILE):
        return CapacityError(f"no shared memory: {reason}", hint="raise the limit of open files (ulimit -n)")
    if code == errno.EFBIG:
        what = f"no shared memory of {format_bytes(size_bytes)}: {reason}"
        return CapacityError(what, hint="raise the limit of file sizes (ulimit -f)")
    return CapacityError(
        f"no address space for {format_bytes(size_bytes)} of shared memory: {reason}",
        hint="ask for less, or raise the limit of virtual memory (ulimit -v)",
    )
