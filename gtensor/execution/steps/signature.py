"""The signature of a call: what a program is made for.

It has facts of tensors, values of other arguments and the modes of the thread. `same_call` is
Python text that compares a later call with it, for what most calls are: a few tensors by position.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from gtensor.backend import default_device, get_default_dtype
from gtensor.engine.handle.context import current_casts, grad_enabled
from gtensor.engine.handle.node import Leaf
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.record import Record
from gtensor.execution.steps.recorder import CaptureError
from gtensor.system.written_code import written

_FEW = 6  # tensors, in calls that are compared by text


def signature(name: str, found: Sequence[tuple[str, Any]]) -> Hashable:
    """The signature of a call of a step with that name, whose arguments have these leaves.

    Raises CaptureError for arguments that a step cannot have.
    """
    casts = current_casts()
    key: list[Any] = [(grad_enabled(), default_device(), get_default_dtype(),
                       None if casts is None else casts.dtype)]
    owners: dict[int, int] = {}
    for path, x in found:
        if isinstance(x, Tensor):
            array, node = x._array, x._node
            if isinstance(node, Record):
                raise CaptureError(f"{name} is captured and was given a tensor with a history as "
                                   f"argument {path}; wanted one without: detach() it")
            base = array.base
            own = id(base if type(base) is type(array) else array)
            key.append((path, array.shape, array.dtype, array.strides, x._device,
                        node is not None, owners.setdefault(own, len(owners))))
        elif isinstance(x, np.ndarray):
            raise CaptureError(f"{name} is captured and was given an array of NumPy's as argument "
                               f"{path}; wanted a tensor: gt.asarray() makes one over its memory")
        else:
            key.append((path, type(x), x))
    made = tuple(key)
    try:
        hash(made)
    except TypeError:
        raise CaptureError(f"{name} is captured and was given a value that has no hash among its "
                           "arguments; wanted tensors, numbers, strings and objects, also in lists "
                           "and dicts") from None
    return made


def described(key: Any) -> str:
    """A signature in words."""
    return ", ".join(f"{path} {shape}" if len(rest) > 1 else f"{path} = {rest[0]!r}"
                     for path, shape, *rest in key[1:])


def changed(before: Any, last: Any) -> str:
    """The first thing in which two signatures differ, in words."""
    for one, other in zip(before, last, strict=False):
        if one != other:
            return f"argument {other[0]}: {one[1:]} and {other[1:]}"
    return "the number of arguments"


def same_call(args: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], bool] | None:
    """Whether other arguments by position have the signature of these; None where it takes more."""
    if len(args) > _FEW or current_casts() is not None or any(type(x) is not Tensor for x in args):
        return None
    scope: dict[str, Any] = {"Tensor": Tensor, "Leaf": Leaf, "grad_enabled": grad_enabled,
                             "current_casts": current_casts, "default_device": default_device,
                             "place": default_device()}
    lines = ["def same(args):", f"    if len(args) != {len(args)}: return False"]
    if args:
        lines.append(f"    {''.join(f'x{i}, ' for i in range(len(args)))}= args")
    owners = []
    for i, x in enumerate(args):
        array = x._array
        scope |= {f"shape{i}": array.shape, f"dtype{i}": array.dtype, f"strides{i}": array.strides,
                  f"device{i}": x._device}
        node = f"x{i}._node is not None" if x._node is None else f"type(x{i}._node) is not Leaf"
        lines += [f"    if type(x{i}) is not Tensor: return False", f"    a{i} = x{i}._array",
                  f"    if (a{i}.shape != shape{i} or a{i}.dtype is not dtype{i}",
                  f"            or a{i}.strides != strides{i} or x{i}._device is not device{i}",
                  f"            or {node}): return False"]
        if len(args) > 1:
            lines += [f"    b{i} = a{i}.base", f"    if type(b{i}) is not type(a{i}): b{i} = a{i}"]
            base = array.base
            owners.append(base if type(base) is type(array) else array)
    for i, one in enumerate(owners):
        for j in range(i):
            differ = "is not" if one is owners[j] else "is"
            lines.append(f"    if b{i} {differ} b{j}: return False")
    lines.append(f"    return (grad_enabled() is {grad_enabled()} and current_casts() is None"
                 " and default_device() is place)")
    return written("\n".join(lines), scope, "same", "same_call")
