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
print(nvtx.enabled())
for _ in range(2):
    nvtx.push("matmul")
    nvtx.push("relu backward")
    nvtx.pop()
    nvtx.pop()
"""
RANGES = ["push gtensor matmul", "push gtensor relu backward", "pop gtensor", "pop gtensor"] * 2


@pytest.fixture(scope="module")
def logger(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tool's library."""
    path = tmp_path_factory.mktemp("nvtx") / "nvtx_logger.so"
    source = HOST / "nvtx_logger.cpp"
    options = ["-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run([toolchain.compiler, *options, str(source), "-o", str(path)], check=True)
    return path


def run(program: str, folder: Path, tool: Path | None, **variables: str) -> tuple[str, list[str]]:
    """What a child prints, and the ranges that the tool logs."""
    log = folder / "ranges.txt"
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("NVTX_", "GTENSOR_"))}
    environment |= {"NVTX_LOGGER_FILE": str(log), **variables}
    if tool is not None:
        environment["NVTX_INJECTION64_PATH"] = str(tool)
    child = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    return child.stdout.strip(), log.read_text().splitlines() if log.exists() else []


def test_a_tool_sees_the_ranges(logger: Path, tmp_path: Path) -> None:
    assert run(PROGRAM, tmp_path, logger) == ("True", RANGES)


@pytest.mark.parametrize(("variables", "printed"), [
    ({"GTENSOR_NVTX": "0"}, "False"),
    ({"NVTX_DISABLE": "0"}, "False"),
    ({"NVTX_DISABLE": "1", "GTENSOR_NVTX": "1"}, "False"),
])
def test_ranges_switched_off(
    variables: dict[str, str], printed: str, logger: Path, tmp_path: Path
) -> None:
    assert run(PROGRAM, tmp_path, logger, **variables) == (printed, [])


def test_without_a_tool_there_are_no_ranges(tmp_path: Path) -> None:
    assert run(PROGRAM, tmp_path, None) == ("False", [])
    assert run(PROGRAM, tmp_path, None, GTENSOR_NVTX="1") == ("True", [])


def test_without_the_package_there_are_no_ranges(logger: Path, tmp_path: Path) -> None:
    missing = "import sys; sys.modules['nvtx'] = None\n"
    assert run(missing + PROGRAM, tmp_path, logger, GTENSOR_NVTX="1") == ("False", [])


def test_ops_have_ranges_with_their_modules(logger: Path, tmp_path: Path) -> None:
    program = ("import gtensor as gt\n"
               "net = gt.nn.Sequential(gt.nn.Linear(2, 2))\n"
               "with gt.profiler.nvtx_ranges():\n    net(gt.ones((1, 2))).sum().backward()")
    inner = ["sum backward", "Sequential.0 linear backward"]
    opened = ["Sequential.0 linear forward", "Sequential sum forward", "backward", *inner]
    _, ranges = run(program, tmp_path, logger)
    assert [line.removeprefix("push gtensor ") for line in ranges if line.startswith("push")] == [
        label.replace("Sequential sum", "sum") for label in opened]
    assert ranges.count("pop gtensor") == len(opened) and ranges[-1] == "pop gtensor"


def test_attributes_are_prepared_once_per_label(logger: Path, tmp_path: Path) -> None:
    program = PROGRAM + "print(sorted(nvtx._attributes))"
    printed, _ = run(program, tmp_path, logger)
    assert printed == "True\n['matmul', 'relu backward']"
