"""cufile.json and the environment: the configuration that cuFile really has.

The file is JSON with `//` comments and trailing commas. What counts: a setter of the program, then the environment,
then the file, then what is built in; the first cannot be seen from outside. Keys: NVIDIA's GPUDirect Storage guide 3.5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stoker.doctor import gds_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.texts import whole

DEFAULT_PATH: Final = "/etc/cufile.json"
PATH_VARIABLE: Final = "CUFILE_ENV_PATH_JSON"
_CHUNK_SMALL_KB: Final = 1024
_ALIASES: Final = {"properties.use_compat_mode": "properties.allow_compat_mode"}
_DENIED: Final = ("drivers", "devices", "mounts", "filesystems", "fsids")
_VARIABLES: Final = {
    "CUFILE_FORCE_COMPAT_MODE": "properties.force_compat_mode",
    "CUFILE_ALLOW_COMPAT_MODE": "properties.allow_compat_mode",
    "CUFILE_USE_PCIP2PDMA": "properties.use_pci_p2pdma",
    "CUFILE_MAX_DEVICE_CACHE_SIZE": "properties.max_device_cache_size_kb",
    "CUFILE_PER_BUFFER_CACHE_SIZE": "properties.per_buffer_cache_size_kb",
    "CUFILE_IO_PRIORITY": "properties.io_priority",
    "CUFILE_LOGGING_LEVEL": "logging.level",
    "CUFILE_LOGFILE_PATH": "logging.dir",
    "CUFILE_LOGFILE_MAX_SIZE_MB": "logging.max_file_size_mb",
    "CUFILE_STATS_LEVEL": "profile.cufile_stats",
    "CUFILE_SKIP_TOPOLOGY_DETECTION": "miscellaneous.skip_topology_detection",
}
_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING: Final = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*[}\]])')
_KEYS: Final = re.compile(
    r'"(?:allow_compat_mode|use_compat_mode|force_compat_mode|max_direct_io_size_kb|use_poll_mode|rdma_dev_addr_list|'
    r'cufile_stats|posix_gds_min_kb|use_pci_p2pdma|max_device_cache_size_kb)"\s*:'
)


@dataclass(frozen=True)
class CuFileConfig:
    """Dotted key -> value, and where each is from. Keys have today's names, whatever the file calls them.

    `error` says why the file could not be read; then only the environment is here.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, Evidence] = field(default_factory=dict)
    error: Evidence | None = None

    def flag(self, key: str) -> bool | None:
        """A switch, or None where it is not set: then what is built in counts, which differs between releases."""
        value = self.values.get(key)
        if isinstance(value, str):
            return {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower())
        return bool(value) if isinstance(value, bool) or value in (0, 1) else None

    def number(self, key: str) -> int | None:
        """A whole number, or None."""
        value = self.values.get(key)
        if isinstance(value, bool):
            return None
        return value if isinstance(value, int) else whole(value) if isinstance(value, str) else None

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts; anything else is none."""
        value = self.values.get(key)
        return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()

    def line(self, key: str) -> tuple[Evidence, ...]:
        """The line that sets a key, if one does."""
        return (self.lines[key],) if key in self.lines else ()


def detect(text: str) -> bool:
    """Whether it looks like a cufile.json, whole or cut."""
    bare = _without_comments(text)
    return bare.lstrip().startswith("{") and bool(_KEYS.search(bare))


def effective(text: str | None, source: str, environment: Mapping[str, str]) -> CuFileConfig:
    """The configuration of a file (None: there is none) under an environment."""
    bare = _without_comments(text) if text is not None else "{}"
    try:
        tree = json.loads(_TRAILING.sub(lambda match: match[1] or "", bare))
        wrong = None if isinstance(tree, dict) else Evidence(bare[:200], source)
    except json.JSONDecodeError as error:
        rows = (text or "").splitlines()
        row = rows[error.lineno - 1] if error.lineno <= len(rows) else ""
        tree, wrong = {}, Evidence(f"line {error.lineno}: {row.strip()} ({error.msg})", source)
    except (ValueError, RecursionError) as error:
        tree, wrong = {}, Evidence(str(error), source)
    values: dict[str, Any] = {}
    _flatten(tree if isinstance(tree, dict) else {}, "", values)
    rows = bare.splitlines()
    lines = {key: Evidence(_row(rows, name), source) for key, name in _named(values).items()}
    values = {_modern(key): value for key, value in values.items()}
    lines = {_modern(key): line for key, line in lines.items()}
    for variable, key in _VARIABLES.items():
        if environment.get(variable):
            values[key] = environment[variable]
            lines[key] = Evidence(f"{variable}={environment[variable]}", "environment")
    return CuFileConfig(values, lines, wrong)


def _without_comments(text: str) -> str:
    """The text with comments outside strings blanked; lines stay where they are."""
    blank = re.compile(r"[^\n]")
    return _TOKEN.sub(lambda match: match[0] if match[0].startswith('"') else blank.sub(" ", match[0]), text)


def _flatten(tree: Mapping[str, Any], prefix: str, into: dict[str, Any]) -> None:
    for key, value in tree.items():
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{key}.", into)
        else:
            into[f"{prefix}{key}"] = value


def _named(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: key.rpartition(".")[2] for key in values}


def _row(rows: list[str], name: str) -> str:
    return next((row.strip() for row in rows if f'"{name}"' in row), name)


def _modern(key: str) -> str:
    if key.startswith("blacklist."):
        key = "denylist." + key.removeprefix("blacklist.")
    return _ALIASES.get(key, key)


def explain(text: str, source: str) -> list[Finding]:
    """What a file says, without an environment."""
    return judge(effective(text, source, {}))


def judge(config: CuFileConfig) -> list[Finding]:
    """What a configuration means for I/O."""
    found = [ids.CONFIG_BROKEN.unknown("cufile.json", "cannot be read", config.error)] if config.error else []
    key = "properties.allow_compat_mode"
    if config.flag("properties.force_compat_mode"):
        line = config.line("properties.force_compat_mode")
        found.append(ids.COMPAT_FORCED.fail("cuFile", "compatible mode is forced: nothing is direct", *line))
    elif config.flag(key) is True:
        found.append(ids.COMPAT_ALLOWED.info("cuFile", "may fall back to CPU copies in silence", *config.line(key)))
    elif config.flag(key) is False:
        found.append(ids.COMPAT_NOT_ALLOWED.info("cuFile", "refuses what cannot be direct", *config.line(key)))
    stats = config.number("profile.cufile_stats")
    if stats is not None and stats < 3:  # noqa: PLR2004 - level 3 has the counters of each GPU
        line = config.line("profile.cufile_stats")
        found.append(
            ids.STATS_OFF.info("cuFile", f"counters are at level {stats}: no path can be proven from outside", *line)
        )
    level = str(config.values.get("logging.level", "")).upper()
    if level in ("INFO", "DEBUG", "TRACE"):
        found.append(ids.LOG_VERBOSE.warn("cuFile", f"logs at {level}", *config.line("logging.level")))
    chunk = config.number("properties.max_direct_io_size_kb")
    if chunk is not None and chunk < _CHUNK_SMALL_KB:
        line = config.line("properties.max_direct_io_size_kb")
        found.append(ids.CHUNK_SMALL.warn("cuFile", f"requests are cut at {chunk} KiB", *line))
    return [*found, *_denied(config), *_thresholds(config), *_p2pdma(config)]


def _denied(config: CuFileConfig) -> list[Finding]:
    found = []
    for name in _DENIED:
        words = config.words(f"denylist.{name}")
        if words:
            line = config.line(f"denylist.{name}")
            found.append(ids.DENIED.warn("cuFile", f"denies {name}: {', '.join(words)}", *line))
    return found


def _thresholds(config: CuFileConfig) -> list[Finding]:
    found = []
    for key in config.values:
        size_kb = config.number(key) if key.endswith(".posix_gds_min_kb") else None
        if size_kb:
            subject = key.split(".")[1]
            what = f"I/O up to {size_kb} KiB is copied by the CPU, even where compat is not allowed"
            found.append(ids.THRESHOLD.warn(subject, what, *config.line(key)))
    return found


def _p2pdma(config: CuFileConfig) -> list[Finding]:
    key = "properties.use_pci_p2pdma"
    routes = [f"block.{name}.use_pci_p2pdma" for name in ("nvme", "nvmeof", "raid")] + ["fs.virtiofs.use_pci_p2pdma"]
    listed = [route for route in routes if route in config.values]
    on = [route for route in listed if config.flag(route)]
    if (config.flag(key) and listed and not on) or (on and not config.flag(key)):
        lines = [line for name in (key, *listed) for line in config.line(name)]
        return [ids.P2PDMA_HALF.warn("cuFile", "PCI P2PDMA is turned on by half: both keys are needed", *lines)]
    return []
