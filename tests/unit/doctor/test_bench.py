"""Outputs of benchmarks: a test for each row of the index about them."""

from __future__ import annotations

import json

import pytest

from .conftest import by_id


def test_jobs_of_different_groups_of_fio_are_told_apart(explained):
    found = explained("bench/fio-3.33-io_uring.json")
    results = by_id(found)["bench-result"]
    assert [f.subject for f in results] == ["fio shard-seq (group 0)", "fio sample-rand (group 1)"]
    assert "2767 requests/s" in results[0].what
    assert "rw=read bs=1m iodepth=16 numjobs=2" in results[0].what
    assert "19.3 ms" in results[0].what
    assert "15400 requests/s" in results[1].what
    assert "rw=randread bs=128k" in results[1].what
    (busy,) = by_id(found)["bench-device-busy"]
    assert busy.subject == "fio vda"
    assert "96%" in busy.what
    assert "bench-page-cache" not in by_id(found)


def test_fio_through_the_page_cache_measured_memory(sample):
    from stoker.doctor.bench import explain_fio

    report = json.loads(sample("bench/fio-3.33-io_uring.json"))
    report["global options"]["direct"] = "0"
    assert len(by_id(explain_fio(json.dumps(report), "x"))["bench-page-cache"]) == 2
    report["jobs"][0]["job options"]["direct"] = "1"
    assert len(by_id(explain_fio(json.dumps(report), "x"))["bench-page-cache"]) == 1


def test_the_job_file_is_direct_and_its_second_job_waits_for_the_first(explained):
    found = explained("bench/train-read.fio")
    assert [(f.id, f.subject) for f in found] == [
        ("bench-result", "fio job shard-seq"),
        ("bench-result", "fio job sample-rand"),
    ]
    assert "past the page cache" in found[0].what
    assert "after the jobs before it" in found[1].what


@pytest.mark.parametrize("direct", ["", "direct=0\n"])
def test_a_job_file_without_direct_io_would_measure_the_page_cache(sample, direct):
    from stoker.doctor.bench import explain_job_file

    text = sample("bench/train-read.fio").replace("direct=1\n", direct)
    assert {f.id for f in explain_job_file(text, "x")} == {"bench-page-cache"}


def test_accelerators_below_their_target_are_starved_and_uncached_data_are_fair(explained, said):
    found = explained("bench/dlio-summary-fail.json")
    assert said(found) == {
        ("bench-accelerators-starved", "warn"),
        ("bench-result", "info"),
        ("bench-page-cache", "ok"),
    }
    (starved,) = by_id(found)["bench-accelerators-starved"]
    assert "71%" in starved.what
    assert "90%" in starved.what


def test_the_summarys_own_word_on_its_target_counts_first(sample, said):
    from stoker.doctor.bench import explain_dlio

    report = json.loads(sample("bench/dlio-summary-fail.json"))
    report["metric"]["train_au_meet_expectation"] = "success"
    report["potential_caching"] = [1]
    assert ("bench-accelerators-starved", "ok") in said(explain_dlio(json.dumps(report), "x"))
    assert ("bench-page-cache", "warn") in said(explain_dlio(json.dumps(report), "x"))
    del report["metric"]["train_au_meet_expectation"]
    assert ("bench-accelerators-starved", "warn") in said(explain_dlio(json.dumps(report), "x"))


def test_rates_of_mdtest_are_a_second_with_and_without_the_unit_in_the_heading(explained, sample):
    from stoker.doctor.bench import detect_mdtest, explain_mdtest

    found = {f.subject: f.what for f in explained("bench/mdtest-summary.txt")}
    assert found["mdtest file stat"].startswith("90,551 a second: what listing")
    assert found["mdtest file read"].startswith("29,950 a second: what opening")
    assert found["mdtest tree creation"] == "800 a second"
    older = sample("bench/mdtest-summary.txt").replace("SUMMARY rate (in ops/sec): (of 3 iterations)", "SUMMARY rate:")
    assert detect_mdtest(older)
    assert {f.subject: f.what for f in explain_mdtest(older, "x")} == found
