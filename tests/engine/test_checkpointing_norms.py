"""Batch norms in checkpointed regions and around them, out of place and in place."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import gtensor as gt
import gtensor.nn.functional as F
from gtensor import nn
from gtensor.nn.utils import checkpoint

from .regions import Function, assert_same, draw, gradients, loss_of


def norm_layers(kind: type[nn.ABN], activation: str) -> list[nn.Module]:
    gt.manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Conv2d(4, 4, 3, padding=1), kind(4, activation=activation)]
    return layers


def in_one(layers: list[nn.Module], x: gt.Tensor, run: Function) -> gt.Tensor:
    return run(nn.Sequential(*layers), x)


def around(layers: list[nn.Module], x: gt.Tensor, run: Function) -> gt.Tensor:
    """The norm before the region hands its output (and a recipe) on; the one after takes one."""
    x = nn.Sequential(*layers[:2])(x)
    return nn.Sequential(*layers[5:])(run(nn.Sequential(*layers[2:5]), x))


def norm_first(layers: list[nn.Module], x: gt.Tensor, run: Function) -> gt.Tensor:
    """The region begins with a norm, which must not overwrite the region's input."""
    x = layers[0](x)
    return run(nn.Sequential(*layers[3:]), run(nn.Sequential(*layers[1:3]), x))


def by_pairs(layers: list[nn.Module], x: gt.Tensor, run: Function) -> gt.Tensor:
    for i in range(0, len(layers), 2):
        x = run(nn.Sequential(*layers[i:i + 2]), x)
    return x


PLACES = (in_one, around, norm_first, by_pairs)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("activation", ("leaky_relu", "tanh", "relu"))
@pytest.mark.parametrize("kind", (nn.ABN, nn.InPlaceABN))
def test_batch_norms(kind: type[nn.ABN], activation: str, place: Function) -> None:
    """Gradients of a plain run, and statistics that moved once."""
    x = draw(2, 4, 5, 5)
    results = []
    for run in (checkpoint, lambda f, x: f(x)):
        model = nn.Sequential(*norm_layers(kind, activation)).to("float64")
        parameters = [*model.parameters(), x]
        train = partial(place, list(model), x, run)
        results.append(gradients(train, parameters) + [b.numpy() for b in model.buffers()])
        assert [int(model[i].num_batches_tracked) for i in (1, 3, 5)] == [1, 1, 1]
        model.eval()
        results[-1] += gradients(train, parameters)
    assert_same(*results)


def test_in_place_norms_copy_a_regions_input_once_a_run() -> None:
    norm, leaf = nn.InPlaceABN(4), gt.tensor(np.random.standard_normal((2, 4, 3))).requires_grad_()
    norm.to("float64")
    x = leaf * 1.0
    before = x.detach().numpy().copy()
    x = leaf * 1.0  # a buffer without other readers
    count = copies()
    y = checkpoint(norm, x)
    assert copies() == count + 1
    assert np.array_equal(x.detach().numpy(), before)
    y.sum().backward()
    assert copies() == count + 2


def copies() -> int:
    return gt.memory.copies("cpu").get("inplace_abn", (0, 0))[0]


def test_in_place_norms_inside_a_region_copy_nothing() -> None:
    model, x = nn.Sequential(*norm_layers(nn.InPlaceABN, "leaky_relu")), draw(2, 4, 5, 5)
    model.to("float64")
    count = copies()
    loss_of(checkpoint(model, x)).backward()
    assert copies() == count


def test_a_captured_output_with_a_recipe_is_that_of_the_first_run() -> None:
    """It was made outside of the region, so its recipe stays; a later write is not seen."""
    x, t = (gt.random.normal((4, 3), dtype="float64") for _ in range(2))
    z = F.inplace_abn(t.requires_grad_() * 1.0, activation="relu")  # which owns the recipe
    captured = z.detach()
    before = captured.clone()
    out = checkpoint(lambda x: x * captured, x.requires_grad_())
    with gt.no_grad():
        captured += 1.0
    out.sum().backward()
    assert np.array_equal(x.grad.numpy(), before.numpy())


# -- the checks are checked ------------------------------------------------------------------------


def test_statistics_that_move_twice_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gtensor.ops.norms.batch_norm.is_recomputing", lambda: False)
    with pytest.raises(AssertionError):
        test_batch_norms(nn.InPlaceABN, "leaky_relu", in_one)


def test_an_input_without_its_flag_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-place norm then writes over what the second run reads."""
    def unflagged(plan: Any, values: Any, handles: Any) -> Any:
        return tuple(values), ()

    monkeypatch.setattr("gtensor.engine.run.checkpointing.saves", unflagged)
    monkeypatch.setattr("gtensor.engine.run.checkpointing._stays", lambda x: None)
    with pytest.raises(AssertionError):
        test_in_place_norms_copy_a_regions_input_once_a_run()
