"""GPUDirect Storage on a node: the driver, the configuration, and what is to be expected of a path.

Nothing here opens the vendor's library: without a driver it can spin for ever.
"""

from __future__ import annotations

from typing import Final

from stoker.doctor import cufile_json, cufile_log, filesystem, gds_ids, gds_p2pdma, gds_stats, gdscheck, nvidia_fs, nvme
from stoker.doctor import gds_ids as ids
from stoker.doctor.check import Check, Target
from stoker.doctor.cufile_json import CuFileConfig
from stoker.doctor.finding import Evidence, Finding, Severity
from stoker.doctor.gds_p2pdma import NVIDIA_VERSION
from stoker.doctor.gds_route import DriverFacts, Expected, expect
from stoker.doctor.identity import MOUNTINFO, identify
from stoker.doctor.kinds import Kind
from stoker.doctor.node import Host, Missing, Node
from stoker.doctor.subject import Subject

_NVIDIA_FS: Final = "/proc/driver/nvidia-fs"
_LOG_BYTES: Final = 1 << 20
ROUTE_SEVERITY: Final = {
    Expected.DIRECT: Severity.OK,
    Expected.COMPAT: Severity.WARN,
    Expected.REFUSED: Severity.FAIL,
    Expected.UNKNOWN: Severity.UNKNOWN,
}


def has_gpu(node: Node) -> bool:
    """Whether an NVIDIA driver answers here."""
    return isinstance(node.read(NVIDIA_VERSION), str)


def read_config(node: Node) -> CuFileConfig:
    """The configuration that a process with this environment would have."""
    environment = node.environment()
    path = environment.get(cufile_json.PATH_VARIABLE) or cufile_json.DEFAULT_PATH
    text = node.read(path)
    return cufile_json.effective(None if isinstance(text, Missing) else text, path, environment)


def read_driver(node: Node) -> DriverFacts:
    """What the drivers can do, as far as it is visible without rights."""
    modules = node.read(f"{_NVIDIA_FS}/modules")
    if isinstance(modules, str):
        hooks: frozenset[str] | None = nvidia_fs.parse_modules(modules)
    else:
        hooks = None if modules.denied else frozenset()
    nodes = node.listing("/dev")
    host = node.host()
    coherent = isinstance(host, Host) and host.machine in ("aarch64", "arm64")
    return DriverFacts(
        hooks=hooks,
        device_nodes=None if isinstance(nodes, Missing) else "nvidia-fs0" in nodes,
        p2pdma=gds_p2pdma.possible(gds_p2pdma.conditions(node)),
        coherent=coherent,
        userspace_rdma=_userspace_rdma(node),
        transports=nvme.transports(node),
        beegfs_rdma=filesystem.beegfs_rdma(node),
        protected=nvme.with_protection_information(node),
    )


def _userspace_rdma(node: Node) -> bool | None:
    """False where there is no RDMA device at all; that there is one does not say that cuFile can use it."""
    classes = node.listing("/sys/class")
    return False if isinstance(classes, tuple) and "infiniband" not in classes else None


def check_driver(node: Node, _target: Target) -> list[Finding]:
    """C03: the driver, nvidia-fs and its hooks, the device nodes."""
    version = node.read(NVIDIA_VERSION)
    if isinstance(version, Missing):
        line = Evidence(version.reason, NVIDIA_VERSION)
        if isinstance(node.read(MOUNTINFO), Missing):
            what = "/proc is not visible here, so neither is a driver"
            return [ids.NO_GPU.unknown("GPUDirect", what, line, fix="mount /proc into the container")]
        return [ids.NO_GPU.info("GPUDirect", "no NVIDIA driver is seen here: it does not apply", line)]
    found: list[Finding] = []
    module = node.read(f"{_NVIDIA_FS}/version")
    if isinstance(module, Missing):
        line = Evidence(module.reason, f"{_NVIDIA_FS}/version")
        found.append(ids.NVIDIA_FS_ABSENT.info("nvidia-fs", "is not loaded, or not visible here", line))
        return found
    found += nvidia_fs.explain_version(module, f"{_NVIDIA_FS}/version")
    for name in ("modules", "stats", "peer_distance"):
        text = node.read(f"{_NVIDIA_FS}/{name}")
        if isinstance(text, str) and text.strip():
            found += nvidia_fs.explain(text, f"{_NVIDIA_FS}/{name}")
    nodes = node.listing("/dev")
    if isinstance(nodes, tuple) and "nvidia-fs0" not in nodes:
        line = Evidence("nvidia-fs0 is not listed", "/dev")
        found.append(ids.DEVICE_NODES.warn("nvidia-fs", "is loaded, but its device nodes are not here", line))
    return found


def check_p2pdma(node: Node, _target: Target) -> list[Finding]:
    """C04: the conditions of the route without nvidia-fs."""
    if not has_gpu(node):
        return []
    host = node.host()
    machine = host.machine if isinstance(host, Host) else ""
    return gds_p2pdma.judge(gds_p2pdma.conditions(node), read_config(node), machine)


def check_config(node: Node, _target: Target) -> list[Finding]:
    """C05: the configuration that cuFile has here."""
    config = read_config(node)
    return cufile_json.judge(config) if has_gpu(node) or config.values or config.error else []


def check_path(node: Node, target: Target) -> list[Finding]:
    """C06: what is to be expected of the path."""
    if not target.path or not has_gpu(node):
        return []
    identity = identify(node, target.path)
    if isinstance(identity, Missing):
        return [ids.PATH_ROUTE.unknown(target.path, identity.reason)]
    found = expect(identity, read_driver(node), read_config(node))
    line = Evidence(identity.mount.line, "/proc/self/mountinfo")
    return [ids.PATH_ROUTE.found(ROUTE_SEVERITY[found.expected], target.path, str(found), line)]


def check_log(node: Node, _target: Target) -> list[Finding]:
    """C08: the log where the configuration puts it. Without one it lies in the folder of the process that wrote it."""
    directory = read_config(node).values.get("logging.dir")
    if not isinstance(directory, str) or not directory.startswith("/"):
        return []
    path = directory if directory.endswith(".log") else f"{directory.rstrip('/')}/cufile.log"
    text = node.read_tail(path, _LOG_BYTES)
    return cufile_log.explain(text, path) if isinstance(text, str) and text.strip() else []


KINDS: Final = (
    Kind("gdscheck", gdscheck.detect, gdscheck.explain),
    Kind("cufile-json", cufile_json.detect, cufile_json.explain),
    Kind("cufile-log", cufile_log.detect, cufile_log.explain),
    Kind("nvidia-fs", nvidia_fs.detect, nvidia_fs.explain, nvidia_fs.compare),
    Kind("gds-stats", gds_stats.detect_stats, gds_stats.explain_stats),
    Kind("gdsio", gds_stats.detect_gdsio, gds_stats.explain_gdsio),
)

CHECKS: Final = (
    Check("C03", "GPUDirect driver", check_driver),
    Check("C04", "PCI P2PDMA", check_p2pdma),
    Check("C05", "cuFile configuration", check_config),
    Check("C06", "GPUDirect path", check_path, per_target=True),
    Check("C08", "cufile.log", check_log),
)

SUBJECT: Final = Subject("gds", ids=gds_ids.IDS, kinds=KINDS, checks=CHECKS)
