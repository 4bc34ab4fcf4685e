"""stoker's settings as a node shows them: its environment, and the file that a process there would read."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stoker.config import RULES, Config, load_config
from stoker.config_file import FILE_NAME, FILE_VARIABLE
from stoker.config_values import take
from stoker.doctor import own_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.node import Host, Missing, Node
from stoker.errors import ConfigError
from stoker.tier.node import default_nvme

_OTHERS_WRITE: Final = 0o022


@dataclass(frozen=True)
class OwnSettings:
    """Settings, the directory of the nvme tier, and what was found on the way. `nvme` is None where it is not known."""

    config: Config
    nvme: Path | None
    findings: tuple[Finding, ...]


def read_settings(node: Node) -> OwnSettings:
    """What `stoker.open` would go by. Never raises: a setting that is wrong is a finding, and the defaults stand."""
    environ, host = node.environment(), node.host()
    uid = host.uid if isinstance(host, Host) else 0
    path, text, found = _file(node, environ, uid)
    try:
        values = dict(_values(path, text)) if text else {}
        unset = {name: value for name, value in values.items() if not environ.get(RULES[name].variable)}
        # The file is read here, through the node: it may be a captured one.
        config = load_config({**environ, FILE_VARIABLE: ""}, Path(), unset, uid=uid)
    except (ConfigError, ValueError, RecursionError) as error:
        where = getattr(error, "where", "") or path or "environment"
        line = Evidence(getattr(error, "what", str(error)), str(where))
        return OwnSettings(Config(), None, (*found, ids.SETTINGS.fail("settings", "are wrong: no run starts", line)))
    if text:
        found.append(ids.SETTINGS.info("settings", f"{len(values)} of them are set in {path}"))
    nvme = config.tiers.nvme.path
    if nvme is None and any(environ.get(name) for name in ("SLURM_TMPDIR", "XDG_CACHE_HOME", "HOME")):
        nvme = default_nvme(environ, uid)
    return OwnSettings(config, nvme, tuple(found))


def _file(node: Node, environ: Mapping[str, str], uid: int) -> tuple[str, str, list[Finding]]:
    """(path, text, findings) of the file of settings; "" if there is none."""
    here = environ.get("PWD", "")
    if FILE_VARIABLE in environ:
        named = environ[FILE_VARIABLE]
        places = [named if named.startswith("/") or not here else f"{here}/{named}"] if named else []
    else:
        home = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else "")
        places = [f"{here}/{FILE_NAME}"] if here else []
        places += [f"{home}/stoker/{FILE_NAME}"] if home else []
    found: list[Finding] = []
    for place in places:
        text = node.read(place)
        if isinstance(text, Missing):
            if FILE_VARIABLE in environ:
                line = Evidence(text.reason, place)
                found.append(ids.SETTINGS.fail("settings", f"the file that {FILE_VARIABLE} names cannot be read", line))
            continue
        state = node.stat(place)
        if not isinstance(state, Missing) and (state.uid != uid or state.mode & _OTHERS_WRITE):
            line = Evidence(f"user {state.uid}, mode {state.mode:04o}", place)
            found.append(ids.SETTINGS.warn("settings", "a file is passed over: others could have written it", line))
            continue
        return place, text, found
    return "", "", found


def _values(path: str, text: str) -> Iterator[tuple[str, Any]]:
    """(dotted name, checked value) of the keys that are known. Raises ConfigError, ValueError for what is no TOML."""

    def leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from leaves(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    for name, value in leaves(tomllib.loads(text), ""):
        if name not in RULES:
            raise ConfigError(f"unknown key {name!r}", path)
        yield name, take(name, RULES[name], value, f"{path} {name}", Path(path).parent)
