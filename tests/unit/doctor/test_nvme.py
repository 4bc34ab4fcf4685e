"""NVMe from tools and from a node's /sys, in forms that no sample has."""

from __future__ import annotations

import json

import pytest

from stoker.doctor import nvme, nvme_cli
from stoker.doctor.check import Target
from stoker.doctor.gds import read_driver
from stoker.doctor.node import Host, Missing
from stoker.doctor.texts import tree


def one(findings, name):
    (found,) = [f for f in findings if f.id == name]
    return found


def subsystem(*paths, **more):
    rows = [dict(zip(("Name", "Transport", "State", "ANAState"), path, strict=False)) for path in paths]
    return json.dumps([{"Subsystems": [{"Name": "nvme-subsys7", "NQN": "nqn.2020-01.org:x", "Paths": rows, **more}]}])


def sys_node(make_node, text, **more):
    return make_node(files={path: value + "\n" for path, value in tree(text).items()} | more)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (
            [("nvme3", "rdma", "live", "optimized"), ("nvme4", "rdma", "connecting", "")],
            {"nvme-one-path", "nvme-not-live"},
        ),
        (
            [("nvme3", "rdma", "live", "inaccessible"), ("nvme4", "rdma", "live", "non-optimized")],
            {"nvme-no-optimized-path"},
        ),
        ([("nvme3", "fc", "live"), ("nvme4", "fc", "live")], {"nvme-fabric-not-rdma"}),
        ([("nvme3", "rdma", "dead")], {"nvme-one-path", "nvme-not-live"}),
        ([("nvme3", "pcie", "resetting")], {"nvme-not-live"}),
    ],
)
def test_paths_that_are_few_slow_or_not_live_are_warned_of(paths, expected):
    found = nvme_cli.explain_subsystems(subsystem(*paths), "given")
    assert {f.id for f in found if str(f.severity) == "warn"} == expected


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (subsystem(("nvme3", "quic", "live")), "quic"),
        (subsystem(("nvme3", "pcie", "napping")), "napping"),
        (subsystem(("nvme3", "rdma", "live", "sleepy"), ("nvme4", "rdma", "live")), "sleepy"),
        (subsystem(("nvme3", "rdma", "live"), ("nvme4", "rdma", "live"), IOPolicy="lucky"), "lucky"),
    ],
)
def test_words_that_are_not_known_are_unknown_and_quoted(text, word):
    found = one(nvme_cli.explain_subsystems(text, "given"), "line-not-understood")
    assert str(found.severity) == "unknown"
    assert word in found.what


def test_the_text_of_list_subsys_is_read_as_the_json_is():
    text = (
        "nvme-subsys3 - NQN=nqn.2021-05.org:pool\n"
        "               hostnqn=nqn.2014-08.org:h\n"
        "               iopolicy=numa\n"
        "\\\n"
        " +- nvme3 rdma traddr=192.0.2.9,trsvcid=4420 live optimized\n"
        " +- nvme4 tcp traddr=192.0.2.8 trsvcid=4420 connecting\n"
    )
    (found,) = nvme_cli.parse_text(text, "given")
    first, second = found.controllers
    assert (first.transport, first.address, first.state, first.ana) == (
        "rdma",
        "traddr=192.0.2.9,trsvcid=4420",
        "live",
        ("optimized",),
    )
    assert (second.transport, second.address, second.state) == ("tcp", "traddr=192.0.2.8 trsvcid=4420", "connecting")
    assert found.io_policy == "numa"
    (strange,) = nvme_cli.parse_text(text.replace("connecting", "napping"), "given")
    assert strange.controllers[1].state == "napping"
    assert nvme_cli.detect_subsystems(text)


def test_a_complaint_about_rights_is_unknown_and_one_about_no_driver_is_none(said):
    assert said(nvme_cli.explain_subsystems("Failed to scan topology: Permission denied\n", "x")) == {
        ("nvme-not-visible", "unknown")
    }
    assert said(nvme_cli.explain_list('{"Devices": []}', "x")) == {("nvme-none", "info")}


