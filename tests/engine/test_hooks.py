"""Hooks on tensors: they see the whole gradient, may replace it, and hold it unwritten."""

from __future__ import annotations

import pytest

import gtensor as gt


def leaf(*values: float) -> gt.Tensor:
    return gt.tensor(values, dtype=gt.float64, requires_grad=True)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_hook_sees_the_whole_gradient_once(create_graph):
    x, seen = leaf(1, 2), []
    y = x * 2
    y.register_hook(lambda g: seen.append(g))
    (y * y + 3 * y).sum().backward(create_graph=create_graph)
    assert [g.tolist() for g in seen] == [[7.0, 11.0]]
    assert x.grad.tolist() == [14.0, 22.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_what_a_hook_returns_goes_on(create_graph):
    x = leaf(1, 2)
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.register_hook(lambda g: g + 1)
    x.register_hook(lambda g: -g)
    (3 * y).sum().backward(create_graph=create_graph)
    assert x.grad.tolist() == [-62.0, -62.0]


def test_a_kept_gradient_is_not_written_by_later_rules():
    x, kept = leaf(1, 2), []
    y = x * 2
    y.register_hook(lambda g: kept.append(g))
    z = y.exp()
    z.backward(gt.tensor([1.0, 1.0], dtype=gt.float64))
    before = kept[0].tolist()
    assert x.grad.tolist() == [2 * v for v in before] and kept[0].tolist() == before


def test_a_leaf_s_hook_runs_for_grad_and_for_backward():
    x, calls = leaf(3), []
    x.register_hook(lambda g: calls.append(g.item()))
    (x * x).sum().backward()
    gt.grad((x * 5).sum(), [x])
    assert calls == [6.0, 5.0]


def test_a_removed_hook_is_silent():
    x, calls = leaf(1), []
    handle = x.register_hook(lambda g: calls.append(1))
    with x.register_hook(lambda g: calls.append(2)):
        (x * 2).sum().backward()
    handle.remove()
    handle.remove()
    (x * 2).sum().backward()
    assert calls == [1, 2]


def test_a_hook_that_returns_what_does_not_fit_stops_before_anything_is_written():
    x = leaf(1, 2)
    y = x * 2
    with y.register_hook(lambda g: g[:1]), pytest.raises(
            ValueError, match=r"the gradient that a hook returned of shape \(1,\)"):
        y.sum().backward(retain_graph=True)
    with y.register_hook(lambda g: 3.0), pytest.raises(TypeError, match="hook returned float"):
        y.sum().backward(retain_graph=True)
    assert x.grad is None
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_hooks_need_a_gradient():
    with pytest.raises(gt.GradientError, match="does not require a gradient"):
        gt.ones(2).register_hook(print)


def test_what_a_leaf_s_hook_keeps_or_returns_stays_as_it_is():
    x, kept, own = leaf(1, 2), [], gt.ones(2, dtype=gt.float64)
    x.register_hook(lambda g: kept.append(g))
    for k in (2, 3, 4):
        (x * k).sum().backward()
    assert [g.tolist() for g in kept] == [[2, 2], [3, 3], [4, 4]] and x.grad.tolist() == [9, 9]
    y = leaf(1, 2)
    y.register_hook(lambda g: own)
    for _ in range(3):
        (y * 5).sum().backward()
    assert own.tolist() == [1, 1] and y.grad.tolist() == [3, 3]
    (g,) = gt.grad((y * 5).sum(), [y])
    g += 1
    assert own.tolist() == [1, 1]


def test_a_leaf_s_hook_is_recorded_only_where_a_graph_is_asked_for():
    x = leaf(1, 2)
    x.register_hook(lambda g: g * x)
    (x * 2).sum().backward()
    assert not x.grad.requires_grad and x.grad.tolist() == [2, 4]
    x.grad = None
    (x * 2).sum().backward(create_graph=True)
    assert x.grad.requires_grad
    x.grad = None


def test_a_hook_may_return_a_broadcast_view():
    x = leaf(1, 2)
    x.register_hook(lambda g: gt.broadcast_to(gt.tensor(1.0, dtype=gt.float64), (2,)))
    for _ in range(2):
        (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2]
