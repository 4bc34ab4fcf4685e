"""User functions on their way to the processes that run them: the only place that knows how they are packed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.errors import ConfigError, brief

if TYPE_CHECKING:
    from stoker.feed.mapper import Mapper


def pack_functions(mappers: Sequence[Mapper]) -> list[bytes]:
    """Functions for another process. They travel by the name they are imported by; nested ones, lambdas and those of
    the main module or a notebook by value, with a copy of what they refer to. Raises ConfigError for one that cannot
    travel, naming it and why.
    """
    return [_pack_function(mapper) for mapper in mappers]


def _pack_function(function: Mapper) -> bytes:
    import cloudpickle  # noqa: PLC0415  only where there is a function

    module = sys.modules.get(getattr(function, "__module__", None) or "")
    try:
        if module is None or _is_found(module.__name__):
            return bytes(cloudpickle.dumps(function))
        cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(function))
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    except Exception as error:  # user code: objects say in any way that they cannot be pickled
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ConfigError(
            f"map function {name!r} cannot travel to the process that makes batches: {brief(error)}",
            hint='let it open what it needs when it is called; or feeder="inline" runs it in this process',
        ) from error


def _is_found(name: str) -> bool:
    """Whether another process would find a module by its name: this one may have it from elsewhere."""
    top = name.partition(".")[0]
    return any(finder.find_spec(top, None) is not None for finder in sys.meta_path)


def unpack_function(packed: bytes) -> Mapper:
    """What `pack_functions` packed. Raises ConfigError if it cannot be loaded here."""
    import cloudpickle  # noqa: PLC0415  only where there is a function

    try:
        function: Mapper = cloudpickle.loads(packed)
    except Exception as error:  # user code: its modules are imported here
        raise ConfigError(
            f"a map function cannot be loaded in the process that makes batches: {brief(error)}",
            hint='its module must be importable there; or feeder="inline" runs it in the trainer',
        ) from error
    return function


def module_paths() -> list[str]:
    """Where modules are found, "" being here, for a process that stands elsewhere."""
    found = []
    for path in sys.path:
        try:
            found.append(os.path.abspath(path))  # noqa: PTH100  "" is here
        except FileNotFoundError:  # this process stands in a folder that is gone
            found.append(path)
    return found
