"""Public functions and their gradients against PyTorch's, on PyTorch's own samples of its ops.

By default a few samples of each op; `-m slow` compares all of them, in three layouts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import gtensor as gt
from gtensor.testing.compare import CheckError
from torch_samples import algebra, arranging, elementwise, neural, reductions
from torch_samples.cases import Skip, always, never, same
from torch_samples.sampling import compare_op, database

pytestmark = pytest.mark.thorough  # importing PyTorch's samples takes seconds
CASES = [case for family in (elementwise, reductions, arranging, algebra, neural)
         for case in family.TABLE]
BY_NAME = {case.name: case for case in CASES}
FEW = 6


@pytest.mark.parametrize("name", BY_NAME)
def test_a_few_samples(name: str) -> None:
    compare_op(BY_NAME[name], database()[name], FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_every_sample(name: str) -> None:
    compare_op(BY_NAME[name], database()[name])


def test_an_op_has_one_row_in_the_table() -> None:
    assert not [name for name, count in Counter(case.name for case in CASES).items() if count > 1]


# -- the comparison finds what is wrong ----------------------------------------------------------


def _writing(x: gt.Tensor) -> gt.Tensor:
    y = gt.exp(x)
    x.array[...] = 0
    return y


def _only_contiguous(x: gt.Tensor) -> gt.Tensor:
    return gt.exp(x) if x.array.flags.c_contiguous else gt.exp(x) + 1


FAULTS: dict[str, tuple[Any, str]] = {
    "a value": (lambda x: gt.exp(x) * (1 + 1e-8), "the result, element .* differ"),
    "the shape": (lambda x: gt.expand_dims(gt.exp(x), axis=0), "gtensor has shape"),
    "the gradient": (lambda x: gt.exp(x) + 1e-6 * (x - x.detach()), "the gradient of diff"),
    "the second derivative": (
        lambda x: gt.exp(x) * (1 + 1e-5 * (x - x.detach()) ** 2), "second derivative 0"),
    "no gradient": (lambda x: gt.exp(x.detach()), "the gradient of diff"),
    "the dtype": (lambda x: gt.astype(gt.exp(x), gt.complex128), "is of complex128; PyTorch's"),
    "two results": (lambda x: (gt.exp(x), x), "2 results; wanted 1"),
    "no tensor": (lambda x: gt.exp(x).numpy(), "is a ndarray; wanted a Tensor"),
    "an input written": (_writing, "input tensor 0 after the call"),
    "strides": (_only_contiguous, "strided: CheckError: the result"),
    "an error": (lambda x: gt.exp(x, x), "TypeError"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    function, message = FAULTS[fault]
    with pytest.raises(CheckError, match=message):
        compare_op(replace(BY_NAME["exp"], ours=function), database()["exp"], FEW)


def test_a_skip_that_leaves_nothing_out_fails() -> None:
    case = same("exp", gt.exp, Skip("no reason", never))
    with pytest.raises(CheckError, match="leave nothing out: .'no reason'"):
        compare_op(case, database()["exp"], FEW)


def test_skips_that_leave_everything_out_fail() -> None:
    case = same("exp", gt.exp, Skip("no reason", always))
    with pytest.raises(CheckError, match="every sample is skipped"):
        compare_op(case, database()["exp"], FEW)


def test_a_gradient_that_is_said_to_be_refused_must_be_refused() -> None:
    with pytest.raises(CheckError, match="refuses a gradient here, and it gave one"):
        compare_op(replace(BY_NAME["exp"], refuses=always), database()["exp"], FEW)
    with pytest.raises(CheckError, match="nextafter .*has no derivative"):
        compare_op(replace(BY_NAME["nextafter"], refuses=never), database()["nextafter"], FEW)
