#!/usr/bin/env bash
# Start real servers on loopback, run the tests against them, stop them again: `make test-lab`.
# STOKER_LAB_DIR is a folder with s3-light.sh and s3-weak.sh, each of which knows start, env and stop, takes a folder for
# its data, and prints `export NAME=value` lines.
set -euo pipefail
lab=${STOKER_LAB_DIR:-../shared/lab}
if [ ! -x "$lab/s3-light.sh" ]; then
  echo "no lab at $lab: set STOKER_LAB_DIR to a folder with s3-light.sh and s3-weak.sh" >&2
  exit 2
fi
work=$(mktemp -d)
finish() {
  "$lab/s3-light.sh" stop "$work/light" >/dev/null 2>&1 || true
  "$lab/s3-weak.sh" stop "$work/weak" >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT
weak=$("$lab/s3-weak.sh" start "$work/weak")
light=$("$lab/s3-light.sh" start "$work/light")
STOKER_LAB_S3_WEAK=$(eval "$weak" && echo "$AWS_ENDPOINT_URL")
eval "$light"
export STOKER_LAB_S3_WEAK STOKER_LAB_S3="s3://$S3_BUCKET"
.venv/bin/python -m pytest tests/lab "$@"
