"""Public idioms: programs run unchanged but for their import lines, and give PyTorch's values."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt

FOLDER = Path(__file__).parent / "programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in
                  ("__init__", "start"))
IMPORTS = ((r"^import torch$", "import gtensor as torch"),
           (r"^import torch\.", "import gtensor."),
           (r"^from torch\.utils\.data ", "from gtensor.data "),
           (r"^from torch\b", "from gtensor"))


@pytest.fixture(autouse=True)
def _default_dtypes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    before = torch.get_default_dtype(), gt.get_default_dtype()
    yield
    torch.set_default_dtype(before[0])
    gt.set_default_dtype(before[1])
    sys.modules.pop("start", None)


def run(name: str, library: str) -> dict[str, Any]:
    """What the program leaves in `results`."""
    path = FOLDER / f"{name}.py"
    text = path.read_text()
    if library == "gtensor":
        for wanted, ours in IMPORTS:
            text = re.sub(wanted, ours, text, flags=re.M)
        assert "gtensor" in text
    spaces: dict[str, Any] = {"__name__": f"programs.{name}"}
    exec(compile(text, str(path), "exec", dont_inherit=True), spaces)
    return spaces["results"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_text_gives_the_same_values_under_both_libraries(name: str) -> None:
    theirs, ours = run(name, "torch"), run(name, "gtensor")
    assert [*ours] == [*theirs]
    for key, value in theirs.items():
        assert np.shape(ours[key]) == np.shape(value), key
        np.testing.assert_allclose(ours[key], value, rtol=1e-3, atol=2e-5, err_msg=key)


def test_there_are_twelve_programs() -> None:
    assert len(PROGRAMS) >= 12
