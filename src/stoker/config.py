"""Settings of a site or a user: `stoker.toml`, the environment and arguments become one frozen tree that knows where
each value came from.

What can be set is said once, by the fields of the classes below; docs/reference/config.md is made from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from stoker.config_file import FILE_VARIABLE, find_file
from stoker.config_values import EXPECTED, Kind, Rule, from_text, shown, take, user_path
from stoker.errors import ConfigError
from stoker.units import MIB

FeederKind: TypeAlias = Literal["auto", "child", "inline"]  # what they mean: feed/options.py
FEEDERS: Final = get_args(FeederKind)
Engine: TypeAlias = Literal["auto", "direct", "buffered"]  # what they mean: io/choose.py
ENGINES: Final = get_args(Engine)

_SECRET: Final = re.compile(r"secret|passw|token|credential|access_?key|api_?key|private_?key", re.IGNORECASE)
_OTHER_VARIABLES: Final = frozenset({FILE_VARIABLE, "STOKER_CRASH"})
_LIKE_A_TYPO: Final = 0.85  # STOKER_PREFTCH_BYTES is; STOKER_PORT, which Kubernetes sets for a service, is not


def _rule(
    kind: Kind, variable: str, meaning: str, least: float | None = None, choices: tuple[str, ...] = ()
) -> dict[str, Rule]:
    return {"rule": Rule(kind, variable, meaning, least, choices)}


@dataclass(frozen=True, slots=True)
class NvmeTier:
    """The directory of a node's fast storage."""

    path: Path | None = field(
        default=None,
        metadata=_rule(
            "path", "STOKER_NVME", "Directory on this node; default: the job's scratch, else the user's cache."
        ),
    )


@dataclass(frozen=True, slots=True)
class SharedTier:
    """The file system that all nodes see."""

    path: Path | None = field(
        default=None,
        metadata=_rule("path", "STOKER_SHARED", "Directory that all nodes see; checkpoints go there."),
    )


@dataclass(frozen=True, slots=True)
class ObjectTier:
    """The object store. Credentials come from the usual AWS environment and profiles, never from here."""

    url: str | None = field(default=None, metadata=_rule("url", "STOKER_OBJECT", "Bucket and prefix."))
    endpoint: str | None = field(
        default=None, metadata=_rule("url", "STOKER_OBJECT_ENDPOINT", "Server, if it is not AWS.")
    )
    region: str | None = field(default=None, metadata=_rule("text", "STOKER_OBJECT_REGION", "Region of the bucket."))
    profile: str | None = field(
        default=None, metadata=_rule("text", "STOKER_OBJECT_PROFILE", "AWS profile that has the credentials.")
    )
    allow_http: bool = field(
        default=False,
        metadata=_rule("flag", "STOKER_OBJECT_ALLOW_HTTP", "Whether credentials may go to an http:// endpoint."),
    )


