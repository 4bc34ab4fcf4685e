"""The verdict as findings and JSON."""

from __future__ import annotations

import json

import pytest

from stoker.doctor.stall import Verdict, judge
from stoker.doctor.stall_report import IDS, explain_stall, stall_json
from stoker.doctor.stall_signs import Signals

SATURATED = Signals(
    sm_active_ratio=0.2, storage_bytes_per_s=9e8, ceiling_bytes_per_s=1e9, device_util_ratio=0.99, device_queue_count=30
)


def test_a_bottleneck_is_a_warning_with_its_signs_as_evidence_and_how_to_confirm_it():
    (finding,) = explain_stall(judge(SATURATED))
    assert (finding.id, str(finding.severity)) == ("stall-throughput", "warn")
    assert finding.what.startswith("throughput (throughput 0.70,")
    assert "not all signs of network, metadata, cpu-staging could be seen" in finding.what
    sources = [e.source for e in finding.evidence]
    assert sources[:3] == ["gate", "throughput: at-ceiling", "throughput: device-saturated"]
    assert "confirm" in finding.fix


def test_busy_gpus_are_in_order_however_busy_the_storage():
    (finding,) = explain_stall(judge(Signals(utilisation_ratio=0.97, device_util_ratio=1.0, device_queue_count=99)))
    assert (finding.id, str(finding.severity)) == ("stall-none", "ok")
    assert [e.source for e in finding.evidence] == ["gate"]


def test_the_json_has_every_signal_and_sign():
    found = stall_json(judge(SATURATED), SATURATED, 10.0)
    assert json.loads(json.dumps(found)) == found
    assert found["verdict"] == "throughput"
    assert found["scores"]["throughput"] == 0.7
    assert found["signals"]["device_util_ratio"] == 0.99
    assert {s["present"] for s in found["signs"]} == {True, False, None}
    assert found["confirm"]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_its_id(verdict):
    assert [known for known in IDS if known.name == f"stall-{verdict}"]
