"""What a table of numbers must say about where it was measured."""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any


def facts(versions: dict[str, str], loads: list[float]) -> dict[str, Any]:
    """Versions, kernel, processor, memory, and how busy the machine was with everything, this benchmark included."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    memory_kib = int(Path("/proc/meminfo").read_text().split(None, 2)[1])
    return {
        "date": time.strftime("%Y-%m-%d"),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": f"{len(os.sched_getaffinity(0))} x {fields.get('model name', 'unknown')}",
        "memory": f"{memory_kib / 2**20:.0f} GiB",
        "python": platform.python_version(),
        "versions": dict(sorted(versions.items())),
        "load average": f"{statistics.median(loads):.1f} (median over the run; {max(loads):.1f} at most)",
    }
