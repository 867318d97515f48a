"""profiling/touch_kernels.py: what it runs, and that a job that goes wrong costs only itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from touch_kernels import CHECKS, DTYPES, Options, Outcome, jobs, report

from gtensor.testing import TOLERANCES

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "profiling" / "touch_kernels.py"
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
HOST = {**os.environ, "PYTHONPATH": os.pathsep.join(
    filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))}

PLANTED = '''
"""Checks that go wrong."""
import ctypes
import os
import time
from pathlib import Path

import gtensor as gt


def raises(options):
    raise ValueError("planted\\nsecond line")


def ends(options):
    os._exit(7)


def crashes(options):
    ctypes.string_at(0)


def hangs(options):
    Path(__file__).with_suffix(".pid").write_text(f"{os.getpid()}\\n")
    time.sleep(3600)


def loses(options):
    poke = 'extern "C" __global__ void poke() { *(int*)8 = 1; }'
    gt.device("cuda").xp.RawKernel(poke, "poke")((1,), (1,), ())


def answers(options):
    from gtensor import hostcuda

    gt.ones(1, device="cuda")
    hostcuda.fail(719)  # every function of the driver answers it
    gt.ones(1, device="cuda").numpy()


CHECKS |= {f.__name__: f for f in (raises, ends, crashes, hangs, loses, answers)}
'''


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    file = tmp_path / "planted.py"
    file.write_text(PLANTED)
    return file


def command(*given: object) -> list[str]:
    return [sys.executable, "-W", "error", str(PROGRAM), *map(str, given)]


def touch(
    *given: object, environment: dict[str, str] = NO_GPU
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*given), env=environment, text=True, capture_output=True)


def lines(output: str) -> list[str]:
    """The results and what follows them, without seconds and indented lines."""
    found = [re.sub(r" \(\d+\.\d+ s\)$", "", line) for line in output.splitlines()]
    return [line for line in found if line and not line.startswith(" ")]


def failures(call: subprocess.CompletedProcess[str]) -> str:
    """What a reader of a long log has to see."""
    return re.sub(r"^ok .*\n", "", call.stdout, flags=re.MULTILINE) + call.stderr


# -- what it runs ----------------------------------------------------------------------------------


def test_it_runs_every_op_on_the_cpu() -> None:
    call = touch("--device", "cpu", "--dtypes", "float32")
    assert call.returncode == 0, failures(call)
    assert re.search(r"^[1-9]\d+ run on cpu, 0 failed", call.stdout, re.MULTILINE)


@pytest.mark.host_cuda  # on a GPU it is a step of the script
@pytest.mark.parametrize("dtype", [dtype.name for dtype in TOLERANCES])
def test_it_launches_every_kernel(dtype: str) -> None:
    # attention is compiled first, which takes a busy machine minutes
    call = touch("--dtypes", dtype, "--job-seconds", "600", environment=HOST)
    assert call.returncode == 0, failures(call)
    assert re.search(r"^[1-9]\d+ run on cuda, 0 failed; (\d+) of \1 kernels launched$",
                     call.stdout, re.MULTILINE)


def test_checks_are_first_then_all_ops_in_float32() -> None:
    labels = [job.label for job in jobs(Options("cpu", tuple(DTYPES), False, False, ()))]
    ops = len(labels[len(CHECKS):]) // len(DTYPES)
    assert labels[:len(CHECKS)] == list(CHECKS)
    assert all(label.endswith(" float32") for label in labels[len(CHECKS):][:ops])
    assert not labels[len(CHECKS) + ops].endswith(" float32") and len(set(labels)) == len(labels)


@pytest.mark.parametrize("processes", [1, 2])
def test_only_takes_names_and_pairs_in_their_order(processes: int) -> None:
    call = touch("--device", "cpu", "--dtypes", "float64,float32", "--processes", processes,
                 "--only", "tanh,running statistics,exp:float32,gelu float64,tanh:float32")
    wanted = ["ok     tanh float64", "ok     tanh float32", "ok     running statistics",
              "ok     exp float32", "ok     gelu float64",
              "5 run on cpu, 0 failed; 0 of "]
    found = lines(call.stdout)
    assert call.returncode == 0 and call.stderr == ""
    assert found[-1].startswith(wanted.pop())
    assert (found[:-1] if processes == 1 else sorted(found[:-1])) == (
        wanted if processes == 1 else sorted(wanted))


FAULT = """
from gtensor.engine.tape.op import registry

calls = []

def wrong(x, out=None, right=registry["tanh"].cpu):
    calls.append(0)
    return right(x, out=out) * (1.01 if len(calls) % 2 else 1.0)

registry["tanh"].cpu = wrong
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_it_names_what_failed(processes: int, tmp_path: Path) -> None:
    (tmp_path / "fault.py").write_text(FAULT)
    call = touch("--device", "cpu", "--only", "tanh,exp", "--dtypes", "float64",
                 "--processes", processes, "--with", tmp_path / "fault.py")
    assert call.returncode == 1, call.stdout + call.stderr
    assert re.search("^FAILED tanh float64: CheckError: sample 0: the value, element",
                     call.stdout, re.MULTILINE)
    assert "ok     exp float64" in call.stdout and "2 run on cpu, 1 failed" in call.stdout
    if processes == 1:
        call = touch("--device", "cpu", "--only", "tanh:float64", "--launch-only",
                     "--with", tmp_path / "fault.py")
        assert lines(call.stdout)[0] == "ok     tanh float64", call.stdout + call.stderr


