#!/usr/bin/env bash
# Checks stoker on a machine with a CUDA device, in less than 8 minutes: the tests marked gpu, then numbers and reports as JSON.
#
#   bash benchmarks/gpu_check.sh [OUT.json]     PYTHON=/path/to/python chooses the interpreter (default: python3),
#                                               GDS_DIR=DIR the storage that the doctor looks at (default: $TMPDIR)
#
# Needs a Python 3.11 or newer with PyTorch built for CUDA (2.6 or newer), numpy, pyarrow, obstore, crc32c, xxhash,
# msgspec, typer, rich, pytest and pytest-timeout; stoker itself is taken from src/ beside this script.
# Exit status: 0 all is well; 1 a test failed or a number is wrong; 3 there is no CUDA device; 4 a library is missing.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
out=${1:-}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

missing=$("$python" - <<'PY'
import importlib.util, sys
names = "torch numpy pyarrow obstore crc32c xxhash msgspec typer rich pytest pytest_timeout".split()
print(" ".join(n for n in names if importlib.util.find_spec(n) is None))
sys.exit(sys.version_info < (3, 11))
PY
) || { echo "gpu_check: $python is not Python 3.11 or newer: set PYTHON" >&2; exit 4; }
if [ -n "$missing" ]; then
  echo "gpu_check: $python lacks: $missing" >&2
  exit 4
fi

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "gpu_check: no CUDA device: PyTorch $("$python" -c 'import torch; print(torch.__version__)') sees none;" \
    "nothing was checked" >&2
  exit 3
fi
"$python" -c 'import torch; print("gpu_check:", torch.cuda.get_device_name(), "torch", torch.__version__)' >&2

status=0
timeout 255 "$python" -m pytest -m gpu tests/gpu -q -p no:cacheprovider >&2 || status=1
numbers=$(timeout 130 "$python" benchmarks/gpu_copy.py) || status=1
# What the doctor finds wrong is an answer and no failure; only a verb that gives none is.
all=$(printf '%s' "$numbers" | "$python" benchmarks/gpu_doctor.py ${GDS_DIR:+"$GDS_DIR"}) || status=1
numbers=${all:-$numbers}
printf '%s\n' "$numbers"
if [ -n "$out" ]; then printf '%s\n' "$numbers" >"$out"; fi
if [ $status = 0 ]; then echo "gpu_check: all is well" >&2; else echo "gpu_check: failed, see above" >&2; fi
exit $status
