"""`gdscheck -p`: what the driver stack can do. Never a statement about one path.

Format: NVIDIA GPUDirect Storage guide, `gdscheck` of releases 1.0 to 1.20. From 1.16 back ends have lists of words
(nvfs, p2pdma, c2c, dmabuf, compat) instead of Supported and Unsupported; both occur.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from stoker.doctor import gds_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.texts import line_with, whole

BAR_SMALL_MIB: Final = 1024
_ROUTES: Final = ("nvfs", "p2pdma", "c2c", "dmabuf")
_WORDS: Final = frozenset((*_ROUTES, "compat", "supported", "unsupported"))
# A word is a route only where it can be one; elsewhere it repeats a flag of the configuration.
_BUS_ROUTE_BACKENDS: Final = frozenset(("nvme", "nvmeof", "virtiofs", "raid", "nvme p2pdma"))
_DMABUF_BACKENDS: Final = frozenset(("wekafs", "ibm spectrum scale", "gpfs"))
_NOT_BACKENDS: Final = frozenset(("userspace rdma", "platform", "iommu"))
_HEAD: Final = re.compile(r"^\s*GDS release version(?: \(beta\))?\s*:\s*(\S+)", re.MULTILINE)
_SECTION: Final = re.compile(r"^([A-Za-z][A-Za-z ]+):$")
_CONFIG: Final = re.compile(r"^([a-z_0-9]+(?:\.[a-z_0-9]+)+)\s*:\s*(.*)$")
_GPU: Final = re.compile(r"^GPU index (\d+) (.*?) bar:(\S+) bar size \(MiB\):(\S+)\s*(.*)$")
_NUMBER: Final = re.compile(r"(nvidia_fs minimum version|nvidia_fs version|libcufile version)\s*:\s*(\S+)")


@dataclass(frozen=True)
class Backend:
    """A back end's line: its name as printed, its words, and the routes among them that can be one."""

    name: str
    words: tuple[str, ...]
    routes: tuple[str, ...]
    line: str

    @property
    def known(self) -> bool:
        """Whether every word is one that stoker knows."""
        return bool(self.words) and set(self.words) <= _WORDS


@dataclass(frozen=True)
class Gpu:
    """A GPU's line. `bar_mib` is None where it is none, as on Grace."""

    index: int
    name: str
    bar_mib: int | None
    line: str


@dataclass
class GdsCheck:
    """The output, read. `sections` are the headings that were there; `unread` lines of a form that is not known."""

    release: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    sections: list[str] = field(default_factory=list)
    backends: dict[str, Backend] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    platform: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    def flag(self, key: str) -> bool | None:
        """A switch of the configuration; the oldest releases print 0 and 1."""
        return {"true": True, "1": True, "false": False, "0": False}.get(self.config.get(key, "").lower())


def detect(text: str) -> bool:
    """Whether it is the output of gdscheck; cufile.log repeats its lines, but behind a time."""
    return bool(_HEAD.search(text)) or bool(re.search(r"^\s*DRIVER CONFIGURATION:\s*$", text, re.MULTILINE))


def parse(text: str) -> GdsCheck:
    """Read the output, whole or cut. Lines are told by their form and by the section they stand in."""
    found = GdsCheck()
    for raw in text.splitlines():
        line = raw.strip()
        if line and set(line) != {"="}:
            _read_line(found, line)
    return found


def _read_line(found: GdsCheck, line: str) -> None:
    section = found.sections[-1] if found.sections else ""
    head, heading = _HEAD.match(line), _SECTION.match(line)
    config, gpu = _CONFIG.match(line), _GPU.match(line)
    key, colon, value = (part.strip() for part in line.partition(":"))
    if head:
        found.release = head[1]
    elif _NUMBER.match(line):
        found.versions |= dict(_NUMBER.findall(line))
    elif heading:
        found.sections.append(heading[1].upper())
    elif config:
        found.config[config[1]] = config[2].strip()
    elif gpu:
        found.gpus.append(Gpu(int(gpu[1]) if len(gpu[1]) < 6 else -1, gpu[2], whole(gpu[4]), line))  # noqa: PLR2004
    elif line.startswith("--") and colon:
        found.details[key.lstrip("-").lower()] = value
    elif colon and "CONFIGURATION" in section and key.lower() not in _NOT_BACKENDS:
        found.backends[key.lower()] = _backend(key, value, line)
    elif colon or section in ("PLATFORM INFO", "ENVIRONMENT"):
        found.platform[key.lower()] = value
    else:
        found.unread.append(line)


def _backend(name: str, value: str, line: str) -> Backend:
    words = tuple(word for word in re.split(r"[,\s]+", value.lower()) if word)
    low = name.lower()
    routes = []
    for word in words:
        if word == "supported":
            routes.append("p2pdma" if low.endswith("p2pdma") else "rdma" if low in _DMABUF_BACKENDS else "nvfs")
        elif (
            word == "nvfs"
            or (word == "dmabuf" and low in _DMABUF_BACKENDS)
            or (word in ("p2pdma", "c2c") and low in _BUS_ROUTE_BACKENDS)
        ):
            routes.append(word)
    return Backend(name, words, tuple(routes), line)


