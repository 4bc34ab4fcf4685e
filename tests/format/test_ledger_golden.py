"""The bytes of a ledger, format 1, are fixed for ever (docs/reference/ledger-format.md).

golden/ledger-1.gz holds the file that `written()` makes. If a test here fails, the code is wrong, not the golden file.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from pathlib import Path

from stoker.ledger import Cause, Counter, Ledger, LedgerIdentity, LedgerStart, parse_ledger, read_ledger

GOLDEN = Path(__file__).parent / "golden" / "ledger-1.gz"
FIRST_COUNTERS = 11  # when the file was made; others have been added behind them


def written(path):
    identity = LedgerIdentity(run="golden", rank=12, world=16, generation=3, host="node-é")
    start = LedgerStart(pid=4711, boot_id="0b0f-17", wall_s=1_750_000_000.25, perf_ns=1_000_000)
    ledger = Ledger.create(path, identity, start=start, clock=lambda: 9_000_000)
    for n in range(4100):
        entered = 2_000_000 + 1000 * n
        waits = {Cause.FETCH: 10, Cause.DECODE: 20, Cause.MAP: 30, Cause.HANDOFF: 40}
        ledger.record_step(40 + n, n // 1000, entered, entered + 100, waits, 16, 65536)
        if n % 1000 == 999:
            ledger.record_checkpoint(41 + n, 300, 1_000_000)
    for place, counter in enumerate(list(Counter)[:FIRST_COUNTERS]):
        ledger.add(counter, 101 + place)
    ledger.record_end(7_000_000)
    ledger.close()
    return path.read_bytes()


def golden():
    return gzip.decompress(GOLDEN.read_bytes())


def test_a_ledger_is_written_as_it_always_was(tmp_path):
    assert written(tmp_path / "a") == golden()


def test_a_ledger_of_format_1_is_read_as_it_always_was(tmp_path):
    (tmp_path / "golden").write_bytes(golden())
    snapshot = read_ledger(tmp_path / "golden")
    assert snapshot == parse_ledger(golden(), "golden")
    assert snapshot.identity == LedgerIdentity("golden", 12, 16, 3, "node-é")
    assert snapshot.start == LedgerStart(4711, "0b0f-17", 1_750_000_000.25, 1_000_000)
    totals = snapshot.totals
    assert (totals.steps, totals.samples, totals.batch_bytes) == (4100, 65_600, 268_697_600)
    assert (totals.first_step, totals.last_step) == (40, 4139)
    assert totals.compute_ns == 4099 * 900 - 4 * 300 + (7_000_000 - 2_000_000 - 4_099_000 - 100)
    assert (totals.first_wait_ns, totals.first_compute_ns, totals.first_entered_ns) == (100, 900, 2_000_000)
    assert (totals.saves, totals.staged_bytes, totals.blocked_max_ns, totals.closed) == (4, 4_000_000, 300, 1)
    assert totals.last_ns == 9_000_000
    assert list(totals.waits_ns.values()) == [41_000, 82_000, 123_000, 164_000, 1200]
    assert list(totals.counters.values())[:FIRST_COUNTERS] == list(range(101, 112))
    assert not any(list(totals.counters.values())[FIRST_COUNTERS:])  # added since: in an old file they are 0
    assert [s.step for s in snapshot.steps] == list(range(44, 4140))
    assert [s.step for s in snapshot.saves] == [1040, 2040, 3040, 4040]
    after_a_save = snapshot.steps[1000 - 4]
    assert (after_a_save.step, after_a_save.epoch, after_a_save.compute_before_ns) == (1040, 1, 600)
    assert after_a_save.waits_ns[Cause.CHECKPOINT] == 300


def test_the_page_of_the_format_tells_a_reader_without_stoker_where_everything_is():
    data = golden()
    assert len(data) == 548_864
    magic, version, length, size, crc, _ = struct.unpack_from("<8sIIQII", data)
    assert (magic, version, size) == (b"STOKLEDG", 1, 548_864)
    text = data[32 : 32 + length]
    assert zlib.crc32(text) == crc
    assert json.loads(text)["host"] == "node-é"

    copies = [struct.unpack_from("<Q64qII", data, 4096 + 2048 * n) for n in (0, 1)]
    for n, copy in enumerate(copies):
        assert copy[0] % 2 == n
        assert copy[65] == zlib.crc32(data[4096 + 2048 * n :][:520])
    cells = max(copies)[1:65]
    assert cells[0] == 4100
    assert cells[13] == 1
    assert cells[16:24] == (41_000, 82_000, 123_000, 164_000, 1200, 0, 0, 0)
    assert cells[24:36] == (*range(101, 112), 0)

    save = struct.unpack_from("<QQqqqqqII", data, 8192 + 64 * 3)
    assert save[:5] == (4, 4040, 9_000_000, 300, 1_000_000)
    assert save[7] == zlib.crc32(data[8192 + 64 * 3 :][:56])

    step = struct.unpack_from("<QQqqqIIq8qII", data, 24_576 + 128 * 3)
    assert step[:2] == (4100, 4139)
    assert step[8:16] == (10, 20, 30, 40, 0, 0, 0, 0)
    assert step[16] == zlib.crc32(data[24_576 + 128 * 3 :][:120])
