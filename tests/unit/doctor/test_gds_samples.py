"""Each sample about GPUDirect concludes what its row of INDEX.md says. What a sample is is told from its content."""

from __future__ import annotations

import pytest


def find(findings, name):
    return [f for f in findings if f.id == name]


def one(findings, name):
    (found,) = find(findings, name)
    return found


OLDEST = "gdscheck/1.0.1.3-nvme-nvmeof-supported.txt"


def test_the_oldest_format_is_capable_of_two_back_ends_and_has_a_small_bar(explained, said):
    found = explained(OLDEST)
    assert one(found, "gds-release").what.startswith("GDS 1.0.1.3, ")
    capable = one(found, "gds-backend-capable")
    assert str(capable.severity) == "info"
    assert "NVMe (nvfs), NVMeOF (nvfs)" in capable.what
    assert "NFS" not in capable.what
    assert "no proof" in capable.what
    assert "256 MiB" in one(found, "gds-bar-small").what
    assert ("gds-compat-allowed", "info") in said(found)


def test_all_unsupported_is_not_engaged_and_refused_whatever_is_verified(explained, said):
    found = explained("gdscheck/1.7.1.12-nvfs-loaded-nothing-registered.txt")
    assert said(found) == {("gds-release", "info"), ("gds-no-backend", "fail"), ("gds-compat-not-allowed", "info")}
    assert "refused" in one(found, "gds-no-backend").what
    lines = [e.line for e in one(found, "gds-no-backend").evidence]
    assert "Platform verification succeeded" in lines


def test_iommu_and_a_small_bar_are_warnings(explained, said):
    found = explained("gdscheck/1.11.1.6-iommu-passthrough-bar256.txt")
    assert {("gds-iommu-on", "warn"), ("gds-bar-small", "warn"), ("gds-backend-capable", "info")} <= said(found)
    assert "NVMe (nvfs);" in one(found, "gds-backend-capable").what


def test_nfs_supported_is_a_capability_and_no_proof_of_a_mount(explained):
    capable = one(explained("gdscheck/1.13.1.3-nfs-supported-in-pod.txt"), "gds-backend-capable")
    assert str(capable.severity) == "info"
    assert "NFS (nvfs)" in capable.what
    assert "no proof for any path" in capable.what


def test_p2pdma_without_nvidia_fs_is_direct_although_nvme_is_unsupported(explained, said):
    found = explained("gdscheck/1.15.0.42-p2pdma-supported-no-nvfs.txt")
    assert "p2pdma" in one(found, "gds-backend-capable").what
    assert ("gds-p2pdma-without-nvidia-fs", "info") in said(found)
    assert find(found, "gds-no-backend") == []


def test_of_lists_of_words_compat_alone_is_never_supported(explained):
    found = explained("gdscheck/1.16.0.49-token-lists.txt")
    capable, compat = one(found, "gds-backend-capable").what, one(found, "gds-backend-compat-only").what
    assert "NVMe (nvfs)" in capable
    assert "IBM Spectrum Scale (dmabuf)" in capable
    assert "WekaFS (dmabuf)" in capable
    for name in ("NFS", "DDN EXAScaler", "BeeGFS", "NVMeOF"):
        assert name in compat
        assert f"{name} (" not in capable


def test_a_cut_output_with_compat_everywhere_is_not_engaged_and_the_rest_unknown(explained, said):
    found = explained("gdscheck/1.20.0.107-no-nvfs-all-compat.txt")
    assert {("gds-no-backend", "warn"), ("gds-output-cut-short", "unknown")} <= said(found)
    assert "none of the 12 back ends listed" in one(found, "gds-no-backend").what
    assert "no GPU INFO" in one(found, "gds-output-cut-short").what


def test_the_log_of_a_device_mapper_volume_names_both_causes(explained, said):
    found = explained("cufile-log/1.14-dm-udev-missing-compat.log")
    names = ("gds-log-process-compat", "gds-log-file-compat", "gds-device-mapper", "gds-udev-missing")
    assert said(found) == {(name, "warn") for name in names}


def test_the_log_of_three_processes_is_told_apart(explained):
    found = explained("cufile-log/1.6-nvme-not-registered.log")
    assert {(f.subject, f.id) for f in found} == {
        ("process 3540949", "gds-nvme-not-registered"),
        ("process 3540949", "gds-log-file-compat"),
        ("process 38031", "gds-no-cuda-driver"),
        ("process 157254", "gds-nvidia-fs-absent"),
    }


