#!/usr/bin/env bash
# Records steps of a recipe's training with Nsight Systems, and prints what they spent their time on.
#
#     profiling/nsys.sh RECIPE [OPTIONS]         # OPTIONS are those of `gtensor train RECIPE`
#
#     profiling/nsys.sh digits --device cuda
#     STEPS=50:5 OUT=runs/ssm profiling/nsys.sh text --arch ssm
#
# STEPS: how many optimizer steps are passed over, and how many are recorded (3:16, which one epoch of
# each recipe has). OUT: the folder of the report (runs/nsys-RECIPE); session.nsys-rep in it is for
# nsys-ui, session.sqlite for `gtensor profile`. PYTHON: the interpreter (python, else python3). One
# epoch is trained, in a temporary folder, unless OPTIONS say otherwise. Runs from a checkout that need
# not be installed. Exit status: that of the training; 1 if nothing was recorded; 64 for wrong usage.
# docs/nsys.md explains what is printed, and names the versions of nsys that work.

set -uo pipefail

if [ $# -lt 1 ] || [[ $1 == -* ]]; then
    sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    [[ ${1:-} =~ ^(-h|--help)$ ]] && exit 0
    exit 64
fi

PYTHON="${PYTHON:-$(command -v python || command -v python3)}"
CHECKOUT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)" || exit 64
WORK="$(mktemp -d)" || exit 64
trap 'rm -rf "$WORK"' EXIT
RECIPE="$1"
shift

export PYTHONPATH="$CHECKOUT${PYTHONPATH:+:$PYTHONPATH}"
"$PYTHON" -m gtensor profile --nsys --steps "${STEPS:-3:16}" --out "${OUT:-runs/nsys-$RECIPE}" -- \
    gtensor train "$RECIPE" --epochs 1 --out "$WORK/run" "$@"
