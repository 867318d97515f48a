"""What a hostile review found: each was wrong once."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import pytest

import gtensor as gt
from gtensor.nn import functional as F


def leaf(*values: float) -> gt.Tensor:
    return gt.tensor(values, gt.float64, requires_grad=True)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX, if a test imported it
def test_a_forked_child_does_not_write_the_parents_tensors():
    x = gt.zeros((1 << 20,))
    child = os.fork()
    if not child:
        x += 7
        os._exit(0)
    os.waitpid(child, 0)
    assert x[:3].tolist() == [0, 0, 0]


@pytest.mark.parametrize("index", [np.array([0, 1]), gt.tensor([0, 1])], ids=["array", "tensor"])
def test_an_index_written_later_does_not_move_the_gradient_of_the_value(index):
    buffer, w = gt.zeros(5, gt.float64), leaf(1, 2)
    buffer[index] = w
    index[:] = 3
    (buffer * gt.arange(5, dtype=gt.float64)).sum().backward()
    assert w.grad.tolist() == [0, 1]


def test_an_array_operand_written_later_does_not_change_the_gradient():
    x, batch = leaf(1, 2, 3), np.ones(3)
    y = (x * batch).sum()
    batch[:] = 100
    y.backward()
    assert x.grad.tolist() == [1, 1, 1]


def test_a_shallow_copy_shares_the_version():
    x = leaf(1, 2)
    y = x * 2
    other = copy.copy(y)
    z = (y * y).sum()
    with gt.no_grad(), pytest.raises(gt.GradientError):
        other *= 0
        z.backward()


def test_pickle_carries_values():
    x = leaf(1, 2)
    again = pickle.loads(pickle.dumps(x))
    assert again.tolist() == [1, 2] and again.requires_grad
    again._own_storage().version += 1
    assert gt.ones(2)._storage.version == 0


def test_pickles_name_no_file_of_the_engine():
    model = gt.nn.Linear(2, 3)
    state = gt.optim.Adam(model.parameters(), lr=0.1).state_dict()
    assert b"gtensor.engine" not in pickle.dumps((leaf(1, 2), model, state, gt.device("cpu")))


def test_the_power_0_has_gradient_0_at_0():
    x = leaf(0, 1)
    (x ** 0).sum().backward()
    assert x.grad.tolist() == [0, 0]


def test_the_mean_of_many_half_floats_has_a_gradient():
    x = gt.ones((70000,), dtype=gt.float16, requires_grad=True)
    x.mean().backward()
    assert x.grad[0].item() == pytest.approx(1 / 70000, rel=1e-2)


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_share_no_memory(create_graph):
    x, y, seed = leaf(1, 2), leaf(3, 4), gt.ones(2, gt.float64)
    a, b, c = gt.grad(x + y, [x, y, x], [seed], create_graph=create_graph)
    with gt.no_grad():
        a *= 5
    assert b.tolist() == c.tolist() == seed.tolist() == [1, 1]


@pytest.mark.parametrize("data", [np.zeros(2, np.complex64), np.zeros(2, int)])
def test_only_real_floats_have_gradients(data):
    with pytest.raises(TypeError, match="floating-point"):
        gt.asarray(data).requires_grad_()


def test_set_grad_enabled_can_be_called():
    gt.set_grad_enabled(False)
    try:
        assert not gt.is_grad_enabled()
    finally:
        gt.set_grad_enabled(True)
    with gt.set_grad_enabled(False):
        assert not gt.is_grad_enabled()
    assert gt.is_grad_enabled()


def test_matmul_over_no_elements_is_zero():
    assert (gt.zeros((2, 3, 0)) @ gt.zeros((0, 4))).tolist() == np.zeros((2, 3, 4)).tolist()


def test_what_does_not_depend_has_derivative_0():
    x = gt.tensor([1.0, -2.0])
    assert gt.grad(lambda v: gt.grad(lambda u: F.relu(u).sum())(v).sum())(x).tolist() == [0, 0]
    assert gt.grad(lambda v: gt.tensor(1.0), allow_unused=True)(x).tolist() == [0, 0]


def test_repeated_indices_of_half_floats_are_added_wide():
    x = gt.zeros(1, gt.float16).requires_grad_()
    x[np.zeros(5000, int)].sum().backward()
    assert x.grad.tolist() == [5000]


def test_small_mistakes_are_named():
    with pytest.raises(TypeError, match="None"):
        gt.ones(2).to(None)
    with pytest.raises(TypeError, match="condition of dtype float32"):
        gt.where(gt.ones(2), 1.0, 0.0)
    assert gt.where(True, 1.0, gt.zeros(2)).tolist() == [1, 1]
    assert gt.full(2, np.int64(3)).dtype == gt.int64
    assert (5 // gt.tensor([2])).tolist() == [2] and (5 % gt.tensor([3])).tolist() == [2]
    half = gt.zeros((2, 3), gt.float16)
    assert F.nll_loss(half, gt.tensor([0, 1])).dtype == gt.float16
