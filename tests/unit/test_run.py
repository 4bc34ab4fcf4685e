"""The user's view: stoker.open, a loader, a checkpoint, a report."""

import contextlib
import copy
import gc
import json
import os
import pickle
import shutil
import threading
import time
from pathlib import Path

import pytest

import stoker
from stoker.errors import (
    ClosedError,
    ConfigError,
    EmptyDataset,
    Fenced,
    LayoutError,
    NotFound,
    RunBusy,
    StokerError,
    UnsupportedError,
)
from stoker.store.local import LocalStore
from stoker.store.open import open_store

torch = pytest.importorskip("torch")


def made(directory):
    """The directory, there."""
    if directory is not None:
        directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    with stoker.writer(folder) as w:
        for i in range(100):
            w.write(f"s{i:03d}", {"txt": f"sample {i}".encode(), "n.json": json.dumps({"i": i}).encode()})
    return folder


def described(data):
    return stoker.Dataset(data).fields("txt", "n.json").decode({"txt": "text", "n.json": "json"})


def train(nvme, data, *, stop_after=None, shared=None, far=None, every=5):
    """A whole user program; returns (keys per step, weights)."""
    torch.manual_seed(0)
    with stoker.open(run="r", nvme=nvme, shared=made(shared), object=far) as run:
        loader = run.loader(described(data), global_batch_size=8, seed=3, epochs=2)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        state = run.checkpoint(model=model, optimizer=optimizer, data=loader, every=every)
        state.restore()
        steps = {}
        for batch in loader:
            steps[batch.step] = list(batch.sample_keys)
            numbers = torch.tensor([[float(row["i"])] * 4 for row in batch["n.json"]])
            model(numbers / 100).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            state.save_if_due(after=batch)
            if stop_after is not None and batch.step + 1 == stop_after:
                break
    return steps, [p.detach().clone() for p in model.parameters()]


def test_a_run_that_stops_and_starts_again_ends_as_one_that_never_stopped(tmp_path, data):
    whole, weights = train(tmp_path / "a", data)
    first, _ = train(tmp_path / "b", data, stop_after=13)
    second, resumed_weights = train(tmp_path / "b", data)
    assert list(whole) == list(range(24))
    assert (list(first), list(second)) == (list(range(13)), list(range(10, 24)))
    assert {**first, **second} == whole
    assert all(torch.equal(a, b) for a, b in zip(weights, resumed_weights, strict=True))


def test_a_finished_run_yields_nothing_more_and_says_that_it_ended(tmp_path, data):
    train(tmp_path / "a", data)
    again, _ = train(tmp_path / "a", data)
    assert again == {}
    home = tmp_path / "a" / "checkpoint" / "r"
    assert json.loads((home / "ended.json").read_text())["generation"] == 1
    assert sorted(p.name for p in (home / "ledger").iterdir()) == ["rank-00000.g0001.ledger", "rank-00000.g0002.ledger"]


def test_the_shared_tier_is_the_home_of_the_checkpoints_when_it_is_given(tmp_path, data):
    train(tmp_path / "n", data, shared=tmp_path / "s")
    assert (tmp_path / "s" / "r" / "step-00000024.g0001" / "MANIFEST.json").exists()
    assert not (tmp_path / "n" / "checkpoint").exists()


def files(root):
    return {
        str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and "ledger" not in p.parts
    }


