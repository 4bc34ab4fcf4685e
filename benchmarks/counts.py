"""What the kernel counts: CPU time and I/O of a process and all its children, and the system calls they make."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import astuple, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Counts:
    """Counters of a tree of processes that only grow while its processes live.

    `reads` and `writes` are system calls of the read and write kind (read, pread, preadv; files and pipes, not
    sockets), `read_bytes` and `written_bytes` what they moved between the kernel and the process.
    """

    tree_cpu_s: float
    reads: int
    read_bytes: int
    writes: int
    written_bytes: int

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(*(a - b for a, b in zip(astuple(self), astuple(earlier), strict=True)))

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


ZERO = Counts(0.0, 0, 0, 0, 0)


def tree(root: int) -> list[int]:
    """A process and its living descendants."""
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:
                continue  # ended meanwhile
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += parents.get(pid, [])
    return found


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process, those that ended included."""
    return time.clock_gettime((~pid << 3) | 2)  # the kernel's name for the CPU clock of another process


def count(root: int) -> Counts:
    """The counters of a process and its living descendants, now."""
    cpu = 0.0
    io = dict.fromkeys(("syscr", "rchar", "syscw", "wchar"), 0)
    for pid in tree(root):
        try:
            spent = cpu_s(pid)
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        except OSError:
            continue  # ended meanwhile
        cpu += spent
        for line in lines:
            name, _, value = line.partition(": ")
            if name in io:
                io[name] += int(value)
    if root == os.getpid():  # children that ended; their I/O is in its own already
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu += ended.ru_utime + ended.ru_stime
    return Counts(cpu, io["syscr"], io["rchar"], io["syscw"], io["wchar"])


class SystemCalls:
    """Counts every system call of a tree of processes with `perf stat`, else `strace -c`; `tool` says which.

    perf counts without slowing what it counts; strace slows every call, so nothing else is measured beside it. Where
    neither may look, `tool` is "proc": reads and writes alone, as `count` has them.
    """

    def __init__(self, root: int) -> None:
        pids = tree(root)
        self.tool = "proc"
        self._root = root
        self._process: subprocess.Popen[str] | None = None
        commands = {
            "perf": ["perf", "stat", "-x;", "-e", "raw_syscalls:sys_enter", "-p", ",".join(map(str, pids))],
            "strace": ["strace", "-f", "-c", "-q", "-S", "calls", *(f"-p{pid}" for pid in pids)],
        }
        for tool, command in commands.items():
            if shutil.which(tool) is None:
                continue
            process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            time.sleep(0.3)  # until it is attached; it says nothing when it is
            if process.poll() is None:
                self.tool, self._process = tool, process
                break
            process.communicate()
        self._before = count(root)

    def stop(self) -> int:
        """The number of calls since the start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            counted = parse_calls(self.tool, self._process.communicate(timeout=10)[1])
            if counted is not None:
                return counted
            self.tool = "proc"
        spent = count(self._root) - self._before
        return spent.reads + spent.writes


def parse_calls(tool: str, text: str) -> int | None:
    """The number of calls in what a tool said; None if there is none."""
    if tool == "perf":
        match = re.search(r"^(\d+);", text, re.MULTILINE)
    else:
        match = re.search(r"^100\.00\s+\S+\s+(?:\S+\s+)?(\d+)(?:\s+\d+)?\s+total$", text, re.MULTILINE)
    return int(match[1]) if match else None
