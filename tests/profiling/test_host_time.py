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


def test_it_measures(tmp_path):
    without = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "profiling/host_time.py", "--quick", "--only", "add",
               "--out", tmp_path]
    ran = subprocess.run(command, env=without | {"PYTHONPATH": str(ROOT)}, cwd=ROOT,
                         capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    ladder, = json.loads((tmp_path / "host_time-add.json").read_text())["ladders"]
    errors = {rung["name"]: rung["error"] for rung in ladder["rungs"]}
    assert errors["gtensor, backward too"] < 1e-6 and len(errors) == 5
