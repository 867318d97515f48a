"""A `.grad` of which no other code has a handle is added to in place, and no other one is.

What the walk does to its buffers is compared with the model of docs/ownership.md in
`test_ownership_model.py`; here is what a program sees.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from memory.interrupts import interrupt_after
from usage import PYTHON, SIDE, UNIT, measure

import gtensor as gt
from gtensor.backend.layouts import address
from gtensor.engine.handle.context import record_ops
from gtensor.engine.handle.storage import UNREAD
from gtensor.engine.tape.op import Op
from gtensor.nn import functional as F

RNG = np.random.default_rng(5)


def leaf(*shape: int, dtype: Any = gt.float32) -> gt.Tensor:
    return gt.tensor(RNG.standard_normal(shape), dtype=dtype, requires_grad=True)


def stored(leaf: gt.Tensor) -> gt.Tensor:
    """`.grad`, which this does not count as read."""
    node: Any = leaf._node
    grad: gt.Tensor = node.grad
    return grad


def place_of(leaf: gt.Tensor) -> int:
    return address(stored(leaf)._array)


def test_a_step_that_accumulates_needs_no_second_matrix() -> None:
    x, w = gt.tensor(RNG.standard_normal((8, SIDE)), dtype=gt.float32), leaf(SIDE, SIDE)
    (x @ w).sum().backward()
    used = measure(lambda: (x @ w).sum().backward())
    assert used.left == 0
    assert used.peak + used.behind < UNIT // 4 + PYTHON
    assert stored(w)._storage is UNREAD


@pytest.mark.gpu
def test_on_cuda_it_needs_none_either() -> None:
    x = gt.ones((8, SIDE), device="cuda")
    w = gt.ones((SIDE, SIDE), device="cuda", requires_grad=True)
    for _ in range(2):
        (x @ w).sum().backward()
    place, before = place_of(w), gt.memory.stats("cuda").allocated
    gt.memory.reset_peak("cuda")
    (x @ w).sum().backward()
    assert gt.memory.stats("cuda").peak_allocated - before < UNIT // 4
    assert place_of(w) == place
    np.testing.assert_array_equal(w.grad.numpy(), np.full((SIDE, SIDE), 24.0))


def test_what_was_read_stays_and_costs_the_matrix_once() -> None:
    x, w = gt.tensor(RNG.standard_normal((8, SIDE)), dtype=gt.float32), leaf(SIDE, SIDE)
    (x @ w).sum().backward()
    kept = w.grad
    assert kept is not None
    before = kept._array.copy()  # it was read; an array of it would be other code's, too
    used = measure(lambda: (x @ w).sum().backward())
    assert used.peak >= UNIT
    np.testing.assert_array_equal(kept.numpy(), before)
    place = place_of(w)  # the sum is the walk's own, and the next one is added to it
    (x @ w).sum().backward()
    assert place_of(w) == place
    np.testing.assert_allclose(w.grad.numpy(), 3 * before, rtol=1e-5)


@pytest.mark.parametrize("tile", [1, 32768], ids=["a product that adds", "a sum"])
@pytest.mark.parametrize("dtype", [gt.float32, gt.float16, gt.bfloat16])
def test_values_are_those_of_a_sum_within_one_rounding(dtype: Any, tile: int) -> None:
    """Each leaf gets one gradient in each walk."""
    x = gt.tensor(RNG.standard_normal((5, 6)), dtype=dtype)
    w, b = leaf(6, 7, dtype=dtype), leaf(7, dtype=dtype)
    seeds = [gt.tensor(RNG.standard_normal((5, 7)), dtype=dtype) for _ in range(2)]
    alone: list[list[np.ndarray]] = []
    for seed in seeds:
        (x @ w + b).backward(seed)
        alone.append([p.grad.numpy() for p in (w, b)])
        w.grad = b.grad = None
    with gt.settings.override(tile_elements=tile):
        for seed in seeds:
            (x @ w + b).backward(seed)
    for p, first, second in zip((w, b), *alone, strict=True):
        wanted = (second + first).astype(np.float64)
        found = p.grad.numpy()
        size = np.maximum(abs(first.astype(np.float64)), abs(second.astype(np.float64)))
        rounding = float(gt.finfo(dtype).eps) * np.maximum(size, abs(wanted))
        assert (abs(found.astype(np.float64) - wanted) <= rounding).all()
        if p is b or tile > 1:
            np.testing.assert_array_equal(found, second + first)


def _hook(w: gt.Tensor) -> object:
    return w.register_hook(lambda g: None)


def _listen(w: gt.Tensor) -> object:
    class Told:
        def gradient_complete(self, event: Any) -> None:
            self.seen = event.array.copy()

    heard = Told()
    listening = gt.listen(heard)
    listening.__enter__()
    return listening


@pytest.mark.parametrize("prepare", [_hook, _listen], ids=["hook", "listener"])
def test_a_leaf_that_others_look_at_gets_this_walks_gradient_alone(
    prepare: Callable[[gt.Tensor], Any]
) -> None:
    x, w = gt.ones((2, 3)), leaf(3, 3)
    (x @ w).sum().backward()
    place = place_of(w)
    handle = prepare(w)
    try:
        (x @ w).sum().backward()
    finally:
        getattr(handle, "remove", lambda: handle.__exit__(None, None, None))()
    assert place_of(w) != place
    np.testing.assert_array_equal(w.grad.numpy(), np.full((3, 3), 4.0))


@pytest.mark.parametrize("options", [{"create_graph": True}, {"batched": True}])
def test_other_kinds_of_walks_do_not_add_in_place(options: dict[str, bool]) -> None:
    w = leaf(3)
    seed = gt.ones((1, 3) if "batched" in options else 3)
    (w * 2.0).backward(seed, **options)
    first = stored(w)
    before = first.detach().numpy().copy()
    (w * 2.0).backward(seed, **options)
    assert stored(w) is not first
    np.testing.assert_array_equal(first.detach().numpy(), before)
    np.testing.assert_array_equal(w.grad.detach().numpy(), 2 * before)


def failing(error: type[BaseException]) -> Op:
    def rule(ns: Any, step: Any, g: Any) -> None:
        raise error("the rule fails")

    return Op("failing", inputs="x", cpu=lambda x, out=None: x.copy(), gpu=None, backward=rule,
              tangent=None, samples=None)


def half_a_walk(w: gt.Tensor, first: gt.Tensor, error: type[BaseException]) -> gt.Tensor:
    """A loss whose rules add to w, and then fail at `first`."""
    return (failing(error)(first) @ gt.ones((3, 2)) @ w).sum()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_names_the_leaves_that_were_added_to(error: type[BaseException]) -> None:
    w, first = leaf(2, 4), leaf(5, 3)
    for p in (w, first):
        (p * 2.0).sum().backward()
    with pytest.raises(error, match="the rule fails") as caught:
        half_a_walk(w, first, error).backward()
    (note,) = caught.value.__notes__
    assert note.startswith("the .grad of 1 leaves has a part of this walk's gradient: of shape "
                           "(2, 4) float32;")
    np.testing.assert_array_equal(first.grad.numpy(), np.full((5, 3), 2.0))
    assert w.grad is not None and w.grad.shape == (2, 4)
    w.grad = None
    (w * 3.0).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.full((2, 4), 3.0))


def test_under_debug_an_error_leaves_every_gradient_as_it_was() -> None:
    w, first = leaf(2, 4), leaf(5, 3)
    for p in (w, first):
        (p * 2.0).sum().backward()
    with gt.settings.override(debug=1):
        with pytest.raises(RuntimeError) as caught:
            half_a_walk(w, first, RuntimeError).backward()
        assert not hasattr(caught.value, "__notes__")
        for p in (w, first):
            assert p.grad is not None
            np.testing.assert_array_equal(p.grad.numpy(), np.full(p.shape, 2.0))


@pytest.mark.parametrize("debug", [0, 1])
def test_an_interrupt_leaves_every_leaf_a_gradient(debug: int) -> None:
    """With copies all of them are those before the walk, or all are those after it."""
    seen = set()
    with gt.settings.override(debug=debug):
        for place in itertools.count(1):
            leaves = [gt.ones((2, 2), requires_grad=True) for _ in range(2)]
            (leaves[0] * leaves[1]).sum().backward()
            more = interrupt_after(place, (leaves[0] * leaves[1]).sum().backward)
            record_ops(True)
            found = [p.grad for p in leaves]
            assert None not in [grad if grad is None else True for grad in found]
            seen.add(tuple([grad.numpy().tolist()[0][0] for grad in found if grad is not None]))
            if not more:
                break
    assert seen == {(1.0, 1.0), (2.0, 2.0)} if debug else seen >= {(1.0, 1.0), (2.0, 2.0)}


@pytest.mark.parametrize("fails", [False, True])
def test_what_another_walk_stores_meanwhile_is_added(fails: bool) -> None:
    """While a walk adds to it the leaf has no `.grad`, so a walk within it makes one."""
    w = leaf(2, 4)
    seen: list[gt.Tensor | None] = []

    def rule(ns: Any, step: Any, g: Any) -> None:
        seen.append(w.grad)
        with gt.enable_grad():
            (w * 10.0).sum().backward()
        if fails:
            raise RuntimeError("the rule fails")
        step.give(0, g)

    op = Op("walking", inputs="x", cpu=lambda x, out=None: x.copy(), gpu=None, backward=rule,
            tangent=None, samples=None)
    x = gt.ones((1, 2), requires_grad=True)
    (gt.ones((1, 2)) @ w).sum().backward()
    with pytest.raises(RuntimeError, match="the rule fails") if fails else nullcontext():
        (op(x) @ w).sum().backward()
    assert seen[0] is None
    np.testing.assert_array_equal(w.grad.numpy(), np.full((2, 4), 12.0))


def test_a_gradient_that_was_cleared_in_place_is_not_the_walks() -> None:
    """Optimizers and modules write `.grad` through a handle."""
    w = leaf(3)
    (w * 2.0).sum().backward()
    w.grad[...] = 0
    place = place_of(w)
    (w * 2.0).sum().backward()
    assert place_of(w) != place
    np.testing.assert_array_equal(w.grad.numpy(), [2.0] * 3)


def test_an_accumulating_training_loop_has_the_sum_of_its_batches() -> None:
    """Tied weights, a bias, a norm: several gradients arrive at a leaf in one walk."""
    table, scale = leaf(6, 4), leaf(4)
    batches = [gt.tensor(RNG.integers(0, 6, 5)) for _ in range(3)]

    def loss(batch: gt.Tensor) -> gt.Tensor:
        hidden = F.rms_norm(F.embedding(batch, table), 4, scale)
        return F.cross_entropy(hidden @ table.T, batch)

    alone = []
    for batch in batches:
        loss(batch).backward()
        alone.append([p.grad.numpy().astype(np.float64) for p in (table, scale)])
        table.grad = scale.grad = None
    for batch in batches:
        loss(batch).backward()
    for p, parts in zip((table, scale), zip(*alone, strict=True), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), sum(parts), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("assigned", [None, 0.0])
def test_a_hook_sees_and_sets_grad_as_if_nothing_was_added_in_place(assigned: float | None) -> None:
    w = leaf(3)
    (w * 2.0).sum().backward()
    seen = []

    def hook(g: gt.Tensor) -> None:
        seen.append(w.grad.numpy().tolist())
        w.grad = None if assigned is None else gt.full((3,), assigned)

    passed = w * 1.0
    passed.register_hook(hook)
    (passed.sum() + (w * 5.0).sum()).backward()
    assert seen == [[2.0] * 3]
    np.testing.assert_array_equal(w.grad.numpy(), [6.0] * 3)
