"""PyTorch's methods that end in `_` write the tensor itself, by the rule of `x += 1`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt

OTHERS: dict[str, tuple[Any, ...]] = {  # arguments, arrays of x's shape among them
    "add_": (2.0,), "sub_": (2.0,), "mul_": (3.0,), "div_": (4.0,), "pow_": (2.0,),
    "remainder_": (0.3,), "floor_divide_": (0.3,), "fill_": (2.0,),
    "zero_": (), "copy_": (np.arange(6.0).reshape(2, 3),),
    "masked_fill_": (np.array([[True, False, True]] * 2), 5.0),
    "masked_scatter_": (np.array([[True, False, True]] * 2), np.arange(6.0)),
    "scatter_": (1, np.array([[0, 2], [1, 0]]), np.ones((2, 2))),
    "scatter_add_": (1, np.array([[0, 2], [1, 1]]), np.ones((2, 2))),
    "index_add_": (0, np.array([1, 1, 0]), np.ones((3, 3))),
    "lerp_": (np.ones((2, 3)), 0.25), "addcmul_": (np.ones((2, 3)), np.full((2, 3), 2.0)),
    "addcdiv_": (np.ones((2, 3)), np.full((2, 3), 2.0)),
    "bitwise_and_": (), "bitwise_or_": (), "bitwise_xor_": (),
    "normal_": (0.0, 1.0), "uniform_": (0.0, 1.0), "bernoulli_": (0.5,),
}
NUMBERS = [n for n in OTHERS if n[0] != "b" and n not in ("normal_", "uniform_")]

NOT_IN_TORCH = {  # which has no derivative of it
    "floor_divide_": lambda x, y: torch.div(x, y, rounding_mode="floor")}


def _given(make: Any, arguments: tuple[Any, ...]) -> list[Any]:
    return [make(a) if isinstance(a, np.ndarray) else a for a in arguments]


@pytest.mark.parametrize("name", NUMBERS)
def test_it_does_to_x_and_its_gradient_what_pytorch_does(
    name: str, rng: np.random.Generator
) -> None:
    """Of a value that was saved before, too: x is used before the write and after it."""
    start = rng.uniform(0.2, 0.8, (2, 3))
    found = []
    for library, make in ((gt, gt.tensor), (torch, torch.tensor)):
        leaf = make(start, requires_grad=True)
        x = leaf * 1.0
        before = (x * 1.0).sum()
        given = _given(make, OTHERS[name])
        if library is torch and name in NOT_IN_TORCH:
            x = NOT_IN_TORCH[name](x, *given)
        else:
            y = getattr(x, name)(*given)
            assert y is x
        (before + (x * make(np.arange(6.0).reshape(2, 3))).sum()).backward()
        found.append((x.detach().numpy(), leaf.grad.numpy()))
    (value, slope), (wanted, wanted_slope) = found
    assert np.allclose(value, wanted, rtol=1e-12) and np.allclose(slope, wanted_slope, rtol=1e-10)


@pytest.mark.parametrize("name", NUMBERS)
def test_views_see_the_write_and_leaves_refuse_it(name: str, rng: np.random.Generator) -> None:
    x = gt.tensor(rng.uniform(0.2, 0.8, (2, 3)))
    row, memory = x[0], x.numpy()
    getattr(x, name)(*_given(gt.tensor, OTHERS[name]))
    assert np.array_equal(row.numpy(), x.numpy()[0], equal_nan=True) and x.numpy() is not None
    assert np.shares_memory(memory, x.numpy())
    leaf = gt.tensor(rng.uniform(0.2, 0.8, (2, 3)), requires_grad=True)
    with pytest.raises(gt.GradientError, match="on a leaf that requires a gradient"):
        getattr(leaf, name)(*_given(gt.tensor, OTHERS[name]))
    with gt.no_grad():
        getattr(leaf, name)(*_given(gt.tensor, OTHERS[name]))


def test_bits_are_combined_and_draws_are_written() -> None:
    x = gt.tensor([1, 2, 3])
    assert x.bitwise_and_(3).bitwise_or_(4).bitwise_xor_(1).tolist() == [4, 7, 6]
    gt.manual_seed(0)
    y = gt.zeros((100,), dtype="float64")
    assert y.normal_(2, 0.5) is y and 1.5 < y.mean().item() < 2.5
    assert y.uniform_(3, 4) is y and 3 <= y.min().item() <= y.max().item() < 4
    source = gt.Generator().manual_seed(0)
    assert y.bernoulli_(0.25, generator=source) is y and 5 <= y.sum().item() <= 45
    assert gt.ones(2).bernoulli_(gt.tensor([1.0, 0.0])).tolist() == [1, 0]
    assert gt.zeros(2, 2).normal_(generator=gt.Generator().manual_seed(1)).tolist() == (
        gt.random.randn(2, 2, generator=gt.Generator().manual_seed(1)).tolist())
    assert gt.ones(2).add_(gt.ones(2), alpha=3).sub_(1, alpha=2).tolist() == [2, 2]
    assert gt.ones(2, dtype="int8").copy_(gt.tensor([1.5, 2.5])).tolist() == [1, 2]


def test_every_method_that_ends_so_is_tried() -> None:
    from gtensor.system.foreign_names import ALIASES

    named = {target.rpartition(":")[2] for target in ALIASES["gtensor.Tensor"].values()
             if target.startswith("gtensor.composed.in_place:")}
    assert named == {*OTHERS}


def test_an_argument_that_a_form_lacks_is_refused_by_the_form_s_name() -> None:
    with pytest.raises(TypeError, match=r"Tensor\.div_\(\) got an unexpected .*rounding_mode"):
        gt.ones(2).div_(2, rounding_mode="floor")
