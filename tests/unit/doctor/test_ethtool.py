"""Pauses and drops between two outputs of ethtool -S."""

from __future__ import annotations

import pytest

from stoker.doctor import ethtool
from stoker.doctor.kinds import Sample


def text(**counters):
    return "NIC statistics:\n" + "".join(f"     {name}: {value}\n" for name, value in counters.items())


def compared(before, after, seconds=10.0):
    return ethtool.compare(Sample(text(**before), "a"), Sample(text(**after), "b"), seconds)


ZERO = {"rx_prio4_pause": 0, "rx_prio4_pause_duration": 0, "tx_prio4_pause": 0, "rx_discards_phy": 0}


def test_the_share_of_time_in_pause_is_told_whatever_the_priority():
    (found,) = compared(ZERO, ZERO | {"rx_prio4_pause": 5, "rx_prio4_pause_duration": 600_000})
    assert (found.id, str(found.severity)) == ("nic-pause", "warn")
    assert "the fabric tells this host to stop: pauses grow, 6.0% of the time" in found.what


def test_pauses_that_are_sent_are_this_host():
    (found,) = compared(ZERO, ZERO | {"tx_prio4_pause": 5}, None)
    assert "this host cannot take in what comes" in found.what


def test_drops_and_storms_are_found():
    before = ZERO | {"tx_pause_storm_error_events": 0}
    drops, storm = compared(before, before | {"rx_discards_phy": 3, "tx_pause_storm_error_events": 1})
    assert (drops.id, str(storm.severity)) == ("nic-drops", "fail")


def test_what_does_not_grow_is_in_order():
    (found,) = compared(ZERO, ZERO)
    assert str(found.severity) == "ok"


def test_counters_that_go_back_are_of_another_boot():
    (found,) = compared(ZERO | {"tx_prio4_pause": 5}, ZERO)
    assert found.id == "network-counters-unusable"


@pytest.mark.parametrize("names", [{"port.rx_bytes": 7}, {}])
def test_a_driver_with_other_names_leaves_congestion_unknown(names):
    (found,) = ethtool.explain(text(**names), "given")
    assert str(found.severity) == "unknown"
    assert "not excluded" in found.what


def test_a_counter_that_is_no_number_is_quoted():
    found = ethtool.explain(text(rx_prio3_pause="many", tx_prio3_pause=0), "given")
    assert found[0].evidence[0].line == "rx_prio3_pause: many"
