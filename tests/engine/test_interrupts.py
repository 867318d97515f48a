"""Interrupts, finalizers and signal handlers in the middle of the engine: nothing stays behind."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest.mock import patch

import numpy as np
import pytest
from memory.interrupts import interrupt_after
from memory.invariants import check

import gtensor as gt
from gtensor import nn, optim
from gtensor.engine.handle.context import (
    casting,
    current_casts,
    grad_enabled,
    innermost,
    record_ops,
)
from gtensor.engine.handle.node import FREE
from gtensor.engine.walk import backward, walk
from gtensor.memory import Arena, HostSegments
from gtensor.memory.contract.adaptors import current_category
from gtensor.memory.plan.recording import record
from gtensor.memory.serving import current_place
from gtensor.ops.arrange.writing import overwrite
from gtensor.ops.norms.batch_norm import move_averages
from gtensor.system.bus import bus, here, phase
from gtensor.system.interrupts import Undone


@pytest.fixture
def arena(monkeypatch):
    """An arena of its own for the CPU's arrays, all of them."""
    made = Arena(HostSegments())
    with gt.settings.override(arena_min_bytes=0):
        monkeypatch.setattr(gt.device("cpu"), "resource", made)
        yield made
        monkeypatch.undo()


class Training:
    """A small network and an optimizer; `step` makes the same every time after `reset`."""

    def __init__(self, make=optim.Adam) -> None:
        gt.random.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
        self.optimizer = make(self.net.parameters(), lr=0.1)
        self.x, self.y = gt.random.normal((6, 5)), gt.random.integers(0, 3, (6,))
        self.gradients()
        self.optimizer.step()
        self.start = [np.array(a) for a in self.arrays()]

    def arrays(self) -> list[np.ndarray]:
        state = [array for group in self.optimizer._slots for slot in group for array in slot.state]
        return [p._array for p in self.net.parameters()] + state

    def reset(self) -> None:
        for array, value in zip(self.arrays(), self.start, strict=True):
            array[...] = value
        for group in self.optimizer._slots:
            for slot in group:
                slot.step = 1
        self.optimizer.zero_grad()

    def gradients(self) -> None:
        nn.functional.cross_entropy(self.net(self.x), self.y).backward()

    def grads(self) -> list[bytes | None]:
        return [None if p.grad is None else p.grad.numpy().tobytes() for p in self.net.parameters()]

    def result(self) -> list[bytes]:
        self.reset()
        self.gradients()
        grads = self.grads()
        self.optimizer.step()
        values = [array.tobytes() for array in self.arrays()]
        self.reset()
        return [*grads, *values]


def interrupted(arena: Arena, what: str, first: int, stride: int) -> None:
    """Interrupt a step of training at every `stride`-th point, and see that nothing is lost."""
    training = Training()
    right = training.result()
    work = training.gradients if what == "gradients" else training.optimizer.step
    before = arena.allocated
    for place in itertools.count(first, stride):
        if what == "update":
            training.gradients()
        there = interrupt_after(place, work, sample=stride > 1)
        assert gt.is_grad_enabled(), "the mode of an interrupted block stays"
        if what == "gradients":
            assert len({grad is None for grad in training.grads()}) == 1, "a commit was cut in two"
        training.reset()
        assert arena.allocated == before, f"bytes were lost at point {place}"
        assert arena.stats().hits >= 0
        if not there:
            break
        if place % 5 == 0:  # or it takes twice as long
            assert training.result() == right
    assert training.result() == right and place > 100
    del training, work
    arena.empty_cache()
    assert arena.allocated == arena.stats().reserved == 0, "a segment was lost"
    check(arena, [])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["gradients", "update"])
def test_an_interrupt_at_any_point_of_a_training_step_loses_nothing(what, arena):
    interrupted(arena, what, 1, 1)


@pytest.mark.parametrize("what", ["gradients", "update"])
def test_an_interrupt_in_a_training_step_loses_nothing(what, arena):
    interrupted(arena, what, 3, 53)


# -- the rule --------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [False, True])
def test_a_block_that_is_undone_is_so_after_an_interrupt_at_any_point(failing):
    for place in itertools.count(1):
        there = []

        def run(there=there):
            with suppress(ValueError), Undone(there.clear):
                there.append("a change")
                if failing:
                    raise ValueError

        hit = interrupt_after(place, run)
        assert not there, f"point {place}"
        if not hit:
            break
    assert place > 3


# -- modes -----------------------------------------------------------------------------------------


MATRIX, SCRATCH = gt.ones((2, 2), device="cpu"), gt.memory.Workspace("cpu")


