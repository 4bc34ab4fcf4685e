"""Every row of samples/INDEX.md has its test, and of a scenario every file says its part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stoker.doctor.diagnose import diagnose_folder
from stoker.doctor.kinds import detect
from stoker.doctor.registry import KINDS

from .conftest import SAMPLES

ROWS = re.findall(r"^\| (\S+/\S+) \|", (SAMPLES / "INDEX.md").read_text(), re.MULTILINE)
TESTS = "\n".join(p.read_text() for p in sorted(Path(__file__).parent.glob("test_*.py")) if p != Path(__file__))


def test_the_index_has_a_row_for_each_sample():
    files = {str(p.relative_to(SAMPLES)) for p in SAMPLES.rglob("*") if p.is_file() and p.name != "INDEX.md"}
    assert set(ROWS) == files


@pytest.mark.parametrize("row", [row for row in ROWS if not row.startswith("scenario/")])
def test_a_row_is_named_in_a_test(row):
    assert f'"{row}"' in TESTS


@pytest.mark.parametrize("row", [row for row in ROWS if row.startswith("scenario/") and "meta.json" not in row])
def test_a_file_of_a_scenario_is_of_one_kind(row):
    assert len(detect((SAMPLES / row).read_text(), KINDS)) == 1


# Scenario -> what its files say, as (id, severity, words).
SAID = {
    "throughput-local-nvme": (
        ("gpu-idle", "warn", ("idle 70%",)),
        ("disk-saturated", "warn", ("6.80 GB/s", "await 16.0 ms", "busy 99.9%")),
        ("pressure-io", "warn", ("io full 55%",)),
        ("cpu-busy", "ok", ("busy 12%",)),
        ("tcp-retransmits", "ok", ("0 of 1000",)),
    ),
    "network-nfs-tcp": (
        ("gpu-idle", "warn", ("idle 70%",)),
        ("tcp-retransmits", "fail", ("2.10%",)),
        ("nfs-one-tcp-connection", "warn", ("one TCP connection",)),
        ("nic-drops", "warn", ("51000 packets dropped",)),
        ("link-rate", "info", ("received 2.98 GB/s",)),
        ("nfs-io", "info", ("round trip 60.00 ms", "20.00 ms in the client's queue")),
        ("fs-metadata-share", "ok", ("5% of the operations",)),
        ("pressure-low", "ok", ("io full 1%",)),
    ),
    "metadata-lustre-small-files": (
        ("gpu-idle", "warn", ("idle 70%",)),
        ("fs-metadata-share", "warn", ("4.0 for each read", "96% of the time")),
        ("lustre-io", "info", ("read: 0.7 ms mean", "0.26 GB/s", "open: 9.0 ms mean")),
        ("pressure-io", "warn", ("io full 30%",)),
        ("tcp-retransmits", "ok", ("0 of 1000",)),
    ),
    "cpu-staging-compat-gds": (
        ("gpu-idle", "warn", ("idle 70%",)),
        ("gds-stats-compat", "warn", ("30000 of 30000",)),
        ("cpu-busy", "warn", ("busy 95%", "81% system")),
        ("pressure-cpu", "warn", ("cpu some 68%",)),
        ("disk-rates", "info", ("await 2.0 ms", "busy 29.0%")),
    ),
}


def test_each_scenario_has_what_it_says():
    assert {row.split("/")[1] for row in ROWS if row.startswith("scenario/")} == set(SAID)


@pytest.mark.parametrize("scenario", SAID)
def test_the_files_of_a_scenario_together_say_each_fact_once(scenario):
    found = diagnose_folder(SAMPLES / "scenario" / scenario, [])
    for name, severity, words in SAID[scenario]:
        (of_it,) = [f for f in found if f.id == name and f.severity == severity]
        assert [word for word in words if word not in of_it.what] == []
    assert len({(f.id, f.subject, f.severity) for f in found}) == len(found)