def test_a_file_may_register_an_op(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import numpy as np\nimport gtensor as gt\n"
                    "gt.op('twice', cpu=lambda x, out=None: np.add(x, x, out=out),\n"
                    "      gpu=lambda x, out=None: x + x, backward=gt.pointwise(gt.d(\n"
                    "          'x', lambda ns, g, x, out: ns.add(g, g, out=out))),\n"
                    "      samples=[gt.Sample(((3,),))])\n")
    call = touch("--device", "cpu", "--processes", 2, "--with", file, "--only", "twice:float16")
    assert lines(call.stdout)[0] == "ok     twice float16", call.stdout + call.stderr


@pytest.mark.host_cuda
def test_a_run_in_one_process_touches_all_layers() -> None:
    names = "add,sum,matmul,summed_matmul,linear,feed_forward,arena,streams,captured step"
    call = touch("--dtypes", "float32", "--only", names, "--traceback", environment=HOST)
    assert call.returncode == 0, call.stdout + call.stderr
    assert "9 run on cuda, 0 failed; " in call.stdout and "ok     captured step" in call.stdout


@pytest.mark.host_cuda
def test_exact_allocations_leave_out_what_needs_the_arena() -> None:
    call = touch("--exact-allocations", "--dtypes", "float32", "--only", "products,exp",
                 environment=HOST)
    assert "2 run on cuda, 0 failed" in call.stdout, call.stdout + call.stderr
    call = touch("--exact-allocations", "--only", "arena,captured step", environment=HOST)
    assert call.stderr.startswith("arena, captured step given; wanted some of streams")


def test_a_kernel_that_was_not_launched_fails_a_complete_run(
    capsys: pytest.CaptureFixture[str]
) -> None:
    found = Outcome(ran=["a"], launched={"a.cu: one"}, known={"a.cu: one", "a.cu: two"})
    assert report(found, "cuda", complete=False) == 0
    assert report(found, "cuda", complete=True) == 1
    assert "never launched: a.cu: two\n" in capsys.readouterr().out
    assert report(found, "cuda", complete=True, labels=["a", *"bcdefghijklm"]) == 1
    assert capsys.readouterr().out == (
        "\n12 not run: b, c, d, e, f, g, h, i, j, k, ...\n"
        "1 run on cuda, 0 failed; 1 of 2 kernels launched\n")


# -- what goes wrong -------------------------------------------------------------------------------


def test_each_fault_costs_only_itself(planted: Path) -> None:
    """The first and the last job of each process included."""
    good = ("tanh:float32", "exp:float64", "running statistics", "sin:float16", "cos:float32")
    faults = ("raises", "ends", "hangs", "crashes")
    order = (*faults[:2], *good[:3], *faults[2:], *good[3:], "ends", "raises")
    call = touch("--device", "cpu", "--processes", 2, "--job-seconds", 5, "--with", planted,
                 "--only", ",".join(order))
    assert call.returncode == 1 and call.stderr == "", call.stdout + call.stderr
    assert Counter(lines(call.stdout)[:-1]) == Counter({
        "ok     tanh float32": 1, "ok     exp float64": 1, "ok     running statistics": 1,
        "ok     sin float16": 1, "ok     cos float32": 1,
        "FAILED raises: ValueError: planted": 1,
        "FAILED ends: the process ended with exit status 7": 1,
        "FAILED hangs: no result within 5 s": 1,
        "FAILED crashes: the process ended by signal 11 (Segmentation fault)": 1,
    })
    assert "9 run on cpu, 4 failed; " in lines(call.stdout)[-1]
    assert re.search(r'^      File ".*planted.py", line \d+ in hangs$', call.stdout, re.MULTILINE)
    assert re.search(r'^      File ".*planted.py", line \d+ in crashes$', call.stdout, re.MULTILINE)
    assert "\n    second line (raises, line " in call.stdout
    with pytest.raises(ProcessLookupError):
        os.kill(int(planted.with_suffix(".pid").read_text()), 0)


@pytest.mark.host_cuda
def test_a_lost_context_costs_only_itself(planted: Path) -> None:
    call = touch("--processes", 2, "--with", planted, "--only",
                 "loses,tanh:float32,raises,exp:float32,answers,arena,captured step,streams",
                 environment=HOST)
    assert call.returncode == 1, call.stdout + call.stderr
    found = lines(call.stdout)
    assert sum(line.startswith("ok     ") for line in found) == 5
    assert sum(line.startswith("FAILED ") for line in found) == 3
    for name, code in (("loses", 700), ("answers", 719)):
        assert any(line.startswith(f"FAILED {name}: context lost, CUDA error {code}: ")
                   for line in found)
    assert re.search("^8 run on cuda, 3 failed; [1-9]", found[-1])


