"""The folder a data set is packed from: which files it holds, and what samples they make."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Final, NamedTuple

from stoker.dataset.names import FIELD_LIMIT, is_meta, is_reserved_field, split_path
from stoker.dataset.shard import Member
from stoker.errors import DatasetError, EmptyDataset, NotFound
from stoker.io.os_errors import translating

_EXAMPLES: Final = 3
_NEVER: Final = "(?!)"

_log = logging.getLogger("stoker.dataset")


class SourceFile(NamedTuple):
    """A file to pack: its path below the source, and its size and modification time when it was listed."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """What is to be packed, in the order of the shards.

    Attributes:
        root: the source folder.
        keys: of the samples.
        starts: where the members of each sample begin in `files` and `members`, and their number at the end.
        files, members: one an entry, the same index for the same file.
        digest: sha256, in hex, of paths, sizes and modification times.
        skipped_count: entries that are neither regular files nor links to one.
    """

    root: Path
    keys: list[str]
    starts: list[int]
    files: list[SourceFile]
    members: list[Member]
    digest: str
    skipped_count: int


def list_source(root: Path, include: Sequence[str], exclude: Sequence[str], prefix: str) -> Listing:
    """List the files under `root` once and arrange them into samples.

    A file is taken if a glob of `include` matches (or there is none) and no glob of `exclude` does. A glob with a
    slash is for the path below `root`, and its `*` matches slashes too; one without is for the base name. Links to
    files are followed, links to folders are not.

    Raises DatasetError for what cannot be packed, with counts, examples and a hint; EmptyDataset if no file is left;
    NotFound, AccessDenied. Costs one stat a file.
    """
    with translating("cannot look into the folder", root):
        kind = "" if root.is_dir() else "not a folder" if root.exists() else "there is no such folder"
    if kind:
        raise NotFound(f"cannot pack {str(root)!r}: {kind}", hint="give the folder that holds the files")
    wanted, unwanted = Globs(include), Globs(exclude)
    files: list[SourceFile] = []
    seen = skipped = 0
    for entry, path in _walk(root):
        seen += 1
        if (include and not wanted.match(path, entry.name)) or unwanted.match(path, entry.name):
            continue
        with translating(f"cannot read {path!r}", root):
            if entry.is_file():
                state = entry.stat()
                files.append(SourceFile(path, state.st_size, state.st_mtime_ns))
            else:
                skipped += 1
    if not files:
        hint = f"of {seen} files the globs leave none" if seen else "the folder is empty"
        raise EmptyDataset(f"nothing to pack in {str(root)!r}", hint=hint)
    if skipped:
        _log.warning(
            "%d entries under %s are no regular files (links to folders, sockets, ...): left out", skipped, root
        )
    return arrange(root, files, prefix, skipped_count=skipped)


def arrange(root: Path, files: list[SourceFile], prefix: str, *, skipped_count: int = 0) -> Listing:
    """Arrange files into samples, in path-byte order; the members of a sample stand together where its first one is.

    (They would anyway, but for folders with dots in their names: `a.d/x` sorts between `a.c` and `a.e`.) Pure.
    Raises DatasetError as `list_source` does.
    """
    _check_names(files)
    files.sort()  # by code points, which for UTF-8 is by bytes
    lead = f"{prefix}/" if prefix else ""
    samples: dict[str, list[int]] = {}
    members: list[Member] = []
    for index, file in enumerate(files):
        key, field = split_path(lead + file.path)
        members.append(Member(lead + file.path, field, file.size))
        samples.setdefault(key, []).append(index)
    _check_members(samples, members)
    order = [index for indexes in samples.values() for index in indexes]
    starts = [0]
    for indexes in samples.values():
        starts.append(starts[-1] + len(indexes))
    return Listing(
        root=root,
        keys=list(samples),
        starts=starts,
        files=[files[i] for i in order],
        members=[members[i] for i in order],
        digest=_digest(files),
        skipped_count=skipped_count,
    )


def _walk(root: Path) -> Iterator[tuple[os.DirEntry[str], str]]:
    """All entries below `root` that are not folders, with their paths below it; in no order."""
    folders = [""]
    while folders:
        folder = folders.pop()
        with translating(f"cannot list {folder or '.'!r}", root), os.scandir(root / folder) as found:
            entries = [(entry, entry.is_dir(follow_symlinks=False)) for entry in found]
        for entry, is_folder in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if is_folder:
                folders.append(path)
            else:
                yield entry, path


class Globs:
    """Several globs at once: one with a slash is for the path, one without for the base name."""

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = list(patterns)
        self.empty = not patterns
        self._paths = _union(pattern for pattern in patterns if "/" in pattern)
        self._names = _union(pattern for pattern in patterns if "/" not in pattern)

    def match(self, path: str, name: str) -> bool:
        """Whether any glob matches; none matches nothing."""
        return bool(self._paths.match(path) or self._names.match(name))


def _union(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or _NEVER)


def _digest(files: Iterable[SourceFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.size}\0{file.mtime_ns}\n".encode())
    return digest.hexdigest()


def _check_names(files: Sequence[SourceFile]) -> None:
    odd = [file.path for file in files if not _is_text(file.path)]
    encoding = sys.getfilesystemencoding()
    hint = "rename them, or leave them out with --exclude GLOB"
    if encoding != "utf-8":
        hint = f"this process takes names for {encoding}: set PYTHONUTF8=1, or LC_ALL=C.UTF-8"
    _refuse([repr(os.fsencode(path)) for path in odd], f"whose names are not {encoding.upper()}", hint)


def _check_members(samples: dict[str, list[int]], members: Sequence[Member]) -> None:
    """Raise DatasetError for names that make no sample, with the count, the first examples, and what to do."""
    fields = Counter(member.field for member in members)
    nameless = [members[index].path for index in samples.get("", ())]
    nameless += [member.path for member in members if not member.field]
    usual = next((field for field, _ in fields.most_common() if field), "jpg")
    choose = f"choose the files: --include '*.{usual}', or leave some out: --exclude GLOB"
    _refuse(sorted(map(repr, set(nameless))), "without an extension, or with nothing before it", choose)
    reserved = [repr(member.path) for member in members if is_reserved_field(member.field)]
    _refuse(reserved, "with extensions that WebDataset readers use themselves", choose)
    meta = [repr(member.path) for member in members if is_meta(member.path)]
    _refuse(
        meta,
        "under a first component like __x__, which WebDataset readers skip silently",
        "put a component before it: --prefix data",
    )
    twice = []
    for indexes in samples.values():
        counts = Counter(members[index].field for index in indexes)
        twice += [repr(members[index].path) for index in indexes if counts[members[index].field] > 1]
    _refuse(twice, "that share key and extension with another (case does not count in extensions)", choose)
    if len(fields) > FIELD_LIMIT:
        raise DatasetError(
            f"the files have {len(fields)} different extensions, such as "
            f"{', '.join(map(repr, sorted(fields)[:_EXAMPLES]))}: at most {FIELD_LIMIT} make sense",
            hint="an extension is all after the first dot: rename files with other dots in their names, or " + choose,
        )


def _refuse(paths: Sequence[str], problem: str, hint: str) -> None:
    if paths:
        more = ", ..." if len(paths) > _EXAMPLES else ""
        files = "1 file" if len(paths) == 1 else f"{len(paths)} files"
        raise DatasetError(f"cannot pack {files} {problem}: {', '.join(paths[:_EXAMPLES])}{more}", hint=hint)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
