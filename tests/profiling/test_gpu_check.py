"""What gpu_check.py promises, as far as it goes without a GPU: limits, faults, what is kept."""

from __future__ import annotations

import ast
import ctypes
import importlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_check
import gpu_command
import gpu_probe
import gpu_steps
import pytest
from gpu_check import Call, Outcome, Unusable
from gpu_steps import Failed, Step

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "profiling" / "gpu_check.sh"
MOST_FILES = 8  # that a machine may hand back
# What pytest-xdist tells its workers is not for the processes that tests start.
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
NO_GPU = {**{name: value for name, value in PLAIN.items() if name != "GTENSOR_HOSTCUDA"},
          "CUDA_VISIBLE_DEVICES": "-1", "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Call]]:
    """Makes a call into tmp_path/out that began so many seconds ago."""
    monkeypatch.setattr(gpu_command, "GRACE", 0.2)
    made: list[Call] = []

    def make(elapsed: float = 0.0) -> Call:
        for name in ("out", "state"):
            (tmp_path / name).mkdir(exist_ok=True)
        made.append(Call(tmp_path / "out", tmp_path / "state",
                         gpu_check.time.monotonic() - elapsed))
        return made[-1]

    yield make
    for each in made:
        shutil.rmtree(each.room, ignore_errors=True)


def said(step: str, **named: Any) -> Step:
    """A step that runs a Python program."""
    return Step(named.pop("name", "step"), named.pop("seconds", 60), "gpu_tests.log",
                gpu_steps.python("-c", step), modules=(), **named)


# -- before anything is run ------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["first", "again", "rest"])
def test_without_a_gpu_it_says_so_and_touches_nothing(part: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.txt").write_text("an earlier result")
    ended = subprocess.run([str(SCRIPT), "out", part], env=NO_GPU, cwd=tmp_path, text=True,
                           capture_output=True)
    assert ended.returncode == 2
    assert re.fullmatch(r"gpu_check: no CUDA device on this machine \(.*\); nothing was run\n",
                        ended.stderr)
    assert ended.stdout == ""
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "summary.txt"]


@pytest.mark.parametrize(("given", "wanted"), [
    ((), "required: OUTDIR"), (("out", "checks"), "choose from 'first', 'again', 'rest'"),
    (("out", "first", "memcheck"), "wanted rest and some of smoke"),
    (("out", "rest", "ladder_none"), "ladder_none given"),
])
def test_wrong_usage_names_what_is_wanted(given: tuple[str, ...], wanted: str, tmp_path: Path
                                          ) -> None:
    ended = subprocess.run([str(SCRIPT), *given], env=NO_GPU, cwd=tmp_path, text=True,
                           capture_output=True)
    assert ended.returncode == 64 and wanted in ended.stderr
    assert not list(tmp_path.iterdir())


class Driver:
    """As much of libcuda as the probe calls."""

    def __init__(self, version: int, devices: int = 1, failed: int = 0) -> None:
        self.version, self.devices, self.failed = version, devices, failed

    def cuInit(self, flags: int) -> int:
        return self.failed

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.devices
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: int) -> int:
        name.value = b"a card"
        return 0


@pytest.mark.parametrize(("driver", "sentence"), [
    (Driver(13000), None),
    (Driver(12080), "the driver is one for CUDA 12.8, and cupy-cuda13x needs 13.0 or newer"),
    (Driver(13000, devices=0), "no CUDA device on this machine; nothing was run"),
    (Driver(13000, failed=999), "the driver answers CUDA error 999"),
])
def test_the_probe_names_what_is_wrong_with_the_machine(
    driver: Driver, sentence: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(gpu_probe, "installed", lambda package: package == "cupy-cuda13x")
    if sentence is None:
        assert gpu_probe.look() == "1 x a card, a driver for CUDA 13.0"
    else:
        with pytest.raises(SystemExit, match=re.escape(sentence)):
            gpu_probe.look()


def test_a_python_without_cupy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(13000))
    monkeypatch.setattr(gpu_probe, "installed", lambda package: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="CuPy is not installed for this Python"):
        gpu_probe.look()


