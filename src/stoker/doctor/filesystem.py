"""File systems on a node: what paths lie on, what the mounts say, and what their clients tell without root."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stoker.doctor import beegfs, filesystem_ids, fs_magic, lustre, lustre_layout, lustre_params, mounts, mountstats
from stoker.doctor import filesystem_ids as ids
from stoker.doctor.check import Check, Target
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.fold import fold
from stoker.doctor.identity import MOUNTINFO, Mount, device_under, identify, parse_mountinfo
from stoker.doctor.kinds import Kind
from stoker.doctor.node import Missing, Node
from stoker.doctor.subject import Subject

_MOUNTSTATS: Final = "/proc/self/mountstats"
_BEEGFS: Final = "/proc/fs/beegfs"
_WEKA: Final = "/proc/wekafs/interface"
_BLOCK: Final = ("ext2", "ext3", "ext4", "xfs", "f2fs", "btrfs", "zfs")
_QUIET: Final = ("overlay", "squashfs", "erofs", *mounts.MEMORY)
_TOLD_BY_CONNECTIONS: Final = (ids.NFS_RDMA.name, ids.NFS_NOT_RDMA.name, ids.NFS_ONE_TCP.name)


def check_path(node: Node, target: Target) -> list[Finding]:
    """C02: what the path lies on, and what is to be said of that mount."""
    if not target.path:
        return []
    found = identify(node, target.path)
    if isinstance(found, Missing):
        fix = "look whether it is there: stat PATH; mount /proc into the container, if it is not"
        return [ids.PATH.unknown(target.path, found.reason, Evidence(found.reason, MOUNTINFO), fix=fix)]
    mount, line = found.mount, Evidence(found.mount.line, MOUNTINFO)
    below = mounts.shown(found.device) if found.device else mount.source
    what = f"{mount.fs_type} on {below}, mounted at {mount.point}"
    findings = [ids.PATH.info(target.path, what, line, fix="")]
    if found.device is None and mount.fs_type in _BLOCK and mount.fs_type != "zfs":
        fix = "mount /sys into the container, read-only"
        findings.append(ids.PATH.unknown(target.path, "its block device cannot be seen in /sys", line, fix=fix))
    if mount.fs_type == "overlay":
        what = "lies in the container's own layer: slow, lost with it, and on the root disk of the node"
        findings.append(ids.OVERLAY.warn(target.path, what, line))
    elif mount.fs_type in mounts.MEMORY and mount.point != mounts.SHM:
        findings += mounts.judge(mount, MOUNTINFO, None)
    return findings


def check_mounts(node: Node, _target: Target) -> list[Finding]:
    """C15: all mounts that a job may read from, and what NFS did on them."""
    text = node.read(MOUNTINFO)
    if isinstance(text, Missing):
        fix = "mount /proc into the container"
        return [ids.PATH.unknown("mounts", "cannot be seen", Evidence(text.reason, MOUNTINFO), fix=fix)]
    stats = node.read(_MOUNTSTATS)
    told = {m.point: m for m in mountstats.parse(stats)} if isinstance(stats, str) else {}
    found: list[Finding] = []
    for mount in _once(parse_mountinfo(text)):
        judged = mounts.judge(mount, MOUNTINFO, device_under(node, mount) or mounts.device_of(mount))
        if mount.point in told and told[mount.point].transports:
            judged = [f for f in judged if f.id not in _TOLD_BY_CONNECTIONS]
        found += judged
        if mount.point in told:
            found += mountstats.judge(told[mount.point], _MOUNTSTATS)
    return fold(found)


def _once(every: list[Mount]) -> list[Mount]:
    """Each file system by its shortest mount point: bind mounts, as containers have many, say nothing new.

    Of overlays and memory only / and /dev/shm: the others belong to containers and daemons.
    """
    best: dict[tuple[str, str], Mount] = {}
    for mount in every:
        quiet = mount.fs_type in _QUIET and mount.point not in ("/", mounts.SHM)
        key = (mount.device, mount.fs_type)
        if not quiet and (key not in best or len(mount.point) < len(best[key].point)):
            best[key] = mount
    return list(best.values())


def check_lnet(node: Node, _target: Target) -> list[Finding]:
    """C16: the interfaces of a Lustre client, where one is mounted."""
    return _asked(node, ["lnetctl", "net", "show", "-v", "3"], lustre.detect_lnet, lustre.explain_lnet)


def check_lustre_client(node: Node, _target: Target) -> list[Finding]:
    """C16: what a Lustre client did, where one is mounted."""
    return _asked(node, ["lctl", "get_param", "llite.*.stats"], lustre.detect_stats, lustre.explain_stats)


def check_lustre_settings(node: Node, _target: Target) -> list[Finding]:
    """C16: the settings of a Lustre client, where one is mounted."""
    return _asked(node, ["lctl", "get_param", *lustre_params.ASKED], lustre_params.detect, lustre_params.explain)


def check_lustre_targets(node: Node, _target: Target) -> list[Finding]:
    """C16: the targets of a Lustre file system, where one is mounted; it waits for those that do not answer."""
    return _asked(node, ["lfs", "df"], lustre.detect_df, lustre.explain_df)


def _asked(
    node: Node, argv: list[str], detect: Callable[[str], bool], explain: Callable[[str, str], list[Finding]]
) -> list[Finding]:
    """What a tool of Lustre prints, if a Lustre is mounted. Without rights some print nothing: then nothing is said."""
    text = node.read(MOUNTINFO)
    if isinstance(text, Missing) or all(mount.fs_type != "lustre" for mount in parse_mountinfo(text)):
        return []
    printed = _printed(node, argv)
    return explain(printed, " ".join(argv)) if detect(printed) else []


def check_layout(node: Node, target: Target) -> list[Finding]:
    """C16 and C17: how a path on Lustre or BeeGFS is striped, as its own tool says."""
    identity = identify(node, target.path) if target.path else Missing("no path")
    kind = "" if isinstance(identity, Missing) else identity.mount.fs_type
    if kind == "lustre":
        argv = ["lfs", "getstripe", "-d", target.path]
        text = _printed(node, argv)
        return lustre_layout.explain(text, " ".join(argv)) if lustre_layout.detect(text) else []
    if kind.startswith("beegfs"):
        for argv in (
            ["beegfs", "entry", "info", "--retro", target.path],
            ["beegfs-ctl", "--getentryinfo", target.path],
        ):
            text = _printed(node, argv)
            if beegfs.detect_entry(text):
                return beegfs.explain_entry(text, " ".join(argv))
    return []


def check_clients(node: Node, _target: Target) -> list[Finding]:
    """C17: the connections of BeeGFS clients, and the mounts of WekaFS."""
    found: list[Finding] = []
    for client in _names(node, _BEEGFS):
        for name in ("storage_nodes", "meta_nodes"):
            path = f"{_BEEGFS}/{client}/{name}"
            text = node.read(path)
            if isinstance(text, str) and text.strip():
                found += beegfs.explain_nodes(text, path)
    weka = node.read(_WEKA)
    if isinstance(weka, str) and fs_magic.detect_weka(weka):
        found += fs_magic.explain_weka(weka, _WEKA)
    return fold(found)


def beegfs_rdma(node: Node) -> bool | None:
    """Whether BeeGFS reads over RDMA; None where there are no connections or they cannot be seen."""
    nodes: dict[str, str] = {}
    for client in _names(node, _BEEGFS):
        text = node.read(f"{_BEEGFS}/{client}/storage_nodes")
        if isinstance(text, str):
            nodes |= {f"{client}/{name}": links for name, links in beegfs.parse_nodes(text).items()}
    return beegfs.all_rdma(nodes)


def _printed(node: Node, argv: list[str]) -> str:
    out = node.run(argv)
    return "" if isinstance(out, Missing) or out.status != 0 else out.stdout


def _names(node: Node, folder: str) -> tuple[str, ...]:
    names = node.listing(folder)
    return () if isinstance(names, Missing) else names


KINDS: Final = (
    Kind("mountinfo", mounts.detect, mounts.explain),
    Kind("mountstats", mountstats.detect, mountstats.explain, mountstats.compare),
    Kind("lfs-getstripe", lustre_layout.detect, lustre_layout.explain),
    Kind("lfs-df", lustre.detect_df, lustre.explain_df),
    Kind("llite-stats", lustre.detect_stats, lustre.explain_stats, lustre.compare_stats),
    Kind("lustre-settings", lustre_params.detect, lustre_params.explain),
    Kind("lnetctl", lustre.detect_lnet, lustre.explain_lnet),
    Kind("beegfs-entryinfo", beegfs.detect_entry, beegfs.explain_entry),
    Kind("beegfs-nodes", beegfs.detect_nodes, beegfs.explain_nodes),
    Kind("wekafs", fs_magic.detect_weka, fs_magic.explain_weka),
    Kind("statfs", fs_magic.detect_magic, fs_magic.explain_magic),
)

CHECKS: Final = (
    Check("C02", "path", check_path, per_target=True),
    Check("C15", "mounts", check_mounts),
    Check("C16", "LNet", check_lnet),
    Check("C16", "Lustre client", check_lustre_client),
    Check("C16", "Lustre settings", check_lustre_settings),
    Check("C16", "Lustre targets", check_lustre_targets),
    Check("C16", "layout", check_layout, per_target=True),
    Check("C17", "BeeGFS and WekaFS", check_clients),
)

SUBJECT: Final = Subject("filesystem", ids=filesystem_ids.IDS, kinds=KINDS, checks=CHECKS)
