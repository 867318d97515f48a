"""The page of silent differences from PyTorch: every row is run by both libraries."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt
import gtensor.nn.functional as F

PAGE = (Path(__file__).resolve().parents[2] / "docs/concepts/silent_differences.md").read_text(
    encoding="utf-8")
(SETUP,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.S | re.M)
LIBRARIES = {torch: SETUP.replace("import gtensor as lib", "import torch as lib"), gt: SETUP}


def rows(heading: str) -> list[list[list[str]]]:
    """The code of each cell of a section's table, but for the first column."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[re.findall(r"`([^`]+)`", cell) for cell in line.strip("| ").split(" | ")[1:]]
            for line in lines]


DIFFERENT, SAME = rows("What differs"), rows("What is the same")


def shown(value: Any) -> str:
    """A result as the page has it: values to four digits, tensors and tuples as lists."""
    def plain(part: Any) -> Any:
        if isinstance(part, (torch.Tensor, gt.Tensor)):
            return plain(part.tolist())
        if isinstance(part, (list, tuple)):
            return [plain(item) for item in part]
        return round(part, 4) if isinstance(part, float) else part

    if isinstance(value, (torch.dtype, np.dtype)):
        return str(value).removeprefix("torch.")
    return repr(plain(value))


def result(library: Any, text: str) -> str:
    """What a text gives, or the name of its error."""
    scope: dict[str, Any] = {}
    *statements, last = text.split("; ")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's guesses, and NumPy's division by 0
        exec(LIBRARIES[library], scope)
        try:
            for statement in statements:
                exec(statement, scope)
            return shown(eval(last, scope))
        except Exception as error:
            return type(error).__name__


@pytest.mark.parametrize("row", DIFFERENT, ids=lambda row: row[0][0])
def test_a_difference_is_as_shown(row):
    (text, *others), (theirs,), (ours,), way = row if len(row) == 4 else [*row, []]
    assert result(torch, text) == theirs
    assert result(gt, others[0] if others else text) == ours != theirs
    for same in way:
        assert result(gt, same) == theirs


@pytest.mark.parametrize(("text", "wanted"), [(a, b) for [a], [b] in SAME])
def test_what_is_the_same_is_as_shown(text, wanted):
    assert result(torch, text) == result(gt, text) == wanted


def test_the_page_has_the_rows():
    assert len(DIFFERENT) > 30 and len(SAME) > 12
    assert all(len(row) == 2 for row in SAME)


def test_a_row_that_is_no_longer_true_is_found():
    with pytest.raises(AssertionError):
        test_a_difference_is_as_shown([["x.sum()"], ["6.0"], ["5.0"], []])
    with pytest.raises(AssertionError):
        test_a_difference_is_as_shown([["x.std()"], ["1.0"], ["0.8165"], ["x.std()"]])
    with pytest.raises(AssertionError):
        test_what_is_the_same_is_as_shown("x.std()", "1.0")


def test_the_same_seed_draws_other_numbers():
    torch.manual_seed(0)
    gt.manual_seed(0)
    assert torch.rand(3).tolist() != gt.random.uniform((3,)).tolist()


AFFECTED = [
    gt.std, gt.var, gt.repeat, gt.meshgrid, gt.sort, gt.max, gt.min, gt.nonzero, gt.flip, gt.take,
    gt.tensor, gt.data.default_collate, gt.sum, gt.mean, gt.sign, gt.squeeze, gt.broadcast_to,
    gt.result_type, F.softmax, F.log_softmax, F.mse_loss, F.l1_loss, F.huber_loss,
    F.smooth_l1_loss, gt.equal, gt.floor_divide, gt.Tensor.T, gt.Tensor.backward,
    gt.Tensor.requires_grad_, gt.nn.Module.load_state_dict, gt.manual_seed,
]


@pytest.mark.parametrize("function", AFFECTED, ids=lambda f: getattr(f, "__name__", "T"))
def test_the_docstring_says_it(function):
    assert "PyTorch" in function.__doc__