def test_the_log_at_trace_proves_direct_io(explained, said):
    assert said(explained("cufile-log/1.16-direct-debug.log")) == {("gds-log-direct", "ok")}


def test_the_log_without_a_driver_is_compat_for_that_reason(explained, said):
    found = explained("cufile-log/1.20-no-libcuda.log")
    names = ("gds-log-process-compat", "gds-no-cuda-driver", "gds-nvidia-fs-absent")
    assert said(found) == {(name, "warn") for name in names}


def test_the_shipped_configuration_may_fall_back_and_keeps_no_counters(explained, said):
    found = explained("cufile-json/default-1.16.json")
    assert said(found) == {("gds-compat-allowed", "info"), ("gds-cufile-stats-off", "info")}
    assert "allow_compat_mode" in one(found, "gds-compat-allowed").evidence[0].line


def test_two_stats_of_nvidia_fs_show_that_its_route_was_used_and_crosses_root_ports(explained, said):
    found = explained("nvidia-fs/stats-2.28-t0.txt", "nvidia-fs/stats-2.28-t1.txt", seconds=10.0)
    used = [f for f in find(found, "gds-nvidia-fs-io") if str(f.severity) == "ok"]
    assert [f.what for f in used] == ["24000 reads, 24000 MiB went direct by nvidia-fs, 2400 MiB/s"]
    assert "37%" in one(found, "gds-cross-root-port").what


def test_one_stats_with_counters_is_usable_evidence(explained):
    assert "can be compared" in one(explained("nvidia-fs/stats-2.28-t0.txt"), "gds-nvidia-fs-io").what


def test_stats_without_counters_prove_nothing(explained, said):
    found = explained("nvidia-fs/stats-2.28-rwstats-disabled.txt")
    assert said(found) == {("gds-nvidia-fs-counters-off", "unknown")}
    assert "rw_stats_enabled" in found[0].fix


def test_registered_modules_are_named_by_what_they_are_for_without_the_static_one(explained):
    what = one(explained("nvidia-fs/modules-nvme-and-rdma.txt"), "gds-nvidia-fs-hooks").what
    for name in ("nvme (NVMe)", "nvme_rdma (NVMe-oF)", "lnet (Lustre)", "rpcrdma (NFS)"):
        assert name in what
    assert "weka" not in what


def test_the_static_module_alone_is_nothing(explained, said):
    assert said(explained("nvidia-fs/modules-weka-only.txt")) == {("gds-nvidia-fs-hooks", "warn")}


def test_the_version_is_that_of_the_module(explained, said):
    found = explained("nvidia-fs/version.txt")
    assert said(found) == {("gds-nvidia-fs-version", "ok")}
    assert "2.28" in found[0].what
    assert "not the GDS release" in found[0].what


def test_of_two_peers_one_is_near_and_one_crosses_a_root_port(explained):
    found = explained("nvidia-fs/peer_distance.txt")
    near, far = one(found, "gds-peer-near"), one(found, "gds-cross-root-port")
    assert "nvme 0000:8c:00.0" in near.subject
    assert near.what.startswith("3 hops")
    assert "NUMA node 1" in near.what
    assert "network 0000:17:00.0" in far.subject
    assert "0x109" in far.what
    assert "NUMA node 0" in far.what


@pytest.mark.parametrize(
    ("name", "finding", "severity", "words"),
    [
        ("gds_stats/v8-direct.txt", "gds-stats-direct", "ok", "all 107907 that reached cuFile"),
        ("gds_stats/new-labels-nvfs.txt", "gds-stats-direct", "ok", "28784 by nvidia-fs"),
        ("gds_stats/forced-compat.txt", "gds-stats-compat", "warn", "39714 of 39714 (100%)"),
        ("scenario/cpu-staging-compat-gds/gds_stats.txt", "gds-stats-compat", "warn", "30000 of 30000 (100%)"),
    ],
)
def test_counters_of_cufile_say_direct_or_copied(explained, said, name, finding, severity, words):
    found = explained(name)
    assert said(found) == {(finding, severity)}
    assert words in found[0].what


def test_the_label_of_gdsio_is_no_evidence(explained, said):
    found = explained("gdsio/gpud-and-cpu-gpu.txt")
    assert said(found) == {("gds-gdsio-label", "info")}
    assert [f.what.split(";")[0] for f in found] == [
        "6.80 GiB/s of 1024 KiB with 8 threads",
        "4.18 GiB/s of 1024 KiB with 8 threads",
        "0.57 GiB/s of 4 KiB with 32 threads",
    ]
