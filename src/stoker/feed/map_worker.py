"""`python -m stoker.feed.map_worker`: a process that maps samples for a feeder; started by one, of no use by itself.

Samples are views of the memory that the feeder fills, results are written straight into their batch. User code runs in
the main thread; another one ends the process when the feeder is gone, whatever user code is doing then.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, SampleError
from stoker.feed.batch import read_field
from stoker.feed.functions import unpack_function
from stoker.feed.map_wire import (
    Freed,
    MapHello,
    Mapped,
    NotMapped,
    Shown,
    Target,
    Task,
    decode_to_worker,
    hear_columns,
    tell_columns,
)
from stoker.feed.mapper import Mapper, Results, Samples, map_rest, plan_columns
from stoker.feed.randomness import Seeding
from stoker.feed.wire import NOWHERE, MadeField, Said, encode, hear_field, spell, tell_error, tell_values
from stoker.io.channel import Channel
from stoker.io.entry import enter
from stoker.io.memory import Slot, Window, map_apart, map_words, room


class _Worker:
    """Does one task after the other."""

    def __init__(self, channel: Channel, hello: MapHello, arena_fd: int, page_fd: int) -> None:
        self._channel = channel
        self._hello = hello
        self._arena = Window(hello.arena_bytes, arena_fd)
        self._row = map_words(page_fd, 1)
        self._live: set[int] = set()  # tasks whose input is held
        self._kept: set[int] = set()  # those of which the feeder was told so

    def serve(self) -> None:
        """Answer until the feeder is gone."""
        mappers: list[Mapper] = []
        failure: BaseException | None = None
        try:
            mappers = [unpack_function(packed) for packed in self._hello.functions]
        except ConfigError as error:
            failure = error
        while True:
            task, files = self._receive()
            assert isinstance(task, Task)
            self._do(task, files, mappers, failure)
            sys.stdout.flush()  # this process ends without

    def _do(self, task: Task, files: list[int], mappers: list[Mapper], failure: BaseException | None) -> None:
        try:
            if failure is not None:
                raise failure
            lists = self._map(task, files, mappers)
            answer: Mapped | NotMapped = Mapped(lists, kept=False)
        except EOFError:
            raise
        except BaseException as error:  # noqa: BLE001  process boundary: told to the feeder
            row = error.sample_row if isinstance(error, SampleError) else None
            is_bad = isinstance(error, SampleError) and error.is_bad_sample
            answer = NotMapped(-1 if row is None else task.first_row + row, is_bad, tell_error(error), kept=False)
            del error
        answer.kept = task.number in self._live
        if answer.kept:
            self._kept.add(task.number)
            if task.number not in self._live:  # since it was looked at
                self._freed(task.number)
        self._channel.send(encode(answer))

    def _map(self, task: Task, files: list[int], mappers: list[Mapper]) -> list[MadeField]:
        memory = self._input(task, files)
        offsets = np.frombuffer(task.key_offsets, np.int64).tolist()
        keys = [task.keys[start:stop].decode() for start, stop in pairwise(offsets)]
        numbers = np.frombuffer(task.samples, np.int64)
        seeding = Seeding(self._hello.seed, task.epoch, numbers, global_state=self._hello.seeded)

        def before(row: int) -> None:
            self._row[0] = task.first_row + row
            seeding.begin(row)

        fields = map(hear_field, task.fields)
        columns = {field.name: read_field(field, memory) for field in fields}
        samples = Samples(columns, len(keys), lambda: keys, before)
        del memory
        try:
            results, begin = self._results(task, files, samples, mappers)
            map_rest(samples, mappers, results, begin)
        finally:
            seeding.end()
        return [tell_values(name, values) for name, values in results.lists.items()]

    def _input(self, task: Task, files: list[int]) -> NDArray[np.uint8]:
        """The bytes of the whole batch. The user's function may keep what it likes of them."""
        if task.offset == NOWHERE:
            return map_apart(files.pop(0), task.nbytes) if task.nbytes else np.empty(0, np.uint8)
        slot = Slot(task.offset, task.nbytes)
        self._fit(slot, task.arena_bytes)
        self._live.add(task.number)
        return self._arena.lend(slot, self._died, task.number)

    def _died(self, number: int) -> None:
        self._live.discard(number)
        if number in self._kept:
            self._freed(number)

    def _freed(self, number: int) -> None:
        self._kept.discard(number)
        self._channel.post(encode(Freed(number)))

    def _results(self, task: Task, files: list[int], samples: Samples, mappers: list[Mapper]) -> tuple[Results, int]:
        """Where results go, and the first row that is still to be mapped."""
        if task.target is not None:
            return self._open(task.target, files, task), 0
        first = samples.mapped(mappers, 0)
        columns, nbytes = plan_columns(samples, first, task.count)
        self._channel.send(encode(Shown(tell_columns(columns), nbytes)))
        target, files = self._receive()
        assert isinstance(target, Target)
        results = self._open(target, files, task)
        results.add(samples, 0, first)
        return results, 1

    def _open(self, target: Target, files: list[int], task: Task) -> Results:
        if target.offset != NOWHERE:
            slot = Slot(target.offset, target.nbytes)
            self._fit(slot, target.arena_bytes)
            memory = self._arena.view(slot)
        elif target.nbytes:
            memory = map_apart(files.pop(0), target.nbytes)
        else:
            memory = np.empty(0, np.uint8)
        return Results(hear_columns(target.columns), memory, task.count, task.first_row)

    def _fit(self, slot: Slot, arena_bytes: int) -> None:
        if slot.offset + room(slot.nbytes) > self._arena.size_bytes:
            self._arena.grow(arena_bytes)

    def _receive(self) -> tuple[Task | Target, list[int]]:
        found = self._channel.receive(None)
        assert found is not None
        return decode_to_worker(found[0]), found[1]


class _Forward(logging.Handler):
    """Log records go to the feeder."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on, as text."""
        try:
            message = encode(Said(spell(record.name), record.levelno, spell(self.format(record))))
        except Exception:  # noqa: BLE001  user code: arguments that do not fit, as every handler takes it
            self.handleError(record)
            return
        self._channel.send(message)


def main(arguments: Sequence[str]) -> None:
    """Map for the feeder that started this process; returns never."""
    channel = enter(arguments)
    threading.Thread(target=_end_with, args=(channel,), name="stoker-end", daemon=True).start()
    try:
        found = channel.receive(None)
        assert found is not None
        hello = msgspec.msgpack.decode(found[0], type=MapHello)
        sys.path[:] = map(os.fsdecode, hello.paths)
        logging.getLogger().setLevel(hello.log_levels[0])
        logging.getLogger("stoker").setLevel(hello.log_levels[1])
        logging.getLogger().addHandler(_Forward(channel))
        _Worker(channel, hello, *found[1]).serve()
    except EOFError:
        os._exit(0)


def _end_with(channel: Channel) -> None:
    channel.wait_for_end()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
