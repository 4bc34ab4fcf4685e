"""The bounded measurement itself: a file written, read in order and at random, many small files made and removed.

All in one directory with a temporary name. It is removed at the end; what a killed measurement leaves, the next one in
the same place removes, or the sweep of a store.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.doctor.storage import Measurement, Plan
from stoker.errors import TimedOut
from stoker.io.atomic import TEMP_PREFIX, AtomicFile, make_dirs, remove_tree, write_file
from stoker.io.choose import EngineChoice
from stoker.io.direct import DirectFile, aligned_memory
from stoker.io.host import host_id
from stoker.io.os_errors import translating

_KIND: Final = f"{TEMP_PREFIX}doctor-"
_STAMP_EACH_BYTES: Final = 4096
_FOREIGN_S: Final = 24 * 3600.0
_COMMIT_BYTES: Final = 4096

Clock = Callable[[], float]


def run_bounded(directory: Path, plan: Plan, grace_s: float = 10.0) -> Measurement:
    """Measure in a thread that is given up `grace_s` after the time of the plan: a dead mount answers nothing.

    Raises:
        TimedOut: it did not end; a thread still waits in the kernel.
        AccessDenied, CapacityError, StoreError: as the file system says.
    """
    results: list[Measurement | Exception] = []

    def work() -> None:
        try:
            results.append(measure(directory, plan))
        except Exception as error:  # noqa: BLE001 - the boundary of a thread: it is raised again below
            results.append(error)

    thread = threading.Thread(target=work, name="doctor-storage", daemon=True)
    thread.start()
    thread.join(plan.limit_s + grace_s)
    if not results:
        raise TimedOut(
            f"the storage did not answer in {plan.limit_s + grace_s:g} s",
            str(directory),
            "see the kernel log; a mount may be gone",
        )
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def measure(directory: Path, plan: Plan, clock: Clock = time.monotonic, seed: int = 0) -> Measurement:
    """Measure in `directory`, which stays as it was. Each part ends at its time or when it is done.

    Raises:
        AccessDenied, CapacityError, StoreError: as the file system says.
    """
    with translating("cannot measure", directory, needed_bytes=plan.file_bytes):
        remove_left(directory)
        begin = clock()
        with _workplace(directory) as place:
            size, write_rate, write_engine = _write(place / "data", plan, clock)
            commit_s = _commits(place / "commits", plan, clock)
            creates, stats, removes = _metadata(place / "files", plan, clock)
            sequential, at_random, engine = _read(place / "data", plan, size, clock, seed)
        return Measurement(
            file_bytes=size,
            elapsed_s=clock() - begin,
            sequential_read_bytes_per_s=sequential,
            random_read_bytes_per_s=at_random,
            random_reads_per_s=at_random / plan.random_bytes,
            write_bytes_per_s=write_rate,
            commit_s=commit_s,
            creates_per_s=creates,
            stats_per_s=stats,
            removes_per_s=removes,
            read_engine=engine,
            write_engine=write_engine,
        )


def remove_left(directory: Path, now_s: float | None = None) -> int:
    """Remove what killed measurements left right in `directory`; returns how many. Never of one that lives.

    Of another host only after a day: whether its process lives is not known here.
    """
    now_s = time.time() if now_s is None else now_s
    count = 0
    for entry in sorted(directory.iterdir()):
        if not entry.name.startswith(TEMP_PREFIX) or entry.is_symlink() or not entry.is_dir():
            continue
        if _is_dead(entry, now_s) or entry.name.startswith(f"{TEMP_PREFIX}{host_id()}-"):  # a removal that was killed
            with contextlib.suppress(OSError):  # of another user
                count += remove_tree(entry)
    return count


def _is_dead(entry: Path, now_s: float) -> bool:
    if not entry.name.startswith(_KIND):
        return False
    host, _, rest = entry.name.removeprefix(_KIND).partition("-")
    pid = rest.partition("-")[0]
    if host != host_id() or not pid.isdecimal():
        return now_s - entry.stat().st_mtime > _FOREIGN_S
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


@contextmanager
def _workplace(directory: Path) -> Iterator[Path]:
    place = directory / f"{_KIND}{host_id()}-{os.getpid()}-{secrets.token_hex(4)}"
    make_dirs(place, mode=0o700)
    try:
        yield place
    finally:
        remove_tree(place)


def _write(path: Path, plan: Plan, clock: Clock) -> tuple[int, float, EngineChoice]:
    """(bytes, bytes/s with fsync, engine). No two pages are the same, so that nothing can be left out."""
    block = aligned_memory(plan.block_bytes)
    block[:] = np.frombuffer(secrets.token_bytes(plan.block_bytes), np.uint8)
    stamps = block.reshape(-1, _STAMP_EACH_BYTES)[:, :8].view(np.uint64)
    begin = clock()
    with AtomicFile(path, engine="auto") as file:
        while file.size_bytes < plan.file_bytes:
            stamps += np.uint64(1)
            file.write(block)
            if clock() - begin > plan.write_s:
                break
        file.commit()
        engine = file.engine
    assert engine is not None
    return file.size_bytes, _rate(file.size_bytes, begin, clock), engine


def _commits(directory: Path, plan: Plan, clock: Clock) -> float:
    """Median seconds of a small file written durably."""
    make_dirs(directory)
    data, times = secrets.token_bytes(_COMMIT_BYTES), []
    end = clock() + plan.metadata_s
    for number in range(plan.commit_count):
        begin = clock()
        write_file(directory / f"{number:05d}", data)
        times.append(clock() - begin)
        if clock() > end:
            break
    return median(times)


def _metadata(directory: Path, plan: Plan, clock: Clock) -> tuple[float, float, float]:
    """(creates, stats, removals) a second, one after the other by one thread."""
    make_dirs(directory)
    part_s = plan.metadata_s / 3
    begin = clock()
    names = []
    for number in range(plan.file_count):
        name = f"{directory}/{number:06d}"
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        names.append(name)
        if clock() - begin > part_s:
            break
    creates = _rate(len(names), begin, clock)
    begin = clock()
    seen = 0
    for name in names:
        os.lstat(name)
        seen += 1
        if clock() - begin > part_s:
            break
    stats = _rate(seen, begin, clock)
    begin = clock()
    remove_tree(directory)
    return creates, stats, _rate(len(names), begin, clock)


def _read(path: Path, plan: Plan, size: int, clock: Clock, seed: int) -> tuple[float, float, EngineChoice]:
    """(bytes/s in order, bytes/s at random, engine); cold as far as the kernel is told to forget the file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    direct: DirectFile | None = None
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        direct, engine = DirectFile.open(fd, "auto")
        in_order = np.arange(0, size, plan.block_bytes)
        sequential = _read_all(fd, direct, in_order, plan.block_bytes, (plan.readers, plan.read_s, clock))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        anywhere = np.random.default_rng(seed).permutation(np.arange(0, size, plan.random_bytes))
        at_random = _read_all(fd, direct, anywhere, plan.random_bytes, (plan.readers, plan.random_s, clock))
    finally:
        if direct is not None:
            direct.close()
        os.close(fd)
    return sequential, at_random, engine


def _read_all(
    fd: int, direct: DirectFile | None, starts: NDArray[np.int64], size: int, limits: tuple[int, float, Clock]
) -> float:
    """Bytes/s of reads of `size` from each of `starts`, dealt to threads; until the time is over."""
    readers, limit_s, clock = limits
    begin = clock()

    def read(part: NDArray[np.int64]) -> int:
        memory = aligned_memory(size).data
        done = 0
        for start in part.tolist():
            done += direct.read_into(start, memory) if direct else os.preadv(fd, [memory], start)
            if clock() - begin > limit_s:
                break
        return done

    with ThreadPoolExecutor(readers, thread_name_prefix="doctor-read") as pool:
        total = sum(pool.map(read, (starts[number::readers] for number in range(readers))))
    return _rate(total, begin, clock)


def _rate(count: float, begin: float, clock: Clock) -> float:
    return count / max(clock() - begin, 1e-9)
