"""The object store, the loader and the restore against a server that fails, lies and breaks off: by script, counted.

No wrong byte gets out, and requests stay within a factor that follows from the script.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("obstore", reason="obstore is not installed")

from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.restore import restore_step
from stoker.checkpoint.save import Checkpoint
from stoker.dataset.describe import Dataset
from stoker.dataset.open import open_dataset
from stoker.dataset.order import Order, plan_recipe
from stoker.dataset.pack import PackOptions, pack
from stoker.dataset.write import DatasetWriter
from stoker.errors import (
    AccessDenied,
    AlreadyExists,
    CapacityError,
    DigestMismatch,
    IntegrityError,
    PreconditionFailed,
    StokerError,
    Throttled,
    TimedOut,
    Unavailable,
    UnsupportedError,
)
from stoker.feed.loader import FeedOptions, Loader
from stoker.feed.open import OrderWish, open_loader
from stoker.io.checksum import CHUNK_BYTES
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store import object as object_module
from stoker.store import object_bucket, object_options, object_writer
from stoker.store.base import Store
from stoker.store.local import LocalStore
from stoker.store.object import ObjectStore
from stoker.store.object_options import ObjectOptions
from stoker.store.open import open_store
from stoker.store.retry import RetryPolicy, RetryStore
from stoker.testing import ObjectSuite, StoreSuite
from stoker.testing.fault_server import (
    Answer,
    Chance,
    Changed,
    Cut,
    ErrorBody,
    Every,
    FaultServer,
    First,
    Flip,
    IgnoreCondition,
    IgnoreRange,
    Nth,
    Reset,
    Rule,
    Script,
    ShortRange,
    Stall,
    Trickle,
    WrongETag,
    WrongLength,
    WrongRange,
)
from stoker.testing.training import ArrayState
from stoker.units import MIB
from stoker.values import ByteRange, Key, Layout

URL = "s3://bucket/some/prefix"
POLICY = RetryPolicy(attempts=8, base_s=0.001, cap_s=0.01, budget=1e9)
# Where requests of several threads meet faults in turn, chance decides which of them fails again: of two thousand
# operations of which half fail each time, one run in 10**8 sees one that fails at each of these attempts.
OFTEN = replace(POLICY, attempts=40)
DATA = bytes(range(256)) * 40


def bare(server, **changes):
    """A store that makes each request once."""
    options = replace(ObjectOptions.from_environ(server.environ), **{"attempts": 1, **changes})
    return ObjectStore(URL, options, environ=server.environ)


def retrying(server, policy=POLICY, **changes):
    """A store as `open_store` makes it, but that hardly waits before it tries again."""
    return RetryStore(bare(server, **{"attempts": policy.attempts, **changes}), policy, settles=True)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.fixture
def play(server):
    """Play rules, the record begun anew."""

    def play(*rules):
        server.play(Script(rules))
        server.forget_requests()

    return play


class TestWithoutFaults(StoreSuite):
    @pytest.fixture
    def store(self, server) -> Iterator[Store]:
        self.server = server
        with closing(bare(server)) as store:
            yield store

    def again(self, store: Store) -> Store:
        return bare(self.server)


class TestServer(ObjectSuite):
    @pytest.fixture
    def store(self, server, monkeypatch) -> Iterator[ObjectStore]:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        with closing(bare(server)) as store:
            yield store


@pytest.mark.parametrize(
    ("fault", "met"),
    [
        (Answer(503, "SlowDown"), "*"),
        (Answer(503, done=True), "*"),
        (Answer(500, "InternalError", done=True), "*"),
        (Reset(after_bytes=0), "*"),
        (Reset(done=True), "*"),
        (Cut(1), "*"),
        (WrongLength(-1), "[GL]*"),
        (ErrorBody(), "[GP]*"),  # of a DELETE S3 never says so, and twice in a row of a listing looks like an empty one
        (IgnoreRange(), "GetObject"),
    ],
    ids=str,
)
class TestOneRequestInSevenFails(StoreSuite):
    @pytest.fixture
    def store(self, server, fault, met) -> Iterator[Store]:
        self.server = server
        server.play(Script((Rule(fault, Chance(1 / 7), operation=met),), seed=4))
        with closing(retrying(server, OFTEN)) as store:
            yield store

    def again(self, store: Store) -> Store:
        return retrying(self.server, OFTEN)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Answer(503, "SlowDown"), Throttled),
        (Answer(429, "TooManyRequests"), Throttled),
        (Answer(500, "InternalError"), Unavailable),
        (Answer(403, "AccessDenied"), AccessDenied),
        (Reset(), Unavailable),
        (Reset(after_bytes=0), Unavailable),
        (Reset(after_bytes=500), Unavailable),
        (Cut(500), Unavailable),
        (Stall(5), TimedOut),
        (Stall(5, after_bytes=500), TimedOut),
        (WrongLength(-1), Unavailable),
        (WrongLength(1), Unavailable),
        (WrongRange(), Unavailable),
        (ShortRange(), Unavailable),
    ],
    ids=str,
)
def test_each_fault_of_a_read_is_its_error_after_one_request_and_healed_by_another(server, play, fault, error):
    server.put("some/prefix/key", DATA)
    limits = {"stall_timeout_s": 1.0} if isinstance(fault, Stall) else {}  # what is only slow here is no fault
    once = bare(server, **limits)
    play(Rule(fault))
    with pytest.raises(error):
        once.read(Key("key"), ByteRange(10, 2000))
    assert len(server.requests()) == 1
    play(Rule(fault, First(1)))
    again = retrying(server, **limits)
    if error.retryable:
        assert again.read(Key("key"), ByteRange(10, 2000)) == DATA[10:2000]
        assert len(server.requests()) == 2
    else:
        with pytest.raises(error):
            again.read(Key("key"), ByteRange(10, 2000))
        assert len(server.requests()) == 1


def test_slow_is_not_broken(server, play):
    server.put("some/prefix/key", DATA)
    play(Rule(Stall(0.1), Nth(1)), Rule(Stall(0.1, after_bytes=100), Nth(1)), Rule(Trickle(len(DATA) / 0.1), Nth(1)))
    store = bare(server)
    assert [store.read(Key("key")) for _ in range(3)] == [DATA] * 3
    assert [record.fault for record in server.requests()] == ["Stall", "Stall", "Trickle"]


@pytest.mark.parametrize("fault", [IgnoreRange(), ErrorBody()], ids=str)
def test_a_range_that_was_answered_with_something_else_is_asked_for_again(server, play, fault):
    server.put("some/prefix/key", DATA)
    play(Rule(fault, First(1)))
    fresh = retrying(server)
    assert fresh.read(Key("key"), ByteRange(10, 2000)) == DATA[10:2000]
    assert len(server.requests()) == 1 + 2 + 1  # whether the server knows ranges is tried, as long as it is not known
    play(Rule(fault, Every(2)))
    for _ in range(3):
        assert fresh.read(Key("key"), ByteRange(10, 2000)) == DATA[10:2000]
    assert len(server.requests()) == 5


def test_a_server_that_never_answers_ranges_is_refused_by_name_and_read_whole(server, play):
    server.put("some/prefix/key", DATA)
    play(Rule(IgnoreRange()))
    store = retrying(server)
    for _ in range(2):
        server.forget_requests()
        with pytest.raises(UnsupportedError, match="with the whole object"):
            store.read(Key("key"), ByteRange(10, 2000))
        assert len(server.requests()) == 2 + POLICY.attempts
    assert store.read(Key("key")) == DATA
    play(Rule(ErrorBody()))
    with pytest.raises(Unavailable, match="no ETag"):  # pages only, which is another matter
        bare(server).read(Key("key"), ByteRange(10, 2000))


@pytest.mark.parametrize("by", [-1, -5000, 1], ids=str)
@pytest.mark.parametrize("rest", [(), (Rule(IgnoreRange()),)], ids=["ranges", "no-ranges"])
def test_an_object_whose_length_is_wrong_is_never_delivered_short(server, play, by, rest):
    server.put("some/prefix/key", DATA)
    play(Rule(WrongLength(by), Nth(1 + len(rest)), method="GET"), *rest)
    with pytest.raises(Unavailable):
        bare(server).read(Key("key"))
    play(Rule(WrongLength(by), Nth(1 + len(rest)), method="GET"), *rest)
    assert retrying(server).read(Key("key")) == DATA


@pytest.mark.parametrize("rest", [(), (Rule(IgnoreRange()),)], ids=["ranges", "no-ranges"])
def test_an_empty_object_is_read_whole_and_one_that_grows_meanwhile_is_read_again(server, play, rest):
    server.put("some/prefix/key", b"")
    play(*rest)
    assert bare(server).read(Key("key")) == b""
    play(Rule(Answer(416, "InvalidRange"), First(1)))
    server.put("some/prefix/key", DATA)
    assert retrying(server).read(Key("key")) == DATA


@pytest.mark.parametrize("read", [lambda s: s.read(Key("key")), lambda s: s.stat(Key("key"))], ids=["read", "stat"])
def test_a_page_that_is_no_object_is_not_taken_for_one(server, play, read):
    server.put("some/prefix/key", DATA)
    play(Rule(ErrorBody()))
    with pytest.raises(Unavailable, match="no ETag"):
        read(bare(server))
    play(Rule(ErrorBody(), First(1)))
    assert read(retrying(server)) in (DATA, bare(server).stat(Key("key")))


def listing_of(store):
    return [(str(info.key), info.size_bytes, info.version) for info in store.list()]


def test_a_listing_whose_page_is_cut_anywhere_is_never_a_short_list():
    with FaultServer(page_keys=3) as server:
        for number in range(7):
            server.put(f"some/prefix/key{number}", b"1")
        right = listing_of(bare(server))
        sizes = [record.sent_bytes for record in server.requests("ListObjectsV2")]
        assert (len(right), len(sizes)) == (7, 4)  # three pages, and once more the end
        for page, size in enumerate(sizes, 1):
            for by in [*range(1, 40), *range(40, size, 97)]:
                for fault in (WrongLength(-by), Cut(size - by)):
                    server.play(Script((Rule(fault, Nth(page)),)))
                    with pytest.raises(Unavailable):
                        listing_of(bare(server))
            server.play(Script((Rule(WrongLength(-size // 2), Nth(page)),)))
            assert listing_of(retrying(server)) == right


def test_a_listing_goes_on_where_a_page_failed(monkeypatch):
    monkeypatch.setattr(object_bucket, "LIST_CHUNK", 3)
    with FaultServer(page_keys=3) as server:
        for number in range(60):
            server.put(f"some/prefix/key{number:02d}", b"1")
        right = listing_of(bare(server))
        assert (len(right), len(server.requests())) == (60, 21)
        for fault in (Answer(), Cut(100), WrongLength(-50), Reset(), ErrorBody()):
            server.play(Script((Rule(fault, Every(2), operation="ListObjectsV2"),)))
            server.forget_requests()
            assert listing_of(retrying(server)) == right
            pages = server.requests("ListObjectsV2")
            assert len([page for page in pages if not page.fault]) <= 2 * 21  # a part of one may come twice
            assert len(pages) <= 2 * 2 * 21


def test_what_fails_for_ever_ends_after_the_attempts_that_were_allowed(server, play):
    play(Rule(Answer()))
    store = retrying(server)
    with pytest.raises(Throttled, match="attempt 8 of 8"):
        store.read(Key("key"))
    assert len(server.requests()) == POLICY.attempts


def test_when_everything_fails_the_budget_ends_the_retries_of_all(server, play):
    play(Rule(Reset()))
    store = retrying(server, replace(POLICY, budget=10.0))
    for _ in range(20):
        with pytest.raises(Unavailable):
            store.read(Key("key"))
    assert len(server.requests()) == 20 + 10


def test_a_read_in_several_requests_never_mixes_two_versions(server, play, monkeypatch):
    monkeypatch.setattr(object_module, "REQUEST_MAX_BYTES", 4096)
    server.put("some/prefix/key", DATA)
    store = retrying(server)
    for fault in (Changed(), WrongETag()):
        play(Rule(fault, Nth(2)))
        buffer = bytearray(len(DATA))
        with pytest.raises(PreconditionFailed):
            store.read_into(Key("key"), 0, buffer)
        assert len(server.requests()) == 2
    play()
    buffer = bytearray(len(DATA))
    store.read_into(Key("key"), 0, buffer)
    assert buffer == server.get("some/prefix/key")


def test_of_a_read_in_several_requests_the_one_that_failed_is_made_again_alone(server, play, monkeypatch):
    monkeypatch.setattr(object_module, "REQUEST_MAX_BYTES", 1024)
    server.put("some/prefix/key", DATA)
    for fault in (Answer(500, "InternalError"), Reset(after_bytes=500), Cut(100), ShortRange()):
        play(Rule(fault, Every(2)))
        buffer = bytearray(len(DATA))
        retrying(server).read_into(Key("key"), 0, buffer)
        assert buffer == DATA
        assert_bounded(server.requests(), len(DATA) // 1024, 2)


@pytest.mark.parametrize("failing", range(1, POLICY.attempts))
def test_whether_an_object_is_empty_is_asked_again_by_itself(server, play, failing):
    server.put("some/prefix/key", b"")
    play(Rule(Answer(), First(failing), method="HEAD"))
    assert retrying(server).read(Key("key")) == b""
    assert [record.operation for record in server.requests()] == ["GetObject", *["HeadObject"] * (failing + 1)]


LOST = [Answer(500, "InternalError", done=True), Answer(503, done=True), Reset(done=True), Cut()]


@pytest.mark.parametrize("fault", LOST, ids=str)
def test_the_first_writer_is_told_so_though_its_answer_was_lost(server, play, fault):
    store = retrying(server)
    store.write(Key("before"), b"", if_absent=True)
    play(Rule(fault, First(2), operation="PutObject"))
    assert store.write(Key("key"), b"mine", if_absent=True).size_bytes == 4
    assert server.get("some/prefix/key") == b"mine"
    with pytest.raises(AlreadyExists):
        retrying(server).write(Key("key"), b"other", if_absent=True)
    assert server.get("some/prefix/key") == b"mine"


@pytest.mark.parametrize("failing", [1, 2])
def test_the_first_writer_is_told_so_though_it_is_looked_at_through_faults(server, play, failing):
    store = retrying(server)
    store.write(Key("before"), b"", if_absent=True)
    lost = Rule(Answer(500, "InternalError", done=True), First(1), operation="PutObject")
    play(lost, Rule(Answer(), Nth(failing), operation="HeadObject"))
    assert store.write(Key("key"), b"mine", if_absent=True) == bare(server).stat(Key("key"))
    assert len(server.requests("PutObject")) == 2


def test_a_server_that_ignores_conditions_is_found_out(server, play, caplog):
    play(Rule(IgnoreCondition()))
    store = bare(server)
    store.write(Key("key"), b"first", if_absent=True)
    with pytest.raises(AlreadyExists):
        store.write(Key("key"), b"second", if_absent=True)
    assert server.get("some/prefix/key") == b"first"
    assert "does not keep If-None-Match" in caplog.text


def test_a_byte_that_flips_on_its_way_out_is_refused_and_sent_again(server, play):
    play(Rule(Flip(), First(1)))
    assert retrying(server).write(Key("key"), DATA).size_bytes == len(DATA)
    assert [record.status for record in server.requests("PutObject")] == [400, 200]
    assert server.get("some/prefix/key") == DATA


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "HeadObject"])
@pytest.mark.parametrize(
    "fault",
    [
        *(Answer(), Answer(500, "InternalError"), Reset(), Reset(after_bytes=0), Reset(after_bytes=30)),
        *(Answer(500, "InternalError", done=True), Answer(503, done=True), Reset(done=True)),
        *(Cut(), Cut(100), WrongLength(1), WrongLength(-1), WrongLength(-200)),
    ],
    ids=str,
)
def test_an_object_in_parts_survives_a_failure_of_each_of_its_requests(server, play, operation, fault):
    data = bytes(range(256)) * (9 * MIB // 256)
    play(Rule(fault, First(1), operation=operation))
    with retrying(server, part_bytes=8 * MIB).writer(Key("parts")) as writer:
        writer.write(data)
        info = writer.commit()
    assert server.get("some/prefix/parts") == data
    assert info == bare(server).stat(Key("parts"))
    assert len(server.requests()) <= 5 + 1 + 2  # a head that tells another length, or a second try and an abort


def test_parts_are_as_large_as_the_size_that_a_writer_is_told_needs(server, monkeypatch):
    for module in (object_options, object_writer):
        monkeypatch.setattr(module, "PARTS_MAX", 2)
    data = bytes(range(256)) * (20 * MIB // 256)
    store = retrying(server, part_bytes=8 * MIB)
    with store.writer(Key("unsaid")) as writer, pytest.raises(CapacityError):
        writer.write(data)
    with store.writer(Key("said"), size_bytes=len(data)) as writer:
        writer.write(data)
        writer.commit()
    assert len(server.requests("UploadPart", "*said")) == 2
    assert server.get("some/prefix/said") == data


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "CompleteMultipartUpload", "PutObject", "HeadObject"])
def test_a_page_instead_of_an_answer_is_not_taken_for_one_by_a_writer(server, play, operation):
    data = bytes(range(256)) * ((1 if operation == "PutObject" else 9) * MIB // 256)
    play(Rule(ErrorBody(), First(1), operation=operation))
    with retrying(server, part_bytes=8 * MIB).writer(Key("parts")) as writer:
        writer.write(data)
        assert writer.commit() == bare(server).stat(Key("parts"))
    assert server.get("some/prefix/parts") == data


def test_an_upload_whose_id_was_lost_is_begun_anew_but_not_for_ever(server, play):
    play(Rule(Cut(), operation="CreateMultipartUpload"))
    with retrying(server, part_bytes=8 * MIB).writer(Key("parts")) as writer, pytest.raises(Unavailable):
        writer.write(bytes(9 * MIB))
    assert [record.operation for record in server.requests()] == ["CreateMultipartUpload"] * POLICY.attempts
    for fault in (Answer(500, "InternalError"), Reset()):  # an outage is not made worse
        play(Rule(fault, operation="CreateMultipartUpload"))
        with (
            retrying(server, part_bytes=8 * MIB, attempts=2).writer(Key("parts")) as writer,
            pytest.raises(Unavailable),
        ):
            writer.write(bytes(9 * MIB))
        assert len(server.requests()) == 2
    play(Rule(Cut(), operation="CompleteMultipartUpload"), Rule(Answer(404, "NoSuchKey"), operation="HeadObject"))
    with retrying(server, part_bytes=8 * MIB).writer(Key("parts")) as writer:
        writer.write(bytes(9 * MIB))
        with pytest.raises(Unavailable):
            writer.commit()


@pytest.mark.parametrize("fault", LOST, ids=str)
def test_an_upload_that_nobody_answered_again_is_known_by_its_token(server, play, fault):
    play(Rule(fault, operation="CompleteMultipartUpload"))
    with retrying(server, part_bytes=8 * MIB, attempts=1).writer(Key("parts")) as writer:
        writer.write(bytes(9 * MIB))
        assert writer.commit() == bare(server).stat(Key("parts"))


def test_an_object_of_another_writer_is_not_taken_for_the_one_whose_answer_was_lost(server, play):
    data = bytes(9 * MIB)
    with retrying(server, part_bytes=8 * MIB).writer(Key("parts")) as writer:
        writer.write(data)
        with retrying(server, part_bytes=8 * MIB).writer(Key("parts")) as other:
            other.write(data)
            theirs = other.commit()
        play(Rule(Answer(404, "NoSuchUpload"), operation="CompleteMultipartUpload"))
        with pytest.raises(Unavailable, match="NoSuchUpload"):
            writer.commit()
    assert bare(server).stat(Key("parts")) == theirs  # the same size, the same ETag, and yet not ours


# What may happen to a request and is healed by making it again. Answers are longer than what is counted here.
HEALED = [
    Answer(503, "SlowDown"),
    Answer(500, "InternalError"),
    Answer(429, "TooManyRequests"),
    Reset(),
    Reset(after_bytes=0),
    Reset(after_bytes=100),
    Cut(0),
    Cut(100),
    WrongLength(1),
]
# The same, of answers to ranges alone.
HEALED_RANGES = [WrongLength(-1), WrongRange(), ShortRange()]


def assert_bounded(records, needed, every):
    """Of `every` requests one failed and was made again: `needed` succeeded, and no more were made than that."""
    failed = [record for record in records if record.fault]
    assert len(failed) == len(records) // every > 0
    assert len(records) - len(failed) == needed
    assert len(records) <= needed * every / (every - 1) + 1


@pytest.fixture
def samples(server):
    """A data set on the server: what its samples are."""
    rng = np.random.default_rng(1)
    samples = {f"s{number:03d}": rng.bytes(2000 + number) for number in range(64)}
    with closing(retrying(server)) as store, DatasetWriter(store, shard_bytes=32 << 10) as writer:
        for key, data in samples.items():
            writer.write(key, {"bin": data})
    assert len(server.keys("some/prefix/shard-")) > 2
    return samples


@pytest.fixture
def load():
    """A loader over the data set in a store, one epoch in batches of 8, sample by sample; closed at the end."""
    closing_later = []

    def load(store, gather_bytes=0):
        opened = open_dataset(store)
        manifest, blocks = opened.manifest, opened.blocks.sample_count
        recipe = plan_recipe(blocks, manifest.block_bytes, seed=3, global_batch_size=8, shuffle="window")
        order = Order(blocks, recipe, block_bytes=manifest.block_bytes, manifest_digest=manifest.digest)
        ledger = Ledger.create(None, LedgerIdentity(run="", rank=0, world=1, generation=1, host="host"))
        options = FeedOptions(deadline_s=20, gather_bytes=gather_bytes)
        loader = Loader(Dataset(store), opened, order=order, layout=Layout(), options=options, ledger=ledger)
        closing_later.extend((loader, ledger))
        return loader

    yield load
    for each in closing_later:
        each.close()


def deliver(loader, give_up_after=100):
    """All samples of an epoch, and the errors that were met; after an error the loop is begun again, so often."""
    got, errors = [], []
    while True:
        try:
            for batch in loader:
                got += [(key, bytes(data)) for key, data in zip(batch.sample_keys, batch["bin"], strict=True)]
            return got, errors
        except StokerError as error:
            errors.append(error)
            if len(errors) == give_up_after:
                return got, errors


@pytest.mark.parametrize("fault", [*HEALED, *HEALED_RANGES], ids=str)
def test_the_loader_delivers_every_sample_right_while_a_third_of_its_reads_fail(server, play, samples, load, fault):
    store = retrying(server, OFTEN)
    loader = load(store)
    play(Rule(fault, Every(3), operation="GetObject", key="*.tar"))
    got, errors = deliver(loader)
    assert errors == []
    assert dict(got) == samples
    assert len(got) == len(samples)
    assert_bounded(server.requests("GetObject", "*.tar"), len(samples), 3)
    assert store.stats().retries == len([record for record in server.requests() if record.fault])


@pytest.mark.parametrize("fault", [*HEALED, *HEALED_RANGES], ids=str)
def test_blocks_are_gathered_right_while_a_third_of_their_reads_fail(server, play, samples, load, fault):
    store = retrying(server, OFTEN)
    loader = load(store, gather_bytes=1 << 20)
    play(Rule(fault, Every(3), operation="GetObject", key="*.tar"))
    got, errors = deliver(loader)
    assert errors == []
    assert dict(got) == samples
    assert len(got) == len(samples)
    shards = len(server.keys("some/prefix/shard-"))
    assert_bounded(server.requests("GetObject", "*.tar"), shards, 3)
    assert loader.stats().reads == shards


@pytest.mark.parametrize("fault", [Flip(), Flip(0), Changed()], ids=str)
def test_a_byte_that_flips_on_its_way_to_a_block_is_never_data(server, play, samples, load, fault):
    loader = load(retrying(server), gather_bytes=1 << 20)
    play(Rule(fault, Nth(2), key="*.tar"))
    got, errors = deliver(loader, give_up_after=2)
    assert dict(got).items() <= samples.items()
    assert all(isinstance(error, DigestMismatch) and "crc32c" in error.what for error in errors)
    if isinstance(fault, Flip):  # what is wrong in the block is read again by itself
        assert (dict(got), len(got), errors) == (samples, len(samples), [])


@pytest.mark.alone
def test_the_loader_passes_over_a_stall(server, play, samples, load):
    loader = load(retrying(server, stall_timeout_s=1.0))
    play(Rule(Stall(30), Nth(5), key="*.tar"), Rule(Stall(30, after_bytes=100), Nth(9), key="*.tar"))
    got, errors = deliver(loader)
    assert (dict(got), errors) == (samples, [])
    assert len(server.requests("GetObject", "*.tar")) <= len(samples) * 1.2


@pytest.mark.parametrize("fault", [Flip(), Flip(0), Changed()], ids=str)
def test_a_byte_that_flips_on_its_way_to_the_loader_is_an_error_and_never_data(server, play, samples, load, fault):
    loader = load(retrying(server))
    play(Rule(fault, Nth(10), key="*.tar"))
    got, errors = deliver(loader, give_up_after=2)
    assert dict(got).items() <= samples.items()
    assert all(isinstance(error, DigestMismatch) and "crc32c" in error.what for error in errors)
    if isinstance(fault, Flip):  # on its way, not where it lies: asking again is right
        assert (dict(got), len(got), len(errors)) == (samples, len(samples), 1)
        assert len(server.requests("GetObject", "*.tar")) <= len(samples) * 1.5
    else:
        assert len(errors) == 2


def test_a_loader_that_may_not_read_says_so_at_once(server, play, samples, load):
    loader = load(retrying(server))
    play(Rule(Answer(403, "AccessDenied"), key="*.tar"))
    with pytest.raises(AccessDenied):
        next(iter(loader))
    loader.close()
    assert len(server.requests()) <= len(samples)


@pytest.mark.parametrize("fault", [Answer(), Answer(500, "InternalError", done=True), Reset(), Cut()], ids=str)
def test_what_is_packed_by_url_through_faults_is_trained_on_by_url_through_faults(
    server, play, tmp_path, monkeypatch, fault
):
    for name, value in (server.environ | {"AWS_MAX_ATTEMPTS": str(OFTEN.attempts)}).items():
        monkeypatch.setenv(name, value)
    rng = np.random.default_rng(2)
    samples = {f"s{number:02d}": rng.bytes(3000) for number in range(32)}
    for key, data in samples.items():
        (tmp_path / f"{key}.bin").write_bytes(data)
    play(Rule(fault, Every(6)))
    with closing(open_store(URL)) as store:
        report = pack(tmp_path, store, PackOptions(shard_bytes=32 << 10))
    assert (report.samples, report.shards > 2) == (32, True)
    packed = len(server.requests())
    identity = LedgerIdentity(run="", rank=0, world=1, generation=1, host="host")
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.create(None, identity))
        wish = OrderWish(global_batch_size=8, seed=1, shuffle="window")
        loader = stack.enter_context(open_loader(URL, wish, layout=Layout(), options=FeedOptions(), ledger=ledger))
        got, errors = deliver(loader)
    assert (dict(got), len(got), errors) == (samples, 32, [])
    records = server.requests()[packed:]
    failed = [record for record in records if record.fault]
    assert failed
    # A size and a read of manifest and two tables, by trainer and feeder, and of the offsets of each shard. And each
    # shard, which is one block.
    needed = report.shards + 2 * (2 * 3 + report.shards)
    assert len(records) - len(failed) == needed
    assert len(records) <= needed * 6 / 5 + 1


@pytest.mark.parametrize("fault", [*HEALED, *HEALED_RANGES], ids=str)
def test_a_data_set_opens_whichever_of_its_reads_fails(server, play, samples, fault):
    play()
    right = open_dataset(retrying(server)).manifest
    needed, reads = len(server.requests()), len(server.requests("GetObject"))
    assert reads > 2
    for turn in range(reads):
        play(Rule(fault, Nth(turn + 1), operation="GetObject"))
        assert open_dataset(retrying(server)).manifest == right
        assert len(server.requests()) == needed + 1


@pytest.mark.parametrize("fault", [Flip(), Flip(5), WrongLength(-1), WrongLength(-300), ErrorBody()], ids=str)
def test_metadata_that_are_damaged_on_their_way_are_right_or_a_typed_error(server, play, samples, fault):
    play()
    right = open_dataset(retrying(server))
    for turn in range(len(server.requests())):
        play(Rule(fault, Nth(turn + 1)))
        try:
            opened = open_dataset(retrying(server))
        except (IntegrityError, Unavailable, UnsupportedError):
            continue
        assert opened.manifest == right.manifest
        assert opened.blocks.sample_count.tolist() == right.blocks.sample_count.tolist()


def state(seed):
    rng = np.random.default_rng(seed)
    arrays = {
        "model.a": rng.integers(0, 255, CHUNK_BYTES, np.uint8),
        "model.b": rng.integers(0, 255, CHUNK_BYTES + 5, np.uint8),
    }
    return ArrayState(arrays, shared={"x": seed}, private={"y": seed}, stream=seed)


def same(one, other):
    arrays = one.arrays.keys() == other.arrays.keys() and all(
        one.arrays[name].tobytes() == other.arrays[name].tobytes() for name in one.arrays
    )
    return arrays and (one.shared, one.private, one.stream) == (other.shared, other.private, other.stream)


@pytest.fixture
def saved(server, tmp_path):
    """A step of state(1) on the server; the generation that goes on from it."""

    def begin():
        return start_generation(home, run="run", layout=Layout(), rendezvous=None, deadline_s=5)

    with closing(LocalStore(tmp_path, create=True)) as home:
        first = begin()
        ledger = Ledger.create(None, LedgerIdentity("run", 0, 1, first.number, "host"))
        checkpoint = Checkpoint(home, generation=first, state=state(1), data=None, every=10, ledger=ledger)
        checkpoint.save(after=9).wait()
        checkpoint.close()
        ledger.close()
        for info in home.list():
            server.put(f"some/prefix/{info.key}", home.read(info.key))
        return begin()


def restore(store, generation, target):
    return restore_step(store, generation, target, None)


@pytest.mark.parametrize("fault", HEALED, ids=str)
def test_a_restore_is_right_while_a_third_of_its_reads_fail(server, play, saved, fault):
    play()
    restore(retrying(server), saved, state(3))
    needed = len(server.requests())
    play(Rule(fault, Every(3)))
    target = state(2)
    restore(retrying(server, OFTEN), saved, target)
    assert same(target, state(1))
    assert_bounded(server.requests(), needed, 3)


@pytest.mark.parametrize("fault", HEALED_RANGES, ids=str)
def test_a_restore_is_right_while_half_of_its_ranges_are_wrong(server, play, saved, fault):
    play(Rule(fault, Every(2), key="*.safetensors"))
    target = state(2)
    restore(retrying(server, OFTEN), saved, target)
    assert same(target, state(1))
    records = server.requests(key="*.safetensors")
    assert_bounded(records, len(records) - len(records) // 2, 2)


@pytest.mark.parametrize("fault", [Flip(), Changed(), WrongLength(-1), ErrorBody(), IgnoreRange()], ids=str)
def test_a_restore_that_meets_wrong_bytes_is_right_or_a_typed_error_and_touches_nothing(server, play, saved, fault):
    play()
    restore(retrying(server), saved, state(3))
    needed = len(server.requests())
    whole = {key: server.get(key) for key in server.keys("some/prefix/")}
    found, healed = 0, not isinstance(fault, Flip | Changed)
    for turn in range(needed):
        for key, data in whole.items():
            server.put(key, data)
        play(Rule(fault, Nth(turn + 1)))
        target = state(2)
        try:
            restore(retrying(server), saved, target)
        except (IntegrityError, UnsupportedError):
            found += 1
            assert same(target, state(2))
        else:
            assert same(target, state(1))
        assert len(server.requests()) <= needed + (3 if healed else 1)
    assert bool(found) is not healed


@pytest.mark.alone
def test_a_restore_through_a_stall_goes_on_after_the_time_it_gives_a_read(server, play, saved):
    play(Rule(Stall(30, after_bytes=1 << 20), First(1), key="*.safetensors"))
    target = state(2)
    restore(retrying(server, stall_timeout_s=1.0), saved, target)
    assert same(target, state(1))
    assert len([record for record in server.requests() if record.fault]) == 1
