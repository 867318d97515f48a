"""A step that runs out of memory, or is interrupted, is applied whole or not at all."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from memory.interrupts import Interrupt, interrupt_after

import gtensor as gt
from gtensor import nn, optim
from gtensor.distributed import Communicator, ZeroOptimizer
from gtensor.distributed.alone import Alone
from gtensor.memory import Arena, HostSegments, OutOfMemoryError
from gtensor.memory.contract.adaptors import Adaptor
from gtensor.system.interrupts import undivided, undivided_wait

SHAPES = [(3,), (40, 11), (), (7, 5), (0, 2)]
DTYPES = ["float32", "bfloat16", "float16", "float64"]


class Counting(Adaptor):
    """Fails at the request that brings `left` to 0; NumPy's own are counted, too."""

    left = -1

    def allocate(self, nbytes: int, stream: int, label: str = "") -> Any:
        self.count()
        return self.upstream.allocate(nbytes, stream, label)

    def count(self) -> None:
        self.left -= 1
        if not self.left:
            raise OutOfMemoryError("planted", 1)


@contextmanager
def counted_memory() -> Iterator[Counting]:
    """All arrays of gtensor come from it, and tiles are small."""
    made, empty = Counting(Arena(HostSegments())), np.empty

    def counted(*given: Any, **named: Any) -> Any:
        array = empty(*given, **named)
        if array.nbytes:
            made.count()
        return array

    with gt.settings.override(arena_min_bytes=0, tile_elements=64), patch.object(
            gt.device("cpu"), "resource", made), patch.object(np, "empty", counted):
        yield made


def parameters() -> list[gt.Tensor]:
    """Small and large, of all types, one with columns; with gradients."""
    rng = np.random.default_rng(0)
    made = []
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        values = [gt.tensor(rng.standard_normal(shape)).astype(dtype) for _ in range(2)]
        made.append(values[0].requires_grad_())
        made[-1].grad = values[1]
    columns = gt.tensor(np.asfortranarray(rng.standard_normal((9, 8)).astype(np.float32)))
    columns.requires_grad_().grad = gt.ones((9, 8), "float32") * 1e30  # whose square overflows
    return [*made, columns]


class Case:
    """`run` is to be whole; `states()` is all that it writes and counts."""

    def __init__(self, kind: str) -> None:
        self.parameters = parameters()
        self.more: Callable[[], list[Any]] = list
        half = len(self.parameters) // 2
        groups: Any = [{"params": self.parameters[:half]},
                       {"params": self.parameters[half:], "lr": 0.02}]
        if kind in OPTIMIZERS:
            make, options = OPTIMIZERS[kind]
            self._steps(make(groups, lr=0.01, **options))
        elif kind == "zero":
            self._steps(ZeroOptimizer(self.parameters[:-1], optim.AdamW, Communicator(Alone())))
        elif kind in ("average, first", "average, later", "load averages"):
            ema = optim.EMA(self._module(), 0.9)
            if kind == "average, later":
                ema.update()
            with gt.no_grad():
                for p in ema.module.parameters():
                    p += 1
            self.run = ema.update
            self.more = lambda: [ema.n_averaged, *[a.tolist() for a in ema._averages.values()]]
            if kind == "load averages":
                self._loads(ema)
        elif kind == "load a module":
            self._loads(net := self._module())
            self.more = lambda: [p.tolist() for p in net.parameters()]
        elif kind == "load an optimizer":
            optimizer = optim.Adam(groups)
            self._steps(optimizer)
            self._loads(optimizer)
        elif kind.startswith("clip"):
            self.run = CLIPS[kind](self.parameters[:-1])
        else:
            self._scales(kind, optim.SGD(groups, 0.01, momentum=0.9))

    def _module(self) -> nn.Module:
        net = nn.Module()
        for i, p in enumerate(self.parameters):
            net.register_parameter(f"p{i}", nn.Parameter(p.detach().clone()))
        return net

    def _steps(self, optimizer: optim.Optimizer) -> None:
        optimizer.step()
        if isinstance(optimizer, ZeroOptimizer):
            self.more = lambda: [optimizer.inner.state_dict()["state"]]
        else:
            self.more = lambda: [optimizer.state_dict()["state"]]
        self.run = optimizer.step

    def _loads(self, loader: Any) -> None:
        """The own state, all tensors halved."""
        def later(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: later(inner) for name, inner in value.items()}
            return value * 0.5 if isinstance(value, gt.Tensor) else value

        state = later(loader.state_dict())
        self.run = lambda: loader.load_state_dict(state)

    def _scales(self, kind: str, optimizer: optim.Optimizer) -> None:
        scaler = optim.GradScaler(init_scale=4.0, growth_interval=1)
        other = optim.SGD([gt.ones(2, requires_grad=True)])
        other.param_groups[0]["params"][0].grad = gt.ones(2)
        scaler.step(other)
        self.run = lambda: scaler.unscale_(optimizer)
        if kind == "scale":
            scaler.step(optimizer)
            self.run = scaler.update
        if kind == "scaled step":
            scaler.unscale_(optimizer)
            self.run = lambda: scaler.step(optimizer)
        self.more = lambda: [scaler.state_dict(), dict(scaler._stages), optimizer.state_dict(), [
            flag for found in scaler._found.values() for flag in found.values() if flag]]

    def states(self) -> str:
        with gt.no_grad():
            values = [[p.tolist(), p.grad.tolist()] for p in self.parameters]
        return repr([values, self.more()])


