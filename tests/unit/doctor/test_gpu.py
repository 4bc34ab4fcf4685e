"""The checks of GPUs on a node."""

from __future__ import annotations

import pytest

from stoker.doctor.check import Target
from stoker.doctor.gpu import (
    check_activity,
    check_bar,
    check_iommu,
    check_links,
    detect_query,
    explain_query,
    largest_window,
)
from stoker.doctor.node import Host, Missing, Output

PCI = "/sys/bus/pci/devices/0000:1b:00.0"
GPU = {"/proc/driver/nvidia/gpus/0000:1B:00.0/information": ""}
RESOURCE = "0x{0:016x} 0x{1:016x} 0x000000000014220c\n"
HEAD = (
    "index, name, pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, pcie.link.width.max, "
    "utilization.gpu [%]\n"
)


def link(base, width, most, speed="32.0 GT/s PCIe", fastest="32.0 GT/s PCIe"):
    values = {"current_link_width": width, "max_link_width": most}
    values |= {"current_link_speed": speed, "max_link_speed": fastest}
    return {f"{base}/{name}": f"{value}\n" for name, value in values.items()}


def asked(make_node, row):
    node = make_node(files=dict(GPU))
    found = Output(HEAD + row) if isinstance(row, str) else row
    node.run = lambda argv: found if argv[0] == "nvidia-smi" else Missing("no such command")
    return node


def test_a_node_without_gpus_is_not_spoken_of(make_node):
    for check in (check_links, check_bar, check_iommu, check_activity):
        assert check(make_node(), Target()) == []


@pytest.mark.parametrize(
    ("width", "speed", "expected"),
    [
        (16, "32.0 GT/s PCIe", ("gpu-pcie-link", "ok")),
        (8, "32.0 GT/s PCIe", ("gpu-pcie-link", "warn")),
        (16, "2.5 GT/s PCIe", ("gpu-pcie-link", "info")),
    ],
)
def test_fewer_lanes_are_a_fault_and_a_slow_idle_link_is_not(make_node, said, width, speed, expected):
    node = make_node(files=GPU | link(PCI, width, 16, speed))
    assert said(check_links(node, Target())) == {expected}


def test_a_network_card_that_is_slow_on_its_bus_is_a_fault(make_node):
    files = link("/sys/class/infiniband/mlx5_0/device", 16, 16, "8.0 GT/s PCIe")
    (found,) = check_links(make_node(files=files), Target())
    assert (found.id, found.what) == (
        "nic-pcie-link",
        "its PCIe link runs at 8.0 GT/s PCIe of 32.0 GT/s PCIe under load",
    )


def test_without_sys_nvidia_smi_is_asked(make_node, said):
    assert said(check_links(asked(make_node, "0, A, 4, 5, 16, 16, 90 %\n"), Target())) == {("gpu-pcie-link", "warn")}
    assert said(check_links(asked(make_node, "0, A, 1, 5, 16, 16, 0 %\n"), Target())) == {("gpu-pcie-link", "info")}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("0, A, [N/A], 5, 16, 16, 0 %\n", ("gpu-metric-invalid", "unknown")),
        ("0, A, fast, 5, 16, 16, 0 %\n", ("line-not-understood", "unknown")),
        ("", ("line-not-understood", "unknown")),
        ("1, A, 5, 5, 8, 16, [N/A]\n", ("gpu-pcie-link", "warn")),
    ],
)
def test_what_the_driver_does_not_say_is_unknown(row, expected, said):
    assert detect_query(HEAD + row)
    assert said(explain_query(HEAD + row, "given")) == {expected}


def test_how_busy_a_gpu_is_nvidia_smi_does_not_tell(make_node):
    (found,) = check_activity(asked(make_node, "0, A, 5, 5, 16, 16, 100 %\n"), Target())
    assert (str(found.severity), found.id) == ("info", "gpu-activity-partly-known")
    assert "how much of the GPU it used is not known" in found.what
    (found,) = check_activity(asked(make_node, Missing("no such command")), Target())
    assert str(found.severity) == "unknown"


@pytest.mark.parametrize(("mebibytes", "severity"), [(256, "warn"), (131072, "ok")])
def test_the_largest_window_is_bar1(make_node, mebibytes, severity):
    small = RESOURCE.format(0x1000000, 0x1FFFFFF)
    text = small + RESOURCE.format(1 << 40, (1 << 40) + (mebibytes << 20) - 1) + RESOURCE.format(0, 0) + "x\n" * 20
    node = make_node(files=GPU | {f"{PCI}/resource": text.replace("x\n", RESOURCE.format(0, 0))})
    (found,) = check_bar(node, Target())
    assert (found.id, str(found.severity)) == ("gpu-bar1-small", severity)
    assert f"{mebibytes} MiB" in found.what


def test_windows_of_another_form_are_quoted():
    assert largest_window("0x1 0x2\n") == (None, "0x1 0x2")


@pytest.mark.parametrize(
    ("groups", "arguments", "severity"),
    [(True, "quiet", "warn"), (True, "quiet intel_iommu=on iommu=pt", "info"), (False, "quiet", None)],
)
def test_an_iommu_matters_on_x86(make_node, groups, arguments, severity):
    files = GPU | {"/proc/cmdline": arguments} | ({"/sys/kernel/iommu_groups/0/type": "DMA"} if groups else {})
    found = check_iommu(make_node(files=files), Target())
    assert [str(f.severity) for f in found] == ([severity] if severity else [])
    assert check_iommu(make_node(files=files, host_facts=Host(1, "aarch64", "6.8", 4)), Target()) == []
