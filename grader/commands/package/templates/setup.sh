#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image. It installs the pinned versions for
# the CPU into source/.venv. An argument names another folder than /autograder.
set -euo pipefail
root=${1:-/autograder}
cd "$root/source"

newest_python() {
  for name in python3.14 python3.13 python3.12 python3.11 python3; do
    if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  return 1
}

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev bubblewrap
# Ubuntu 24.04 has 3.12 by this name. 22.04 has 3.10, and 3.11 beside it.
apt-get install -y --no-install-recommends python3 python3-venv
newest_python >/dev/null || apt-get install -y --no-install-recommends python3.11 python3.11-venv
python=$(newest_python) || {
  echo "setup.sh: no Python 3.11 or newer here: choose the base image Ubuntu 24.04" >&2
  exit 1
}

"$python" -m venv .venv
pip() { .venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check "$@"; }
pip --require-hashes --no-deps -r requirements.lock
torch=$(sed -n 's/^torch==//p' requirements.txt)
pip --no-deps --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch+cpu"
.venv/bin/python -c 'import torch, triton'
.venv/bin/python -m grader --version
