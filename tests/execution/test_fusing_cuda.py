"""Fused elementwise calls on a CUDA device: the same bits, and few launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gtensor as gt
from execution.test_fusing import compared, rows_program, writing_program
from gtensor.execution.steps.recorder import Call

pytestmark = pytest.mark.gpu


def drawn(shape: tuple[int, ...], seed: int, dtype: str = "float32") -> gt.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return gt.tensor(values, device="cuda")


def focal(z: gt.Tensor, t: gt.Tensor) -> gt.Tensor:
    """A loss of logits written by hand, forward and backward."""
    z.grad = None
    p = 1 / (1 + gt.exp(-z))
    q = 1 - p
    loss = -(t * q * q * gt.log(p + 1e-7) + (1 - t) * p * p * gt.log(q + 1e-7)).mean()
    loss.backward()
    return loss


def calls(step: Any) -> list[str]:
    return [call.name for call in step.programs[0].listing.calls if isinstance(call, Call)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_loss_by_hand_has_the_same_bits_in_few_launches(dtype: str) -> None:
    def arguments(draw: int) -> list[gt.Tensor]:
        t = gt.where(drawn((33, 7), draw, dtype) > 0, 1.0, 0.25)
        return [drawn((33, 7), draw + 10, dtype).requires_grad_(), t.astype(dtype)]

    step, wrong = compared(focal, arguments, True)
    assert not wrong
    assert len(calls(step)) <= 10, calls(step)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_loss_over_rows_has_the_same_bits_in_few_launches(dtype: str) -> None:
    """The kernel of the rows computes what is one number of a row, for each of its elements."""
    def function(z: gt.Tensor, t: gt.Tensor) -> gt.Tensor:
        z.grad = None
        shifted = z - z.max(axis=1, keepdims=True).detach()
        logs = shifted - gt.log(gt.exp(shifted).sum(axis=1, keepdims=True))
        loss = -(t * logs).sum() / z.shape[0]
        loss.backward()
        return loss

    def arguments(draw: int) -> list[gt.Tensor]:
        return [drawn((33, 7), draw, dtype).requires_grad_(), drawn((33, 7), draw + 10, dtype)]

    step, wrong = compared(function, arguments, True)
    assert not wrong
    given = arguments(0)
    for _ in range(4):
        step(*given)
    names = calls(step)
    assert len(names) - names.count("reshape") <= 9, names


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_on_rows_have_the_same_bits(seed: int) -> None:
    with gt.device("cuda"):
        step, wrong = compared(
            *rows_program(seed, [((5,), 5), ((6,), 7), ((9,), 3), ((3, 4), 5)]), True)
    assert not wrong, f"{wrong}\n{step.text()}"


def test_a_number_of_each_row_is_not_written_for_each_element() -> None:
    """Its one user needs a sum of what the same kernel would make, and so runs later."""
    def function(x: gt.Tensor, c: gt.Tensor) -> list[gt.Tensor]:
        k = gt.exp(c)
        y = x * 2.0
        return [y, k * y.sum(axis=0)]

    step, wrong = compared(function, lambda draw: [drawn((5, 6), draw), drawn((5, 1), draw)], True)
    assert not wrong
    assert sorted(calls(step)) == ["exp", "multiply", "multiply", "sum"], calls(step)


def test_conditions_leave_a_kernel_and_enter_one() -> None:
    def function(x: gt.Tensor, y: gt.Tensor) -> list[gt.Tensor]:
        mask = x * 2.0 > y
        total = gt.where(mask, x, y).sum(axis=0)
        return [mask, total, gt.where(mask, x + total, 0.0) * 3.0]

    step, wrong = compared(
        function, lambda draw: [drawn((5, 6), draw), drawn((5, 6), draw + 10)], True)
    assert not wrong
    assert sum(name.startswith("fused") for name in calls(step)) == 2, calls(step)


@pytest.mark.parametrize("seed", range(6))
def test_random_writes_have_the_same_bits(seed: int) -> None:
    """Of what the step makes and of its arguments, which its graph has copies of."""
    with gt.device("cuda"):
        _, wrong = compared(*writing_program(seed), True)
    assert not wrong


def test_arguments_that_share_written_memory() -> None:
    def function(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        x += 1.0
        return y * 2.0

    step = gt.capture(function)
    x = gt.zeros((4,), device="cuda")
    with pytest.warns(UserWarning, match="one graph"):
        found = [step(x, x[1:]).numpy()[0] for _ in range(4)]
    assert found == [2.0, 4.0, 6.0, 8.0]
