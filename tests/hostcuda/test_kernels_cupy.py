"""Kernels that the real CuPy generates, on the host device (cupy_kernels.py says which)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from .through import outside

PROGRAM = Path(__file__).parent / "cupy_kernels.py"
CHECKS = re.findall(r"^def (check_\w+)", PROGRAM.read_text(), re.MULTILINE)
TYPED = ("check_elementwise", "check_reductions", "check_block_reductions_of_cub")


@cache
def results(types: str) -> dict[str, str]:
    """What each check raised; in another process: CuPy finds its devices when it is imported."""
    ran = subprocess.run([sys.executable, "-m", "gtensor.hostcuda", str(PROGRAM), types],
                         capture_output=True, text=True, cwd=PROGRAM.parents[2],
                         env=outside())
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("check", CHECKS)
def test_cupys_kernels(check: str) -> None:
    assert results("short")[check] == ""


@pytest.mark.slow
@pytest.mark.parametrize("check", TYPED)
def test_cupys_kernels_in_the_other_dtypes(check: str) -> None:
    assert results("long")[check] == ""
