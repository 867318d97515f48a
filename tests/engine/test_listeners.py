"""The event bus: what is told, in pairs and in order; what a listener that raises cannot break."""

from __future__ import annotations

import gc
import random
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from simulated import SimulatedSegments

import gtensor as gt
from gtensor import nn
from gtensor.backend.ordering import Ordering
from gtensor.backend.streams import SimulatedStream
from gtensor.engine.handle.node import Node
from gtensor.engine.tape.record import Record
from gtensor.engine.walk import complete
from gtensor.memory import Arena
from gtensor.profiler.listeners import SavedArrays
from gtensor.system import bus as bus_module
from gtensor.system.bus import METHODS, bus


class Everything:
    """Notes every event as (method, event); `told` are those of ops and phases, by name."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name)
        return lambda event: self.events.append((name, event))

    def __dir__(self) -> list[str]:
        return [*METHODS]

    def of(self, *methods: str) -> list[Any]:
        return [event for method, event in self.events if method in methods]


def paired(events: list[tuple[str, Any]]) -> None:
    """Every begin has its end, of the same event, and they nest."""
    stack = []
    for method, event in events:
        if method.endswith("_begins"):
            stack.append(event)
        elif method.endswith("_ends"):
            assert stack and stack.pop() is event, f"{event} ended out of turn"
    assert not stack, f"{stack} did not end"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.rest = nn.ModuleList([nn.Linear(4, 2)])

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.rest[0](self.norm(self.first(x)).relu())


def training(seed: int = 0) -> list[np.ndarray]:
    """Two steps of a small network; the parameters and gradients afterwards."""
    gt.manual_seed(seed)
    net = Net()
    optimizer = gt.optim.AdamW(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (net(gt.random.normal((5, 3))) ** 2).mean().backward()
        optimizer.step()
    return [array.numpy().copy() for p in net.parameters() for array in (p.detach(), p.grad)]


def test_a_training_step_is_told_in_pairs_and_computes_the_same():
    alone = training()
    told = Everything()
    with gt.listen(told):
        heard = training()
    assert all(np.array_equal(a, b) for a, b in zip(alone, heard, strict=True))
    paired(told.events)
    assert [e.name for e in told.of("phase_begins")] == ["backward", "update"] * 2
    ops = told.of("op_begins")
    assert {(e.name, e.module) for e in ops if e.phase == "backward"} >= {
        ("linear", "Net.first"), ("linear", "Net.rest.0"), ("relu", "Net"), ("mean", "")}
    assert not bus.listeners and not any(getattr(bus, kind) for kind in bus_module.KINDS)


@pytest.mark.gpu
def test_a_training_step_on_a_gpu_is_told_and_computes_the_same():
    alone = training()
    told, gradients, blocks = Everything(), Gradients(), Blocks()
    with gt.listen(told), gt.listen(gradients), gt.listen(SavedArrays()):
        heard = training()
    assert all(np.array_equal(a, b) for a, b in zip(alone, heard, strict=True))
    paired(told.events)
    assert len(gradients.after) == 2 * 6  # leaves of two passes
    with gt.listen(blocks):
        training()
        gc.collect()
    assert blocks.made and {event.device for event in blocks.made} == {"cuda:0"} and blocks.gone


def test_planted_fault_an_end_that_is_not_told_is_noticed():
    told = Everything()
    deaf = patch.object(bus_module, "_end_with", lambda *_: None)
    with gt.listen(told), deaf, pytest.raises(ValueError):
        gt.ones(2) + gt.ones(3)
    with pytest.raises(AssertionError, match="did not end"):
        paired(told.events)


def test_events_have_bytes_results_and_the_users_line():
    told, lines, nbytes = Everything(), [], []

    class Lines:
        def op_begins(self, event):
            lines.append(event.source())

        def op_ends(self, event):
            nbytes.append(event.nbytes)

    x = gt.ones((2, 3), requires_grad=True)
    with gt.listen(told), gt.listen(Lines()):
        y = (x @ gt.ones((3, 4))).sum()  # this line
        y.backward()
    product, total, *_ = told.of("op_ends")
    assert product.result.shape == (2, 4) and total.arrays[0] is product.result
    # two paths, the seed of the gradient, two rules
    assert nbytes == [4 * (6 + 12 + 8), 4 * (8 + 1), 4, 4, 4 * (8 + 12)]
    assert len(lines) == 5 and all("# this line" in line for line in lines)


# -- errors ----------------------------------------------------------------------------------------


class Failing:
    """Raises at one method, for one op."""

    def __init__(self, method: str, op: str, error: type[BaseException] = ValueError) -> None:
        def fail(event: Any) -> None:
            if event.name == op:
                raise error("the listener failed")

        setattr(self, method, fail)


@pytest.mark.parametrize("method", ["op_begins", "op_ends"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("outer", [True, False])
def test_a_listener_that_raises_leaves_no_event_open(method, error, outer):
    told, failing = Everything(), Failing(method, "multiply", error)
    wanted = gt.ListenerError if method == "op_ends" and error is ValueError else error
    x = gt.ones(2)
    with ExitStack() as block:
        for listener in (told, failing) if outer else (failing, told):
            block.enter_context(gt.listen(listener))
        with pytest.raises(wanted, match="the listener failed"):
            x * x
        x + x
    paired(told.events)
    assert told.of("op_ends")[-1].name == "add"


def test_an_error_of_the_op_is_raised_with_those_of_listeners_as_notes():
    with gt.listen(Failing("op_ends", "add")), pytest.raises(ValueError, match="shapes") as error:
        gt.ones(2) + gt.ones(3)
    assert "a listener raised ValueError then: the listener failed" in error.value.__notes__


@pytest.mark.parametrize("method", ["op_begins", "op_ends"])
def test_a_write_that_a_listener_raised_after_counts(method):
    """A ValueError of a path means that nothing is written; a listener's comes after the write."""
    x = gt.ones(2, requires_grad=True)
    y = x * 1.0
    loss = (y * y).sum()
    with gt.listen(Failing(method, "add")), pytest.raises((ValueError, gt.ListenerError)):
        y.detach().__iadd__(1.0)
    if method == "op_begins":
        loss.backward()
        assert x.grad.tolist() == [2, 2]
    else:
        with pytest.raises(gt.GradientError, match="overwritten in place"):
            loss.backward()


