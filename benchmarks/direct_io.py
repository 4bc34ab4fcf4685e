"""Direct I/O against the page cache, on the file system of a directory: what decides where stoker goes directly.

    PYTHONPATH=src python benchmarks/direct_io.py [DIRECTORY]

Prints Markdown tables of medians: GiB/s, and CPU seconds of this process a GiB. Writes one file of 512 MiB, takes about
a minute. CPU time of the kernel's own threads (write-back of the page cache) is not in the numbers, so buffered
writes look cheaper than they are.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stoker.io.atomic import AtomicFile
from stoker.io.checksum import xxh3_128
from stoker.io.choose import facts_of
from stoker.io.direct import DirectFile, aligned_memory
from stoker.io.memory import Slab
from stoker.io.residency import is_cached
from stoker.store.local import LocalStore
from stoker.units import GIB, KIB, MIB
from stoker.values import Key

FILE_BYTES = 512 * MIB
WRITE_BYTES = 256 * MIB
READ_BYTES = 96 * MIB  # a measurement; whole blocks of every size
SIZES = (64 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB, 16 * MIB)
THREADS = (1, 2, 4)
REPEATS = 5
RESTORE_REPEATS = 5
CHUNK = 4 * MIB
MEMORY = aligned_memory(max(SIZES) * max(THREADS))  # huge pages, if the system has them
MEMORY[:] = 1


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=directory, prefix="direct-io-") as place:
        path = Path(place) / "object"
        image = aligned_memory(FILE_BYTES)
        block = random.Random(0).randbytes(CHUNK)
        for start in range(0, FILE_BYTES, CHUNK):
            image[start : start + CHUNK] = memoryview(block)
        with path.open("wb", buffering=0) as file:
            for start in range(0, FILE_BYTES, CHUNK):
                file.write(image[start : start + CHUNK])
            os.fsync(file.fileno())
        fd = os.open(path, os.O_RDONLY)
        print(f"kernel {platform.release()}, {file_system(directory)}, {os.cpu_count()} CPUs, {facts_of(fd)}\n")
        reads(fd)
        questions(fd)
        os.close(fd)
        writes(Path(place), image.data)
        restores(Path(place))
    print(f"took {time.monotonic() - begin:.0f} s")


def file_system(directory: Path) -> str:
    found = ("", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if str(directory).startswith(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1]


def measure(work) -> tuple[float, float]:
    """(GiB/s, CPU-s/GiB) of `work`, which returns the bytes it moved."""
    cpu, wall = time.process_time(), time.perf_counter()
    moved = work() / GIB
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return moved / wall, cpu / moved


def median(results: list[tuple[float, float]]) -> str:
    rates, costs = zip(*results, strict=True)
    return f"{statistics.median(rates):.2f}, {statistics.median(costs):.2f}"


def evict(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def warm(fd: int) -> None:
    memory = bytearray(CHUNK)
    for start in range(0, READ_BYTES, CHUNK):
        os.preadv(fd, [memory], start)


def fill(fd: int, start: int, memory: memoryview) -> None:
    while memory:
        count = os.preadv(fd, [memory], start)
        start, memory = start + count, memory[count:]


def reads(fd: int) -> None:
    direct, choice = DirectFile.open(fd, "direct")
    assert direct is not None, choice
    ways = {
        "buffered cold": lambda start, memory: fill(fd, start, memory),
        "buffered warm": lambda start, memory: fill(fd, start, memory),
        "direct": direct.read_into,
        "direct, staged": direct.read_staged,
    }
    print("Reads in shuffled order: GiB/s, CPU-s/GiB\n")
    print("| size | threads | " + " | ".join(ways) + " |\n|---|---|" + "---|" * len(ways))
    for size in SIZES:
        for threads in THREADS:
            results = {name: [] for name in ways}
            for repeat in range(REPEATS):
                for name, read in ways.items():
                    (warm if name == "buffered warm" else evict)(fd)
                    results[name].append(measure(lambda: shuffled(read, size, threads, repeat)))  # noqa: B023
            cells = [median(found) for found in results.values()]
            label = f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"
            print(f"| {label} | {threads} | {' | '.join(cells)} |", flush=True)
    direct.close()
    print()


def shuffled(read, size: int, threads: int, seed: int) -> int:
    places = [start * size for start in range(READ_BYTES // size)]
    random.Random(seed).shuffle(places)

    def work(number: int) -> None:
        memory = memories[number]
        for start in places[number::threads]:
            read(start, memory)

    memories = [MEMORY[number * 16 * MIB :][:size].data for number in range(threads)]
    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return READ_BYTES


def questions(fd: int) -> None:
    """What it costs to ask whether a range is cached, cold and warm."""
    print("Asking whether 4 MiB are in the page cache: ", end="")
    for name, prepare in (("cold", evict), ("warm", warm)):
        prepare(fd)
        begin = time.perf_counter()
        for _ in range(1000):
            is_cached(fd, 0, CHUNK)
        print(f"{name} {(time.perf_counter() - begin) * 1e3:.1f} us", end="; " if name == "cold" else "\n\n")


def writes(place: Path, huge: memoryview) -> None:
    print("Checkpoint file of 256 MiB + 100 bytes in 4 MiB pieces, digests taken, synced and renamed:\n")
    print("| engine | memory | GiB/s, CPU-s/GiB |\n|---|---|---|")
    slab = Slab(WRITE_BYTES + CHUNK)
    small = slab.view(0, WRITE_BYTES + CHUNK)
    small[:] = huge[: len(small)]
    ways = {
        ("buffered", "a slab"): small.data,
        ("auto", "a slab"): small.data,
        ("auto", "huge pages"): huge,
        ("auto", "not aligned"): small.data[1:],
    }
    results = {way: [] for way in ways}
    for way in [*ways] * REPEATS:
        results[way].append(measure(lambda: write(place / f"{way[0]}-file", way[0], ways[way])))  # noqa: B023
    for (engine, memory), found in results.items():
        print(f"| {engine} | {memory} | {median(found)} |", flush=True)
    print()


def write(path: Path, engine, image: memoryview) -> int:
    with AtomicFile(path, engine) as file:
        for start in range(0, WRITE_BYTES, CHUNK):
            piece = image[start : start + CHUNK]
            xxh3_128(piece)
            file.write(piece)
        file.write(image[:100])
        file.commit()
    return WRITE_BYTES


def restores(place: Path) -> None:
    print("Restore: whole 4 MiB chunks of it, digests checked:\n")
    print("| page cache | threads | buffered | auto |\n|---|---|---|---|")
    key = Key("buffered-file")
    stores = {engine: LocalStore(place, engine=engine) for engine in ("buffered", "auto")}
    with (place / key).open("rb", buffering=0) as file:
        for cached in (False, True):
            for threads in (1, 4, 8):
                results = {engine: [] for engine in stores}
                for engine in [*stores] * RESTORE_REPEATS:
                    (warm if cached else evict)(file.fileno())
                    results[engine].append(measure(lambda: restore(stores[engine], key, threads)))  # noqa: B023
                cells = " | ".join(median(results[engine]) for engine in stores)
                print(f"| {'warm' if cached else 'cold'} | {threads} | {cells} |", flush=True)
    print()


def restore(store: LocalStore, key: Key, threads: int) -> int:
    def work(number: int) -> None:
        scratch = aligned_memory(CHUNK).data
        for start in range(number * CHUNK, READ_BYTES, threads * CHUNK):
            store.read_into(key, start, scratch)
            xxh3_128(scratch)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return READ_BYTES


if __name__ == "__main__":
    main()
