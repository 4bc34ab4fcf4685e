"""The binding of cuFile, against modules that stand in for NVIDIA's: which calls, in which order, what errors mean."""

from __future__ import annotations

import sys
import types

import pytest

from stoker.errors import StoreError, Unavailable, UnsupportedError
from stoker.io.cufile import ReadCounters, open_strict, translate


class CuFileError(Exception):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


class Bindings:
    """cuda.bindings.driver and cuda.bindings.cufile, as far as they are used; keeps the calls."""

    def __init__(self):
        self.calls = []
        self.fails = {}
        self.gpu_status = 0
        self.stats = [types.SimpleNamespace(**dict.fromkeys(self.NAMES, 0)) for _ in range(2)]

    NAMES = ("n_total_reads", "n_p2p_reads", "n_nvfs_reads", "n_posix_reads", "n_unaligned_reads", "read_bytes")

    def _call(self, name, *arguments):
        self.calls.append((name, *arguments))
        if name in self.fails:
            raise CuFileError(self.fails[name])

    def driver(self):
        module = types.ModuleType("cuda.bindings.driver")
        for name, result in (
            ("cuInit", ()),
            ("cuDeviceGet", (7,)),
            ("cuDevicePrimaryCtxRetain", ("context",)),
            ("cuCtxSetCurrent", ()),
            ("cuMemAlloc", (0x1000,)),
            ("cuMemFree", ()),
            ("cuDevicePrimaryCtxRelease", ()),
        ):

            def call(*arguments, name=name, result=result):
                self._call(name, *arguments)
                return (self.gpu_status, *result)

            setattr(module, name, call)
        return module

    def cufile(self):
        module = types.ModuleType("cuda.bindings.cufile")
        module.cuFileError = CuFileError
        module.BoolConfigParameter = types.SimpleNamespace(PROPERTIES_ALLOW_COMPAT_MODE="compat")
        module.FileHandleType = types.SimpleNamespace(OPAQUE_FD="fd")
        module.Descr = lambda: types.SimpleNamespace(handle=types.SimpleNamespace(fd=-1), ptr=0x99)
        module.StatsLevel3 = lambda: types.SimpleNamespace(ptr=0x88, num_gpus=2, per_gpu_stats=self.stats)
        results = {"handle_register": 5, "get_version": 1200, "read": 4096}
        for name in (
            *("set_parameter_bool", "set_stats_level", "driver_open", "stats_start", "buf_register", "handle_register"),
            *("read", "get_stats_l3", "get_version", "handle_deregister", "buf_deregister", "driver_close"),
        ):

            def call(*arguments, name=name):
                self._call(name, *arguments)
                return results.get(name)

            setattr(module, name, call)
        return module


@pytest.fixture
def bindings(monkeypatch):
    made = Bindings()
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", types.ModuleType("cuda.bindings"))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", made.driver())
    monkeypatch.setitem(sys.modules, "cuda.bindings.cufile", made.cufile())
    return made


def names(bindings):
    return [call[0] for call in bindings.calls]


def test_compatible_mode_is_disallowed_and_counting_is_on_before_the_driver_opens(bindings):
    open_strict(4096)
    order = names(bindings)
    assert ("set_parameter_bool", "compat", False) in bindings.calls
    assert ("set_stats_level", 3) in bindings.calls
    assert order.index("cuInit") < order.index("set_parameter_bool") < order.index("driver_open")
    assert order.index("set_stats_level") < order.index("driver_open") < order.index("buf_register")


def test_without_a_gpu_cufile_is_not_even_loaded(bindings, monkeypatch):
    bindings.gpu_status = 100
    monkeypatch.delitem(sys.modules, "cuda.bindings.cufile")
    with pytest.raises(Unavailable, match="cuInit failed: 100"):
        open_strict(4096)


def test_without_the_extra_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(UnsupportedError) as caught:
        open_strict(4096)
    assert "stoker[gds]" in caught.value.hint


def test_a_release_that_cannot_count_is_refused(bindings):
    del sys.modules["cuda.bindings.cufile"].get_stats_l3
    with pytest.raises(UnsupportedError, match="get_stats_l3"):
        open_strict(4096)


def test_a_file_is_registered_read_and_all_is_given_back(bindings):
    library = open_strict(4096)
    handle = library.register(33)
    assert library.read(handle, 4096, 8192) == 4096
    assert ("read", 5, 0x1000, 4096, 8192, 0) in bindings.calls
    assert library.version() == "1.20"
    library.close()
    assert names(bindings)[-5:] == [
        *("handle_deregister", "buf_deregister", "cuMemFree", "driver_close", "cuDevicePrimaryCtxRelease"),
    ]


def test_counters_are_summed_over_gpus_and_differ_by_what_came_after(bindings):
    library = open_strict(4096)
    before = library.counters()
    for gpu, count in zip(bindings.stats, (3, 4), strict=True):
        gpu.n_total_reads, gpu.n_nvfs_reads, gpu.read_bytes = count, count, count * 100
    assert library.counters().since(before) == ReadCounters(total=7, nvfs=7, bytes=700)


@pytest.mark.parametrize(("call", "use"), [("handle_register", "register"), ("read", "read")])
@pytest.mark.parametrize(("code", "kind"), [(5008, UnsupportedError), (5034, UnsupportedError), (5036, StoreError)])
def test_codes_of_the_vendor_become_errors_with_their_meaning(bindings, call, use, code, kind):
    library = open_strict(4096)
    bindings.fails[call] = code
    with pytest.raises(kind, match=str(code)):
        library.register(3) if use == "register" else library.read(5, 4096, 0)


def test_a_driver_that_does_not_open_is_an_error(bindings):
    bindings.fails["driver_open"] = 5033
    with pytest.raises(StoreError, match=r"nvidia-fs could not be set up \(5033\)"):
        open_strict(4096)


def test_an_error_without_a_code_keeps_its_text():
    assert "cannot open: no such symbol" in translate(RuntimeError("No such symbol"), "cannot open").what
