"""The host: where the doctor runs, pressure, cgroup, CPUs a GPU, limits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from stoker.doctor import cgroup, host_ids, pressure, proc_stat
from stoker.doctor import host_ids as ids
from stoker.doctor.cgroup_node import PROC, limit_word, own_cgroup
from stoker.doctor.check import Check, Target
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN, Kind
from stoker.doctor.node import Host, Missing, Node
from stoker.doctor.subject import Subject
from stoker.doctor.texts import whole
from stoker.units import MIB

CPUS_A_GPU: Final = 4
LOCKED_BYTES: Final = 64 * MIB
OPEN_FILES: Final = 4096
_LIMITS: Final = "/proc/self/limits"
_GPUS: Final = "/proc/driver/nvidia/gpus"
_LIMIT: Final = re.compile(r"^(Max [a-z ]+?)\s{2,}(\S+)\s+(\S+)")


# ---- /proc/PID/limits


def detect_limits(text: str) -> bool:
    """Whether it is /proc/PID/limits."""
    return bool(re.search(r"^Limit\s+Soft Limit\s+Hard Limit", text, re.MULTILINE))


def parse_limits(text: str) -> dict[str, tuple[str, str]]:
    """Name -> (soft limit as printed, line)."""
    return {match[1]: (match[2], line) for line in text.splitlines() if (match := _LIMIT.match(line))}


def explain_limits(text: str, source: str) -> list[Finding]:
    """Limits that are low for storage."""
    return judge_limits(text, source)


def judge_limits(text: str, source: str, *, registers: bool = True) -> list[Finding]:
    """`registers`: memory is registered with RDMA or GPUs here, so that locked memory matters."""
    limits = parse_limits(text)
    rules = [("Max open files", OPEN_FILES, "open files: data sets have more objects")]
    if registers:
        rules.append(("Max locked memory", LOCKED_BYTES, "bytes of locked memory: buffers cannot be registered"))
    found: list[Finding] = []
    seen = 0
    for name, least, meaning in rules:
        soft, line = limits.get(name, ("", ""))
        number = whole(soft)
        if number is None and soft != "unlimited":
            if soft:
                found.append(LINE_UNKNOWN.unknown("limits", f"{name!r} is not understood", Evidence(line, source)))
            continue
        seen += 1
        if number is not None and number < least:
            found.append(ids.LIMIT_LOW.warn("limits", f"at most {number} {meaning}", Evidence(line, source)))
    if seen and not found:
        found.append(ids.LIMIT_LOW.ok("limits", "open files and locked memory are not limited too low"))
    elif not seen and not found:
        found.append(LINE_UNKNOWN.unknown("limits", "no limit that matters is in it"))
    return found


# ---- checks


def container_of(node: Node) -> str:
    """What kind of container this is, "" if none is seen."""
    if "KUBERNETES_SERVICE_HOST" in node.environment():
        return "a Kubernetes pod"
    groups = node.read("/proc/1/cgroup", 4096)
    text = groups if isinstance(groups, str) else ""
    for word, name in (("kubepods", "a Kubernetes pod"), ("docker", "docker"), ("libpod", "podman")):
        if word in text:
            return name
    for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"), ("/.singularity.d", "apptainer")):
        if not isinstance(node.stat(path), Missing):
            return name
    return ""


def check_environment(node: Node, _target: Target) -> list[Finding]:
    """C01: user, container, architecture, and what is hidden."""
    host = node.host()
    facts = []
    if isinstance(host, Host):
        facts += [
            f"user {host.uid}" if host.uid else "root",
            f"Linux {host.kernel}",
            host.machine,
            f"{host.cpu_count} CPUs",
        ]
    container = container_of(node)
    if container:
        facts.append(f"in a container ({container}): mounts, limits and network are its own")
    hidden = [path for path in ("/sys/class", "/sys/block") if isinstance(node.listing(path), Missing)]
    what = ", ".join(facts) or "nothing is known of it"
    if hidden:
        what += f"; {', '.join(hidden)} cannot be seen, so devices stay unknown"
    if isinstance(host, Host) and host.uid:
        what += "; root would add counters of cuFile processes of others, SMART and kernel messages"
    return [ids.ENVIRONMENT.info("node", what)]


def check_pressure(node: Node, _target: Target) -> list[Finding]:
    """C20: what tasks wait for."""
    texts = {name: node.read(f"/proc/pressure/{name}", 4096) for name in ("io", "cpu", "memory")}
    there = {name: text for name, text in texts.items() if isinstance(text, str) and text.strip()}
    if not there:
        missing = next((text for text in texts.values() if isinstance(text, Missing)), Missing("it is empty"))
        line = Evidence(missing.reason, "/proc/pressure")
        fix = "boot with psi=1 to see it, or mount /proc into the container"
        return [ids.PRESSURE_LOW.unknown("pressure", "what tasks wait for cannot be seen", line, fix=fix)]
    return pressure.explain("".join(f"==> {name} <==\n{text}" for name, text in there.items()), "/proc/pressure")


def check_cgroup(node: Node, _target: Target) -> list[Finding]:
    """C20: what the limits of the cgroup did."""
    own = own_cgroup(node)
    if isinstance(own, Missing):
        line = Evidence(own.reason, PROC)
        fix = "mount /sys/fs/cgroup into the container, or look at cpu.stat and memory.events by hand"
        return [ids.CGROUP_FINE.unknown("cgroup", "its limits cannot be seen", line, fix=fix)]
    return cgroup.judge(own.files, ", ".join(own.folders)) if own.files else []


def check_cpus(node: Node, _target: Target) -> list[Finding]:
    """C20: CPUs a GPU, by affinity and by quota."""
    gpus, host = node.listing(_GPUS), node.host()
    if isinstance(gpus, Missing) or not gpus or isinstance(host, Missing):
        return []
    own = own_cgroup(node)
    quota = None if isinstance(own, Missing) else own.cpus
    cpus = min(float(host.cpu_count), quota or float(host.cpu_count))
    limit = "" if isinstance(own, Missing) or not quota else f", {limit_word(own)} {quota:g}"
    line = Evidence(f"{host.cpu_count} CPUs{limit}, {len(gpus)} GPUs", "affinity of this process")
    what = f"{cpus:g} CPUs for {len(gpus)} GPUs, {cpus / len(gpus):.1f} each"
    if cpus / len(gpus) < CPUS_A_GPU:
        return [ids.CPUS_FEW.warn("CPU", what, line)]
    return [ids.CPUS_FEW.ok("CPU", what, line)]


def check_limits(node: Node, _target: Target) -> list[Finding]:
    """C20: limits of the process."""
    found: list[Finding] = []
    text = node.read(_LIMITS, 1 << 16)
    registers = any(isinstance(node.listing(path), tuple) for path in (_GPUS, "/sys/class/infiniband"))
    if isinstance(text, str):
        found += judge_limits(text, _LIMITS, registers=registers)
    return found


KINDS: Final[Sequence[Kind]] = (
    Kind("pressure", pressure.detect, pressure.explain),
    Kind("cgroup", cgroup.detect, cgroup.explain),
    Kind("proc-stat", proc_stat.detect, proc_stat.explain, proc_stat.compare),
    Kind("limits", detect_limits, explain_limits),
)

CHECKS: Final = (
    Check("C01", "where the doctor runs", check_environment),
    Check("C20", "pressure", check_pressure),
    Check("C20", "cgroup", check_cgroup),
    Check("C20", "CPUs a GPU", check_cpus),
    Check("C20", "limits", check_limits),
)

SUBJECT: Final = Subject("host", ids=host_ids.IDS, kinds=tuple(KINDS), checks=CHECKS)
