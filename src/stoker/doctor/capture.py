"""Captures: what a doctor read, written for a bug report, and read again as a node.

A capture is a folder::

    root/proc/self/mountinfo    files as they were, redacted, under their own paths
    commands/1.txt              what a command printed
    capture.json                all the rest: see `RecordingNode.write`

A folder with `root/` alone is one too, so that it can be made by hand. Two moments are two captures, `t0/` and `t1/`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from stoker.doctor.node import READ_LIMIT_BYTES, Host, LiveNode, Missing, Node, Output, PathStat, Space
from stoker.io.atomic import make_dirs, write_file

CAPTURE_VERSION: Final = 1
# Only these are kept of an environment: others may hold anything.
_KEPT_ENVIRONMENT: Final = (
    *("CUFILE_", "KVIKIO_", "CUDA_", "NVIDIA_", "NCCL_", "STOKER_", "OMP_", "SLURM_", "KUBERNETES_", "LIBHIPFILE"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "RANK", "AWS_REGION", "AWS_ENDPOINT_URL", "HIP_VISIBLE"),
)
# They say where settings and the nvme tier lie.
_KEPT_PLACES: Final = frozenset({"HOME", "PWD", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"})

T = TypeVar("T")


@dataclass
class RecordingNode:
    """A node that remembers what it was asked and what it answered, for `write`. Used by several threads."""

    node: Node
    _answers: dict[tuple[str, str], Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    begun_s: float = field(init=False)

    def __post_init__(self) -> None:
        """When it was made is when the capture is of."""
        self.begun_s = self.node.clock_s()

    def read(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> str | Missing:
        """The text of a file."""
        return self._keep("read", path, self.node.read(path, limit_bytes))

    def read_tail(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> str | Missing:
        """The end of a file."""
        return self._keep("read", path, self.node.read_tail(path, limit_bytes))

    def read_bytes(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | Missing:
        """The bytes of a file, which are not kept: what is in them cannot be redacted."""
        return self.node.read_bytes(path, limit_bytes)

    def listing(self, path: str) -> tuple[str, ...] | Missing:
        """The names in a folder."""
        return self._keep("listing", path, self.node.listing(path))

    def link(self, path: str) -> str | Missing:
        """The real path."""
        return self._keep("link", path, self.node.link(path))

    def stat(self, path: str) -> PathStat | Missing:
        """What stat says."""
        return self._keep("stat", path, self.node.stat(path))

    def readable(self, path: str) -> bool:
        """Whether the path may be read."""
        return self._keep("readable", path, self.node.readable(path))

    def space(self, path: str) -> Space | Missing:
        """Room in the file system."""
        return self._keep("space", path, self.node.space(path))

    def run(self, argv: Sequence[str]) -> Output | Missing:
        """What a command prints."""
        return self._keep("run", json.dumps(list(argv)), self.node.run(argv))

    def environment(self) -> Mapping[str, str]:
        """The environment."""
        return self._keep("environment", "", self.node.environment())

    def host(self) -> Host | Missing:
        """What the process knows of itself."""
        return self._keep("host", "", self.node.host())

    def clock_s(self) -> float:
        """Seconds since the epoch."""
        return self.node.clock_s()

    def _keep(self, question: str, about: str, answer: T) -> T:
        with self._lock:
            self._answers[question, about] = answer
        return answer

    def write(self, directory: Path, redact: Callable[[str], str], targets: Sequence[str]) -> int:
        """Write the capture; returns how many files. `targets` are what the doctor was asked about.

        capture.json: {"version": 1, "clock_s": float, "targets": [str], "missing": {path: reason},
        "listing": {path: [str]}, "link": {path: path}, "stat": {path: object}, "readable": {path: bool},
        "space": {path: object}, "environment": {name: text}, "host": object,
        "commands": [{"argv": [str], "file": str, "stderr": str, "status": int} or {"argv": [str], "missing": reason}]}.
        A text where a list or an object is expected is the reason why it is missing.

        Raises:
            StoreError, CapacityError: the folder cannot be written.
        """
        with self._lock:
            answers = dict(self._answers)
        found = _Written(directory, redact)
        facts: dict[str, Any] = {"version": CAPTURE_VERSION, "clock_s": self.begun_s, "targets": list(targets)}
        facts |= {name: {} for name in ("missing", "listing", "link", "stat", "readable", "space", "environment")}
        facts |= {"commands": [], "host": None}
        for (question, about), answer in answers.items():
            found.add(facts, question, about, answer)
        found.put("capture.json", json.dumps(_redacted(facts, redact), indent=1, sort_keys=True) + "\n")
        return found.count


class _Written:
    def __init__(self, directory: Path, redact: Callable[[str], str]) -> None:
        self._directory, self._redact, self.count = directory, redact, 0

    def put(self, name: str, text: str) -> None:
        target = self._directory / name
        make_dirs(target.parent)
        write_file(target, text.encode())
        self.count += 1

    def add(self, facts: dict[str, Any], question: str, about: str, answer: Any) -> None:
        """One answer into a file of its own or into `facts`."""
        if question == "read":
            if isinstance(answer, Missing):
                facts["missing"][about] = answer.reason
            elif ".." not in about:
                self.put("root/" + self._redact(about).lstrip("/"), self._redact(answer))
        elif question == "run":
            self._add_command(facts["commands"], json.loads(about), answer)
        elif question == "environment":
            facts["environment"] = {
                k: v for k, v in answer.items() if k.startswith(_KEPT_ENVIRONMENT) or k in _KEPT_PLACES
            }
        elif question == "host":
            facts["host"] = _plain(answer)
        else:
            facts[question][about] = _plain(answer)

    def _add_command(self, commands: list[Any], argv: list[str], answer: Output | Missing) -> None:
        if isinstance(answer, Missing):
            commands.append({"argv": argv, "missing": answer.reason})
            return
        file = f"commands/{len(commands) + 1}.txt"
        self.put(file, self._redact(answer.stdout))
        commands.append({"argv": argv, "file": file, "stderr": answer.stderr, "status": answer.status})


def _plain(answer: Any) -> Any:
    if isinstance(answer, Missing):
        return answer.reason
    if isinstance(answer, PathStat | Space | Host):
        return asdict(answer)
    return list(answer) if isinstance(answer, tuple) else answer


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    """The same JSON value with every text in it redacted, keys too."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        # A secret is known by its key, so each is shown to the redactor with it.
        return {redact(k): _redacted_pair(k, v, redact) for k, v in value.items()}
    return [_redacted(v, redact) for v in value] if isinstance(value, list) else value


