"""What another process may ask of the server under `/-/`: no bucket has such a name. Not recorded, meets no fault.

`GET /-/requests` the records, one JSON object a line; `DELETE /-/requests` forgets them; `PUT /-/script` plays
another script.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import ClassVar

from stoker.errors import ConfigError
from stoker.testing.fault_server.records import Journal
from stoker.testing.fault_server.reply import Reply, head_of
from stoker.testing.fault_server.script import Script
from stoker.testing.fault_server.script_json import script_from_json
from stoker.testing.fault_server.wire import Request


class Control:
    """Answers such requests. `play`: what begins another script."""

    BUCKET: ClassVar[str] = "-"

    def __init__(self, journal: Journal, play: Callable[[Script], None]) -> None:
        self._journal = journal
        self._play = play

    def answer(self, request: Request) -> bytes:
        """The whole answer, as it goes over the wire."""
        asked = (request.method, request.key)
        if asked == ("GET", "requests"):
            lines = [json.dumps(asdict(record)) + "\n" for record in self._journal.records()]
            return _text(200, "".join(lines))
        if asked == ("DELETE", "requests"):
            self._journal.clear()
            return _text(204, "")
        if asked == ("PUT", "script"):
            try:
                self._play(script_from_json(json.loads(bytes(request.body))))
            except (ConfigError, ValueError) as error:
                return _text(400, f"{error}\n")
            return _text(204, "")
        return _text(404, "known are GET and DELETE /-/requests, PUT /-/script\n")


def _text(status: int, text: str) -> bytes:
    body = text.encode()
    return head_of(Reply(status, (("Content-Type", "text/plain; charset=utf-8"),), memoryview(body))) + body
