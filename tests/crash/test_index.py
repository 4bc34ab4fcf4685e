"""An index is killed at every place where it may die; the next one makes the same, and no source changes."""

from functools import partial

import numpy as np
import pytest

from stoker.dataset.index import index
from stoker.dataset.open import open_dataset
from stoker.dataset.sample import read_sample
from stoker.dataset.write import DatasetWriter
from stoker.errors import DatasetError
from stoker.store.local import LocalStore
from stoker.testing import crash

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module", params=["tars", "tree"])
def source(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "tree":
        for i in range(6):
            (folder / f"{i}.txt").write_bytes(b"%d" % i)
        return folder
    with DatasetWriter(LocalStore(folder / "set"), shard_bytes=2048) as writer:
        for i in range(6):
            writer.write(f"{i}", {"txt": b"%d" % i})
    (folder / "tars").mkdir()
    for path in (folder / "set").glob("*.tar"):
        path.rename(folder / "tars" / path.name)
    return folder / "tars"


def run_index(source, place):
    index(LocalStore(source), "", LocalStore(place))


def files_of(place):
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_point_to_die_stands_between_every_two_durable_operations_of_an_index(source, tmp_path):
    crash.assert_point_between_durables(crash.trace(partial(run_index, source, tmp_path / "index")))


def test_an_index_killed_anywhere_shows_nothing_or_all_and_the_next_one_finishes_it(source, tmp_path):
    before = files_of(source)
    events = crash.trace(partial(run_index, source, tmp_path / "whole"))
    expected = files_of(tmp_path / "whole")
    seen = set()
    for number, spec in enumerate(crash.every_pass(events)):
        place = tmp_path / f"killed-{number}"
        assert crash.run_killed(partial(run_index, source, place), spec) == crash.KILLED
        whole = (place / "manifest.json").exists()
        seen.add(whole)
        if whole:
            opened = open_dataset(LocalStore(place), LocalStore(source))
            assert [read_sample(opened, i) for i in range(6)] == [{"txt": b"%d" % i} for i in range(6)]
            assert opened.keys(np.arange(6)) == [str(i) for i in range(6)]
        else:
            with pytest.raises(DatasetError, match="not a data set"):
                open_dataset(LocalStore(place))
        run_index(source, place)
        assert files_of(place) == expected
    assert number > 15
    assert seen == {False, True}
    assert files_of(source) == before
