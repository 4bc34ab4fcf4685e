"""Pack, train, kill, resume, and prove that nothing was lost, repeated or changed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from stoker.dataset.pack import PackOptions, pack
from stoker.store.local import LocalStore

SLOW_STEPS = 20
Lines: TypeAlias = list[dict[str, Any]]


def train(data: Path, nvme: Path, *flags: str, steps: int, kill_at: int = -1, far: str = "") -> Lines:
    """Run the training script in a process of its own; SIGKILL it once it reports step `kill_at`. Its JSON lines."""
    command = [sys.executable, "-m", "stoker.demo.train", str(data), str(nvme), far, str(steps), str(kill_at), *flags]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  our own script
        try:
            for text in process.stdout or ():
                lines.append(json.loads(text))
                if kill_at >= 0 and lines[-1].get("step") == kill_at:
                    process.kill()
        except BaseException:  # Ctrl-C among them: no training goes on behind our back
            process.kill()
            raise
    if process.returncode != (0 if kill_at < 0 else -9):
        raise RuntimeError(f"the training script ended with {process.returncode}: {' '.join(command)}")
    return lines


def same_as_source(line: dict[str, Any], source: Path) -> bool:
    """Whether the samples of a step are the source files of those names, byte for byte, read without stoker."""
    files = [source / f"{key.removeprefix('stdlib/')}.py" for key in line["keys"]]
    return bool(line["sha256"] == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files])


def demonstrate(directory: Path, steps: int, say: Callable[[str], None], far: str = "") -> dict[str, Any]:
    """The whole demonstration in `directory`, with object tier `far`; the facts the command prints. Half a minute."""
    source, data, work = Path(sysconfig.get_path("stdlib")), directory / "data", directory / "stoker-demo-runs"
    outside = ("site-packages/*", "dist-packages/*", "*.*.py")
    options = PackOptions(shard_bytes=8 << 20, include=("*.py",), exclude=outside, prefix="stdlib")
    packed = pack(source, LocalStore(data, create=True), options)
    say(f"packed {packed.files} source files of the Python library into {packed.shards} shards")
    shutil.rmtree(work, ignore_errors=True)  # what a demo left that was killed itself

    say(f"training {steps} steps without interruption")
    whole = train(data, work / "whole", steps=steps)
    kill_at = steps * 5 // 7
    say(f"training again, SIGKILL at step {kill_at}")
    killed = train(data, work / "killed", steps=steps, kill_at=kill_at, far=far)
    shutil.copytree(work / "killed", work / "control")
    if far:  # as if the node were lost
        shutil.rmtree(work / "killed")
    say(f"starting it again: it resumes from its newest checkpoint{', in the object tier' if far else ''}")
    resumed = train(data, work / "killed", steps=steps, far=far)
    say("the control: the same, but with another RNG than the saved one")
    control = train(data, work / "control", "forget-rng", steps=steps)
    say(f"{SLOW_STEPS} steps from a store that takes 30 ms a read, without and with prefetch")
    slow = train(data, work / "slow", "slow-no-prefetch", steps=SLOW_STEPS)[-1]["report"]
    fast = train(data, work / "fast", "slow", steps=SLOW_STEPS)[-1]["report"]
    shutil.rmtree(work)

    report = resumed[-1]["report"]
    return {
        "dataset": packed.to_json(),
        "training": compare(whole, killed, resumed, control)
        | {"batches_are_the_source_files": all(same_as_source(line, source) for line in whole[:-1])},
        "wait": {"ratio": report["wait_ratio"], "by_cause": report["wait_s_by_cause"]}
        | {"utilisation": report["accelerator_utilisation"], "slow_store_by_cause": slow["wait_s_by_cause"]}
        | {"ratio_slow_store_no_prefetch": slow["wait_ratio"], "ratio_slow_store": fast["wait_ratio"]},
        "bytes_read": report["bytes_read"],
        "checkpoint": report["checkpoint"] | {"restored_from": resumed[-1]["restored_from"]},
    }


def compare(whole: Lines, killed: Lines, resumed: Lines, control: Lines) -> dict[str, Any]:
    """Whether the killed and resumed run is the one that was never interrupted; last lines are weights and report."""
    start, losses = resumed[0]["step"], [line["loss"] for line in whole[:-1]]
    return {"steps": len(losses), "loss_first": losses[0], "loss_last": losses[-1], "losses": losses} | {
        "killed_at_step": killed[-1]["step"],
        "resumed_from_step": start,
        "batches_identical": killed[:start] + resumed[:-1] == whole[:-1] and killed == whole[: len(killed)],
        "weights_identical": resumed[-1]["weights"] == whole[-1]["weights"],
        "control_differs": control[-1]["weights"] != whole[-1]["weights"]
        and [line["keys"] for line in control[:-1]] == [line["keys"] for line in resumed[:-1]],
    }
