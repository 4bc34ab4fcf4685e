"""Ledgers written by a script of events, in milliseconds."""

from __future__ import annotations

import pytest

from stoker.ledger import Cause, Counter, Ledger, LedgerIdentity, LedgerStart

MS = 1_000_000


class Script:
    """A ledger whose clock starts at 0 and is moved by the events."""

    def __init__(self, *, rank=0, world=1, generation=1, run="run-42", host="node-a"):
        self.now = 0
        identity = LedgerIdentity(run, rank, world, generation, host)
        start = LedgerStart(pid=1, boot_id="b", wall_s=0.0, perf_ns=0)
        self.ledger = Ledger.create(None, identity, start=start, clock=lambda: self.now)

    def at(self, ms):
        self.now = ms * MS
        return self

    def compute(self, ms):
        self.now += ms * MS
        return self

    def step(self, number, **waits_ms):
        waits = {Cause(cause): ms * MS for cause, ms in waits_ms.items()}
        entered, self.now = self.now, self.now + sum(waits.values())
        self.ledger.record_step(number, 0, entered, self.now, waits, 16, 1000)
        return self

    def save(self, number, ms, staged_bytes=0):
        self.now += ms * MS
        self.ledger.record_checkpoint(number, ms * MS, staged_bytes)
        return self

    def add(self, **amounts):
        for counter, amount in amounts.items():
            self.ledger.add(Counter(counter), amount)
        return self

    def end(self):
        self.ledger.record_end(self.now)
        return self

    def close(self):
        self.ledger.close()
        return self

    def read(self):
        return self.ledger.snapshot()


@pytest.fixture
def script():
    return Script
