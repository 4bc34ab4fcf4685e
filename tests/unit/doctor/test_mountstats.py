"""mountstats in forms that no sample has."""

from __future__ import annotations

from stoker.doctor import mountstats
from stoker.doctor.kinds import Sample


def text(*rows, xprt=("tcp 1 2 3",), opts="rw,proto=tcp", age=10):
    head = ["device proc mounted on /proc with fstype proc", "device s:/x mounted on /m with fstype nfs4 statvers=1.1"]
    lines = [f"\topts:\t{opts}", f"\tage:\t{age}", *(f"\txprt:\t{x}" for x in xprt), "\tper-op statistics"]
    return "\n".join([*head, *lines, *(f"\t{row}" for row in rows)]) + "\n"


def test_reads_that_wait_in_the_client_and_requests_sent_again_are_warnings(said):
    found = mountstats.explain(text("READ: 100 103 0 1 104857600 900 400 1400", xprt=("tcp 1", "tcp 2")), "given")
    assert said(found) == {
        ("nfs-not-rdma", "info"),
        ("nfs-client-queue", "warn"),
        ("nfs-retransmits", "warn"),
        ("fs-metadata-share", "ok"),
    }
    (queue,) = [f for f in found if f.id == "nfs-client-queue"]
    assert queue.what == "READ: round trip 4.00 ms, 9.00 ms in the client's queue, 1024 KiB each"


def test_few_requests_sent_again_are_none(said):
    found = mountstats.explain(text("READ: 100000 100009 0 1 100 1 2 3", xprt=("tcp 1", "tcp 2")), "given")
    assert "nfs-retransmits" not in {name for name, _ in said(found)}


def test_many_lookups_that_take_most_of_the_time_are_metadata(said):
    rows = ("READ: 10 10 0 1 10 1 10 20 0", "LOOKUP: 20 20 0 1 1 1 10 60 0", "OPEN: 5 5 0 1 1 1 1 10 0")
    assert ("fs-metadata-share", "warn") in said(mountstats.explain(text(*rows), "given"))


def test_connections_that_are_not_what_the_options_say_are_a_warning(said):
    found = said(mountstats.explain(text(xprt=("tcp 1", "tcp 2"), opts="rw,proto=rdma"), "given"))
    assert ("nfs-transport-differs", "warn") in found
    assert ("nfs-rdma", "ok") not in found
    assert said(mountstats.explain(text(opts="rw,proto=tcp6", xprt=("tcp 1", "tcp 2")), "given")) == {
        ("nfs-not-rdma", "info")
    }


def test_what_is_not_told_is_unknown(said):
    assert ("line-not-understood", "unknown") in said(mountstats.explain(text(xprt=()), "given"))
    found = mountstats.explain(text("READ: 1 2 3"), "given")
    assert [f.evidence[0].line for f in found if f.id == "line-not-understood"] == ["READ: 1 2 3"]
    assert said(mountstats.explain(text(xprt=("quic 1",)), "given")) == {
        ("nfs-not-rdma", "unknown"),
    }


def test_operations_without_reads_are_a_cut_text_and_no_verdict(said):
    found = said(mountstats.explain(text("GETATTR: 9 9 0 1 1 1 1 1", xprt=("tcp 1", "tcp 2")), "given"))
    assert found == {("nfs-not-rdma", "info")}


def test_a_node_without_nfs_has_none(said):
    assert said(mountstats.explain("device proc mounted on /proc with fstype proc\n", "x")) == {("nfs-io", "info")}


def test_two_moments_are_compared_by_the_age_of_the_mount():
    before = text("READ: 100 100 0 1 1000000000 10 100 110", age=10)
    after = text("READ: 300 300 0 1 9000000000 10 700 900", "GETATTR: 1 1 0 0 0 0 1 1", age=14)
    found = mountstats.compare(Sample(before, "a"), Sample(after, "b"), None)
    (read,) = [f for f in found if f.id == "nfs-io"]
    assert read.what == "READ: round trip 3.00 ms, 0.00 ms in the client's queue, 39062 KiB each, 2.00 GB/s"
    back = mountstats.compare(Sample(after, "a"), Sample(before, "b"), None)
    assert {(f.id, str(f.severity)) for f in back} == {("nfs-io", "unknown")}
