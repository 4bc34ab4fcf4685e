"""The findings about GPUDirect Storage.

References: "guide" is NVIDIA's GPUDirect Storage Installation and Troubleshooting Guide.
"""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId

CAPABLE = FindingId(
    "gds-backend-capable",
    "The driver stack can do direct I/O on some back ends.",
    "It says nothing about one path: file system, mount options, device and configuration must agree too.",
    "look at the path with stoker doctor PATH, and prove it with counters of real reads",
)
NO_BACKEND = FindingId(
    "gds-no-backend",
    "No back end can do direct I/O, whatever else the tool calls supported or verified.",
    "All cuFile I/O is copied by the CPU, or refused.",
    "load nvidia-fs and a storage driver with its hooks (DOCA/OFED nvme), or turn on PCI P2PDMA",
)
COMPAT_ONLY = FindingId(
    "gds-backend-compat-only",
    "These back ends are served by the CPU only.",
    "`compat` means a POSIX read and a copy; it is listed beside real routes but is none.",
    "load the vendor's hooks for the back end that is used, or take another",
)
BACKEND_UNCLEAR = FindingId(
    "gds-backend-unclear",
    "A back end has words that stoker does not know, or no line.",
    "It may be direct or not.",
    "read the line, and compare with the guide of that release",
)
P2PDMA_ONLY = FindingId(
    "gds-p2pdma-without-nvidia-fs",
    "Local NVMe can be direct by PCI P2PDMA, without nvidia-fs.",
    "The counters of nvidia-fs stay 0 and prove nothing; `NVMe: Unsupported` is no fault then.",
    "prove it with the counters of cuFile (CUFILE_STATS_LEVEL=3)",
)
CUT_SHORT = FindingId(
    "gds-output-cut-short",
    "Parts of the output are missing.",
    "Configuration, GPUs or platform stay unknown.",
    "give the whole output of gdscheck -p",
)
RELEASE = FindingId(
    "gds-release",
    "Which releases are in use: GDS, the nvidia-fs module and libcufile have numbers of their own.",
    "The GDS release decides what works; the module's number is often taken for it.",
    "nothing is to be done",
)
COMPAT_ALLOWED = FindingId(
    "gds-compat-allowed",
    "cuFile may fall back to CPU copies without an error.",
    "Nothing tells the program that it is not direct.",
    'set "allow_compat_mode": false to be refused instead, at least while testing',
)
COMPAT_NOT_ALLOWED = FindingId(
    "gds-compat-not-allowed",
    "cuFile refuses files that cannot be direct.",
    "cuFileHandleRegister fails (5008, 5030) where there is no direct route; it says nothing about GPUDirect being on.",
    'make the path direct, or set "allow_compat_mode": true',
)
COMPAT_FORCED = FindingId(
    "gds-compat-forced",
    "Compatible mode is forced: GPUDirect is off for everything.",
    "Every byte goes through CPU memory.",
    'unset CUFILE_FORCE_COMPAT_MODE and set "force_compat_mode": false',
)
IOMMU = FindingId(
    "gds-iommu-on",
    "The IOMMU is on or in pass-through on x86.",
    "Peer-to-peer traffic takes a detour through the root complex or does not work.",
    "turn the IOMMU off in the firmware or with the kernel's command line, unless the platform is listed to bear it",
)
BAR_SMALL = FindingId(
    "gds-bar-small",
    "A GPU shows little of its memory on the bus (BAR1).",
    "Registering more than that fails or bounces.",
    "turn on large BARs in the firmware (above 4G decoding), or register fewer and smaller buffers",
)
NVIDIA_FS_ABSENT = FindingId(
    "gds-nvidia-fs-absent",
    "The module nvidia-fs is not loaded, or not visible here.",
    "Its route is closed; PCI P2PDMA, coherent memory and userspace RDMA do without it.",
    "modprobe nvidia_fs on the host; in a container also pass /dev/nvidia-fs*",
)
NVIDIA_FS_OLD = FindingId(
    "gds-nvidia-fs-version",
    "The version of the nvidia-fs module; it is not the GDS release.",
    "libcufile 1.16 and later need 2.12.",
    "install nvidia-fs 2.12 or later",
)
HOOKS = FindingId(
    "gds-nvidia-fs-hooks",
    "Which storage modules are registered with nvidia-fs.",
    "Only these back ends can take its route. `wekafsio` is always listed and means nothing.",
    "install the vendor's build of the module (DOCA/OFED nvme, the file system's client), or turn on PCI P2PDMA",
)
COUNTERS_OFF = FindingId(
    "gds-nvidia-fs-counters-off",
    "nvidia-fs does not count reads and writes.",
    "That no read is seen proves nothing: whether I/O is direct cannot be told from here.",
    "as root: echo 1 > /sys/module/nvidia_fs/parameters/rw_stats_enabled; or use the counters of cuFile",
)
NVIDIA_FS_IO = FindingId(
    "gds-nvidia-fs-io",
    "What nvidia-fs counted. Only its own route is counted: not P2PDMA, not compatible mode, not Weka.",
    "That the counter grows shows that the route is used; that it does not shows nothing.",
    "compare with what was read, and with the counters of cuFile",
)
NVIDIA_FS_ERRORS = FindingId(
    "gds-nvidia-fs-errors",
    "nvidia-fs counted errors.",
    "Direct I/O failed, and was repeated by the CPU or reported to the program.",
    "look into the kernel log (dmesg) for nvidia-fs",
)
BOUNCE = FindingId(
    "gds-bounced",
    "I/O that is unaligned or from unregistered memory goes through a buffer on the GPU.",
    "It is direct, but copied once more.",
    "align file offset, size and device pointer to 4 KiB, and register the buffers",
)
CROSS_ROOT = FindingId(
    "gds-cross-root-port",
    "DMA between GPU and device crosses PCIe root ports.",
    "It is slower, up to several times, than between devices under one switch.",
    "use the NIC or drive nearest to the GPU (nvidia-smi topo -m)",
)
PEER_NEAR = FindingId(
    "gds-peer-near",
    "GPU and device lie under one root port.",
    "It is what fast transfers need.",
    "nothing is to be done",
)
STATS_DIRECT = FindingId(
    "gds-stats-direct",
    "All I/O that reached cuFile was direct.",
    "What a library above cuFile kept for itself is not in these numbers: compare the bytes.",
    "nothing is to be done",
)
STATS_COMPAT = FindingId(
    "gds-stats-compat",
    "I/O that reached cuFile was done by the CPU.",
    "It was read by POSIX calls and copied: CPU time and memory bandwidth instead of a direct path.",
    "look at cufile.log for the cause, and at the path with stoker doctor PATH",
)
STATS_NONE = FindingId(
    "gds-stats-none",
    "cuFile counted no I/O.",
    "A library above it may have kept all of it: no sign of a direct path, nor of a fallback.",
    "measure while the job reads; kvikio, for one, reads less than 16 KiB by itself",
)
GDSIO_LABEL = FindingId(
    "gds-gdsio-label",
    "gdsio prints the transfer type that it was asked for.",
    "GPUD is printed even in compatible mode: neither label nor throughput is proof.",
    "compare -x 0 with -x 2 and CPU time, and look at gds_stats while it runs",
)
CONFIG_BROKEN = FindingId(
    "gds-config-broken",
    "cufile.json cannot be read, even with comments and trailing commas allowed.",
    "What cuFile makes of it is not known.",
    "correct the line, or start from the file that is shipped",
)
STATS_OFF = FindingId(
    "gds-cufile-stats-off",
    "cuFile keeps no counters for gds_stats.",
    "No path can be proven direct from outside.",
    'set "cufile_stats": 3, or CUFILE_STATS_LEVEL=3, while testing',
)
DENIED = FindingId(
    "gds-denied-by-config",
    "cufile.json denies drivers, devices, mounts or file systems.",
    "What matches is refused (5034).",
    "take what is used off the denylist",
)
THRESHOLD = FindingId(
    "gds-posix-threshold",
    "I/O up to a size goes through the CPU, even if compatible mode is not allowed.",
    "Small samples are not direct and nothing says so.",
    "set posix_gds_min_kb to 0",
)
LOG_VERBOSE = FindingId(
    "gds-log-verbose",
    "cuFile logs much.",
    "From INFO on each I/O costs time.",
    'set "logging": {"level": "ERROR"}',
)
P2PDMA_HALF = FindingId(
    "gds-p2pdma-half-on",
    "PCI P2PDMA is on for all or for one route, but not both.",
    "Both keys are needed: nothing takes that route.",
    'set "use_pci_p2pdma": true in "properties" and in "block": {"nvme": ...}',
)
P2PDMA = FindingId(
    "gds-p2pdma-conditions",
    "What stands against PCI P2PDMA here: kernel, driver and its options, NVMe multipath (x86).",
    "It is the route to local NVMe without nvidia-fs; each condition is needed. A kernel's symbols and the generation "
    "of the GPU are not looked at.",
    "kernel 6.2 or later, the open driver 565 or later with NVreg_RegistryDwords RMForceStaticBar1=1, and "
    "nvme_core.multipath=N; or use nvidia-fs",
)
CHUNK_SMALL = FindingId(
    "gds-chunk-small",
    "Requests are cut into small pieces.",
    "More requests for the same bytes.",
    'set "max_direct_io_size_kb": 16384',
)
LOG_PROCESS_COMPAT = FindingId(
    "gds-log-process-compat",
    "A whole process runs in compatible mode.",
    "None of its I/O is direct, and it is not told.",
    "see the causes named beside",
)
LOG_FILE_COMPAT = FindingId(
    "gds-log-file-compat",
    "A file fell back to CPU copies, in silence.",
    "Its reads are not direct.",
    "see the causes named beside",
)
LOG_REFUSED = FindingId(
    "gds-log-refused",
    "cuFile refused a file.",
    "The program got an error, 5008 or another.",
    "see the causes named beside; compatible mode would hide it",
)
LOG_DIRECT = FindingId(
    "gds-log-direct",
    "The log shows I/O that went direct.",
    "It is proof for this I/O. Logging at this level is too slow for production.",
    "set the level back to ERROR after the test",
)
LOG_QUIET = FindingId(
    "gds-log-quiet",
    "The log of a process says nothing about direct or fallen back.",
    "At level ERROR a fallback is not always logged.",
    "set CUFILE_LOGGING_LEVEL=NOTICE for a test",
)
CAUSE_NVME = FindingId(
    "gds-nvme-not-registered",
    "The nvme module in use has no nvidia-fs hooks.",
    "Local NVMe cannot take the nvidia-fs route.",
    "install the nvme module of DOCA/OFED (and rebuild the initramfs), or turn on PCI P2PDMA",
)
CAUSE_DM = FindingId(
    "gds-device-mapper",
    "The file lies on device mapper: LVM, dm-crypt or multipath.",
    "No direct route goes through it.",
    "put the data on a plain NVMe partition or md RAID 0",
)
CAUSE_UDEV = FindingId(
    "gds-udev-missing",
    "The udev data of the device is not visible.",
    "cuFile learns from it what the device is; without it, it falls back.",
    "mount /run/udev into the container, read-only",
)
CAUSE_ANONYMOUS = FindingId(
    "gds-anonymous-device",
    "The file lies on a file system without a block device: overlay, tmpfs or network.",
    "cuFile cannot find its driver.",
    "use a volume that is mounted itself, not the container's own layer",
)
CAUSE_BLOCK = FindingId(
    "gds-block-unsupported",
    "The block device is of a kind without a direct route: RAID other than 0, SATA, loop.",
    "Its I/O is copied by the CPU.",
    "put the data on plain NVMe or md RAID 0 of NVMe",
)
CAUSE_EXT4 = FindingId(
    "gds-ext4-journal-hidden",
    "The mount does not show data=ordered.",
    "cuFile cannot verify the journal mode of ext4 and falls back.",
    "mount with -o data=ordered",
)
CAUSE_BAR = FindingId(
    "gds-bar-exhausted",
    "The GPU's window on the bus (BAR1) is full.",
    "Further buffers cannot be registered.",
    "register fewer and smaller buffers, or turn on large BARs in the firmware",
)
CAUSE_PIN = FindingId(
    "gds-pages-not-pinned",
    "GPU memory could not be mapped for peers.",
    "Consumer GPUs and some drivers do not allow it, whatever gdscheck says.",
    "use a data-centre GPU with the open kernel modules",
)
CAUSE_PEERMEM = FindingId(
    "gds-peermem-absent",
    "nvidia_peermem is not loaded.",
    "Userspace RDMA (Weka, GPFS) is off.",
    "modprobe nvidia_peermem, or use DMA-BUF",
)
CAUSE_ADDRESSES = FindingId(
    "gds-rdma-addresses-missing",
    "rdma_dev_addr_list is empty or wrong.",
    "Only Weka and GPFS need it.",
    "list the addresses of the RDMA ports in cufile.json, if one of them is used",
)
CAUSE_CUDA = FindingId(
    "gds-no-cuda-driver",
    "There is no CUDA driver, or no GPU, for the process.",
    "cuFile cannot work; some releases then spin for ever in cuFileDriverOpen.",
    "install the driver, or give the container its GPUs (nvidia-container-toolkit)",
)
PATH_ROUTE = FindingId(
    "gds-path",
    "What is to be expected of a path: direct by a route, copied by the CPU, refused, or unknown.",
    "It is a prediction from file system, device, mount options and configuration; only counters prove it.",
    "prove it: stoker doctor gds PATH --probe",
)
NO_GPU = FindingId(
    "gds-no-gpu",
    "No NVIDIA GPU or driver is seen here.",
    "GPUDirect does not apply, or this container was not given its GPUs.",
    "if the node has GPUs: give them to the container",
)
DEVICE_NODES = FindingId(
    "gds-device-nodes-absent",
    "nvidia-fs is loaded, but /dev/nvidia-fs0 is not here.",
    "Containers do not get it by themselves; cuFile falls back, and some releases close stdin in passing.",
    "pass /dev/nvidia-fs* to the container (GPU operator with gds.enabled, or --device)",
)

IDS: Final = tuple(value for value in list(globals().values()) if isinstance(value, FindingId))
