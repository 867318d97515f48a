"""What a checkpointed region keeps: its inputs, and nothing for the collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
from usage import traced

import gtensor as gt
from gtensor import nn
from gtensor.engine.tape.record import Record
from gtensor.nn.utils import checkpoint

from .regions import draw, tensors_of
from .test_checkpointing_norms import norm_layers

SIDE = 512
UNIT = SIDE * SIDE * 8
PYTHON = 256 * 1024  # records, handles and marks, in tracemalloc's count


def saved_bytes(outputs: Any) -> int:
    """Bytes of the distinct arrays that the records behind some tensors keep."""
    stack: list[Any] = [y._node for y in tensors_of(outputs)]
    found, arrays = set(), {}
    while stack:
        node = stack.pop()
        if isinstance(node, Record) and node not in found:
            found.add(node)
            stack += node.parents
            arrays.update({id(a): a.nbytes for a in node.saved if getattr(a, "ndim", 0)})
    return sum(arrays.values())


def large() -> gt.Tensor:
    return draw(SIDE, SIDE) * 0.1


SAVES = 12  # arrays that the records of `chain` save: tanh and exp their outputs, which sin reads


def chain(x: gt.Tensor) -> gt.Tensor:
    for _ in range(6):
        x = gt.sin(x.tanh().exp())
    return -x  # saves nothing, so that the region's output is free


@contextmanager
def total() -> Iterator[Callable[[], tuple[int, int]]]:
    """Bytes of arrays above those at the start, now and at the peak: NumPy's and the arena's."""
    with traced() as read:
        yield lambda: tuple(map(sum, zip(*read(), strict=True)))  # type: ignore[return-value]


def test_a_chain_keeps_its_input() -> None:
    x = large()
    with total() as read:
        y = checkpoint(chain, x).sum()
        assert read()[0] < PYTHON
        y.backward(retain_graph=True)
        assert read()[0] < PYTHON + UNIT  # the gradient of the leaf behind x
    assert saved_bytes(y) == 0
    assert saved_bytes(chain(x)) == SAVES * UNIT


@pytest.mark.parametrize("regions", (2, 4))
def test_regions_keep_their_inputs_and_one_regions_saves(regions: int) -> None:
    leaf = large().detach().requires_grad_()

    def run(times: int) -> None:
        y = leaf
        for _ in range(times):
            y = checkpoint(chain, y)
        loss = y.sum()
        del y
        assert UNIT * (times - 1) <= read()[0] < UNIT * (times - 1) + PYTHON
        loss.backward()

    with total() as read:
        run(regions)
        left, peak = read()
    assert UNIT <= left < UNIT + PYTHON  # leaf.grad
    # one region's saves, its last two outputs, and the gradient that arrived
    tiles = 2 * gt.settings.tile_elements * 8  # of the formula of sin's gradient
    assert peak < (regions - 1 + SAVES + 3) * UNIT + PYTHON + tiles


def test_what_was_made_again_dies_as_the_walk_passes() -> None:
    x, seen = large(), []

    def function(x: gt.Tensor) -> gt.Tensor:
        for _ in range(4):
            x = x.exp() * 0.5
            if x.requires_grad:
                x.register_hook(lambda g: seen.append(read()[0]))
        return x

    with total() as read:
        y = checkpoint(function, x).sum()
        y.backward(retain_graph=True)
        assert read()[0] < UNIT + PYTHON
    assert len(seen) == 4  # the first was called before anything was made again
    assert (np.diff(seen[1:]) < -UNIT // 2).all()


def test_nested_regions_keep_the_outer_inputs() -> None:
    x = large()
    with total() as read:
        y = checkpoint(lambda x: checkpoint(chain, checkpoint(chain, x)), x).sum()
        assert read()[0] < PYTHON
        y.backward()


@pytest.mark.parametrize("activation", ("leaky_relu", "relu"))
def test_a_stack_of_in_place_norms_keeps_its_input(activation: str) -> None:
    model = nn.Sequential(*norm_layers(nn.InPlaceABN, activation))
    x = gt.random.normal((32, 4, 32, 32), requires_grad=True)
    with total() as read:
        y = checkpoint(lambda x: -model(x), x).sum()
        assert read()[0] < PYTHON
        y.backward()


def test_a_recipe_serves_as_input() -> None:
    """The norm before keeps its own input, from which the region's is made again: one buffer."""
    leaf = draw(8, 4, 6)
    z = nn.InPlaceABN(4, activation="relu").to("float64")(leaf * 1.0)
    dead = weakref.ref(z._array)
    y = checkpoint(lambda z: gt.sin(z.exp()), z)
    del z
    assert dead() is None
    y.sum().backward()
    assert float(abs(leaf.grad).max()) > 0


@pytest.mark.parametrize("ending", ("walked", "kept", "dropped", "failed", "part"))
def test_nothing_is_left_for_the_collector(ending: str) -> None:
    gc.collect()
    gc.disable()
    try:
        inside: list[weakref.ref[Any]] = []

        def function(x: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
            if ending == "failed" and inside:
                raise KeyError("planted")
            y, z = x.exp(), x.tanh()
            inside.extend(weakref.ref(a._array) for a in (y, z))
            return gt.sin(y), checkpoint(chain, z)

        leaf = draw(64, 64)
        x = leaf * 1.0
        inside_x = weakref.ref(x._array)
        outputs = checkpoint(function, x)
        del x
        losses = [y.sum() for y in outputs]
        del outputs
        with pytest.raises(KeyError) if ending == "failed" else nullcontext():
            if ending == "part":
                losses[0].backward()
            elif ending != "dropped":
                (losses[0] + losses[1]).backward(retain_graph=ending == "kept")
        assert (inside_x() is None) == (ending in ("walked", "failed"))
        del losses
        assert [ref() is None for ref in (inside_x, *inside)] == [True] * (1 + len(inside))
        assert len(inside) == (2 if ending in ("dropped", "failed") else 4)
    finally:
        gc.enable()
