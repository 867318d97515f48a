"""Public functions and methods as text: from what a user gives to the output and its record.

`x[3]`, `x.reshape(4, 8)`, `stack([x, y])` and `y += x` compute little, so Python's calls between
the method and the op were most of their time. The written function does what the general function
does for tensors on the CPU whose memory no other handle has written since, while no listener waits
for ops. It leaves every other case to the general function, and what NumPy refuses, too: that one
has the sentences. Writes are those of small values, of float32 or float64, that are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from gtensor.engine.run.call_text import NEW, RECORD, SCOPE, UNTRACKED
from gtensor.engine.tape.op import Op
from gtensor.system.written_code import signature_text, written_when_called

F = TypeVar("F", bound=Callable[..., Any])

_VIEW = """\
def {name}({takes}):
    out = None
    try:
        a1, storage = {first}._array, {first}._storage
        if (storage is FRESH or {first}._device is HERE and {first}._version == storage.version) \\
                and not bus.ops and op.cpu is PATH:
{steps}
    except Exception:
        out = None
    if out is None:
        return GENERAL({passes})
    if storage.common:
        storage = {first}._own_storage()
    elif storage.handles is None:  # a save made it, for this tensor alone
        storage.join({first})
    result = new(Tensor)
    result._array = out
    result._device = HERE
    result._storage = storage
    result._version = storage.version
    result._node = None
    handles = storage.handles
    handles.add(ref(result, handles.discard))
    n1 = {first}._node
"""
_JOINED = """\
def {name}({takes}):
    out = None
    try:
        made, mask, bit, size = [], 0, 1, 0
        if type({first}) is list or type({first}) is tuple:  # others are read once
            dtype = {first}[0]._array.dtype
            for x in {first}:
                a1, storage = x._array, x._storage
                if a1.dtype is not dtype or storage is not FRESH and (
                        x._device is not HERE or x._version != storage.version):
                    break
                made.append(a1)
                size += a1.size
                if x._node is not None:
                    mask |= bit
                bit += bit
            else:
                if 16 * size < settings.arena_min_bytes and not bus.ops and op.cpu is PATH:
{steps}
    except Exception:
        out = None
    if out is None:
        return GENERAL({passes})
"""
_WRITE = """\
def {name}({takes}):
    refused = True
    try:
        a1, storage = self._array, self._storage
        if (storage is FRESH or self._device is HERE and self._version == storage.version) \\
                and not bus.listeners and op.cpu is PATH and a1.dtype.char in "fd":
            kind, n2 = type({value}), None
            if kind is float or kind is int:
                a2 = {number}
                fits = True
            else:
                a2, n2, other_storage = {value}._array, {value}._node, {value}._storage
                fits = (
                    other_storage is not storage or storage.common) and (
                    other_storage is FRESH
                    or {value}._device is HERE and {value}._version == other_storage.version) and (
                    a2.dtype is a1.dtype) and 16 * {sized}.size < settings.arena_min_bytes
            if fits and (self._node is n2 is None or not grad_enabled()):
{steps}
    except (AttributeError, OverflowError):  # no Tensor, or a number that is too large
        refused = True
    if refused:
        return GENERAL({passes})
    if storage.common:
        storage = self._own_storage()
    refused = False
    try:
        {write}
    except (IndexError, TypeError, ValueError):
        refused = True
    finally:  # an interrupt, or another error, may come during or after the write
        if not refused:
            storage.version += 1
            storage.writer = id(a1)
            self._version = storage.version
    return GENERAL({passes}) if refused else {result}
"""
_NOTHING_SAVED = """\
    dtype = out.dtype
    saved, guards = op.nothing_saved
"""


def short_view(op: Op, steps: str, params: str, **names: Any) -> Callable[[F], F]:
    """A decorator of a public function, or a method, that gives a view of its first argument.

    Args:
        op: the view that the function makes in the usual case.
        steps: the text that sets `out` to the view of the array `a1`, of the function's arguments.
            Where it sets nothing, or raises, the function itself is called.
        params: an expression of the op's parameters, evaluated if the view is recorded.
        names: what `steps` and `params` name.
    """
    rest = UNTRACKED.format(untracked="n1 is None") + _recorded(params, "n1, ", "1")
    return _short(op, _VIEW, 12, steps, rest, names)


def short_join(op: Op, steps: str, params: str, **names: Any) -> Callable[[F], F]:
    """The same of a function whose first argument is a sequence of tensors, which it joins.

    `steps` set `out` to a new array, of the arrays `made`, which are small and of one dtype.
    """
    rest = (NEW + UNTRACKED.format(untracked="not mask")
            + _recorded(params, "*[x._node for x in {first}], ", "mask"))
    return _short(op, _JOINED, 20, steps, rest, names)


def short_operator(op: Op, ufunc: np.ufunc) -> Callable[[F], F]:
    """A decorator of `__iadd__` and its like, for an op whose CPU path is that ufunc."""
    return short_write(
        op, "refused = 0 in a1.strides", "UFUNC(a1, a2, a1)", value="other", sized="a1",
        number="float32[other] if a1.dtype is FLOAT32 else constant(other, a1.dtype)",
        result="self", UFUNC=ufunc)


def short_write(
    op: Op, steps: str, write: str, *, value: str, number: str, sized: str, result: str = "None",
    **names: Any
) -> Callable[[F], F]:
    """A decorator of a method of Tensor that writes the tensor's memory.

    Args:
        op: what the method applies.
        steps: text that sets `refused` to False if `a1`, the tensor's array, is to be written.
        write: the write of `a2`, an array or a number, to `a1`.
        value: the method's parameter with the value.
        number: an expression for a number that is the value.
        sized: which of the two arrays bounds the copy that NumPy makes where they overlap.
        result: what the method returns.
        names: what the texts name.
    """
    parts = (("{value}", value), ("{number}", number), ("{sized}", sized), ("{write}", write),
             ("{result}", result))
    text = _WRITE
    for name, part in parts:
        text = text.replace(name, part)
    return _short(op, text, 16, steps, "", names)


def _recorded(params: str, nodes: str, mask: str) -> str:
    return _NOTHING_SAVED + RECORD.format(shape="out.shape", nodes=nodes, mask=mask, params=params,
                                          stream="None", depth="1")


def _short(
    op: Op, head: str, depth: int, steps: str, rest: str, names: dict[str, Any]
) -> Callable[[F], F]:
    indented = "\n".join(" " * depth + line for line in steps.strip("\n").split("\n"))

    def decorate(function: F) -> F:
        bare: Any = getattr(function, "__wrapped__", function)
        assert isinstance(bare, FunctionType)

        def text() -> tuple[str, dict[str, Any]]:
            takes, passes, _, defaults = signature_text(bare)
            first = bare.__code__.co_varnames[0]
            begin = head.format(name=bare.__name__, takes=takes, passes=passes, first=first,
                                steps=indented)
            return begin + rest.replace("{first}", first), {
                **SCOPE, **defaults, **names, "GENERAL": function, "PATH": op.cpu,
                "STORAGE": op.storage, "op": op, "ref": ref}

        return written_when_called(bare, text)  # type: ignore[return-value]

    return decorate
