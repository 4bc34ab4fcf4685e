"""Kill trainings again and again, each with a fresh seed, and say what came of it: `make soak`.

Not part of `make test`: a hundred of each take about an hour on two cores. What fails is shown with the command that
plays it again, and its folder is kept.
"""

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from scenarios import SCENARIOS, make_data, play, uninterrupted

IN_MEMORY = Path("/dev/shm")


def parse():
    parser = argparse.ArgumentParser(prog="make soak SOAK_ARGS=...", description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=100, help="how often each scenario is played (default: 100)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin none after so long")
    parser.add_argument(
        "--seed", type=int, help="the first seed; the others follow it (default: another one each time)"
    )
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="this scenario; may be given again")
    return parser.parse_args()


def tell(text):
    print(text, file=sys.stderr, flush=True)


def soak(options, root):
    """Play scenarios in turn; returns name -> [times played, seconds, seeds that failed]."""
    names = options.only or list(SCENARIOS)
    first = int.from_bytes(os.urandom(4)) if options.seed is None else options.seed
    tell(f"seed {first}; {options.times} times each: {', '.join(names)}")
    found = {name: [0, 0.0, []] for name in names}
    data = make_data(root)
    expected = {
        ranks: uninterrupted(root / f"whole-{ranks}", data, ranks) for ranks in {SCENARIOS[n][1] for n in names}
    }
    end_s = time.monotonic() + 60 * options.minutes
    for seed in range(first, first + options.times):
        for name in names:
            if time.monotonic() > end_s:
                return found
            begin_s = time.monotonic()
            folder = root / f"{name.replace(' ', '-')}-{seed}"
            error = None
            try:
                play(name, seed, folder, data, expected)
                shutil.rmtree(folder)
            except Exception as caught:  # noqa: BLE001  one that goes wrong does not stop the others
                error = caught
                found[name][2].append(seed)
            took_s = time.monotonic() - begin_s
            found[name][0] += 1
            found[name][1] += took_s
            tell(f"{found[name][0]:4}  {name:20} seed {seed:<11} {took_s:6.1f} s  {'FAILED' if error else 'ok'}")
            if error is not None:
                traceback.print_exception(error)
                tell(f"again: make soak SOAK_ARGS='--only \"{name}\" --seed {seed} --times 1'; it lies in {folder}")
    return found


def main():
    options = parse()
    logging.getLogger("stoker").setLevel(logging.ERROR)  # that a data set of tiny shards is slow is known here
    usable = IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK)
    # In memory, since a kill leaves what the kernel has; the name is one that the search for residue knows.
    root = Path(tempfile.mkdtemp(prefix="stoker-test-soak-", dir=IN_MEMORY if usable else None))
    failed = True
    try:
        found = soak(options, root)
        failed = any(seeds for _, _, seeds in found.values())
    finally:
        if not failed:
            shutil.rmtree(root, ignore_errors=True)
    print(f"{'scenario':20}  played  failed  s each")
    for name, (count, seconds, seeds) in found.items():
        print(f"{name:20}  {count:6}  {len(seeds):6}  {seconds / max(count, 1):6.1f}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
