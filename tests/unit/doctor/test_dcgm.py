"""Metrics of DCGM that cannot be believed, and other names."""

from __future__ import annotations

import pytest

from stoker.doctor import dcgm

GR, SM = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE"
UTIL, RX = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_PCIE_RX_BYTES"


def text(labels='gpu="3"', **values):
    return "".join(f"{name}{{{labels}}} {value}\n" for name, value in values.items())


def explain(**values):
    return dcgm.explain(text(**values), "given")


def test_zeros_of_a_gpu_that_works_are_stuck_and_not_idle(said):
    assert said(explain(**{GR: 0.0, SM: "0", UTIL: 99})) == {("gpu-metric-invalid", "unknown")}
    assert said(explain(**{GR: 0.0, SM: "0", UTIL: 0})) == {("gpu-idle", "warn")}


@pytest.mark.parametrize("blank", ["9223372036854775794", "140737488355328.000000", "2147483632", "NaN"])
def test_a_value_that_stands_for_none_is_not_a_number(blank, said):
    found = explain(**{GR: 0.9, SM: blank})
    assert said(found) == {("gpu-metric-invalid", "unknown"), ("gpu-activity-partly-known", "info")}
    assert blank in found[0].evidence[0].line


def test_utilisation_alone_is_unknown_however_high(said):
    assert said(explain(**{UTIL: 100})) == {("gpu-activity-partly-known", "unknown")}


def test_without_multiprocessors_a_gpu_can_be_idle_but_not_busy(said):
    assert said(explain(**{GR: 0.3})) == {("gpu-idle", "warn")}
    assert said(explain(**{GR: 1.0})) == {("gpu-activity-partly-known", "info")}


def test_percent_where_a_ratio_belongs_are_quoted():
    found = explain(**{SM: 87.1})
    assert (found[0].id, found[0].evidence[0].line) == ("line-not-understood", 'DCGM_FI_PROF_SM_ACTIVE{gpu="3"} 87.1')


def test_a_link_that_is_full_is_told_by_its_generation():
    full = {SM: 0.3, RX: 11e9, "DCGM_FI_DEV_PCIE_LINK_GEN": 4, "DCGM_FI_DEV_PCIE_LINK_WIDTH": 8}
    first, idle = explain(**full)
    assert (first.id, first.what) == ("gpu-pcie-saturated", "receives 11 GB/s of about 12.5 GB/s that its link carries")
    assert "not the limit" not in idle.what
    assert "12.5 GB/s" in idle.what
    assert [f.id for f in explain(**(full | {RX: 1e9}))] == ["gpu-idle"]


def test_bytes_since_the_start_are_no_rate():
    head = f"# TYPE {RX} counter\n"
    (found,) = dcgm.explain(head + text(**{SM: 0.3, RX: 9e12}), "given")
    assert found.id == "gpu-idle"
    assert "PCIe" not in found.what


def test_instances_of_a_gpu_and_newer_names_are_read():
    labels = 'gpu="0",GPU_I_ID="7",pod="a\\"b"'
    found = dcgm.explain(text(labels, DCGM_FI_PROF_SM_UTIL_RATIO=0.7, DCGM_FI_PROF_SM_OCCUPANCY=0.1), "given")
    assert [(f.subject, f.id) for f in found] == [("GPU 0 instance 7", "gpu-compute-bound")]


@pytest.mark.parametrize("line", ["DCGM_FI_PROF_SM_ACTIVE{} 0.5", 'DCGM_FI_PROF_SM_ACTIVE{gpu="1"}'])
def test_a_metric_without_a_gpu_or_a_value_is_quoted(line):
    found = dcgm.explain(line + "\n", "given")
    assert [(f.id, f.evidence[0].line) for f in found] == [("line-not-understood", line)]