def test_a_step_that_a_listener_raised_in_is_whole():
    parameters = [gt.ones(2, dtype, requires_grad=True) for dtype in ("float32", "float64")]
    for p in parameters:
        p.grad = gt.ones(2, p.dtype)
    optimizer = gt.optim.SGD(parameters, 1.0, momentum=0.9)
    with gt.listen(Failing("op_ends", "sgd")), pytest.raises(gt.ListenerError):
        optimizer.step()
    assert [p.tolist() for p in parameters] == [[0, 0], [0, 0]]
    assert [state["step"] for state in optimizer.state_dict()["state"].values()] == [1, 1]


def test_a_recorded_write_that_a_listener_raised_after_has_its_gradient():
    x = gt.ones(2, requires_grad=True)
    y = x * 1.0
    with gt.listen(Failing("op_ends", "multiply")), pytest.raises(gt.ListenerError):
        y *= 3.0
    y.sum().backward()
    assert y.tolist() == x.grad.tolist() == [3, 3]


@pytest.mark.parametrize("method", ["op_begins", "op_ends"])
def test_an_op_that_takes_memory_over_consumes_it_although_a_listener_raised(method):
    norm = nn.InPlaceABN(3, activation="identity")
    x = gt.random.normal((4, 3, 2)) * 1.0
    before = x.numpy().copy() if method == "op_begins" else None
    x = gt.asarray(before) * 1.0 if before is not None else x
    with gt.listen(Failing(method, "inplace_abn")), pytest.raises((ValueError, gt.ListenerError)):
        norm(x)
    if method == "op_begins":
        assert np.array_equal(x.numpy(), before)
    else:
        with pytest.raises(gt.ConsumedError):
            x.numpy()


