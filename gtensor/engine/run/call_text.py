"""Call paths as text: an op's first call writes the function that its later calls run.

With small arrays Python's time per op dominates. The written function is `bind` for the usual case:
tensors on the CPU, whose memory no other handle has written since, and a number beside one. If the
first tensor is on another device, it calls the function that the same text makes for that device.
It hands every other case to `bind`, which defines the semantics; a test compares the two.
Of views, joins and small writes in place the public function is written, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import numpy as np

from gtensor.engine.handle.context import current_casts, grad_enabled
from gtensor.engine.handle.node import FREE, next_seq
from gtensor.engine.handle.storage import FRESH, FRESH_ELSEWHERE, Storage
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.run import bind as general
from gtensor.engine.run.bind import LAST_INTEGER, USER_DTYPE
from gtensor.engine.tape.execute import name_shapes
from gtensor.engine.tape.levels import TRACED, on_level
from gtensor.engine.tape.op import Op
from gtensor.engine.tape.record import Record
from gtensor.settings import settings
from gtensor.system.bus import bus, heard, here
from gtensor.system.source_line import last, user_frame
from gtensor.system.written_code import signature_text, written, written_when_called

if TYPE_CHECKING:
    from gtensor.backend import Device

SCOPE: dict[str, Any] = {  # what the texts name
    "FLOAT32": np.dtype(np.float32), "FREE": FREE, "FRESH": FRESH, "HERE": general.HOST,
    "NO_PARAMS": general.NO_PARAMS, "Record": Record, "Storage": Storage, "Tensor": Tensor,
    "asarray": np.asarray,
    "bind": general.bind, "bus": bus, "carries_gradient": general.carries_gradient,
    "constant": general.constant, "current_casts": current_casts,
    "float32": general.FLOAT32_CONSTANTS, "frame_at": sys._getframe,
    "grad_enabled": grad_enabled, "heard": heard, "here": here, "last": last,
    "name_shapes": name_shapes, "ndarray": np.ndarray, "new": object.__new__, "next_seq": next_seq,
    "on_level": on_level, "refuse_arrays": general.refuse_arrays,
    "saves": general.saves, "TRACED": TRACED,
    "saving": general.saving,
    "settings": settings, "storage_of": general.storage_of, "uncast": general.uncast,
    "user_frame": user_frame, "wrap": wrap,
}

_HEAD = """\
def call({names}, /{keywords}):
"""
_CHECK = """\
    refuse_arrays(op, params)
"""
_AUTOCAST = """\
    casts = current_casts()
    if casts is not None:
        return casts.run(op, {tuple}, {params})
"""
_NUMBER = """\
    kind = type(x2)
    if kind is float or kind is int:
"""
_CONSTANT = """\
    a2 = {number}
    if a2 is None:
        return bind(op, ({inputs}), {params})
"""
_NONE = """\
    if x{i} is None:
        a{i} = n{i} = None
    else:
"""
_TENSOR = """\
    try:
        a{i}, n{i}, storage = x{i}._array, x{i}._node, x{i}._storage
    except AttributeError:  # not a Tensor; `try` costs less than a check
        return bind(op, ({inputs}), {params})
    if storage is not FRESH and (x{i}._device is not HERE or x{i}._version != storage.version):
{elsewhere}        return (on_level if storage is TRACED else bind)(op, ({inputs}), {params})
"""
_ELSEWHERE = """\
        if x1._device is not HERE and storage is not TRACED:
            return ELSEWHERE[x1._device]({inputs}{more})
"""
_FLOATING = """\
    if a{i}.dtype is not FLOAT32 and a{i}.dtype.kind in 'biu':
        return bind(op, ({inputs}), {params})
"""
_COMPOSED = """\
    if not ({untracked}) and grad_enabled():
        if current_casts() is not None:
            return uncast(op, ({inputs}), {params})
        return op.composed({inputs}{more})
"""
_RUN = """\
    {branch} bus.ops:
        out = heard(op, "forward", {path}, ({arrays}), {params})
"""
_SMALL = """\
    elif 16 * {size} < settings.arena_min_bytes:  # bounds of the largest element and the count
        out = UFUNC({arrays})
"""
_RUN_SMALL = """\
    if bus.ops and 16 * {size} < settings.arena_min_bytes:
        out = heard(op, "forward", UFUNC, ({arrays}))
"""
_PATH = """\
    else:
        out = {path}({arrays}{more})
