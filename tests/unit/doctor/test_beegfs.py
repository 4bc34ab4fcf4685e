"""BeeGFS in forms that no sample has."""

from __future__ import annotations

import pytest

from stoker.doctor import beegfs


@pytest.mark.parametrize(
    ("links", "finding", "severity"),
    [
        ("TCP: 4 (192.0.2.1:8003); ", "beegfs-connections", "warn"),
        ("RDMA: 2 (192.0.2.1:8003); TCP: 1 (192.0.2.1:8003); ", "beegfs-connections", "warn"),
        ("TCP: 4 (192.0.2.1:8003 [fallback route]); ", "beegfs-fallback-route", "warn"),
        ("RDMA: 4 (192.0.2.1:8003); ", "beegfs-connections", "ok"),
        ("<none>", "beegfs-connections", "info"),
        ("QUIC: 4 (192.0.2.1:8003); ", "line-not-understood", "unknown"),
    ],
)
def test_connections_are_judged_by_their_kind(links, finding, severity):
    (found,) = beegfs.explain_nodes(f"st01 [ID: 7]\n   Connections: {links}\n", "given")
    assert (found.id, str(found.severity)) == (finding, severity)


@pytest.mark.parametrize(
    ("links", "expected"),
    [(["RDMA: 1 (x)", "<none>"], True), (["RDMA: 1 (x)", "TCP: 1 (x)"], False), (["<none>"], None), ([], None)],
)
def test_rdma_is_known_only_from_connections(links, expected):
    assert beegfs.all_rdma(dict(enumerate(links))) is expected


def test_a_folder_tells_only_what_is_wanted_and_another_form_is_unknown(said):
    head = "Entry type: directory\nStripe pattern details:\n+ Type: RAID0\n+ Chunksize: 1M\n"
    found = beegfs.explain_entry(head + "+ Number of storage targets: desired: 8\n", "given")
    assert said(found) == {("beegfs-stripes", "info")}
    assert found[0].what == "8 targets are wanted, pattern RAID0, chunk 1 MiB"
    assert said(beegfs.explain_entry(head + "+ Targets: all\n", "given")) == {("line-not-understood", "unknown")}


def test_the_management_node_is_reached_by_tcp_without_blame(said):
    text = "mgmt_nodes\n==========\nm1 [ID: 1]\n   Connections: TCP: 1 (192.0.2.1:8008); \n\n"
    text += "storage_nodes\n=============\ns1 [ID: 1]\n   Connections: RDMA: 1 (192.0.2.1:8003); \n"
    assert said(beegfs.explain_nodes(text, "given")) == {("beegfs-connections", "ok")}
