"""The second run of a checkpointed function: the same numbers, the same ops, or an error."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.engine.handle.context import STATE
from gtensor.nn import functional as F
from gtensor.nn import utils
from gtensor.nn.utils import checkpoint

from .regions import Function, assert_same, check, draw, gradients

# -- random numbers -------------------------------------------------------------------------------


def noisy(x: gt.Tensor) -> gt.Tensor:
    x = F.dropout(x.tanh(), 0.4)
    x = x * gt.random.normal(x.shape, dtype="float64") + x.exp()
    return F.dropout(x, 0.5) * (x + gt.random.permutation(x.shape[1]).astype("float64"))


def test_random_numbers_repeat_themselves() -> None:
    x = draw(30, 50)
    check(noisy, [x], x)
    wanted = gradients(lambda: noisy(noisy(x)), [x])
    assert_same(gradients(lambda: checkpoint(lambda x: checkpoint(noisy, noisy(x)), x), [x]),
                wanted)


def test_the_global_state_is_that_of_one_run() -> None:
    x = draw(3, 5)
    gt.manual_seed(5)
    noisy(x)
    after = gt.random.get_state()
    gt.manual_seed(5)
    y = checkpoint(noisy, x)
    assert gt.random.get_state() == after
    gt.random.normal((3,))
    now = gt.random.get_state()
    y.sum().backward()
    assert gt.random.get_state() == now != after


def test_a_function_that_sets_the_seed() -> None:
    x = draw(3, 5)

    def function(x: gt.Tensor) -> gt.Tensor:
        gt.manual_seed(11)
        return noisy(x)

    check(function, [x], x)
    y = checkpoint(function, x)
    gt.manual_seed(6)
    before = gt.random.get_state()
    y.sum().backward()
    assert gt.random.get_state() == before


def test_other_threads_do_not_notice() -> None:
    """While one thread runs again, another draws from the process's generator."""
    x, drawn, runs = draw(3, 5), [], []

    def function(x: gt.Tensor) -> gt.Tensor:
        runs.append(1)
        if len(runs) == 2:
            other = threading.Thread(target=lambda: drawn.append(gt.random.normal((4,)).numpy()))
            other.start()
            other.join()
        return noisy(x)

    y = checkpoint(function, x)
    gt.manual_seed(8)
    y.sum().backward()
    gt.manual_seed(8)
    np.testing.assert_array_equal(drawn[0], gt.random.normal((4,)).numpy())


# -- functions that are not the same twice --------------------------------------------------------


def by_turns(*bodies: Function) -> Function:
    remaining = list(bodies)
    return lambda x: remaining.pop(0)(x)


DIFFERENT = {
    "another op": (lambda x: x.tanh().exp(), lambda x: gt.sin(x.tanh()),
                   r"exp of shape \(3, 4\).*in its first run and sin of shape"),
    "another shape": (lambda x: x[:2].exp().sum(), lambda x: x[:1].exp().sum(),
                      r"slice of shape \(2, 4\).*first run and slice of shape \(1, 4\)"),
    "another dtype": (lambda x: x.exp(), lambda x: x.astype("float32").exp(),
                      "exp of shape .*float64.* first run and astype of shape"),
    "fewer ops": (lambda x: x.exp().tanh(), lambda x: x.exp(),
                  "tanh of shape .*in its first run and nothing more in the second"),
    "more ops": (lambda x: x.exp(), lambda x: x.exp().tanh(),
                 "nothing more in its first run and tanh of shape"),
    "no history": (lambda x: x.exp(), lambda x: x.detach().exp(),
                   "exp of shape .*in its first run and nothing more"),
    "another mask": (lambda x: F.dropout(x.exp(), 0.5, seed=1),
                     lambda x: F.dropout(x.exp(), 0.5, seed=2),
                     "dropout of shape .*seed=1 .*in its first run and dropout .*seed=2"),
}


@pytest.mark.parametrize("create_graph", (False, True))
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_function_that_changes_is_an_error(name: str, create_graph: bool) -> None:
    first, second, said = DIFFERENT[name]
    x = draw(3, 4)
    loss = checkpoint(by_turns(first, second), x).sum()
    with pytest.raises(gt.GradientError, match=said) as error:
        loss.backward(create_graph=create_graph)
    assert "test_checkpointing_runs.py:" in str(error.value)  # where it was
    assert x.grad is None


def test_a_norm_in_another_mode_is_an_error() -> None:
    norm, x = nn.BatchNorm1d(4).to("float64"), draw(3, 4)
    y = checkpoint(norm, x)
    norm.eval()
    with pytest.raises(gt.GradientError, match=r"batch_norm .*training=True.*training=False"):
        y.sum().backward()


def test_an_error_in_the_second_run_leaves_everything_as_it_was() -> None:
    x, w = draw(3, 4), draw(4, 4)
    x.grad, w.grad = x.detach() * 2.0, w.detach() * 3.0
    before = [x.grad, w.grad]

    def fails(x: gt.Tensor) -> gt.Tensor:
        noisy(x)
        raise KeyError("planted")

    norm = nn.BatchNorm1d(4).to("float64")
    y = checkpoint(by_turns(lambda x: norm(x.exp()), fails, lambda x: norm(x.exp())), x @ w)
    state = gt.random.get_state()
    loss = (y * y).sum()
    with pytest.raises(KeyError, match="planted"):
        loss.backward(retain_graph=True)
    assert [x.grad, w.grad] == before
    assert gt.random.get_state() == state
    assert gt.is_grad_enabled()
    assert not STATE.recomputing
    loss.backward()  # the third run is right again
    assert int(norm.num_batches_tracked) == 1
    again = x.grad.numpy() - 2.0 * x.detach().numpy()
    x.grad = None
    (norm((x @ w).exp()) ** 2).sum().backward()
    np.testing.assert_allclose(again, x.grad.numpy(), rtol=1e-12, atol=1e-12)


def test_another_dropout_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "repetition", lambda: nullcontext)
    with pytest.raises(gt.GradientError, match="dropout of shape .*seed="):
        test_random_numbers_repeat_themselves()
    x = draw(30, 50)
    with pytest.raises(AssertionError):  # noise that no parameter of an op tells
        check(lambda x: x.exp() * gt.random.normal((30, 50), dtype="float64"), [x], x)
