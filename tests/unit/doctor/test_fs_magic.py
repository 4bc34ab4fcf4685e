"""Magic numbers and WekaFS in forms that no sample has."""

from __future__ import annotations

from stoker.doctor import fs_magic


def test_a_number_is_read_with_and_without_its_prefix_and_an_unknown_one_is_unknown(said):
    found = fs_magic.explain_magic("ext2/ext3 ef53\nnew 0x12345678\nwhat is this\n", "given")
    assert [(f.id, str(f.severity)) for f in found] == [
        ("fs-magic", "info"),
        ("line-not-understood", "unknown"),
        ("line-not-understood", "unknown"),
    ]


def test_words_with_numbers_are_no_magic_numbers():
    assert not fs_magic.detect_magic("alpha 1234\nbeta 5678\n")
    assert not fs_magic.detect_magic("")


def test_a_weka_mount_in_another_form_is_unknown_and_quoted(said):
    found = fs_magic.explain_weka("IO node version 5\nmount:[a:b] one -o,forcedirect\nmount: two\n", "given")
    assert said(found) == {("wekafs-mount", "info"), ("wekafs-forcedirect", "warn"), ("line-not-understood", "unknown")}
    assert found[-1].evidence[0].line == "mount: two"
