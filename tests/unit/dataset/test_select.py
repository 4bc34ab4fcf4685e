import pytest

from stoker.dataset.select import Address, expand_braces, find_objects, is_tar, parse_address
from stoker.errors import ConfigError, DatasetError, EmptyDataset, NotFound
from stoker.store.memory import MemoryStore
from stoker.values import Key, ObjectInfo


@pytest.fixture
def shards():
    store = MemoryStore("shards")
    for key in ("a-000.tar", "a-001.tar", "b-000.tar", "deep/a-000.tar", "deep/er/a-000.tar", "notes.txt"):
        store.write(Key(key), b"x")
    return store


@pytest.mark.parametrize(
    ("url", "base", "pattern"),
    [
        ("train", "train", ""),
        ("s3://bucket/train", "s3://bucket/train", ""),
        ("s3://bucket/train/a-{000..012}.tar", "s3://bucket/train", "a-{000..012}.tar"),
        ("s3://bucket/{a,b}/x.tar", "s3://bucket", "{a,b}/x.tar"),
        ("memory://one/x-*.tar", "memory://one", "x-*.tar"),
        ("/data/x-?.tar", "/data", "x-?.tar"),
        ("/x-[ab].tar", "/", "x-[ab].tar"),
        ("x-*.tar", ".", "x-*.tar"),
        ("train/one.tar", "train", "one.tar"),
    ],
)
def test_a_url_is_split_before_its_pattern(url, base, pattern):
    assert parse_address(url) == Address(base, pattern)


def test_a_folder_that_exists_is_taken_by_its_name(tmp_path):
    odd = tmp_path / "a{b}[c].tar"
    odd.mkdir()
    assert parse_address(odd) == Address(str(odd), "")


def test_a_pattern_is_no_name_of_a_store():
    with pytest.raises(ConfigError, match="cannot stand for the name of a store"):
        parse_address("s3://{a,b}")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("{008..011}", ["008", "009", "010", "011"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{3..1}", ["3", "2", "1"]),
        ("x{a,b}y{0..1}", ["xay0", "xay1", "xby0", "xby1"]),
        ("{a,}", ["a", ""]),
    ],
)
def test_braces_spell_out_names(pattern, names):
    assert list(expand_braces(pattern)) == names


@pytest.mark.parametrize("pattern", ["{", "a}", "{a", "{{a,b}}", "{a}", "{}", "{1..}", "{a..b}"])
def test_other_braces_are_refused(pattern):
    with pytest.raises(ConfigError):
        list(expand_braces(pattern))


@pytest.mark.parametrize("pattern", ["{0..999999999999}", "{0..999999}{0..9}", "{0..%s}" % ("9" * 400), "{a,b}" * 21])
def test_more_names_than_make_sense_are_refused_at_once(pattern):
    with pytest.raises(ConfigError, match="more than 1,000,000 names"):
        list(expand_braces(pattern))


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("a-{000..001}.tar", ["a-000.tar", "a-001.tar"]),
        ("*.tar", ["a-000.tar", "a-001.tar", "b-000.tar"]),
        ("**/*.tar", ["deep/a-000.tar", "deep/er/a-000.tar"]),
        ("*/a-000.tar", ["deep/a-000.tar"]),
        ("{a,b}-000.tar", ["a-000.tar", "b-000.tar"]),
        ("{a,b}-*.tar", ["a-000.tar", "a-001.tar", "b-000.tar"]),
        ("[b-z]-00?.tar", ["b-000.tar"]),
        ("b-000.tar", ["b-000.tar"]),
    ],
)
def test_a_pattern_finds_what_matches_in_order(shards, pattern, keys):
    assert [info.key for info in find_objects(shards, pattern)] == keys


def test_names_that_are_not_there_are_counted(shards):
    with pytest.raises(NotFound, match=r"2 of 4 objects are not there: 'a-002.tar', 'a-003.tar'"):
        find_objects(shards, "a-{000..003}.tar")
    with pytest.raises(EmptyDataset, match="nothing matches"):
        find_objects(shards, "*.zip")


def test_archives_beside_other_files_must_be_named(shards):
    infos = find_objects(shards, "")
    with pytest.raises(DatasetError, match=r"5 tar archives stand beside 1 other files: 'notes.txt'"):
        is_tar(infos, "somewhere")
    assert is_tar(infos[:2], "")
    assert not is_tar([ObjectInfo(Key("a.jpg"), 1, "")], "")
