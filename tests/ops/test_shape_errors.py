"""Shapes that do not fit: the sentence names the call, its arguments and the user's line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gtensor as gt
import gtensor.nn.functional as F
from gtensor import nn

ones = partial(gt.ones, device="cpu")
X, LONG = ones((2, 3)), ones(4)
AGREE = r"wanted shapes whose axes agree or are 1, counted from the last"


def added_to(target: gt.Tensor, value: Any) -> None:
    target += value


@pytest.mark.parametrize("call, words", [
    (lambda: X + LONG, rf"^add of shapes \(2, 3\) and \(4,\); {AGREE}"),
    (lambda: X + np.ones(4), rf"^add of shapes \(2, 3\) and \(4,\); {AGREE}"),
    (lambda: X.clone().requires_grad_() * LONG, rf"^multiply of shapes .*; {AGREE}"),
    (lambda: gt.where(X > 0, LONG, X), rf"^where of shapes \(2, 3\), \(4,\) and \(2, 3\); {AGREE}"),
    (lambda: added_to(ones((2, 3)), LONG),
     r"in-place add of shape \(4,\) into shape \(2, 3\); wanted a shape that broadcasts"),
    (lambda: ones((2, 3, 4)) @ ones((5, 4, 6)),
     r"matmul of shapes \(2, 3, 4\) and \(5, 4, 6\): the leading axes .*; wanted lengths"),
    (lambda: gt.linalg.solve(ones((2, 3, 3)), ones((4, 3, 2))),
     r"solve of shapes \(2, 3, 3\) and \(4, 3, 2\): the leading axes .*; wanted lengths"),
    (lambda: gt.linalg.solve_triangular(ones((2, 3, 3)), ones((4, 3, 2))),
     r"solve_triangular of shapes \(2, 3, 3\) and \(4, 3, 2\): the leading axes"),
    # functions of several ops name their own arguments
    (lambda: gt.lerp(X, LONG, 0.5),
     rf"^lerp was given x1 of shape \(2, 3\), x2 of shape \(4,\): subtract of .*; {AGREE}"),
    (lambda: F.cosine_similarity(X, [1.0] * 4),
     r"^cosine_similarity was given x1 of shape \(2, 3\), x2 of shape \(4,\): broadcast_arrays"),
    (lambda: gt.addmm(ones(7), ones((2, 3)), ones((3, 4))),
     r"^addmm was given input of shape \(7,\), mat1 of shape \(2, 3\), mat2 of .*: add of"),
    (lambda: X.masked_fill(LONG > 0, 1.0), r"^masked_fill was given x .*, mask of shape \(4,\): w"),
    # under `vmap` the shapes are those of an example
    (lambda: gt.vmap(lambda a, b: a + b)(X, ones((2, 4))),
     rf"^add of shapes \(3,\) and \(4,\); {AGREE}"),
    (lambda: gt.vmap(gt.vmap(lambda a, b: a + b))(ones((2, 3, 5)), ones((2, 3, 7))),
     rf"^add of shapes \(5,\) and \(7,\); {AGREE}"),
    (lambda: gt.jvp(lambda a: a + LONG, (X,), (X,)), rf"^add of shapes .*; {AGREE}"),
])
def test_the_call_is_named_with_its_shapes(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        call()
    error.match(words)


def test_a_note_has_the_users_line_once() -> None:
    with pytest.raises(ValueError) as error:
        gt.vmap(lambda a: gt.lerp(a, LONG, 0.5))(X)
    (note,) = error.value.__notes__
    assert note.startswith("called at ") and "gt.vmap(lambda a: gt.lerp" in note
    assert __file__ in note


def test_an_error_that_is_of_no_shapes_stays_as_it_is() -> None:
    with pytest.raises(ValueError) as error:
        gt.where(X > 0, X, ones((2, 3), dtype=gt.float64)).reshape((5,))
    assert not hasattr(error.value, "__notes__")


@pytest.mark.parametrize("call, error, words", [
    (lambda: gt.flatten(X, "abc"), TypeError, "flatten was given start_dim='abc'; wanted an int"),
    (lambda: gt.zeros(b"xx"), TypeError, "zeros was given shape=b'xx'|shape b'xx' given; wanted"),
    (lambda: gt.mean(X, axis=""), TypeError, "mean was given axis=''; wanted an integer"),
    (lambda: gt.checkpoint.save_file([1], "x"), TypeError, r"tensors=\[1\]; wanted a mapping"),
    (lambda: gt.memory.stats([1]), TypeError, r"device=\[1\]; wanted a device"),
    (lambda: gt.grad(X.sum(), 5), TypeError, "inputs of type int; wanted a Tensor"),
    (lambda: gt.grad(X.sum(), [5]), TypeError, "grad.* was given int where a gradient starts"),
    (lambda: gt.vmap(5), TypeError, "vmap was given function=5; wanted a function"),
    (lambda: nn.MSELoss(reduction=nn.Linear(2, 2)), TypeError, "reduction=Linear.*wanted a string"),
    (lambda: gt.distributed.DataParallel(nn.Linear(2, 2), 5), TypeError, "comm=5; wanted a commun"),
    (lambda: gt.distributed.DataParallel(5, 5), TypeError, "DataParallel was given .*wanted a Mod"),
    (lambda: gt.Tensor.sum("a"), TypeError, r"sum \(x\) was given str"),
    (lambda: gt.Tensor.detach([1.0]), TypeError, r"detach was given self=\[1.0\]; wanted a Tensor"),
    (lambda: gt.Tensor.__getitem__([1.0], 0), TypeError, "__getitem__ was given self=.*a Tensor"),
    (lambda: gt.Tensor.__iadd__("a", X), TypeError, "__iadd__ was given self='a'; wanted a Tensor"),
    (lambda: gt.Tensor.exp_("a"), TypeError, "wanted a Tensor"),
    (lambda: X.exp_(2), TypeError, r"exp_\(\) takes 1 positional argument but 2 were given"),
    (lambda: F.relu_(X, 3), TypeError, r"relu_\(\) takes 1 positional argument but 2 were given"),
    (lambda: X @ X.mT @ "a", TypeError, "wanted"),
    (lambda: nn.LSTM(3, 2, num_layers=2 ** 62), ValueError, "num_layers=.*a number from 1 to"),
    (lambda: nn.init.ones_([1.0]), TypeError, r"ones_ was given tensor=\[1.0\]; wanted a Tensor"),
])
def test_an_argument_of_another_kind_is_named(
    call: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.host_cuda
@pytest.mark.parametrize("key", ["a", {}, (None, "b"), 1.5])
def test_what_is_no_index_is_refused_on_cuda_as_on_the_cpu(key: Any) -> None:
    for device in ("cpu", "cuda"):
        with pytest.raises(IndexError, match=r"an index of dtype .* given; wanted integers or boo"):
            gt.ones((2, 3), device=device)[key]
