"""Python reads this as it starts, where this folder is on its path: in a feeder, reads of directories become slow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if "BENCHMARK_LATENCY_S" in os.environ and "stoker.feed" in sys.orig_argv:
    sys.path.append(str(Path(__file__).parents[1]))
    import slow

    slow.make_stoker_late()
