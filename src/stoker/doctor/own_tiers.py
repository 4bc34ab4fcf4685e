"""The directories of stoker's tiers: what they lie on, their room, and which way checkpoints take there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stoker.config import Config
from stoker.doctor import own_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.gds import read_driver
from stoker.doctor.identity import MOUNTINFO, PathIdentity, identify, is_local
from stoker.doctor.node import Missing, Node
from stoker.errors import UnsupportedError
from stoker.io.choose import Alignment, FileFacts, choose
from stoker.units import format_bytes

_MEMORY: Final = ("tmpfs", "ramfs")
_LOW_RATIO: Final = 0.05
_SELDOM_MEMORY: Final = 0.5


def judge_nvme(node: Node, path: Path, *, chosen: bool) -> list[Finding]:
    """What the nvme tier lies on. `chosen`: somebody named it, it is not the default."""
    identity = identify(node, str(path))
    if isinstance(identity, Missing):
        return [ids.TIER.unknown(str(path), f"what the nvme tier lies on cannot be told: {identity.reason}")]
    fs_type, line = identity.mount.fs_type, Evidence(identity.mount.line, MOUNTINFO)
    how = "the nvme tier" if chosen else "the nvme tier, by default"
    if fs_type in _MEMORY:
        return [ids.TIER_MEMORY.warn(str(path), f"{how}, lies in memory ({fs_type})", line)]
    if fs_type == "overlay":
        return [ids.TIER_WRONG.warn(str(path), f"{how}, lies in the layer of a container (overlay)", line)]
    if not is_local(fs_type):
        return [ids.TIER_WRONG.warn(str(path), f"{how}, lies on {fs_type}, which is not of this node", line)]
    return [_judge_device(node, path, how, identity, line)]


def _judge_device(node: Node, path: Path, how: str, identity: PathIdentity, line: Evidence) -> Finding:
    if identity.device is None:
        return ids.TIER.unknown(str(path), f"{how}, lies on {identity.mount.fs_type}; its device cannot be seen", line)
    leaves = identity.device.leaves()
    names = ", ".join(leaf.name for leaf in leaves)
    if all(leaf.kind == "nvme" for leaf in leaves):
        transports = read_driver(node).transports
        remote = sorted({t for leaf in leaves if (t := transports.get(leaf.name, "pcie")) != "pcie"})
        if remote:
            return ids.TIER_WRONG.warn(str(path), f"{how}, lies on {names}, NVMe over {', '.join(remote)}", line)
        return ids.TIER.ok(str(path), f"{how}, lies on {names} ({identity.mount.fs_type})", line)
    spinning = [leaf.name for leaf in leaves if _rotates(node, leaf.name)]
    if spinning:
        return ids.TIER_WRONG.warn(str(path), f"{how}, lies on {', '.join(spinning)}, a disk that turns", line)
    if all(leaf.kind in ("scsi", "nvme") for leaf in leaves):
        return ids.TIER_WRONG.info(str(path), f"{how}, lies on {names}, which is no NVMe", line)
    return ids.TIER.info(str(path), f"{how}, lies on {names}; how fast that is, is not told by it", line)


def _rotates(node: Node, device: str) -> bool:
    text = node.read(f"/sys/block/{device}/queue/rotational", 16)
    # Virtual disks say 1 whatever they are.
    return isinstance(text, str) and text.strip() == "1" and device.startswith("sd")


def judge_shared(node: Node, path: Path) -> list[Finding]:
    """Whether the shared tier can be seen by other nodes; by its mount alone, which is not waited for."""
    identity = identify(node, str(path))
    if isinstance(identity, Missing):
        return [ids.SHARED.unknown(str(path), f"what the shared tier lies on cannot be told: {identity.reason}")]
    line = Evidence(identity.mount.line, MOUNTINFO)
    if is_local(identity.mount.fs_type):
        what = f"the shared tier lies on {identity.mount.fs_type} at {identity.mount.point}: of this node alone"
        return [ids.SHARED.warn(str(path), what, line)]
    return [ids.SHARED.ok(str(path), f"the shared tier lies on {identity.mount.fs_type}", line)]


def judge_engine(node: Node, path: Path, config: Config) -> list[Finding]:
    """Which way checkpoints take at `path`, as far as the file system decides it."""
    identity = identify(node, str(path))
    if isinstance(identity, Missing):
        return []
    fs_type, asked = identity.mount.fs_type, config.checkpoint.engine
    line = Evidence(identity.mount.line, MOUNTINFO)
    facts = FileFacts(fs_type if fs_type in (*_MEMORY, "overlay") else "", Alignment())
    try:
        choice = choose(asked, facts)
    except UnsupportedError as error:
        return [ids.ENGINE.fail(str(path), f"checkpoint.engine is {asked!r}, but {error.what}", line)]
    what = f"checkpoints go {choice.effective} ({asked} was asked for): {choice.reason}"
    if asked == "auto" and choice.effective == "buffered":
        return [ids.ENGINE.warn(str(path), what, line)]
    return [ids.ENGINE.info(str(path), what, line)]


def judge_space(node: Node, path: Path, save_bytes: int) -> list[Finding]:
    """Room at `path` for a save of `save_bytes` (0: not known), on file systems of this node alone."""
    identity = identify(node, str(path))
    if isinstance(identity, Missing) or not is_local(identity.mount.fs_type):
        return []
    space = node.space(str(path))
    if isinstance(space, Missing) or not space.total_bytes:
        space = node.space(identity.mount.point)
    if isinstance(space, Missing) or not space.total_bytes:
        return []
    line = Evidence(f"{space.free_bytes} of {space.total_bytes} bytes are free", identity.mount.point)
    free = format_bytes(space.free_bytes)
    if save_bytes > space.free_bytes:
        what = f"{free} are free, and the newest step takes {format_bytes(save_bytes)}: the next save does not fit"
        return [ids.SPACE.fail(str(path), what, line)]
    if space.free_bytes < _LOW_RATIO * space.total_bytes:
        return [ids.SPACE.warn(str(path), f"{free} are free, under 5%", line)]
    return [ids.SPACE.ok(str(path), f"{free} are free", line)]


def judge_prefetch(node: Node, prefetch_bytes: int, memory_limit_bytes: int | None) -> list[Finding]:
    """Prefetch of the ranks here against the memory limit of the cgroup."""
    if not memory_limit_bytes:
        return []
    text = node.environment().get("LOCAL_WORLD_SIZE", "1")
    ranks = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1  # noqa: PLR2004 - no such node
    asked = prefetch_bytes * max(ranks, 1)
    line = Evidence(f"memory.max {memory_limit_bytes}, feed.prefetch_bytes {prefetch_bytes}", "settings")
    what = f"{format_bytes(asked)} for {ranks} ranks, of a limit of {format_bytes(memory_limit_bytes)}"
    if asked > _SELDOM_MEMORY * memory_limit_bytes:
        return [ids.PREFETCH.warn("prefetch", what, line)]
    return []