def explain(text: str, source: str) -> list[Finding]:
    """What the output says, and what it does not."""
    check = parse(text)
    found = [_release(check, text, source)] if check.release else []
    return [*found, *_backends(check, text, source), *_config(check, text, source), *_platform(check, text, source)]


def _release(check: GdsCheck, text: str, source: str) -> Finding:
    modules = [f"{name.removesuffix(' version')} {value}" for name, value in check.versions.items()]
    what = ", ".join([f"GDS {check.release}", *modules])
    return ids.RELEASE.info("GDS", what, Evidence(line_with(text, "GDS release version"), source), fix="")


def _backends(check: GdsCheck, text: str, source: str) -> list[Finding]:
    backends = list(check.backends.values())
    capable = [b for b in backends if b.routes]
    unclear = [b for b in backends if not b.known]
    compat = [b for b in backends if b.known and not b.routes and "compat" in b.words]
    found = [
        ids.BACKEND_UNCLEAR.unknown(b.name, "has words that are not known", Evidence(b.line, source)) for b in unclear
    ]
    if not backends:
        found.append(ids.BACKEND_UNCLEAR.unknown("GDS", "no back end is listed"))
    if capable:
        names = ", ".join(f"{b.name} ({'/'.join(b.routes)})" for b in capable)
        lines = [Evidence(b.line, source) for b in capable]
        found.append(
            ids.CAPABLE.info("GDS", f"the drivers can do direct I/O on {names}; no proof for any path", *lines)
        )
    elif backends and not unclear:
        refused = check.flag("properties.use_compat_mode") is False
        what = "no back end can do direct I/O: GPUDirect is not engaged anywhere"
        if not check.details and "CUFILE CONFIGURATION" not in check.sections:  # more lines may have followed
            what = f"none of the {len(backends)} back ends listed can do direct I/O: GPUDirect is not engaged on them"
        lines = [Evidence(b.line, source) for b in backends]
        lines += [Evidence(line, source) for line in text.splitlines() if "verification succeeded" in line]
        if refused:
            found.append(
                ids.NO_BACKEND.fail("GDS", f"{what}, and files are refused, for compat is not allowed", *lines)
            )
        else:
            found.append(ids.NO_BACKEND.warn("GDS", what, *lines))
    if compat:
        names = ", ".join(b.name for b in compat)
        found.append(
            ids.COMPAT_ONLY.info("GDS", f"CPU copies only on {names}", *(Evidence(b.line, source) for b in compat))
        )
    nvme = check.backends.get("nvme")
    by_bus = any("p2pdma" in b.routes for b in capable)
    if by_bus and "nvidia_fs version" not in check.versions and (nvme is None or "nvfs" not in nvme.routes):
        lines = [Evidence(b.line, source) for b in capable if "p2pdma" in b.routes]
        found.append(ids.P2PDMA_ONLY.info("NVMe", "direct by PCI P2PDMA, nvidia-fs is not loaded", *lines))
    return found


def _config(check: GdsCheck, text: str, source: str) -> list[Finding]:
    found = []
    key = "properties.use_compat_mode"
    line = Evidence(line_with(text, key), source)
    allowed = check.flag(key)
    if check.flag("properties.force_compat_mode"):
        forced = Evidence(line_with(text, "properties.force_compat_mode"), source)
        found.append(ids.COMPAT_FORCED.fail("cuFile", "compatible mode is forced: nothing is direct", forced))
    elif allowed is True:
        found.append(ids.COMPAT_ALLOWED.info("cuFile", "may fall back to CPU copies in silence", line))
    elif allowed is False:
        found.append(ids.COMPAT_NOT_ALLOWED.info("cuFile", "refuses what cannot be direct", line))
    wanted = ("CUFILE CONFIGURATION", "GPU INFO", "PLATFORM INFO")
    missing = [name for name in wanted if name not in check.sections]
    if missing:
        last = next((row for row in reversed(text.splitlines()) if row.strip()), "")
        found.append(ids.CUT_SHORT.unknown("GDS", f"no {', no '.join(missing)}", Evidence(last, source)))
    found += [
        LINE_UNKNOWN.unknown("gdscheck", "a line is not understood", Evidence(row, source)) for row in check.unread[:5]
    ]
    return found


def _platform(check: GdsCheck, text: str, source: str) -> list[Finding]:
    found = []
    small = [gpu for gpu in check.gpus if gpu.bar_mib is not None and gpu.bar_mib < BAR_SMALL_MIB]
    if small:
        names = ", ".join(f"GPU {gpu.index}: {gpu.bar_mib} MiB" for gpu in small)
        found.append(ids.BAR_SMALL.warn("GPU", f"BAR1 is small ({names})", *(Evidence(g.line, source) for g in small)))
    iommu = check.platform.get("iommu", "").lower()
    on = bool(iommu) and "disabled" not in iommu
    arch = re.search(r"(?:Arch|Platform):\s*(aarch64|arm64)", text)
    if on and not arch:
        lines = [Evidence(line, source) for line in text.splitlines() if re.match(r"\s*(IOMMU:|WARN:.*iommu)", line)]
        found.append(ids.IOMMU.warn("node", f"IOMMU: {iommu}", *lines))
    return found
