"""A small S3-compatible server on loopback that is slow, fails, lies and breaks connections, by script.

::

    busy = Rule(Answer(503, "SlowDown"), First(3), operation="GetObject", key="*.tar")
    script = Script(rules=(busy,), latency_s=0.02)
    with FaultServer(script) as server:
        ...  # a client of server.url, or one with server.environ
        assert len(server.requests("GetObject")) == 4

For another process: `python -m stoker.testing.fault_server --port 0 --script FILE`.
"""

from stoker.testing.fault_server.faults import (
    Answer,
    Changed,
    Cut,
    ErrorBody,
    Fault,
    Flip,
    IgnoreCondition,
    IgnoreRange,
    Reset,
    ShortRange,
    Stall,
    Trickle,
    WrongClock,
    WrongETag,
    WrongLength,
    WrongRange,
)
from stoker.testing.fault_server.records import Record
from stoker.testing.fault_server.script import Always, Chance, Every, First, Nth, Rule, Script, When
from stoker.testing.fault_server.script_json import script_from_json, script_to_json
from stoker.testing.fault_server.server import FaultServer

__all__ = [
    "Always",
    "Answer",
    "Chance",
    "Changed",
    "Cut",
    "ErrorBody",
    "Every",
    "Fault",
    "FaultServer",
    "First",
    "Flip",
    "IgnoreCondition",
    "IgnoreRange",
    "Nth",
    "Record",
    "Reset",
    "Rule",
    "Script",
    "ShortRange",
    "Stall",
    "Trickle",
    "When",
    "WrongClock",
    "WrongETag",
    "WrongLength",
    "WrongRange",
    "script_from_json",
    "script_to_json",
]
