"""`import stoker` is cheap: tools, workers and `stoker --help` pay for it each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAVY = {"torch", "pyarrow", "obstore", "typer", "rich", "cloudpickle", "asyncio", "multiprocessing"}
# The room of each is entered when it is used: a data set is opened, a batch asked for, a state saved.
LATER = {"dataset", "doctor", "feed", "checkpoint", "meter", "torch", "cli", "demo", "testing"}
MAX_OWN_MODULES = 32
PUBLIC = {"Dataset", "Layout", "Run", "StokerError", "__version__", "errors", "open", "sample_rng", "writer"}


def modules_after(statement):
    """Names of the modules that a fresh interpreter holds after `statement`, but not before."""
    script = (
        "import sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    # Without the environment's own start-up hooks (coverage, site customisation) the count is ours alone.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COVERAGE"))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_stoker_loads_nothing_heavy():
    loaded = {name.split(".")[0] for name in modules_after("import stoker")}
    assert "stoker" in loaded
    assert loaded & HEAVY == set()


def test_importing_stoker_loads_few_of_its_own_modules_and_no_room_that_is_used_later():
    own = sorted(n for n in modules_after("import stoker") if n.split(".")[0] == "stoker")
    assert len(own) <= MAX_OWN_MODULES, own
    assert {name.split(".")[1] for name in own if "." in name} & LATER == set()


def test_a_heavy_import_would_be_seen():
    assert "asyncio" in modules_after("import stoker, asyncio")


def test_the_public_names_are_these_and_each_is_there():
    import stoker

    assert set(stoker.__all__) == PUBLIC
    assert [name for name in stoker.__all__ if not hasattr(stoker, name)] == []


@pytest.mark.parametrize("module", ["stoker", "stoker.testing"])
def test_a_module_lists_exactly_its_public_names_also_before_they_are_loaded(module):
    script = f"import json, {module}; print(json.dumps([dir({module}), sorted({module}.__all__)]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    listed, public = json.loads(done.stdout)
    assert listed == public


def test_help_teaches_the_first_steps():
    import pydoc

    import stoker

    text = pydoc.plain(pydoc.render_doc(stoker))
    for wanted in ("run.loader(", "run.checkpoint(", "state.restore()", "stoker.writer(", "shuffle=False", "class Run"):
        assert wanted in text
    for name in stoker.__all__:
        assert getattr(stoker, name).__doc__, name


def test_a_name_that_is_not_there_names_those_that_are():
    import stoker

    with pytest.raises(AttributeError, match="it has Dataset, Layout, Run"):
        stoker.Datasets  # noqa: B018


@pytest.mark.parametrize("name", ["mix", "load", "Config", "TorchDataset"])
def test_what_this_version_does_not_have_has_no_door(name):
    import stoker

    with pytest.raises(AttributeError):
        getattr(stoker, name)


def test_only_its_own_room_and_user_code_load_torch(sources):
    rooms = [s.name for s in sources if s.room not in ("torch", "demo", "testing", "__main__")]
    assert "stoker.values" in rooms
    loaded = {name.split(".")[0] for name in modules_after("\n".join(f"import {name}" for name in rooms))}
    assert "torch" not in loaded
