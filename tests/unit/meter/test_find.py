"""The ledgers of a run are found where they lie."""

from __future__ import annotations

import logging

import pytest

from stoker.errors import AccessDenied, NewerFormat, Unavailable
from stoker.ledger import Ledger, LedgerIdentity, ledger_name
from stoker.meter.find import find_far_snapshots, find_snapshots
from stoker.store.memory import MemoryStore
from stoker.testing import Fault, FaultStore, RecordingStore
from stoker.values import Key


def make(directory, rank=0, generation=1):
    directory.mkdir(exist_ok=True)
    path = directory / ledger_name(rank, generation)
    Ledger.create(path, LedgerIdentity("run-42", rank, 2, generation, "node-a")).close()
    return path


def found(*directories):
    return [(s.identity.generation, s.identity.rank) for s in find_snapshots(*directories)]


def test_ledgers_of_all_directories_are_read_and_missing_directories_hold_none(tmp_path):
    make(tmp_path / "node", 0, 1)
    make(tmp_path / "node", 1, 2)
    make(tmp_path / "home", 0, 1)
    assert found(tmp_path / "node", tmp_path / "home", tmp_path / "none") == [(1, 0), (2, 1), (1, 0)]


def test_what_is_not_named_like_a_ledger_is_not_opened(tmp_path):
    make(tmp_path, 0, 1)
    (tmp_path / "rank-00000.lock").write_text("{}")
    (tmp_path / "rank-00000.g0001.ledger.tmp").write_text("")
    (tmp_path / "rank-x.ledger").write_text("")
    assert found(tmp_path) == [(1, 0)]


@pytest.mark.parametrize("content", [b"", b"x" * 1000])
def test_an_unfinished_or_damaged_ledger_is_passed_over_with_a_warning(tmp_path, caplog, content):
    make(tmp_path, 0, 1)
    (tmp_path / ledger_name(0, 2)).write_bytes(content)
    with caplog.at_level(logging.WARNING, logger="stoker.meter"):
        assert found(tmp_path) == [(1, 0)]
    assert "rank-00000.g0002.ledger" in caplog.text


def test_a_newer_ledger_is_refused(tmp_path):
    path = make(tmp_path, 0, 1)
    image = bytearray(path.read_bytes())
    image[8] = 9
    path.write_bytes(image)
    with pytest.raises(NewerFormat):
        find_snapshots(tmp_path)


@pytest.fixture
def closed(tmp_path, obeys_modes):
    """A folder with a ledger that this user may not look into."""
    make(tmp_path / "closed", 1, 1)
    (tmp_path / "closed").chmod(0)
    yield tmp_path / "closed"
    (tmp_path / "closed").chmod(0o700)


def test_a_folder_that_is_closed_is_an_error_if_it_is_all_there_is(closed, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(AccessDenied, match="cannot look for ledgers: permission denied") as caught:
        find_snapshots(tmp_path / "empty", closed)
    assert caught.value.where == str(closed)


def test_a_folder_that_is_closed_is_said_beside_ledgers_found_elsewhere_or_at_hand(closed, tmp_path, caplog):
    make(tmp_path / "node", 0, 1)
    assert found(closed, tmp_path / "node") == [(1, 0)]
    assert f"not in the report: cannot look for ledgers: permission denied\n  where: {closed}" in caplog.text
    caplog.clear()
    assert find_snapshots(closed, at_hand=find_snapshots(tmp_path / "node")) == []
    assert str(closed) in caplog.text


def test_what_is_no_folder_holds_none(tmp_path):
    (tmp_path / "file").touch()
    assert found(tmp_path / "file", tmp_path / "file" / "below") == []


def test_a_ledger_that_vanishes_between_listing_and_reading_is_not_missed(tmp_path, monkeypatch):
    make(tmp_path, 0, 1)
    path = tmp_path / ledger_name(1, 1)
    real = Ledger.create(path, LedgerIdentity("run-42", 1, 2, 1, "node-a"))
    real.close()
    listed = list(tmp_path.iterdir())
    path.unlink()
    monkeypatch.setattr(type(tmp_path), "iterdir", lambda _: iter(listed))
    assert found(tmp_path) == [(1, 0)]


@pytest.fixture
def far(tmp_path):
    """The far tier of a run: two ledgers of an earlier start, and one that is at hand too."""
    store = MemoryStore("far")
    for rank, generation in ((0, 1), (1, 1), (0, 2)):
        path = make(tmp_path / "gone", rank, generation)
        store.write(Key(f"ledger/{path.name}"), path.read_bytes())
    store.write(Key("ledger/notes"), b"")
    store.write(Key("step-1/rank-00000.g0009.ledger"), b"")
    return store


def test_of_the_far_tier_only_ledgers_that_are_not_at_hand_are_read(far, tmp_path):
    make(tmp_path / "node", 0, 2)
    at_hand = find_snapshots(tmp_path / "node")
    asked = []

    class Asked(RecordingStore):
        def read(self, key, *span):
            asked.append(key)
            return self.inner.read(key, *span)

    found = find_far_snapshots(Asked(far), at_hand)
    assert sorted((s.identity.generation, s.identity.rank) for s in found) == [(1, 0), (1, 1)]
    assert sorted(asked) == ["ledger/rank-00000.g0001.ledger", "ledger/rank-00001.g0001.ledger"]
    assert find_far_snapshots(None, at_hand) == []


def test_damage_in_the_far_tier_is_passed_over_and_a_newer_format_is_not(far, caplog):
    far.write(Key("ledger/rank-00001.g0001.ledger"), b"x" * 1000)
    with caplog.at_level(logging.WARNING, logger="stoker.meter"):
        assert len(find_far_snapshots(MemoryStore("far", far.contents), [])) == 2
    assert "rank-00001.g0001.ledger" in caplog.text
    image = bytearray(far.read(Key("ledger/rank-00000.g0001.ledger")))
    image[8] = 9
    far.write(Key("ledger/rank-00000.g0001.ledger"), image)
    with pytest.raises(NewerFormat):
        find_far_snapshots(far, [])


@pytest.mark.parametrize("error", [Unavailable("away"), AccessDenied("not yours")], ids=str)
@pytest.mark.parametrize("what", ["list", "read"])
def test_a_far_tier_that_cannot_be_reached_is_said_and_is_an_error_only_if_nothing_else_is_there(
    far, tmp_path, caplog, error, what
):
    make(tmp_path / "node", 0, 3)
    at_hand = find_snapshots(tmp_path / "node")
    with caplog.at_level(logging.WARNING, logger="stoker.meter"):
        assert find_far_snapshots(FaultStore(MemoryStore("far", far.contents), [Fault(what, error)]), at_hand) == []
    assert "far tier are not in the report" in caplog.text
    with pytest.raises(type(error)):
        find_far_snapshots(FaultStore(far, [Fault(what, error)]), [])
