"""Messages between two processes of one machine: whole or not at all, in order, with open files if need be.

A socket pair of SOCK_SEQPACKET: a message is one system call at either end, so that a signal between two of them never
leaves half a message behind. What is larger than a socket takes travels in memory of its own, passed by descriptor.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from typing import Final

from stoker.io.memfd import anonymous_file

_INLINE_MAX_BYTES: Final = 64 << 10  # a third of what a socket holds by default (net.core.wmem_default)
_SPILLED: Final = b"\xc1"  # the message is the first descriptor's content; no msgpack begins with this byte
_FDS_MAX: Final = 8
_FD_BYTES: Final = array.array("i").itemsize
# As numbers: to join two flags of an enumeration costs as much as the call they are for.
_QUIET: Final = int(socket.MSG_NOSIGNAL) | int(socket.MSG_DONTWAIT)
_HEAR: Final = int(socket.MSG_CMSG_CLOEXEC)
_HEAR_NOW: Final = _HEAR | int(socket.MSG_DONTWAIT)
_ANCILLARY_BYTES: Final = _FDS_MAX * _FD_BYTES + 64
# To wait in the call that reads is one system call a message; to ask, to wait and to ask again would be three. A socket
# has one such time, and to change it is a call in itself: what takes longer is waited for with poll.
SOON_S: Final = 0.002
_SOON: Final = struct.pack("@ll", 0, int(SOON_S * 1e6))


class Channel:
    """One end of a pair. Any thread may send; one at a time may receive.

    A forked child of the process must not hold the other side up: it closes all ends that it has inherited.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SOON)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._room = select.poll()
        self._room.register(end, select.POLLOUT)
        self._buffer = bytearray(2 * _INLINE_MAX_BYTES)
        self._buffers = [self._buffer]
        self._view = memoryview(self._buffer)
        _ends.add(self)

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Our end, and the socket that the other process inherits."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    def send(self, message: bytes, fds: Sequence[int] = (), timeout_s: float | None = None) -> bool:
        """Send a message, and copies of the open files `fds`; waits while the other side does not read.

        False if it could not be sent within `timeout_s` (None: for ever). Raises EOFError if the other side is gone, or
        this one is closed.
        """
        if len(message) <= _INLINE_MAX_BYTES:
            return self._send(message, fds, timeout_s)
        spilled = anonymous_file("stoker-message", message)
        try:
            return self._send(_SPILLED, [spilled, *fds], timeout_s)
        finally:
            os.close(spilled)

    def _send(self, message: bytes, fds: Sequence[int], timeout_s: float | None) -> bool:
        if not fds and self.post(message):  # half the price
            return True
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                self._socket.sendmsg([message], rights, _QUIET)
                return True
            except BlockingIOError:
                pass
            except OSError as error:
                raise EOFError from error
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            self._room.poll(None if left_s is None else left_s * 1000)

    def post(self, message: bytes) -> bool:
        """Send a small message if that needs no waiting, and say whether it was sent. Takes no lock, raises nothing:
        callable from anywhere, as from the death of an object in a garbage collection.
        """
        try:
            self._socket.send(message, _QUIET)
        except OSError:
            return False
        return True

    def receive(self, timeout_s: float | None = None) -> tuple[memoryview, list[int]] | None:
        """The next message and the files that came with it; None if there is none after `timeout_s` (None: for ever).

        The message is valid until the next call. Raises EOFError when the other side is gone and all is read.
        """
        if timeout_s == 0:
            return self.receive_soon(_HEAR_NOW)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        found = self.receive_soon(_HEAR if timeout_s is None or timeout_s >= SOON_S else _HEAR_NOW)
        while found is None:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            self._poll.poll(None if left_s is None else left_s * 1000)
            found = self.receive_soon(_HEAR_NOW)
        return found

    def receive_soon(self, flags: int = _HEAR) -> tuple[memoryview, list[int]] | None:
        """As `receive`, of what is there or comes within `SOON_S` (the kernel may take a few ms more)."""
        try:
            count, ancillary, _, _ = self._socket.recvmsg_into(self._buffers, _ANCILLARY_BYTES, flags)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it died with messages of ours unread; what it sent before can still be read
            return self.receive_soon(flags)
        except OSError as error:  # closed here
            raise EOFError from error
        if not count:
            raise EOFError
        message = self._view[:count]
        files: list[int] = []
        if not ancillary:  # as nearly all are
            return message, files
        for _, _, data in ancillary:  # of the one kind that a socket without further options receives
            files += array.array("i", data[: len(data) // _FD_BYTES * _FD_BYTES])
        if count == 1 and message[0] == _SPILLED[0]:
            spilled = files.pop(0)
            try:
                message = memoryview(os.pread(spilled, os.fstat(spilled).st_size, 0))
            finally:
                os.close(spilled)
        return message, files

    def wait_for_end(self) -> None:
        """Return when the other side is gone, or either has shut the channel. For any thread."""
        hung_up = select.poll()
        hung_up.register(self._socket, 0)  # a hang-up is always told
        hung_up.poll()

    def shut(self) -> None:
        """Tell the other side, and a thread of ours that waits here, that this is the end. Takes no lock."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end. No thread may be in `receive`. Idempotent."""
        self._socket.close()


_ends: weakref.WeakSet[Channel] = weakref.WeakSet()


def _close_inherited() -> None:
    """A fork must not keep the channels of its parent open: the other sides would wait for its end as well."""
    for end in list(_ends):
        end.close()


os.register_at_fork(after_in_child=_close_inherited)
