"""An index out of range on CUDA: an error as on the CPU under GTENSOR_DEBUG, never a wait else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gtensor as gt
import gtensor.nn.functional as F

pytestmark = pytest.mark.gpu


def _written(x: gt.Tensor, i: gt.Tensor) -> None:
    x[i] = 1.0


CALLS: dict[str, Callable[[gt.Tensor, gt.Tensor], Any]] = {
    "x[i]": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x[:, i],
    "x[i, i]": lambda x, i: x[i, i],
    "x[i] = 1": _written,
    "take": lambda x, i: gt.take(x, i, axis=1),
    "take_along_axis": lambda x, i: gt.take_along_axis(x, i[:, None]),
    "embedding": lambda x, i: F.embedding(i, x),
    "cross_entropy": F.cross_entropy,
    "nll_loss": F.nll_loss,
    "one_hot": lambda x, i: F.one_hot(i, 4),
}


@pytest.mark.parametrize("name", CALLS)
def test_debugging_refuses_an_index_out_of_range(name: str) -> None:
    x = gt.ones((4, 4), device="cuda")
    wrong, right = (gt.tensor([0, 3, 1, last], device="cuda") for last in (4, 2))
    with gt.settings.override(debug=1):
        with pytest.raises((IndexError, ValueError), match=r"\b4\b"):
            CALLS[name](x, wrong)
        assert x.sum().item() == 16
        CALLS[name](x, right)


def test_debugging_looks_at_no_index_in_a_capture() -> None:
    x, i = gt.arange(4.0, device="cuda"), gt.tensor([1, 3], device="cuda")
    graph = gt.Graph()
    with gt.settings.override(debug=1):
        x[i]
        with graph.capture():
            y = x[i]
        graph.replay()
    assert y.tolist() == [1, 3]
