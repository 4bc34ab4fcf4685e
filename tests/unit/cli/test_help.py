import subprocess
import sys


def test_help_loads_what_lists_the_verbs_and_nothing_that_does_them():
    """Every completion, typo and `stoker --help` pays for it; rich's progress bars alone took 30 ms of 120."""
    script = (
        "import sys\n"
        "from stoker.cli.main import run\n"
        "code = run(['--help'])\n"
        "print('modules:', *sys.modules)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    said, _, modules = done.stdout.partition("modules: ")
    loaded = set(modules.split())
    assert "verify" in said
    assert "stoker.cli.verify" in loaded
    rooms = {name.split(".")[1] for name in loaded if name.startswith("stoker.")}
    assert rooms & {"dataset", "store", "tier", "feed", "run", "doctor", "checkpoint", "meter", "demo"} == set()
    assert loaded & {"rich.progress", "rich.console", "numpy", "pyarrow", "obstore", "torch"} == set()
