"""Batches with images: they are decoded side by side, into the memory that the batch will lie in.

Their headers say how much that is. The bytes of other fields move there with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stoker.feed.batch import BYTES, Field, InSlot
from stoker.feed.decode import Decoder, Rows, decode_batch, decode_image, decode_images, image_shape_of
from stoker.feed.images import keep_memory
from stoker.feed.placement import Work
from stoker.io.host import cpu_count
from stoker.io.memory import align


class ImageThreads:
    """A thread for each processor: what takes time in decoding an image lets go of the interpreter lock."""

    def __init__(self) -> None:
        self._count = cpu_count()
        self._pool = ThreadPoolExecutor(self._count, "stoker-image")
        keep_memory(self._count)

    def run(self, take_some: Callable[[], None], count: int) -> None:
        """Call `take_some` in each thread, which shares `count` images with the others, and wait for all of them.

        One task an image would cost 15 us more for each.
        """
        futures: list[Future[None]] = []
        try:
            for _ in range(min(self._count, count)):
                futures.append(Future())
                self._pool.submit(_do, take_some, futures[-1])
        except (
            BaseException
        ):  # an executor that can start no thread keeps what it was given: that is not begun any more
            wait([future for future in futures if not future.cancel()])
            raise
        wait(futures)

    def stop(self, *, wait_for_them: bool) -> None:
        """Take no more; each thread is done with its batch soon."""
        self._pool.shutdown(wait=wait_for_them)


def decode_pictures(
    work: Work,
    raw: NDArray[np.uint8],
    decoders: tuple[Decoder | None, ...],
    names: tuple[str, ...],
    allocate: Callable[[int], NDArray[np.uint8]],
    threads: ImageThreads,
) -> None:
    """Decode a batch whose bytes are `raw` into memory that `allocate(nbytes)` gives; sets its fields.

    Images of one size become one array, others a list of arrays. Raises SampleError for the first that is none.
    """
    plan = work.plan
    columns = zip(plan.fields, plan.field_starts, plan.row_offsets, strict=True)
    rows = [
        Rows(name, raw[start : start + int(offsets[-1])], offsets.tolist(), lambda: plan.keys)
        for name, start, offsets in columns
    ]
    shapes: dict[int, list[tuple[int, int, int]]] = {}
    starts = []
    end = 0
    for index, (one, decoder) in enumerate(zip(rows, decoders, strict=True)):
        if decoder is decode_images:
            shapes[index] = [image_shape_of(one, row) for row in range(len(one))]
        starts.append(end)
        end += align(sum(map(math.prod, shapes[index])) if index in shapes else len(one.data))
    memory = allocate(end)
    fields: dict[int, Field] = {}
    nbytes = 0
    for index, found in shapes.items():
        fields[index] = _decode_images(rows[index], found, memory, starts[index], threads)
        nbytes += sum(map(math.prod, found))
    others = [index for index in range(len(rows)) if index not in shapes]
    for index in others:
        memory[starts[index] : starts[index] + len(rows[index].data)] = rows[index].data
    moved = replace(
        plan,
        fields=tuple(plan.fields[index] for index in others),
        field_starts=tuple(starts[index] for index in others),
        row_offsets=tuple(plan.row_offsets[index] for index in others),
    )
    rest, rest_bytes = decode_batch(moved, memory, tuple(decoders[index] for index in others))
    fields.update(zip(others, rest, strict=True))
    work.fields = tuple(fields[index] for index in range(len(rows)))
    work.nbytes = nbytes + rest_bytes
    work.encoded = tuple(zip(starts, plan.row_offsets, names, strict=True))


def _do(job: Callable[[], None], future: Future[None]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            job()
        finally:
            future.set_result(None)


def _decode_images(
    rows: Rows, shapes: list[tuple[int, int, int]], memory: NDArray[np.uint8], start: int, threads: ImageThreads
) -> Field:
    offsets = np.zeros(len(shapes) + 1, np.int64)
    np.cumsum(np.array([math.prod(shape) for shape in shapes], np.int64), out=offsets[1:])
    starts = (start + offsets[:-1]).tolist()
    left = iter(range(len(shapes)))
    errors: dict[int, BaseException] = {}

    def decode() -> None:
        for row in left:
            try:
                decode_image(rows, row, np.ndarray(shapes[row], np.uint8, buffer=memory, offset=starts[row]))
            except BaseException as error:  # noqa: BLE001  thread boundary: raised where the batch is made
                errors[row] = error

    threads.run(decode, len(shapes))  # nobody writes there any more
    if errors:
        first = errors[min(errors)]
        errors.clear()
        try:
            raise first
        finally:
            del first  # no cycle of error, traceback and frame: that has the memory of the batch
    if len(set(shapes)) == 1:
        return Field(rows.field, BYTES, InSlot(start), shape=(len(shapes), *shapes[0]))
    return Field(rows.field, BYTES, InSlot(start), row_offsets=offsets, row_shapes=np.array(shapes, np.int64))
