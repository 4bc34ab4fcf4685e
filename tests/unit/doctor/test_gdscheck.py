"""gdscheck in forms of which there is no sample."""

from __future__ import annotations

import pytest

from stoker.doctor.gdscheck import detect, explain, parse

HEAD = "GDS release version: 9.1.0.1\nlibcufile version: 2.12\nDRIVER CONFIGURATION:\n"


@pytest.mark.parametrize(
    ("line", "routes"),
    [
        ("NVMe : p2pdma, compat", ("p2pdma",)),
        ("NVMe:c2c,compat", ("c2c",)),
        ("NFS : p2pdma, compat", ()),
        ("DDN EXAScaler : p2pdma, compat", ()),
        ("BeeGFS : dmabuf, compat", ()),
        ("IBM Spectrum Scale : dmabuf", ("dmabuf",)),
        ("WekaFS : Supported", ("rdma",)),
        ("NVMe P2PDMA : Supported", ("p2pdma",)),
        ("NVMe : compat", ()),
        ("NVMe : Unsupported", ()),
    ],
)
def test_a_word_is_a_route_only_where_it_can_be_one(line, routes):
    (backend,) = parse(HEAD + line).backends.values()
    assert backend.routes == routes
    assert backend.known


def test_a_new_word_is_unknown_and_quoted_and_never_a_verdict(said):
    found = explain(HEAD + "NVMe : warpdrive, compat\nNFS : compat\n", "x")
    assert ("gds-backend-unclear", "unknown") in said(found)
    assert not {name for name, _ in said(found)} & {"gds-no-backend", "gds-backend-capable"}
    assert [f.evidence[0].line for f in found if f.id == "gds-backend-unclear"] == ["NVMe : warpdrive, compat"]


def test_the_beta_prints_other_headings_and_numbers_for_switches():
    text = "GDS release version (beta): 0.95.1\nnvidia_fs version: 2.6 libcufile version: 2.3\n cuFile CONFIGURATION:\n"
    text += " NVMe : Supported\n properties.use_compat_mode : 1\n"
    assert detect(text)
    check = parse(text)
    assert check.release == "0.95.1"
    assert check.backends["nvme"].routes == ("nvfs",)
    assert check.flag("properties.use_compat_mode") is True


def test_grace_has_no_bar_and_its_iommu_is_no_fault(said):
    text = HEAD + "NVMe : c2c, compat\nGPU INFO:\n"
    text += "GPU index 0 NVIDIA GH200 bar:disabled bar size (MiB):N/A supports GDS, IOMMU State: Enabled\n"
    text += "PLATFORM INFO:\nIOMMU: Pass-through or enabled\nPlatform: box, Arch: aarch64(Linux 6.8)\n"
    names = {name for name, _ in said(explain(text, "x"))}
    assert not names & {"gds-bar-small", "gds-iommu-on"}
    assert "gds-backend-capable" in names


def test_a_log_that_repeats_the_lines_is_no_gdscheck():
    assert not detect(" 29-11-2026 15:31:15:492 [pid=1 tid=1] INFO   cufio-drv:218 GDS release version: 1.20.0.107\n")