"""
_REFUSED = """\
    except ValueError as error:
        name_shapes(op.name, error, ({arrays}))
        raise
"""
_EXTRAS = """\
    out, *extras = out
"""
_SETTLE = """\
    if type(out) is not ndarray:  # NumPy returns scalars for 0-d
        out = asarray(out)
"""
_VIEW = """\
    result = wrap(out, HERE, storage_of(out, ({inputs})))
"""
_NEW = """\
    result = new(Tensor)
    result._array = out
    result._device = HERE
    result._storage = STORAGE
    result._version = 0
    result._node = None
"""
_UNTRACKED = """\
    if {untracked} or not grad_enabled():
        return result
"""
_DTYPE = """\
    dtype = out.dtype
"""
_REAL = """\
    if dtype is not FLOAT32 and not carries_gradient(op, dtype):
        return result
"""
_SAVED = """\
    plan = op.plans[{mask}]
    saved, guards = (saves(plan, ({arrays}out{extras}), ({inputs}result){takes}) if plan
                     else op.nothing_saved)
"""
_SAVED_INPUT = """\
    s{i} = saving(x{i})
"""
_SAVED_OUTPUT = """\
    s0 = result._storage = Storage()
    s0.made = STORAGE.made
    s0.saved = True
"""
_SAVED_GUARDED = """\
    saved, guards = ({values}), ({guards})
"""
_SAVED_RECIPE = """\
    if {recipe}:
        saved, guards = saves(op.plans[{mask}], ({arrays}out{extras}), ({inputs}result))
"""
_NOTHING_SAVED = """\
    saved, guards = op.nothing_saved
"""
_NUMBER_SAVED = """\
    saved, guards = ({saved}), ()  # it cannot be overwritten
"""
_RECORD = """\
    result._node = node = Record()
    node.shape = {shape}
    node.dtype = dtype
    node.device = HERE
    node.seq = next_seq()
    node.op = op
    node.parents = ({nodes})
    node.mask = {mask}
    node.saved = saved
    node.guards = guards
    node.params = {params}
    node.state = FREE
    node.hooks = None
    node.retain = False
    node.stream = {stream}
    frame = frame_at({depth})
    node.code = code = frame.f_code
    if code is not last.code:
        frame = user_frame(frame)
        node.code = last.code = frame.f_code
    node.lasti = frame.f_lasti
    if bus.listeners:
        node.module, node.number = here.module, here.number
    return result
"""
_ON_HOST = {  # what the text is where the device decides it
    "path": "op.cpu", "depth": "1", "stream": "None",
    "number": "float32[x2] if a1.dtype is FLOAT32 else constant(x2, a1.dtype)"}
_ELSEWHERE_IS = {
    "path": "PATH", "depth": "2", "stream": "current_stream()",
    "number": "x2 if LAST_INTEGER < a1.dtype.num < USER_DTYPE else constant(x2, a1.dtype)"}
_VARIADIC = """\
def call(*inputs, **params):
{first}    arrays, mask, bit = [], 0, 1
    try:
        for x in inputs:
            storage = x._storage
            if storage is not FRESH and (x._device is not HERE or x._version != storage.version):
                return (on_level if storage is TRACED else bind)(op, inputs, params)
            arrays.append(x._array)
            if x._node is not None:
                mask |= bit
            bit += bit
    except AttributeError:  # not a Tensor
        return bind(op, inputs, params)
    if bus.ops or not arrays or mask and op.backward is None:
        return bind(op, inputs, params)
    try:
        out = op.cpu(*arrays, **params)
    except ValueError as error:
        name_shapes(op.name, error, arrays)
        raise
"""
_VARIADIC_SAVED = """\
    plan = op.plan(mask, len(arrays))
    saved, guards = (saves(plan, (*arrays, out), (*inputs, result), op.takes) if plan
                     else op.nothing_saved)
