"""Walks on a GPU start from one 1: nothing that a program can do with a gradient writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gtensor as gt

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


def ones() -> dict[Any, Any]:
    return gt.device("cuda").ones


USES = [of_a_leaf, that_is_retained, in_a_hook, in_a_hook_behind_a_view, accumulated,
        of_a_recorded_walk]


@pytest.mark.parametrize("use", USES)
def test_a_use_leaves_it_alone(use: Callable[[], None]) -> None:
    use()
    x = leaf((3,))
    x.sum().backward()
    assert np.array_equal(x.grad.numpy(), np.ones(3, np.float32))
    assert ones() and all(float(one) == 1 for one in ones().values())


class _Unread(dict[Any, Any]):
    """Seeds that nobody finds; the first one stays."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.setdefault(key, value)

    def get(self, key: Any, default: Any = None) -> Any:
        return default


def test_a_hook_that_is_given_the_seed_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_hook()  # the seed exists
    monkeypatch.setattr(gt.device("cuda"), "ones", _Unread())
    with pytest.raises(AssertionError):
        test_a_use_leaves_it_alone(in_a_hook)
    monkeypatch.undo()
    ones().clear()


def test_a_seed_that_is_made_in_a_capture_stays_in_its_graph() -> None:
    ones().clear()
    x = leaf((3,))
    with gt.Graph("cuda").capture():
        x.sum().backward()
    assert not ones()
