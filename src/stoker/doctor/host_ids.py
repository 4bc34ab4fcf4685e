"""Ids of findings about the host: CPU, memory, limits."""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId

ENVIRONMENT = FindingId(
    "host-environment",
    "Where the doctor runs: user, container, architecture, and what is therefore hidden.",
    "In a container it sees the container's mounts, limits and network, not the node's.",
    "nothing to do; for the node itself run it on the node",
)
PRESSURE_IO = FindingId(
    "pressure-io",
    "Tasks wait for block I/O (PSI; full for 20% of the time and more is a warning).",
    "Reads or writes hold up the work: throughput or metadata, not CPU. Waits for network file systems may not count.",
    "find the device or file system that is busy: stoker doctor --why",
)
PRESSURE_CPU = FindingId(
    "pressure-cpu",
    "Tasks wait for a CPU (PSI; some for 40% of the time and more is a warning).",
    "Decoding, copying for compatible mode, and training compete. For the whole system, full is always 0.",
    "give the job more CPUs, fewer workers or cheaper decoding, and look whether GPUDirect fell back",
)
PRESSURE_MEMORY = FindingId(
    "pressure-memory",
    "Tasks wait for memory (PSI).",
    "The page cache is dropped as soon as it is filled, or the job swaps.",
    "raise the memory limit or lower prefetch, workers and shared memory",
)
PRESSURE_LOW = FindingId(
    "pressure-low",
    "Tasks wait for neither CPU, memory nor block I/O.",
    "It is no proof of fast network storage: its waits need not count.",
    "nothing to do",
)
THROTTLED = FindingId(
    "cgroup-cpu-throttled",
    "The CPU limit of the cgroup stopped the job (10% of periods and more is a warning).",
    "Readers and decoders stand still whatever storage gives: the GPUs starve on CPU.",
    "raise or remove the CPU limit of the pod or slice",
)
MEMORY_LIMIT = FindingId(
    "cgroup-memory-limit",
    "The memory limit of the cgroup was reached.",
    "The page cache and shared memory count in it: files that were read are dropped and read again.",
    "raise the memory limit, or read past the page cache",
)
OOM = FindingId(
    "cgroup-oom-kill",
    "The kernel killed processes of this cgroup for memory.",
    "Workers vanish; a loader then hangs or breaks.",
    "raise the memory limit or lower prefetch, workers and shared memory",
)
SHMEM = FindingId(
    "cgroup-shmem-share",
    "Shared memory takes much of the memory limit.",
    "What lies in /dev/shm counts in the limit, so arenas and worker queues can end the job.",
    "count shared memory into the limit: limit >= memory of processes + size of /dev/shm",
)
CGROUP_FINE = FindingId(
    "cgroup-limits",
    "The limits of the cgroup, as far as seen, were not in the way.",
    "CPU and memory limits are not what starves the GPUs.",
    "nothing to do",
)
CPU_BUSY = FindingId(
    "cpu-busy",
    "How busy the CPUs were between two samples, and in what.",
    "Much system time with busy CPUs is copying: staging for GPUs, compatible mode, page cache.",
    "look whether GPUDirect fell back, pin staging threads, read past the page cache",
)
CPUS_FEW = FindingId(
    "cpus-per-gpu-few",
    "There are fewer than 4 CPUs for each GPU.",
    "Reading, decoding and copying for a GPU takes several cores.",
    "ask for 8 CPUs or more a GPU",
)
LIMIT_LOW = FindingId(
    "host-limit-low",
    "A limit of the process is low: locked memory with RDMA or GPUs, or open files.",
    "Registration of buffers fails, or opening of files.",
    "raise it: ulimit -l unlimited, ulimit -n 65536, or LimitMEMLOCK= of the service",
)
SAMPLES_DIFFER = FindingId(
    "host-counters-unusable",
    "Counters of two samples do not belong together, or have no known interval.",
    "No rate can be told.",
    "give two samples of one boot in their order, and the seconds between them",
)
IDS: Final = tuple(value for value in list(globals().values()) if isinstance(value, FindingId))
