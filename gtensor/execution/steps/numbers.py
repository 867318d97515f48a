"""Floats among the arguments whose values are live: those that a step only computes tensors with.

The step runs with the floats themselves, so whether it reads one must be told in another way. Its
code tells: each instruction that loads the argument loads it for an instruction `+`, `-`, `*` or
`/`, which stands in no loop and so runs once. The recording tells the rest: each of these ran one
op of a tensor and a number, in the step's own call, not in one of the same code within. Then
nothing else can depend on the number, but the backward rule of that op, whose calls are known by
the same instruction.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np

from gtensor.backend import Device
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.execution.steps.recorder import Call, Constant, Recorder, Value, view_at

_OPS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
# By these names a function reads its arguments without an instruction that loads them.
FRAMES = {"f_locals", "getargvalues"}
# evaluate, query: of NumExpr and pandas, which read numbers that a text names.
_FRAMES = {"breakpoint", "eval", "evaluate", "exec", "locals", "query", "set_trace", "vars",
           *FRAMES}
_PUSH = {"LOAD_CONST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_SMALL_INT", "PUSH_NULL"}
_NONE = {"EXTENDED_ARG", "KW_NAMES", "NOP", "NOT_TAKEN", "PRECALL"}
_ONE = {"BINARY_OP", "BINARY_SLICE", "BINARY_SUBSCR", "BUILD_LIST", "BUILD_SLICE", "BUILD_TUPLE",
        "CALL", "CALL_KW", "COMPARE_OP", "UNARY_NEGATIVE"}  # results of instructions


@dataclass(frozen=True, slots=True)
class Live:
    """A live number, by the path of the argument, as an array without axes."""

    path: str
    dtype: np.dtype
    device: Device

    def tensor(self, numbers: dict[str, Number]) -> Tensor:
        """The number among those of a call."""
        array = as_array(numbers[self.path].value, self.dtype)
        return wrap(self.device.from_numpy(array), self.device)


class Number(NamedTuple):
    """A float among the arguments themselves.

    The parameter's name is "" if it has none of its own, its place -1 if it was given by keyword.
    """

    name: str
    place: int
    value: float


def numbers_of(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Number]:
    """The floats among the arguments, by their paths as of `func.trees.leaves`."""
    if float not in {*map(type, args), *map(type, kwargs.values())}:
        return {}
    code = code_of(function)
    given: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    if code is not None:
        given = code.co_varnames[isinstance(function, MethodType):code.co_argcount]
        named = code.co_varnames[code.co_posonlyargcount:code.co_argcount + code.co_kwonlyargcount]
    return {f"[{i}]": Number(given[i] if i < len(given) else "", i, x)
            for i, x in enumerate(args) if type(x) is float} | {
        f"[{name!r}]": Number(name if name in named else "", -1, x)
        for name, x in kwargs.items() if type(x) is float}


def code_of(function: Any) -> CodeType | None:
    """The code of a function or a method of Python's."""
    if isinstance(function, MethodType):
        function = function.__func__
    return function.__code__ if isinstance(function, FunctionType) else None


def follow(
    recorder: Recorder, function: Any, numbers: dict[str, Number], paths: Iterable[str]
) -> frozenset[str]:
    """Which numbers of these paths are live in a recording, whose calls get `Live`s for them."""
    code = code_of(function)
    if code is None or recorder.higher:
        return frozenset()
    uses = uses_of(code)
    found: dict[int, list[int]] = {}  # instruction -> its calls
    for at, call in enumerate(recorder.calls):
        if call.where[0] is code:
            found.setdefault(call.where[1], []).append(at)
    live = set()
    for path in paths:
        number = numbers[path]
        if number.name not in uses:
            continue
        changed: dict[int, Call] = {}
        for instruction, op in uses[number.name].items():
            if not _is_used(recorder, found.get(instruction, []), op, path, number.value, changed):
                break
        else:
            live.add(path)
            for at, made in changed.items():
                recorder.calls[at] = made
    return frozenset(live)


