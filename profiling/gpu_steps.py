"""What the checks of gpu_check.py run: the steps of each kind of call, and their limits."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PROCESSES = int(os.environ.get("GPU_CHECK_PROCESSES", 14))
SCALE = float(os.environ.get("GPU_CHECK_SCALE", 1))  # of all limits: a rehearsal has fewer cores
REHEARSAL = "GPU_CHECK_REHEARSAL" in os.environ  # nothing is computed, so nothing can be right


@dataclass(frozen=True)
class Step:
    """A command with a limit. `shows` matches the lines that are printed as they come."""

    name: str
    seconds: int
    log: str
    command: tuple[str, ...]
    processes: int = 1
    modules: tuple[str, ...] = ("cupy",)
    tool: str = ""  # on PATH; a tool may refuse the device
    shows: str = r"^FAILED|^    reason: |^never launched|\d (passed|failed)|rror: "
    most: int = 40  # such lines, at most; the log has all


@dataclass(frozen=True)
class Failed:
    """Steps, tests (pytest's ids) and jobs of touch_kernels.py that failed."""

    steps: list[str]
    tests: list[str]
    ops: list[str]
    unfinished: tuple[str, ...] = ()  # of the steps those that did not come to their end


# -- commands --------------------------------------------------------------------------------------


def python(*words: str) -> tuple[str, ...]:
    return (sys.executable, *words)


def touching(*words: str) -> tuple[str, ...]:
    return python("profiling/touch_kernels.py", *words)


def sanitizing(name: str, seconds: int, dtype: str, ops: str) -> Step:
    """A tool of compute-sanitizer on some ops, in one process; it goes on after what it finds."""
    tool = name.partition("_")[0]
    exact = ["--exact-allocations"] if tool == "memcheck" else []
    return Step(name, seconds, "sanitizer.log", (
        "compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9",
        "--print-limit", "20", "--destroy-on-device-error", "kernel",
        *touching("--job-seconds", str(seconds * 0.8 * SCALE), *exact, "--dtypes", dtype, "--only",
                  ops)),
        tool="compute-sanitizer",
        shows=r"^FAILED|SUMMARY|Invalid|Uninitialized|hazard|\d failed")


def all_ops() -> tuple[str, ...]:
    """Every op and check; in a rehearsal those that it plants, too, without comparing values."""
    planted = os.environ.get("GPU_CHECK_WITH")
    return touching("--processes", str(PROCESSES), "--job-seconds", str(25 * SCALE),
                    *(["--with", planted] if planted else []),
                    *(["--launch-only"] if REHEARSAL else []))


def ladder(name: str, *words: str) -> tuple[str, ...]:
    return python(f"profiling/{name}.py", "--device", "cuda", *words, "--out", "@ROOM/ladders")


def testing(files: Iterable[str], *words: str) -> tuple[str, ...]:
    """pytest, in which a fault costs no more than its test; a machine's warnings are no errors."""
    return python("-m", "pytest", "-p", "gpu_tests", "-p", "no:cacheprovider", "-p", "no:benchmark",
                  "-o", "filterwarnings=default", "--continue-on-collection-errors",
                  *(["--assert=plain"] if REHEARSAL else []), *words, *files)


def parallel(names: str) -> tuple[str, ...]:
    """The tests with such names that share the card, in all processes."""
    return testing(files_with_gpu_tests(), "-n", str(PROCESSES), "--dist", "load",
                   "--max-worker-restart", "60", "--tb=short", "--no-summary",
                   "-m", f"{GPU_TESTS} and not whole_device", "-k", names)


def files_with_gpu_tests() -> list[str]:
    """The others may want packages that a GPU machine lacks."""
    files = (CHECKOUT / "tests").rglob("test_*.py")
    return sorted(str(path.relative_to(CHECKOUT)) for path in files
                  if re.search(r"mark\.(gpu|multi_gpu)\b", path.read_text()))


# One op of each layer: kernels, reductions, products by cuBLAS, by tables of addresses and by
# cublasLt with an epilogue, memory, streams, a graph.
SMOKE = "add,sum,matmul,summed_matmul,linear,feed_forward,arena,streams,captured step"
SMOKE_TESTS = ("tests/backend/test_cublas.py", "tests/memory/arena/test_streams_gpu.py",
               "tests/memory/arena/test_graphs_gpu.py")
REDUCTIONS = ("softmax,log_softmax,softmax_grad,log_softmax_grad,layer_norm,rms_norm,group_norm,"
              "batch_norm,inplace_abn,cross_entropy")
OWN_KERNELS = ("softmax,layer_norm,inplace_abn,cross_entropy,conv2d,matmul,summed_matmul,"
               "linear_scan,lstm,gru")
GPU_TESTS = "(gpu or multi_gpu) and not slow"
TESTED = ("cupy", "pytest", "xdist", "torch", "hypothesis")


def environment() -> list[Step]:
    """What the machine is, and whether its kernel cache fits."""
    return [
        Step("environment", 15, "environment.txt", python("profiling/gpu_probe.py", "--describe"),
             modules=(), shows=r"^NVIDIA|missing"),
        Step("kernel_cache", 25, "environment.txt", python("profiling/kernel_cache.py"), shows=""),
    ]


def smoke() -> Step:
    return Step("smoke", 40, "alone.log",
                touching("--job-seconds", str(35 * SCALE), "--dtypes", "float32", "--only", SMOKE,
                         "--traceback"), shows="", most=400)


def smoke_tests() -> Step:
    """The tests of what the smoke touches, with all that they say."""
    return Step("smoke_tests", 120, "alone.log", testing(
        SMOKE_TESTS, "-x", "-v", "--tb=long", "-m", GPU_TESTS), modules=TESTED, shows="", most=400)


def first() -> list[Step]:
    """After the smoke: broad and parallel, then what owns the card, then tools, then numbers."""
    return [
        # Of the checks of every op those in one dtype: the step after it has all dtypes.
        Step("gpu_tests", 175, "gpu_tests.log", parallel("not in_every_dtype"),
             processes=PROCESSES, modules=TESTED),
        Step("kernels", 90, "kernels.log", all_ops(), processes=PROCESSES),
        Step("whole_device", 30, "alone.log",
             ("env", "GPU_CHECK_TEST_SECONDS=20", *testing(
                 files_with_gpu_tests(), "--tb=short", "--no-summary",
                 "-m", f"{GPU_TESTS} and whole_device")), modules=TESTED),
        sanitizing("memcheck", 50, "float32", OWN_KERNELS),
        Step("bandwidth", 35, "ladders.log",
             ladder("ladder_bn_act", "--only", "1 GiB first float32", "--rounds", "5",
                    "--no-compile"), shows=""),
        Step("arena", 20, "ladders.log",
             ladder("ladder_arena", "--only", "hot size", "--rounds", "5"), shows=""),
        Step("host_time", 20, "ladders.log",
             ladder("ladder_overhead", "--only", "chain", "--rounds", "5"), shows=""),
    ]


def rest() -> list[Step]:
    """Most valuable first; together they take several calls."""
    return [
        Step("ladder", 25, "ladders.log", ladder("ladder", "--rounds", "7"), shows=""),
        Step("ladder_attention", 25, "ladders.log", ladder("ladder_attention", "--rounds", "5"),
             modules=("cupy", "torch"), shows=""),
        Step("ladder_steps", 60, "ladders.log", ladder("ladder_steps", "--rounds", "5"),
             modules=("cupy", "torch"), shows=""),
        Step("every_dtype", 240, "gpu_tests.log", parallel("in_every_dtype"),
             processes=PROCESSES, modules=TESTED),
        Step("training", 45, "gpu_tests.log",
             python("-m", "gtensor", "train", "digits", "--device", "cuda", "--epochs", "2",
                    "--out", "@ROOM/ladders/digits"), modules=("cupy", "sklearn"), shows=r"epoch"),
        Step("ladder_bn_act", 110, "ladders.log",
             ladder("ladder_bn_act", "--only", "1 GiB", "--rounds", "9"), shows=""),
        Step("ladder_blocks", 30, "ladders.log", ladder("ladder_blocks", "--quick"),
             modules=("cupy", "torch"), shows=""),
        Step("host_limits", 30, "ladders.log",
             ladder("host_time", "--only", "limits", "--quick"), shows=""),
        Step("ladder_matmul", 60, "ladders.log", ladder("ladder_matmul", "--rounds", "9"),
             shows=""),
        Step("ladder_allocator", 60, "ladders.log", ladder("ladder_allocator", "--quick"),
             shows=""),
        Step("ladder_abn", 100, "ladders.log",
             ladder("ladder_abn", "--quick", "--depth", "8", "20"), shows=""),
        Step("ladder_overhead", 60, "ladders.log", ladder("ladder_overhead", "--rounds", "9"),
             shows=""),
        Step("ladder_capture", 40, "ladders.log", ladder("ladder_capture", "--quick"), shows=""),
        sanitizing("racecheck", 45, "float32", REDUCTIONS),
        sanitizing("initcheck", 45, "float32", REDUCTIONS),
        sanitizing("memcheck_halves", 80, "float16", OWN_KERNELS),
        Step("ladder_autodiff", 45, "ladders.log", ladder("ladder_autodiff", "--quick"), shows=""),
        Step("ladder_arena", 60, "ladders.log", ladder("ladder_arena", "--rounds", "9"), shows=""),
        Step("ladder_checkpoint", 70, "ladders.log", ladder("ladder_checkpoint", "--quick"),
             modules=("cupy", "safetensors"), shows=""),
        Step("ladder_profiler", 15, "ladders.log", ladder("ladder_profiler", "--quick"), shows=""),
        Step("ladder_snapshot", 20, "ladders.log", ladder("ladder_snapshot", "--quick"), shows=""),
        Step("ladder_ops", 240, "ladders.log", ladder("ladder_ops", "--quick"), shows=""),
    ]


def again(failed: Failed) -> list[Step]:
    """What failed in an earlier call, with full output.

    A step that did not come to its end, that named no test or op, or that ran alone, is run as it
    was.
    """
    steps = []
    if failed.tests:
        processes = min(PROCESSES, len(failed.tests))
        files = sorted({test.partition("::")[0] for test in failed.tests})
        steps.append(Step("tests_again", 240, "gpu_tests.log", (
            "env", "GPU_CHECK_IDS=@ROOM/ids", *testing(
                [file for file in files if (CHECKOUT / file).exists()], "-n", str(processes),
                "--dist", "load", "--max-worker-restart", "60", "--tb=long", "--no-summary",
                "-m", GPU_TESTS)), processes, TESTED, shows="", most=400))
    if failed.ops:
        processes = min(PROCESSES, len(failed.ops))
        steps.append(Step("ops_again", 120, "kernels.log", touching(
            "--traceback", "--processes", str(processes), "--only", ",".join(failed.ops)),
            processes, shows="", most=400))
    covered = {"gpu_tests", "every_dtype", "tests_again"} if failed.tests else set()
    covered |= {"smoke", "kernels", "ops_again"} if failed.ops else set()
    return steps + [step for step in every_step()
                    if step.name in failed.steps
                    and (step.name not in covered or step.name in failed.unfinished)]


def every_step() -> list[Step]:
    """All that can be asked for by name."""
    return [smoke(), smoke_tests(), *first(), *rest()]


def named(names: list[str]) -> list[Step]:
    """The steps with these names, in the order of the names."""
    known = {step.name: step for step in every_step()}
    return [known[name] for name in names]
