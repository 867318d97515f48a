"""The tables of where the suite's time goes: what the plug-in writes, and how it is summed up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import suite_times

PROGRAM = Path(suite_times.__file__)
TESTS = """
import subprocess, sys

def test_that_computes():
    sum(range(30_000_000))

def test_that_starts_a_process():
    subprocess.run([sys.executable, "-c", "sum(range(30_000_000))"], check=True)
"""


def test_a_run_is_written_and_summed_up(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"SUITE_TIMES": "times", "PYTHONPATH": str(PROGRAM.parent)}
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "suite_times", "test_two.py"],
                   cwd=tmp_path, env=environment, check=True, capture_output=True)
    (file,) = (tmp_path / "times").iterdir()
    (_, computes, starts) = map(json.loads, file.read_text().splitlines())
    assert computes[0] == "test_two.py::test_that_computes" and computes[1] > 100 * computes[2]
    assert starts[2] > starts[1]
    shown = subprocess.run([sys.executable, str(PROGRAM), "times"], cwd=tmp_path, check=True,
                           capture_output=True, text=True).stdout
    assert "| all | 3 |" in shown


def test_rows_are_sums_and_the_longest_comes_first() -> None:
    lines = [("tests/ops/test_a.py::test", 3, 0, 3), ("tests/ops/test_b.py::test[x]", 1, 0, 1),
             ("tests/nn/test_c.py::test", 0.1, 8.9, 2), ("tests/func/test_d.py::t", 0.01, 0, 0.1),
             ("tests/test_e.py::t", 0.1, 0.1, 5)]
    folders = suite_times.table(lines, "folder", suite_times.folder).splitlines()
    assert folders[2:] == [
        "| nn | 1 | 9 | 9 | 2 |", "| ops | 2 | 4 | 0 | 4 |",
        "| files beside them | 1 | 0 | 0 | 5 |",
        "| others | 1 | 0 | 0 | 0 |", "| all | 5 | 13 | 9 | 11 |"]
    kinds = {suite_times.kind(*line) for line in lines}
    assert len(kinds) == 4


def test_a_folder_without_files_is_said(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True,
                         text=True)
    assert ran.returncode == 2 and "found no *.jsonl in the folder" in ran.stderr
