"""`nvidia-smi topo -m`: how far GPUs and network cards are from each other.

Source: the legend that the command prints: PIX is nearest, then PXB, PHB, NODE, SYS.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from stoker.doctor import network_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN

NEAREST_FIRST: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")
_FAR: Final = ("NODE", "SYS")
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_GPU: Final = re.compile(r"GPU\d{1,3}")
_OTHER: Final = re.compile(r"X|NV\d{1,2}|C2C")


@dataclass(frozen=True)
class Topology:
    """`links`: GPU -> column of a card -> word, as printed; `names`: column -> device, as in the legend."""

    links: dict[str, dict[str, str]]
    names: dict[str, str]
    rows: dict[str, str]

    def device(self, column: str) -> str:
        """The RDMA device of a column."""
        return self.names.get(column, column)

    def best(self, gpu: str) -> tuple[str, list[str]] | None:
        """The word of the nearest cards and their devices; None without cards."""
        known = {column: word for column, word in self.links[gpu].items() if word in NEAREST_FIRST}
        if not known:
            return None
        word = min(known.values(), key=NEAREST_FIRST.index)
        return word, [self.device(column) for column, found in known.items() if found == word]


def detect(text: str) -> bool:
    """Whether it is the matrix."""
    return bool(parse(text).links)


def parse(text: str) -> Topology:
    """The matrix; rows with fewer words than columns are left out."""
    lines = [_STYLE.sub("", line) for line in text.splitlines()]
    columns: list[str] = []
    links: dict[str, dict[str, str]] = {}
    rows: dict[str, str] = {}
    names: dict[str, str] = {}
    for line in lines:
        words = line.split()
        legend = re.match(r"\s*(NIC\d{1,3}):\s+(\S+)\s*$", line)
        if legend:
            names[legend[1]] = legend[2]
        elif words and not columns and _GPU.fullmatch(words[0]) and "X" not in words:
            columns = words[: words.index("CPU")] if "CPU" in words else words
        elif columns and words and _GPU.fullmatch(words[0]) and len(words) > len(columns):
            cells = dict(zip(columns, words[1:], strict=False))
            links[words[0]] = {c: w for c, w in cells.items() if not _GPU.fullmatch(c)}
            rows[words[0]] = line
    return Topology(links, names, rows)


def explain(text: str, source: str) -> list[Finding]:
    """The nearest cards of each GPU, and those across sockets."""
    return judge(parse(text), source)


def judge(topology: Topology, source: str, used: Collection[str] | None = None) -> list[Finding]:
    """`used`: devices that carry storage, as far as known: then only these can be too far; None: any could be used."""
    found: list[Finding] = []
    for gpu, links in topology.links.items():
        line = Evidence(topology.rows[gpu], source)
        strange = [w for w in links.values() if w not in NEAREST_FIRST and not _OTHER.fullmatch(w)]
        if strange:
            found.append(LINE_UNKNOWN.unknown(gpu, f"what {strange[0]!r} means is not known", line))
        best = topology.best(gpu)
        if best is None:
            if not strange:
                found.append(ids.AFFINITY.info(gpu, "no network card is listed", line))
            continue
        word, nearest = best
        if word in _FAR:
            found.append(ids.AFFINITY_FAR.warn(gpu, f"no network card is nearer than {word}", line))
        else:
            found.append(ids.AFFINITY.info(gpu, f"nearest network card: {', '.join(nearest)} ({word})", line))
        far = [topology.device(c) for c, w in links.items() if w == "SYS"]
        far = far if used is None else [device for device in far if device in used]
        if far and word != "SYS":
            what = f"storage over {', '.join(far)} crosses CPU sockets (SYS); {', '.join(nearest)} is {word}"
            found.append(ids.AFFINITY_FAR.warn(gpu, what, line))
    if not topology.links:
        found.append(ids.AFFINITY.unknown("GPUs", "no matrix is in it"))
    return found
