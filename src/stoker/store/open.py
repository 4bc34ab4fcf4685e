"""A URL or a path becomes a store."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from stoker.config_values import user_path
from stoker.errors import ConfigError
from stoker.store.base import Store
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryContents, MemoryStore

if TYPE_CHECKING:
    from stoker.config import ObjectTier
    from stoker.store.object_options import ObjectOptions
    from stoker.store.retry import RetryStore

KNOWN: Final = "a path, file:///PATH, s3://BUCKET/PREFIX or memory://NAME"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_memories: dict[str, MemoryContents] = {}
_memories_lock = threading.Lock()


def open_store(url: str | Path, settings: ObjectTier | None = None) -> Store:
    """The store at `url`: a path, `file:///PATH`, `s3://BUCKET/PREFIX`, or `memory://NAME` (the same objects for one
    name in a process).

    In a path, a leading `~` is the home directory. A directory need not exist: reads then raise NotFound, and the first
    write makes it. A bucket must; how it is reached `settings` say, and else the usual AWS variables. Raises
    ConfigError for any other scheme, naming the known ones.
    """
    if isinstance(url, Path):
        return LocalStore(user_path(url))
    if not url:
        raise ConfigError("an empty text is not the URL of a store", hint=f"give {KNOWN}")
    match = _SCHEME.match(url)
    if match is None:
        return LocalStore(user_path(url))
    scheme = match[1].lower()
    if scheme == "file":
        return LocalStore(_file_path(url))
    if scheme == "memory":
        return _open_memory(url)
    if scheme == "s3":
        from stoker.store.object_options import ObjectOptions  # noqa: PLC0415  20 ms that local files need not wait for

        return open_object(url, ObjectOptions.from_environ(os.environ, settings))
    raise ConfigError(f"unknown scheme {scheme!r} in the URL of a store", where=url, hint=f"give {KNOWN}")


def open_object(url: str, options: ObjectOptions) -> RetryStore:
    """The store at `url`, `s3://BUCKET/PREFIX`, reached as `options` say; requests are repeated as they say.

    Raises ConfigError for a URL or a combination that cannot work. Nothing is asked of the server yet.
    """
    from stoker.store.object import ObjectStore  # noqa: PLC0415  as above
    from stoker.store.retry import RetryPolicy, RetryStore  # noqa: PLC0415

    store = ObjectStore(url, options)
    return RetryStore(store, RetryPolicy(attempts=options.attempts), settles=True)


def _file_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path or parts.query or parts.fragment:
        raise ConfigError("not the URL of a local directory", where=url, hint="write it as file:///absolute/path")
    return Path(unquote(parts.path))


def _open_memory(url: str) -> MemoryStore:
    name = url.partition("://")[2]
    if not name:
        raise ConfigError("a memory store needs a name", where=url, hint="write it as memory://NAME")
    with _memories_lock:
        return MemoryStore(name, _memories.setdefault(name, MemoryContents()))
