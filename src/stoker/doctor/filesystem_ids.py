"""The findings about file systems: local, network, in memory, in user space."""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId

PATH = FindingId(
    "path-identity",
    "What a path lies on: mount, file system, and the block devices under it.",
    "All that is said of the path rests on it.",
    "nothing is to be done",
)
LOCAL = FindingId(
    "fs-local",
    "A file system on a local block device.",
    "No network lies between it and the job.",
    "nothing is to be done",
)
EXT4_JOURNAL = FindingId(
    "fs-ext4-journal-not-shown",
    "The mount of an ext4 does not show data=ordered, or shows another mode.",
    "cuFile cannot verify the journal mode, and copies by the CPU; for other I/O it does not matter.",
    "mount with -o data=ordered, if GPUDirect is wanted",
)
ON_MD = FindingId(
    "fs-on-md",
    "The file system lies on an md array.",
    "Its health and level are in /proc/mdstat; GPUDirect takes only RAID 0.",
    "look at /proc/mdstat",
)
ON_DM = FindingId(
    "fs-on-device-mapper",
    "The file system lies on device mapper: LVM, dm-crypt or multipath.",
    "GPUDirect cannot go through it, not even to local NVMe.",
    "put what GPUs read directly on a plain NVMe partition or md RAID 0",
)
XFS_STRIPE = FindingId(
    "fs-xfs-stripe-not-set",
    "An XFS on an array does not know its stripe (sunit, swidth).",
    "Files are not laid out along the members.",
    "mkfs.xfs -d su=CHUNK,sw=MEMBERS, or mount with sunit= and swidth=",
)
OVERLAY = FindingId(
    "fs-overlay",
    "An overlay: the layers of a container.",
    "It is never direct, and what is written goes to the root disk of the node.",
    "mount a volume for data, caches and checkpoints",
)
MEMORY = FindingId(
    "fs-in-memory",
    "A file system in memory.",
    "It is gone with the node or the pod, counts as its memory, and is never direct.",
    "use a drive for what must last or is large",
)
SHM = FindingId(
    "fs-shm",
    "The size of /dev/shm.",
    "Loaders with several processes pass batches through it; 64 MiB, the default of containers, ends in a bus error.",
    "docker run --shm-size, or in Kubernetes an emptyDir with medium: Memory at /dev/shm",
)
FUSE = FindingId(
    "fs-fuse",
    "A file system in user space (FUSE).",
    "Each request goes through another process; it is never direct, and caching is often off.",
    "turn on its cache for repeated epochs, or read the object store without it",
)
FUSE_REQUESTS = FindingId(
    "fs-fuse-small-requests",
    "A FUSE mount limits the size of requests.",
    "More round trips for the same bytes.",
    "raise max_read, where the client can",
)
NEVER_DIRECT = FindingId(
    "fs-never-direct",
    "A file system that GPUDirect cannot take.",
    "cuFile copies its I/O by the CPU, or refuses it; for other I/O it does not matter.",
    "put what GPUs read directly on ext4 or XFS on NVMe, or on a network file system with a route",
)
VIRTIOFS = FindingId(
    "fs-virtiofs",
    "A folder of the host, shared with this virtual machine.",
    "It is as fast as what the host has under it, less one more step.",
    "ask whoever runs the host what it lies on",
)
NOT_KNOWN = FindingId(
    "fs-not-known",
    "A file system that stoker knows nothing of.",
    "Nothing is claimed of it.",
    "look into its own documentation",
)
NFS_RDMA = FindingId(
    "nfs-rdma",
    "NFS over RDMA.",
    "Low CPU time a byte, and what GPUDirect needs of a mount; the driver must have its hook too.",
    "nothing is to be done",
)
NFS_NOT_RDMA = FindingId(
    "nfs-not-rdma",
    "NFS over TCP or UDP.",
    "GPUDirect is not engaged, whatever gdscheck says of NFS.",
    "mount with proto=rdma,port=20049, where server and network can",
)
NFS_ONE_TCP = FindingId(
    "nfs-one-tcp-connection",
    "One TCP connection carries all I/O of an NFS mount.",
    "One connection is one flow on one core: often 1 to 3 GB/s, whatever the link.",
    "mount with nconnect=16 (all mounts of a server share the first one's number: unmount them first)",
)
NFS_RSIZE = FindingId(
    "nfs-read-size-small",
    "Reads of an NFS mount over TCP are cut smaller than 1 MiB.",
    "More round trips for the same bytes.",
    "mount with rsize=1048576; the server may bound it",
)
NFS_DIFFERS = FindingId(
    "nfs-transport-differs",
    "The connections of an NFS mount are of another kind than its options say.",
    "What carries the bytes is what counts.",
    "unmount and mount again; look into dmesg",
)
NFS_RETRANS = FindingId(
    "nfs-retransmits",
    "Requests of an NFS mount were sent more than once.",
    "The network loses packets or the server is late; each costs a timeout.",
    "look at the retransmits of TCP, the drops of the NIC, and the server",
)
NFS_QUEUE = FindingId(
    "nfs-client-queue",
    "Reads wait longer in the client than for the server.",
    "Slots or connections of the client are too few; the server could do more.",
    "raise nconnect; for NFS 4.1 and later also the server's session slots",
)
NFS_IO = FindingId(
    "nfs-io",
    "Mean time and size of NFS reads, since the mount or between two moments.",
    "Round trip is network and server; queue is the client.",
    "nothing is to be done",
)
MIX = FindingId(
    "fs-metadata-share",
    "How much of the operations and of the time goes into metadata: open, stat, lookup, close.",
    "Many small files make the metadata server the limit, whatever the bandwidth.",
    "pack small files into shards: stoker pack",
)
LUSTRE_NETWORK = FindingId(
    "lustre-network",
    "The networks by which a Lustre client reaches its servers.",
    "Over TCP each byte is copied by the CPU, and GPUDirect is not possible.",
    "use o2ib networks where there is RDMA",
)
LUSTRE_ONE_STRIPE = FindingId(
    "lustre-one-stripe",
    "One storage target (OST) holds the whole file.",
    "A large file that many read is bound to that target; many such files spread by themselves.",
    "lfs migrate -c 4 FILE (or -c -1 for all targets), and lfs setstripe on the folder for new files",
)
LUSTRE_STRIPES = FindingId(
    "lustre-stripes",
    "Over how many storage targets the data of a file really lies: only components that are in use count.",
    "It bounds the throughput of one file.",
    "nothing is to be done",
)
LUSTRE_SMALL_STRIPE = FindingId(
    "lustre-stripe-size-small",
    "Stripes are smaller than 1 MiB.",
    "Requests are smaller than what Lustre sends at best.",
    "lfs setstripe -S 4M on the folder, and lfs migrate",
)
LUSTRE_DOM = FindingId(
    "lustre-data-on-mdt",
    "The beginning of the file lies on the metadata target (Data-on-MDT).",
    "Good for small samples, but it loads the metadata server, and such reads are not direct.",
    "keep it for files that are smaller than that",
)
LUSTRE_RELEASED = FindingId(
    "lustre-released",
    "The data of the file was released to an archive (HSM).",
    "The first read waits until it is brought back.",
    "lfs hsm_restore FILE before the job",
)
LUSTRE_TARGET_FULL = FindingId(
    "lustre-target-full",
    "A storage target is full or nearly.",
    "Writes to it fail, and the allocator passes it over: the others carry more.",
    "lfs find --ost, and lfs migrate what lies there",
)
LUSTRE_TARGET_OFF = FindingId(
    "lustre-target-inactive",
    "A target is not active, or marked as degraded.",
    "Files on it cannot be read, or slowly.",
    "ask the administrator of the file system; lctl dl shows the state of the connections",
)
LUSTRE_SPACE = FindingId(
    "lustre-space",
    "Targets of a Lustre file system and how full they are.",
    "Even ones share the load.",
    "nothing is to be done",
)
LUSTRE_IO = FindingId(
    "lustre-io",
    "Mean time and size of the reads of a Lustre client.",
    "It is what the job sees, page cache included.",
    "nothing is to be done",
)
LUSTRE_SETTINGS = FindingId(
    "lustre-settings",
    "Settings of a Lustre client: requests at once to a target, reading ahead of data and of attributes.",
    "Few requests at once, or no reading ahead, leave the servers idle.",
    "lctl set_param osc.*.max_rpcs_in_flight=32 llite.*.statahead_max=128 llite.*.max_read_ahead_mb=256, as root",
)
LNET = FindingId(
    "lnet-interfaces",
    "The network interfaces of LNet and their health (1000 is full; 0@lo shows 0 by nature).",
    "An interface that is down or unhealthy is used less or not.",
    "lnetctl net show -v 3, then the link of the interface (ibstat, ip -s link)",
)
BEEGFS = FindingId(
    "beegfs-mount",
    "A BeeGFS mount.",
    "Its connections tell whether it runs over RDMA; GPUDirect needs that and a client with the hook.",
    "look at /proc/fs/beegfs/*/storage_nodes",
)
BEEGFS_STRIPES = FindingId(
    "beegfs-stripes",
    "Over how many targets a BeeGFS file lies.",
    "It bounds the throughput of one file.",
    "set the pattern of the folder, and write the file again",
)
BEEGFS_LINKS = FindingId(
    "beegfs-connections",
    "The connections of a BeeGFS client to its servers.",
    "Only RDMA is fast and possible for GPUDirect; no connection only means that nothing was asked yet.",
    "look at connInterfacesFile and connRDMAInterfacesFile, and at the link",
)
BEEGFS_FALLBACK = FindingId(
    "beegfs-fallback-route",
    "A BeeGFS client uses a fallback route.",
    "The first choice of interface failed: traffic takes a slower one until it is opened anew.",
    "repair the link, then unmount and mount, or wait for connFallbackExpirationSecs",
)
WEKA = FindingId(
    "wekafs-mount",
    "A WekaFS mount, its cache mode and its client.",
    "Its reads never show in the counters of nvidia-fs: that they stay 0 proves nothing.",
    "nothing is to be done",
)
WEKA_NO_CACHE = FindingId(
    "wekafs-forcedirect",
    "A WekaFS mount without a cache (forcedirect).",
    "Each small read goes to the servers.",
    "mount with readcache for small samples that are read again",
)
GPFS = FindingId(
    "gpfs-mount",
    "A GPFS (IBM Storage Scale) mount.",
    "GPUDirect needs userspace RDMA, Storage Scale 5.1.2 or later and verbsGPUDirectStorage; that is not visible here.",
    "mmdiag --config | grep -i verbs",
)
CEPH = FindingId(
    "cephfs-mount",
    "A CephFS mount.",
    "GPUDirect never takes it. The kernel's client is faster than the one in user space.",
    "nothing is to be done; with ceph-fuse: mount -t ceph",
)
MAGIC = FindingId(
    "fs-magic",
    "The magic number of a file system, as statfs(2) gives it.",
    "It names the kind; that of FUSE does not say which, and virtiofs shows it too.",
    "take file system type and source from /proc/self/mountinfo",
)

IDS: Final = tuple(value for value in list(globals().values()) if isinstance(value, FindingId))