@pytest.mark.parametrize("method", ["phase_begins", "phase_ends"])
@pytest.mark.parametrize("name", ["backward", "update"])
def test_a_listener_that_raises_at_a_phase_loses_no_parameter(method, name):
    net = nn.Linear(2, 2)
    optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
    before = [p.numpy().copy() for p in (net.weight.detach(), net.bias.detach())]
    told = Everything()
    with gt.listen(told), gt.listen(Failing(method, name)), pytest.raises(ValueError):
        net(gt.ones((1, 2))).sum().backward()
        optimizer.step()
    paired(told.events)
    after = [p.numpy() for p in (net.weight.detach(), net.bias.detach())]
    moved = [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
    assert moved == [method == "phase_ends" and name == "update"] * 2
    net(gt.ones((1, 2))).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(("listener", "said"), [
    (object(), "a listener object without any method of a listener given; wanted one of op_begins"),
    (print, "a listener builtin_function_or_method without any method"),
    (type("Ops", (), {"op_begin": lambda self, event: None, "freed": lambda self, event: None})(),
     "the listener Ops has a method op_begin, which no event calls; did you mean op_begins"),
])
def test_what_hears_nothing_is_refused(listener, said):
    with pytest.raises(TypeError, match=said), gt.listen(listener):
        pass
    assert not bus.listeners


def test_a_listener_may_have_other_methods():
    with gt.profiler.profile() as found, gt.listen(type("Memory", (), {
            "allocated": lambda self, event: None, "allocate": lambda self: None})()):
        gt.ones(2) + 1.0
    assert found.spans


def test_a_listener_hears_all_threads():
    told = Everything()
    with gt.listen(told):
        thread = threading.Thread(target=training)
        thread.start()
        thread.join()
    assert told.of("op_begins")


# -- gradients -------------------------------------------------------------------------------------


class Gradients:
    """Checks that a leaf is told once, when its gradient is final, and nothing is added later."""

    def __init__(self) -> None:
        self.complete: dict[Node, np.ndarray] = {}
        self.after: list[Node] = []  # of each complete leaf, how many rules had run
        self.rules = 0

    def op_ends(self, event):
        self.rules += event.phase == "backward"

    def phase_begins(self, event):
        self.complete.clear()

    def gradient_written(self, event):
        assert event.node not in self.complete, "a gradient was added to one that was complete"

    def gradient_complete(self, event):
        assert event.node not in self.complete and not isinstance(event.node, Record)
        self.complete[event.node] = event.node.device.to_numpy(event.array).copy()
        self.after.append(self.rules)


def random_step(seed: int, create_graph: bool) -> tuple[list[gt.Tensor], Gradients]:
    """A random graph over shared leaves, some with hooks, some intermediates with retain_grad."""
    rng = random.Random(seed)
    leaves = [gt.tensor(np.arange(1.0, 4.0) + i, requires_grad=True) for i in range(4)]
    for leaf in leaves:
        if rng.random() < 0.3:
            leaf.register_hook(lambda g: g * 2.0)
    values = list(leaves)
    for _ in range(8):
        a, b = rng.choice(values), rng.choice(values)
        values.append(rng.choice([gt.add, gt.multiply, gt.maximum])(a, b))
        if rng.random() < 0.2:
            values[-1].retain_grad()
    told = Gradients()
    with gt.listen(told):
        sum(values[4:], gt.zeros(3)).sum().backward(create_graph=create_graph)
    return leaves, told


def check_complete(seed: int, create_graph: bool = False) -> None:
    """Every leaf with a gradient is told, with the gradient that it has in the end."""
    leaves, told = random_step(seed, create_graph)
    assert {leaf._node for leaf in leaves if leaf.grad is not None} == told.complete.keys()
    for leaf in leaves:
        if leaf.grad is not None:
            assert np.array_equal(told.complete[leaf._node], leaf.grad.detach().numpy())


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_leaf_is_told_when_nothing_can_be_added_to_its_gradient(create_graph):
    for seed in range(60):
        check_complete(seed, create_graph)


def test_a_leaf_is_told_as_soon_as_it_is_complete():
    net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)])
    told = Gradients()
    with gt.listen(told):
        net(gt.ones((1, 2))).sum().backward()
    assert told.after == [2, 2, 3, 3, 4, 4, 5, 5]  # the sum's rule is the first
    assert [*told.complete] == [p._node for layer in reversed([*net]) for p in told_order(layer)]


def told_order(layer: nn.Linear) -> list[gt.Tensor]:
    """The parameters in the order of the inputs of their op."""
    return [layer.weight, layer.bias]


def test_gradients_of_grad_are_not_told_and_a_root_that_is_a_leaf_is():
    x = gt.ones(3, requires_grad=True)
    told = Gradients()
    with gt.listen(told):
        gt.grad(lambda x: (x * x).sum())(x)
        assert not told.complete
        x.backward(gt.ones(3))
    assert [*told.complete] == [x._node]


