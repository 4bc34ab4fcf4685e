"""Random numbers go on as if nothing had happened, in all libraries."""

import json
import logging
import random

import numpy as np
import pytest
import torch

from stoker.errors import FormatError
from stoker.torch.rng import capture_rng, load_rng, seed_rng
from stoker.values import canonical_json

LEGACY = np.random  # the global stream, which is what libraries draw from


@pytest.fixture(autouse=True)
def keep_streams():
    kept = random.getstate(), LEGACY.get_state(), torch.get_rng_state()
    yield
    random.setstate(kept[0])
    LEGACY.set_state(kept[1])
    torch.set_rng_state(kept[2])


def draw():
    return (
        [random.random(), random.gauss(0, 1), random.randrange(10**30)],
        [LEGACY.rand(3).tolist(), LEGACY.standard_normal(), LEGACY.permutation(9).tolist()],
        [torch.rand(3).tolist(), torch.randn(5).tolist(), torch.randperm(9).tolist()],
    )


def through_json(state):
    return json.loads(canonical_json(state))


def test_what_is_drawn_after_a_restore_is_what_would_have_been_drawn():
    draw()  # odd numbers of normal variates leave half a pair behind
    state = through_json(capture_rng())
    first = draw()
    for _ in range(3):
        draw()
    load_rng(state)
    assert draw() == first


def test_numpys_global_stream_may_be_of_another_kind():
    kept = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(5))
        state = through_json(capture_rng())
        first = draw()
        load_rng(state)
        assert draw() == first
    finally:
        np.random.set_bit_generator(kept)


def test_looking_does_not_draw():
    seed_rng(1)
    first = draw()
    seed_rng(1)
    capture_rng()
    assert draw() == first


def test_a_seed_fixes_all_streams_and_another_gives_others():
    for entropy in (0, 2**64 - 1):
        seed_rng(entropy)
        first = draw()
        seed_rng(entropy)
        assert draw() == first
    seed_rng(1)
    assert all(a != b for a, b in zip(draw(), first, strict=True))
    # Both halves count.
    seed_rng(1 << 32)
    high = draw()
    seed_rng(1)
    assert all(a != b for a, b in zip(draw(), high, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"python": None},
        {"python": {"version": 3, "state": "!", "gauss": None}},
        {"numpy": {"bit_generator": "MT19937"}},
        {"numpy": {"$tensor": "x"}},
        {"torch": "AAAA"},
    ],
)
def test_what_is_no_state_is_refused(change):
    with pytest.raises(FormatError, match="random number states"):
        load_rng(capture_rng() | change)
    with pytest.raises(FormatError):
        load_rng({})


def test_streams_of_cuda_are_left_out_where_there_is_none_and_said(caplog):
    if torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    state = capture_rng()
    assert state["cuda"] is None
    with caplog.at_level(logging.WARNING):
        load_rng(state | {"cuda": {"current": 0, "states": ["AAAA"]}})
    assert "no CUDA here" in caplog.text


def test_the_stream_of_the_current_device_goes_to_the_device_that_is_current_now(monkeypatch):
    states = {0: torch.tensor([10], dtype=torch.uint8), 1: torch.tensor([11], dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [states[0], states[1]])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    state = through_json(capture_rng())
    found = {}
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda value, device: found.update({device: value.tolist()}))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    load_rng(state)
    assert found == {0: [11], 1: [10]}
    found.clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    load_rng(state)
    assert found == {0: [11]}
