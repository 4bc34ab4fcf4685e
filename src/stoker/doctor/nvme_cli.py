"""What nvme-cli prints: `nvme list` and `nvme list-subsys`, as JSON in all the shapes of 1.x to 3.x, or as text.

Shapes are told by their keys, never by a version: 2.11 and 2.12 print the nested form where their neighbours print the
flat one. Source: nvme-print-json.c of nvme-cli v1.16, v2.0 to v2.16, v3.0-rc1.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from stoker.doctor import nvme_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.json_text import line_of, number, objects, value_of, with_key, word
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.nvme_facts import DISCOVERY_NQN, TRANSPORTS, Controller, Subsystem, judge

_SUBSYSTEM_LINE: Final = re.compile(r"^(nvme-subsys\d{1,6}) - NQN=(\S+)\s*$")
_PATH_LINE: Final = re.compile(r"^\s*\+-\s+(nvme\d{1,6})\s+(\S+)\s+(.*)$")
_POLICY_LINE: Final = re.compile(r"^\s+iopolicy=(\S+)\s*$")
_NO_SCAN: Final = re.compile(
    r"^(?:[\w-]+: )?failed to scan (?:nvme )?(?:topology|subsystems?|namespaces?|ctrls?)\b", re.IGNORECASE
)
_TABLE_HEAD: Final = re.compile(r"^Node\s.*\bModel\b.*\bNamespace\b")
_TABLE_ROW: Final = re.compile(r"^/dev/(nvme\d{1,6}n\d{1,6})\s")


def detect_list(text: str) -> bool:
    """Whether it is `nvme list`."""
    value = value_of(text)
    if value is None:
        return bool(_rows(text))
    devices = objects(value.get("Devices")) if isinstance(value, dict) else []
    known = ("DevicePath", "Subsystems", "Controllers", "SubsystemNQN")
    if isinstance(value, dict) and value.get("Devices") == []:
        return True
    return bool(devices) and all(any(key in device for key in known) for device in devices)


def detect_subsystems(text: str) -> bool:
    """Whether it is `nvme list-subsys`, or its complaint that there are none."""
    value = value_of(text)
    if isinstance(value, dict):
        return isinstance(value.get("Subsystems"), list)
    if isinstance(value, list):
        return bool(value) and all("Subsystems" in item for item in objects(value)) and bool(objects(value))
    lines = text.splitlines()
    return any(_SUBSYSTEM_LINE.match(line) for line in lines) or _complaint(lines) != ""


def _complaint(lines: list[str]) -> str:
    """The line that says that nothing could be scanned, if there is nothing else."""
    left = [line for line in lines if line.strip()]
    return left[0] if len(left) == 1 and _NO_SCAN.match(left[0].strip()) else ""


def _rows(text: str) -> list[tuple[str, str]]:
    """Device and line of each row of `nvme list` as a table; nothing without its head."""
    lines = text.splitlines()
    if not any(_TABLE_HEAD.match(line) for line in lines):
        return []
    return [(match[1], line) for line in lines if (match := _TABLE_ROW.match(line))]


def _table(rows: list[tuple[str, str]], source: str) -> list[Finding]:
    names, lines = ", ".join(name for name, _ in rows), [Evidence(line, source) for _, line in rows]
    what = f"whether {names} are local or remote is not told"
    return [
        ids.NAMESPACES.info("NVMe", f"{len(rows)} namespaces: {names}", *lines, fix=""),
        ids.TRANSPORT_HIDDEN.unknown("NVMe", what, *lines),
    ]


def explain_list(text: str, source: str) -> list[Finding]:
    """Namespaces, and where the output has them, subsystems and paths."""
    value = value_of(text)
    if value is None and _rows(text):
        return _table(_rows(text), source)
    if not isinstance(value, dict) or not isinstance(value.get("Devices"), list):
        return [_not_json(text, source)]
    if not value["Devices"]:
        return [ids.NONE.info("NVMe", "no namespace is listed", Evidence(line_of(text, '"Devices"'), source))]
    nested = [_nested(item, text, source) for item in with_key(value["Devices"], "Controllers")]
    flat = [item for item in objects(value["Devices"]) if "DevicePath" in item]
    found = [*judge([s for s in nested if s.controllers]), *_flat(flat, text, source)]
    return found or [_not_json(text, source)]


def explain_subsystems(text: str, source: str) -> list[Finding]:
    """Subsystems with their paths."""
    value = value_of(text)
    if value is not None:
        found = [_listed(item, text, source) for item in with_key(value, "Paths")]
        if found and all(s.discovery for s in found):
            line = Evidence(line_of(text, '"NQN"'), source)
            return [ids.NONE.info("NVMe", "only discovery controllers are listed", line, fix="")]
        return judge([s for s in found if s.controllers]) or [_not_json(text, source)]
    complaint = _complaint(text.splitlines())
    if complaint:
        line = Evidence(complaint, source)
        if "no such file" in complaint.lower():
            return [ids.NONE.info("NVMe", "no NVMe driver, hence no NVMe device", line)]
        return [ids.HIDDEN.unknown("NVMe", "could not be looked at", line)]
    return judge(parse_text(text, source)) or [_not_json(text, source)]


def _not_json(text: str, source: str) -> Finding:
    line = next((line for line in text.splitlines() if line.strip()), "")
    return LINE_UNKNOWN.unknown("NVMe", "no output of nvme-cli in a form that is known", Evidence(line, source))


def _evidence(text: str, source: str, key: str, value: str) -> Evidence:
    return Evidence(line_of(text, f'"{key}"', f'"{value}"'), source)


def _nested(item: dict[str, Any], text: str, source: str) -> Subsystem:
    doors: list[Controller] = []
    spaces = [word(space, "NameSpace") for space in objects(item.get("Namespaces"))]
    for door in objects(item["Controllers"]):
        name, transport = word(door, "Controller", "Name"), word(door, "Transport")
        ana = tuple(word(path, "ANAState") for path in objects(door.get("Paths")) if word(path, "ANAState"))
        key = "Address" if word(door, "Address") else "Transport"
        line = _evidence(text, source, key, word(door, key))
        doors.append(Controller(name, transport, line, word(door, "Address"), word(door, "State"), ana))
        spaces += [word(space, "NameSpace") for space in objects(door.get("Namespaces"))]
    names = tuple(dict.fromkeys(space for space in spaces if space))
    name, nqn = word(item, "Subsystem", "Name"), word(item, "SubsystemNQN", "NQN")
    return Subsystem(name, tuple(doors), nqn, namespaces=names, discovery=nqn == DISCOVERY_NQN)


def _listed(item: dict[str, Any], text: str, source: str) -> Subsystem:
    doors = []
    for path in objects(item["Paths"]):
        ana = (word(path, "ANAState"),) if word(path, "ANAState") else ()
        key = "Address" if word(path, "Address") else "Transport"
        line = _evidence(text, source, key, word(path, key))
        name = word(path, "Name")
        doors.append(Controller(name, word(path, "Transport"), line, word(path, "Address"), word(path, "State"), ana))
    policy = word(item, "IOPolicy")
    line = _evidence(text, source, "IOPolicy", policy)
    name, nqn = word(item, "Name"), word(item, "NQN")
    discovery = nqn == DISCOVERY_NQN or word(item, "Type") == "discovery"
    return Subsystem(name, tuple(doors), nqn, policy, line, discovery=discovery)


def parse_text(text: str, source: str) -> list[Subsystem]:
    r"""`nvme list-subsys` as text: a head, its fields, then ` +- nvme1 tcp traddr=...,trsvcid=... live [optimized]`."""
    found: list[Subsystem] = []
    for line in text.splitlines():
        head, path, policy = _SUBSYSTEM_LINE.match(line), _PATH_LINE.match(line), _POLICY_LINE.match(line)
        last = found[-1] if found else None
        if head:
            found.append(Subsystem(head[1], (), head[2], discovery=head[2] == DISCOVERY_NQN))
        elif last and policy:
            evidence = Evidence(line, source)
            found[-1] = replace(last, io_policy=policy[1], policy_evidence=evidence)
        elif last and path:
            found[-1] = replace(last, controllers=(*last.controllers, _path(path, Evidence(line, source))))
    return [s for s in found if s.controllers]


def _path(match: re.Match[str], line: Evidence) -> Controller:
    words = match[3].split()  # of an address each word has a = or, on PCIe, a colon; the state follows
    at = next((n for n, text in enumerate(words) if "=" not in text and ":" not in text), len(words))
    state = words[at] if at < len(words) else ""
    return Controller(match[1], match[2], line, " ".join(words[:at]), state, tuple(words[at + 1 :]))


def _flat(items: list[dict[str, Any]], text: str, source: str) -> list[Finding]:
    """Flat namespaces: what they are, and that nothing is said of their transport. 1.x names a product on PCIe only."""
    if not items:
        return []
    names = [word(item, "DevicePath").removeprefix("/dev/") for item in items]
    shown = ", ".join(f"{name} ({_described(item)})" for name, item in zip(names, items, strict=True))
    lines = [_evidence(text, source, "DevicePath", word(item, "DevicePath")) for item in items]
    found = [ids.NAMESPACES.info("NVMe", f"{len(items)} namespaces: {shown}", *lines, fix="")]
    hidden = [n for n, item in zip(names, items, strict=True) if word(item, "Transport") not in TRANSPORTS]
    by_product = {n for n, item in zip(names, items, strict=True) if word(item, "ProductName")}
    if set(hidden) - by_product:
        what = f"whether {', '.join(hidden)} are local or remote is not told"
        found.append(ids.TRANSPORT_HIDDEN.unknown("NVMe", what, *lines))
    elif hidden:
        what = f"{', '.join(hidden)} are local, as they name a PCIe product; the transport itself is not told"
        evidence = [_evidence(text, source, "ProductName", word(item, "ProductName")) for item in items]
        found.append(ids.TRANSPORT_HIDDEN.info("NVMe", what, *evidence))
    return found


def _described(item: dict[str, Any]) -> str:
    size = number(item, "PhysicalSize")
    parts = [word(item, "ModelNumber"), f"{size / 1e12:.2f} TB" if size and size > 0 else ""]
    return ", ".join(part for part in parts if part) or "nothing more is told"