"""
_MASKS = {  # the text of the mask, by the number of inputs
    1: "1", 2: "1 if n2 is None else 2 if n1 is None else 3"}
_GENERAL = """\
def call(*inputs, **params):
{first}    return bind(op, inputs, params)
"""


def written_call(op: Op) -> Callable[..., Tensor]:
    """The function that applies `op`: inputs by position, parameters by keyword."""
    ufunc = ufunc_of(op)
    scope = {**SCOPE, "op": op, "ELSEWHERE": _CallsElsewhere(op), "STORAGE": op.storage,
             "UFUNC": ufunc}
    return written("".join(_text(op, ufunc is not None, _ON_HOST)), scope, "call", op.name)


class _CallsElsewhere(dict["Device", "Callable[..., Tensor]"]):
    """The functions that apply an op whose first input is on another device than the CPU."""

    def __init__(self, op: Op) -> None:
        self._op = op

    def __missing__(self, device: Device) -> Callable[..., Tensor]:
        op = self._op
        if op.gpu is None:
            text: str = _GENERAL.format(first="")
            scope = {**SCOPE, "op": op}
        else:
            text = "".join(_text(op, False, _ELSEWHERE_IS))
            scope = {**SCOPE, "op": op, "HERE": device,
                     "LAST_INTEGER": LAST_INTEGER, "USER_DTYPE": USER_DTYPE,
                     "FRESH": None,  # no storage tells which of these devices it is
                     "PATH": device.path(op.name, op.gpu, len(op.input_names)),
                     "STORAGE": FRESH_ELSEWHERE if op.owns else op.storage,
                     "asarray": device.xp.asarray, "current_stream": device.current_stream,
                     "ndarray": device.array_type}
        self[device] = call = written(text, scope, "call", op.name)
        return call


def ufunc_of(op: Op) -> np.ufunc | None:
    """The ufunc that is the op's CPU path, for arrays that need no memory of the arena."""
    plain = getattr(op.cpu, "plain", None)
    return plain if isinstance(plain, np.ufunc) else None


def _text(op: Op, is_ufunc: bool, place: dict[str, str]) -> Iterator[str]:
    """The parts of the text for an op's facts and a place."""
    casts = _AUTOCAST * (place is _ON_HOST and op.autocast is not None)
    check = _CHECK * (op.checked and op.has_params)
    if op.variadic and place is _ON_HOST and not (
            op.extra_names or op.moves or op.optional_inputs or op.floating):
        yield _VARIADIC.format(first=check + casts.format(tuple="inputs", params="params"))
        yield _SETTLE
        yield (_VIEW if op.view else _NEW).format(inputs="*inputs, ")
        yield _UNTRACKED.format(untracked="not mask")
        yield _DTYPE + _REAL * (not op.complex) + _VARIADIC_SAVED
        yield _RECORD.format(**place, nodes="*[x._node for x in inputs], ", mask="mask",
                            params="params", shape="out.shape")
        return
    if op.variadic or op.moves or op.optional_inputs:
        yield _GENERAL.format(first=check + casts.format(tuple="inputs", params="params"))
        return
    numbers = range(1, len(op.input_names) + 1)
    pair = len(numbers) == 2 and not op.has_params
    facts = place | {
        **{plural: "".join(f"{letter}{i}, " for i in numbers)
           for plural, letter in (("inputs", "x"), ("arrays", "a"), ("nodes", "n"))},
        "names": ", ".join(f"x{i}" for i in numbers),
        "untracked": " and ".join(f"n{i} is None" for i in numbers),
        "mask": _MASKS.get(len(numbers)) or " + ".join(
            f"(n{i} is not None) * {1 << i - 1}" for i in numbers),
        "params": "params" if op.has_params else "NO_PARAMS",
        "keywords": ", **params" if op.has_params else "",
        "more": "**params" if op.has_params else "",
        "extras": ", *extras" if op.extra_names else "",
        "takes": "" if op.takes is None else f", {op.takes}",
        "size": "a1.size * a2.size" if pair else "a1.size",
        "branch": "elif" if is_ufunc else "if",
        "shape": "n1.shape" if is_ufunc and len(numbers) == 1 else "out.shape",
    }
    yield _HEAD.format(**facts) + check + casts.format(tuple=f"({facts['inputs']})", **facts)
    for i in numbers:
        if i > 1:
            yield _NONE.format(i=i) if not pair else _NUMBER + _indented(
                "".join(_with_number(op, is_ufunc, facts)))
        there = _ELSEWHERE.format(**facts) if i == 1 and place is _ON_HOST else ""
        tensor = (_TENSOR + _FLOATING * op.floating).format(i=i, elsewhere=there, **facts)
        yield _indented(tensor) if i > 1 and not pair else tensor
    yield from _body(op, is_ufunc, facts, "".join(_saved(op, pair, facts)))


