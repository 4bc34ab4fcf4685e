"""The probe of GPUDirect: rungs of proof, and that nothing is loaded where there is no GPU."""

from __future__ import annotations

import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.gds_probe import (
    READ_MAX_BYTES,
    Observation,
    Rung,
    Stage,
    cannot_probe,
    choose_file,
    diagnose_gds,
    judge,
    probe,
    route_of,
    run_child,
    rung_of,
)
from stoker.doctor.gds_probe_child import observe
from stoker.doctor.gds_route import Expected
from stoker.errors import StoreError, UnsupportedError
from stoker.io.cufile import ReadCounters
from stoker.units import MIB

from .conftest import by_id


class Library:
    """Counts what it reads, by the way that the test says; may lie, as the vendor's layers above do."""

    def __init__(self, route="nvfs", *, file_bytes=1 << 40, hides=0, fails=None, unaligned=0):
        self.route, self.file_bytes, self.hides, self.fails = route, file_bytes, hides, fails
        self.unaligned, self.closed = unaligned, False
        self.seen = ReadCounters(total=5, nvfs=5, bytes=999)  # of others in the process, before

    def version(self):
        return "1.20"

    def register(self, _fd):
        if self.fails == "register":
            raise UnsupportedError("cuFile does not admit the file: GPUDirect is not possible for this file (5008)")
        return 1

    def read(self, _handle, size_bytes, offset):
        if self.fails == "read":
            raise StoreError("cuFile cannot read")
        got = max(0, min(size_bytes, self.file_bytes - offset))
        ways = {"nvfs": 0, "p2pdma": 0, "posix": 0, "rdma": 0} | {self.route: 1}
        s = self.seen
        if self.hides and offset < self.hides:  # went past cuFile
            return got
        self.seen = ReadCounters(
            s.total + 1,
            s.p2pdma + ways["p2pdma"],
            s.nvfs + ways["nvfs"],
            s.posix + ways["posix"],
            s.unaligned + self.unaligned,
            s.bytes + got,
        )
        return got

    def counters(self):
        return self.seen

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("library", "rung", "effective"),
    [
        (Library("nvfs"), Rung.COUNTED, "gds"),
        (Library("p2pdma"), Rung.COUNTED, "gds"),
        (Library("rdma"), Rung.COUNTED, "gds"),
        (Library("posix"), Rung.ADMITTED, "compat"),
        (Library("nvfs", hides=2 * MIB), Rung.ADMITTED, "unknown"),
        (Library("nvfs", hides=1 << 40), Rung.ADMITTED, "unknown"),
        (Library("nvfs", file_bytes=MIB), Rung.ADMITTED, "unknown"),
        (Library(fails="register"), Rung.PREDICTED, "refused"),
        (Library(fails="read"), Rung.ADMITTED, "unknown"),
    ],
)
def test_only_reads_whose_every_byte_was_counted_as_direct_are_proved(library, rung, effective):
    seen = probe(library, 3, 8 * MIB + 100)
    assert seen.requested_bytes == 8 * MIB
    assert (rung_of(seen), route_of(seen).effective) == (rung, effective)
    assert route_of(seen).requested == "gds"
    assert route_of(seen).reason


def test_at_most_64_mib_are_read_in_whole_blocks():
    assert probe(Library(), 3, 1 << 40).returned_bytes == READ_MAX_BYTES
    assert probe(Library(), 3, 4095).stage is Stage.DONE
    assert rung_of(probe(Library(), 3, 4095)) is Rung.ADMITTED


def seen_with(**changes):
    done = {
        "stage": Stage.DONE,
        "requested_bytes": 8 * MIB,
        "returned_bytes": 8 * MIB,
        "counted": ReadCounters(total=8, nvfs=8, bytes=8 * MIB),
    }
    return Observation(**done | changes)


def test_bytes_that_nvidia_fs_counted_too_corroborate():
    assert rung_of(seen_with(nvfs_bytes=8 * MIB)) is Rung.CORROBORATED
    assert rung_of(seen_with(nvfs_bytes=0)) is Rung.COUNTED
    assert rung_of(seen_with(nvfs_bytes=None)) is Rung.COUNTED
    by_p2p = ReadCounters(total=8, p2pdma=8, bytes=8 * MIB)
    assert rung_of(seen_with(counted=by_p2p, nvfs_bytes=8 * MIB)) is Rung.COUNTED


counts = st.integers(0, 20)
observations = st.builds(
    Observation,
    st.sampled_from(list(Stage)),
    requested_bytes=st.sampled_from([0, MIB, 8 * MIB]),
    returned_bytes=st.sampled_from([0, MIB, 8 * MIB]),
    counted=st.builds(ReadCounters, counts, counts, counts, counts, counts, st.sampled_from([0, MIB, 8 * MIB])),
    nvfs_bytes=st.none() | st.sampled_from([0, 8 * MIB]),
)


@given(observations)
def test_a_copied_read_or_a_byte_that_was_not_counted_is_never_direct(seen):
    rung, route = rung_of(seen), route_of(seen)
    if rung in (Rung.COUNTED, Rung.CORROBORATED):
        assert seen.counted.posix == 0
        assert seen.counted.total > 0
        assert seen.counted.bytes == seen.returned_bytes == seen.requested_bytes
    assert (route.effective == "gds") == (rung in (Rung.COUNTED, Rung.CORROBORATED))
    assert Observation.from_json(json.loads(json.dumps(seen.to_json()))) == seen


