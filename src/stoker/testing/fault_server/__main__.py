"""`python -m stoker.testing.fault_server`: prints one JSON line with port and URL, serves until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from stoker.errors import StokerError
from stoker.testing.fault_server.listing import PAGE_MAX_KEYS
from stoker.testing.fault_server.script import Script
from stoker.testing.fault_server.script_json import script_from_json
from stoker.testing.fault_server.server import FaultServer

_END: Final = (signal.SIGINT, signal.SIGTERM)


def main(arguments: Sequence[str], output: TextIO) -> int:
    """Serve as the arguments say; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m stoker.testing.fault_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--script", type=Path, help="a JSON file: see stoker.testing.fault_server.script_json")
    parser.add_argument("--bucket", default="bucket")
    parser.add_argument("--directory", type=Path, help="its files are the objects of the bucket, read-only")
    parser.add_argument("--page-keys", type=int, default=PAGE_MAX_KEYS, help="the most in a page of a listing")
    asked = parser.parse_args(arguments)
    try:
        script = read_script(asked.script)
        signal.pthread_sigmask(signal.SIG_BLOCK, _END)  # before threads are made, so that only sigwait takes them
        with FaultServer(
            script, bucket=asked.bucket, directory=asked.directory, port=asked.port, page_keys=asked.page_keys
        ) as server:
            json.dump({"port": server.port, "url": server.url, "bucket": server.bucket}, output)
            output.write("\n")
            output.flush()
            signal.sigwait(_END)
    except (StokerError, OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    return 0


def read_script(path: Path | None) -> Script:
    """The script in a JSON file, or the empty one. Raises ConfigError, OSError, ValueError."""
    return Script() if path is None else script_from_json(json.loads(path.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdout))