@dataclass(frozen=True, slots=True)
class Tiers:
    """The three places for bytes."""

    nvme: NvmeTier = field(default_factory=NvmeTier)
    shared: SharedTier = field(default_factory=SharedTier)
    object: ObjectTier = field(default_factory=ObjectTier)


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """How ranks are fed."""

    prefetch_bytes: int = field(
        default=256 * MIB,
        metadata=_rule(
            "bytes", "STOKER_FEED_PREFETCH_BYTES", "Memory for batches ahead of use; 0 reads each when asked for.", 0
        ),
    )
    gather_bytes: int | None = field(
        default=None,
        metadata=_rule(
            "bytes",
            "STOKER_FEED_GATHER_BYTES",
            "Memory for blocks read whole; 0 reads each sample alone; default: 512 MiB, less where memory is short.",
            0,
        ),
    )
    threads: int = field(
        default=128, metadata=_rule("count", "STOKER_FEED_THREADS", "Reads in flight at most, in one rank.", 1)
    )
    map_workers: int | None = field(
        default=None,
        metadata=_rule(
            "count",
            "STOKER_FEED_MAP_WORKERS",
            "Processes for map functions, in one rank; 0: none; default: half the processors, 1 to 4.",
            0,
        ),
    )
    deadline_s: float = field(
        default=300.0,
        metadata=_rule("duration", "STOKER_FEED_DEADLINE_S", "How long a batch may take before it is an error.", 0),
    )
    feeder: FeederKind = field(
        default="auto",
        metadata=_rule(
            "text",
            "STOKER_FEED_FEEDER",
            "Where batches are made: in a child process where one can; always, or it is an error; never.",
            choices=FEEDERS,
        ),
    )


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """How checkpoints are written and read."""

    engine: Engine = field(
        default="auto",
        metadata=_rule(
            "text",
            "STOKER_CHECKPOINT_ENGINE",
            "Whether large files pass the page cache by: where it pays; always, or it is an error; never.",
            choices=ENGINES,
        ),
    )
    deadline_s: float = field(
        default=600.0,
        metadata=_rule("duration", "STOKER_CHECKPOINT_DEADLINE_S", "How long a save waits for the other ranks.", 0),
    )
    limit_s: float = field(
        default=3600.0,
        metadata=_rule(
            "duration", "STOKER_CHECKPOINT_LIMIT_S", "How long a save may take before storage is said to hang.", 0
        ),
    )


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """How reports count."""

    gpu_hour_price: float | None = field(
        default=None,
        metadata=_rule("number", "STOKER_REPORT_GPU_HOUR_PRICE", "What one GPU costs an hour, in your currency.", 0),
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. `sources` says for each dotted name where its value came from; `file` is what was read, if any."""

    tiers: Tiers = field(default_factory=Tiers)
    feed: FeedSettings = field(default_factory=FeedSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    file: Path | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> list[Setting]:
        """Every setting in order, with its value and source: `default`, `FILE:LINE`, `environment X`, `argument`."""
        found = []
        for name, rule in RULES.items():
            value: Any = self
            for part in name.split("."):
                value = getattr(value, part)
            found.append(Setting(name, value, self.sources.get(name, "default"), rule))
        return found


class Setting(NamedTuple):
    """One value: its dotted name, where it came from, and what it may be."""

    name: str
    value: Any
    source: str
    rule: Rule

    def to_json(self) -> dict[str, Any]:
        """Name, value, source and the variable that sets it."""
        value = str(self.value) if isinstance(self.value, Path) else self.value
        return {"name": self.name, "value": value, "source": self.source, "environment": self.rule.variable}

    def __str__(self) -> str:
        return shown(self.value, self.rule)


def _rules(section: Any, prefix: str = "") -> Iterator[tuple[str, Rule]]:
    """(dotted name, rule) of every key of a section and those below it, in order."""
    for each in fields(section):
        value = getattr(section, each.name)
        if is_dataclass(value):
            yield from _rules(value, f"{prefix}{each.name}.")
        elif "rule" in each.metadata:
            yield prefix + each.name, each.metadata["rule"]


RULES: Final[Mapping[str, Rule]] = dict(_rules(Config()))
SECTIONS: Final = tuple(dict.fromkeys(name[:at] for name in RULES for at, c in enumerate(name) if c == "."))


def load_config(
    environ: Mapping[str, str], directory: Path, arguments: Mapping[str, Any] | None = None, *, uid: int
) -> Config:
    """The settings for a process with this environment, started in `directory` by user `uid`.

    Environment beats file; `arguments`, by dotted name, beat both unless they are None, and are not checked here.
    Raises ConfigError naming what is wrong, where, and what would be right.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    found = find_file(environ, directory, uid)
    if found is not None:
        for name, value, where in _read_values(*found):
            values[name], sources[name] = value, where
    for name, value, where in _environment_values(environ):
        values[name], sources[name] = value, where
    for name, value in (arguments or {}).items():
        if value is not None:
            values[name] = user_path(value) if RULES[name].kind == "path" else value
            sources[name] = "argument"
    config: Config = _changed(Config(), values, "")
    return replace(config, file=found[0] if found else None, sources=sources)


def _changed(section: Any, values: Mapping[str, Any], prefix: str) -> Any:
    """The section with the values whose dotted names begin with `prefix`."""
    changes = {}
    for each in fields(section):
        name, value = prefix + each.name, getattr(section, each.name)
        if is_dataclass(value):
            changes[each.name] = _changed(value, values, f"{name}.")
        elif name in values:
            changes[each.name] = values[name]
    return replace(section, **changes)


# ---- what was found


def _read_values(path: Path, text: str) -> Iterator[tuple[str, Any, str]]:
    """(dotted name, checked value, FILE:LINE) of every key in the file."""
    import tomllib  # noqa: PLC0415  4 ms that a trainer without a file need not wait for

    from stoker.toml_lines import key_lines  # noqa: PLC0415

    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError alone: a number of too many digits
        match = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)\Z", str(error))
        what = str(error)[: match.start()] if match else str(error)
        line = match[1] if match and match[1] else str(text.count("\n") + 1)
        raise ConfigError(f"not TOML: {what[:1].lower()}{what[1:]}", f"{path}:{line}") from None
    lines = key_lines(text)
    for parts, value in _leaves(table, ()):
        known = [parts[:count] for count in range(len(parts), 0, -1) if parts[:count] in lines]
        where = f"{path}:{lines[known[0]] if known else 1}"
        name = ".".join(parts)
        _check_known(name, where)
        yield name, take(name, RULES[name], value, f"{where} {name}", path.parent), where


