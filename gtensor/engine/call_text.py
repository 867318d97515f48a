"""Call paths as text: an op's first call writes the function that its later calls run.

With small arrays Python's time per op dominates. The written function is `bind` for the usual case:
tensors on the CPU, whose memory no other handle has written since, and a number beside one. It
hands every other case to `bind`, which defines the semantics; a test compares the two.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.scopes import here, listeners
from gtensor.engine import bind as general
from gtensor.engine.context import STATE, execute, observers
from gtensor.engine.storage import FRESH
from gtensor.engine.tape import FREE, Record, next_seq
from gtensor.engine.tensor import Tensor, wrap
from gtensor.system.source_line import inside, user_frame

if TYPE_CHECKING:
    from gtensor.engine.op import Op

SCOPE: dict[str, Any] = {  # what the texts name
    "FLOAT32": np.dtype(np.float32), "FREE": FREE, "FRESH": FRESH, "asarray": np.asarray,
    "HOST": general.HOST, "NO_PARAMS": general.NO_PARAMS, "Record": Record, "SECOND": (None, 1),
    "STATE": STATE, "Tensor": Tensor, "bind": general.bind, "constant": general.constant,
    "carries_gradient": general.carries_gradient, "execute": execute, "frame_at": sys._getframe,
    "here": here, "inside": inside, "listeners": listeners, "ndarray": np.ndarray,
    "new": object.__new__, "next_seq": next_seq, "observers": observers, "saves": general.saves,
    "storage_of": general.storage_of, "user_frame": user_frame,
    "float32": general.FLOAT32_CONSTANTS, "wrap": wrap,
}

_HEAD = """\
def call({inputs}, /{keywords}):
"""
_NUMBER = """\
    kind = type(x{i})
    if kind is float or kind is int:
        a{i} = float32[x{i}] if a1.dtype is FLOAT32 else constant(x{i}, a1.dtype)
        n{i} = None
        if a{i} is None:
            return bind(op, ({inputs}), {params})
    else:
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
    if storage is not FRESH and (x{i}._device is not HOST or x{i}._version != storage.version):
        return bind(op, ({inputs}), {params})
"""
_FLOATING = """\
    if a{i}.dtype.kind in 'biu':
        return bind(op, ({inputs}), {params})
"""
_COMPOSED = """\
    if not ({untracked}) and STATE.grad_enabled:
        return op.composed({inputs}{more})
"""
_RUN = """\
    out = (op.cpu({arrays}{more}) if observers.current is None
           else execute(op, HOST, ({arrays}), {params}))
"""
_EXTRAS = """\
    out, *extras = out
"""
_SETTLE = """\
    if type(out) is not ndarray:  # NumPy returns scalars for 0-d
        out = asarray(out)
"""
_VIEW = """\
    result = wrap(out, HOST, storage_of(out, ({inputs})))
"""
_NEW = """\
    result = new(Tensor)
    result._array = out
    result._device = HOST
    result._storage = STORAGE
    result._version = 0
    result._node = None
"""
_UNTRACKED = """\
    if {untracked} or not STATE.grad_enabled:
        return result
"""
_REAL = """\
    if out.dtype is not FLOAT32 and not carries_gradient(op, out.dtype):
        return result
"""
_PLAN = """\
    mask = {mask}
    plan = op.plans[mask]
    if not plan:
        saved, guards = op.nothing_saved
"""
_SAVED_NUMBER = """\
    elif plan == SECOND and (kind is float or kind is int):  # which cannot be overwritten
        saved, guards = (None, a2), ()
"""
_RECORD = """\
    else:
        saved, guards = saves(plan, ({arrays} out{extras}), ({inputs} result))
    result._node = node = new(Record)
    node.shape = out.shape
    node.dtype = out.dtype
    node.device = HOST
    node.seq = next_seq()
    node.op = op
    node.parents = ({nodes})
    node.mask = mask
    node.saved = saved
    node.guards = guards
    node.params = {params}
    node.state = FREE
    frame = frame_at(1)
    if inside.get(frame.f_code.co_filename) is not False:
        frame = user_frame(frame)
    node.code = frame.f_code
    node.lasti = frame.f_lasti
    if listeners:
        node.module = here.module
    return result
"""
_GENERAL = """\
def call(*inputs, **params):
    return bind(op, inputs, params)
"""


def written_call(op: Op) -> Callable[..., Tensor]:
    """The function that applies `op`: inputs by position, parameters by keyword."""
    scope = {**SCOPE, "op": op, "STORAGE": op.storage}
    exec(_compiled("".join(_text(op))), scope)
    call: Callable[..., Tensor] = scope["call"]
    call.__name__ = call.__qualname__ = op.name
    return call


@cache
def _compiled(text: str) -> CodeType:
    """Ops with equal texts share the code; tracebacks show its lines."""
    name = f"{__file__} (text {_compiled.cache_info().currsize})"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return compile(text, name, "exec")


def _text(op: Op) -> Iterator[str]:
    """The parts of the text for an op's facts."""
    if op.variadic or op.moves or op.optional_inputs:
        yield _GENERAL
        return
    numbers = range(1, len(op.input_names) + 1)
    pair = len(numbers) == 2 and not op.has_params
    facts = {
        **{plural: "".join(f"{letter}{i}, " for i in numbers)
           for plural, letter in (("inputs", "x"), ("arrays", "a"), ("nodes", "n"))},
        "untracked": " and ".join(f"n{i} is None" for i in numbers),
        "mask": " + ".join(f"(n{i} is not None) * {1 << i - 1}" for i in numbers),
        "params": "params" if op.has_params else "NO_PARAMS",
        "keywords": ", **params" if op.has_params else "",
        "more": "**params" if op.has_params else "",
        "extras": ", *extras" if op.extra_names else "",
    }
    yield _HEAD.format(inputs=facts["inputs"].rstrip(", "), keywords=facts["keywords"])
    for i in numbers:
        tensor = _TENSOR + _FLOATING * op.floating
        if i > 1:
            yield (_NUMBER if pair else _NONE).format(i=i, **facts)
            tensor = tensor.replace("\n    ", "\n        ").replace("    try", "        try", 1)
        yield tensor.format(i=i, **facts)
    unruled = op.backward is None and op.composed is not None
    for part, wanted in (
            (_COMPOSED, unruled), (_RUN, True), (_EXTRAS, op.extra_names), (_SETTLE, True),
            (_VIEW, op.view), (_NEW, not op.view), (_UNTRACKED, True), (_REAL, not op.complex),
            (_PLAN, True), (_SAVED_NUMBER, pair), (_RECORD, True)):
        if wanted:
            yield part.format(**facts)
