"""RAID on a node: md from /proc/mdstat, ZFS and btrfs from what their modules show without rights."""

from __future__ import annotations

from typing import Final

from stoker.doctor import mdstat, pools, raid_ids
from stoker.doctor import raid_ids as ids
from stoker.doctor.check import Check, Target
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.fold import fold
from stoker.doctor.kinds import Kind
from stoker.doctor.node import Missing, Node
from stoker.doctor.subject import Subject

_MDSTAT: Final = "/proc/mdstat"
_ZFS: Final = "/proc/spl/kstat/zfs"
_BTRFS: Final = "/sys/fs/btrfs"


def check_raid(node: Node, _target: Target) -> list[Finding]:
    """C14: arrays and pools."""
    text = node.read(_MDSTAT)
    found: list[Finding] = []
    if isinstance(text, str):
        arrays = mdstat.parse(text)
        found = [finding for array in arrays for finding in _broken(node, array.name) or mdstat.judge(array, _MDSTAT)]
    return fold([*found, *_zfs(node), *_btrfs(node)])


def _broken(node: Node, array: str) -> list[Finding]:
    """A RAID 0 that lost a member stays active in mdstat; only its state tells."""
    path = f"/sys/block/{array}/md/array_state"
    state = node.read(path, 64)
    if isinstance(state, str) and state.strip() == "broken":
        return [ids.DEGRADED.fail(array, "lost a member that it cannot do without", Evidence("broken", path))]
    return []


def _zfs(node: Node) -> list[Finding]:
    found = []
    for pool in _names(node, _ZFS):
        path = f"{_ZFS}/{pool}/state"
        state = node.read(path, 64)
        if isinstance(state, str):
            found.append(pools.judge_state(f"zfs {pool}", state.strip(), Evidence(state.strip(), path)))
    return found


def _btrfs(node: Node) -> list[Finding]:
    found = []
    for volume in _names(node, _BTRFS):
        for device in _names(node, f"{_BTRFS}/{volume}/devinfo"):
            base, subject = f"{_BTRFS}/{volume}/devinfo/{device}", f"btrfs {volume} device {device}"
            missing, counters = node.read(f"{base}/missing", 16), node.read(f"{base}/error_stats", 4096)
            if isinstance(missing, str) and missing.strip() == "1":
                line = Evidence("1", f"{base}/missing")
                found.append(ids.DEGRADED.fail(subject, "is missing, nothing is being rebuilt", line))
            elif isinstance(counters, str):
                words = [(line.split(), line) for line in counters.splitlines()]
                rows = [(pair[0], pair[1], line) for pair, line in words if len(pair) == 2]  # noqa: PLR2004 - a pair
                found += pools.judge_btrfs(subject, rows, f"{base}/error_stats") if rows else []
    return found


def _names(node: Node, folder: str) -> tuple[str, ...]:
    names = node.listing(folder)
    return () if isinstance(names, Missing) else names


KINDS: Final = (
    Kind("mdstat", mdstat.detect, mdstat.explain),
    Kind("mdadm-export", mdstat.detect_export, mdstat.explain_export),
    Kind("zpool-json", pools.detect_zpool, pools.explain_zpool),
    Kind("btrfs-stats", pools.detect_btrfs, pools.explain_btrfs),
)

SUBJECT: Final = Subject("raid", ids=raid_ids.IDS, kinds=KINDS, checks=(Check("C14", "RAID", check_raid),))
