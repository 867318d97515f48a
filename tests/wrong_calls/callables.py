"""The public callables of every room, each with a call that is right.

Rooms are read from `__all__`. A right call is searched for: ordinary values of each required
parameter's kind are tried until the call returns. A callable for which none is found has one in
`GIVEN`, or a reason in `WITHOUT`.
"""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property, partial
from itertools import chain, islice, product
from typing import Any

import numpy as np

import gtensor as gt
from gtensor import kinds, nn
from wrong_calls import planted
from wrong_calls.right_calls import GIVEN, OF_NAME, ORDINARY

ROOMS = (
    "", "linalg", "fft", "special", "ndimage", "random", "func", "nn", "nn.functional", "nn.init",
    "nn.utils", "optim", "optim.lr_scheduler", "checkpoint", "data", "memory", "profiler", "amp",
    "autograd", "models", "distributed", "distributions", "testing")
METHODS = "Tensor"  # the room of a tensor's methods
PLANTED = "planted"  # that of functions which are wrong, by which the classes are tested
LAYERS = "nn forward"  # the room of what modules do when called
MOST_TRIES = 600

WITHOUT = {
    "is a record that gtensor makes": (
        "Sample checkpoint.Report memory.Block memory.Event memory.History memory.Plan "
        "memory.Stats memory.Watermark profiler.Profile profiler.Span distributed.Work "
        "distributed.Communicator"),
    "takes such records": "memory.Planned profiler.compare",
    "is abstract": (
        "Device Tensor memory.Resource memory.SegmentSource optim.Optimizer "
        "optim.lr_scheduler.LRScheduler distributions.Distribution distributions.Transform"),
    "needs a GPU": "Graph stream Event memory.CudaSegments memory.VirtualSegments",
    "starts or ends processes": (
        "distributed.end_all distributed.init distributed.started distributed.all_gather "
        "distributed.all_reduce distributed.reduce_scatter distributed.DataParallel "
        "distributed.ZeroOptimizer distributed.convert_sync"),
    "checks where there is a listener": "profiler.range",
    "defines an op, which has tests of its own": "op d pointwise",
}


@dataclass(frozen=True)
class Target:
    """A public callable.

    Attributes:
        room: where it was found, one of `ROOMS`, `METHODS` or `LAYERS`.
        name: its public name.
        function: what is called; the first argument of a method is the tensor.
        given: makes a right call's arguments by name; None to search for one.
    """

    room: str
    name: str
    function: Callable[..., Any]
    given: Callable[[], dict[str, Any]] | None = None

    def __str__(self) -> str:
        return f"{self.room}.{self.name}".strip(".")


@cache
def _names(table: tuple[tuple[str, str], ...]) -> frozenset[str]:
    return frozenset(chain.from_iterable(names.split() for _, names in table))


def without() -> frozenset[str]:
    return _names(tuple(WITHOUT.items()))


# -- what there is ---------------------------------------------------------------------------------


def targets() -> Iterator[Target]:
    """Every public callable, once: the first room that has it; then the planted ones."""
    seen: set[int] = set()
    for room in ROOMS:
        module = importlib.import_module(f"gtensor.{room}".strip("."))
        for name in module.__all__:
            found = getattr(module, name)
            full = f"{room}.{name}".strip(".")
            if not callable(found) or id(found) in seen or full in without() or _is_record(found):
                continue
            seen.add(id(found))
            yield Target(room, name, found, GIVEN.get(full))
            if room == "nn" and _is_layer(found):
                yield Target(LAYERS, name, Called(found), GIVEN.get(f"{LAYERS}.{name}"))
    for name in dir(gt.Tensor):
        found = getattr(gt.Tensor, name)
        if name in BINARY.split():
            yield Target(METHODS, name, Operator(name), GIVEN.get(f"{METHODS}.{name}"))
        elif callable(found) and (name[0] != "_" or name in CONVERSIONS.split()) and (
                "self" in inspect.signature(found).parameters):  # else it is an op of `gt`
            yield Target(METHODS, name, found, GIVEN.get(f"{METHODS}.{name}"))
    for name, found in planted.FUNCTIONS.items():
        yield Target(PLANTED, name, found, dict)


BINARY = (
    "__add__ __sub__ __mul__ __truediv__ __matmul__ __pow__ __floordiv__ __mod__ __and__ "
    "__lshift__ __eq__ __lt__ __radd__ __rsub__ __iadd__ __imul__ __imatmul__ __getitem__")