def test_a_driver_that_is_late_is_not_called_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "PROBE", 1e-3)
    with pytest.raises(Unusable, match=r"the driver gave no answer in 0 s") as raised:
        gpu_check.probe()
    assert raised.value.status == 2


def test_a_full_disk_and_a_folder_that_cannot_be_written_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unusable, match="cannot be written") as raised:
        gpu_check.prepared(tmp_path / "file")
    assert raised.value.status == 73
    gpu_check.with_room(tmp_path, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 << 20))
    with pytest.raises(Unusable, match="5 MiB are free .* and 64 MiB are needed") as raised:
        gpu_check.with_room(tmp_path, gpu_check.LOGS_BYTES)
    assert raised.value.status == 73


# -- the plan of a call ----------------------------------------------------------------------------


def first() -> list[Step]:
    return [*gpu_steps.environment(), gpu_steps.smoke(), *gpu_steps.first()]


def test_all_steps_of_the_first_call_fit_with_the_probe() -> None:
    assert gpu_check.PROBE + sum(step.seconds for step in first()) <= gpu_check.CALL == 560
    assert all(step.seconds + gpu_command.GRACE < gpu_check.CALL for step in gpu_steps.rest())


def test_a_call_leaves_few_files_with_plain_names() -> None:
    logs = {step.log for step in (*first(), *gpu_steps.rest(), *gpu_steps.again(
        Failed([], ["tests/a.py::b"], ["add float32"])))}
    assert logs <= set(gpu_check.OUTPUTS) and len(gpu_check.OUTPUTS) <= MOST_FILES
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in gpu_check.OUTPUTS)


def test_every_ladder_has_its_step() -> None:
    programs = {word for step in (*first(), *gpu_steps.rest()) for word in step.command}
    for program in (ROOT / "profiling").glob("ladder*.py"):
        if program.stem not in ("ladder_command", "ladder_distributed", "ladder_users"):  # of CPUs
            assert f"profiling/{program.name}" in programs, (
                f"{program.name} has no step in gpu_check.py; add one to rest()")


def test_programs_that_steps_name_are_there() -> None:
    for step in (*first(), *gpu_steps.rest()):
        for word in step.command:
            if word.endswith(".py"):
                assert (ROOT / word).is_file(), f"{step.name} runs {word}, which is not there"


def _decorators(function: ast.FunctionDef, named: dict[str, str]) -> str:
    return " ".join(named.get(ast.unparse(each), ast.unparse(each))
                    for each in function.decorator_list)


