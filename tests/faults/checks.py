"""Checks of the engine that planted faults must make fail, each small and self-contained.

They pass on the engine without a fault; `table.py` says which fault makes which of them fail.
`gtensor.testing.opcheck` has the checks of a single op.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np

import gtensor as gt
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.walk.slots import RawStep
from gtensor.memory import Arena, HostSegments, VirtualSegments
from gtensor.settings import settings
from gtensor.system.bus import OpEvent

SHAPE = (3, 3)


# -- gradients -------------------------------------------------------------------------------------


def random_graphs_have_numpys_gradients() -> None:
    """Random graphs of sums, products and views: gradients as by a walk that only copies."""
    rng = np.random.default_rng(7)
    for _ in range(60):
        _compare_random_graph(rng)


# name -> (value, gradients by the inputs), on tensors and on arrays alike
_OPS: dict[str, tuple[int, Any, Any]] = {
    "add": (2, lambda a, b: a + b, lambda g, a, b: (g, g)),
    "subtract": (2, lambda a, b: a - b, lambda g, a, b: (g, -g)),
    "multiply": (2, lambda a, b: a * b, lambda g, a, b: (g * b, g * a)),
    "negative": (1, lambda a: -a, lambda g, a: (-g,)),
    "transpose": (1, lambda a: a.T, lambda g, a: (g.T,)),
    "reshape": (1, lambda a: a.reshape(SHAPE), lambda g, a: (g,)),
    "matmul": (2, lambda a, b: a @ b, lambda g, a, b: (g @ b.T, a.T @ g)),
    "add_row": (1, lambda a: a + a[0], lambda g, a: (g + np.eye(3)[:, :1] * g.sum(0),)),
}


def _compare_random_graph(rng: np.random.Generator) -> None:
    arrays = [rng.standard_normal(SHAPE) for _ in range(2)]
    values: list[Any] = [gt.tensor(a, requires_grad=True) for a in arrays]
    tape: list[tuple[str, list[int]]] = []
    for _ in range(rng.integers(2, 9)):
        name = str(rng.choice(list(_OPS)))
        count, forward, _ = _OPS[name]
        reads = [int(k) for k in rng.integers(max(0, len(values) - 4), len(values), count)]
        tape.append((name, reads))
        values.append(forward(*[values[k] for k in reads]))
        arrays.append(forward(*[arrays[k] for k in reads]))
    seed = rng.standard_normal(SHAPE)
    upstream = gt.tensor(seed)
    before = [v.numpy().copy() for v in values]
    values[-1].backward(upstream)
    np.testing.assert_array_equal(upstream.numpy(), seed, "the caller's gradient was written")
    for value, kept in zip(values, before, strict=True):
        np.testing.assert_array_equal(value.numpy(), kept, "a value was written by backward")
    wanted = _gradients(tape, arrays, seed)
    for k in range(2):
        found = values[k].grad
        given = np.zeros(SHAPE) if found is None else found.numpy()
        size = 1 + float(np.abs(wanted[k]).max())
        np.testing.assert_allclose(given, wanted[k], 1e-9, 1e-12 * size, err_msg=str(tape))


def _gradients(
    tape: list[tuple[str, list[int]]], arrays: list[np.ndarray], seed: np.ndarray
) -> list[np.ndarray]:
    """By the chain rule, with a new array for every sum."""
    grads = [np.zeros(SHAPE) for _ in arrays]
    grads[-1] = seed
    for k in range(len(tape) - 1, -1, -1):
        name, reads = tape[k]
        g = grads[len(arrays) - len(tape) + k]
        for i, part in zip(reads, _OPS[name][2](g, *[arrays[i] for i in reads]), strict=True):
            grads[i] = grads[i] + part
    return grads


def a_failed_walk_releases_the_graph() -> None:
    """After an error in a kept graph, the same graph can be walked again."""
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3.0
    loss = y.exp().sum()
    with gt.listen(_RaiseInBackward()):
        try:
            loss.backward(retain_graph=True)
        except ZeroDivisionError:
            pass
        else:
            raise AssertionError("backward() did not raise the listener's error")
    y.backward(gt.ones(2))
    np.testing.assert_array_equal(x.grad.numpy(), [3.0, 3.0])


class _RaiseInBackward:
    def op_begins(self, event: OpEvent) -> None:
        if event.phase == "backward" and event.name == "exp":
            raise ZeroDivisionError


def a_failed_walk_empties_its_slots() -> None:
    """After an error nothing is held in a walk, although its traceback is kept."""
    steps: list[RawStep] = []
    init = RawStep.__init__

    def collect(step: RawStep, wanted: Any) -> None:
        init(step, wanted)
        steps.append(step)

    x = gt.tensor([1.0, 2.0], requires_grad=True)
    loss = (x.exp() * x).sum()
    error = None
    with patch.object(RawStep, "__init__", collect), gt.listen(_RaiseInBackward()):
        try:
            loss.backward()
        except ZeroDivisionError as raised:
            error = raised
    assert error is not None and error.__traceback__ is not None and steps
    assert not any(step.slots for step in steps), "a slot outlived its walk"


def a_graph_is_walked_once_at_a_time() -> None:
    """A backward that starts on a graph in the middle of another walk over it is refused."""
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3.0
    loss = y.exp().sum()
    said: list[str] = []

    class WalkAgain:
        def op_begins(self, event: OpEvent) -> None:
            if event.phase == "backward" and event.name == "exp" and not said:
                said.append("")
                try:
                    y.backward(gt.ones(2), retain_graph=True)
                except GradientError as error:
                    said.append(str(error))

    with gt.listen(WalkAgain()):
        loss.backward()
    assert len(said) == 2, "the second walk was accepted"
    assert "being walked by another backward" in said[1]


def an_error_before_the_end_leaves_grad_alone() -> None:
    """A rule fails late: no `.grad` has changed, although gradients were collected."""
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    w = gt.tensor([1.0, 2.0], requires_grad=True)
    loss = (x.exp() * w).sum()
    with gt.listen(_RaiseInBackward()), suppress(ZeroDivisionError):
        loss.backward()
    assert w.grad is None and x.grad is None, "a failed backward committed a gradient"


# -- memory ----------------------------------------------------------------------------------------


def saved_arrays_are_freed_by_the_walk() -> None:
    """What a record saved is gone after backward, although the output is still held."""
    x = gt.tensor(np.arange(6.0), requires_grad=True)
    hidden = x * 2.0
    output = gt.sin(hidden)
    saved = weakref.ref(hidden._array)
    del hidden
    assert saved() is not None, "sin saves its input"
    output.backward(gt.ones(6, dtype=gt.float64))
    assert saved() is None, "a saved array outlived the walk"


def forwards_leave_nothing_alive() -> None:
    """1,000 forwards without backward, collector off: dropping the handles frees every array."""
    x = gt.tensor(np.arange(6.0), requires_grad=True)
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        arrays = []
        for _ in range(1000):
            hidden = (x * 2.0).exp()
            arrays += [weakref.ref(hidden._array), weakref.ref((hidden * hidden).sum())]
        del hidden
        alive = sum(ref() is not None for ref in arrays)
    finally:
        if enabled:
            gc.enable()
        gc.collect()
    assert alive == 0, f"{alive} arrays and tensors need the garbage collector"


def live_blocks_do_not_overlap() -> None:
    """Blocks of an arena, held all at once, have bytes of their own."""
    arena = Arena(HostSegments())
    blocks = [arena.allocate(4096) for _ in range(4)]
    try:
        places = sorted((block.ptr, block.ptr + block.size) for block in blocks)
        for (_, end), (start, _) in pairwise(places):
            assert end <= start, "two live blocks share bytes"
    finally:
        for block in blocks:
            del block.__del__  # chunks that were allocated twice must not be freed twice
        del blocks


def arrays_keep_their_blocks() -> None:
    """A tensor's memory is not reused while a view of it lives."""
    with settings.override(arena_min_bytes=0):
        view = gt.full((64, 64), 3.0)[1:3]
        others = [gt.full((64, 64), 5.0) for _ in range(8)]
        assert bool((view == 3.0)._array.all()), "the memory of a live view was written"
        del others


