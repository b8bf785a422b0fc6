#!/bin/sh
# Install the CPU build of torch with the given Python. A plain `pip install torch` on Linux takes the
# CUDA build, several gigabytes that an edge never uses. `pip` looks in its configured places first
# (a wheel folder of a lab without a registry, say), then in PyTorch's own CPU index.
set -eu
python=$1
version=2.13.0
if "$python" -c "import sys, importlib.metadata as m; sys.exit(m.version('torch').split('+')[0] != '$version')" 2>/dev/null; then
  exit 0
fi
case $(uname -s) in
Linux)
  "$python" -m pip install --disable-pip-version-check "torch==$version+cpu" 2>/dev/null ||
    "$python" -m pip install --disable-pip-version-check "torch==$version+cpu" --extra-index-url https://download.pytorch.org/whl/cpu
  ;;
*) "$python" -m pip install --disable-pip-version-check "torch==$version" ;; # no CUDA build exists elsewhere
esac
