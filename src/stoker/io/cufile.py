"""cuFile: reads from a file into memory of a GPU, strictly, and counted. NVIDIA's library is loaded at first use.

Strictly: compatible mode is disallowed before the driver is opened, so that a file which cannot go directly is refused
instead of copied. Counted: the library counts reads by the way they took (cuFileGetStatsL3, GDS 1.15), in this process
alone. What still goes through the CPU in spite of that (`fs.*.posix_gds_min_kb`) shows in those counts.

cuFileDriverOpen of some releases spins for ever where there is no driver: call `open` in a child with a time limit, and
only after a GPU was seen. Needs the extra `gds` (cuda-bindings 13, nvidia-cufile).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from stoker.errors import StokerError, StoreError, Unavailable, UnsupportedError

STATS_LEVEL: Final = 3  # counters of each GPU
GPUS_MAX: Final = 16
GDS_BLOCK: Final = 4096  # what is not a multiple goes through a buffer on the GPU

Requested: TypeAlias = Literal["gds"]
Route: TypeAlias = Literal["gds", "compat", "refused", "unknown"]

_NAMES: Final = {
    5001: "the driver is not initialised",
    5008: "GPUDirect is not possible for this file",
    5013: "not memory of a GPU",
    5018: "not a regular file",
    5020: "the file is not open for direct I/O",
    5025: "not permitted",
    5030: "an error inside cuFile: often no udev data, or an overlay",
    5033: "nvidia-fs could not be set up",
    5034: "disabled by the configuration",
    5036: "the memory of the GPU could not be pinned",
}
_REFUSED: Final = frozenset({5008, 5018, 5020, 5030, 5034})


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """What was asked for, what was done, and why: as `EngineChoice`, for reads into memory of a GPU."""

    requested: Requested
    effective: Route
    reason: str


@dataclass(frozen=True, slots=True)
class ReadCounters:
    """Reads that cuFile counted in this process, all GPUs together; of these by the way they took, and their bytes."""

    total: int = 0
    p2pdma: int = 0
    nvfs: int = 0
    posix: int = 0
    unaligned: int = 0
    bytes: int = 0

    def since(self, before: ReadCounters) -> ReadCounters:
        """What came after `before`."""
        return ReadCounters(
            self.total - before.total,
            self.p2pdma - before.p2pdma,
            self.nvfs - before.nvfs,
            self.posix - before.posix,
            self.unaligned - before.unaligned,
            self.bytes - before.bytes,
        )


class CuFile(Protocol):
    """One opened library with memory of one GPU. Every method raises StokerError for what the vendor's code says."""

    def version(self) -> str:
        """The library's release, as "1.20"."""
        ...

    def register(self, fd: int) -> int:
        """Admit an open file (O_DIRECT); the handle. Raises UnsupportedError if it cannot go directly."""
        ...

    def read(self, handle: int, size_bytes: int, offset: int) -> int:
        """Read into the memory from its beginning; returns the bytes, fewer at the end of the file."""
        ...

    def counters(self) -> ReadCounters:
        """What was counted so far."""
        ...

    def close(self) -> None:
        """Give memory and library back."""
        ...


def open_strict(memory_bytes: int) -> CuFile:
    """Open NVIDIA's library without compatible mode, with `memory_bytes` on the first GPU.

    Raises UnsupportedError (not installed, no GPU, too old), StoreError. May never return: see the top of this module.
    """
    return _Nvidia(memory_bytes)


