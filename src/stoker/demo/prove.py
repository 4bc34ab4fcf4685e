"""Pack, train, kill, resume, and prove that nothing was lost, repeated or changed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.dataset.pack import PackOptions, pack
from stoker.store.local import LocalStore

SAVE_EVERY = 20
SLOW_STEPS = 20


def train(data: Path, nvme: Path, *options: str, steps: int, kill_at: int | None = None) -> list[dict[str, Any]]:
    """Run the training script in a process of its own; SIGKILL it once it reports step `kill_at`. Its JSON lines."""
    command = [sys.executable, "-m", "stoker.demo.train", str(data), "--nvme", str(nvme), "--run", "demo", *options]
    lines = []
    with subprocess.Popen([*command, "--steps", str(steps)], stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  our own script
        try:
            for text in process.stdout or ():
                lines.append(json.loads(text))
                if lines[-1].get("step") == kill_at is not None:
                    process.kill()
        except BaseException:  # Ctrl-C among them: no training goes on behind our back
            process.kill()
            raise
    if process.returncode != (0 if kill_at is None else -9):
        raise RuntimeError(f"the training script ended with {process.returncode}: {' '.join(command)}")
    return lines


def same_as_source(line: dict[str, Any], source: Path) -> bool:
    """Whether the samples of a step are the source files of those names, byte for byte, read without stoker."""
    files = [source / f"{key.removeprefix('stdlib/')}.py" for key in line["keys"]]
    return bool(line["sha256"] == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files])


def demonstrate(directory: Path, steps: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The whole demonstration in `directory`; returns the facts the command prints. Takes about half a minute."""
    source, data = Path(sysconfig.get_path("stdlib")), directory / "data"
    options = PackOptions(
        shard_bytes=8 << 20,
        include=("*.py",),
        exclude=("site-packages/*", "dist-packages/*", "*.*.py"),
        prefix="stdlib",
    )
    packed = pack(source, LocalStore(data, create=True), options)
    say(f"packed {packed.files} source files of the Python library into {packed.shards} shards")
    work = Path(tempfile.mkdtemp(prefix="run-", dir=directory))
    kill_at = steps * 5 // 7

    say(f"training {steps} steps without interruption")
    *whole, whole_end = train(data, work / "whole", steps=steps)
    say(f"training again, SIGKILL at step {kill_at}")
    killed = train(data, work / "killed", "--stand-still-at", str(kill_at), steps=steps, kill_at=kill_at)
    shutil.copytree(work / "killed", work / "control")
    say("starting it again: it resumes from its newest checkpoint")
    *resumed, resumed_end = train(data, work / "killed", steps=steps)
    say("the control: the same, but with another RNG than the saved one")
    *control, control_end = train(data, work / "control", "--forget-rng", steps=steps)
    say(f"{SLOW_STEPS} steps from a store that takes 30 ms a read, without and with prefetch")
    *_, slow = train(data, work / "slow", "--slow", "no-prefetch", steps=SLOW_STEPS)
    *_, fast = train(data, work / "fast", "--slow", "prefetch", steps=SLOW_STEPS)
    shutil.rmtree(work)

    start = resumed[0]["step"]
    report, first, last = resumed_end["report"], whole[0]["loss"], whole[-1]["loss"]
    return {
        "dataset": {
            "files": packed.files,
            "samples": packed.samples,
            "bytes": packed.total_bytes,
            "shards": packed.shards,
            "digest": packed.digest,
        },
        "training": {
            "steps": len(whole),
            "loss_first": first,
            "loss_last": last,
            "losses": [line["loss"] for line in whole],
            "killed_at_step": killed[-1]["step"],
            "resumed_from_step": start,
            "batches_identical": killed[:start] + resumed == whole
            and killed == whole[: len(killed)]
            and all(same_as_source(line, source) for line in whole),
            "weights_identical": resumed_end["weights"] == whole_end["weights"],
            "control_differs": control_end["weights"] != whole_end["weights"]
            and [line["keys"] for line in control] == [line["keys"] for line in resumed],
        },
        "wait": {
            "ratio": report["wait_ratio"],
            "by_cause": report["wait_s_by_cause"],
            "utilisation": report["accelerator_utilisation"],
            "ratio_slow_store_no_prefetch": slow["report"]["wait_ratio"],
            "ratio_slow_store": fast["report"]["wait_ratio"],
            "slow_store_by_cause": slow["report"]["wait_s_by_cause"],
        },
        "bytes_read": report["bytes_read"],
        "checkpoint": report["checkpoint"],
    }
