#!/usr/bin/env bash
# A bundle for a GPU machine without network: profiling/gpu_bundle.py, which `--help` explains.
#
#     profiling/gpu_bundle.sh BUNDLE --site DIR
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/gpu_bundle.py" "$@"