class _Nvidia:
    def __init__(self, memory_bytes: int) -> None:
        self._driver = _load("cuda.bindings.driver")
        self._device = self._first_gpu()  # first: without a GPU the next lines would not come back
        self._cufile = _load("cuda.bindings.cufile")
        for name in ("set_stats_level", "get_stats_l3", "set_parameter_bool"):
            if not hasattr(self._cufile, name):
                raise UnsupportedError(f"cuFile is too old to count reads: no {name}", hint="GDS 1.15 or newer")
        # RuntimeError: the library or a function of it is not there.
        self._errors: tuple[type[Exception], ...] = (self._cufile.cuFileError, RuntimeError, OSError)
        try:
            strict = self._cufile.BoolConfigParameter.PROPERTIES_ALLOW_COMPAT_MODE
            self._cufile.set_parameter_bool(strict, False)
            self._cufile.set_stats_level(STATS_LEVEL)
            self._cufile.driver_open()
            self._cufile.stats_start()
        except self._errors as error:
            raise translate(error, "cannot open cuFile") from error
        self._memory = int(self._cuda("cuMemAlloc", memory_bytes))
        self._handles: list[int] = []
        try:
            self._cufile.buf_register(self._memory, memory_bytes, 0)
        except self._errors as error:
            raise translate(error, "cannot register memory of the GPU") from error

    def version(self) -> str:
        number = int(self._cufile.get_version())
        return f"{number // 1000}.{number % 1000 // 10}"

    def register(self, fd: int) -> int:
        descriptor = self._cufile.Descr()
        descriptor.type = self._cufile.FileHandleType.OPAQUE_FD
        descriptor.handle.fd = fd
        descriptor.fs_ops = 0
        try:
            handle = int(self._cufile.handle_register(descriptor.ptr))
        except self._errors as error:
            raise translate(error, "cuFile does not admit the file") from error
        self._handles.append(handle)
        return handle

    def read(self, handle: int, size_bytes: int, offset: int) -> int:
        try:
            return int(self._cufile.read(handle, self._memory, size_bytes, offset, 0))
        except self._errors as error:
            raise translate(error, f"cuFile cannot read {size_bytes:,} bytes at {offset:,}") from error

    def counters(self) -> ReadCounters:
        stats = self._cufile.StatsLevel3()
        try:
            self._cufile.get_stats_l3(stats.ptr)
        except self._errors as error:
            raise translate(error, "cuFile does not tell what it counted") from error
        gpus = [stats.per_gpu_stats[i] for i in range(min(int(stats.num_gpus), GPUS_MAX))]
        names = ("n_total_reads", "n_p2p_reads", "n_nvfs_reads", "n_posix_reads", "n_unaligned_reads", "read_bytes")
        return ReadCounters(*(sum(int(getattr(gpu, name)) for gpu in gpus) for name in names))

    def close(self) -> None:
        for handle in self._handles:
            self._cufile.handle_deregister(handle)
        self._cufile.buf_deregister(self._memory)
        self._cuda("cuMemFree", self._memory)
        self._cufile.driver_close()
        self._cuda("cuDevicePrimaryCtxRelease", self._device)

    def _first_gpu(self) -> Any:
        self._cuda("cuInit", 0)
        device = self._cuda("cuDeviceGet", 0)
        self._cuda("cuCtxSetCurrent", self._cuda("cuDevicePrimaryCtxRetain", device))
        return device

    def _cuda(self, name: str, *arguments: Any) -> Any:
        """A call of the CUDA driver; its one result, if it has one."""
        try:
            status, *results = getattr(self._driver, name)(*arguments)
        except RuntimeError as error:
            raise translate(error, "the CUDA driver cannot be used") from error
        if int(status) != 0:
            raise Unavailable(f"{name} failed: {status}", hint="see nvidia-smi; is a GPU visible in this container?")
        return results[0] if results else None


def translate(error: Exception, doing: str) -> StokerError:
    """What an exception of the bindings means: the one place where cuFile's codes are given a meaning."""
    code = getattr(error, "status", None)
    if isinstance(code, int):
        what = f"{doing}: {_NAMES.get(code, str(error).lower())} ({code})"
        kind: type[StokerError] = UnsupportedError if code in _REFUSED else StoreError
        return kind(what, hint="see cufile.log: stoker doctor explain cufile-log FILE")
    return StoreError(f"{doing}: {str(error).lower() or type(error).__name__}")


def _load(name: str) -> Any:
    """A module of cuda-bindings. Raises UnsupportedError."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{name} cannot be loaded: {str(error).lower()}", hint="pip install 'stoker[gds]'"
        ) from error
