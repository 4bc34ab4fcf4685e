"""NVMe subsystems, their controllers and paths, from whichever tool: what they are and what is wrong. Pure.

Advice on policies: nvme-cli pull requests 2780 and 2865 (queue-depth rather than numa).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stoker.doctor import nvme_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN

FABRICS: Final = ("rdma", "tcp", "fc", "loop")
DISCOVERY_NQN: Final = "nqn.2014-08.org.nvmexpress.discovery"
TRANSPORTS: Final = ("pcie", *FABRICS)
_NOT_LIVE: Final = ("new", "resetting", "connecting", "deleting", "deleting (no IO)", "dead")
_ANA: Final = ("optimized", "non-optimized", "inaccessible", "persistent-loss", "change")


@dataclass(frozen=True)
class Controller:
    """One controller: for a fabric one path. "" is not told. `ana`: a state for each namespace that it shows."""

    name: str
    transport: str
    evidence: Evidence
    address: str = ""
    state: str = ""
    ana: tuple[str, ...] = ()

    @property
    def live(self) -> bool:
        """Whether it is live, as far as is told."""
        return self.state in ("live", "")


@dataclass(frozen=True)
class Subsystem:
    """What a controller is a door to: a drive, or a remote target.

    `discovery`: it only tells which targets there are, and never carries I/O.
    """

    name: str
    controllers: tuple[Controller, ...]
    nqn: str = ""
    io_policy: str = ""
    policy_evidence: Evidence | None = None
    namespaces: tuple[str, ...] = ()
    discovery: bool = False

    @property
    def fabric(self) -> bool:
        """Whether it is remote."""
        return any(c.transport in FABRICS for c in self.controllers)

    @property
    def shown(self) -> str:
        """Its namespaces, else the controllers, with its name where that says more."""
        devices = ", ".join(self.namespaces or [c.name for c in self.controllers])
        return f"{devices} ({self.name})" if self.fabric and self.name not in ("", devices) else devices or self.name


def judge(subsystems: list[Subsystem]) -> list[Finding]:
    """Findings about all: local drives in one, each remote subsystem by itself."""
    found: list[Finding] = []
    local: list[Subsystem] = []
    for subsystem in subsystems:
        if subsystem.discovery:
            continue
        found += _strange(subsystem)
        found += _states(subsystem)
        if subsystem.fabric:
            found += _fabric(subsystem)
        elif subsystem.controllers and all(c.transport == "pcie" and c.live for c in subsystem.controllers):
            local.append(subsystem)
    if local:
        doors = [c for s in local for c in s.controllers]
        names = ", ".join(f"{s.shown} ({', '.join(c.address for c in s.controllers)})" for s in local)
        found.append(ids.LOCAL.ok("NVMe", f"{len(local)} local on PCIe: {names}", *(c.evidence for c in doors)))
    return found


def _strange(subsystem: Subsystem) -> list[Finding]:
    found = [
        LINE_UNKNOWN.unknown(c.name, f"transport {c.transport!r} is not known", c.evidence)
        for c in subsystem.controllers
        if c.transport not in TRANSPORTS
    ]
    return found + [
        LINE_UNKNOWN.unknown(c.name, f"ANA state {state!r} is not known", c.evidence)
        for c in subsystem.controllers
        for state in c.ana
        if state not in _ANA
    ]


def _states(subsystem: Subsystem) -> list[Finding]:
    return [
        ids.NOT_LIVE.warn(c.name, f"is in state {c.state!r}, not live", c.evidence)
        if c.state in _NOT_LIVE
        else LINE_UNKNOWN.unknown(c.name, f"state {c.state!r} is not known", c.evidence)
        for c in subsystem.controllers
        if not c.live
    ]


def _fabric(subsystem: Subsystem) -> list[Finding]:
    found: list[Finding] = []
    doors = subsystem.controllers
    live = [c for c in doors if c.live]
    slow = sorted({c.transport for c in doors} & {"tcp", "fc"})
    lines = [c.evidence for c in doors]
    if slow:
        what = f"NVMe over {' and '.join(slow)}, not RDMA: copied by the CPU, never GPUDirect"
        found.append(ids.NOT_RDMA.warn(subsystem.shown, what, *(c.evidence for c in doors if c.transport in slow)))
    if len(live) < 2:  # noqa: PLR2004 - one path is none to spare
        what = f"{len(live)} live path{'' if len(live) == 1 else 's'} of {len(doors)}: nothing takes over if it fails"
        found.append(ids.ONE_PATH.warn(subsystem.shown, what, *lines))
    states = [state for c in live for state in c.ana if state in _ANA]
    if states and "optimized" not in states:
        what = f"no path is optimized: {', '.join(states)}"
        found.append(ids.ANA.warn(subsystem.shown, what, *lines))
    if live and len(live) > 1 and not slow:
        told = f"ANA {', '.join(states)}" if states else "the ANA state is not told here"
        names = ", ".join(sorted({c.transport for c in live}))
        state = "live " if all(c.state for c in live) else ""
        found.append(ids.PATHS.ok(subsystem.shown, f"{len(live)} {state}{names} paths; {told}", *lines))
    return found + _policy(subsystem, len(live))


def _policy(subsystem: Subsystem, live_count: int) -> list[Finding]:
    evidence = subsystem.policy_evidence or Evidence("", subsystem.name)
    if subsystem.io_policy == "numa" and live_count > 1:
        fix = f"echo queue-depth > /sys/class/nvme-subsystem/{subsystem.name}/iopolicy (or round-robin)"
        what = f"I/O policy numa: of {live_count} paths one carries all I/O of a NUMA node"
        return [ids.IO_POLICY.warn(subsystem.shown, what, evidence, fix=fix)]
    if subsystem.io_policy not in ("", "numa", "round-robin", "queue-depth"):
        return [LINE_UNKNOWN.unknown(subsystem.shown, f"I/O policy {subsystem.io_policy!r} is not known", evidence)]
    return []