def lose_all_but_the_object_tier(tmp_path, data, shared, far):
    """A run that stops, its directories gone, and goes on; against one that never stopped."""
    whole, weights = train(tmp_path / "a", data)
    first, _ = train(tmp_path / "b", data, stop_after=13, shared=shared, far=far)
    home = shared / "r" if shared else tmp_path / "b" / "checkpoint" / "r"
    saved = files(home)
    shutil.rmtree(tmp_path / "b")
    shutil.rmtree(tmp_path / "shared", ignore_errors=True)
    second, resumed_weights = train(tmp_path / "b", data, shared=shared, far=far)
    assert {**first, **second} == whole
    assert list(second) == list(range(10, 24))
    assert all(torch.equal(a, b) for a, b in zip(weights, resumed_weights, strict=True))
    with contextlib.closing(open_store(f"{far}/r")) as store:
        found = {str(info.key): store.read(info.key) for info in store.list()}
    assert saved.items() <= found.items()
    assert {"step-00000024.g0002/MANIFEST.json", "ended.json", "gen-0002.json"} <= found.keys()
    with stoker.open(run="r", nvme=tmp_path / "b", shared=shared, object=far) as run:
        report = run.report()
    assert [g.generation for g in report.generations] == [1, 2, 3]
    assert report.steps == 13 + 14
    assert (report.drain.failed, report.drain.backlog) == (0, 0)
    assert report.drain.steps + report.drain.overtaken >= 2
    assert "reached the far tier" in str(report)
    assert {name for name in found if name.startswith("ledger/")} == {
        "ledger/rank-00000.g0001.ledger",
        "ledger/rank-00000.g0002.ledger",
    }


@pytest.mark.parametrize("near", ["nvme", "shared"])
def test_with_an_object_tier_a_run_survives_the_loss_of_everything_else(tmp_path, data, near):
    shared = tmp_path / "shared" if near == "shared" else None
    lose_all_but_the_object_tier(tmp_path, data, shared, f"file://{tmp_path}/object")


def test_the_same_holds_for_a_bucket(tmp_path, data, object_server, monkeypatch):
    for name, value in object_server.environ.items():
        monkeypatch.setenv(name, value)
    lose_all_but_the_object_tier(tmp_path, data, None, object_server.new_url())


@pytest.mark.parametrize("near", ["nvme", "shared"])
def test_a_save_reaches_the_tiers_of_the_run_in_turn(tmp_path, data, near):
    shared = tmp_path / "shared" if near == "shared" else None
    with stoker.open(run="r", nvme=tmp_path / "n", shared=made(shared), object=f"memory://{tmp_path.name}") as run:
        state = run.checkpoint(torch.nn.Linear(2, 2), data=run.loader(described(data), global_batch_size=8))
        assert state.restore() is None
        save = state.save(after=0)
        save.wait(until="object")
        assert save.reached == (near, "object")
        with pytest.raises(ConfigError, match=f"wait for '{near}' or 'object'"):
            save.wait(until="nvme" if near == "shared" else "shared")
        assert state.stats().drains.drained == 1


def test_several_nodes_need_a_shared_tier_also_with_an_object_tier(tmp_path):
    layout = stoker.Layout(dp_rank=0, dp_size=2, node=0, nodes=2)
    with pytest.raises(ConfigError, match="spans 2 nodes but has no shared tier"):
        stoker.open(run="r", nvme=tmp_path, object="memory://runs", layout=layout)


def test_saves_are_named_after_the_tier_they_go_to(tmp_path, data):
    with stoker.open(run="r", nvme=tmp_path / "n") as run:
        state = run.checkpoint(torch.nn.Linear(2, 2), data=run.loader(described(data), global_batch_size=8))
        save = state.save(after=0)
        save.wait(until="nvme")
        assert save.reached == ("nvme",)
        with pytest.raises(ConfigError, match="shared"):
            save.wait(until="shared")


def test_a_run_that_saves_beside_steps_it_did_not_restore_is_told_so_once(tmp_path, caplog):
    with stoker.open(run="r", nvme=tmp_path) as run:
        run.checkpoint(torch.nn.Linear(1, 1)).save(after=61)
    assert "restore() was not called" not in caplog.text
    with stoker.open(run="r", nvme=tmp_path) as run:
        state = run.checkpoint(torch.nn.Linear(1, 1))
        state.save(after=4)
        state.save(after=5)
    assert caplog.text.count("run 'r' has step 62, but restore() was not called") == 1


def test_a_second_checkpoint_in_one_run_is_refused(tmp_path):
    with stoker.open(run="r", nvme=tmp_path) as run:
        run.checkpoint(torch.nn.Linear(1, 1))
        with pytest.raises(ConfigError, match="checkpoint already"):
            run.checkpoint(torch.nn.Linear(1, 1))