@pytest.mark.parametrize(
    ("seen", "expected", "findings"),
    [
        (seen_with(), Expected.DIRECT, [("gds-proof", "ok")]),
        (seen_with(), Expected.COMPAT, [("gds-proof", "ok"), ("gds-prediction-wrong", "warn")]),
        (
            seen_with(counted=ReadCounters(total=8, posix=8, bytes=8 * MIB)),
            Expected.DIRECT,
            [("gds-proof", "warn"), ("gds-prediction-wrong", "warn")],
        ),
        (
            seen_with(counted=ReadCounters(total=8, posix=8, bytes=8 * MIB)),
            Expected.COMPAT,
            [("gds-proof", "warn")],
        ),
        (
            Observation(Stage.REGISTER, "5008", refused=True),
            Expected.DIRECT,
            [("gds-proof", "fail"), ("gds-prediction-wrong", "warn")],
        ),
        (Observation(Stage.NOT_STARTED, "no GPU"), Expected.DIRECT, [("gds-proof", "unknown")]),
        (seen_with(counted=ReadCounters(8, 0, 8, 0, 8, 8 * MIB)), Expected.DIRECT, [("gds-proof", "warn")]),
    ],
)
def test_an_observation_and_what_was_predicted_make_findings(seen, expected, findings):
    assert [(f.id, str(f.severity)) for f in judge("/data/x", seen, expected)] == findings


GPU = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module  580.00\n",
    "/dev/nvidiactl": "",
    "/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: x\n",
}


def test_a_driver_its_node_and_a_gpu_are_needed_before_anything_is_loaded(make_node):
    assert cannot_probe(make_node(files=GPU)) == ""
    for name, why in zip(GPU, ("no NVIDIA driver", "/dev/nvidiactl", "no GPU"), strict=True):
        assert why in cannot_probe(make_node(files={k: v for k, v in GPU.items() if k != name}))
    assert cannot_probe(make_node())


def test_without_a_gpu_the_answer_is_unknown_with_its_reason(make_node):
    why = cannot_probe(make_node())
    found, more = diagnose_gds(make_node(), "/data", Observation(Stage.NOT_STARTED, why))
    (proof,) = by_id(found)["gds-proof"]
    assert str(proof.severity) == "unknown"
    assert "no NVIDIA driver" in proof.what
    assert more["engine"] == {"requested": "gds", "effective": "unknown", "reason": why}
    assert (more["rung"], more["prediction"]) == ("P0", "unknown")


def test_a_file_is_itself_and_a_directory_its_first_that_is_large_enough(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 4095)
    (tmp_path / "b").write_bytes(b"x" * 4096)
    (tmp_path / "sub").mkdir()
    assert choose_file(tmp_path) == tmp_path / "b"
    assert choose_file(tmp_path / "a") == tmp_path / "a"
    assert choose_file(tmp_path / "sub") is None
    assert choose_file(tmp_path / "none") is None


def test_a_child_that_spins_is_ended_and_one_that_dies_is_told_of(tmp_path):
    spin = [sys.executable, "-c", "while True: pass"]
    seen = run_child(tmp_path, spin, limit_s=0.05)
    assert "did not answer in 0.05 s" in seen.error
    dies = [sys.executable, "-c", "import sys; sys.exit('vendor said no')"]
    seen = run_child(tmp_path, dies)
    assert (seen.stage, "vendor said no" in seen.error) == (Stage.NOT_STARTED, True)
    noise = [sys.executable, "-c", "print('{}')"]
    assert run_child(tmp_path, noise).stage is Stage.NOT_STARTED


def test_a_child_has_no_stdin_and_its_answer_is_read(tmp_path):
    answer = json.dumps(seen_with().to_json())
    script = f"import os, sys; assert os.fstat(0).st_rdev == os.stat('/dev/null').st_rdev; print({answer!r})"
    assert run_child(tmp_path, [sys.executable, "-c", script]) == seen_with()


def test_the_real_child_without_the_extra_says_what_is_missing(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 8192)
    seen = run_child(tmp_path / "f")
    assert seen.stage in (Stage.NOT_STARTED, Stage.OPEN)
    assert seen.error


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 8192)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("no direct I/O here")
    return path


def test_the_child_closes_what_it_opened_and_adds_what_nvidia_fs_counted(file):
    library, counted = Library(), iter((10, 12))
    seen = observe(file, lambda _bytes: library, lambda: next(counted))
    assert (seen.stage, seen.returned_bytes, seen.nvfs_bytes) == (Stage.DONE, 8192, 2 * MIB)
    assert library.closed
    assert observe(file, lambda _bytes: Library(), lambda: None).nvfs_bytes is None


def test_a_library_that_does_not_open_and_a_file_that_is_not_there_are_values(file, tmp_path):
    def closed(_bytes):
        raise StoreError("cannot open cuFile: 5033")

    assert observe(file, closed, lambda: None) == Observation(Stage.OPEN, "cannot open cuFile: 5033")
    assert "no such file" in observe(tmp_path / "none", closed, lambda: None).error
