"""The client is loaded at its first use, which may be in many threads at once."""

import subprocess
import sys

PACKAGE = {
    "__init__.py": "from . import store\nimport time\ntime.sleep(0.05)\nget = None\n",
    "store.py": "class S3Store: pass\n",
}
SCRIPT = """
import sys, threading
sys.path.insert(0, PLACE)
from stoker.store.object_client import _store_class
seen = []
def use():
    _store_class()
    seen.append(hasattr(sys.modules["obstore"], "get"))
first = threading.Thread(target=use)
first.start()
while "obstore.store" not in sys.modules:
    pass
use()
first.join()
print(seen)
"""


def test_no_thread_gets_a_client_that_another_one_has_half_loaded(tmp_path):
    (tmp_path / "obstore").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "obstore" / name).write_text(text)
    script = f"PLACE = {str(tmp_path)!r}\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[True, True]\n", "")
