"""Whatever is done to them in whatever order, a directory, a memory and a plain dictionary hold the same."""

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import AlreadyExists, NotFound
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.values import ByteRange, Key

# No key is a directory of another: that no store promises.
KEYS = st.sampled_from(["a/x", "a/xy", "ab/x", "ab.c", "b/c/d", "b/c/e", "b/cc"])
PREFIXES = st.sampled_from(["", "a", "a/", "a/x", "ab", "b/c", "b/c/", "c", "b/", "/"])
DATA = st.binary(max_size=20)
ACTIONS = st.one_of(
    st.tuples(st.just("write"), KEYS, DATA),
    st.tuples(st.just("first"), KEYS, DATA),
    st.tuples(st.just("commit"), KEYS, DATA),
    st.tuples(st.just("discard"), KEYS, DATA),
    st.tuples(st.just("delete"), KEYS, st.just(b"")),
    st.tuples(st.just("read"), KEYS, st.just(b"")),
    st.tuples(st.just("list"), PREFIXES, st.just(b"")),
)


def do(store, verb, name, data):
    """What a caller learns from one action."""
    try:
        if verb == "list":
            return {(info.key, info.size_bytes) for info in store.list(name)}
        key = Key(name)
        if verb == "delete":
            return store.delete(key)
        if verb == "read":
            info = store.stat(key)
            return info.size_bytes, store.read(key), store.read(key, ByteRange(0, info.size_bytes // 2))
        if verb in ("write", "first"):
            return store.write(key, data, if_absent=verb == "first").size_bytes
        with store.writer(key) as writer:
            writer.write(data[:3])
            writer.write(data[3:])
            return writer.commit().size_bytes if verb == "commit" else None
    except (NotFound, AlreadyExists) as error:
        return type(error)


def model(objects, verb, name, data):
    if verb == "list":
        return {(key, len(value)) for key, value in objects.items() if key.startswith(name)}
    if verb == "delete":
        objects.pop(name, None)
        return None
    if verb == "read":
        found = objects.get(name)
        return NotFound if found is None else (len(found), found, found[: len(found) // 2])
    if verb == "discard":
        return None
    if verb == "first" and name in objects:
        return AlreadyExists
    objects[name] = data
    return len(data)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=25))
def test_all_stores_answer_as_a_dictionary_would(actions):
    objects = {}
    with tempfile.TemporaryDirectory() as root:
        local, memory = LocalStore(root), MemoryStore()
        for verb, name, data in actions:
            expected = model(objects, verb, name, data)
            assert do(local, verb, name, data) == do(memory, verb, name, data) == expected
        local.close()