def _saved(op: Op, pair: bool, facts: dict[str, str]) -> Iterator[str]:
    """The parts that save what the rule needs."""
    if not op.save_names:
        yield _NOTHING_SAVED
    elif op.view or op.takes is not None or not pair and len(op.input_names) > 1:
        yield _SAVED.format(**facts)
    elif not pair:
        yield from _saved_by(op, 1, facts)
    else:
        for mask, branch in ((1, "if n2 is None"), (2, "elif n1 is None"), (3, "else")):
            yield f"    {branch}:\n"
            yield _indented("".join(_saved_by(op, mask, facts)))


def _saved_by(op: Op, mask: int, facts: dict[str, str]) -> Iterator[str]:
    """The parts that save what the inputs of a mask need; `saves` does so if there are recipes."""
    values = guards = ""
    recipes = []
    for place, position in enumerate(op.plans[mask]):
        i = 0 if position is None else position + 1
        if not i:
            values += "None, "
        elif i <= len(op.input_names):
            yield _SAVED_INPUT.format(i=i)
            values += f"a{i}, "
            guards += f"(s{i}, x{i}._version, {place}), "
            recipes.append(f"s{i} is None")
        elif i == len(op.input_names) + 1:
            yield _SAVED_OUTPUT
            values += "out, "
            guards += f"(s0, 0, {place}), "
        else:
            values += f"extras[{i - len(op.input_names) - 2}], "
    yield _SAVED_GUARDED.format(values=values, guards=guards) if values else _NOTHING_SAVED
    if guards and facts["path"] == "PATH":
        recipes.append("HERE.graphs")  # their replays write arrays, too
    if recipes:
        yield _SAVED_RECIPE.format(**facts | {"recipe": " or ".join(recipes), "mask": mask})


def _with_number(op: Op, is_ufunc: bool, facts: dict[str, str]) -> Iterator[str]:
    """The parts for a tensor and a number; a ufunc's output has the tensor's shape."""
    plan = op.plans[1]
    saved = (_NOTHING_SAVED if not plan else _NUMBER_SAVED if {*plan} <= {None, 1} else _SAVED)
    facts = facts | {
        "untracked": "n1 is None", "nodes": "n1, None", "mask": "1", "size": "a1.size",
        "shape": "n1.shape" if is_ufunc else "out.shape",
        "saved": "".join("None, " if p is None else "a2, " for p in plan)}
    yield _CONSTANT.format(**facts)
    yield from _body(op, is_ufunc, facts, saved.format(**facts))


def _body(op: Op, is_ufunc: bool, facts: dict[str, str], saved: str) -> Iterator[str]:
    """The parts that follow when all inputs are known."""
    run = (_RUN_SMALL + _RUN + _SMALL if is_ufunc else _RUN) + _PATH
    if len(op.input_names) > 1:  # `try` costs nothing
        run = "    try:\n" + _indented(run) + _REFUSED
    for part, wanted in (
            (_COMPOSED, op.backward is None and op.composed is not None), (run, True),
            (_EXTRAS, op.extra_names),
            (_SETTLE, True), (_VIEW, op.view), (_NEW, not op.view), (_UNTRACKED, True),
            (_DTYPE, True), (_REAL, not op.complex), (saved, True), (_RECORD, True)):
        if wanted:
            yield part.format(**facts)


def _indented(text: str) -> str:
    return "".join(f"    {line}" for line in text.splitlines(keepends=True))


Op.write_call = staticmethod(written_call)  # which op.py cannot import


# -- public functions ------------------------------------------------------------------------------
# `x[3]`, `x.reshape(4, 8)`, `stack([x, y])` and `y += x` compute little, so Python's calls between
# the method and the op were most of their time. Here the text goes from what a user gives to the
# output and its record, for tensors on the CPU whose memory no other handle has written since,
# while no listener waits for ops. It leaves every other case to the general function, and what
# NumPy refuses, too: that one has the sentences. Writes are those of small values, of float32 or
# float64, that are not recorded.

F = TypeVar("F", bound=Callable[..., Any])

_SHORT_VIEW = """\
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
    rest = _UNTRACKED.format(untracked="n1 is None") + _recorded(params, "n1, ", "1")
    return _short(op, _SHORT_VIEW, 12, steps, rest, names)


def short_join(op: Op, steps: str, params: str, **names: Any) -> Callable[[F], F]:
    """The same of a function whose first argument is a sequence of tensors, which it joins.

    `steps` set `out` to a new array, of the arrays `made`, which are small and of one dtype.
    """
    rest = (_NEW + _UNTRACKED.format(untracked="not mask")
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
    return _NOTHING_SAVED + _RECORD.format(shape="out.shape", nodes=nodes, mask=mask, params=params,
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
