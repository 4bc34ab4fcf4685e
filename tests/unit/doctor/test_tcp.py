"""TCP in forms that no sample has."""

from __future__ import annotations

import pytest

from stoker.doctor import tcp
from stoker.doctor.kinds import Sample

HEAD = "State Recv-Q Send-Q Local Address:Port Peer Address:Port Process\n"


def connection(peer="[2001:db8::1]:2049", details="cubic rto:204 rtt:0.2/0.1 cwnd:10 segs_out:100000 pmtu:1500"):
    return f"ESTAB 0 0 [2001:db8::9]:700 {peer}\n\t {details}\n"


def snmp(out, again, extra=""):
    return f"Tcp: OutSegs RetransSegs{extra}\nTcp: {out} {again}\n"


def compared(first, second):
    (found,) = tcp.compare_snmp(Sample(first, "a"), Sample(second, "b"), None)
    return found


@pytest.mark.parametrize(
    ("again", "severity"), [(0, "ok"), (9, "ok"), (10, "warn"), (99, "warn"), (100, "fail"), (20_000, "fail")]
)
def test_the_share_sent_again_decides(again, severity):
    assert str(compared(snmp(0, 0), snmp(10_000, again)).severity) == severity


def test_few_segments_never_fail_and_other_boots_are_unknown():
    assert str(compared(snmp(0, 0), snmp(10, 5)).severity) == "warn"
    assert str(compared(snmp(10, 5), snmp(0, 0)).severity) == "unknown"
    assert "nothing was sent" in compared(snmp(1, 1), snmp(1, 1)).what


def test_columns_that_do_not_fit_their_values_are_quoted_and_not_compared():
    text = snmp(5, 1, " NewColumn")
    (found,) = tcp.explain_snmp(text, "given")
    assert (found.id, found.evidence[0].line) == ("line-not-understood", "Tcp: 5 1")
    assert tcp.compare_snmp(Sample(text, "a"), Sample(text, "b"), None) == []


def test_connections_are_counted_by_server_also_over_ipv6(said):
    text = HEAD + connection() + connection() + connection("192.0.2.7:22")
    assert tcp.detect_ss(text)
    found = tcp.explain_ss(text, "given")
    assert said(found) == {("tcp-connections", "info"), ("network-mtu", "info")}
    assert all(f.subject == "NFS 2001:db8::1" for f in found)


def test_a_connection_on_one_line_is_read_too():
    text = HEAD + "ESTAB 0 0 192.0.2.9:700 192.0.2.1:2049 cubic rto:204 cwnd:10 retrans:0/1 segs_out:100000\n"
    assert tcp.detect_ss(text)
    assert "tcp-retransmits" in {f.id for f in tcp.explain_ss(text, "given")}


def test_what_a_connection_sent_again_is_judged():
    details = "rto:204 cwnd:10 rtt:30.0/1 minrtt:2.0 retrans:0/2000 segs_out:100000 rwnd_limited:900ms(12.5%)"
    found = tcp.explain_ss(HEAD + connection(details=details), "given")
    assert [str(f.severity) for f in found if f.id == "tcp-retransmits"] == ["fail"]
    slow = [f.what for f in found if f.id == "tcp-connection-slow"]
    assert slow == [
        "a round trip takes 30 ms, 15 times the best of 2 ms",
        "the receiver's window was full 12.5% of the time",
    ]


def test_a_count_that_is_not_understood_is_quoted():
    found = tcp.explain_ss(HEAD + connection(details="rto:1 cwnd:1 retrans:some segs_out:1"), "given")
    assert "line-not-understood" in {f.id for f in found}


def test_an_interface_with_other_columns_is_quoted():
    head = "Inter-|   Receive  |  Transmit\n"
    (found,) = tcp.explain_net_dev(head + "eth0: 1 2 3\n", "given")
    assert found.evidence[0].line == "eth0: 1 2 3"
