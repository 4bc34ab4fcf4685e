"""Measurements kept on the node."""

from __future__ import annotations

from stoker.doctor.storage_kept import keep, kept_ceilings, kept_measurements


def made(mount, rate, engine="direct"):
    return {
        "version": 1,
        "mount": mount,
        "sequential_read_bytes_per_s": rate,
        "read_engine": {"requested": "auto", "effective": engine, "reason": ""},
    }


def test_the_newest_of_a_mount_counts_and_mounts_are_kept_apart(tmp_path):
    for mount, rate in (("/a", 1.0), ("/b", 2.0), ("/a", 3.0)):
        keep(tmp_path / "doctor", made(mount, rate))
    assert kept_ceilings(tmp_path / "doctor") == {"/a": 3.0, "/b": 2.0}


def test_what_came_through_the_page_cache_is_no_ceiling(tmp_path):
    keep(tmp_path, made("/a", 5.0, "buffered"))
    assert kept_ceilings(tmp_path) == {}
    assert len(kept_measurements(tmp_path)) == 1


def test_what_is_no_measurement_is_passed_over(tmp_path):
    keep(tmp_path, made("/a", 5.0))
    keep(tmp_path, made("/none", None))
    (tmp_path / "storage-x.json").write_text("{")
    (tmp_path / "storage-y.json").write_text('{"version": 99, "mount": "/b"}')
    (tmp_path / "storage-z.json").write_text("[]")
    assert kept_ceilings(tmp_path) == {"/a": 5.0}
    assert len(kept_measurements(tmp_path)) == 2
    assert kept_measurements(tmp_path / "none") == []
