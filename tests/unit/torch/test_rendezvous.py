"""Ranks hear from rank 0 through the store they share, or are told why they cannot."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from stoker.errors import LayoutError, TimedOut, Unavailable
from stoker.torch import rendezvous as module
from stoker.torch.rendezvous import StoreRendezvous, make_rendezvous
from stoker.values import Layout


def test_all_ranks_get_what_rank_0_says():
    store = dist.HashStore()
    heard = {}

    def listen(rank):
        heard[rank] = StoreRendezvous(store, rank, "p").broadcast("topic", {"ignored": rank}, 10)

    threads = [threading.Thread(target=listen, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    value = {"number": 3, "restore": [1, 40], "name": "äöü\n"}
    assert StoreRendezvous(store, 0, "p").broadcast("topic", value, 10) == value
    for thread in threads:
        thread.join(10)
    assert heard == {1: value, 2: value}


def test_silence_ends_at_the_deadline_and_says_what_was_waited_for():
    with pytest.raises(TimedOut, match="waited 50 ms for rank 0 to say 'topic'"):
        StoreRendezvous(dist.HashStore(), 1, "p").broadcast("topic", None, 0.05)


def test_another_prefix_is_another_meeting():
    store = dist.HashStore()
    StoreRendezvous(store, 0, "p").broadcast("topic", 1, 1)
    with pytest.raises(TimedOut):
        StoreRendezvous(store, 1, "q").broadcast("topic", None, 0.05)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "False"},
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    ],
)
def test_ranks_without_any_store_are_refused_with_a_hint(environ):
    with pytest.raises(LayoutError, match="2 ranks have no way to hear from rank 0") as caught:
        make_rendezvous(Layout(0, 2), environ)
    assert "torchrun" in caught.value.hint


@pytest.fixture
def agent():
    """A TCPStore as torchrun's agent keeps one."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "id",
        "keep": store,
    }


def test_torchruns_store_serves_where_there_is_no_process_group(agent, monkeypatch):
    monkeypatch.setattr(module, "_meetings", iter([0, 0]))
    make_rendezvous(Layout(0, 2), agent).broadcast("topic", {"a": 1}, 10)
    assert make_rendezvous(Layout(1, 2), agent).broadcast("topic", None, 10) == {"a": 1}


def test_what_an_earlier_attempt_of_the_workers_said_is_not_heard(agent, monkeypatch):
    monkeypatch.setattr(module, "_meetings", iter([0, 0]))
    make_rendezvous(Layout(0, 2), agent | {"TORCHELASTIC_RESTART_COUNT": "0"}).broadcast("topic", 1, 10)
    late = make_rendezvous(Layout(1, 2), agent | {"TORCHELASTIC_RESTART_COUNT": "1"})
    with pytest.raises(TimedOut):
        late.broadcast("topic", None, 0.05)


def test_a_second_run_in_the_same_process_meets_anew(agent):
    first = make_rendezvous(Layout(0, 2), agent)
    first.broadcast("topic", 1, 10)
    with pytest.raises(TimedOut):
        make_rendezvous(Layout(1, 2), agent).broadcast("topic", None, 0.05)


def test_a_store_that_does_not_answer_is_unavailable(monkeypatch):
    monkeypatch.setattr(module, "CONNECT_S", 0.2)
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    with pytest.raises(Unavailable, match="does not answer"):
        make_rendezvous(Layout(1, 2), environ)


def test_a_process_group_with_other_ranks_than_the_layout_is_refused():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(LayoutError, match=r"rank 1 of 2 by layout, but rank 0 of 1 by torch\.distributed"):
            make_rendezvous(Layout(1, 2), {})
        assert make_rendezvous(Layout(0, 1), {}).broadcast("topic", [1], 1) == [1]
    finally:
        dist.destroy_process_group()
