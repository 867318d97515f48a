"""What people type first runs, or its error says what to type."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.nn import functional as F

from .idioms import IDIOMS, ON_A_GPU, SAID

LINES = [line for lines in IDIOMS.values() for line in lines]
FEWEST = 240  # lines that run


def names() -> dict[str, Any]:
    """The names that the lines use, new for each: many write into them."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    w = gt.ones(3, requires_grad=True)
    (w * 2).sum().backward()
    return {"gt": gt, "np": np, "nn": nn, "F": F, "x": gt.random.normal((4, 3)),
            "y": gt.random.normal((3,)), "i": gt.tensor([0, 2]), "lin": nn.Linear(3, 2), "w": w,
            "net": net, "opt": gt.optim.Adam(net.parameters())}


@pytest.fixture(autouse=True)
def as_it_was(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The defaults and the generator afterwards; files in a folder that is thrown away."""
    monkeypatch.chdir(tmp_path)
    dtype, state = gt.get_default_dtype(), gt.random.get_state()
    yield
    gt.set_default_dtype(dtype)
    gt.random.set_state(state)


def typed(line: str) -> None:
    """Run one line, an expression or statements."""
    try:
        code = compile(line, "<typed>", "eval")
    except SyntaxError:
        code = compile(line, "<typed>", "exec")
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        repr(eval(code, names()))


@pytest.mark.parametrize("line", [line for line in LINES if line not in SAID])
def test_it_runs(line: str) -> None:
    if line in ON_A_GPU and not gt.cuda.is_available():
        with pytest.raises(gt.DeviceError, match=r"device 'cuda' given, but this machine has 0"):
            typed(line)
        return
    typed(line)


@pytest.mark.parametrize("line", SAID)
def test_its_error_says_what_to_type(line: str) -> None:
    with pytest.raises(Exception, match=SAID[line]):  # of the kind that fits: the sentence counts
        typed(line)


def test_most_lines_run_and_each_stands_once() -> None:
    assert len(LINES) == len({*LINES}) and {*SAID, *ON_A_GPU} <= {*LINES}
    assert len(LINES) - len(SAID) - len(ON_A_GPU) >= FEWEST
