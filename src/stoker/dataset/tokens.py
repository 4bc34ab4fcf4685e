"""`open_tokens`: files of tokens as a data set of windows. No index, no table: everything follows from the sizes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.distinct import distinct
from stoker.dataset.layout import Int64s, choose_block_bytes
from stoker.dataset.manifest import FieldSchema
from stoker.dataset.objects import ObjectTable, check_version
from stoker.dataset.open import NO_CHECKSUM, Extents
from stoker.dataset.readable import Namer
from stoker.dataset.select import Address, find_objects, parse_address
from stoker.dataset.windows import TOKENS, TokenWindows, WindowBlocks
from stoker.errors import DatasetError, EmptyDataset, naming
from stoker.io.os_errors import translating
from stoker.store.base import Store
from stoker.store.open import open_store
from stoker.values import ObjectInfo

BIN_SUFFIX: Final = ".bin"

_log = logging.getLogger("stoker.dataset")


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What a data set of token windows is: `Manifest` for data that have none.

    Attributes:
        windows: how the files are cut.
        sample_count: windows in all files, at least 1.
        object_count: files with at least one window.
        short_count: files that hold none.
        token_count: tokens in all files.
        dropped_count: those that are in no window, at the ends of files.
        block_bytes: by the rule of formats.md 1, from the bytes that windows cover.
        digest: of the cut, and of the key, size and version of every file.
    """

    windows: TokenWindows
    sample_count: int
    object_count: int
    short_count: int
    token_count: int
    dropped_count: int
    block_bytes: int
    digest: str

    @property
    def fields(self) -> tuple[FieldSchema, ...]:
        """The one field, `tokens`."""
        size = self.windows.window_bytes
        return (FieldSchema(TOKENS, self.sample_count, self.sample_count * size, size),)


