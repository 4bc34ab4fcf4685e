from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("tool", "text", "calls"),
    [
        ("perf", "1006;;raw_syscalls:sys_enter;758813;100.00;;\n", 1006),
        ("perf", "<not counted>;;raw_syscalls:sys_enter;0;0.00;;\n", None),
        ("strace", "  0.10    0.1  1  5   read\n100.00    0.000000           0        29         1 total\n", 29),
        ("strace", "100.00    0.000000           3        29           total\n", 29),
        ("strace", "", None),
    ],
)
def test_the_number_of_calls_is_found_in_what_a_tool_says(benchmark_module, tool, text, calls):
    assert benchmark_module("counts").parse_calls(tool, text) == calls


def test_where_no_tool_may_look_reads_and_writes_are_counted(benchmark_module, monkeypatch):
    counts = benchmark_module("counts")
    monkeypatch.setattr(counts.shutil, "which", lambda tool: None)
    counter = counts.SystemCalls(os.getpid())
    with Path("/dev/null").open("rb", buffering=0) as file:
        for _ in range(500):
            file.read(1)
    assert counter.tool == "proc"
    assert 500 <= counter.stop() < 1000


def test_counters_add_and_subtract_each_by_itself(benchmark_module):
    counts = benchmark_module("counts")
    one = counts.Counts(1.5, 2, 3, 4, 5)
    assert one + counts.ZERO == one
    assert (one + one) - one == one
