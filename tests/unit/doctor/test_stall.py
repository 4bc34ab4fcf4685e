"""The verdict on a stall: on every given scenario, and what holds for all signals."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.doctor.moments import folder_window
from stoker.doctor.signals import measure
from stoker.doctor.stall import Gate, Verdict, judge
from stoker.doctor.stall_report import explain_stall, stall_json
from stoker.doctor.stall_signs import CONTRADICTIONS, SIGNS, Bottleneck, Signals

from .conftest import SAMPLES

SCENARIOS = {
    "throughput-local-nvme": Verdict.THROUGHPUT,
    "network-nfs-tcp": Verdict.NETWORK,
    "metadata-lustre-small-files": Verdict.METADATA,
    "cpu-staging-compat-gds": Verdict.CPU_STAGING,
}
NAMES = [f.name for f in fields(Signals)]
# What each signal is, beyond a ratio; and whether more of it is worse for its own bottleneck.
SCALES = {
    **dict.fromkeys(("storage_bytes_per_s", "ceiling_bytes_per_s", "request_bytes", "object_bytes"), 1e10),
    **dict.fromkeys(("device_queue_count", "congestion_count", "connection_count", "cpus_per_gpu"), 100),
    **dict.fromkeys(("metadata_ops_ratio", "open_latency_ratio", "rtt_growth_ratio"), 20),
}
WORSE_UP = {
    Bottleneck.THROUGHPUT: (
        *("storage_bytes_per_s", "device_util_ratio", "device_queue_count", "io_full_ratio", "request_bytes"),
    ),
    Bottleneck.NETWORK: (
        *("link_ratio", "other_traffic_ratio", "retransmit_ratio", "drop_ratio", "pause_ratio", "congestion_count"),
        *("read_rtt_s", "rtt_growth_ratio"),
    ),
    Bottleneck.METADATA: ("metadata_time_ratio", "metadata_ops_ratio", "open_latency_ratio"),
    Bottleneck.CPU_STAGING: (
        *("posix_ratio", "throttled_ratio", "cpu_busy_ratio", "cpu_some_ratio", "decode_wait_ratio"),
    ),
}
WORSE_DOWN = {
    Bottleneck.THROUGHPUT: ("ceiling_bytes_per_s",),
    Bottleneck.NETWORK: ("path_health_ratio", "connection_count"),
    Bottleneck.METADATA: ("object_bytes", "storage_bytes_per_s"),
    Bottleneck.CPU_STAGING: ("cpus_per_gpu", "device_util_ratio"),
}


def a_value(name):
    scale = SCALES.get(name, 1)
    return st.none() | st.floats(0, scale, allow_subnormal=False)


signals = st.builds(Signals, **{name: a_value(name) for name in NAMES})


@pytest.fixture
def scenario():
    def measured(name):
        window = folder_window(SAMPLES / "scenario" / name, "", None)
        return measure(window.before, window.after, window.facts)

    return measured


@pytest.mark.parametrize(("name", "verdict"), SCENARIOS.items())
def test_every_given_scenario_is_judged_as_its_row_says(scenario, name, verdict):
    found = judge(scenario(name))
    assert found.verdict is verdict
    assert found.gate is Gate.STARVED
    rest = [score for b, score in found.ranked() if b.value != verdict.value]
    assert found.scores[Bottleneck(verdict.value)] - max(rest) >= 0.2


def test_every_scenario_that_is_given_is_tested():
    assert {p.name for p in (SAMPLES / "scenario").iterdir()} == set(SCENARIOS)


def test_the_saturated_nvme_shows_what_its_row_says(scenario):
    found = scenario("throughput-local-nvme")
    assert found.storage_bytes_per_s == pytest.approx(6.8e9)
    assert found.ceiling_ratio == pytest.approx(1.0)
    assert found.device_util_ratio == pytest.approx(0.999)
    assert found.io_full_ratio == pytest.approx(0.55)
    assert found.cpu_busy_ratio == pytest.approx(0.125)
    assert judge(found).severe


def test_the_congested_network_shows_what_its_row_says(scenario):
    found = scenario("network-nfs-tcp")
    assert found.link_ratio * 25 == pytest.approx(23.84)
    assert found.retransmit_ratio == pytest.approx(0.021)
    assert found.drop_ratio == pytest.approx(51_000 / (3_330_000 + 51_000))
    assert found.read_rtt_s == pytest.approx(0.060)
    assert found.metadata_ops_ratio == pytest.approx(1500 / 28000)
    assert found.connection_count == 1
    assert found.other_traffic_ratio == pytest.approx(0.24, abs=0.005)
    present = {sign.name for sign in judge(found).seen if sign.present}
    assert {"shared-link", "one-connection", "packet-drops"} <= present


def test_small_files_on_lustre_show_what_their_row_says(scenario):
    found = scenario("metadata-lustre-small-files")
    assert found.storage_bytes_per_s == pytest.approx(0.264e9)
    assert found.open_latency_ratio == pytest.approx(9.0 / 0.7)
    assert found.metadata_time_ratio == pytest.approx(0.955, abs=0.005)
    assert found.metadata_ops_ratio == pytest.approx(4.0)


def test_copies_by_the_cpu_show_what_their_row_says(scenario):
    found = scenario("cpu-staging-compat-gds")
    assert found.device_util_ratio == pytest.approx(0.29)
    assert found.cpu_busy_ratio == pytest.approx(0.953, abs=0.001)
    assert found.cpu_busy_ratio * found.cpu_system_ratio == pytest.approx(0.8125)
    assert found.cpu_some_ratio == pytest.approx(0.68)
    assert found.posix_ratio == 1.0


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_busy_gpu_makes_every_scenario_none(scenario, name):
    assert judge(replace(scenario(name), sm_active_ratio=0.9)).verdict is Verdict.NONE
    assert judge(replace(scenario(name), utilisation_ratio=0.95)).verdict is Verdict.NONE


@pytest.mark.parametrize("name", SCENARIOS)
def test_without_gpu_counters_and_ledger_a_scenario_is_unknown_but_keeps_its_scores(scenario, name):
    blind = replace(scenario(name), sm_active_ratio=None, gpu_busy_ratio=None)
    found = judge(blind)
    assert found.verdict is Verdict.UNKNOWN
    assert found.scores == judge(scenario(name)).scores


def test_the_ledger_counts_before_the_gpu():
    assert judge(Signals(utilisation_ratio=0.95, sm_active_ratio=0.1)).gate is Gate.BUSY
    assert judge(Signals(utilisation_ratio=0.5, sm_active_ratio=0.99)).gate is Gate.STARVED


def test_a_kernel_that_always_runs_proves_nothing_and_one_that_rarely_does_proves_waiting():
    assert judge(Signals(gpu_busy_ratio=1.0)).gate is Gate.UNKNOWN
    assert judge(Signals(gpu_busy_ratio=0.3)).gate is Gate.STARVED


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_loop_that_waits_for_decoding_is_staging_whatever_devices_show(scenario, name):
    told = replace(scenario(name), utilisation_ratio=0.5, decode_wait_ratio=0.9)
    assert judge(told).verdict in (Verdict.CPU_STAGING, Verdict.MIXED)
    assert judge(told).ranked()[0][0] is Bottleneck.CPU_STAGING or judge(told).verdict is Verdict.MIXED


def test_two_bottlenecks_at_once_are_mixed(scenario):
    one, other = scenario("network-nfs-tcp"), scenario("metadata-lustre-small-files")
    both = replace(
        one,
        **{n: v for n, v in asdict(other).items() if n.startswith(("metadata", "open", "object"))},
    )
    assert judge(both).verdict is Verdict.MIXED


def test_nothing_seen_is_unknown_and_says_that_it_could_not_look():
    found = judge(Signals())
    assert (found.verdict, found.gate, found.firm) == (Verdict.UNKNOWN, Gate.UNKNOWN, False)
    assert set(found.scores.values()) == {0.0}
    assert set(found.missing()) == {sign.name for sign in SIGNS}
    (finding,) = explain_stall(found)
    assert (finding.id, str(finding.severity)) == ("stall-unknown", "unknown")


def test_a_starved_gpu_alone_names_no_bottleneck():
    assert judge(Signals(sm_active_ratio=0.1)).verdict is Verdict.UNKNOWN
    assert judge(Signals(utilisation_ratio=0.1)).verdict is Verdict.UNKNOWN


@given(signals)
@settings(max_examples=80, deadline=None)
def test_scores_are_ratios_and_a_named_bottleneck_leads(values):
    found = judge(values)
    assert all(0 <= score <= 1 for score in found.scores.values())
    if found.verdict.value in {b.value for b in Bottleneck}:
        (first, most), (_, next_most), *_ = found.ranked()
        assert first.value == found.verdict.value
        assert found.gate is Gate.STARVED
        assert most >= 0.6
        assert most - next_most >= 0.2 - 1e-9
    assert explain_stall(found)
    assert stall_json(found, values, 10.0)["verdict"] == found.verdict.value


@given(signals, st.data())
@settings(max_examples=80, deadline=None)
def test_a_worse_signal_never_lowers_its_own_score(values, data):
    bottleneck = data.draw(st.sampled_from(list(Bottleneck)))
    up = data.draw(st.booleans())
    name = data.draw(st.sampled_from((WORSE_UP if up else WORSE_DOWN)[bottleneck]))
    least = 1e-6 if name == "ceiling_bytes_per_s" else 0  # a ceiling of nought is none
    now, then = (data.draw(st.floats(least, SCALES.get(name, 1))) for _ in range(2))
    better, worse = (min(now, then), max(now, then)) if up else (max(now, then), min(now, then))
    scores = [judge(replace(values, **{name: v})).scores[bottleneck] for v in (better, worse)]
    assert scores[0] <= scores[1]


@given(signals, st.sets(st.sampled_from(NAMES)))
@settings(max_examples=80, deadline=None)
def test_a_missing_signal_adds_no_sign_and_makes_no_firm_verdict(values, hidden):
    """A verdict that is firm with signals missing is the verdict of all of them, whatever they say."""
    partly = replace(values, **dict.fromkeys(hidden))
    found, whole = judge(partly), judge(values)
    shown = {(s.bottleneck, s.name) for s in found.seen if s.present}
    assert shown <= {(s.bottleneck, s.name) for s in whole.seen if s.present}
    if found.firm:
        assert whole.verdict is found.verdict


@given(signals)
@settings(max_examples=80, deadline=None)
def test_a_verdict_stands_on_signs_that_were_seen(values):
    found = judge(values)
    if found.verdict.value in {b.value for b in Bottleneck}:
        weights = {(s.bottleneck, s.name): s.weight for s in SIGNS}
        seen = [(s.bottleneck, s.name) for s in found.seen if s.present and s.bottleneck.value == found.verdict.value]
        assert sum(weights[key] for key in seen) >= 60
        assert len(seen) >= 2 or seen == [(Bottleneck.CPU_STAGING, "waits-for-decoding")]


def test_a_firm_verdict_exists():
    """Else the test above would say nothing: a ledger and all signals of a scenario, nothing of the others."""
    worst = dict.fromkeys(NAMES, 0.0)
    worst |= {"utilisation_ratio": 0.4, "ceiling_bytes_per_s": 1e9, "storage_bytes_per_s": 1e9}
    worst |= {"device_util_ratio": 1.0, "device_queue_count": 64.0, "io_full_ratio": 0.5, "request_bytes": 1e6}
    worst |= {"path_health_ratio": 1.0, "connection_count": 8.0, "object_bytes": 1e9, "cpus_per_gpu": 16.0}
    assert judge(Signals(**worst)).verdict is Verdict.THROUGHPUT
    assert judge(Signals(**worst)).firm


def test_every_sign_can_be_present_and_absent():
    high = Signals(**{n: 1e12 if n != "cpu_system_ratio" else 1.0 for n in NAMES})
    low = Signals(**dict.fromkeys(NAMES, 0.0))
    busy_user = replace(high, cpu_system_ratio=0.0, device_util_ratio=0.0)
    poor = replace(high, storage_bytes_per_s=0.0)
    for sign in (*SIGNS, *CONTRADICTIONS):
        answers = {sign.test(s) for s in (high, low, busy_user, poor)}
        assert {True, False} <= answers, sign.name
        assert sign.test(Signals()) is None
        assert sign.shows(Signals())
