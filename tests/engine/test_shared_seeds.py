"""Walks on a GPU start from one 1: nothing that a program can do with a gradient writes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine import slots

pytestmark = pytest.mark.gpu


def leaf(shape: tuple[int, ...] = ()) -> gt.Tensor:
    return gt.ones(shape, device="cuda").requires_grad_()


def double(gradient: gt.Tensor) -> None:
    with gt.no_grad():
        gradient *= 2


def of_a_leaf() -> None:
    x = leaf()
    x.backward()
    double(x.grad)


def that_is_retained() -> None:
    y = leaf() * 3
    y.retain_grad()
    y.backward()
    double(y.grad)


def in_a_hook() -> None:
    y = gt.reshape(leaf((1,)) * 3, ())
    y.register_hook(double)
    y.backward()


def in_a_hook_behind_a_view() -> None:
    x = leaf((1,)) * 3
    x.register_hook(double)
    gt.reshape(x, ()).backward()


def accumulated() -> None:
    x = leaf()
    for _ in range(2):
        (x + x).backward()
    double(x.grad)


def of_a_recorded_walk() -> None:
    x = leaf()
    x.backward(create_graph=True)
    double(x.grad.detach())


USES = [of_a_leaf, that_is_retained, in_a_hook, in_a_hook_behind_a_view, accumulated,
        of_a_recorded_walk]


@pytest.mark.parametrize("use", USES)
def test_a_use_leaves_it_alone(use: Callable[[], None]) -> None:
    use()
    x = leaf((3,))
    x.sum().backward()
    assert np.array_equal(x.grad.numpy(), np.ones(3, np.float32))
    assert slots.ONES and all(float(one) == 1 for one in slots.ONES.values())


def test_a_hook_that_is_given_the_seed_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_hook()  # the seed exists
    monkeypatch.setattr(slots, "ONES", {})  # where hooks look for it
    with pytest.raises(AssertionError):
        test_a_use_leaves_it_alone(in_a_hook)
    monkeypatch.undo()
    slots.ONES.clear()


def test_a_seed_that_is_made_in_a_capture_stays_in_its_graph() -> None:
    slots.ONES.clear()
    x = leaf((3,))
    with gt.Graph("cuda").capture():
        x.sum().backward()
    assert not slots.ONES
