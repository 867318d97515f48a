"""The ladder of the host's time: checked with kernels run, timed without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gtensor.hostcuda.children import VARIABLE

pytestmark = [pytest.mark.host_cuda, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def measured(part, tmp_path):
    without = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "profiling/host_time.py", "--quick", "--only", part,
               "--out", tmp_path]
    ran = subprocess.run(command, env=without | {"PYTHONPATH": str(ROOT)}, cwd=ROOT,
                         capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads((tmp_path / f"host_time-{part}.json").read_text())


def test_it_measures(tmp_path):
    ladder, = measured("add", tmp_path)["ladders"]
    errors = {rung["name"]: rung["error"] for rung in ladder["rungs"]}
    assert errors["gtensor, backward too"] < 1e-6 and len(errors) == 5


def test_the_limits_are_compared_with_cupy(tmp_path):
    found = measured("limits", tmp_path)
    ratios = [ratio for ladder in found["ladders"] for ratio in ladder["ratios"] if ratio["target"]]
    assert [ratio["target"] for ratio in ratios] == [1.35, 1.3]
    assert [figure["target"] for figure in found["figures"]] == [1.7, 1.7]
