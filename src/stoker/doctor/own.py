"""stoker's own: settings, tiers on the wrong device, room, saves that did not get on, fallbacks taken. Only reads."""

from __future__ import annotations

from typing import Final

from stoker.doctor import own_ids
from stoker.doctor.cgroup_node import memory_limit_bytes
from stoker.doctor.check import Check, Target
from stoker.doctor.finding import Finding
from stoker.doctor.node import Missing, Node
from stoker.doctor.own_runs import (
    MAX_RUNS,
    judge_far,
    judge_ledgers,
    judge_run,
    newest_step_bytes,
    read_ledgers,
    runs_in,
)
from stoker.doctor.own_settings import read_settings
from stoker.doctor.own_tiers import judge_engine, judge_nvme, judge_prefetch, judge_shared, judge_space
from stoker.doctor.subject import Subject
from stoker.tier.node import NodeDirectory


def check_settings(node: Node, _target: Target) -> list[Finding]:
    """C22: the settings, and what of them can be told without looking at the tiers."""
    settings = read_settings(node)
    found = list(settings.findings)
    return found + judge_prefetch(node, settings.config.feed.prefetch_bytes, memory_limit_bytes(node))


def check_tiers(node: Node, _target: Target) -> list[Finding]:
    """C22: what the tiers lie on. Of the default place only what is there already is spoken of."""
    settings = read_settings(node)
    tiers = settings.config.tiers
    found: list[Finding] = []
    if settings.nvme is not None and (tiers.nvme.path is not None or node.readable(f"{settings.nvme}/format")):
        found += judge_nvme(node, settings.nvme, chosen=tiers.nvme.path is not None)
        found += judge_engine(node, tiers.shared.path or settings.nvme, settings.config)
    if tiers.shared.path is not None:
        found += judge_shared(node, tiers.shared.path)
    return found


def check_runs(node: Node, _target: Target) -> list[Finding]:
    """C22: checkpoints on this node: steps that did not get on, and room for the next."""
    settings = read_settings(node)
    if settings.nvme is None or not node.readable(f"{settings.nvme}/format"):
        return []
    tiers = settings.config.tiers
    alone = tiers.shared.path is None and tiers.object.url is None
    found: list[Finding] = []
    newest_bytes = 0
    for run in runs_in(node, str(NodeDirectory(settings.nvme).checkpoints_root)):
        found += judge_run(node, run, alone=alone)
        found += judge_far(node, run, tiers.object.url) if tiers.object.url else []
        newest_bytes = max(newest_bytes, newest_step_bytes(node, run))
    return found + judge_space(node, settings.nvme, newest_bytes if tiers.shared.path is None else 0)


def check_shared_runs(node: Node, _target: Target) -> list[Finding]:
    """C22: checkpoints in the shared tier, apart from the others: its file system may hang."""
    shared = read_settings(node).config.tiers.shared.path
    return (
        [] if shared is None else [f for run in runs_in(node, str(shared)) for f in judge_run(node, run, alone=False)]
    )


def check_ledgers(node: Node, _target: Target) -> list[Finding]:
    """C22: what runs on this node say of their own waits and fallbacks."""
    nvme = read_settings(node).nvme
    names = Missing("") if nvme is None else node.listing(f"{nvme}/run")
    if nvme is None or isinstance(names, Missing):
        return []
    found: list[Finding] = []
    for name in names[:MAX_RUNS]:
        snapshots, unread = read_ledgers(node, str(NodeDirectory(nvme).run(name)))
        found += unread + judge_ledgers(f"run {name}", snapshots)
    return found


CHECKS: Final = (
    Check("C22", "settings", check_settings),
    Check("C22", "tiers", check_tiers),
    Check("C22", "checkpoints on this node", check_runs),
    Check("C22", "checkpoints in the shared tier", check_shared_runs),
    Check("C22", "ledgers", check_ledgers),
)

SUBJECT: Final = Subject("stoker", ids=own_ids.IDS, checks=CHECKS)