def only_on_host_devices(text: str) -> list[str]:
    """The tests marked gpu that use a host device without asking whether there is one."""
    tree = ast.parse(text)
    named = {node.targets[0].id: ast.unparse(node.value) for node in tree.body
             if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
    marked = "mark.gpu" in named.get("pytestmark", "")
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks, body = _decorators(node, named), ast.unparse(node)
            if ((marked or "mark.gpu" in marks) and "mark.host_cuda" not in marks
                    and re.search(r"hostcuda|\bcounters\(", body) and "installed" not in body):
                found.append(node.name)
    return found


def test_no_test_marked_gpu_needs_a_host_device() -> None:
    for file in gpu_steps.files_with_gpu_tests():
        assert not only_on_host_devices((ROOT / file).read_text()), file
    planted = "import pytest\n@pytest.mark.gpu\ndef test_a():\n    hostcuda.reset_counters()\n"
    assert only_on_host_devices(planted) == ["test_a"]


# -- a step ----------------------------------------------------------------------------------------


def test_a_step_that_hears_no_interrupt_is_killed_with_its_children(
    call: Callable[..., Call]
) -> None:
    program = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("FAILED found", child.pid, flush=True)
time.sleep(600)
"""
    made = call()
    outcome = made.run(said(program, seconds=4))
    assert outcome.status == "FAILED: over its 4 s"
    log = (made.out / "gpu_tests.log").read_text()
    pid = int(re.findall(r"FAILED found (\d+)", log)[0])  # told before the end
    with pytest.raises(ProcessLookupError):
        while True:  # the kernel takes a moment to remove it; the runner's limit ends this
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                raise ProcessLookupError


def test_a_step_that_is_interrupted_reports(call: Callable[..., Call],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_command, "GRACE", 300)
    program = """
import time
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("3 passed", flush=True)
    raise SystemExit(2)
"""
    made = call()
    monkeypatch.setattr(gpu_check, "CALL", 10**6)
    assert made.run(said(program, seconds=4)).status == "FAILED: over its 4 s"
    assert "3 passed" in (made.out / "gpu_tests.log").read_text()


def test_processors_are_counted_with_those_of_children(call: Callable[..., Call]) -> None:
    work = "import time\nwhile time.process_time() < 0.5: pass"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}])"
    outcome = call().run(said(program))
    assert outcome.ok and outcome.cpu >= 0.5


def test_a_step_without_time_or_needs_is_not_started(call: Callable[..., Call]) -> None:
    late = call(elapsed=gpu_check.CALL - 3)
    assert late.run(said("print()")).status == "not started: the call's time is over"
    made = call()
    absent = Step("step", 60, "alone.log", gpu_steps.python("-c", ""), modules=("no_such_module",),
                  tool="no-such-tool")
    assert made.run(absent).status == "skipped: no no_such_module, no-such-tool"
    assert not made.outcomes[0].ok


@pytest.mark.parametrize(("says", "wanted"), [
    ("echo '========= Device not supported'; exit 1", "refused: Device not supported"),
    ("sleep 600", "FAILED: tool gave no answer in 1 s"),
    ('LD_LIBRARY_PATH={stub} exec "$@"', "ok"),
    ('exec "$@"', "refused: OSError: libcuda.so.1"),
])
def test_a_tool_that_refuses_the_device_costs_little(
    says: str, wanted: str, call: Callable[..., Call], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch
) -> None:
    build = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", tmp_path / "libcuda.so.1"]
    functions = "cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2"
    subprocess.run(build, input="".join(
        f'extern "C" int {name}() {{ return 0; }}' for name in functions), text=True, check=True)
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\n{says.format(stub=tmp_path)}\n")
    tool.chmod(0o755)
    made = call()
    made.environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setattr(gpu_check, "REFUSAL", 1 if "sleep" in says else 120)
    outcome = made.run(said("pass", tool="tool"))
    assert outcome.status.startswith(wanted) and outcome.ok == ("no answer" not in wanted)


def test_a_disk_that_fills_up_stops_no_step_and_is_told(
    call: Callable[..., Call], capsys: pytest.CaptureFixture[str]
) -> None:
    made = call()
    (made.out / "summary.part").mkdir()  # cannot be written, either
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        assert made.run(said("print('x' * 1_000_000)\nprint('FAILED so')")).ok
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = capsys.readouterr().out
    assert "gpu_tests.log cannot be written: File too large" in told
    assert "FAILED so" in told and "summary.txt cannot be written: Is a directory" in told
    assert made.end() == 73


def test_a_long_log_loses_its_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "LOG_BYTES", 100)
    log = tmp_path / "log"
    log.write_text("a" * 80 + "b" * 1000 + "c" * 80)
    gpu_check.shorten(log)
    text = log.read_text()
    assert text.startswith("a" * 50) and text.endswith("c" * 50) and "1060 bytes" in text


# -- what is kept ----------------------------------------------------------------------------------


def test_what_failed_is_found_by_the_next_call(call: Callable[..., Call], tmp_path: Path) -> None:
    made = call()
    (made.out / "gpu_tests.log").write_text(
        "FAILED tests/a.py::test_b[x - y: 1]\n    reason: E 5\n  long\n"
        "FAILED tests/a.py::test_b[x - y: 1]\n    reason: E 6\n9 of 9 run, 2 failed\n")
    (made.out / "kernels.log").write_text(
        "ok     add float32 (0.1 s)\nFAILED softmax float16: CheckError: a: b\n"
        "FAILED captured step: RuntimeError: c\n")
    step = said("")
    made.outcomes += [Outcome(step, "FAILED: exit status 1"),
                      Outcome(Step("memcheck", 1, "sanitizer.log", ()), "FAILED: over its 1 s"),
                      Outcome(Step("ladder", 1, "ladders.log", ()), "refused: so")]
    table = made.summarize()
    assert "    2 x E 5\n        tests/a.py::test_b[x - y: 1]" in table
    (made.out / "summary.txt").unlink()  # a machine may empty OUTDIR before a call
    failed = gpu_check.noted(made.out, made.state)
    assert failed == Failed(["step", "memcheck"], ["tests/a.py::test_b[x - y: 1]"],
                            ["softmax float16", "captured step"], ("memcheck",))
    steps = {each.name: each.command for each in gpu_steps.again(failed)}
    assert list(steps) == ["tests_again", "ops_again", "memcheck"]
    assert "GPU_CHECK_IDS=@ROOM/ids" in steps["tests_again"]
    assert "softmax float16,captured step" in steps["ops_again"]


@pytest.mark.parametrize(("failed", "wanted"), [
    (Failed(["gpu_tests", "kernels"], [], []), ["gpu_tests", "kernels"]),  # none was named
    (Failed(["smoke", "smoke_tests"], [], []), ["smoke", "smoke_tests"]),
    (Failed(["gpu_tests", "whole_device"], ["tests/a.py::b"], []), ["tests_again", "whole_device"]),
    (Failed(["smoke", "kernels"], [], ["add float32"]), ["ops_again"]),
    (Failed(["gpu_tests"], ["tests/a.py::b"], [], ("gpu_tests",)), ["tests_again", "gpu_tests"]),
])
def test_whatever_failed_is_run_again(failed: Failed, wanted: list[str]) -> None:
    assert [step.name for step in gpu_steps.again(failed)] == wanted


def test_results_of_a_ladder_that_is_cut_off_are_kept(call: Callable[..., Call]) -> None:
    made = call()
    write = "from pathlib import Path; Path('@ROOM/ladders').mkdir(exist_ok=True); "
    for name, text in (("a.part", "[1]"), ("b.json", "[2]"), ("b.part", "[0]"), ("c.json", "[")):
        made.run(said(f"{write}Path('@ROOM/ladders/{name}').write_text({text!r})"))
    assert json.loads((made.out / "ladders.json").read_text()) == {"a": [1], "b": [2]}


def test_a_process_that_cannot_be_killed_does_not_hold_up_the_call(
    call: Callable[..., Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = gpu_command._send
    left: list[int] = []
    monkeypatch.setattr(gpu_command, "_send", lambda pid, number, group: left.append(pid))
    monkeypatch.setattr(gpu_command, "PATIENCE", 0.2)
    outcome = call().run(said("import time; time.sleep(600)", seconds=1))
    send(left[0], 9, True)
    assert outcome.status == "FAILED: over its 1 s, and could not be killed"
    assert gpu_check.Outcome(outcome.step, outcome.status).ok is False


def test_a_slow_smoke_does_not_stop_a_call(call: Callable[..., Call]) -> None:
    made = call()
    step = Step("smoke", 1, "alone.log", ())
    for text, works in (("== smoke\nok     add float32 (1 s)\n", True), ("== smoke\n", False),
                        ("== smoke\nok     add (1 s)\nFAILED sum: so\n", False)):
        (made.out / "alone.log").write_text(text)
        assert gpu_check.works(made, Outcome(step, "FAILED: over its 40 s")) == works
        assert not gpu_check.works(made, Outcome(step, "FAILED: exit status 1"))


def test_a_second_call_that_is_cut_off_keeps_what_it_has_not_run(call: Callable[..., Call]) -> None:
    made = call()
    made.pending = Failed(["memcheck"], ["tests/a.py::b"], ["add float32"], ("memcheck",))
    made.run(said(""))
    assert gpu_check.noted(made.state) == made.pending
    made.end()
    with pytest.raises(Unusable, match="nothing to run again"):
        gpu_check.noted(made.state)


def test_again_without_an_earlier_failure_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="run `first` before `again`"):
        gpu_check.noted(tmp_path)
    (tmp_path / "summary.txt").write_text("0 of 3 steps failed\n")
    with pytest.raises(Unusable, match="nothing to run again"):
        gpu_check.noted(tmp_path)


def test_earlier_results_are_moved_and_never_removed(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "summary.txt").write_text(str(number))
        gpu_check.put_aside(tmp_path)
    assert [(tmp_path / f"earlier-{n}" / "summary.txt").read_text() for n in (1, 2)] == ["1", "2"]
    gpu_check.put_aside(tmp_path)
    assert not (tmp_path / "earlier-3").exists()


def test_an_interrupted_call_has_told_what_it_found(tmp_path: Path) -> None:
    """SIGTERM in the middle of a step: the summary has the steps before."""
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT / "profiling")!r})
import gpu_check
from gpu_steps import Step, python
gpu_check.probe = lambda: None
gpu_check.environment = lambda: [Step("one", 60, "alone.log", python("-c", ""), modules=())]
kill = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); import time; time.sleep(600)"
gpu_check.smoke = lambda: Step("two", 600, "alone.log", python("-c", kill), modules=())
sys.exit(gpu_check.main([{str(tmp_path / "out")!r}, "first"]))
"""
    ended = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True,
                           env={**NO_GPU, "GPU_CHECK_STATE": str(tmp_path / "state")})
    summary = (tmp_path / "out" / "summary.txt").read_text()
    assert re.search(r"^one +ok", summary, re.MULTILINE), ended.stderr
    assert re.search(r"^two +FAILED: interrupted", summary, re.MULTILINE)
    assert ended.returncode == 1


