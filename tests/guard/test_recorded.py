"""The guard finds planted faults, and says nothing where nothing has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from call_scopes import replaced

from gtensor.backend import get_device
from gtensor.engine.handle.storage import Storage
from gtensor.engine.tape.op import registry
from gtensor.engine.walk.slots import RawStep
from gtensor.system.bus import KINDS, METHODS, listen

from . import records
from .cases import names
from .measure import measured_on_cpu
from .numpy_memory import counted

pytestmark = pytest.mark.slow


class Nothing:
    """A listener that does nothing, of all events but blocks, which the counting resource lacks."""

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS or name in KINDS["memory"]:
            raise AttributeError(name)
        return lambda event: None


def test_listening_changes_neither_values_nor_counts() -> None:
    with listen(Nothing()):
        for name in names():
            assert not records.changes(name, measured_on_cpu(name))


def test_planted_fault_a_listener_that_takes_a_copy_is_found() -> None:
    def copying(op: Any, phase: str, path: Any, args: Any, params: Any = {}) -> Any:  # noqa: B006
        return get_device("cpu").copy(path(*args, **params))

    with listen(Nothing()), replaced("heard", copying):
        assert records.changes("tanh", measured_on_cpu("tanh"))


# -- the count of arrays ---------------------------------------------------------------------------


def test_arrays_and_bytes_are_counted_as_numpy_makes_them() -> None:
    with counted() as tally:
        kept = np.empty(100, np.uint8)
        np.empty(1000, np.uint8)
        later = np.zeros((2, 3))
        assert (tally.arrays, tally.nbytes, tally.above) == (3, 1148, 1100)
        del kept, later
        assert (tally.arrays, tally.live, tally.alive) == (3, 0, 0)


# -- planted faults --------------------------------------------------------------------------------


def _path(name: str, change: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    path = registry[name].cpu
    return patch.object(registry[name], "cpu",
                        lambda *arrays, **params: change(path(*arrays, **params)))


def _off() -> AbstractContextManager[Any]:
    """a value 1e-6 off"""
    return _path("tanh", lambda out: out * out.dtype.type(1 + 1e-6))


@contextmanager
def _gradient_off() -> Iterator[None]:
    """a gradient 1e-6 off"""
    give = RawStep.give
    with patch.object(RawStep, "give", lambda self, i, a: give(self, i, a * (1 + 1e-6))):
        yield


def _copied() -> AbstractContextManager[Any]:
    """an output is copied"""
    return _path("tanh", lambda out: get_device("cpu").copy(out))


@contextmanager
def _graph_holds() -> Iterator[None]:
    """a saved array has a holder more"""
    def held() -> Storage:
        storage = Storage()
        storage.holds += 1
        return storage

    with replaced("Storage", held):
        yield


@contextmanager
def _slot_holds() -> Iterator[None]:
    """a lent gradient is never released"""
    lend = RawStep.lend

    def held(self: Any, i: int, a: Any) -> None:
        lend(self, i, a)
        if self.hold is not None:
            self.hold.holds += 1

    with patch.object(RawStep, "lend", held):
        yield


_leaked: list[Any] = []


@contextmanager
def _leak() -> Iterator[None]:
    """an output is kept for ever"""
    with _path("tanh", lambda out: _leaked.append(out) or out):
        yield
    _leaked.clear()


def _spare() -> AbstractContextManager[Any]:
    """a path makes an array that it does not need"""
    return _path("tanh", lambda out: (np.empty(10000), out)[1])


@contextmanager
def _not_reused() -> Iterator[None]:
    """a gradient that a rule could overwrite is kept"""
    with patch.object(RawStep, "reuse", lambda self, g: None):
        yield


@pytest.mark.parametrize("fault, name, line", [
    (_off, "tanh", "tanh 0 float64, value float64(7,): number"),
    (_gradient_off, "tanh", "tanh 0 float64, gradient 0 float64(7,): number"),
    (_copied, "tanh", "tanh 0 float64, forward copies: 1, recorded 0"),
    (_graph_holds, "tanh", "tanh 0 float64, graph: 'tanh(out 2)', recorded 'tanh(out 1)'"),
    (_slot_holds, "walk diamond", "walk diamond 0 float64, backward reused: 0, recorded 1"),
    (_leak, "tanh", "tanh 0 float64, left: 3, recorded 0"),
    (_spare, "tanh", "tanh 0 float64, forward peak: 80056, recorded 56"),
    (_not_reused, "walk layer", "walk layer 0 float64, backward reused: 0, recorded 1"),
], ids=lambda value: value.__name__[1:] if callable(value) else "")
def test_a_planted_fault_is_found(
    fault: Callable[[], AbstractContextManager[Any]], name: str, line: str
) -> None:
    with ExitStack() as stack:
        stack.enter_context(fault())
        found = measured_on_cpu(name)
        lines = records.changes(name, found)
    assert any(given.startswith(line) for given in lines), "\n".join(lines)


def test_a_run_that_is_gone_or_new_is_named() -> None:
    assert records.differences({"new 0 given": {}}, {"old 0 given": {}}) == [
        "new 0 given: not recorded", "old 0 given: recorded, but not run"]
    assert records.value_differences({}, {"double": np.ones(2)})
