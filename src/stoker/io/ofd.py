"""Open-file-description locks: held by an open file, dropped by the kernel when the last descriptor of it goes.

Unlike POSIX record locks they do not vanish when some other part of the process closes the same file, and two openings
in one process exclude each other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Final

_UNSUPPORTED: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_HELD: Final = frozenset({errno.EAGAIN, errno.EACCES})


def _flock(kind: int) -> bytes:
    """`struct flock` over the whole file, in the layout of 64-bit Linux."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)


def try_lock(fd: int) -> bool:
    """Take the exclusive lock of the file open for writing at `fd` without waiting; False if another holds it.

    Raises OSError; `is_unsupported` tells whether the file system has no locks.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


def unlock(fd: int) -> None:
    """Give the lock back, also for forked children that share the open file."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK))


def is_unsupported(error: OSError) -> bool:
    """Whether `error`, from `try_lock`, says that the file system has no locks (Lustre mounted without flock, ...)."""
    return error.errno in _UNSUPPORTED
