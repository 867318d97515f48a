"""Recipes: what a consumer saves of an output that can be made again."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.handle.errors import ConsumedError
from gtensor.engine.run.take_over import apply_keeping
from gtensor.engine.tape.op import registry
from gtensor.engine.tape.recipes import Recipe

from .test_overwrite import leaf, over, rng

__all__ = ["leaf", "rng"]  # the fixtures


def keep(x: gt.Tensor) -> gt.Tensor:
    """An op that saves its input, as batch norm + relu: its output comes with a recipe."""
    return apply_keeping(registry["square"], (x,), {})


def test_a_consumer_saves_the_recipe_and_the_output_dies(leaf: gt.Tensor) -> None:
    x = leaf + 1
    z = keep(x)
    dead = weakref.ref(z._array)
    y = z * z
    values = y.detach().numpy().copy()
    with pytest.raises(ConsumedError):
        x.numpy()
    del z
    assert dead() is None
    y.sum().backward()
    np.testing.assert_allclose(values, (leaf.detach().numpy() + 1) ** 4)
    np.testing.assert_allclose(leaf.grad.numpy(), 4 * (leaf.detach().numpy() + 1) ** 3)


def test_every_consumer_has_its_own(leaf: gt.Tensor) -> None:
    z = keep(leaf + 1)
    y = z * z + z.exp()
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    x = leaf.detach().numpy() + 1
    np.testing.assert_allclose(leaf.grad.numpy(), 2 * (4 * x**3 + 2 * x * np.exp(x * x)))


def test_after_a_write_a_recipe_is_valid_for_earlier_consumers_only(leaf: gt.Tensor) -> None:
    z = keep(leaf + 1)
    early = z * z
    z += 1.0
    late = z * z
    (early + late).sum().backward()
    x = leaf.detach().numpy() + 1
    np.testing.assert_allclose(leaf.grad.numpy(), 4 * x**3 + 2 * (x * x + 1) * 2 * x)


def test_a_view_of_the_output_is_saved_as_it_is(leaf: gt.Tensor) -> None:
    z = keep(leaf + 1)
    y = z[1:] * z[1:]
    z += 1.0  # the view was saved, so this is an error
    with pytest.raises(gt.GradientError, match="overwritten in place"):
        y.sum().backward()


def test_a_recipe_with_overwritten_inputs_raises() -> None:
    """Its input is a leaf, which the user may write."""
    leaf = gt.tensor([1.0, 2.0]).requires_grad_()
    z = keep(leaf)
    y = z * 2.0 * z
    with gt.no_grad():
        leaf += 1.0
    with pytest.raises(gt.GradientError, match="overwritten in place"):
        y.sum().backward()


def test_second_order_through_a_recipe(leaf: gt.Tensor) -> None:
    z = keep(leaf + 1)
    (g,) = gt.grad((z * z).sum(), [leaf], create_graph=True)
    (gg,) = gt.grad(g.sum(), [leaf])
    x = leaf.detach().numpy() + 1
    np.testing.assert_allclose(g.detach().numpy(), 4 * x**3)
    np.testing.assert_allclose(gg.numpy(), 12 * x**2)


def test_nothing_is_kept_without_a_tape(leaf: gt.Tensor) -> None:
    with gt.no_grad():
        x = leaf + 1
        memory = x._array
        z = keep(x)
    assert z._array is memory
    assert z._storage.recipe is None


def test_a_recipe_keeps_what_it_reads(leaf: gt.Tensor) -> None:
    """Its input may have had a recipe, so that no record saved the input itself."""
    first = keep(leaf + 1)
    other = first.detach()  # so that the next op does not take first's handle
    second = keep(first)
    y = second * second
    wanted = y.detach().numpy().copy()
    del other
    over(first)  # would overwrite what the recipe of second reads
    y.sum().backward()
    x = leaf.detach().numpy() + 1
    np.testing.assert_allclose(wanted, x**8)
    np.testing.assert_allclose(leaf.grad.numpy(), 8 * x**7)


def test_an_exported_output_is_saved_as_it_is(leaf: gt.Tensor) -> None:
    w = gt.tensor(np.ones((3, 5))).requires_grad_()
    z = keep(leaf + 1)
    z.numpy()[...] *= 3  # nothing reads this
    values = z.numpy().copy()
    (z * w).sum().backward()
    assert np.array_equal(w.grad.numpy(), values)


def test_a_recipe_dies_with_the_walk(leaf: gt.Tensor) -> None:
    z = keep(leaf + 1)
    recipe = weakref.ref(z._storage.recipe())
    alias = z.detach()
    (z * 1.0).sum().backward()
    assert recipe() is None
    assert alias.shape == (3, 5)


def test_one_recipe_saved_twice_is_made_once(leaf: gt.Tensor,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    right = Recipe.made
    monkeypatch.setattr(Recipe, "made", lambda self: made.append(self) or right(self))
    z = keep(leaf + 1)
    (z * z).sum().backward()
    assert len(made) == 1