# -- tests in their order, and those that are asked for --------------------------------------------


def test_tests_run_in_the_order_of_their_worth_and_again_by_their_ids(tmp_path: Path) -> None:
    for folder in ("array", "ops/linalg", "memory"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        name = folder.replace("/", "_")
        (tmp_path / "tests" / folder / f"test_{name}.py").write_text(
            f"def test_one():\n    print('ran {name}')\n\ndef test_two():\n    assert 0, 'wrong'\n")

    def ran(**more: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "gpu_tests", "-p", "no:cacheprovider", "-s",
             "--no-summary", "--tb=short", "tests"], cwd=tmp_path, text=True, capture_output=True,
            env={**NO_GPU, "PYTHONPATH": str(ROOT / "profiling"), **more}).stdout

    everything = ran()
    assert re.findall(r"ran (\w+)$", everything, re.MULTILINE) == ["memory", "ops_linalg", "array"]
    assert everything.count("    reason: AssertionError: wrong") == 3
    assert "6 of 6 run, 3 failed" in everything
    ids = tmp_path / "ids"
    ids.write_text("tests/array/test_array.py\ntests/memory/test_gone.py::test_gone")
    again = ran(GPU_CHECK_IDS=str(ids))
    assert "ran array" in again and "2 of 2 run, 1 failed" in again and "memory" not in again


