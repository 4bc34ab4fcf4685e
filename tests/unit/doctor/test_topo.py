"""The matrix of nvidia-smi in forms that no sample has."""

from __future__ import annotations

from stoker.doctor import topo

COLOURED = "\t\x1b[4mGPU0\tmlx5_3\tCPU Affinity\x1b[0m\nGPU0\t X \tNODE\t0-3\nmlx5_3\tNODE\t X \n"


def test_colours_and_cards_that_are_columns_by_name_are_read():
    (found,) = topo.explain(COLOURED, "given")
    assert (found.id, found.what) == ("gpu-nic-far", "no network card is nearer than NODE")


def test_blanks_instead_of_tabs_are_read(sample):
    text = sample("net/nvidia-smi-topo.txt").replace("\t", "    ")
    assert topo.parse(text).links["GPU0"] == {"NIC0": "PIX", "NIC1": "SYS"}


def test_a_word_that_is_not_known_is_quoted():
    text = COLOURED.replace("NODE", "WARP")
    (found,) = topo.explain(text, "given")
    assert (found.id, str(found.severity)) == ("line-not-understood", "unknown")


def test_only_cards_that_carry_storage_can_be_too_far(sample):
    parsed = topo.parse(sample("net/nvidia-smi-topo.txt"))
    assert [f.id for f in topo.judge(parsed, "x", ())] == ["gpu-nic-affinity"] * 2
    assert [f.subject for f in topo.judge(parsed, "x", ("mlx5_1",)) if f.id == "gpu-nic-far"] == ["GPU0"]