def test_a_nested_list_in_yet_another_nesting_is_found_by_its_keys():
    door = {"Controller": "nvme5", "Transport": "tcp", "State": "live", "Address": "traddr=192.0.2.1"}
    text = json.dumps({"Devices": [{"Subsystem": "nvme-subsys5", "Controllers": [door], "Namespaces": []}]})
    assert nvme_cli.detect_list(text)
    assert one(nvme_cli.explain_list(text, "x"), "nvme-fabric-not-rdma").subject == "nvme5 (nvme-subsys5)"


def check_nvme(node, target):
    """Both checks of it, as the runner asks them."""
    return [found for check in nvme.CHECKS for found in check.run(node, target)]


def test_drives_and_fabrics_are_checks_of_their_own_and_share_nothing(make_node, sample):
    node = sys_node(make_node, sample("nvme/sysfs-local-and-tcp.tree"))
    drives, fabrics = ({f.id for f in check.run(node, Target())} for check in nvme.CHECKS)
    assert [check.id for check in nvme.CHECKS] == ["C12", "C13"]
    assert {"nvme-local", "nvme-scheduler", "nvme-pcie-link"} <= drives
    assert {"nvme-fabric-not-rdma", "nvme-one-path"} <= fabrics
    assert drives & fabrics == set()


def test_a_node_without_nvme_and_one_with_sys_hidden_are_told_apart(make_node, said):
    assert said(check_nvme(make_node(), Target())) == {("nvme-not-visible", "unknown")}
    assert said(check_nvme(make_node(files={"/sys/class/net/lo/mtu": "1"}), Target())) == {("nvme-none", "info")}


def test_a_node_is_judged_as_the_tree_of_it_is(make_node, sample):
    node = sys_node(make_node, sample("nvme/sysfs-local-and-tcp.tree"))
    node.host_facts = Host(0, "x86_64", "6.8.0", 4)
    found = check_nvme(node, Target())
    ids = {(f.id, str(f.severity)) for f in found}
    assert {("nvme-fabric-not-rdma", "warn"), ("nvme-one-path", "warn"), ("nvme-scheduler", "warn")} <= ids
    assert ("nvme-pcie-link", "ok") in ids
    assert one(found, "nvme-scheduler").evidence[0].source == "/sys/block/nvme1n1/queue/scheduler"
    assert one(found, "nvme-scheduler").evidence[0].line == "none [mq-deadline] kyber bfq"


def test_few_queues_are_judged_by_the_cpus_and_multipath_by_the_machine(make_node, sample, said):
    node = sys_node(make_node, sample("nvme/sysfs-local-and-tcp.tree"))
    node.host_facts = Host(0, "aarch64", "6.8.0", 64)
    found = said(check_nvme(node, Target()))
    assert ("nvme-few-queues", "warn") in found
    assert "nvme-multipath-blocks-p2pdma" not in {name for name, _ in found}


def test_a_gpu_on_another_numa_node_is_a_warning_and_one_node_is_no_matter(make_node):
    base, pci = "/sys/class/nvme/nvme0", "/sys/bus/pci/devices"
    files = {
        f"{base}/transport": "pcie",
        f"{base}/address": "0000:01:00.0",
        f"{base}/state": "live",
        f"{base}/numa_node": "0",
        f"{pci}/0000:01:00.0/numa_node": "0",
        f"{pci}/0000:01:00.0/class": "0x010802",
        f"{pci}/0000:81:00.0/numa_node": "1",
        f"{pci}/0000:81:00.0/class": "0x030200",
        f"{pci}/0000:81:00.0/vendor": "0x10de",
        f"{pci}/0000:01:00.0/current_link_speed": "16.0 GT/s PCIe",
        f"{pci}/0000:01:00.0/current_link_width": "2",
        f"{pci}/0000:01:00.0/max_link_speed": "32.0 GT/s PCIe",
        f"{pci}/0000:01:00.0/max_link_width": "4",
        f"{base}/hwmon3/temp1_input": "85850",
        f"{base}/hwmon3/temp1_max": "81850",
    }
    found = check_nvme(make_node(files=files), Target())
    assert one(found, "nvme-numa").what == "NUMA node 0; GPU 0000:81:00.0 on another"
    assert str(one(found, "nvme-numa").severity) == "warn"
    assert one(found, "nvme-pcie-link").what == "PCIe Gen4 x2, though the drive can 32 GT/s x4"
    assert str(one(found, "nvme-hot").severity) == "warn"
    single = check_nvme(make_node(files=files | {"/sys/devices/system/node/online": "0\n"}), Target())
    assert [f for f in single if f.id == "nvme-numa"] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/sys/block/nvme0n1/queue/scheduler\tnone kyber", "scheduler"),
        ("/sys/class/nvme/nvme0/numa_node\ttwo", "NUMA"),
        ("/sys/class/nvme/nvme0/transport\t", "transport"),
    ],
)
def test_values_in_sys_that_are_not_known_are_unknown_and_quoted(line, words):
    unknown = [f for f in nvme.explain_tree(line + "\n", "given") if f.id == "line-not-understood"]
    found = next(f for f in unknown if words in f.what)
    assert line.split("\t")[0] in found.evidence[0].line


