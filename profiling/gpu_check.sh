#!/usr/bin/env bash
# Everything that wants a GPU, in three calls of less than nine minutes each.
#
#     profiling/gpu_check.sh OUTDIR checks      # kernels, tests, sanitizers, training
#     profiling/gpu_check.sh OUTDIR memory      # ladders: in-place norms, arena, allocators
#     profiling/gpu_check.sh OUTDIR ladders     # ladders: ops, engine, checkpoints
#
# Without a second word all, one after the other.
# Runs from a checkout that need not be installed, without network, and only reads the card's settings.
# PYTHON names the interpreter (default: python, else python3). Writes at most 8 files to OUTDIR, each
# under 16 MiB: environment.txt, kernels.log, gpu_tests.log, sanitizer.log, training.log, ladders.log,
# ladders.json, summary.txt. Exit status: 0; 1 if a step failed or ran out of its time; 2 without a
# GPU; 64 for wrong usage. A step whose needs are missing is skipped, and the summary says why.

set -uo pipefail

readonly PROBE=10               # seconds to find out whether there is a GPU
readonly GRACE=2                # seconds from the polite signal to the hard one
readonly LOG_BYTES=8388608      # a longer log keeps its last so many bytes

PYTHON="${PYTHON:-$(command -v python || command -v python3)}"
CHECKOUT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)" || exit 64

devices() {
    timeout -k "$GRACE" "$PROBE" "$PYTHON" - 2>/dev/null <<'END'
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
print(0 if failed else count.value)
END
}

found="$(devices)"
if [ "${found:-0}" -eq 0 ]; then
    echo "gpu_check: no CUDA device on this machine; nothing was run" >&2
    exit 2
fi
PART="${2:-all}"
if [ $# -lt 1 ] || [ $# -gt 2 ] || [[ ! $PART =~ ^(all|checks|memory|ladders)$ ]]; then
    echo "usage: $0 OUTDIR [checks|memory|ladders]" >&2
    exit 64
fi
mkdir -p "$1" || exit 64
OUT="$(cd "$1" && pwd)" || exit 64
WORK="$(mktemp -d)" || exit 64
trap 'rm -rf "$WORK"' EXIT
cd "$CHECKOUT" || exit 64

export PYTHONPATH="$CHECKOUT${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export HYPOTHESIS_STORAGE_DIRECTORY="$WORK/hypothesis" MPLBACKEND=Agg MPLCONFIGDIR="$WORK/matplotlib"
# The steps share what they compile: the first one, in several processes, pays for most of it.
export CUPY_CACHE_DIR="$WORK/cupy"

summary=()
failures=0

# What of the needs is missing, one "kind:name" each; prints nothing if all are there.
missing() {
    local need name
    for need in $1; do
        name="${need#*:}"
        case "$need" in
            file:*) [ -e "$name" ] || printf '%s ' "$name" ;;
            command:*) command -v "$name" >/dev/null || printf '%s ' "$name" ;;
            module:*) "$PYTHON" -c "import importlib.util as u, sys; sys.exit(not u.find_spec('$name'))" \
                2>/dev/null || printf '%s ' "$name" ;;
        esac
    done
}

# step NAME SECONDS LOG NEEDS COMMAND...: run it within its time, append what it says to the log.
step() {
    local name="$1" seconds="$2" log="$OUT/$3" needs="$4" absent code status start=$SECONDS
    shift 4
    absent="$(missing "$needs")"
    if [ -n "$absent" ]; then
        status="skipped: no ${absent% }"
        echo "== $name: $status" | tee -a "$log"
    else
        echo "== $name, at most $seconds s"
        printf '== %s: %.300s\n' "$name" "${*//"$WORK"/TMP}" >>"$log"
        timeout -k "$GRACE" "$seconds" "$@" >>"$log" 2>&1
        code=$?
        case $code in
            0) status="ok" ;;
            124 | 137) status="FAILED: over its $seconds s" ;;
            *) status="FAILED: exit status $code" ;;
        esac
        [ $code -eq 0 ] || { failures=$((failures + 1)); tail -n 15 "$log"; }
        if [ "$(stat -c %s "$log")" -gt "$LOG_BYTES" ]; then
            tail -c "$LOG_BYTES" "$log" >"$WORK/tail" && mv "$WORK/tail" "$log"
        fi
    fi
    summary+=("$(printf '%-16s %-44s %5d' "$name" "$status" $((SECONDS - start)))")
}

rm -f "$OUT"/{environment.txt,kernels.log,gpu_tests.log,sanitizer.log,training.log} \
    "$OUT"/{ladders.log,ladders.json,summary.txt}

# Files with tests marked gpu: the others may want packages that a GPU machine lacks.
mapfile -t gpu_files < <(grep -rlE --include='test_*.py' 'mark\.(gpu|multi_gpu)' tests)
# Reads only: nothing here changes a setting of the card.
read -r -d '' environment <<'END'
nvidia-smi --format=csv --query-gpu=name,driver_version,memory.total,memory.used,compute_cap,\
clocks.sm,clocks.max.sm,clocks.mem,power.limit,mig.mode.current,ecc.mode.current
for tool in nvcc compute-sanitizer nsys; do
    echo "$tool: $("$tool" --version 2>/dev/null | grep -iE 'release|version' | tail -n 1)"
