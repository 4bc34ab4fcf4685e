"""What holds for the kinds about NVMe, RAID, disks and file systems alike."""

from __future__ import annotations

import pytest

from stoker.doctor import diskstats, filesystem, nvme, raid

KINDS = (*nvme.KINDS, *raid.KINDS, *diskstats.KINDS, *filesystem.KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "text", ["", "\n", "hello\nworld\n", "{}", "[]", '{"Devices": 3}', '{"pools": {"x": {}}}', "a\tb"]
)
def test_a_kind_asked_for_by_name_always_answers_and_of_another_text_knows_nothing(kind, text):
    found = kind.explain(text, "given")
    assert found
    assert {str(f.severity) for f in found} <= {"unknown", "info"}
