"""Python values as JSON and back, with their types: what of a training state is no tensor. Never pickle.

JSON's own types stand for themselves. Anything else is an object with one key that begins with `$`: `$tuple`, `$set`,
`$frozenset`, `$dict` (keys that are not text), `$counter`, `$float` (nan, inf), `$bytes`, `$bytearray`, `$array` and
`$number` (of numpy), `$tensor` (the name of a tensor stored beside). The list is closed: what is not on it is refused,
by name.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from stoker.checkpoint.state import Json
from stoker.errors import CheckpointError, FormatError

StoreTensor: TypeAlias = Callable[[Any, str], "str | None"]
LoadTensor: TypeAlias = Callable[[str], Any]

_SEQUENCES: Final = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_BYTES: Final = {"$bytes": bytes, "$bytearray": bytearray}
_SHOWN: Final = 60
_DEEPEST: Final = 100  # far from where Python and JSON readers give up
_FLOATS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: Any, path: str, tensor: StoreTensor) -> Json:
    """`value` as JSON. `tensor(value, path)` is asked first of everything: a name if it took the value as a tensor.

    Raises CheckpointError naming the path of a value whose type is not on the list, or that lies too deep.
    """
    return _encode(value, path, tensor, 0)


def _encode(value: Any, path: str, tensor: StoreTensor, depth: int) -> Json:
    if depth > _DEEPEST:
        shown = f"{path[:_SHOWN]}..." if len(path) > _SHOWN else path
        raise CheckpointError(
            f"{shown!r} cannot be saved: it lies more than {_DEEPEST} levels deep, or contains itself",
            hint="save flatter values",
        )
    name = tensor(value, path)
    if name is not None:
        return {"$tensor": name}
    kind = type(value)
    if value is None or kind in (bool, int):
        return value
    if kind is str:
        return _text(value, path)
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is list:
        return [_encode(item, f"{path}.{at}", tensor, depth + 1) for at, item in enumerate(value)]
    if kind is tuple:
        return {"$tuple": [_encode(item, f"{path}.{at}", tensor, depth + 1) for at, item in enumerate(value)]}
    if kind in (dict, OrderedDict, Counter):
        return _encode_mapping(value, path, tensor, depth + 1)
    if kind in (set, frozenset):
        return {_SEQUENCES[kind]: sorted((_encode(item, path, tensor, depth + 1) for item in value), key=str)}
    if kind in (bytes, bytearray):
        return {f"${kind.__name__}": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return _encode_array(value)
    raise CheckpointError(
        f"{path!r} cannot be saved: a {kind.__module__}.{kind.__qualname__} is neither a tensor nor a plain value",
        hint="save numbers, texts, bytes, lists, tuples, sets, dicts, numpy arrays or tensors",
    )


def decode(value: Json, tensor: LoadTensor) -> Any:
    """The value that `encode` made JSON of; `tensor(name)` gives the tensors. Raises FormatError for an unknown tag."""
    if isinstance(value, list):
        return [decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    tag, body = next(iter(value.items()), ("", None))
    if not tag.startswith("$"):
        return {key: decode(item, tensor) for key, item in value.items()}
    try:
        return _decode_tagged(tag, body, tensor)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"not a value that was saved: {tag!r}: {error!r}") from error


def tensor_names(value: Json) -> set[str]:
    """The names of the tensors that an encoded value refers to."""
    found: set[str] = set()
    decode(value, found.add)
    return found


def _encode_mapping(value: Any, path: str, tensor: StoreTensor, depth: int) -> Json:
    plain = all(type(key) is str and not key.startswith("$") for key in value)
    if plain and not isinstance(value, Counter):
        return {_text(key, path): _encode(item, f"{path}.{key}", tensor, depth) for key, item in value.items()}
    pairs = [
        [_encode(key, f"{path}, key {key!r},", tensor, depth), _encode(item, f"{path}.{key}", tensor, depth)]
        for key, item in value.items()
    ]
    return {"$counter" if isinstance(value, Counter) else "$dict": pairs}


def _encode_array(value: np.ndarray[Any, Any] | np.generic) -> Json:
    array = np.asarray(value)
    body = {
        "dtype": array.dtype.newbyteorder("<").str,
        "shape": list(array.shape),
        "data": base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode(),
    }
    return {"$array" if isinstance(value, np.ndarray) else "$number": body}


def _decode_tagged(tag: str, body: Json, tensor: LoadTensor) -> Any:
    if tag == "$tensor":
        return tensor(body)
    if tag in ("$tuple", "$set", "$frozenset"):
        kind = next(kind for kind, name in _SEQUENCES.items() if name == tag)
        return kind(decode(item, tensor) for item in body)
    if tag in ("$dict", "$counter"):
        pairs = {decode(key, tensor): decode(item, tensor) for key, item in body}
        return Counter(pairs) if tag == "$counter" else pairs
    if tag == "$float":
        return _FLOATS[body]
    if tag in _BYTES:
        return _BYTES[tag](base64.b64decode(body, validate=True))
    if tag in ("$array", "$number"):
        dtype = np.dtype(body["dtype"])
        if dtype.kind not in "biufc":
            raise FormatError(f"not an array of numbers: {body['dtype']!r}")
        array = np.frombuffer(base64.b64decode(body["data"], validate=True), dtype).reshape(body["shape"])
        array = array.astype(dtype.newbyteorder("="))
        return array if tag == "$array" else array[()]
    raise FormatError(f"not a value that this release knows: {tag!r}")


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{path!r} cannot be saved: {value!r} is not valid Unicode") from error
    return value
