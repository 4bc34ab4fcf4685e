"""The conditions of PCI P2PDMA: ruled out by what is seen, and never promised."""

from __future__ import annotations

import pytest

from stoker.doctor.check import Target
from stoker.doctor.gds import check_p2pdma
from stoker.doctor.gds_p2pdma import MULTIPATH, NVIDIA_VERSION, PARAMS, conditions, possible
from stoker.doctor.node import Host, Missing

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\n"
SET = 'RegistryDwords: "RMForceStaticBar1=1;RmForceDisableIomapWC=1"\n'


def node_with(make_node, **changed):
    files = {NVIDIA_VERSION: OPEN, PARAMS: SET, MULTIPATH: "N\n"}
    return make_node(files=files | changed)


def one(node):
    (found,) = check_p2pdma(node, Target())
    return found


def test_with_every_condition_that_is_seen_it_is_not_promised(make_node):
    node = node_with(make_node)
    assert possible(conditions(node)) is None
    assert one(node).what == "nothing that is seen stands against PCI P2PDMA; only a probe shows that it works"
    assert [e.source for e in one(node).evidence] == ["uname -r", NVIDIA_VERSION, PARAMS, MULTIPATH]


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        (NVIDIA_VERSION, CLOSED, "open one"),
        (NVIDIA_VERSION, OPEN.replace("570", "550"), "open one"),
        (PARAMS, 'RegistryDwords: ""\n', "RMForceStaticBar1"),
        (MULTIPATH, "Y\n", "multipath"),
    ],
)
def test_one_condition_that_does_not_hold_rules_it_out(make_node, path, text, reason):
    found = one(node_with(make_node, **{path: text}))
    assert found.what.startswith("PCI P2PDMA is not possible: ")
    assert reason in found.what
    assert (str(found.severity), [e.source for e in found.evidence]) == ("info", [path])


def test_an_old_kernel_rules_it_out_and_multipath_counts_on_x86_alone(make_node):
    node = node_with(make_node, **{MULTIPATH: "Y\n"})
    node.host_facts = Host(0, "aarch64", "6.8.0", 8)
    assert possible(conditions(node)) is None
    node.host_facts = Host(0, "aarch64", "5.14.0", 8)
    assert "kernel is older than 6.2" in one(node).what


def test_asked_for_where_it_is_not_possible_it_is_a_warning(make_node):
    asked = {"/etc/cufile.json": '{"properties": {"use_pci_p2pdma": true}}', MULTIPATH: "Y\n"}
    found = one(node_with(make_node, **asked))
    assert (str(found.severity), "the configuration asks for it" in found.what) == ("warn", True)


@pytest.mark.parametrize("text", ["of another form", "", Missing("permission denied")])
def test_what_is_hidden_or_of_another_form_is_named_and_rules_nothing_out(make_node, text):
    node = node_with(make_node, **{MULTIPATH: text})
    assert possible(conditions(node)) is None
    assert f"({MULTIPATH} not understood or hidden)" in one(node).what


def test_without_a_driver_it_is_not_spoken_of(make_node):
    assert check_p2pdma(make_node(), Target()) == []
