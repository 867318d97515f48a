#!/usr/bin/env bash
# The first call on a GPU machine, rehearsed without a GPU: profiling/rehearse.py, which `--help` explains.
#
#     profiling/rehearse.sh OUTDIR
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/rehearse.py" "$@"