def _leaves(table: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(names, value) of everything that is no table, and of tables that are no sections and empty."""
    for key, value in table.items():
        parts = (*prefix, key)
        if isinstance(value, dict) and (value or ".".join(parts) in SECTIONS):
            yield from _leaves(value, parts)
        else:
            yield parts, value


def _check_known(name: str, where: str) -> None:
    """Raise ConfigError for what is no key: a secret, a section used as a key, or a name nobody knows."""
    if name in RULES:
        return
    if name in SECTIONS:
        keys = ", ".join(each.rpartition(".")[2] for each in RULES if each.rpartition(".")[0] == name)
        raise ConfigError(
            f"{name!r} is a section, not a key", where, f"write [{name}]" + (f" with {keys}" if keys else "")
        )
    if _SECRET.search(name):
        raise ConfigError(
            f"{name!r} looks like a secret, and secrets do not belong into a file of settings",
            where,
            hint="give credentials through the usual AWS environment or profiles",
        )
    section = name.rpartition(".")[0]
    nearest = max(RULES, key=lambda known: _likeness(name, known))
    kind = "key" if not section or section in SECTIONS else "section or key"
    raise ConfigError(f"unknown {kind} {name!r}", where, f"the nearest known key is {nearest!r}")


def _likeness(name: str, known: str) -> float:
    """How alike two dotted names are, or their last parts alone: a key may stand in the wrong section."""
    import difflib  # noqa: PLC0415  only for an error

    last = difflib.SequenceMatcher(None, name.rpartition(".")[2], known.rpartition(".")[2]).ratio()
    return max(last, difflib.SequenceMatcher(None, name, known).ratio())


def _environment_values(environ: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    """(dotted name, checked value, source) of every variable that is set and not empty."""
    variables = {rule.variable: name for name, rule in RULES.items()}
    for variable, text in environ.items():
        if not variable.startswith("STOKER_") or not text or variable in _OTHER_VARIABLES:
            continue
        source = f"environment {variable}"
        name = variables.get(variable)
        if name is not None:
            where = f"{source} ({name})"
            yield name, take(name, RULES[name], from_text(RULES[name].kind, text), where, Path()), source
            continue
        import difflib  # noqa: PLC0415  only for a variable that nobody knows

        nearest = difflib.get_close_matches(variable, [*variables, FILE_VARIABLE], 1, _LIKE_A_TYPO)
        if nearest:
            raise ConfigError(f"unknown variable {variable}", source, f"the nearest known one is {nearest[0]}")


def as_markdown() -> str:
    """The tables of docs/reference/config.md: every key of every section, its variable, default and meaning."""
    lines: list[str] = []
    defaults = Config().settings()
    for section in SECTIONS:
        rows = [setting for setting in defaults if setting.name.rpartition(".")[0] == section]
        if not rows:
            continue
        lines += [f"### [{section}]", "", "| key | value | default | environment | meaning |", "|---|---|---|---|---|"]
        for setting in rows:
            rule, key = setting.rule, setting.name.rpartition(".")[2]
            what = ", ".join(f"`{choice}`" for choice in rule.choices) or EXPECTED[rule.kind]
            default = "" if setting.value is None else f"`{setting}`"
            lines.append(f"| `{key}` | {what} | {default} | `{rule.variable}` | {rule.meaning} |")
        lines.append("")
    return "\n".join(lines).rstrip()
