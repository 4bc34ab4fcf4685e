"""Saving behind training, and getting back exactly what was saved."""

import json
import threading

import numpy as np
import pytest

from stoker.checkpoint.save import Checkpoint, SaveOptions, is_due
from stoker.errors import (
    CapacityError,
    CheckpointError,
    ClosedError,
    ConfigError,
    Fenced,
    LayoutError,
    SaveFailed,
)
from stoker.ledger import Counter
from stoker.testing.training import Part


def test_what_was_saved_is_restored_bit_for_bit(start, state, equal, feed):
    first = start(state(1), data=feed)
    first.save_and_wait(after=39)
    again = start(state(2), data=feed)
    assert again.restore() == [40]
    assert equal(again.states[0], state(1))
    assert again.feeds[0].next_step == 40


def test_a_fresh_run_restores_nothing(start, state, equal):
    run = start(state(1))
    assert run.restore() == [None]
    assert equal(run.states[0], state(1))