def _is_used(
    recorder: Recorder, found: list[int], op: str, path: str, value: float,
    changed: dict[int, Call],
) -> bool:
    """Whether an instruction ran one op with the number, and what its rule computes is known."""
    forward = 0
    for at in found:
        call = recorder.calls[at]
        if not isinstance(call, Call) or call.function is view_at or (
                call.within[0] == "backward" and call.op is not None):
            continue  # the write of `x *= w`; an op of a hook, which cannot have the number
        made = None if call.host else _with_live(call, recorder, path, value)
        if made is None:
            return False
        if call.within[0] != "backward":
            forward += 1
            if call.name != op or made is call or len(call.args) != 2 or (
                    not call.itself):
                return False
        if made is not call:
            changed[at] = made
    return forward == 1


def _with_live(call: Call, recorder: Recorder, path: str, value: float) -> Call | None:
    """The call with a `Live` for the number; None for one that takes more than arithmetic."""
    if any(isinstance(x, (float, Constant)) for x in _parts(call.params)):
        return None
    parts = _parts(call.args)
    if not any(isinstance(x, (float, Constant)) for x in parts):
        return call
    dtypes = {recorder.values[n].dtype for n in [
        *[x.number for x in parts if isinstance(x, Value)],
        *[n for n in call.made if n is not None]]}
    dtype = next(iter(dtypes), None)
    if call.name not in _OPS.values() or len(parts) != len(call.args) or len(dtypes) != 1 or (
            dtype is None or dtype.kind != "f"):
        return None
    assert call.device is not None
    live = Live(path, dtype, call.device)
    args: list[Any] = []
    for x in call.args:
        if isinstance(x, (float, Constant)):
            array = x.array if isinstance(x, Constant) else as_array(x, dtype)
            if Constant(array) != Constant(as_array(value, dtype)):
                return None
            x = live
        args.append(x)
    return replace(call, args=tuple(args)) if args.count(live) == 1 else None


def _parts(coded: Any) -> list[Any]:
    if isinstance(coded, dict):
        coded = tuple(coded.values())
    return [y for x in coded for y in _parts(x)] if isinstance(coded, (tuple, list)) else [coded]


def as_array(value: float, dtype: np.dtype) -> np.ndarray:
    """A number as NumPy takes it beside an array of the dtype; the op itself warns of overflow."""
    with np.errstate(over="ignore"):
        return np.asarray(value, dtype)


# -- code ------------------------------------------------------------------------------------------


@functools.lru_cache(256)
def uses_of(code: CodeType) -> dict[str, dict[int, str]]:
    """Of each parameter that is only an operand the instructions that use it, and their ops."""
    if not _FRAMES.isdisjoint((*code.co_names, *code.co_freevars)):
        return {}
    steps = [*dis.get_instructions(code)]
    names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    found: dict[str, dict[int, str] | None] = {
        name: {} for name in names if name not in code.co_cellvars}
    loops = [(step.argval, step.offset) for step in steps if "JUMP_BACKWARD" in step.opname]
    for at, step in enumerate(steps):
        given = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if "FAST" not in step.opname or found.keys().isdisjoint(given):
            continue
        for k, name in enumerate(given):
            use = _use(steps[at + 1:], len(given) - 1 - k) if _loads(step.opname) else None
            uses = found.get(name)
            if use is None or any(start <= use.offset <= end for start, end in loops):
                found[name] = None
            elif uses is not None:
                uses[use.offset] = _OPS[use.argrepr.rstrip("=")]
    return {name: uses for name, uses in found.items() if uses is not None}


def _loads(opname: str) -> bool:
    """Whether an instruction puts local variables on the stack and does nothing else."""
    return {*opname.split("_")} <= {"LOAD", "FAST", "CHECK", "BORROW"}


def _use(steps: Iterable[dis.Instruction], above: int) -> dis.Instruction | None:
    """The arithmetic that takes a value, with so many values above it on the stack, if one does."""
    for step in steps:
        if step.opname in _PUSH or _loads(step.opname):
            left = above
        elif step.opname in _NONE or step.opname in _ONE or step.opname in (
                "LOAD_ATTR", "LOAD_METHOD"):
            effect = dis.stack_effect(step.opcode, step.arg, jump=False)
            results = 1 if step.opname in _ONE else 0 if step.opname in _NONE else 1 + effect
            left = above + effect - results
        else:
            return None  # such as a jump
        if left < 0:
            takes = step.opname == "BINARY_OP" and step.argrepr.rstrip("=") in _OPS
            return step if takes else None
        above += dis.stack_effect(step.opcode, step.arg, jump=False)
    return None
