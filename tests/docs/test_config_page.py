"""The page of settings lists every key as the source has it, and its example is one that loads."""

from __future__ import annotations

import os

from stoker.config import as_markdown, load_config

PAGE = "docs/reference/config.md"


def test_the_tables_of_keys_are_those_of_the_source(pages):
    _, begin, rest = pages[PAGE].text.partition("<!-- generated: config -->\n")
    listed, end, _ = rest.partition("\n<!-- end -->")
    assert begin
    assert end
    assert listed == as_markdown(), f"put these tables into {PAGE}:\n{as_markdown()}"


def test_the_example_loads_and_sets_what_it_says(pages, tmp_path):
    ((_, example),) = pages[PAGE].blocks("toml")
    (tmp_path / "stoker.toml").write_text(example)
    (tmp_path / "stoker.toml").chmod(0o600)
    found = load_config({}, tmp_path, uid=os.geteuid())
    assert sorted(found.sources) == [
        "feed.deadline_s",
        "feed.prefetch_bytes",
        "report.gpu_hour_price",
        "tiers.nvme.path",
    ]
