"""What a CUDA device makes of stoker's batches: one JSON object on stdout. Called by gpu_check.sh; 2 minutes at most.

    python benchmarks/gpu_copy.py [--seconds 5]

copy      GB/s from the loader's memory to the device: pinned (registered) and pageable, 64 MiB a copy, median of rounds
identical whether every batch on the device has the bytes of the batch on the host, under one sha256
fed       steps of some 10 ms with the data in the page cache: device idle and wall time
starved   the same with 20 ms of latency a read and nothing read ahead: idle must rise, or it is not measured
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import stoker
from stoker.io.memory import Arena
from stoker.store.local import LocalStore
from stoker.torch.pinning import CudaDriver

COPY_BYTES = 64 << 20
SAMPLE_BYTES = 1 << 20
SAMPLES = 256
BATCH = 16


class FarStore(LocalStore):
    """20 ms a read."""

    def read_into(self, key, start, buffer):
        time.sleep(0.02)
        super().read_into(key, start, buffer)

    def read_cached(self, *_):
        return None  # nothing comes without waiting


def make_data(folder):
    rng = np.random.default_rng(7)
    with stoker.writer(folder) as w:
        for i in range(SAMPLES):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, rng.integers(0, 256, SAMPLE_BYTES, np.uint8))
            w.write(f"{i:05d}", {"npy": buffer.getvalue()})


def copy_rates(seconds):
    """GB/s of host-to-device copies out of an arena: as it is, and registered."""
    driver = CudaDriver(torch.device("cuda", torch.cuda.current_device()))
    arena = Arena(4 * COPY_BYTES)
    host = [torch.from_numpy(arena.view(arena.take(COPY_BYTES))) for _ in range(4)]
    for tensor in host:
        tensor.fill_(1)
    there = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")

    def rate():
        rates = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for tensor in host:
                there.copy_(tensor, non_blocking=True)
            torch.cuda.synchronize()
            rates.append(len(host) * COPY_BYTES / (time.perf_counter() - start) / 1e9)
        return {"gb_per_s": round(statistics.median(rates), 2), "rounds": len(rates)}

    pageable = rate()
    start = time.perf_counter()
    driver.register(arena.address, arena.size_bytes)
    register_s = time.perf_counter() - start
    pinned = rate()
    driver.unregister(arena.address)
    arena.close()
    return {
        "pageable": pageable,
        "pinned": pinned,
        "register_s_per_gib": round(register_s / (arena.size_bytes / 2**30), 3),
    }


def digest(run, folder, device):
    done = hashlib.sha256()
    for batch in run.loader(describe(folder), global_batch_size=BATCH, seed=5, epochs=2, device=device):
        value = batch["npy"]
        done.update(value if device is None else value.cpu().numpy())
    return done.hexdigest()


def describe(source):
    return stoker.Dataset(source).decode({"npy": "npy"})


def steps(run, source, **options):
    """Steps of a matrix product each, as training would queue them: what the device idled."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    data = run.loader(describe(source), global_batch_size=BATCH, seed=5, epochs=4, device="cuda", **options)
    delivery = data._handover._delivery
    loop = iter(data)
    next(loop)
    delivery.wait()
    before_ns, start = delivery.idle_ns, time.perf_counter()
    count = 0
    for batch in loop:
        for _ in range(20):
            a = (a @ a).clamp(-1, 1)
        batch["npy"].sum()
        count += 1
        if count % 4 == 0:
            torch.cuda.synchronize()  # a loop that looks at its loss now and then
    delivery.wait()
    wall_s = time.perf_counter() - start
    data.close()
    idle_s = (delivery.idle_ns - before_ns) / 1e9
    return {
        "steps": count,
        "wall_s": round(wall_s, 3),
        "idle_s": round(idle_s, 4),
        "idle_ratio": round(idle_s / wall_s, 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each kind of copy is measured")
    seconds = parser.parse_args().seconds
    if not torch.cuda.is_available():
        print("no CUDA device: nothing can be measured", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as scratch, stoker.open(nvme=Path(scratch) / "nvme") as run:
        folder = Path(scratch) / "data"
        make_data(folder)
        found = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "copy": copy_rates(seconds),
            "identical": len({digest(run, folder, device) for device in (None, "cpu", "cuda")}) == 1,
            "fed": steps(run, folder),
            "starved": steps(run, FarStore(folder), prefetch_bytes=0),
        }
    print(json.dumps(found, indent=2))
    return 0 if found["identical"] and found["starved"]["idle_s"] > found["fed"]["idle_s"] else 1


if __name__ == "__main__":
    sys.exit(main())
