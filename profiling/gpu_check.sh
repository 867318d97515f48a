#!/usr/bin/env bash
# The checks that need a GPU: profiling/gpu_check.py, which `--help` explains, in the python3 on PATH.
#
#     profiling/gpu_check.sh OUTDIR first     # the first call on a machine: at most 560 s
#     profiling/gpu_check.sh OUTDIR again     # what failed there, with full output
#     profiling/gpu_check.sh OUTDIR rest      # the remaining ladders, the most valuable first
#
# PYTHON names another interpreter.
PYTHON="${PYTHON:-$(command -v python3)}"
if [ -z "$PYTHON" ] || ! command -v "$PYTHON" >/dev/null; then
    echo "gpu_check: no Python (${PYTHON:-python3}) on this machine; let PYTHON name one of 3.11 or newer" >&2
    exit 2
fi
exec "$PYTHON" "$(dirname "${BASH_SOURCE[0]}")/gpu_check.py" "$@"
