"""BeeGFS: the pattern of a file, and the connections of a client. Pure.

Sources: `beegfs-ctl --getentryinfo` of version 7, which `beegfs entry info --retro` of version 8 prints too;
/proc/fs/beegfs/CLIENT/*_nodes, which beegfs-net shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from stoker.doctor import filesystem_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN

_TARGETS: Final = re.compile(
    r"number of storage targets:\s*desired:\s*(\d{1,6})(?:;\s*actual:\s*(\d{1,6}))?", re.IGNORECASE
)
_TARGET: Final = re.compile(r"^\s+\+?\s*\d+ @ (\S+)")
_NODE: Final = re.compile(r"^(\S.*?)\s+\[ID:\s*\d+\]\s*$")
_SECTION: Final = re.compile(r"^(mgmt_nodes|meta_nodes|storage_nodes)\s*$")
_CONNECTIONS: Final = re.compile(r"^\s+Connections:\s*(.*)$")
_LINK: Final = re.compile(r"([A-Za-z]+):\s*(\d{1,6})\s*\(([^)]*)\)")


def detect_entry(text: str) -> bool:
    """Whether it is the information about an entry."""
    return "Stripe pattern details:" in text


def explain_entry(text: str, source: str) -> list[Finding]:
    """Over how many targets a file lies, and whether that is fewer than it should."""
    fields: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        key, mark, value = line.strip().removeprefix("+ ").partition(":")
        if mark:
            fields.setdefault(key.strip().lower(), (value.strip(), line))
    counts = _TARGETS.search(text)
    if counts is None:
        line = fields.get("type", ("", next(iter(text.splitlines()), "")))[1]
        return [LINE_UNKNOWN.unknown("BeeGFS entry", "its number of targets is not told", Evidence(line, source))]
    line = next((line for line in text.splitlines() if _TARGETS.search(line)), counts[0])
    servers = dict.fromkeys(m[1] for row in text.splitlines() if (m := _TARGET.match(row)))
    pattern, chunk = (fields[key][0] if key in fields else "" for key in ("type", "chunksize"))
    more = [f"pattern {pattern}" if pattern else "", f"chunk {_size(chunk)}" if chunk else ""]
    where = f" on {len(servers)} servers" if servers else ""
    shown = "".join(f", {text}" for text in more if text)
    desired, actual = int(counts[1]), int(counts[2]) if counts[2] else None
    if actual is None:
        return [ids.BEEGFS_STRIPES.info("BeeGFS entry", f"{desired} targets are wanted{shown}", Evidence(line, source))]
    if actual < desired:
        what = f"{actual} target{'' if actual == 1 else 's'} of {desired} that are wanted{shown}"
        return [ids.BEEGFS_STRIPES.warn("BeeGFS entry", what, Evidence(line, source))]
    what = f"{actual} target{'' if actual == 1 else 's'}{where}{shown}"
    return [ids.BEEGFS_STRIPES.ok("BeeGFS entry", what, Evidence(line, source))]


def _size(text: str) -> str:
    """`512K` of version 7 and `1.00Mi` of version 8 in the words used elsewhere; other forms stay as they are."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMG])i?B?", text)
    return f"{match[1].removesuffix('.00')} {match[2]}iB" if match else text


def parse_nodes(text: str) -> dict[str, str]:
    """The connections of each node, as they are printed. Those to the management node are never RDMA: passed over."""
    found: dict[str, str] = {}
    name, management = "", False
    for line in text.splitlines():
        node, links = _NODE.match(line), _CONNECTIONS.match(line)
        section = _SECTION.match(line)
        if section:
            management = section[1] == "mgmt_nodes"
        elif node:
            name = node[1]
        elif links and name and not management:
            found[name] = links[1].strip()
            name = ""
    return found


def detect_nodes(text: str) -> bool:
    """Whether it is the nodes of a client with their connections."""
    return bool(parse_nodes(text))


def explain_nodes(text: str, source: str) -> list[Finding]:
    """Nodes over TCP or a fallback route; else that all connections are RDMA."""
    nodes = parse_nodes(text)
    if not nodes:
        first = next((line for line in text.splitlines() if line.strip()), "")
        return [LINE_UNKNOWN.unknown("BeeGFS", "no nodes with connections", Evidence(first, source))]
    found: list[Finding] = []
    good: list[Evidence] = []
    idle: list[Evidence] = []
    for name, links in nodes.items():
        line = Evidence(f"{name}: {links}", source)
        kinds = {kind.upper() for kind, _, _ in _LINK.findall(links)}
        if "fallback" in links.lower():
            found.append(ids.BEEGFS_FALLBACK.warn(f"BeeGFS {name}", links, line))
        elif kinds == {"RDMA"}:
            good.append(line)
        elif kinds and kinds <= {"TCP", "SDP", "RDMA"}:
            found.append(ids.BEEGFS_LINKS.warn(f"BeeGFS {name}", f"{', '.join(sorted(kinds))}: not all RDMA", line))
        elif links.startswith("<none>"):
            idle.append(line)
        else:
            found.append(LINE_UNKNOWN.unknown(f"BeeGFS {name}", "its connections are not understood", line))
    rest = f"; {len(idle)} idle, which is no fault" if idle else ""
    if good:
        what = f"all connections to {len(good)} node{'' if len(good) == 1 else 's'} are RDMA{rest}"
        found.append(ids.BEEGFS_LINKS.ok("BeeGFS", what, *good, *idle))
    elif idle:
        found.append(
            ids.BEEGFS_LINKS.info("BeeGFS", f"{len(idle)} nodes are idle: read something first", *idle, fix="")
        )
    return found


def all_rdma(nodes: Mapping[str, str]) -> bool | None:
    """Whether the connections that there are run over RDMA; None if there are none."""
    kinds = {kind.upper() for links in nodes.values() for kind, _, _ in _LINK.findall(links)}
    return kinds == {"RDMA"} if kinds else None