@pytest.mark.host_cuda
def test_a_lost_context_ends_a_run_in_one_process(planted: Path) -> None:
    call = touch("--with", planted, "--only", "exp:float32,loses,tanh:float32,arena",
                 environment=HOST)
    assert call.returncode == 1, call.stdout + call.stderr
    ok, failed, left, last = lines(call.stdout)
    assert ok == "ok     exp float32" and left == "2 not run: tanh float32, arena"
    assert failed.startswith("FAILED loses: context lost, CUDA error 700: ")
    assert last.startswith("2 run on cuda, 1 failed; ")


def test_a_hang_ends_a_run_in_one_process(planted: Path) -> None:
    call = touch("--device", "cpu", "--job-seconds", 5, "--with", planted,
                 "--only", "exp:float32,hangs,tanh:float32")
    assert call.returncode == 1, call.stdout + call.stderr
    assert lines(call.stdout)[:-1] == [
        "ok     exp float32", "FAILED hangs: no result within 5 s", "1 not run: tanh float32"]
    assert ", in hangs\n" in call.stdout
    assert lines(call.stdout)[-1].startswith("2 run on cpu, 1 failed; ")


def test_a_traceback_on_request(planted: Path) -> None:
    for processes in (1, 2):
        call = touch("--device", "cpu", "--with", planted, "--processes", processes,
                     "--only", "raises,exp:float32", "--traceback")
        assert re.search(r'^      File ".*planted.py", line \d+, in raises$', call.stdout,
                         re.MULTILINE), call.stdout + call.stderr


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_report(
    processes: int, number: signal.Signals, planted: Path
) -> None:
    pid = planted.with_suffix(".pid")
    with subprocess.Popen(
            command("--device", "cpu", "--with", planted, "--processes", processes,
                    "--job-seconds", 0, "--only", "raises,hangs,hangs,tanh:float32"),
            env=NO_GPU, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        try:
            while not (pid.exists() and pid.read_text().endswith("\n")):
                assert program.poll() is None, program.communicate()
                time.sleep(0.05)
            if processes == 2:  # the other process runs it
                found = iter(program.stdout.readline, "")
                next(line for line in found if line.startswith("ok     tanh"))
            program.send_signal(number)
            stdout, stderr = program.communicate()
        finally:
            program.kill()
    assert program.returncode == 1 and stderr == ""
    assert f"\nended by {number.name} during: hangs\n" in stdout
    count, names = (1, "hangs") if processes == 2 else (2, "hangs, tanh float32")
    assert f"\n{count} not run: {names}\n" in stdout
    assert f"\n{4 - 1 - count} run on cpu, 1 failed; " in stdout
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_no_process_outlives_a_killed_coordinator(planted: Path) -> None:
    pid = planted.with_suffix(".pid")
    with subprocess.Popen(command("--device", "cpu", "--with", planted, "--processes", 2,
                                  "--only", "hangs"), env=NO_GPU) as program:
        while not (pid.exists() and pid.read_text().endswith("\n")):
            assert program.poll() is None
            time.sleep(0.05)
        program.kill()
    stat = Path("/proc", pid.read_text().strip(), "stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.05)


def test_processes_that_cannot_begin_end_the_run(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import multiprocessing, os\n"
                    "if multiprocessing.parent_process(): os._exit(5)\n")
    call = touch("--device", "cpu", "--with", file, "--processes", 2, "--only", "exp")
    assert call.returncode == 1 and lines(call.stdout)[:2] == [
        "before its first job the process ended with exit status 5"] * 2
    assert "\n4 not run: exp float32, " in call.stdout and "\n0 run on cpu, 0 f" in call.stdout


# -- what it refuses -------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so() -> None:
    call = touch()
    assert (call.returncode, call.stdout) == (2, "")
    assert call.stderr == "no CUDA device on this machine; nothing was launched\n"


@pytest.mark.parametrize("only, name", [
    ("tanh,nothing", "nothing"), ("tanh:int8", "tanh:int8"), ("tanh float8", "tanh float8")])
def test_unknown_names_are_refused(only: str, name: str) -> None:
    call = touch("--device", "cpu", "--only", only)
    assert call.returncode == 1 and call.stderr.startswith(f"{name} given; wanted some of ")


@pytest.mark.parametrize("given, sentence", [
    (("--dtypes", "int8"), "--dtypes int8 given; wanted some of float32,bfloat16,float16,float64"),
    (("--processes", 0), "--processes 0 given; wanted at least 1"),
    (("--job-seconds", -1), "--job-seconds -1 given; wanted 0 (no limit) or more"),
    (("--job-seconds", "nan"), "--job-seconds nan given; wanted 0 (no limit) or more"),
    (("--with", "absent.py"), "--with absent.py given; there is no such file"),
])
def test_bad_options_are_refused(given: tuple[object, ...], sentence: str) -> None:
    call = touch("--device", "cpu", *given)
    assert call.returncode == 2 and call.stdout == ""
    assert call.stderr.endswith(f"error: {sentence}\n")
