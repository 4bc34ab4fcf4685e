"""Every benchmark of the loader in one run, and one table that holds them to their targets: `make bench`.

    python benchmarks/bench.py [--quick] [--json FILE] [--data FOLDER] [--only SCRIPT ...]

Each script runs by itself too. Tables go to stdout, progress to stderr. That the machine is busy is said in the first
line and the last: such numbers are not to be quoted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import script
import targets

SCRIPTS = ("start", "ticker", "memory", "tokens", "jpeg", "loader")  # short ones first: the machine is as it was found
MOST_S = 900.0


def main() -> int:
    parser = script.options(__doc__)
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=SCRIPTS, help="leave the others out")
    args = parser.parse_args()
    load, begin = os.getloadavg()[0], time.monotonic()
    warning = script.warning(load)
    if warning:
        print(warning, flush=True)
    documents: targets.Documents = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            script.say(f"{name} ...")
            begun = time.monotonic()
            path = Path(folder, f"{name}.json")
            command = [sys.executable, str(script.HERE / f"{name}.py"), "--json", str(path), "--data", str(args.data)]
            print(f"\n## {name}\n", flush=True)
            done = subprocess.run([*command, *(["--quick"] if args.quick else [])], check=False, timeout=MOST_S)
            if done.returncode == 0 and path.exists():
                documents[name] = json.loads(path.read_text())
            else:
                failed.append(name)
            script.say(f"{name}: {time.monotonic() - begun:.0f} s")
    found = targets.rows(documents)
    facts = machine.facts(documents.get("loader", {}).get("facts", {}).get("versions", {}), [load])
    facts["load average"] = f"{load:.1f} at the start"
    facts["minutes"] = f"{(time.monotonic() - begin) / 60:.1f}"
    print("\n## Targets\n")
    print(targets.table(found))
    print()
    for name, value in facts.items():
        print(f"- {name}: {value if isinstance(value, str) else ', '.join(f'{a} {b}' for a, b in value.items())}")
    for name in failed:
        print(f"- failed: {name}")
    if args.quick:
        print("- a smoke test: its numbers mean nothing")
    if warning:
        print(warning)
    script.save(args.json, {"facts": facts, "targets": found, **documents})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
