"""Measurements kept on the node: one file a mount, the newest counts. See `storage` for what is in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stoker.doctor.node import LiveNode, Node
from stoker.doctor.storage import VERSION
from stoker.io.atomic import write_file
from stoker.io.os_errors import translating


def keep(directory: Path, measurement: Mapping[str, Any]) -> Path:
    """Keep a measurement in `directory`, in place of the last of the same mount; returns the file.

    Raises:
        AccessDenied, CapacityError, StoreError: the directory cannot be written.
    """
    path = kept_path(directory, str(measurement["mount"]))
    with translating("cannot keep the measurement", path):
        write_file(path, (json.dumps(measurement, indent=1, sort_keys=True) + "\n").encode())
    return path


def kept_path(directory: Path, mount: str) -> Path:
    """The file in `directory` for what is measured of a mount point."""
    return directory / f"storage-{hashlib.sha256(mount.encode()).hexdigest()[:16]}.json"


def kept_measurements(directory: Path, node: Node | None = None) -> list[dict[str, Any]]:
    """The measurements kept in `directory`, as `node` shows it (None: this machine).

    Files that are none, or of another version, are passed over.
    """
    node = node or LiveNode()
    names = node.listing(str(directory.absolute()))
    found = []
    for name in names if isinstance(names, tuple) else ():
        text = node.read(str(directory.absolute() / name)) if fnmatchcase(name, "storage-*.json") else None
        try:
            value = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value.get("version") == VERSION and isinstance(value.get("mount"), str):
            found.append(value)
    return found


def kept_ceilings(directory: Path) -> dict[str, float]:
    """Mount point -> bytes/s that were read there in order, past the page cache: others are no ceiling."""
    found = {}
    for measurement in kept_measurements(directory):
        rate, engine = measurement.get("sequential_read_bytes_per_s"), measurement.get("read_engine")
        is_direct = isinstance(engine, dict) and engine.get("effective") == "direct"
        if is_direct and isinstance(rate, int | float) and rate > 0:
            found[str(measurement["mount"])] = float(rate)
    return found
