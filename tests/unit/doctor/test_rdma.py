"""RDMA ports in forms that no sample has."""

from __future__ import annotations

import pytest

from stoker.doctor import rdma
from stoker.doctor.kinds import Sample

BASE = "sys/class/infiniband/rocep1/ports/2"


def tree(**files):
    lines = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"} | {k.replace("__", "/"): v for k, v in files.items()}
    return "".join(f"{BASE}/{name}\t{value}\n" for name, value in lines.items())


def compared(before, after, seconds=10.0):
    return rdma.compare_tree(Sample(before, "a"), Sample(after, "b"), seconds)


@pytest.mark.parametrize(
    ("rate", "layer", "expected"),
    [
        ("50 Gb/sec (1X HDR)", "InfiniBand", {("rdma-rate-low", "warn")}),
        ("200 Gb/sec (2X NDR)", "InfiniBand", {("rdma-rate-low", "info")}),
        ("25 Gb/sec (1X EDR)", "Ethernet", set()),
    ],
)
def test_fewer_lanes_than_four_count_where_they_do_not_go_by_the_speed(rate, layer, expected, said):
    found = rdma.explain_tree(tree(rate=rate, link_layer=layer), "given")
    assert said(found) == {("rdma-port-state", "ok")} | expected


def test_a_port_slower_than_its_like_is_a_warning(sample):
    text = sample("net/ibstat-hdr.txt").replace("State: Down", "State: Active")
    (found,) = [f for f in rdma.explain_ibstat(text, "given") if f.id == "rdma-rate-low"]
    assert (found.subject, found.what) == ("mlx5_1/1", "runs at 40 Gb/s, another MT4123 at 200 Gb/s")


@pytest.mark.parametrize("state", ["2: INIT", "3: ARMED"])
def test_a_port_without_a_subnet_manager_is_a_warning(state):
    (found,) = rdma.explain_tree(tree(state=state), "given")
    assert str(found.severity) == "warn"
    assert "no subnet manager" in found.what


def test_a_state_that_is_not_known_is_unknown_and_quoted():
    (found,) = rdma.explain_tree(tree(state="9: HIBERNATED"), "given")
    assert (found.id, str(found.severity)) == ("line-not-understood", "unknown")
    assert "HIBERNATED" in found.evidence[0].line


def test_loss_and_congestion_that_grow_are_told_apart():
    before = tree(hw_counters__out_of_sequence="1", hw_counters__rp_cnp_handled="7")
    after = tree(hw_counters__out_of_sequence="3", hw_counters__rp_cnp_handled="9")
    loss, congestion = compared(before, after)
    assert (loss.id, loss.evidence[0].line) == ("rdma-loss", "out_of_sequence 1 -> 3 (+2)")
    assert congestion.id == "rdma-congestion"


@pytest.mark.parametrize(("first", "second"), [("9", "3"), ("4294967295", "4294967295")])
def test_counters_that_went_back_or_stick_at_their_end_are_unknown(first, second, said):
    before, after = (tree(counters__port_rcv_data=v, hw_counters__out_of_buffer=v) for v in (first, second))
    assert said(compared(before, after)) == {("network-counters-unusable", "unknown")}


def test_without_counters_that_are_known_congestion_is_not_excluded():
    (found,) = compared(tree(), tree())
    assert "congestion is not excluded" in found.what


def test_the_text_form_of_rdma_link_is_read_too():
    text = "link mlx5_2/1 state ACTIVE physical_state LINK_UP netdev eth7 \n"
    assert rdma.detect_link(text)
    ok, netdev = rdma.explain_link(text, "given")
    assert (ok.subject, netdev.what) == ("mlx5_2/1", "is network device eth7")
