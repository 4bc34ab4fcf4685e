"""The checks of GPUDirect on a node."""

from __future__ import annotations

from stoker.doctor.check import Target
from stoker.doctor.gds import check_config, check_driver, check_log, check_path, read_driver
from stoker.doctor.gds_p2pdma import NVIDIA_VERSION
from stoker.doctor.node import Host, Missing, PathStat

FS = "/proc/driver/nvidia-fs"
MOUNTS = """1 0 259:0 / / rw - xfs /dev/nvme0n1 rw
2 1 0:50 / /mnt/nfs rw - nfs4 192.0.2.1:/x rw,proto=tcp
"""


def gpu_node(make_node, **files):
    node = make_node(
        files={
            NVIDIA_VERSION: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.1",
            f"{FS}/version": "version: 2.28\n",
            f"{FS}/modules": "nvme: 2.28\nwekafsio: 1\n",
            "/proc/self/mountinfo": MOUNTS,
            "/sys/class/nvme/nvme0/transport": "pcie\n",
            "/sys/class/nvme/nvme0/nvme0n1/size": "1",
            "/etc/cufile.json": '{"properties": {"allow_compat_mode": true}}',
        },
        links={"/sys/dev/block/259:0": "/sys/devices/pci/nvme0n1"},
        stats={"/dev/nvidia-fs0": PathStat("character")},
    )
    node.files |= files
    return node


def test_a_node_without_a_driver_is_told_that_it_does_not_apply(make_node, said):
    node = make_node()
    assert said(check_driver(node, Target())) == {("gds-no-gpu", "unknown")}  # of a hidden /proc nothing follows
    node.files["/proc/self/mountinfo"] = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
    assert said(check_driver(node, Target())) == {("gds-no-gpu", "info")}
    assert check_config(node, Target()) == []
    assert check_path(node, Target("/x")) == []
    assert check_log(node, Target()) == []


def test_a_node_with_everything_is_expected_to_be_direct(make_node, said):
    node = gpu_node(make_node)
    assert said(check_driver(node, Target())) == {("gds-nvidia-fs-version", "ok"), ("gds-nvidia-fs-hooks", "info")}
    (found,) = check_path(node, Target("/data"))
    assert (found.what, str(found.severity)) == ("direct-expected(nvfs)", "ok")
    (found,) = check_path(node, Target("/mnt/nfs/x"))
    assert found.what.startswith("compat-expected(NFS over tcp")
    assert found.evidence[0].line.endswith("proto=tcp")


def test_a_container_without_device_nodes_is_told(make_node, said):
    node = gpu_node(make_node)
    node.stats = {"/dev/null": PathStat("character")}
    assert ("gds-device-nodes-absent", "warn") in said(check_driver(node, Target()))
    assert "nvidia-fs0" in check_path(node, Target("/data"))[0].what


def test_hidden_sys_and_proc_leave_it_unknown(make_node, said):
    node = gpu_node(make_node)
    node.links.clear()
    assert said(check_path(node, Target("/data"))) == {("gds-path", "unknown")}
    node.files["/proc/self/mountinfo"] = Missing("permission denied")
    assert said(check_path(node, Target("/data"))) == {("gds-path", "unknown")}
    node.files[f"{FS}/modules"] = Missing("permission denied")
    assert read_driver(node).hooks is None


def test_the_configuration_is_that_of_the_environment(make_node, said):
    node = gpu_node(make_node, **{"/x.json": '{"properties": {"allow_compat_mode": false}}'})
    node.variables = {"CUFILE_ENV_PATH_JSON": "/x.json", "CUFILE_FORCE_COMPAT_MODE": "true"}
    assert said(check_config(node, Target())) == {("gds-compat-forced", "fail")}


def test_the_log_is_read_where_the_configuration_puts_it(make_node, sample, said):
    log = sample("cufile-log/1.16-direct-debug.log")
    node = gpu_node(make_node, **{"/etc/cufile.json": '{"logging": {"dir": "/var/log"}}', "/var/log/cufile.log": log})
    assert said(check_log(node, Target())) == {("gds-log-direct", "ok")}


def test_p2pdma_is_ruled_out_by_what_is_known_and_never_taken_for_granted(make_node):
    node = gpu_node(make_node)
    assert read_driver(node).p2pdma is None
    node.host_facts = Host(0, "x86_64", "5.14.0-1.el9", 8)
    assert read_driver(node).p2pdma is False
    node.host_facts = Host(0, "x86_64", "6.8.0", 8)
    node.files["/sys/module/nvme_core/parameters/multipath"] = "Y\n"
    assert read_driver(node).p2pdma is False
