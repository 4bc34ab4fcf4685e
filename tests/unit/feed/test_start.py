"""A feeder starts from wherever a trainer may have been started."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.dataset.write import DatasetWriter
from stoker.store.local import LocalStore

# No main guard; a function of the main module; the working directory is not where stoker is.
SCRIPT = """
import os, sys
import stoker

def number(sample):
    return {"n": int(bytes(sample["bin"]))}

os.chdir("/")
sys.path.insert(0, "/no/such/place")
with stoker.open(nvme=NVME) as run:
    data = run.loader(stoker.Dataset(DATA).map(number), global_batch_size=4, shuffle=False)
    print(sum(int(batch["n"].sum()) for batch in data), data.stats().feeder)
"""


@pytest.fixture
def script(tmp_path):
    with DatasetWriter(LocalStore(tmp_path / "data", create=True)) as writer:
        for i in range(12):
            writer.write(f"s{i:02d}", {"bin": b"%d" % i})
    return f"DATA, NVME = {str(tmp_path / 'data')!r}, {str(tmp_path / 'nvme')!r}\n{SCRIPT}"


def output(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
    assert done.stderr == ""
    return done.stdout


def test_from_a_script_without_a_main_guard(script, tmp_path):
    (tmp_path / "train.py").write_text(script)
    assert output([sys.executable, tmp_path / "train.py"]) == "66 child\n"


def test_from_a_command_line(script):
    assert output([sys.executable, "-c", script]) == "66 child\n"


def test_from_stdin(script):
    assert output([sys.executable, "-"], input=script) == "66 child\n"


def test_from_a_module(script, tmp_path):
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").touch()
    (tmp_path / "training" / "train.py").write_text(script)
    assert output([sys.executable, "-m", "training.train"], cwd=tmp_path) == "66 child\n"


def test_from_a_thread(script):
    wrapped = (
        f"import threading\nthread = threading.Thread(target=exec, args=({script!r}, {{'__name__': '__main__'}}))\n"
    )
    assert output([sys.executable, "-c", f"{wrapped}thread.start()\nthread.join()"]) == "66 child\n"


def test_as_the_first_process_of_a_container(script):
    unshare = shutil.which("unshare")
    command = [unshare or "", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if unshare is None or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    assert output([*command, sys.executable, "-c", f"{script}\nassert os.getpid() == 1"]) == "66 child\n"


def test_a_trainer_that_closes_nothing_ends_at_once_and_says_nothing(script):
    unclosed = script.split("with stoker.open")[0] + (
        "run = stoker.open(nvme=NVME)\n"
        "data = run.loader(DATA, global_batch_size=4)\n"
        "batch = next(iter(data))\n"
        "print(batch.step)\n"
    )
    begin = time.monotonic()
    assert output([sys.executable, "-W", "error", "-c", unclosed]) == "0\n"
    assert time.monotonic() - begin < 20


def test_from_a_program_that_finds_its_packages_by_hand(script, tmp_path):
    """An interpreter that finds none by itself: what the feeder needs lies where sys.path was made to say."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    places = [path for path in sys.path if path]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    text = f"import sys\nsys.path += {places!r}\n{script}"
    assert output([tmp_path / "empty" / "bin" / "python", "-c", text], env=environ) == "66 child\n"


