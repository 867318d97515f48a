"""NVTX ranges, as a tool sees them: a logging tool is injected into a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_host import Toolchain
from kernel_text import HOST

PROGRAM = """
from gtensor.backend import nvtx
print(nvtx.attached())
if nvtx.attached():
    for payload in (12, 0.5, None):
        nvtx.push("forward", "matmul", payload)
        nvtx.push("backward", "relu backward")
        nvtx.pop()
        nvtx.pop()
"""
RANGES = [line for payload in ("12", "0.5", "-") for line in (
    f"push gtensor forward {payload} matmul", "push gtensor backward - relu backward",
    "pop gtensor", "pop gtensor")]

STEP = """
import os, sys
import gtensor as gt

device = sys.argv[1]

class Net(gt.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = gt.nn.Linear(6, 5)
        self.last = gt.nn.Linear(5, 3)

    def forward(self, x):
        return self.last(gt.nn.functional.relu(self.first(x)))

@gt.profiler.ranged
def augmented(x):
    return x + 1.0

gt.set_default_device(device)
net = Net()
optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
data = gt.data.DataLoader(gt.data.ArrayDataset(gt.ones((4, 6)).numpy()), batch_size=4)

def step(x):
    with gt.profiler.range("loss", 7):
        loss = net(augmented(x)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

(batch,), = data
step(batch)  # its memory is acquired here
with gt.profiler.nvtx_ranges():
    for batch, in data:
        step(batch)
if device != "cpu":
    graph = gt.Graph()
    with gt.profiler.nvtx_ranges():
        with graph.capture():
            step(batch)
        graph.replay()
"""
INSIDE = """
data 0 batch
user 7 loss
  user - augmented
    forward 100 add forward
  forward - Net
    forward - Net.first
      forward 236 Net.first linear forward
    forward 80 Net relu forward
    forward - Net.last
      forward 152 Net.last linear forward
  forward 48 sum forward
backward - backward
  backward 0 gradient forward
  backward 4 sum backward
  backward 188 Net.last linear backward
  backward 160 Net relu backward
  backward 176 Net.first linear backward
optimizer - SGD update
  optimizer 424 sgd forward
data 1 batch
"""


@pytest.fixture(scope="module")
def logger(toolchain: Toolchain) -> Path:
    """The tool's library."""
    return toolchain.library(HOST / "nvtx_logger.cpp")


def run(program: str, folder: Path, tool: Path | None, *arguments: str,
        before: tuple[str, ...] = (), **variables: str) -> tuple[str, list[str]]:
    """What a child prints, and the ranges that the tool logs."""
    log, script = folder / "ranges.txt", folder / "script.py"
    script.write_text(program)
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("NVTX_", "GTENSOR_"))}
    environment |= {"NVTX_LOGGER_FILE": str(log), **variables}
    if tool is not None:
        environment["NVTX_INJECTION64_PATH"] = str(tool)
    child = subprocess.run([sys.executable, *before, str(script), *arguments], env=environment,
                           check=False, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return child.stdout.strip(), log.read_text().splitlines() if log.exists() else []


def nested(ranges: list[str]) -> list[str]:
    """The ranges indented by their depth; raises AssertionError unless each has its end."""
    depth, found = 0, []
    for line in ranges:
        what, domain, *label = line.split(" ", 2)
        assert domain == "gtensor"
        if what == "push":
            found.append("  " * depth + label[0])
        depth += 1 if what == "push" else -1
        assert depth >= 0, "an end without its begin"
    assert depth == 0, "a begin without its end"
    return found


def test_a_tool_sees_category_payload_and_label(logger: Path, tmp_path: Path) -> None:
    assert run(PROGRAM, tmp_path, logger) == ("True", RANGES)


@pytest.mark.parametrize("ranges", [RANGES[:-1], RANGES[1:], ["push other - - matmul"]])
def test_the_check_of_nesting_finds_a_planted_fault(ranges: list[str]) -> None:
    with pytest.raises(AssertionError):
        nested(ranges)


def test_a_training_step_nests(logger: Path, tmp_path: Path) -> None:
    assert nested(run(STEP, tmp_path, logger, "cpu")[1]) == INSIDE.strip().splitlines()


def test_a_training_step_nests_on_the_host_device(logger: Path, tmp_path: Path) -> None:
    _, ranges = run(STEP, tmp_path, logger, "cuda", before=("-m", "gtensor.hostcuda"))
    step = INSIDE.replace("100", "96").strip().splitlines()
    step.insert(1, "  forward 96 to_device forward")
    found = nested(ranges)
    assert found[:len(step)] == step
    captured = found[len(step):]
    assert captured[0] == "graph - graph capture" and captured[-1] == "graph - graph replay"
    memory = [line.split()[2:] for line in captured if line.split()[0] == "memory"]
    assert memory == [["segment", "acquired"]] * 2  # the graph's own
    assert [line[2:] for line in captured[1:-1] if "segment" not in line] == step[2:-1]


@pytest.mark.parametrize("variables", [
    {"GTENSOR_NVTX": "0"}, {"NVTX_DISABLE": "0"}, {"NVTX_DISABLE": "1", "GTENSOR_NVTX": "1"}])
def test_ranges_switched_off(variables: dict[str, str], logger: Path, tmp_path: Path) -> None:
    assert run(STEP, tmp_path, logger, "cpu", **variables)[1] == []


SWITCHED = """
import gtensor as gt
from gtensor.system.bus import bus
x = gt.ones((2, 3))
x + 1.0
with gt.settings.override(nvtx=2):
    x + 1.0
    with gt.profiler.nvtx_ranges():  # they are on
        x * 2.0
x + 1.0
gt.settings.nvtx = 0
with gt.profiler.nvtx_ranges():
    x + 1.0
print(len(bus.listeners))
"""


def test_the_setting_switches_ranges_for_the_whole_program(logger: Path, tmp_path: Path) -> None:
    printed, ranges = run(SWITCHED, tmp_path, logger, GTENSOR_NVTX="1")
    plain, wide = "forward 28 add forward", "forward 28 add forward (2, 3) ()"
    assert nested(ranges) == [plain, wide, wide.replace("add", "multiply"), plain]
    assert printed == "0"


def test_without_a_tool_nothing_listens(tmp_path: Path) -> None:
    assert run(PROGRAM, tmp_path, None)[0] == "False"
    program = "import gtensor; from gtensor.system.bus import bus; print(len(bus.listeners))"
    assert run(program, tmp_path, None, GTENSOR_NVTX="1") == ("0", [])


def test_without_the_package_there_are_no_ranges(logger: Path, tmp_path: Path) -> None:
    missing = "import sys; sys.modules['nvtx'] = None\n"
    assert run(missing + PROGRAM, tmp_path, logger, GTENSOR_NVTX="1") == ("False", [])


def test_attributes_are_prepared_once_per_label_and_details_are_bounded(
        logger: Path, tmp_path: Path) -> None:
    program = PROGRAM + """
nvtx.MOST_DETAILS = 2
for detail in ("a", "b", "a", "c", "d", "c"):
    nvtx.push("forward", "matmul", None, detail)
    nvtx.pop()
print(len(nvtx._prepared.found))
"""
    printed, ranges = run(program, tmp_path, logger)
    assert nested(ranges[len(RANGES):]) == [
        f"forward - matmul{detail}" for detail in (" a", " b", " a", "", "", "")]
    assert printed == "True\n4"


CAPTURED = STEP[:STEP.index("(batch,), = data")] + """
(batch,), = data
for _ in range(int(sys.argv[2])):
    with gt.profiler.range("iteration"):  # begins before the range of steps, and ends in it
        step(batch)
        if len(sys.argv) > 3:
            from gtensor import hostcuda
            print(hostcuda.counters().synchronizations)
"""


def captured(ranges: list[str]) -> list[str]:
    """What begins or ends between the begin and the end of the range of steps."""
    start, end = ranges.index("start gtensor user - steps"), ranges.index("end gtensor")
    assert sum(line.startswith(("start", "end")) for line in ranges) == 2
    return ranges[start + 1:end]


def test_the_captured_range_holds_exactly_the_asked_steps(logger: Path, tmp_path: Path) -> None:
    _, ranges = run(CAPTURED, tmp_path, logger, "cpu", "9", GTENSOR_NVTX="1",
                    GTENSOR_CAPTURE_AFTER="2", GTENSOR_CAPTURE_STEPS="3")
    inside = captured(ranges)
    iteration = inside[1:1 + len(inside) // 3]  # behind the end of the one in which it opened
    assert inside == ["pop gtensor", *iteration * 3][:-1]
    assert nested([*iteration[:-1], "pop gtensor"])[0] == "user - iteration"
    assert sum("update" in line for line in iteration) == 1
    before = ranges[:ranges.index("start gtensor user - steps")]
    assert [sum("SGD update" in line for line in part) for part in (before, ranges)] == [2, 9]


def test_a_program_that_ends_within_the_steps_leaves_their_range_open(logger: Path,
                                                                      tmp_path: Path) -> None:
    _, ranges = run(CAPTURED, tmp_path, logger, "cpu", "4", GTENSOR_NVTX="1",
                    GTENSOR_CAPTURE_AFTER="2", GTENSOR_CAPTURE_STEPS="3")
    assert "start gtensor user - steps" in ranges and "end gtensor" not in ranges


def test_the_gpu_is_waited_for_at_both_ends_of_the_steps(logger: Path, tmp_path: Path) -> None:
    printed, ranges = run(CAPTURED, tmp_path, logger, "cuda", "7", "counted",
                          before=("-m", "gtensor.hostcuda"), GTENSOR_CAPTURE_AFTER="2",
                          GTENSOR_CAPTURE_STEPS="3")
    waits = [int(line) for line in printed.split()]
    per_step = [after - before for before, after in zip(waits, waits[1:], strict=False)]
    assert per_step == [1, 0, 0, 1, 0, 0] and captured(ranges) == []


def test_a_range_before_the_first_step_begins_with_the_program(logger: Path,
                                                               tmp_path: Path) -> None:
    _, ranges = run(CAPTURED, tmp_path, logger, "cpu", "4", GTENSOR_NVTX="1",
                    GTENSOR_CAPTURE_AFTER="0", GTENSOR_CAPTURE_STEPS="3")
    assert ranges[0] == "start gtensor user - steps"
    assert sum("SGD update" in line for line in captured(ranges)) == 3


def test_without_a_tool_the_captured_steps_are_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import gtensor"], capture_output=True, text=True, check=True,
        env={**{name: value for name, value in os.environ.items() if not name.startswith("NVTX_")},
             "GTENSOR_CAPTURE_STEPS": "3"})
    assert done.stderr == ("gtensor: no range of steps will be captured: no profiler takes NVTX "
                           "ranges\n")
