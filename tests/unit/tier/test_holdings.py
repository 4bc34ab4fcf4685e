from stoker.tier.holdings import holdings


def test_runs_steps_and_bytes_are_counted_and_partial_steps_are_no_steps(tmp_path):
    checkpoints = tmp_path / "checkpoint"
    for run, step, size in [
        ("a", "step-00000020.g0001", 10),
        ("a", "step-00000010.g0002", 5),
        ("b", "step-00000001.g0001.partial", 3),
    ]:
        folder = checkpoints / run / step
        folder.mkdir(parents=True)
        (folder / "rank-00000-of-00001.safetensors").write_bytes(b"x" * size)
        (checkpoints / run / "run.json").write_text("{}")
    (checkpoints / "not-a-run" / "step-00000001.g0001").mkdir(parents=True)
    found = holdings(tmp_path, checkpoints)
    assert [(r.run, r.step_count, r.newest, r.total_bytes) for r in found.runs] == [
        ("a", 2, "step-00000010.g0002", 15),
        ("b", 0, "", 3),
    ]
    assert 0 < found.free_bytes <= found.total_bytes


def test_a_tier_without_checkpoints_holds_no_runs(tmp_path):
    assert holdings(tmp_path, tmp_path / "checkpoint").runs == ()
