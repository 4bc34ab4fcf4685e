import os

import pytest

from stoker.io.memory_limit import memory_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("named", "files", "limit"),
    [
        ("0::/job/rank\n", {"job/rank/memory.max": "max", "job/memory.max": "1000"}, 1000),
        ("0::/job/rank\n", {"job/rank/memory.max": "500", "job/memory.max": "1000"}, 500),
        ("0::/\n", {"memory.max": "700\n"}, 700),
        ("0::/gone/elsewhere\n", {"memory.max": "700\n"}, 700),
        ("0::/../../job\n", {"memory.max": "700\n"}, 700),
        ("0::/\n", {}, MACHINE),
        ("", {"memory.max": "700"}, MACHINE),
        (
            "5:cpu,memory:/a\n3:cpuset:/\n0::/\n",
            {"cpu,memory/a/memory.limit_in_bytes": "900", "cpu,memory/memory.limit_in_bytes": "9223372036854771712"},
            900,
        ),
        ("5:memory:/a\n", {"memory/a/memory.limit_in_bytes": "x"}, MACHINE),
    ],
)
def test_the_memory_is_the_machines_or_the_least_that_a_cgroup_above_allows(tmp_path, named, files, limit):
    (tmp_path / "cgroup").write_text(named)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_bytes(tmp_path / "cgroup", tmp_path / "fs") == limit


def test_of_this_process_it_is_told_and_no_more_than_there_is():
    assert 0 < memory_bytes() <= MACHINE