def _first_of(records, step, told):
    """`completing` that takes the first record with a leaf for the last one."""
    first = {}
    for record in records:
        for parent in record.parents:
            if parent is not None and not isinstance(parent, Record):
                first.setdefault(parent, record)
    for record in records:
        yield record
        for leaf in [leaf for leaf, one in first.items() if one is record]:
            if leaf in step.slots and not leaf.hooks:
                told.add(leaf)
                slot = step.slots[leaf]
                complete.tell(bus.leaves, complete.GradientEvent(None, leaf, slot[0]))


def test_planted_fault_a_leaf_told_too_early_is_caught():
    with patch.object(complete, "completing", _first_of), pytest.raises(
            AssertionError, match="was added to one that was complete"):
        for seed in range(60):
            check_complete(seed)


def test_planted_fault_a_leaf_told_before_its_hooks_is_caught():
    real = complete.completing

    def without_hooks(records, step, told):
        hooks = {p: p.hooks for r in records for p in r.parents
                 if p is not None and p.hooks and not isinstance(p, Record)}
        for leaf in hooks:
            leaf.hooks = None
        yield from real(records, step, told)
        for leaf, given in hooks.items():
            leaf.hooks = given

    with patch.object(complete, "completing", without_hooks), pytest.raises(AssertionError):
        for seed in range(60):
            check_complete(seed)


# -- memory, data ----------------------------------------------------------------------------------


@contextmanager
def small_blocks():
    with gt.settings.override(arena_min_bytes=0):
        yield


class Blocks:
    """The blocks that were allocated, and those that were freed (which must be among them)."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.gone: list[Any] = []

    def allocated(self, event):
        self.made.append(event)

    def freed(self, event):
        assert event in self.made and event not in self.gone
        self.gone.append(event)


def test_blocks_are_told_at_their_allocation_and_their_free():
    told = Blocks()
    with small_blocks(), gt.listen(told):
        x = gt.random.normal((100, 100))
        y = gt.concat([x, x])
        del x, y
        gc.collect()
    made, gone = told.made, told.gone
    assert {id(event) for event in gone} == {id(event) for event in made} and len(gone) == len(made)
    block = next(event for event in made if event.label == "concat")
    assert block.device == "cpu" and block.nbytes == 80_000 <= block.size and block.address


def test_an_allocation_that_a_listener_refuses_is_given_back():
    class Refuse:
        def allocated(self, event):
            raise ValueError("no")

    with small_blocks():
        gc.collect()
        before = gt.memory.stats().allocated
        with gt.listen(Refuse()), pytest.raises(ValueError, match="no"):
            gt.zeros((100, 100)) + 1.0
        gc.collect()
        assert gt.memory.stats().allocated == before


def test_segments_are_told_and_an_error_of_a_listener_there_is_printed(monkeypatch, capsys):
    class Refuse:
        def segment(self, event):
            raise ValueError("not here")

    told = Everything()
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # pytest has its own
    gt.memory.empty_cache()
    with gt.listen(told), gt.listen(Refuse()):
        x = gt.device("cpu").empty((1 << 27,), np.uint8, "large")
        del x
        assert gt.memory.empty_cache() >= 1 << 27
    came, went = told.of("segment")
    assert capsys.readouterr().err.count("ValueError: not here") == 2
    assert came.acquired and not went.acquired
    assert came.address == went.address and came.nbytes == went.nbytes >= 1 << 27


def test_waits_of_streams_are_told():
    told = Everything()
    writer, reader = SimulatedStream(), SimulatedStream()
    streams = {stream.id: stream for stream in (writer, reader)}
    block = Arena(SimulatedSegments(1 << 24), stream_of=streams.get).allocate(8, writer.id)
    ordering = Ordering(streams.get)
    with gt.listen(told):
        ordering.read(writer, block)
        ordering.read(reader, block)
        ordering.read(reader, block)
    event, = told.of("waited")
    assert (event.waiter, event.producer) == (reader.id, writer.id)


def test_batches_are_told_as_they_are_fetched():
    told = Everything()
    loader = gt.data.DataLoader(gt.data.ArrayDataset(np.arange(10.0)), batch_size=4)
    with gt.listen(told):
        batches = [batch for _ in range(2) for batch in loader]
    found = told.of("fetched")
    assert [(e.epoch, e.number) for e in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert len(batches) == 6 and all(e.seconds > 0 and e.loader is loader for e in found)
