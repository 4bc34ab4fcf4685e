"""Ids of findings about the network."""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId

RDMA_PORT = FindingId(
    "rdma-port-state",
    "The state of an RDMA port and its rate.",
    "A port that is down carries nothing; the rate that it prints then means nothing either.",
    "check cable, switch port and, for InfiniBand, the subnet manager: ibstat, ip link",
)
RDMA_RATE = FindingId(
    "rdma-rate-low",
    "A port runs with fewer lanes, or slower, than it or its like could.",
    "It carries a half or a quarter, and nothing else shows it.",
    "reseat or replace the cable or module, and compare the speed set at the switch",
)
RDMA_NETDEV = FindingId(
    "rdma-netdev",
    "Which network device an RDMA device is.",
    "Storage over TCP and the compute plane over RDMA may share it.",
    "nothing to do",
)
LINK_SATURATED = FindingId(
    "link-saturated",
    "A link carries 85% or more of its rate.",
    "Reads wait for the link: faster storage behind it changes nothing.",
    "spread storage over more ports, keep repeated reads on local NVMe, or move the compute plane elsewhere",
)
LINK_RATE = FindingId(
    "link-rate",
    "What a link carried between two samples.",
    "Far below its rate, it is not what limits reads.",
    "nothing to do",
)
RDMA_LOSS = FindingId(
    "rdma-loss",
    "RDMA counters of loss, retries or full queues grew.",
    "Each loss stalls a transfer; RoCE slows down far more than TCP.",
    "check priority flow control and ECN on NIC and switch, for the priority that storage uses",
)
RDMA_CONGESTION = FindingId(
    "rdma-congestion",
    "RDMA counters of congestion grew: notification packets, or waits for credits.",
    "The fabric slows senders down: storage and compute compete.",
    "find who shares the path: switch counters, placement, separate rails for storage",
)
COUNTERS_UNSEEN = FindingId(
    "network-counters-unusable",
    "Counters are absent, stuck at their end, went back, or have no known interval.",
    "Congestion can then neither be found nor excluded.",
    "give two samples of one boot and the seconds between them, or another source of counters",
)
NIC_PAUSE = FindingId(
    "nic-pause",
    "The NIC was told to pause, or told the switch to.",
    "Received pauses: the fabric is congested. Sent ones: this host cannot take in what arrives.",
    "received: look for congestion in the fabric; sent: look at the PCIe link, NUMA placement and CPU of this host",
)
NIC_DROPS = FindingId(
    "nic-drops",
    "The NIC or the kernel dropped packets.",
    "Dropped packets come again after a timeout.",
    "raise ring sizes (ethtool -G), check flow control and who overruns this host",
)
TCP_RETRANSMITS = FindingId(
    "tcp-retransmits",
    "Share of TCP segments that were sent again (over 0.1% is a warning, over 1% a failure).",
    "Storage over TCP waits for lost segments; the network is congested or faulty.",
    "look for drops on NIC and switch ports and for mismatched MTUs on the way",
)
TCP_ONE = FindingId(
    "tcp-one-connection",
    "All traffic to a storage server goes through one TCP connection.",
    "One connection is one queue and one CPU core, whatever the link carries.",
    "mount with nconnect=8 to 16 (NFS), or more connections of the client in use",
)
TCP_STALLED = FindingId(
    "tcp-connection-slow",
    "A connection to a storage server waits: round trips far above their best, or a full receiver.",
    "Queues on the way, or a server that cannot take more.",
    "compare rtt with minrtt under load; look at switch queues and at the server",
)
TCP_FINE = FindingId(
    "tcp-connections",
    "Connections to storage servers: how many, what was sent again, their MTU.",
    "What is seen of them here is in order.",
    "nothing to do",
)
MTU = FindingId(
    "network-mtu",
    "Whether jumbo frames are used towards storage.",
    "With 1500 octets a fast link costs several times the packets and CPU; a mismatch costs whole packets.",
    "set an MTU of 9000 on NIC, switch and server alike, or on none",
)
NIC_SHARED = FindingId(
    "nic-shared-with-compute",
    "Storage and the compute plane (NCCL) use one network card.",
    "Each all-reduce takes bandwidth from reads, and each read from the all-reduce.",
    "name other cards for NCCL (NCCL_IB_HCA, NCCL_SOCKET_IFNAME), or another address for storage",
)
NIC_STORAGE = FindingId(
    "nic-of-storage",
    "Which network card carries a path.",
    "All limits of that card are limits of the path.",
    "nothing to do",
)
AFFINITY = FindingId(
    "gpu-nic-affinity",
    "Which network cards are near a GPU.",
    "Data for a GPU should come over a card under the same PCIe switch.",
    "nothing to do",
)
AFFINITY_FAR = FindingId(
    "gpu-nic-far",
    "Between a GPU and a network card lies the link between CPU sockets (SYS), or between host bridges (NODE).",
    "GPUDirect across sockets is several times slower; copies cross it too.",
    "bind each rank to the card nearest its GPU, and mount storage over it",
)
IDS: Final = tuple(value for value in list(globals().values()) if isinstance(value, FindingId))