def fail_in_training(tmp_path, data, monkeypatch):
    with stoker.open(run="r", nvme=tmp_path / "n") as run:
        state = run.checkpoint(torch.nn.Linear(2, 2), data=run.loader(described(data), global_batch_size=8))
        (tmp_path / "n" / "checkpoint" / "r").rename(tmp_path / "gone")
        (tmp_path / "n" / "checkpoint" / "r").write_text("in the way: the save in the background must fail")
        state.save(after=0)
        raise ZeroDivisionError("training failed first")


def test_an_error_in_training_is_not_hidden_by_a_save_that_fails_too(tmp_path, data, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        fail_in_training(tmp_path, data, monkeypatch)


def test_batches_are_mappings_with_step_epoch_valid_and_keys(tmp_path, data):
    with stoker.open(nvme=tmp_path / "n") as run:
        loader = run.loader(described(data), global_batch_size=8, seed=3, epochs=2)
        assert len(loader) == 24
        batches = list(loader)
    batch = batches[13]
    assert sorted(batch) == ["n.json", "txt"]
    assert (batch.step, batch.epoch, len(batch.sample_keys), batch.valid.all()) == (13, 1, 8, True)
    assert [f"s{row['i']:03d}" for row in batch["n.json"]] == list(batch.sample_keys)
    assert batch["txt"] == [f"sample {row['i']}" for row in batch["n.json"]]


def test_evaluation_sees_every_sample_once_and_marks_the_pads(tmp_path, data):
    with stoker.open(nvme=tmp_path / "n") as run:
        loader = run.loader(described(data), global_batch_size=8, shuffle=False)
        for _ in range(2):
            seen = [key for batch in loader for key, valid in zip(batch.sample_keys, batch.valid, strict=True) if valid]
            assert seen == [f"s{i:03d}" for i in range(100)]
        assert len(loader) == 13


@pytest.mark.parametrize(("setting", "feeder"), [("", "child"), ("child", "child"), ("inline", "inline")])
def test_batches_are_made_in_a_child_process_unless_a_setting_says_otherwise(
    tmp_path, data, monkeypatch, setting, feeder
):
    monkeypatch.setenv("STOKER_FEED_FEEDER", setting)
    with stoker.open(nvme=tmp_path / "n") as run:
        loader = run.loader(str(data), global_batch_size=8, prefetch_bytes="1MiB")
        assert next(iter(loader)).step == 0
        assert (loader.stats().feeder, loader.stats().budget_bytes) == (feeder, 1 << 20)


def test_a_data_set_at_a_path_that_is_no_utf_8_is_read(tmp_path, data, monkeypatch):
    here = tmp_path / os.fsdecode(b"r\xe9sum\xe9")
    packed, tree = here / "data", here / "tree"
    shutil.copytree(data, packed)
    tree.mkdir()
    for i in range(8):
        (tree / f"{i}.txt").write_text(f"sample {i}")
    monkeypatch.syspath_prepend(str(here))
    with stoker.open(nvme=tmp_path / "n") as run:
        for place in (packed, tree):
            loader = run.loader(place, global_batch_size=8, prefetch_bytes="1MiB")
            assert bytes(next(iter(loader))["txt"][0]).startswith(b"sample ")
            assert loader.stats().feeder == "child"


def test_options_that_are_refused_leave_no_feeder_behind(tmp_path, data, monkeypatch):
    from stoker.feed import start as start_module

    started = []
    start_child = start_module.start_child
    monkeypatch.setattr(start_module, "start_child", lambda: started.append(start_child()) or started[-1])
    with stoker.open(nvme=tmp_path / "n") as run:
        for options in ({"epochs": 0}, {"prefetch_bytes": "much"}, {"shuffle": "no"}):
            with pytest.raises(ConfigError):
                run.loader(data, **{"global_batch_size": 8} | options)
            with pytest.raises(EOFError):
                started[-1].channel.receive(0)
    assert len(started) == 3


@pytest.fixture
def children(monkeypatch):
    """Those that were started, in order."""
    from stoker.feed import start as start_module

    started = []
    start_child = start_module.start_child
    monkeypatch.setattr(start_module, "start_child", lambda: started.append(start_child()) or started[-1])
    return started


def open_files():
    """What the open files of this process are, in order."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # what lists them
            found.append(str(fd.readlink()))
    return sorted(found)


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


def test_an_open_that_fails_or_is_interrupted_leaves_no_process_and_no_descriptor(
    tmp_path, data, monkeypatch, children, until, capfd
):
    shutil.copytree(data, tmp_path / "damaged")
    (tmp_path / "damaged" / "objects.arrow").write_bytes(b"no table")
    (tmp_path / "empty").mkdir()
    places = [tmp_path / "none", tmp_path / "empty", tmp_path / "damaged", stoker.Dataset(data).fields("no-such")]
    with stoker.open(nvme=tmp_path / "n") as run:
        run.loader(data, global_batch_size=8).close()
        gc.collect()
        before = open_files()
        for place in places:
            with pytest.raises(StokerError):
                run.loader(place, global_batch_size=8)
        for step in ("open._fix_order", "options.FeedOptions.of", "loader.pack_hello", "child.ChildFeeder._begin"):
            with monkeypatch.context() as patch:
                patch.setattr(f"stoker.feed.{step}", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    run.loader(data, global_batch_size=8)
        gc.collect()
        assert len(children) == 9
        until(lambda: all(child._process.poll() is not None for child in children))
        assert open_files() == before
    assert not any(Path(f"/proc/{child.pid}").exists() for child in children)
    assert capfd.readouterr() == ("", "")


@pytest.mark.alone
def test_an_evaluation_between_two_steps_is_neither_compute_nor_wait(tmp_path, data, monkeypatch):
    monkeypatch.setenv("STOKER_FEED_FEEDER", "inline")  # the start of a child is a wait
    with stoker.open(run="r", nvme=tmp_path / "n") as run:
        evaluation = run.loader(described(data), global_batch_size=50, shuffle=False)
        for batch in run.loader(described(data), global_batch_size=8):
            if batch.step == 5:
                assert sum(1 for _ in evaluation if not time.sleep(0.2)) == 2
        report = run.report().to_json()
    assert (report["steps"], report["samples"]) == (12, 96)
    assert report["compute_s"] + report["wait_s"] < 0.4


def test_the_report_knows_steps_and_utilisation(tmp_path, data):
    with stoker.open(run="r", nvme=tmp_path / "n") as run:
        for _ in run.loader(described(data), global_batch_size=8):
            pass
        report = run.report(gpu_hour_price=2.5)
    assert report.to_json()["steps"] == 12
    assert "utilisation" in str(report)


def test_a_second_start_of_a_run_on_one_host_is_refused_at_once(tmp_path):
    with stoker.open(run="r", nvme=tmp_path):
        with pytest.raises(RunBusy, match="rank 0 of run 'r' is already running on this host"):
            stoker.open(run="r", nvme=tmp_path)
        with stoker.open(run="other", nvme=tmp_path):
            pass
    with stoker.open(run="r", nvme=tmp_path) as run:
        assert run.generation is not None
        assert run.generation.number == 2


def save_beside_a_newer_start(tmp_path, data):
    """The old run saves step 5, a new one starts on another host over the same shared tier, the old one saves again."""
    with stoker.open(run="r", nvme=tmp_path / "host1", shared=made(tmp_path / "s")) as old:
        old_state = old.checkpoint(torch.nn.Linear(2, 2), data=old.loader(described(data), global_batch_size=8))
        old_state.save(after=4).wait()
        with stoker.open(run="r", nvme=tmp_path / "host2", shared=made(tmp_path / "s")) as new:
            data_of_new = new.loader(described(data), global_batch_size=8)
            assert new.checkpoint(torch.nn.Linear(2, 2), data=data_of_new).restore() == 5
        old_state.save(after=9).wait()


def test_a_second_start_on_another_host_fences_the_first(tmp_path, data):
    with pytest.raises(Fenced, match="newer"):
        save_beside_a_newer_start(tmp_path, data)
    steps = sorted(p.name for p in (tmp_path / "s" / "r").glob("step-*"))
    assert steps == ["step-00000005.g0001"]


def test_a_run_without_a_name_has_no_checkpoints_and_leaves_no_files(tmp_path, data):
    with stoker.open(nvme=tmp_path / "n") as run:
        list(run.loader(described(data), global_batch_size=8))
        with pytest.raises(ConfigError, match="without a name"):
            run.checkpoint(torch.nn.Linear(1, 1))
    assert sorted(p.name for p in (tmp_path / "n").iterdir()) == ["format"]


def test_several_nodes_without_a_shared_tier_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="spans 2 nodes but has no shared tier"):
        stoker.open(run="r", nvme=tmp_path, layout=stoker.Layout(dp_rank=0, dp_size=2, node=0, nodes=2))


def test_a_batch_that_ranks_cannot_share_is_refused(tmp_path, data):
    with stoker.open(nvme=tmp_path / "n", layout=stoker.Layout(0, 3)) as run, pytest.raises(LayoutError, match="3"):
        run.loader(described(data), global_batch_size=8)


def test_fewer_samples_than_a_batch_are_refused_with_both_numbers(tmp_path, data):
    with stoker.open(nvme=tmp_path / "n") as run, pytest.raises(EmptyDataset, match=r"100.*101|101.*100"):
        run.loader(described(data), global_batch_size=101)


def test_a_closed_run_says_so(tmp_path, data):
    run = stoker.open(run="r", nvme=tmp_path / "n")
    run.close()
    run.close()
    with pytest.raises(ClosedError):
        run.loader(described(data), global_batch_size=8)


def test_an_unknown_scheme_is_refused_naming_the_known(tmp_path):
    with stoker.open(nvme=tmp_path / "n") as run, pytest.raises(ConfigError, match="s3"):
        run.loader("gs://bucket/train", global_batch_size=8)


def test_what_later_versions_bring_is_absent_and_not_a_stub():
    assert not {"mix", "load", "torch_dataset"} & set(dir(stoker))
    with pytest.raises(AttributeError):
        stoker.mix  # noqa: B018


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A current directory of its own, in which the settings may lie."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    for name in os.environ:
        if name.startswith("STOKER_"):
            monkeypatch.delenv(name)
    return place


def settings(place, text):
    (place / "stoker.toml").write_text(text)
    (place / "stoker.toml").chmod(0o600)


def test_what_is_not_given_comes_from_the_settings(alone, tmp_path, data, monkeypatch):
    settings(
        alone,
        '[tiers.nvme]\npath = "n"\n[tiers.shared]\npath = "s"\n'
        '[feed]\nprefetch_bytes = "1MiB"\n[checkpoint]\nengine = "buffered"\n[report]\ngpu_hour_price = 2.5\n',
    )
    monkeypatch.setenv("STOKER_SHARED", str(made(tmp_path / "s2")))
    with stoker.open(run="r") as run:
        assert (alone / "n/format").exists()
        assert (tmp_path / "s2/r/run.json").exists()
        assert run._tiers.near.stats().requested == "buffered"
        assert run.loader(described(data), global_batch_size=8).stats().budget_bytes == 1024 * 1024
        assert run.loader(described(data), global_batch_size=8, prefetch_bytes=4096).stats().budget_bytes == 4096
        assert run.report().to_json()["gpu_hour_price"] == 2.5
        assert run.report(gpu_hour_price=3).to_json()["gpu_hour_price"] == 3


def test_an_argument_beats_the_settings(alone, tmp_path):
    settings(alone, '[tiers.nvme]\npath = "n"\n[tiers.shared]\npath = "s"\n')
    with stoker.open(run="r", nvme=tmp_path / "a", shared=str(made(tmp_path / "b"))):
        assert sorted(p.name for p in alone.iterdir()) == ["stoker.toml"]
        assert (tmp_path / "a/format").exists()
        assert (tmp_path / "b/r/run.json").exists()


def test_the_object_tier_comes_from_the_settings_and_an_argument_beats_it(alone, tmp_path, data, monkeypatch):
    settings(alone, f'[tiers.nvme]\npath = "n"\n[tiers.object]\nurl = "file://{alone}/o"\n')
    with stoker.open(run="r") as run:
        run.checkpoint(torch.nn.Linear(2, 2)).save(after=0).wait("object")
    assert (alone / "o/r/step-00000001.g0001/MANIFEST.json").exists()
    monkeypatch.setenv("STOKER_OBJECT", f"file://{tmp_path}/o2")
    with stoker.open(run="other"):
        assert (tmp_path / "o2/other/gen-0001.json").exists()
    with stoker.open(run="third", object=tmp_path / "o3"):
        assert (tmp_path / "o3/third/gen-0001.json").exists()
    assert not (tmp_path / "o2/third").exists()


def test_an_object_tier_without_a_name_is_refused_before_anything_is_written(alone, tmp_path):
    with pytest.raises(ConfigError, match="object is ''"):
        stoker.open(run="r", nvme=tmp_path / "n", object="")
    assert not (tmp_path / "n" / "checkpoint").exists()


def test_a_process_that_goes_back_with_an_object_tier_goes_on_from_there_and_so_does_the_next(tmp_path, data):
    far = f"file://{tmp_path}/object"
    with stoker.open(run="r", nvme=tmp_path / "n", object=far) as run:
        state = run.checkpoint(
            torch.nn.Linear(2, 2), data=run.loader(described(data), global_batch_size=8, epochs=2), every=5
        )
        for after in (4, 9):
            state.save(after=after)
        assert state.restore() == 10
        state.save(after=9).wait("object")
    shutil.rmtree(tmp_path / "n")
    with stoker.open(run="r", nvme=tmp_path / "n", object=far) as run:
        assert run.generation.number == 3
        assert (run.generation.restore.generation, run.generation.restore.step) == (2, 10)


def test_wrong_settings_are_refused_before_anything_is_made(alone, tmp_path):
    settings(alone, "[feed]\nthread = 1\n")
    with pytest.raises(ConfigError, match=r"(?s)unknown key 'feed.thread'.*stoker.toml:2.*feed.threads"):
        stoker.open(run="r", nvme=tmp_path / "n")
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize("engine", ["auto", "direct"])
def test_large_checkpoints_pass_the_page_cache_by_and_come_back(alone, tmp_path, data, monkeypatch, engine):
    monkeypatch.setenv("STOKER_CHECKPOINT_ENGINE", engine)
    try:
        LocalStore(tmp_path, engine=engine).close()
    except UnsupportedError as error:
        pytest.skip(str(error))
    model = torch.nn.Linear(1300, 1300)  # 6.8 MB
    torch.manual_seed(1)
    with stoker.open(run="r", nvme=tmp_path / "n") as run:
        run.checkpoint(model, data=run.loader(described(data), global_batch_size=8)).save(after=0).wait()
        written = run._tiers.near.stats().choices
    other = torch.nn.Linear(1300, 1300)
    with stoker.open(run="r", nvme=tmp_path / "n") as run:
        assert run.checkpoint(other, data=run.loader(described(data), global_batch_size=8)).restore() == 1
        reads = run._tiers.near.stats().direct_reads
    assert torch.equal(model.weight, other.weight)
    if "direct" in {choice.effective for choice in written}:  # elsewhere the temporary folder does no direct I/O
        assert reads > 0


def held():
    """Open descriptors, threads, and KiB of shared memory of this process."""
    with Path("/proc/self/status").open() as status:
        shared_kib = next(int(line.split()[1]) for line in status if line.startswith("RssShmem"))
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), shared_kib


def settles_at(most):
    """Whether no more than `most` is held, once the threads that end by themselves had time to."""
    deadline = time.monotonic() + 10
    while any(now > then for now, then in zip(held(), most, strict=True)):
        if time.monotonic() > deadline:
            return held()
        time.sleep(0.005)
    return True


def test_loaders_that_are_dropped_give_back_descriptors_threads_and_memory(tmp_path):
    with stoker.writer(tmp_path / "data") as w:
        for i in range(8):
            w.write(f"s{i}", {"bin": bytes(200_000)})
    with stoker.open(run="r", nvme=tmp_path / "n") as run:
        before = held()
        for _ in range(50):
            for batch in run.loader(tmp_path / "data", global_batch_size=4, shuffle=False):
                assert len(batch["bin"]) == 4
            del batch
        assert settles_at(before) is True


def test_a_batch_outlives_its_dropped_loader(tmp_path, data):
    with stoker.open(nvme=tmp_path / "n") as run:
        batch = next(iter(run.loader(data, global_batch_size=8)))
    assert [bytes(value).decode() for value in batch["txt"]] == [f"sample {int(key[1:])}" for key in batch.sample_keys]


def test_a_training_whose_loader_was_dropped_is_still_known_to_be_through(tmp_path, data):
    with stoker.open(run="r", nvme=tmp_path / "n") as run:
        for batch in run.loader(data, global_batch_size=8):
            del batch
    assert (tmp_path / "n" / "checkpoint" / "r" / "ended.json").exists()


def test_closing_the_run_closes_the_loaders_that_live(tmp_path, data):
    with stoker.open(nvme=tmp_path / "n") as run:
        loader = run.loader(data, global_batch_size=8)
        next(iter(loader))
    with pytest.raises(ClosedError, match="loader is closed"):
        next(iter(loader))


def test_a_run_that_is_dropped_gives_back_its_lock_and_its_descriptors(tmp_path, data):
    before = held()
    for generation in range(1, 6):
        run = stoker.open(run="r", nvme=tmp_path / "n")
        assert run.generation.number == generation
        next(iter(run.loader(data, global_batch_size=8)))
        del run
    gc.collect()
    assert settles_at(before) is True


@pytest.mark.parametrize(
    "keep", [lambda run, data: run.loader(data, global_batch_size=8), lambda run, _: checkpoint(run)]
)
def test_what_a_dropped_run_made_keeps_its_lock(tmp_path, data, keep):
    kept = keep(stoker.open(run="r", nvme=tmp_path / "n"), data)
    gc.collect()
    with pytest.raises(RunBusy):
        stoker.open(run="r", nvme=tmp_path / "n")
    kept.close()
    del kept
    gc.collect()
    stoker.open(run="r", nvme=tmp_path / "n").close()


def checkpoint(run):
    return run.checkpoint(torch.nn.Linear(1, 1))


def test_a_run_of_the_same_name_with_another_home_starts_at_once(tmp_path, data):
    for shared in ("a", "a", "b", "a"):
        with stoker.open(run="r", nvme=tmp_path / "n", shared=made(tmp_path / shared)) as run:
            next(iter(run.loader(data, global_batch_size=8)))
            assert run.report().to_json()["steps"] == {1: 1, 2: 2, 3: 3}[run.generation.number]
    assert run.generation.number == 3
    assert len(list((tmp_path / "n" / "run" / "r").glob("*.1.ledger"))) == 2


def test_a_run_whose_home_was_put_back_goes_on_from_there(tmp_path):
    home = tmp_path / "n" / "checkpoint" / "r"
    for _ in range(2):
        stoker.open(run="r", nvme=tmp_path / "n").close()
    shutil.copytree(home, tmp_path / "backup")
    for _ in range(2):
        stoker.open(run="r", nvme=tmp_path / "n").close()
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "backup", home)
    for generation in (3, 4):
        with stoker.open(run="r", nvme=tmp_path / "n") as run:
            assert run.generation.number == generation


@pytest.mark.parametrize("dataset", [None, 3, []])
def test_a_loader_of_nothing_is_refused_by_name(tmp_path, dataset):
    with stoker.open(nvme=tmp_path / "nvme") as run, pytest.raises(ConfigError, match="not a data set"):
        run.loader(dataset, global_batch_size=1)
    with pytest.raises(ClosedError, match="the run is closed"):
        run.loader("x", global_batch_size=1)


def test_a_run_shows_where_it_stands_on_one_line(tmp_path, data):
    with stoker.open(nvme=tmp_path / "nvme") as run:
        assert repr(run) == "<Run without a name: rank 0 of 1>"
    train(tmp_path / "nvme", data, stop_after=7)
    with stoker.open(run="r", nvme=tmp_path / "nvme") as run:
        assert repr(run) == "<Run 'r': rank 0 of 1, start 2 from step 5>"
    assert repr(run) == "<Run 'r': rank 0 of 1, start 2 from step 5, closed>"


@pytest.mark.parametrize("layout", ["x", (0, 1), 3])
def test_what_is_no_layout_is_refused_with_how_to_make_one(tmp_path, layout):
    with pytest.raises(LayoutError, match="layout is"):
        stoker.open(nvme=tmp_path / "nvme", layout=layout)
    with stoker.writer(tmp_path / "data") as writer:
        writer.write("a", {"x": b"1"})
    with stoker.open(nvme=tmp_path / "nvme") as run, pytest.raises(LayoutError, match=r"stoker\.Layout"):
        run.loader(tmp_path / "data", global_batch_size=1, layout=layout)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"run": value} for value in (5, b"r", Path("r"), ["r"], "")),
        *({"nvme": value} for value in (5, b"n", ["n"], False, "", "a\0b")),
        *({"run": "r", "shared": value} for value in (7, b"s", "", "\0")),
        *({"run": "r", "object": value} for value in (7, b"s3://b", ["s3://b"], "")),
    ],
    ids=str,
)
def test_what_is_no_name_and_no_place_is_refused_with_what_would_be_and_makes_nothing(tmp_path, monkeypatch, wrong):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ConfigError) as caught:
        stoker.open(**{"nvme": tmp_path / "nvme", **wrong})
    assert repr(next(iter(reversed(wrong.values())))) in str(caught.value) or caught.value.where
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("wrong", [5, None, b"w", "", ["w"]])
def test_what_is_no_place_to_write_is_refused(wrong):
    with pytest.raises(ConfigError, match="place of a data set is"):
        stoker.writer(wrong)


def test_what_is_no_position_no_number_of_epochs_and_no_price_is_refused(tmp_path, data):
    with stoker.open(nvme=tmp_path / "nvme") as run:
        loader = run.loader(data, global_batch_size=8)
        for wrong in (None, 3, "x", loader.position(after=0).to_json()):
            with pytest.raises(ConfigError, match="not a position"):
                loader.seek(wrong)
        with pytest.raises(ConfigError, match="epochs is 1000000001"):
            run.loader(data, global_batch_size=8, epochs=10**9 + 1)
        assert len(run.loader(data, global_batch_size=8, epochs=10**9)) == 10**9 * loader.steps_per_epoch
        for wrong in ("x", [1], -1, float("nan")):
            with pytest.raises(ConfigError, match="not a price"):
                run.report(gpu_hour_price=wrong)


def test_a_run_and_its_loader_stay_in_their_process(tmp_path, data):
    with stoker.open(nvme=tmp_path / "nvme") as run:
        loader = run.loader(data, global_batch_size=8)
        for each in (run, loader):
            for send in (pickle.dumps, copy.deepcopy):
                with pytest.raises(UnsupportedError, match="cannot be copied, or sent to another process"):
                    send(each)
        next(iter(loader))


def test_paths_hold_when_the_process_goes_elsewhere(tmp_path, data, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with stoker.open(nvme="nvme", run="r") as run:
        loader = run.loader(os.path.relpath(data), global_batch_size=8)
        os.chdir("elsewhere")
        assert len(list(loader)) == len(loader)
        assert run.report().steps == len(loader)
    assert list(Path().iterdir()) == []
    assert (tmp_path / "nvme" / "run" / "r").is_dir()


def test_a_working_directory_that_is_gone_is_an_error_for_relative_paths_alone(tmp_path, data, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for place in ("n", "./n"):
        with pytest.raises(NotFound, match="cannot use the directory of the nvme tier: no such file"):
            stoker.open(nvme=place)
    with stoker.open(nvme=tmp_path / "nvme") as run:
        assert list(run.loader(data, global_batch_size=8, epochs=2))