# with no state, one, and the most; all take one way through `Optimizer.step`
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optim.SGD, {}), "momentum": (optim.SGD, {"momentum": 0.9}),
    "adam": (optim.Adam, {"weight_decay": 0.1}),
    "rmsprop": (optim.RMSprop, {"centered": True})}
CLIPS: dict[str, Callable[[list[gt.Tensor]], Callable[[], object]]] = {
    "clip norm": lambda some: lambda: optim.clip_grad_norm_(some, 0.1),
    "clip value": lambda some: lambda: optim.clip_grad_value_(some, 0.1)}
KINDS = [*OPTIMIZERS, *CLIPS, "zero", "average, first", "average, later", "unscale", "scaled step",
         "scale", "load a module", "load an optimizer", "load averages"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_memory_changes_nothing_and_may_be_tried_again(kind: str) -> None:
    with counted_memory() as memory:
        whole = Case(kind)
        whole.run()
        for number in itertools.count(1):
            case = Case(kind)
            before = case.states()
            memory.left = number
            try:
                case.run()
            except OutOfMemoryError:
                assert case.states() == before
                case.run()
            left, memory.left = memory.left, -1
            assert case.states() == whole.states()
            if left > 0:
                break


@contextmanager
def handling(handler: Any) -> Iterator[None]:
    """Within the block, that is SIGINT's handler, and stays it."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "average, first"])
def test_an_interrupted_step_is_whole_or_not_begun(kind: str) -> None:
    whole = Case(kind)
    before = whole.states()
    whole.run()
    after, found = whole.states(), set()
    for place in itertools.count(3, 149 if kind in ("load an optimizer", "zero") else 61):
        case = Case(kind)
        came = []

        def interrupt(number: int, frame: object, came: list[int] = came) -> None:
            came.append(number)
            raise Interrupt

        with handling(interrupt):
            there = interrupt_after(place, case.run, signal.SIGINT, sample=True)
        assert len(came) == there
        assert case.states() in (before, after)
        found.add(case.states())
        if not there:
            break
    assert found == {before, after}


@pytest.mark.parametrize("scaled", [False, True])
def test_a_second_ctrl_c_ends_an_exchange_that_waits_for_other_ranks(scaled: bool) -> None:
    class Waiting(Alone):
        """Ctrl-C comes again and again, as no rank does."""

        came = 0

        def all_gather(self, array: Any, out: Any) -> Any:
            for _ in range(9):
                self.came += 1
                signal.raise_signal(signal.SIGINT)
            return super().all_gather(array, out)

    p = gt.ones(3, "float32").requires_grad_()
    p.grad = gt.ones(3, "float32")
    optimizer = ZeroOptimizer([p], optim.SGD, Communicator(engine := Waiting()), lr=0.5)
    scaler = optim.GradScaler(init_scale=1.0, enabled=scaled)
    with handling(signal.default_int_handler):
        with pytest.raises(KeyboardInterrupt):
            scaler.step(optimizer)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert engine.came == 2 and p.tolist() == [0.5] * 3


# -- the block itself ------------------------------------------------------------------------------


def test_handlers_are_called_once_at_the_end_of_the_outermost_block() -> None:
    came: list[Any] = []

    def handler(*given: Any) -> None:
        came.append(given)

    with handling(handler):
        with undivided_wait():
            with undivided():
                for _ in range(3):
                    signal.raise_signal(signal.SIGINT)
            assert not came
        (number, frame), = came
        assert number == signal.SIGINT and frame.f_code.co_name.startswith("test_handlers")
        with pytest.raises(ValueError, match="mine"), undivided():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("mine")
        assert len(came) == 2


def test_a_block_that_waits_calls_the_handler_at_the_second_time_for_both() -> None:
    came: list[int] = []
    with handling(lambda number, frame: came.append(number)):
        with undivided_wait():
            signal.raise_signal(signal.SIGINT)
            assert not came
            signal.raise_signal(signal.SIGINT)
            assert came == [signal.SIGINT] * 2
        assert len(came) == 2


def test_a_block_that_another_signal_ends_at_any_point_restores_the_handler() -> None:
    def block() -> None:
        with undivided():
            pass

    for place in itertools.count(1):
        with handling(signal.default_int_handler):
            there = interrupt_after(place, block)
        if not there:
            break
    assert place > 5


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_handler_that_is_not_pythons_stays(handler: Any) -> None:
    with handling(handler), undivided():
        assert signal.getsignal(signal.SIGINT) is handler


def test_a_step_in_another_thread_leaves_the_handler() -> None:
    found = []

    def step() -> None:
        with undivided():
            found.append(signal.getsignal(signal.SIGINT))

    with handling(signal.default_int_handler):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    assert found == [signal.default_int_handler]
