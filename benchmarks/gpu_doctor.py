"""What the doctor finds on this machine: the numbers on stdin, with a key `doctor` more. Called by gpu_check.sh.

    python benchmarks/gpu_doctor.py [DIRECTORY] < numbers.json

gds       `stoker doctor gds FILE --probe`: whether reads of a new file of 64 MiB in DIRECTORY go directly to the GPU
storage   `stoker doctor storage DIRECTORY`
why       `stoker doctor --why DIRECTORY --seconds 5`, while nothing trains

DIRECTORY is the temporary one without an argument; name one on the storage that matters. Nothing stays there. Each
answer is the report of the verb, or {"error": ...}: only that makes the exit status 1. What the doctor finds wrong, its
exit codes 1 to 3, is an answer. 85 s at most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FILE_BYTES = 64 << 20
GDS_LIMIT_S, STORAGE_LIMIT_S, WHY_LIMIT_S = 30, 35, 20
FOUND = (0, 1, 2, 3)


def ask(arguments, limit_s):
    """The report of a verb of the doctor."""
    command = [sys.executable, "-m", "stoker", "doctor", *arguments, "--json"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {limit_s} s"}
    if done.returncode not in FOUND:
        return {"error": f"exit status {done.returncode}"}
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"error": f"exit status {done.returncode}, and no JSON: {done.stdout[:200]!r}"}


def look(folder):
    """The three reports about a folder, which is left as it was but for what is removed with it."""
    file = folder / "file"
    with file.open("wb") as out:
        out.write(os.urandom(FILE_BYTES))
        out.flush()
        os.fsync(out.fileno())
    node = ["--nvme", str(folder / "node")]
    return {
        "gds": ask(["gds", str(file), "--probe"], GDS_LIMIT_S),
        "storage": ask(["storage", str(folder), *node], STORAGE_LIMIT_S),
        "why": ask(["--why", str(folder), "--seconds", "5", *node], WHY_LIMIT_S),
    }


def main():
    text = sys.stdin.read()
    numbers = json.loads(text) if text.strip() else {}
    where = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(prefix="gpu-doctor-", dir=where) as scratch:
        numbers["doctor"] = look(Path(scratch))
    print(json.dumps(numbers, indent=2))
    return 1 if any("error" in report for report in numbers["doctor"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
