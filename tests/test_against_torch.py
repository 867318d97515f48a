"""The comparison with PyTorch finds what is wrong with a function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from against_torch import compare

import gtensor as gt
from gtensor.testing import CheckError


def _writing(x: gt.Tensor) -> gt.Tensor:
    y = gt.exp(x)
    x._array[...] = 0
    return y


FAULTS: dict[str, tuple[Any, str]] = {
    "a value": (lambda x: gt.exp(x) * (1 + 1e-10), "value, contiguous, element"),
    "the shape": (lambda x: gt.expand_dims(gt.exp(x), axis=0), "value, contiguous: gtensor has"),
    "the gradient": (lambda x: gt.exp(x) + 1e-8 * (x - x.detach()), "gradient 0, contiguous"),
    "the second derivative": (
        lambda x: gt.exp(x) * (1 + 1e-6 * (x - x.detach()) ** 2), "second derivative 0"),
    "strides": (lambda x: gt.exp(x) + (not x._array.flags.c_contiguous), "value, strided"),
    "an input written": (_writing, "input 0 was written"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    function, message = FAULTS[fault]
    x = np.linspace(0.5, 1.5, 6).reshape(2, 3)
    compare(gt.exp, torch.exp, [x])
    with pytest.raises(CheckError, match=message):
        compare(function, torch.exp, [x])


def test_each_part_of_a_complex_gradient_counts() -> None:
    z = np.array([0.5 + 1j, -1 + 0.25j])
    compare(gt.exp, torch.exp, [z])
    with pytest.raises(CheckError, match="gradient 1, contiguous"):
        compare(lambda z: gt.exp(z) + 1e-8 * (gt.imag(z) - gt.imag(z).detach()), torch.exp, [z])