def blocks():
    decorated = gt.no_grad()(lambda: None)

    def block(make):
        def run():
            with make():
                pass
        return run
    return {
        "no_grad": block(gt.no_grad), "enable_grad": block(gt.enable_grad),
        "decorated": decorated, "anomaly": block(gt.detect_anomaly),
        "settings": block(lambda: gt.settings.override(debug=1, tile_elements=7)),
        "listen": block(lambda: gt.listen(Listener())),
        "phase": block(lambda: phase("backward")),
        "casting": block(lambda: casting(None)), "a cast op": lambda: MATRIX @ MATRIX,
        "serving": block(SCRATCH.serving), "record": block(record),
        "named": block(lambda: SCRATCH.named("scratch")),
        "category": block(lambda: gt.memory.category("parameters")),
    }


class Listener:
    def phase_begins(self, event):
        pass

    phase_ends = phase_begins


@pytest.mark.parametrize("name", blocks())
def test_an_interrupt_at_any_point_of_a_block_ends_it(name):
    def state():
        return (grad_enabled(), bus.listeners, gt.settings.debug, gt.settings.tile_elements,
                here.phase, current_casts(), current_category(), current_place(),
                cpu.resource)

    cpu = gt.device("cpu")
    with gt.listen(Listener()), gt.autocast("bfloat16"):
        blocks()[name]()  # loads what it needs
        record_ops(True)
        before = state()
        for place in itertools.count(1):
            there = interrupt_after(place, blocks()[name])
            found = state()
            record_ops(True)
            cpu.resource = before[-1]
            assert found == before
            if not there:
                break
    assert place > 3


def test_a_late_end_of_a_block_does_not_undo_a_later_one():
    """A block whose exit an interrupt took ends when the traceback goes, unless it is too late."""
    left = gt.no_grad()
    left.__enter__()
    with gt.enable_grad():
        del left
        assert gt.is_grad_enabled()
    assert not gt.is_grad_enabled()
    gt.set_grad_enabled(True)


def test_a_mode_may_serve_several_blocks_and_functions():
    mode = gt.set_grad_enabled(False)
    for _ in range(2):
        with mode:
            with mode:
                assert not gt.is_grad_enabled()
            assert not gt.is_grad_enabled()
        assert gt.is_grad_enabled()
    mode = gt.set_grad_enabled(False)
    functions = [mode(gt.is_grad_enabled) for _ in range(2)]
    assert gt.is_grad_enabled() and not any(function() for function in functions)
    mode = gt.set_grad_enabled(False)
    unused = mode(gt.is_grad_enabled)
    with mode:
        assert not unused() and not gt.is_grad_enabled()
    del mode
    assert gt.is_grad_enabled()


@pytest.mark.parametrize("make", [gt.no_grad, lambda: gt.set_grad_enabled(False)])
def test_one_mode_object_in_two_threads_keeps_each_thread_its_mode(make):
    block, found = make(), []

    def other():
        block.__enter__()
        found.append(gt.is_grad_enabled())

    def end():
        block.__exit__(None, None, None)
        found.append(gt.is_grad_enabled())

    with ThreadPoolExecutor(1) as pool, block:
        pool.submit(gt.set_grad_enabled, True).result()
        pool.submit(other).result()
        with gt.no_grad(), block:
            pool.submit(end).result()
        assert not gt.is_grad_enabled()
    assert gt.is_grad_enabled() and found == [False, True]


def test_a_call_in_a_block_does_not_keep_the_block_from_ending():
    before = innermost()
    with gt.no_grad():
        for _ in range(3):
            gt.set_grad_enabled(True)
        assert gt.is_grad_enabled()
        gt.set_grad_enabled(False)
    assert gt.is_grad_enabled() and innermost() is before


# -- writes in place -------------------------------------------------------------------------------


def test_a_write_that_an_interrupt_ends_counts_if_it_has_begun():
    first = gt.zeros(2)
    first += 1  # a first call writes texts
    for place in itertools.count(1):
        x = gt.tensor([2.0, 3.0], requires_grad=True)
        y = x * 1
        z = (y * y).sum()

        def write(y=y):
            with gt.no_grad():
                y += 1

        if not interrupt_after(place, write):
            break
        written = y.numpy().tolist() != [2.0, 3.0]
        try:
            z.backward()
        except gt.GradientError:
            continue
        assert not written and x.grad.numpy().tolist() == [4.0, 6.0], "a wrong gradient"
    assert place > 5


@pytest.mark.parametrize("own_op", [True, False])
def test_statistics_that_an_interrupt_leaves_moved_are_counted_as_written(own_op):
    """The own op of batch norm moves them, or `write`, which overwrites several tensors."""
    x = gt.tensor([[1.0, 2.0], [4.0, 8.0]])
    nn.BatchNorm1d(2)(x[:])  # a first call writes texts
    for place in itertools.count(1):
        norm = nn.BatchNorm1d(2)
        norm.running_mean += 1  # so that each has a storage of its own, which counts
        norm.running_var += 1
        buffers = norm.running_mean, norm.running_var

        def run(buffers=buffers, norm=norm):
            if own_op:
                norm(x)
            else:
                move_averages((*buffers, None), x[0], (x[1], 1.0), 0.5)

        versions = [buffer._version for buffer in buffers]
        values = [np.array(buffer._array) for buffer in buffers]
        hit = interrupt_after(place, run)
        for buffer, version, value in zip(buffers, versions, values, strict=True):
            moved = not np.array_equal(buffer._array, value)
            counted = buffer._storage.version > version
            assert counted or not moved, f"point {place}"
        if not hit:
            break
    assert place > 30 and moved


