"""A run of tests that cannot end says why, and ends; one that can is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TEST = """
import threading
gate = threading.Event()
def stuck():
    gate.wait({wait})
def test_passes():
    threading.Thread(target=stuck).start()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("wait, status", [("None", 1), ("0.01", 0)])
def test_a_thread_left_behind_is_named_and_ends_the_run(tmp_path, wait, status):
    conftest = (Path(__file__).parent / "conftest.py").read_text()
    assert "END = 120" in conftest
    (tmp_path / "conftest.py").write_text(conftest.replace("END = 120", "END = 1"))
    (tmp_path / "test_one.py").write_text(TEST.format(wait=wait))
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", str(tmp_path)], timeout=900,
                          text=True, capture_output=True, cwd=tmp_path)
    assert done.returncode == status and "1 passed" in done.stdout
    assert ("stuck" in done.stderr) == bool(status)