@pytest.mark.parametrize("told", [["-E"], ["-I", "-O"], ["-s", "-S", "-B", "-Xutf8"]])
def test_an_interpreter_that_was_told_where_not_to_look_tells_the_feeder_and_its_workers(script, told):
    """Also where stoker then lies on no path that they would search by themselves."""
    names = ("ignore_environment", "no_user_site", "no_site", "dont_write_bytecode", "optimize", "utf8_mode")
    text = (
        f"import sys\nsys.path[:0] = {[path for path in sys.path if path]!r}\n"
        f"flags = repr([getattr(sys.flags, name) for name in {names}])\n"
        f"{script.split('def number')[0]}"
        "def told(sample):\n"
        f"    return {{'flags': repr([getattr(sys.flags, name) for name in {names}])}}\n"
        "with stoker.open(nvme=NVME) as run:\n"
        "    data = run.loader(stoker.Dataset(DATA).map(told), global_batch_size=4)\n"
        "    assert next(iter(data))['flags'] == [flags] * 4, flags\n"
        "    print(data.stats().feeder)\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert output([sys.executable, *told, "-c", text], env=environ) == "child\n"


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_file_of_the_user_with_the_name_of_a_module_is_not_taken_for_it(script, tmp_path, workers):
    (tmp_path / "random.py").write_text("raise SystemExit('a file of the user')")
    (tmp_path / "train.py").write_text(script)
    environ = {**os.environ, "STOKER_FEED_MAP_WORKERS": workers}
    assert output([sys.executable, tmp_path / "train.py"], env=environ) == "66 child\n"


def test_without_a_stderr(script):
    closed = f"import os\nos.close(2)\n{script}"
    assert output([sys.executable, "-c", closed]) == "66 child\n"


# What takes milliseconds to load, and is not needed to read a packed data set from local files.
NEVER = {
    *(
        "pyarrow",
        "obstore",
        "torch",
        "asyncio",
        "multiprocessing",
        "argparse",
        "email",
        "importlib.metadata",
        "tomllib",
    ),
    *("numpy.ma", "numpy.random", "stoker.dataset.index", "stoker.dataset.tokens", "stoker.dataset.writer"),
    *("stoker.store.object", "stoker.store.retry", "stoker.checkpoint.save", "stoker.meter.report"),
    *("stoker.io.choose", "stoker.io.direct", "stoker.io.residency", "stoker.tier.holdings", "difflib", "secrets"),
}
# What the trainer needs besides, and a child does not.
NEVER_IN_A_CHILD = {
    *("stoker.config", "stoker.ledger", "stoker.ledger_format", "stoker.dataset.position", "stoker.dataset.select"),
    *("stoker.store.open", "stoker.store.memory", "stoker.io.child", "stoker.feed.child", "subprocess"),
}
# What makes batches, and is not loaded by a trainer whose child does.
NEVER_IN_A_TRAINER = {f"stoker.feed.{name}" for name in ("feeder", "produce", "stages", "workers", "serve")}
# What only maps and images need.
ONLY_FOR_MAPS = {f"stoker.feed.{name}" for name in ("mapper", "map_wire", "workers", "randomness", "pictures")}
# What the start of the child must not wait for.
NEVER_BEFORE_THE_CHILD = {"numpy", "msgspec", "logging", "hashlib", "ctypes", "importlib.util", "stoker.dataset"}

# Hooks every start of an interpreter: children tell what they have loaded when they have sent their first batch.
TELL_WHAT_IS_LOADED = """
import os, sys
if os.environ.get("LOADED_TO") and "stoker.feed" in sys.orig_argv:
    import _thread, socket
    def telling(send):
        def tell(*arguments):  # first: the other side may go on, and end
            name = os.environ["LOADED_TO"]
            with open(f"{name}.{_thread.get_ident()}", "w") as file:
                file.write(" ".join(sys.modules))
            os.replace(file.name, name)
            return send(*arguments)
        return tell
    socket.socket.send, socket.socket.sendmsg = telling(socket.socket.send), telling(socket.socket.sendmsg)
"""


@pytest.fixture
def listing(script, tmp_path):
    """What the trainer has loaded after the first batch, and before the start of the child; and what the child has."""
    (tmp_path / "sitecustomize.py").write_text(TELL_WHAT_IS_LOADED)
    text = script.split("def number")[0] + (
        "from stoker.io.child import subprocess\n"
        "class Popen(subprocess.Popen):\n"
        "    def __init__(self, *arguments, **options):\n"
        "        print(*sys.modules)\n"
        "        super().__init__(*arguments, **options)\n"
        "with stoker.open(nvme=NVME) as run:\n"
        "    subprocess.Popen = Popen\n"
        "    data = run.loader(DATA, global_batch_size=4)\n"
        "    next(iter(data))\n"
        "    print(*sys.modules)\n"
        "    assert data.stats().feeder == 'child'\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    output([sys.executable, "-c", f"import stoker\nstoker.open(nvme={str(tmp_path / 'nvme')!r}).close()"])
    told = tmp_path / "loaded"
    environ = {**os.environ, "PYTHONPATH": path, "LOADED_TO": str(told)}
    before, after = output([sys.executable, "-c", text], env=environ).splitlines()
    return set(before.split()), set(after.split()), set(told.read_text().split()) - {"sitecustomize"}


def test_what_the_first_batch_does_not_need_is_loaded_neither_by_the_trainer_nor_by_the_child(listing):
    before, trainer, child = listing
    assert {"numpy", "stoker.feed.child"} <= trainer
    assert {"numpy", "stoker.feed.serve"} <= child
    assert before & NEVER == set()
    assert trainer & (NEVER | NEVER_IN_A_TRAINER | ONLY_FOR_MAPS) == set()
    assert child & (NEVER | NEVER_IN_A_CHILD | ONLY_FOR_MAPS) == set()


def test_the_child_is_started_before_the_trainer_loads_numpy(listing):
    before, _, _ = listing
    assert {"stoker", "stoker.values", "stoker.feed.start"} <= before
    assert before & NEVER_BEFORE_THE_CHILD == set()


def test_the_few_modules_of_the_start_stay_few(listing):
    """Each costs a third of a millisecond at least, and training waits for all of them."""
    before, _, child = listing
    assert len([name for name in before if name.split(".")[0] == "stoker"]) <= 30
    assert len([name for name in child if name.split(".")[0] == "stoker"]) <= 75


def test_by_itself_it_says_what_it_is():
    done = subprocess.run(
        [sys.executable, "-m", "stoker.feed"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "this module is started by stoker itself" in done.stderr


def test_ctrl_c_ends_the_trainer_alone_and_the_feeder_with_it(script, tmp_path):
    (tmp_path / "train.py").write_text(
        script.split("with stoker.open")[0]
        + """
import time
run = stoker.open(nvme=NVME)
try:
    with run:
        data = run.loader(DATA, global_batch_size=4)
        print(data._feeder._child.pid, flush=True)
        batch = next(iter(data))
        print("ready", flush=True)
        time.sleep(30)
except KeyboardInterrupt:
    print("interrupted", batch.step, data.stats().ready_batches, flush=True)
"""
    )
    # As a terminal does: the signal goes to the whole foreground group.
    trainer = subprocess.Popen(
        [sys.executable, tmp_path / "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    feeder = int(trainer.stdout.readline())
    assert trainer.stdout.readline() == "ready\n"
    os.killpg(trainer.pid, signal.SIGINT)
    out, err = trainer.communicate(timeout=30)
    assert (out, err, trainer.returncode) == ("interrupted 0 0\n", "", 0)
    deadline = time.monotonic() + 5
    while Path(f"/proc/{feeder}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# What a notebook's kernel does: one cell after the other in a main module that no file holds.
CELLS = (
    """
def number(sample):
    return {"n": int(bytes(sample["bin"])) * factor}

def total():
    data = run.loader(stoker.Dataset(DATA).map(number), global_batch_size=4, shuffle=False)
    return f"{sum(int(batch['n'].sum()) for batch in data)} {data.stats().feeder}"
""",
    "factor = 1\n",
    "print(total())\n",
    """
def number(sample):
    return {"n": int(bytes(sample["bin"])) + 1}
""",
    "print(total())\n",
    """
class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, sample):
        return {"n": int(bytes(sample["bin"])) * self.by}

number = Scale(10)
""",
    "print(total())\n",
    "run.close()\n",
)


def test_from_a_notebook_also_when_a_function_is_defined_again(script):
    begin = f"import stoker\n{script.splitlines()[0]}\nrun = stoker.open(nvme=NVME)\n"
    kernel = (
        "import sys, types\n"
        "main = sys.modules['__main__'] = types.ModuleType('__main__')\n"
        f"for number, cell in enumerate({(begin, *CELLS)!r}):\n"
        "    exec(compile(cell, f'<ipython-input-{number}>', 'exec'), vars(main))\n"
    )
    assert output([sys.executable, "-c", kernel]) == "66 child\n78 child\n660 child\n"


def test_from_an_interactive_interpreter(script):
    typed = "".join(f"{cell}\n" for cell in CELLS).replace("\n\n    def __call__", "\n    def __call__")
    typed = typed.replace("}\n\ndef", "}\n\n\ndef")
    begin = (
        f"import sys\nsys.ps1 = sys.ps2 = ''\nimport stoker\n{script.splitlines()[0]}\nrun = stoker.open(nvme=NVME)\n"
    )
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=begin + typed, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "66 child\n78 child\n660 child\n"
    assert "Error" not in done.stderr
