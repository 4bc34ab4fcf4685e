"""Ids of findings about Kubernetes."""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId

LVM = FindingId(
    "k8s-class-device-mapper",
    "A storage class makes volumes by LVM or ZFS.",
    "GPUDirect cannot work through device mapper or ZFS, although the disk is a local NVMe.",
    "for GPUDirect: raw disks by local-static-provisioner (class without a provisioner)",
)
LOCAL = FindingId(
    "k8s-class-local",
    "A storage class of raw local disks.",
    "The file system lies on the device itself, so GPUDirect is possible.",
    "nothing to do",
)
CLASS = FindingId(
    "k8s-class-unknown",
    "What volumes of a storage class or driver lie on is not known.",
    "Whether GPUDirect is possible, and how fast they are, cannot be told from it.",
    "run stoker doctor PATH in a pod that mounts such a volume",
)
BINDING = FindingId(
    "k8s-binding-immediate",
    "A class of local volumes binds them at once.",
    "The volume may then lie on another node than the pod needs.",
    "volumeBindingMode: WaitForFirstConsumer",
)
ACCESS = FindingId(
    "k8s-access-modes",
    "How many nodes may mount a claim or volume, and write to it.",
    "What all pods read must be ReadWriteMany or ReadOnlyMany; ReadWriteOnce is for one node.",
    "a data set for many pods: ReadWriteMany or ReadOnlyMany; caches: a claim for each pod (ephemeral)",
)
NFS = FindingId(
    "k8s-nfs-mount-options",
    "What a volume asks of its NFS mounts.",
    "Only the mount itself shows what it got: RDMA needs proto=rdma there.",
    "mountOptions: proto=rdma,port=20049, or for TCP nconnect=8 to 16; then check /proc/self/mountinfo of the pod",
)
FUSE = FindingId(
    "k8s-fuse-volume",
    "A volume is a FUSE client of an object store.",
    "GPUDirect never works on it, and each read passes a process; its capacity is not enforced.",
    "read through stoker's object tier, or give the client a cache on local NVMe",
)
EMPTY_DIR = FindingId(
    "k8s-emptydir-on-disk",
    "An emptyDir lies on the disk of the kubelet, which mostly is the root disk of the node.",
    "A cache there is slow, and filling the root disk evicts pods.",
    "an ephemeral volume of a local NVMe class, or the kubelet's directory on NVMe",
)
UDEV = FindingId(
    "k8s-run-udev",
    "Whether /run/udev of the node is in the pod.",
    "Without it cuFile cannot tell what a block device is, and silently copies by the CPU.",
    "mount hostPath /run/udev read-only at /run/udev",
)
SHM = FindingId(
    "k8s-shared-memory",
    "The size of /dev/shm in the pod, which is 64 MiB unless set.",
    "Loaders with worker processes die of bus errors; and it counts in the memory limit.",
    "an emptyDir with medium: Memory and a sizeLimit at /dev/shm, and a memory limit that has room for it",
)
NVIDIA_FS = FindingId(
    "k8s-nvidia-fs-nodes",
    "The pod asks for GPUs but gets no /dev/nvidia-fs*.",
    "GPUDirect by nvidia-fs is then not available in it.",
    "GPU operator with gds.enabled and CDI, or a device plugin that passes the nodes",
)
IDS: Final = tuple(value for value in list(globals().values()) if isinstance(value, FindingId))