def test_the_transports_of_live_paths_reach_the_rules_of_gpudirect(make_node):
    base = "/sys/class/nvme"
    files = {
        f"{base}/nvme0/transport": "pcie",
        f"{base}/nvme0/state": "live",
        f"{base}/nvme0/nvme0n1/x": "1",
        f"{base}/nvme1/transport": "rdma",
        f"{base}/nvme1/state": "live",
        f"{base}/nvme1/nvme1c1n1/ana_state": "optimized",
        f"{base}/nvme2/transport": "tcp",
        f"{base}/nvme2/state": "live",
        f"{base}/nvme2/nvme1c2n1/ana_state": "optimized",
        f"{base}/nvme3/transport": "quic",
        f"{base}/nvme3/nvme3n1/x": "1",
        "/sys/block/nvme0n1/integrity/device_is_integrity_capable": "1",
    }
    driver = read_driver(make_node(files=files))
    assert driver.transports == {"nvme0n1": "pcie", "nvme1n1": "tcp"}
    assert driver.protected == {"nvme0n1"}
    files[f"{base}/nvme2/state"] = "dead"
    assert read_driver(make_node(files=files)).transports["nvme1n1"] == "rdma"
    assert read_driver(make_node(files={base: Missing("permission denied")})).transports == {}


def test_the_table_of_nvme_list_names_namespaces_but_no_transport(said):
    text = (
        "Node          Generic     SN    Model    Namespace  Usage              Format         FW Rev\n"
        "------------- ----------- ----- -------- ---------- ------------------ -------------- ------\n"
        "/dev/nvme3n1  /dev/ng3n1  S1    DISK     0x1        1.20 TB / 3.84 TB  512 B + 0 B    1.0\n"
    )
    assert nvme_cli.detect_list(text)
    found = nvme_cli.explain_list(text, "given")
    assert said(found) == {("nvme-namespaces", "info"), ("nvme-transport-not-told", "unknown")}
    assert found[0].what == "1 namespaces: nvme3n1"


def test_a_list_whose_devices_have_no_known_key_is_unknown(said):
    assert said(nvme_cli.explain_list('{"Devices": [{"Disk": "nvme0n1"}]}', "x")) == {
        ("line-not-understood", "unknown")
    }


def test_discovery_controllers_carry_no_io_and_are_not_blamed(make_node, said):
    nqn = "nqn.2014-08.org.nvmexpress.discovery"
    path = {"Name": "nvme9", "Transport": "tcp", "State": "live"}
    listed = json.dumps([{"Subsystems": [{"Name": "nvme-subsys9", "NQN": nqn, "Paths": [path]}]}])
    assert said(nvme_cli.explain_subsystems(listed, "given")) == {("nvme-none", "info")}
    files = {
        "/sys/class/nvme/nvme9/transport": "tcp",
        "/sys/class/nvme/nvme9/state": "live",
        "/sys/class/nvme/nvme9/queue_count": "1",
        "/sys/class/nvme/nvme9/cntrltype": "discovery",
    }
    assert check_nvme(make_node(files=files), Target()) == []
    del files["/sys/class/nvme/nvme9/cntrltype"]
    assert ("nvme-one-path", "warn") in said(check_nvme(make_node(files=files), Target()))
