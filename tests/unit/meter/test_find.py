"""The ledgers of a run are found where they lie."""

from __future__ import annotations

import logging

import pytest

from stoker.errors import NewerFormat
from stoker.ledger import Ledger, LedgerIdentity, ledger_name
from stoker.meter.find import find_snapshots


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


def test_a_ledger_that_vanishes_between_listing_and_reading_is_not_missed(tmp_path):
    make(tmp_path, 0, 1)
    path = tmp_path / ledger_name(1, 1)
    real = Ledger.create(path, LedgerIdentity("run-42", 1, 2, 1, "node-a"))
    real.close()
    listed = sorted(tmp_path.glob("*"))
    path.unlink()

    class Directory:
        def glob(self, pattern):
            return listed

    assert found(Directory()) == [(1, 0)]
