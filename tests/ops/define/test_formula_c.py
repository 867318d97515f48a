"""Formulas in C: the text that is compiled is the one that the writer writes, and it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import compiled
from gtensor.settings import settings

FOLDER = Path(gt.__file__).parent / "ops" / "define" / "c"


def test_the_compiled_text_is_what_the_formulas_are(tmp_path: Path) -> None:
    """In a process of its own: tests have made more formulas here."""
    subprocess.run([sys.executable, "-m", "formulas_in_c", str(tmp_path)], check=True)
    for file in sorted(FOLDER.glob("*.c")):
        assert file.read_text("utf-8") == (tmp_path / file.name).read_text("utf-8")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_formula_runs_in_c_and_in_numpy(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    right = compiled.run
    monkeypatch.setattr(compiled, "run", lambda *given: (ran.append(given[4]), right(*given)))
    values = np.random.default_rng().standard_normal(5_001).astype(dtype)
    values[:4] = np.nan, np.inf, -np.inf, -0.0
    x = gt.asarray(values)
    in_c = gt.nn.functional.gelu(x).numpy()
    assert ran == [5_001]
    with settings.override(compiled=0):
        in_numpy = gt.nn.functional.gelu(x).numpy()
    assert ran == [5_001]
    assert np.array_equal(np.isnan(in_c), np.isnan(in_numpy))
    some = np.isfinite(in_numpy)
    assert np.max(np.abs(in_c[some] - in_numpy[some])) <= 4 * np.finfo(dtype).eps
    assert np.array_equal(np.signbit(in_c[1:4]), np.signbit(in_numpy[1:4]))
