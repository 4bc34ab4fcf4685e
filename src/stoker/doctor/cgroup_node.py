"""The cgroup of this process on a node, of version 2 or 1: where its files are, and what they limit.

Sources: cgroups(7); the kernel's admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and scheduler/sched-bwc.rst. A version
1 controller has a hierarchy of its own; with both at once (hybrid) the limits are those of version 1. In a namespace of
its own the cgroup is the root of what is mounted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stoker.doctor import cgroup
from stoker.doctor.node import Missing, Node

PROC: Final = "/proc/self/cgroup"
ROOT: Final = "/sys/fs/cgroup"
_V2: Final = re.compile(r"^0::(/[^\n]*)", re.MULTILINE)
_V1: Final = re.compile(r"^\d+:([^:\n]+):(/[^\n]*)", re.MULTILINE)
_FILE_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class OwnCgroup:
    """The files of the cgroup that are there, path -> text; `version` is 1 or 2."""

    version: int
    folders: tuple[str, ...]
    files: dict[str, str]

    def text(self, name: str) -> str | None:
        """The text of a file by its name alone."""
        return next((text for path, text in self.files.items() if path.rpartition("/")[2] == name), None)

    @property
    def cpus(self) -> float | None:
        """CPUs that the quota allows; None without one."""
        if self.version == 1:
            return cgroup.cpu_quota(f"{self.text('cpu.cfs_quota_us')} {self.text('cpu.cfs_period_us')}")
        return cgroup.cpu_quota(self.text("cpu.max") or "")

    @property
    def memory_bytes(self) -> int | None:
        """The limit of memory; None without one."""
        return cgroup.memory_limit(self.files)


def own_cgroup(node: Node) -> OwnCgroup | Missing:
    """The cgroup of this process. Missing, with the reason, where it cannot be told or seen."""
    text = node.read(PROC, 4096)
    if isinstance(text, Missing):
        return text
    hierarchies = {names: path for names, path in _V1.findall(text) if {"cpu", "memory"} & set(names.split(","))}
    if hierarchies:
        folders = [folder for names, path in hierarchies.items() for folder in _v1_folder(node, names, path)]
        return _read(node, 1, folders, cgroup.FILES_V1)
    match = _V2.search(text)
    if match is None:
        return Missing("neither a cgroup of version 2 nor cpu or memory of version 1 is named")
    return _read(node, 2, _first(node, [ROOT + match[1].rstrip("/"), ROOT]), cgroup.FILES)


def _v1_folder(node: Node, names: str, path: str) -> list[str]:
    """Where a hierarchy is mounted: under the names of its controllers together, or of one of them."""
    mounts = [f"{ROOT}/{name}" for name in dict.fromkeys((names, *names.split(",")))]
    return _first(node, [*(mount + path.rstrip("/") for mount in mounts), *mounts])


def _first(node: Node, folders: list[str]) -> list[str]:
    return [folder for folder in folders if isinstance(node.listing(folder), tuple)][:1]


def _read(node: Node, version: int, folders: list[str], names: tuple[str, ...]) -> OwnCgroup | Missing:
    if not folders:
        return Missing(f"{ROOT} cannot be seen")
    texts = {f"{folder}/{name}": node.read(f"{folder}/{name}", _FILE_BYTES) for folder in folders for name in names}
    there = {path: text for path, text in texts.items() if isinstance(text, str)}
    return OwnCgroup(version, tuple(folders), there)


def limit_word(own: OwnCgroup) -> str:
    """The name of the file that limits the CPU."""
    return "cpu.cfs_quota_us" if own.version == 1 else "cpu.max"


def memory_limit_bytes(node: Node) -> int | None:
    """The memory limit of this process's cgroup in bytes; None without one, or if it cannot be seen."""
    own = own_cgroup(node)
    return None if isinstance(own, Missing) else own.memory_bytes
