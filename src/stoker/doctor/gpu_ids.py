"""Ids of findings about GPUs: whether they work, whether that is known, and their links."""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId

IDLE = FindingId(
    "gpu-idle",
    "The GPU's multiprocessors work less than 60% of the time.",
    "It waits: for input, for other ranks, or for the host. Which of them, other signals tell.",
    "see what it waits for: stoker report RUN, or stoker doctor --why",
)
BUSY = FindingId(
    "gpu-compute-bound",
    "The GPU's multiprocessors work most of the time.",
    "It is not starved: faster storage would bring little.",
    "nothing to do for storage",
)
KERNELS = FindingId(
    "gpu-activity-partly-known",
    "Only the time in which some kernel ran is known, not how much of the GPU it used.",
    "A kernel that spins, or waits for other ranks, counts as 100%.",
    "export DCGM_FI_PROF_SM_ACTIVE too (it is commented out in the default list of dcgm-exporter)",
)
INVALID = FindingId(
    "gpu-metric-invalid",
    "A metric of the GPU is not supported, stuck, or contradicts another.",
    "Nothing may be concluded from it.",
    "restart the exporter; end other profilers (nsys, ncu), for only one may measure",
)
PCIE_FULL = FindingId(
    "gpu-pcie-saturated",
    "The GPU receives 80% or more of what its PCIe link carries.",
    "The link to the host is the limit, not storage.",
    "send less over it: decode on the GPU, smaller types, fewer copies",
)
PCIE_LINK = FindingId(
    "gpu-pcie-link",
    "Width and speed of the GPU's PCIe link.",
    "With fewer lanes than it could have it carries a half or less; a lower speed while idle is saving power.",
    "reseat the card, check risers and the slot, and the errors in the kernel's messages",
)
NIC_LINK = FindingId(
    "nic-pcie-link",
    "An RDMA card's PCIe link is narrower or slower than the card can.",
    "The card cannot carry its network rate into memory; it then sends pauses.",
    "move it to a slot of full width, check risers and firmware",
)
BAR = FindingId(
    "gpu-bar1-small",
    "The window of GPU memory on the bus (BAR1) is small.",
    "Buffers for GPUDirect must fit into it; what does not is copied.",
    "turn on large BARs (above 4G decoding, resizable BAR) in the firmware",
)
IOMMU = FindingId(
    "gpu-iommu",
    "An IOMMU is on.",
    "On x86 it can send traffic between devices through the CPU.",
    "turn it off for bare-metal training nodes, or at least iommu=pt; check the vendor's advice for the box",
)
IDS: Final = tuple(value for value in list(globals().values()) if isinstance(value, FindingId))
