"""Ranks hear from rank 0 through the store they share, or are told why they cannot."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import Fenced, LayoutError, TimedOut, Unavailable
from stoker.torch import rendezvous as module
from stoker.torch.rendezvous import StoreRendezvous, make_rendezvous, meet
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


@pytest.fixture(params=["tcp", "file", "hash"])
def new_store(request, tmp_path):
    """Makes clients of one store that outlives them: a TCPStore, a FileStore, or memory of this process."""
    if request.param == "tcp":
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
        yield lambda: dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=10))
    elif request.param == "file":
        keep = dist.FileStore(str(tmp_path / "store"), -1)
        yield lambda: dist.FileStore(str(tmp_path / "store"), -1)
        del keep
    else:
        store = dist.HashStore()
        yield lambda: store


def all_say(ends, value):
    """What each of these rendezvous hears when rank 0, the first, says `value`."""
    return [end.broadcast("topic", value if rank == 0 else None, 10) for rank, end in enumerate(ends)]


def gather(calls):
    """The results of calls that wait for each other."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(30) for future in [pool.submit(call) for call in calls]]


def meet_all(new_store, size, deadline_s=10):
    return gather([lambda rank=rank: meet(new_store(), Layout(rank, size), "p", deadline_s) for rank in range(size)])


def test_torchruns_store_serves_where_there_is_no_process_group(agent, monkeypatch):
    monkeypatch.setattr(module, "_meetings", iter([0, 0]))
    ends = gather([lambda rank=rank: make_rendezvous(Layout(rank, 2), agent, 10) for rank in range(2)])
    assert all_say(ends, {"a": 1}) == [{"a": 1}] * 2


def test_nodes_that_count_restarts_differently_meet(agent, monkeypatch):
    monkeypatch.setattr(module, "_meetings", iter([0, 0]))
    counts = ["0", "3"]
    ends = gather(
        [
            lambda rank=rank: make_rendezvous(Layout(rank, 2), agent | {"TORCHELASTIC_RESTART_COUNT": counts[rank]}, 10)
            for rank in range(2)
        ]
    )
    assert all_say(ends, 5) == [5, 5]


def test_attempts_over_one_store_hear_only_those_of_their_own(new_store):
    for attempt in range(3):
        assert all_say(meet_all(new_store, 3), {"attempt": attempt}) == [{"attempt": attempt}] * 3
        # The next one is killed before it is whole: without rank 0, then without rank 2.
        with pytest.raises(TimedOut, match="waited 20 ms for rank 0 to hear from all ranks"):
            meet(new_store(), Layout(1, 3), "p", 0.02)
        with pytest.raises(TimedOut, match="waited 20 ms for rank"):
            meet(new_store(), Layout(0, 3), "p", 0.02)


def test_what_rank_0_of_an_earlier_attempt_said_is_not_heard(new_store):
    all_say(meet_all(new_store, 2), "old")
    with pytest.raises(TimedOut, match="waited 50 ms for rank 0 to hear from all ranks") as caught:
        meet(new_store(), Layout(1, 2), "p", 0.05)
    assert "log of rank 0" in caught.value.hint


def test_a_rank_0_that_waits_names_who_did_not_come(new_store):
    def wait(rank):
        with pytest.raises(TimedOut) as caught:
            meet(new_store(), Layout(rank, 4), "p", 0.3)
        return caught.value

    first, second = gather([lambda rank=rank: wait(rank) for rank in (0, 2)])
    assert first.what == "waited 300 ms for ranks 1, 3 of 4"
    assert "every rank must call stoker.open()" in first.hint
    assert second.what == "waited 300 ms for rank 0 to hear from all ranks"


def test_of_very_many_missing_ranks_the_first_are_named():
    with pytest.raises(TimedOut, match="ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more of 100"):
        meet(dist.HashStore(), Layout(0, 100), "p", 0.02)


def test_a_rank_that_hears_of_no_rank_0_says_so(new_store):
    with pytest.raises(TimedOut) as caught:
        meet(new_store(), Layout(1, 2), "p", 0.02)
    assert caught.value.what == "waited 20 ms for rank 0"


def test_a_rank_0_after_which_another_began_gives_up():
    store = dist.HashStore()
    early = module._Host(store, 2)
    assert early.try_once() is None
    late = module._Host(store, 2)
    assert late.try_once() is None
    with pytest.raises(Fenced, match="as rank 0 since"):
        early.try_once()


class Processes:
    """Processes that meet over one store, a step at a time: what killed ones leave behind is in the store alone."""

    def __init__(self, size):
        self.size = size
        self.store = dist.HashStore()
        self.living = {}  # number -> rank, its end of the meeting
        self.met = defaultdict(list)  # token -> ranks of the processes that go on under it
        self._numbers = count()

    def start(self, rank):
        number = next(self._numbers)
        end = module._Host(self.store, self.size) if rank == 0 else module._Guest(self.store, rank)
        self.living[number] = rank, end
        return number

    def step(self, number):
        rank, end = self.living[number]
        try:
            token = end.try_once()
        except Fenced:
            del self.living[number]
            return
        if token is not None:
            self.met[token].append(rank)
            del self.living[number]


@given(st.data())
def test_processes_killed_at_any_step_never_disagree_and_the_last_attempt_meets(data):
    """Attempts follow each other over one store; their processes take steps in any order, and may live on for a while
    beside the next ones. A token is one process a rank; and once only the last ones live, they meet.
    """
    processes = Processes(data.draw(st.integers(1, 4), "size"))
    living = processes.living
    for _ in range(data.draw(st.integers(0, 3), "attempts before")):
        order = data.draw(st.permutations(range(processes.size)), "order of starts")
        for rank in order[: data.draw(st.integers(0, processes.size), "started")]:
            processes.start(rank)
            for _ in range(data.draw(st.integers(0, 4), "steps")):
                if living:
                    processes.step(data.draw(st.sampled_from(sorted(living)), "process"))
        for number in [number for number in living if data.draw(st.booleans(), f"kill {number}")]:
            del living[number]
    assert all(len(ranks) == len(set(ranks)) for ranks in processes.met.values())

    living.clear()
    before = set(processes.met)
    for rank in data.draw(st.permutations(range(processes.size)), "order of the last starts"):
        processes.step(processes.start(rank))
    for _ in range(4):
        for number in data.draw(st.permutations(sorted(living)), "round"):
            processes.step(number)
    (token,) = set(processes.met) - before
    assert sorted(processes.met[token]) == list(range(processes.size))


def test_a_second_run_in_the_same_process_meets_anew(agent, monkeypatch):
    monkeypatch.setattr(module, "_meetings", iter([0, 0, 1, 1]))
    for said in ("first", "second"):
        ends = gather([lambda rank=rank: make_rendezvous(Layout(rank, 2), agent, 10) for rank in range(2)])
        assert all_say(ends, said) == [said] * 2


def test_a_store_that_goes_away_in_a_meeting_is_unavailable():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=1))
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=1))
    del server
    with pytest.raises(Unavailable, match="the ranks' store is gone"):
        meet(client, Layout(1, 2), "p", 10)


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
