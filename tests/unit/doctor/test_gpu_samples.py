"""Each sample about GPUs concludes what its row of INDEX.md says."""

from __future__ import annotations


def test_starved_gpus_are_idle_and_their_link_is_not_the_limit(explained, said):
    found = explained("gpu/dcgm-starved.prom")
    assert said(found) == {("gpu-idle", "warn")}
    assert [f.subject for f in found] == ["GPU 0", "GPU 1"]
    assert found[0].what.startswith("starves: idle 71% of the time, multiprocessors work 22% of the time")
    assert "PCIe receives 2.2 GB/s" in found[0].what
    assert "the PCIe link is not the limit" in found[0].what


def test_a_busy_gpu_is_never_blamed_on_storage(explained, said):
    found = explained("gpu/dcgm-busy.prom")
    assert said(found) == {("gpu-compute-bound", "ok")}
    assert (
        found[0].what == "multiprocessors work 87% of the time, tensor cores 60%: it computes, storage is not to blame"
    )