class OpenTokens:
    """Windows of token files that can be read: what `OpenDataset` is for other data. Immutable, thread-safe.

    Memory: what the names of the files take, and one column of the blocks when it is asked for. The bytes have no
    checksums; each file is held to the size and version it had when it was listed, with one stat when it is first used.
    """

    def __init__(self, store: Store, windows: TokenWindows, files: Sequence[ObjectInfo]) -> None:
        self.store = store
        self.windows = windows
        with naming(store.url):
            tokens = np.array([windows.count_tokens(file.key, file.size_bytes) for file in files], np.int64)
        counts = windows.count_windows(tokens)
        kept = np.flatnonzero(counts)
        if not len(kept):
            longest = int(tokens.max(initial=0))
            what = f"no file holds a window of {windows.length:,} tokens: the longest of {len(files)} has {longest:,}"
            raise EmptyDataset(what, store.url, "lower seq_len, or name other files")
        counts = counts[kept]
        covered = counts * windows.seq_len + windows.overlap
        self.objects = ObjectTable(
            keys=tuple(files[index].key for index in kept.tolist()),
            size_bytes=np.array([files[index].size_bytes for index in kept.tolist()], np.int64),
            first_sample=np.cumsum(counts) - counts,
            sample_count=counts,
            offsets_sha256=(),
            versions=tuple(files[index].version for index in kept.tolist()),
        )
        self.manifest = TokenFacts(
            windows=windows,
            sample_count=int(counts.sum()),
            object_count=len(kept),
            short_count=len(files) - len(kept),
            token_count=int(tokens.sum()),
            dropped_count=int(tokens.sum() - covered.sum()),
            block_bytes=choose_block_bytes(int(windows.extent(counts).sum())),
            digest=windows.digest(files),
        )
        self.blocks = WindowBlocks(windows, counts, self.manifest.block_bytes)
        nothing = np.zeros((0, 0), np.int64)
        self._equal: tuple[Int64s, Int64s] = nothing, nothing
        self._lock = threading.Lock()
        self._all_checked = False
        self._checked: NDArray[np.bool_] = np.zeros(len(kept), np.bool_)

    @property
    def readable(self) -> NDArray[np.bool_]:
        """bool[objects]: one read may reach across the windows of any file."""
        return np.ones(len(self.objects), np.bool_)

    @property
    def namer(self) -> Namer:
        """`keys`: they follow from the numbers of windows."""
        return self.keys

    def load(self, index: int, fields: tuple[str, ...]) -> None:
        """Compare a file with the listing ahead of `find`, if that was not done. Raises as `extents` does."""
        self._check_fields(fields)
        self._check_objects(np.array([index], np.int64))

    def find(self, samples: Int64s, fields: tuple[str, ...]) -> tuple[Extents, NDArray[np.uint8], Int64s]:
        """What `extents` and `key_bytes` say. Raises as `extents` does."""
        return (self.extents(samples, fields), *self.key_bytes(samples))

    def extents(self, samples: Int64s, fields: Sequence[str]) -> Extents:
        """Where `samples` (int64[n], any order, repeats allowed) lie. Costs arithmetic.

        A file that is used for the first time is compared with the listing: one stat. Raises SourceChanged, StoreError;
        DatasetError for another field than `tokens`, or a sample that does not exist.
        """
        objects, windows = self._locate(samples)
        self._check_fields(fields)
        if not self._all_checked:
            self._check_objects(objects)
        starts = windows * self.windows.stride_bytes
        starts += self.windows.header_bytes
        offsets = starts.reshape(-1, 1) if len(fields) == 1 else starts.repeat(len(fields)).reshape(-1, len(fields))
        return Extents(objects, offsets, *self._constants(len(samples), len(fields)), self.windows.window_bytes)

    def _constants(self, count: int, width: int) -> tuple[Int64s, Int64s]:
        """Sizes and checksums, int64[n, f] each: the same arrays as long as batches are of one size."""
        known = self._equal
        if known[0].shape != (count, width):
            sizes = np.full((count, width), self.windows.window_bytes, np.int64)
            crc32cs = np.full((count, width), NO_CHECKSUM, np.int64)
            sizes.flags.writeable = crc32cs.flags.writeable = False
            self._equal = known = sizes, crc32cs
        return known

    def key_bytes(self, samples: Int64s) -> tuple[NDArray[np.uint8], Int64s]:
        """Keys of `samples` (int64[n]): their UTF-8 bytes end to end, and int64[n + 1] offsets into them."""
        keys = self.keys(samples)
        text = "".join(keys)
        sizes = map(len, keys) if text.isascii() else (len(key.encode()) for key in keys)
        offsets = np.zeros(len(keys) + 1, np.int64)
        np.cumsum(np.fromiter(sizes, np.int64, len(keys)), out=offsets[1:])
        return np.frombuffer(text.encode(), np.uint8), offsets

    def keys(self, samples: Int64s) -> list[str]:
        """`FILE#WINDOW` of `samples` (int64[n]), windows counted from 0 in each file."""
        objects, windows = self._locate(samples)
        names = self.objects.keys
        return [f"{names[index]}#{window}" for index, window in zip(objects.tolist(), windows.tolist(), strict=True)]

    def largest_batch_bytes(self, fields: Sequence[str], sample_count: int, *, exact: bool = False) -> int:
        """The bytes of `sample_count` windows: all are equal."""
        del exact
        self._check_fields(fields)
        return sample_count * self.windows.window_bytes * len(fields)

    def _locate(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """The object of each sample, and its window there."""
        count = self.manifest.sample_count
        if len(samples) and int(samples.view(np.uint64).max()) >= count:  # a negative one is very large
            odd = samples[(samples < 0) | (samples >= count)][0]
            raise DatasetError(f"there is no window {odd}: the data set has {count}", self.store.url)
        first = self.objects.first_sample
        objects = first.searchsorted(samples, "right") - 1
        return objects, samples - first[objects]

    def _check_fields(self, fields: Sequence[str]) -> None:
        odd = [field for field in fields if field != TOKENS]
        if odd:
            what = f"the data set has no field {', '.join(map(repr, odd))}"
            raise DatasetError(what, self.store.url, f"it has {TOKENS!r}")

    def _check_objects(self, objects: Int64s) -> None:
        """Raise SourceChanged unless these objects are those that were listed; one stat each, the first time."""
        if self._checked[objects].all():
            self._all_checked = bool(self._checked.all())
            return
        for index in distinct(objects[~self._checked[objects]]).tolist():
            size, version = int(self.objects.size_bytes[index]), self.objects.versions[index]
            check_version(self.store, self.objects.keys[index], size, version, seen="listed", hint=_CHANGED)
            with self._lock:
                self._checked[index] = True


_CHANGED: Final = "a run needs data that stay as they are: start again, with the files as they are now"


def open_tokens(source: str | Path | Store, windows: TokenWindows, stack: ExitStack) -> OpenTokens:
    """Open the token files that `source` names: one file, a pattern, or all `*.bin` in a folder or store.

    `stack` closes the store that is opened here. Costs one listing, and memory for the names. Raises NotFound,
    EmptyDataset if no file holds a window, FormatError for a size that cannot be, ConfigError, StoreError.
    """
    if isinstance(source, Store):
        return _open(source, _list_bins(source, ""), windows)
    address = _parse(source)
    store = stack.enter_context(closing(open_store(address.base)))
    return _open(store, _list_bins(store, address.pattern), windows)


def _parse(source: str | Path) -> Address:
    """As `parse_address`; a local file is itself, whatever its name."""
    path = Path(source)
    if "://" not in str(source):
        with translating("cannot look for the file", path):
            is_file = path.is_file()
        if is_file:
            return Address(str(path.parent), path.name)
    return parse_address(source, BIN_SUFFIX)


def _list_bins(store: Store, pattern: str) -> list[ObjectInfo]:
    files = find_objects(store, pattern)
    if pattern:
        return files
    found = [file for file in files if file.key.endswith(BIN_SUFFIX)]
    if not found:
        what = f"there is no {BIN_SUFFIX} file among {len(files)}"
        raise EmptyDataset(what, store.url, "name the files: a pattern takes any name, such as 'shards/*.tok'")
    return found


def _open(store: Store, files: Sequence[ObjectInfo], windows: TokenWindows) -> OpenTokens:
    opened = OpenTokens(store, windows, files)
    facts = opened.manifest
    _log.info(
        "%s: %d windows of %d tokens in %d files; %d of %d tokens are in none, and %d files hold none",
        *(store.url, facts.sample_count, windows.length, facts.object_count),
        *(facts.dropped_count, facts.token_count, facts.short_count),
    )
    return opened
