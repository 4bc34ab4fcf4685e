"""Where the file of settings is, and whether it may be believed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stoker.errors import ConfigError
from stoker.units import MIB, format_bytes

FILE_NAME: Final = "stoker.toml"
FILE_VARIABLE: Final = "STOKER_CONFIG"
MAX_FILE_BYTES: Final = MIB

_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_warned: set[str] = set()


def find_file(environ: Mapping[str, str], directory: Path, uid: int) -> tuple[Path, str] | None:
    """The file of settings for a process of user `uid` in `directory`, with its text; None if there is none.

    `$STOKER_CONFIG` (set but empty: none), else `stoker.toml` in `directory`, else `stoker/stoker.toml` in
    `$XDG_CONFIG_HOME` (`~/.config` without it). It is read only if it is a regular file of that user, and no link, that
    nobody else may write to, and at most 1 MiB of UTF-8. Otherwise a file that was named raises ConfigError; one that
    only happens to lie there, as anybody's may in a shared folder, is passed over with one warning.
    """
    if FILE_VARIABLE in environ:
        named = environ[FILE_VARIABLE]
        return _named_file(directory / named, uid) if named else None
    home = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else None)
    places = [directory / FILE_NAME, *([Path(home) / "stoker" / FILE_NAME] if home else [])]
    for path in places:
        text, problem = _read_file(path, uid)
        if text is not None:
            return path, text
        if problem and str(path) not in _warned:
            _warned.add(str(path))
            import logging  # noqa: PLC0415  3 ms that only who is warned waits for

            logging.getLogger("stoker.config").warning(
                "%s is not read: %s; repair it, or name another file in %s", path, problem, FILE_VARIABLE
            )
    return None


def _named_file(path: Path, uid: int) -> tuple[Path, str]:
    text, problem = _read_file(path, uid)
    if text is None:
        raise ConfigError(
            f"the file of settings cannot be used: {problem or 'it is not there'}",
            f"{path} (environment {FILE_VARIABLE})",
        )
    return path, text


def _read_file(path: Path, uid: int) -> tuple[str | None, str]:
    """(text, ""), or (None, what is wrong with the file; "" if there is none)."""
    try:
        fd = os.open(path, _OPEN_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as error:
        link = " (a link is not followed)" if error.errno == errno.ELOOP else ""
        return None, f"{(error.strerror or str(error)).lower()}{link}"
    try:
        problem = _distrust(os.fstat(fd), uid)
        if problem:
            return None, problem
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        return None, f"it is larger than {format_bytes(MAX_FILE_BYTES)}"
    try:
        return data.decode(), ""
    except UnicodeDecodeError as error:
        return None, f"it is not UTF-8 at byte {error.start}"


def _distrust(state: os.stat_result, uid: int) -> str:
    """Why a file is not believed, or ""."""
    if not stat.S_ISREG(state.st_mode):
        return "it is not a regular file"
    if state.st_uid != uid:
        return f"it belongs to user {state.st_uid}, not to {uid}"
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {stat.S_IMODE(state.st_mode):04o}): chmod go-w"
    return ""
