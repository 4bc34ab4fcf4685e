"""Settings: argument beats environment beats file beats default, each says where it comes from, and what is wrong is
an error that names the place and what would be right.
"""

import dataclasses
import inspect
import os
from pathlib import Path

import pytest

from stoker import config
from stoker.checkpoint.save import SaveOptions
from stoker.config import RULES, SECTIONS, Config, load_config
from stoker.errors import ConfigError
from stoker.feed.options import FEEDERS, FeedOptions
from stoker.io.choose import ENGINES
from stoker.units import GIB, KIB, MIB

UID = os.geteuid()


@pytest.fixture
def load(tmp_path):
    """Load settings with a text as the file, variables, and arguments."""

    def load(text="", arguments=None, **environ):
        path = tmp_path / "stoker.toml"
        path.write_text(text)
        path.chmod(0o600)
        return load_config(environ, tmp_path, arguments, uid=UID)

    return load


def values(found):
    return {setting.name: (setting.value, setting.source) for setting in found.settings()}


def test_without_anything_every_value_is_its_default(tmp_path):
    found = load_config({}, tmp_path, uid=UID)
    assert found == Config()
    assert {source for _, source in values(found).values()} == {"default"}
    assert found.file is None


def test_the_later_beats_the_earlier_and_says_where_it_comes_from(load, tmp_path):
    text = "# mine\n[feed]\nthreads = 3\nprefetch_bytes = '1GiB'\ndeadline_s = 5\n"
    found = load(text, {"feed.prefetch_bytes": 7, "feed.deadline_s": None}, STOKER_FEED_THREADS="4")
    assert dataclasses.astuple(found.feed) == (7, None, 4, None, 5.0, "auto")
    where = tmp_path / "stoker.toml"
    assert found.file == where
    assert values(found) | {
        "feed.prefetch_bytes": (7, "argument"),
        "feed.threads": (4, "environment STOKER_FEED_THREADS"),
        "feed.deadline_s": (5.0, f"{where}:5"),
        "report.gpu_hour_price": (None, "default"),
    } == values(found)


def test_a_file_found_in_the_current_directory_is_called_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stoker.toml").write_text("[report]\ngpu_hour_price = 2\n")
    Path("stoker.toml").chmod(0o600)
    assert values(load_config({}, Path(), uid=UID))["report.gpu_hour_price"] == (2.0, "stoker.toml:2")