CONVERSIONS = "__setitem__ __float__ __int__ __index__ __contains__ __bool__ __round__"


class Operator:
    """An operator of a tensor and another operand."""

    def __init__(self, name: str) -> None:
        self._function = getattr(operator, name.replace("__r", "__"))
        self._reflected = name.startswith("__r")
        kind = inspect.Parameter.POSITIONAL_ONLY
        self.__signature__ = inspect.Signature([
            inspect.Parameter("self", kind), inspect.Parameter("other", kind)])

    def __call__(self, tensor: Any, other: Any) -> Any:
        return (self._function(other, tensor) if self._reflected
                else self._function(tensor, other))


class Called:
    """What a layer's instance does when called; each call is one of a new instance."""

    def __init__(self, layer: type[nn.Module]) -> None:
        self._layer = layer
        self.__signature__ = inspect.signature(layer.forward)

    @cached_property
    def _made_of(self) -> Callable[[], dict[str, Any]]:
        name = self._layer.__name__
        return search(Target("nn", name, self._layer, GIVEN.get(f"nn.{name}"))) or dict

    def __call__(self, *given: Any, **more: Any) -> Any:
        layer = self._layer(**self._made_of())
        return layer(*given, **more)


def _is_layer(found: Any) -> bool:
    return inspect.isclass(found) and issubclass(found, nn.Module) and (
        found.forward is not nn.Module.forward)


def _is_record(found: Any) -> bool:
    return inspect.isclass(found) and (
        is_dataclass(found) or hasattr(found, "_fields")
        or issubclass(found, BaseException | np.dtype | np.generic))


def parameters(target: Target) -> dict[str, inspect.Parameter]:
    """Those that a call can give, by name; a method's tensor is `self`."""
    try:
        found = dict(inspect.signature(target.function).parameters)
    except (TypeError, ValueError):
        return {}
    if target.room == LAYERS:
        del found["self"]
    return {name: p for name, p in found.items() if p.kind is not p.VAR_KEYWORD
            or p.annotation == "object"}  # others stand for names


def wrong_parameters(target: Target) -> list[str]:
    """Those that a call may give wrongly: of an operator, Python asks the first one's class."""
    return ["other"] if isinstance(target.function, Operator) else list(parameters(target))


def candidates(parameter: inspect.Parameter) -> list[Callable[[], Any]]:
    """Ordinary values of a parameter's kind; those of its name first."""
    if parameter.name == "self":
        return list(ORDINARY[:6])
    kind = kinds.kind_of(parameter)
    usual = [make for make in ORDINARY if kind.fits(make())]
    return [*OF_NAME.get(parameter.name, ()), *usual] or list(ORDINARY)


def search(target: Target) -> Callable[[], dict[str, Any]] | None:
    """What makes the required arguments of a call that returns, by name; None if none is found."""
    if target.given is not None:
        return target.given
    needed = [p for p in parameters(target).values()
              if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    choices = [candidates(p) for p in needed]
    for makers in _combinations(choices):
        make = partial(_made, dict(zip([p.name for p in needed], makers, strict=True)))
        try:
            call(target, make())
        except Exception:
            continue
        return make
    return None


def _made(makers: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    return {name: make() for name, make in makers.items()}


def _combinations(choices: list[list[Callable[[], Any]]]) -> Iterator[tuple[Any, ...]]:
    """At first the same value for all that take it, then any."""
    for make in choices[0] if choices else ():
        if all(make in more for more in choices):
            yield (make,) * len(choices)
    yield from islice(product(*choices), MOST_TRIES)


def call(target: Target, given: dict[str, Any]) -> Any:
    """Call it with arguments by name, by position where they can only be given so."""
    positional: list[Any] = []
    rest: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in parameters(target).items():
        if name not in given:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY or name == "self":
            positional.append(given[name])
        elif parameter.kind is parameter.VAR_POSITIONAL:
            rest.append(given[name])
        elif parameter.kind is parameter.VAR_KEYWORD:
            named["more"] = given[name]
        else:
            named[name] = given[name]
    if rest:  # what may be given by name, before these
        flat = [named.pop(n) for n, p in parameters(target).items()
                if n in named and p.kind is p.POSITIONAL_OR_KEYWORD]
        positional += flat + rest
    return target.function(*positional, **named)
