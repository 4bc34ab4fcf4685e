"""Checks of a node, and the runner: each in a thread of its own with a deadline, so that one that hangs costs 2 s."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.doctor.finding import Evidence, Finding, FindingId
from stoker.doctor.node import Node

CHECK_LIMIT_S: Final = 2.0
_log: Final = logging.getLogger("stoker.doctor")

CHECK_TIMED_OUT = FindingId(
    "check-timed-out",
    meaning="A check of the doctor did not end in its 2 seconds.",
    why="What it looks at hangs, as a dead network mount does, or the machine is very busy; its answer is missing.",
    fix="try the command or the file in the evidence by hand; a mount that hangs is a finding of its own",
)
CHECK_BROKE = FindingId(
    "check-broke",
    meaning="A check of the doctor failed by a fault of its own.",
    why="Its answer is missing; the others stand.",
    fix="report it with the output of stoker doctor --capture DIR",
)
IDS = (CHECK_TIMED_OUT, CHECK_BROKE)


@dataclass(frozen=True)
class Target:
    """What the user asks about: a path (absolute) or a URL of an object store; neither: the node alone."""

    text: str = ""

    @property
    def path(self) -> str:
        """The absolute path, or "" if it is none."""
        if self.text.startswith("file://"):
            return self.text.removeprefix("file://")
        return "" if "://" in self.text else self.text

    @property
    def url(self) -> str:
        """The URL of an object store, or "" if it is none."""
        return self.text if "://" in self.text and not self.path else ""


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: `C01` to `C23`; a word for what is looked at only when it is named.
        subject: What it is about, in a few words: what a finding of the runner is called.
        run: Findings of a node and a target. It only reads, through the node. It may raise: that is a finding too.
        per_target: Whether it is run for each target, or once with an empty one.
    """

    id: str
    subject: str
    run: Callable[[Node, Target], list[Finding]]
    per_target: bool = False


def run_checks(
    checks: Sequence[Check], node: Node, targets: Sequence[Target], *, limit_s: float = CHECK_LIMIT_S
) -> list[Finding]:
    """Findings of all checks, in the order of `checks`. Ends `limit_s` after it began, whatever hangs.

    Threads that are still busy are left to end by themselves; they are daemons and hold nothing.
    """
    jobs = [_Job(check, node, target) for check in checks for target in (targets if check.per_target else [Target()])]
    for job in jobs:
        job.start()
    end_s = time.monotonic() + limit_s
    findings: list[Finding] = []
    for job in jobs:
        findings += job.wait(end_s, limit_s)
    return findings


class _Job:
    def __init__(self, check: Check, node: Node, target: Target) -> None:
        self._check, self._node, self._target = check, node, target
        self._found: list[Finding] | None = None
        self._thread = threading.Thread(target=self._run, name=f"doctor-{check.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._check.run(self._node, self._target)
        except Exception as error:  # noqa: BLE001 - the boundary of a thread: a check that breaks is a finding
            _log.debug("check %s broke", self._check.id, exc_info=True)
            source = f"check {self._check.id} {self._target.text}".strip()
            line = Evidence(f"{type(error).__name__}: {error}", source)
            self._found = [CHECK_BROKE.unknown(self._check.subject, "could not be looked at", line)]

    def wait(self, end_s: float, limit_s: float) -> list[Finding]:
        self._thread.join(max(0.0, end_s - time.monotonic()))
        found = self._found
        if found is not None:
            return found
        line = Evidence(f"no answer in {limit_s:g} s", f"check {self._check.id} {self._target.text}".strip())
        return [CHECK_TIMED_OUT.unknown(self._check.subject, "did not answer in time", line)]