@pytest.mark.parametrize(
    ("name", "written", "variable", "value"),
    [
        ("tiers.nvme.path", '"/a/b"', "/a/b", Path("/a/b")),
        ("tiers.object.url", '"s3://b/p"', "s3://b/p", "s3://b/p"),
        ("tiers.object.region", '"eu-north-1"', "eu-north-1", "eu-north-1"),
        ("tiers.object.allow_http", "true", "yes", True),
        ("tiers.object.allow_http", "false", "0", False),
        ("feed.prefetch_bytes", '"64KiB"', "64KiB", 64 * KIB),
        ("feed.prefetch_bytes", "0", "0", 0),
        ("feed.prefetch_bytes", '"1.5GiB"', "1.5GiB", 3 * GIB // 2),
        ("feed.threads", "0x10", "16", 16),
        ("feed.deadline_s", '"500ms"', "500ms", 0.5),
        ("feed.deadline_s", "1.5", "1.5", 1.5),
        ("checkpoint.deadline_s", '"1h"', "1h", 3600.0),
        ("checkpoint.engine", '"direct"', "direct", "direct"),
        ("report.gpu_hour_price", "2", "2", 2.0),
    ],
)
def test_every_kind_of_value_is_read_from_file_and_environment(load, name, written, variable, value):
    section, _, key = name.rpartition(".")
    for found in (load(f"[{section}]\n{key} = {written}"), load(**{RULES[name].variable: variable})):
        taken = values(found)[name][0]
        assert (taken, type(taken)) == (value, type(value))


def test_a_relative_path_in_a_file_starts_at_the_file_and_one_in_the_environment_where_the_process_does(load, tmp_path):
    assert load('[tiers.shared]\npath = "s"').tiers.shared.path == tmp_path / "s"
    assert load(STOKER_SHARED="s").tiers.shared.path == Path("s")
    assert load('[tiers.nvme]\npath = "~/n"').tiers.nvme.path == Path("~/n").expanduser()


def test_an_empty_variable_says_nothing(load):
    assert load('[tiers.nvme]\npath = "/n"', STOKER_NVME="").tiers.nvme.path == Path("/n")


@pytest.mark.parametrize(
    ("text", "line", "what", "hint"),
    [
        ("\n[feed]\nthread = 1", 3, "unknown key 'feed.thread'", "'feed.threads'"),
        ("feed.prefetch_byte = 1", 1, "unknown key 'feed.prefetch_byte'", "'feed.prefetch_bytes'"),
        ("[tiers.nvme]\nprefetch_bytes = 1", 2, "unknown key 'tiers.nvme.prefetch_bytes'", "'feed.prefetch_bytes'"),
        ("[tier.nvme]\npath = '/x'", 2, "unknown section or key 'tier.nvme.path'", "'tiers.nvme.path'"),
        ("\n\n[fed]", 3, "unknown key 'fed'", ""),
        ("[feed.more]\na = 1", 2, "unknown section or key 'feed.more.a'", ""),
        (
            "feed = 3",
            1,
            "'feed' is a section, not a key",
            "write [feed] with prefetch_bytes, gather_bytes, threads, map_workers, deadline_s",
        ),
        ("tiers = 'x'", 1, "'tiers' is a section, not a key", "write [tiers]"),
        ("[feed]\nthreads = 0", 2, "feed.threads is 0", "it must be 1 or more"),
        ("[feed]\nthreads = 1.5", 2, "feed.threads is 1.5, not a whole number", ""),
        ("[feed]\nthreads = true", 2, "feed.threads is True, not a whole number", ""),
        ("[feed]\nthreads = '4'", 2, "feed.threads is '4', not a whole number", ""),
        ("[feed]\nthreads = [1,\n2]", 2, "feed.threads is a list, not a whole number", ""),
        ("[feed]\nthreads = {}", 2, "feed.threads is a dict, not a whole number", ""),
        ("[feed]\nprefetch_bytes = '1 parsec'", 2, "feed.prefetch_bytes: not a size: '1 parsec'", "64MiB"),
        ("[feed]\nprefetch_bytes = 1.5", 2, "feed.prefetch_bytes is 1.5, not a size", ""),
        ("[feed]\nprefetch_bytes = -1", 2, "feed.prefetch_bytes is -1", "0 or more"),
        (f"[feed]\nprefetch_bytes = '{'9' * 400}KiB'", 2, "feed.prefetch_bytes is a number beyond all measure", ""),
        ("[feed]\ndeadline_s = '5 parsecs'", 2, "feed.deadline_s: not a duration: '5 parsecs'", "30s"),
        ("[feed]\ndeadline_s = nan", 2, "feed.deadline_s is nan, not a duration", ""),
        (f"[feed]\ndeadline_s = 1{'0' * 400}", 2, "feed.deadline_s is a number beyond all measure", ""),
        ("[report]\ngpu_hour_price = 'much'", 2, "report.gpu_hour_price is 'much', not a number", ""),
        ("[checkpoint]\nengine = 'fast'", 2, "checkpoint.engine is 'fast'", "one of auto, direct, buffered"),
        ("[tiers.nvme]\npath = ''", 2, "tiers.nvme.path is '', not a path", ""),
        ("[tiers.nvme]\npath = 3", 2, "tiers.nvme.path is 3, not a path", ""),
        ("[tiers.object]\nallow_http = 1", 2, "tiers.object.allow_http is 1, not true or false", ""),
        ("a = 1\na = 2", 2, "not TOML: cannot overwrite a value", ""),
        ("a = 1\nb =", 2, "not TOML: invalid value", ""),
        (f"a = {'[' * 5000}", 1, "not TOML: ", ""),
        (f"a = 1{'0' * 5000}", 1, "not TOML: ", ""),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line_and_what_would_be_right(load, tmp_path, text, line, what, hint):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert what in caught.value.what
    assert caught.value.where.startswith(f"{tmp_path / 'stoker.toml'}:{line}")
    assert hint in caught.value.hint
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("variable", "text", "what"),
    [
        ("STOKER_FEED_THREADS", "four", "feed.threads is 'four', not a whole number"),
        ("STOKER_FEED_THREADS", "0", "feed.threads is 0"),
        ("STOKER_OBJECT_ALLOW_HTTP", "perhaps", "tiers.object.allow_http is 'perhaps', not true or false"),
        ("STOKER_FEED_DEADLINE_S", "inf", "feed.deadline_s is inf, not a duration"),
        ("STOKER_CHECKPOINT_ENGINE", "fast", "checkpoint.engine is 'fast'"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named_with_its_variable(load, variable, text, what):
    with pytest.raises(ConfigError) as caught:
        load(**{variable: text})
    assert what in caught.value.what
    assert variable in caught.value.where


def test_a_misspelt_variable_is_refused_and_a_stranger_is_let_be(load):
    with pytest.raises(ConfigError, match=r"(?s)unknown variable STOKER_FEED_THREAD.*STOKER_FEED_THREADS"):
        load(STOKER_FEED_THREAD="4")
    with pytest.raises(ConfigError, match="STOKER_CONFIG"):
        load(STOKER_CONFG="x")
    load(STOKER_PORT="tcp://10.0.0.1:80", STOKER_SERVICE_HOST="10.0.0.1", STOKER_PORT_80_TCP_PROTO="tcp")


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"[tiers.object]\nsecret_access_key = '{SECRET}'",
        f"[tiers.object]\naccess_key_id = '{SECRET}'",
        f"password = '{SECRET}'",
        f"[credentials]\nx = '{SECRET}'",
        f"[tiers.object]\nsession_token = {{ a = '{SECRET}' }}",
        f"[tiers.object]\nurl = 's3://key:{SECRET}@bucket/p'",
        f"[tiers.object]\nendpoint = 'https://{SECRET}@host'",
    ],
)
def test_a_secret_is_refused_where_to_put_it_is_said_and_it_is_not_shown(load, text):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert "AWS environment" in caught.value.hint
    assert SECRET not in str(caught.value)


def test_an_inline_table_is_a_section(load, tmp_path):
    found = load('# x\ntiers = { nvme = { path = "/n" } }')
    assert values(found)["tiers.nvme.path"] == (Path("/n"), f"{tmp_path / 'stoker.toml'}:2")
    assert load("[tiers.nvme]\n[feed]\n[tiers]").sources == {}


def test_sections_are_small_and_frozen_and_every_key_has_its_variable():
    sections = [c for _, c in inspect.getmembers(config, dataclasses.is_dataclass) if c.__module__ == config.__name__]
    assert len(sections) > 6
    assert [c.__name__ for c in sections if len(dataclasses.fields(c)) > 8 or not c.__dataclass_params__.frozen] == []
    variables = [rule.variable for rule in RULES.values()]
    assert len(set(variables)) == len(variables)
    assert all(variable.startswith("STOKER_") for variable in variables)
    assert set(SECTIONS) == {name.rpartition(".")[0] for name in RULES} | {"tiers"}


def test_the_defaults_are_those_of_the_rooms():
    defaults = Config()
    feed, saves = FeedOptions(), SaveOptions()
    assert dataclasses.astuple(defaults.feed) == (
        feed.prefetch_bytes,
        None,  # of gather_bytes: test_memory_share.py
        feed.threads,
        feed.map_workers,
        feed.deadline_s,
        feed.feeder,
    )
    assert (defaults.checkpoint.deadline_s, defaults.checkpoint.limit_s) == (saves.deadline_s, saves.limit_s)
    assert config.ENGINES == ENGINES
    assert config.FEEDERS == FEEDERS
    assert defaults.feed.prefetch_bytes == 256 * MIB