# -- tests on a device -----------------------------------------------------------------------------


@pytest.mark.host_cuda
def test_a_planted_fault_costs_its_own_test(tmp_path: Path) -> None:
    """A lost context, a test that never ends and a missing package, among tests that pass."""
    planted = ROOT / "profiling" / "planted"
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("planted_tests", "planted_import"):
        shutil.copy(planted / f"{name}.py", folder / f"test_{name}.py")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    path = [os.environ.get("PYTHONPATH", ""), str(ROOT), str(ROOT / "profiling")]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "gpu_tests", "-p", "gtensor.hostcuda.pytest_plugin",
         "-p", "no:cacheprovider", "-n", "2", "--dist", "load", "--max-worker-restart", "9",
         "--continue-on-collection-errors", "--no-summary", "-q", "."],
        env={**PLAIN, "PYTHONPATH": os.pathsep.join(path), "GPU_CHECK_TEST_SECONDS": "20"},
        cwd=folder, text=True, capture_output=True)
    failed = set(re.findall(r"^FAILED (\S+)$", ended.stdout, re.MULTILINE))
    assert failed == {"test_planted_tests.py::test_loses_the_context",
                      "test_planted_tests.py::test_never_ends", "test_planted_import.py"}, (
        ended.stdout + ended.stderr)
    assert "11 passed" in ended.stdout and "700" in ended.stdout
    # Each of both faults ended its process, and no other process ended.
    assert ended.stdout.count("Not properly terminated") == 2
    assert "in test_never_ends" in ended.stderr  # where it was
