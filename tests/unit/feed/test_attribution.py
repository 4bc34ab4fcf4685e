"""Time injected into a stage shows up under that cause: at least 90% of it, and at most 5% elsewhere.

The first batch is left out: it also waits for threads to start, several milliseconds on a busy machine.
"""

import gc
import time
from statistics import median

import pytest

from stoker.feed.decode import DECODERS, decode_text
from stoker.ledger import Cause
from stoker.testing.stores import SlowStore

pytestmark = pytest.mark.alone

STEPS = 7
DELAY_S = 0.08


def waits_of(ledger, first=1):
    """Seconds a step by cause, from the step `first` on: medians, which one step in bad weather does not change."""
    records = [record for record in ledger.snapshot().steps if record.step >= first]
    return {cause: median(record.waits_ns[cause] for record in records) / 1e9 for cause in Cause}


def assert_charged(waits, cause, injected_s):
    assert waits[cause] >= 0.9 * injected_s, waits
    elsewhere = sum(wait for other, wait in waits.items() if other != cause)
    assert elsewhere <= 0.05 * injected_s, waits


@pytest.fixture(autouse=True)
def _no_collection():
    """In a process that has run thousands of tests a garbage collection takes longer than all that is injected here."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def texts(make_store):
    return make_store([(f"s{i}", {"txt": f"sample {i}".encode()}) for i in range(8 * STEPS)])


def slow_decoders(delay_s):
    """Decoders of which text takes `delay_s` a batch."""

    def decode(rows):
        time.sleep(delay_s)
        return decode_text(rows)

    return {**DECODERS, "text": decode}


def slow_map(delay_s):
    def f(sample):
        time.sleep(delay_s / 8)
        return {"n": len(sample["txt"])}

    return f


def text(description):
    return description.decode({"txt": "text"})


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 16])
def test_a_slow_store_is_fetch(texts, load, ledger, prefetch_bytes):
    # Eight threads read one batch at a time, with or without reading ahead.
    data = load(SlowStore(texts, read_s=DELAY_S), describe=text, prefetch_bytes=prefetch_bytes, threads=8)
    assert sum(1 for _ in data) == STEPS
    assert_charged(waits_of(ledger), Cause.FETCH, DELAY_S)


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 16])
def test_a_slow_decoder_is_decode(texts, load, ledger, prefetch_bytes):
    data = load(texts, describe=text, prefetch_bytes=prefetch_bytes, decoders=slow_decoders(DELAY_S))
    assert sum(1 for _ in data) == STEPS
    assert_charged(waits_of(ledger), Cause.DECODE, DELAY_S)


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 16])
def test_a_slow_map_is_map(texts, load, ledger, prefetch_bytes):
    data = load(texts, describe=lambda d: text(d).map(slow_map(DELAY_S)), prefetch_bytes=prefetch_bytes)
    assert sum(1 for _ in data) == STEPS
    assert_charged(waits_of(ledger), Cause.MAP, DELAY_S)


def test_lent_slots_are_handoff(texts, load, ledger):
    data = load(texts, prefetch_bytes=2 * 128, patience_s=4 * DELAY_S)
    loop = iter(data)
    held = [next(loop), next(loop)]
    held.append(next(loop))
    assert data.stats().copied_batches == 1
    assert_charged(waits_of(ledger, first=2), Cause.HANDOFF, 4 * DELAY_S)


@pytest.mark.parametrize(
    ("fetch_s", "decode_s", "map_s"), [(0.03, 0.0, 0.02), (0.02, 0.03, 0.0), (0.0, 0.02, 0.03), (0.02, 0.0, 0.03)]
)
def test_two_slow_stages_at_once_are_told_apart(texts, load, ledger, fetch_s, decode_s, map_s):
    data = load(
        SlowStore(texts, read_s=fetch_s),
        describe=lambda d: text(d).map(slow_map(map_s)),
        prefetch_bytes=0,
        decoders=slow_decoders(decode_s),
    )
    assert sum(1 for _ in data) == STEPS
    waits = waits_of(ledger)
    total = sum(waits.values())
    for cause, injected_s in ((Cause.FETCH, fetch_s), (Cause.DECODE, decode_s), (Cause.MAP, map_s)):
        assert waits[cause] / total == pytest.approx(injected_s / 0.05, abs=0.1), waits


def test_reading_offsets_is_fetch(make_store, numbered, load, ledger):
    data = load(SlowStore(make_store(numbered(48), shard_bytes=8192), read_s=0.2), prefetch_bytes=0)
    next(iter(data))
    waits = waits_of(ledger, first=0)
    assert waits[Cause.FETCH] >= 2 * 0.2  # offsets, then samples
    assert_charged(waits, Cause.FETCH, waits[Cause.FETCH])
