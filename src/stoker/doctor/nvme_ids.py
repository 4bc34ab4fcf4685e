"""The findings about NVMe drives and NVMe over fabrics."""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId

NONE = FindingId(
    "nvme-none",
    "There is no NVMe device on the node, or none is given to this container.",
    "Local tiers and GPUDirect on local drives do not apply.",
    "if the node has drives: lspci -nn -d ::0108 shows them; modprobe nvme, or give them to the container",
)
HIDDEN = FindingId(
    "nvme-not-visible",
    "The NVMe devices of the node cannot be seen from here.",
    "Transport, paths and queues stay unknown.",
    "mount /sys into the container, read-only",
)
LOCAL = FindingId(
    "nvme-local",
    "Drives on this machine's own PCIe.",
    "No network lies between them and the GPUs.",
    "nothing is to be done",
)
NAMESPACES = FindingId(
    "nvme-namespaces",
    "The NVMe namespaces that a tool lists.",
    "They are the block devices that file systems and arrays are made of.",
    "nothing is to be done",
)
TRANSPORT_HIDDEN = FindingId(
    "nvme-transport-not-told",
    "The output does not say whether a namespace is local or over a fabric, and by which transport.",
    "The flat form of `nvme list` never tells it, in any version.",
    "look at /sys/class/nvme/*/transport, or at nvme list-subsys -o json",
)
NOT_RDMA = FindingId(
    "nvme-fabric-not-rdma",
    "NVMe over fabrics runs over TCP or Fibre Channel, not RDMA.",
    "Each byte is copied by the CPU, and GPUDirect cannot take it.",
    "connect with -t rdma where NIC and target can",
)
PATHS = FindingId(
    "nvme-fabric-paths",
    "The paths to a remote NVMe subsystem.",
    "They are what it has for throughput and for the case that one fails.",
    "nothing is to be done",
)
ONE_PATH = FindingId(
    "nvme-one-path",
    "A remote NVMe subsystem has one live path or none.",
    "When it fails I/O stops, and no second port carries load.",
    "connect through another port as well: nvme connect-all, or the target's second address",
)
NOT_LIVE = FindingId(
    "nvme-not-live",
    "A controller is not in state live.",
    "It carries no I/O, or is about to be removed.",
    "look into dmesg for its name; nvme reset, or reconnect",
)
ANA = FindingId(
    "nvme-no-optimized-path",
    "All paths to a remote namespace are non-optimized or inaccessible.",
    "I/O takes the target's detour, or does not work.",
    "connect to the ports of the node that owns the namespace; ask the storage's administrator",
)
IO_POLICY = FindingId(
    "nvme-iopolicy-numa",
    "Several paths, but the policy `numa` lets one of them carry all I/O of a NUMA node.",
    "The other ports are idle.",
    "echo queue-depth > /sys/class/nvme-subsystem/NAME/iopolicy (or round-robin, where all paths are alike)",
)
LINK = FindingId(
    "nvme-pcie-link",
    "The PCIe link of a drive: generation and lanes, now and at most.",
    "A link that came up slower or narrower cuts throughput in half or worse.",
    "seat the drive again; check the riser, the slot's lanes and the firmware's settings",
)
NUMA = FindingId(
    "nvme-numa",
    "Which NUMA node a controller belongs to, and what else does.",
    "Between nodes DMA crosses the link of the sockets. -1 means that the firmware does not tell: it is not a node.",
    "use the drives of the GPU's own node, or set the node in the firmware",
)
QUEUES = FindingId(
    "nvme-few-queues",
    "A fabric controller has fewer I/O queues than the CPUs could use; queue_count also counts the admin queue.",
    "CPUs share queues and wait for each other.",
    "connect with --nr-io-queues, and raise the target's limit",
)
SCHEDULER = FindingId(
    "nvme-scheduler",
    "A block I/O scheduler is at work on an NVMe namespace.",
    "It costs CPU time and a lock, and orders nothing that the drive does not order better.",
    "echo none > /sys/block/DEVICE/queue/scheduler, and a udev rule to keep it",
)
READ_AHEAD = FindingId(
    "nvme-read-ahead",
    "Read-ahead is small.",
    "Buffered and mapped reads of big files are served in small pieces; direct I/O does not use it.",
    "echo 4096 > /sys/block/DEVICE/queue/read_ahead_kb, if files are read through the page cache",
)
REQUEST_CAP = FindingId(
    "nvme-request-size",
    "The kernel cuts requests smaller than the device allows.",
    "More requests for the same bytes.",
    "cat max_hw_sectors_kb > max_sectors_kb in /sys/block/DEVICE/queue",
)
INTEGRITY = FindingId(
    "nvme-protection-information",
    "The namespace is formatted with protection information.",
    "PCI P2PDMA is not possible on it.",
    "format it with an LBA format without metadata (this erases it)",
)
MULTIPATH = FindingId(
    "nvme-multipath-blocks-p2pdma",
    "The kernel's NVMe multipath is on.",
    "On x86 GPUDirect by PCI P2PDMA is then not possible; the nvidia-fs route is not concerned.",
    "nvme_core.multipath=N on the kernel's command line, if P2PDMA is wanted",
)
HOT = FindingId(
    "nvme-hot",
    "A drive is at or above the temperature at which it slows down.",
    "Throughput falls until it has cooled.",
    "look after the cooling",
)

IDS: Final = tuple(value for value in list(globals().values()) if isinstance(value, FindingId))