# -- inputs, and numbers at the ends of their range ------------------------------------------------


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except TypeError:
        return True
    return False


def only_numbers_are_elements() -> None:
    """Arrays and dtypes of objects, texts and times are refused."""
    for dtype in (object, [("a", object)], "U3", "M8[s]"):
        given = np.zeros(3, dtype)
        for call in (lambda d=dtype: gt.empty((3,), dtype=d), lambda a=given: gt.asarray(a),
                     lambda d=dtype: gt.ones(3).astype(d), lambda a=given: gt.concat([a, a])):
            assert _refused(call), f"{dtype} was accepted"


def no_mask_is_dropped() -> None:
    """Masked arrays are refused."""
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    for call in (lambda: gt.asarray(masked), lambda: gt.ones(2) + masked, lambda: gt.tanh(masked)):
        assert _refused(call), "a mask was dropped"


def large_logits_have_the_gradient_of_small_ones() -> None:
    """softmax(x + 1e7) - onehot is softmax(x) - onehot, in float32."""
    values, target = np.array([[0.0, 1.0, 2.0]], np.float32), gt.tensor([0])
    found = []
    for shift in (0.0, 1e7):
        x = gt.tensor(values + np.float32(shift), requires_grad=True)
        gt.nn.functional.cross_entropy(x, target).backward()
        found.append(x.grad.numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def a_norm_beside_a_residual_has_both_gradients() -> None:
    """The gradient of layer_norm(h) + h is the sum of those of layer_norm(h) and of h."""
    values, weight = np.array([[0.0, 1.0, 3.0]], np.float32), gt.ones(3, requires_grad=True)
    found = []
    for residual in (1, 0):
        x = gt.tensor(values, requires_grad=True)
        h = x * 1
        y = gt.nn.functional.layer_norm(h, 3, weight) * gt.tensor(values)
        (y + h * residual).sum().backward()
        found.append(x.grad.numpy())
    np.testing.assert_allclose(found[0], found[1] + 1, rtol=1e-6)


def a_huge_gradient_does_not_stop_adam() -> None:
    """The parameter moves in every step after a gradient whose square is infinite."""
    p = gt.tensor([1.0], requires_grad=True)
    optimizer = gt.optim.Adam([p], lr=0.1)
    for gradient in (1e30, 1.0, 1.0):
        before = p.item()
        p.grad = gt.tensor([gradient])
        optimizer.step()
        assert p.item() != before, "the parameter does not move"


class _Refusing:
    """A source without pages, whose addresses cannot be released."""

    page, span = 1 << 21, 1 << 21

    def reserve(self, nbytes: int) -> int:
        return 1 << 40

    def map(self, address: int, nbytes: int) -> None:
        raise MemoryError("no pages")

    def release(self, address: int, nbytes: int) -> None:
        raise RuntimeError("no address can be released")


def out_of_memory_is_raised_although_the_cleanup_fails() -> None:
    """A request that finds no pages raises OutOfMemoryError."""
    arena = Arena(VirtualSegments(_Refusing()))
    try:
        arena.allocate(1 << 20)
    except RuntimeError as error:
        assert isinstance(error, gt.memory.OutOfMemoryError), f"hidden by {error!r}"
    except MemoryError:
        pass


def a_timeline_keeps_no_released_plan_alive() -> None:
    """Within a timeline releasing a plan frees its reservation, without garbage collection."""
    def step() -> object:
        return gt.zeros((1 << 10,), device="cpu") + 1

    with settings.override(arena_min_bytes=0):
        with gt.memory.record("cpu") as recording:
            step()
        plan = recording.plan()
        with gt.memory.timeline(device="cpu"):
            with gt.memory.planned(plan, "cpu"):
                step()
            before = gt.memory.stats("cpu").allocated
            plan.release()
            assert gt.memory.stats("cpu").allocated == before - plan.reservation