def _redacted_pair(key: str, value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str) and "\n" not in value:
        return redact(f"{key}={value}").partition("=")[2]
    return _redacted(value, redact)


class CapturedNode:
    """A capture as a node. What it does not hold is `Missing("not in the capture")`.

    Args:
        directory: A folder with `root/`, with or without `capture.json`. A broken capture.json is taken for none.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = LiveNode(directory / "root")
        text = LiveNode(directory).read("/capture.json", 64 << 20)
        self._facts = {} if isinstance(text, Missing) else _object(text)
        commands = self._facts.get("commands")
        rows = [row for row in commands if isinstance(row, dict)] if isinstance(commands, list) else []
        self._commands = {json.dumps(row.get("argv")): row for row in rows}

    @property
    def targets(self) -> tuple[str, ...]:
        """What the doctor was asked about when it was made."""
        found = self._facts.get("targets")
        return tuple(t for t in found if isinstance(t, str)) if isinstance(found, list) else ()

    def read(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> str | Missing:
        """The text of a file."""
        found = self._files.read(path, limit_bytes)
        return found if isinstance(found, str) else self._reason("missing", path)

    def read_tail(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> str | Missing:
        """The end of a file."""
        found = self._files.read_tail(path, limit_bytes)
        return found if isinstance(found, str) else self._reason("missing", path)

    def read_bytes(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | Missing:
        """The bytes of a file, if somebody put it there."""
        found = self._files.read_bytes(path, limit_bytes)
        return found if isinstance(found, bytes) else Missing("not in the capture")

    def listing(self, path: str) -> tuple[str, ...] | Missing:
        """The names in a folder."""
        found = self._fact("listing", path)
        if isinstance(found, list):
            return tuple(str(name) for name in found)
        listed = self._files.listing(path) if found is None else Missing("")
        return listed if isinstance(listed, tuple) else self._reason("listing", path)

    def link(self, path: str) -> str | Missing:
        """The real path."""
        found = self._fact("link", path)
        if isinstance(found, str):
            return found if found.startswith("/") else Missing(found)
        real = self._files.link(path)
        return real if isinstance(real, str) else self._reason("missing", path)

    def stat(self, path: str) -> PathStat | Missing:
        """What stat says."""
        found = self._fact("stat", path)
        return _made(PathStat, found) if isinstance(found, dict) else self._reason("stat", path)

    def readable(self, path: str) -> bool:
        """Whether the path may be read."""
        found = self._fact("readable", path)
        return found if isinstance(found, bool) else isinstance(self._files.read(path, 1), str)

    def space(self, path: str) -> Space | Missing:
        """Room in the file system."""
        found = self._fact("space", path)
        return _made(Space, found) if isinstance(found, dict) else self._reason("space", path)

    def run(self, argv: Sequence[str]) -> Output | Missing:
        """What a command prints."""
        row = self._commands.get(json.dumps(list(argv)))
        if row is None or "missing" in row:
            return Missing(str(row["missing"]) if row else "not in the capture")
        out = LiveNode(self._directory).read(str(row.get("file", "")))
        if isinstance(out, Missing):
            return out
        status = row.get("status")
        return Output(out, str(row.get("stderr", "")), status if isinstance(status, int) else 0)

    def environment(self) -> Mapping[str, str]:
        """The environment."""
        found = self._facts.get("environment")
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}

    def host(self) -> Host | Missing:
        """What the process knows of itself."""
        found = self._facts.get("host")
        return _made(Host, found) if isinstance(found, dict) else Missing("not in the capture")

    def clock_s(self) -> float:
        """Seconds since the epoch."""
        found = self._facts.get("clock_s")
        return float(found) if isinstance(found, int | float) else 0.0

    def _fact(self, name: str, path: str) -> Any:
        found = self._facts.get(name)
        return found.get(path) if isinstance(found, dict) else None

    def _reason(self, name: str, path: str) -> Missing:
        found = self._fact(name, path)
        return Missing(found if isinstance(found, str) else "not in the capture")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _made(kind: type[T], values: Mapping[str, Any]) -> T | Missing:
    try:
        return kind(**values)
    except TypeError:
        return Missing("not in the capture")