def test_a_handle_that_an_interrupt_finds_moving_has_the_values_of_its_node():
    def viewed(y):
        result = gt.nn.functional.silu(y)
        result.detach()  # so that the tensors which share its memory are known
        return result

    expected = gt.tensor([2.0, 3.0], requires_grad=True)
    viewed(expected).sum().backward()
    for place in itertools.count(1):
        x = gt.tensor([2.0, 3.0], requires_grad=True)
        y = x * 1
        kept = gt.square(y)  # a record has y, so that it moves
        hit = interrupt_after(place, lambda y=y: overwrite(viewed, y))
        moved = y.detach().tolist() != [2.0, 3.0]
        y.sum().backward()
        wanted = expected.grad.tolist() if moved else [1.0, 1.0]
        np.testing.assert_allclose(x.grad.tolist(), wanted, err_msg=f"point {place}")
        if not hit:
            break
    assert place > 30 and moved and kept.requires_grad


# -- finalizers ------------------------------------------------------------------------------------


def backward_of(*values: float) -> gt.Tensor:
    x = gt.tensor(list(values), requires_grad=True)
    (x * x).sum().backward()
    return x


class Collecting:
    """A lock behind which something is collected whose finalizer does some work."""

    def __init__(self, lock, work) -> None:
        self.lock, self.work = lock, work

    def __enter__(self):
        self.lock.__enter__()
        work, self.work = self.work, lambda: None
        work()

    def __exit__(self, *exception):
        self.lock.__exit__(*exception)


@pytest.mark.parametrize("name", ["_claims", "commits"])
def test_a_finalizer_under_a_lock_of_the_engine_may_call_backward(name, within=60):
    module = walk if name == "_claims" else backward
    found = []
    lock = Collecting(getattr(module, name), lambda: found.append(backward_of(5.0)))
    with patch.object(module, name, lock):
        thread = threading.Thread(target=lambda: found.append(backward_of(1.0, 2.0)), daemon=True)
        thread.start()
        thread.join(within)
    assert not thread.is_alive(), "it waits for itself"
    assert [x.grad.tolist() for x in found] == [[10.0], [2.0, 4.0]]


def test_a_backward_in_the_middle_of_a_commit_is_one_error(monkeypatch):
    """What it wrote would be written over."""
    x = backward_of(1.0, 2.0)
    right, total, caught = backward._added, x.sum(), []
    assert x.grad.tolist() == [2.0, 4.0]  # read, so that it is added to at the end

    def added(fresh, present):
        with pytest.raises(gt.GradientError, match="the middle of another one's last") as error:
            total.backward()
        caught.append(error)
        return right(fresh, present)

    monkeypatch.setattr(backward, "_added", added)
    (x * x).sum().backward()
    assert caught and x.grad.tolist() == [4.0, 8.0]
    monkeypatch.undo()
    (x * x).sum().backward()
    assert x.grad.tolist() == [6.0, 12.0]


def test_an_interrupt_at_any_point_of_a_walk_ends_it_at_once():
    """Also while the error, and with it the walk's frame, is alive: an interactive one keeps it."""
    for place in itertools.count(1):
        x = gt.tensor([1.0, 2.0], requires_grad=True)
        loss, kept = (x * x).sum(), []
        records, _ = walk.reached([loss._node])

        def run(loss=loss, kept=kept):
            try:
                loss.backward(retain_graph=True)
            except BaseException as error:
                kept.append(error)
                raise

        there = interrupt_after(place, run)
        recording = grad_enabled()
        record_ops(True)
        assert recording, f"point {place}: ops are not recorded any more"
        assert {record.state for record in records} == {FREE}, f"point {place}: still claimed"
        if not there:
            break
        x.grad = None
        loss.backward()
        assert x.grad.tolist() == [2.0, 4.0]
    assert place > 50


def test_weights_that_are_swapped_come_back_after_an_interrupt():
    net = nn.Linear(2, 1)
    average = optim.EMA(net, decay=0.5)
    average.update()
    own = [np.array(p.numpy()) + 1 for p in net.parameters()]
    with gt.no_grad():
        for p, value in zip(net.parameters(), own, strict=True):
            p[...] = value

    def swap():
        with average.swapped():
            pass

    for place in itertools.count(1, 3):
        there = interrupt_after(place, swap, sample=True)
        assert all((p.numpy() == value).all()
                   for p, value in zip(net.parameters(), own, strict=True))
        assert not average._swapped and gt.is_grad_enabled()
        if not there:
            break