done
"$1" - <<'INNER'
import importlib.metadata as metadata
import sys
print("python", sys.version.split()[0])
for name in ("numpy", "cupy-cuda12x", "cupy-cuda13x", "ml_dtypes", "nvtx", "torch", "pytest", "hypothesis",
             "scikit-learn", "rich", "matplotlib", "safetensors", "cuda-bindings", "threadpoolctl",
             "nvidia-nccl-cu12", "nvidia-nccl-cu13", "mpi4py", "mpich"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "missing")
INNER
"$1" -m gtensor info
END

touching=("$PYTHON" profiling/touch_kernels.py)
checking=(compute-sanitizer --error-exitcode 9 --print-limit 20)
reductions=softmax,log_softmax,softmax_grad,log_softmax_grad,layer_norm,rms_norm,group_norm,batch_norm,inplace_abn,cross_entropy

step environment 15 environment.txt "" bash -c "$environment" environment "$PYTHON"
if [[ $PART =~ ^(all|checks)$ ]]; then
    step kernels 90 kernels.log module:cupy "${touching[@]}" --processes 8
    step gpu_tests 190 gpu_tests.log module:cupy\ module:pytest\ module:torch\ module:hypothesis \
        "$PYTHON" -m pytest -m gpu -p no:cacheprovider --continue-on-collection-errors -ra --tb=short \
        --maxfail=200 "${gpu_files[@]}"
    step memcheck 80 sanitizer.log command:compute-sanitizer\ module:cupy \
        "${checking[@]}" --tool memcheck "${touching[@]}" --exact-allocations --dtypes float32,float16
    step racecheck 45 sanitizer.log command:compute-sanitizer\ module:cupy \
        "${checking[@]}" --tool racecheck "${touching[@]}" --dtypes float32 --only "$reductions"
    step initcheck 45 sanitizer.log command:compute-sanitizer\ module:cupy \
        "${checking[@]}" --tool initcheck "${touching[@]}" --dtypes float32 --only "$reductions"
    step training 45 training.log module:cupy\ module:sklearn \
        "$PYTHON" -m gtensor train digits --device cuda --epochs 2 --out "$WORK/digits"
fi
if [[ $PART =~ ^(all|memory)$ ]]; then
    step ladder_bn_act 150 ladders.log file:profiling/ladder_bn_act.py\ module:cupy \
        "$PYTHON" profiling/ladder_bn_act.py --device cuda --only "1 GiB" --rounds 9 \
            --out "$WORK/ladders"
    step ladder_abn 100 ladders.log file:profiling/ladder_abn.py\ module:cupy \
        "$PYTHON" profiling/ladder_abn.py --device cuda --quick --depth 8 20 --out "$WORK/ladders"
    step ladder_matmul 60 ladders.log file:profiling/ladder_matmul.py\ module:cupy \
        "$PYTHON" profiling/ladder_matmul.py --device cuda --rounds 9 --out "$WORK/ladders"
    step ladder_arena 86 ladders.log file:profiling/ladder_arena.py \
        "$PYTHON" profiling/ladder_arena.py --device cuda --rounds 9 --out "$WORK/ladders"
    step ladder_allocator 86 ladders.log file:profiling/ladder_allocator.py \
        "$PYTHON" profiling/ladder_allocator.py --device cuda --rounds 9 --out "$WORK/ladders"
    step ladder_profiler 15 ladders.log file:profiling/ladder_profiler.py \
        "$PYTHON" profiling/ladder_profiler.py --device cuda --quick --out "$WORK/ladders"
fi
if [[ $PART =~ ^(all|ladders)$ ]]; then
    step ladder 30 ladders.log file:profiling/ladder.py \
        "$PYTHON" profiling/ladder.py --device cuda --rounds 9 --out "$WORK/ladders"
    step ladder_snapshot 20 ladders.log file:profiling/ladder_snapshot.py \
        "$PYTHON" profiling/ladder_snapshot.py --device cuda --quick --out "$WORK/ladders"
    step ladder_overhead 60 ladders.log file:profiling/ladder_overhead.py \
        "$PYTHON" profiling/ladder_overhead.py --device cuda --rounds 9 --out "$WORK/ladders"
    step ladder_blocks 30 ladders.log file:profiling/ladder_blocks.py\ module:torch \
        "$PYTHON" profiling/ladder_blocks.py --device cuda --quick --out "$WORK/ladders"
    step ladder_autodiff 45 ladders.log file:profiling/ladder_autodiff.py \
        "$PYTHON" profiling/ladder_autodiff.py --device cuda --quick --out "$WORK/ladders"
    step ladder_checkpoint 70 ladders.log file:profiling/ladder_checkpoint.py\ module:safetensors \
        "$PYTHON" profiling/ladder_checkpoint.py --device cuda --quick --out "$WORK/ladders"
    step ladder_ops 240 ladders.log file:profiling/ladder_ops.py \
        "$PYTHON" profiling/ladder_ops.py --device cuda --quick --out "$WORK/ladders"
fi

# One file for all ladders, {"ladder": its result, ...}: OUTDIR has room for few.
separator='{'
for result in "$WORK"/ladders/*.json; do
    [ -e "$result" ] || continue
    printf '%s\n"%s": ' "$separator" "$(basename "$result" .json)"
    cat "$result"
    separator=','
done >"$WORK/ladders.json"
if [ -s "$WORK/ladders.json" ]; then
    { cat "$WORK/ladders.json"; echo '}'; } >"$OUT/ladders.json"
fi

{
    printf '%-16s %-44s %5s\n' step status s
    printf '%s\n' "${summary[@]}"
    printf '%s\n' "$failures failed, $SECONDS s in all"
} | tee "$OUT/summary.txt"
[ "$failures" -eq 0 ]
