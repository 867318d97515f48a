"""The signature of a call: what a program is made for.

It has facts of tensors, values of other arguments and the modes of the thread. `same_call` is
Python text that compares a later call with it, for what most calls are: a few tensors by position.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from functools import lru_cache
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np

from gtensor.backend import default_device, get_default_dtype, owner
from gtensor.engine.handle.arrays import layout
from gtensor.engine.handle.context import current_casts, grad_enabled
from gtensor.engine.handle.node import Leaf
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.record import Record
from gtensor.execution.steps.recorder import CaptureError
from gtensor.func.trees import parts_of
from gtensor.system.written_code import written

_PLAIN = {bool, bytes, complex, float, int, str, type(None)}
_DEPTH = 2  # of objects within objects
_FEW = 6  # tensors, in calls that are compared by text


def signature(
    name: str, given: Any, found: Sequence[tuple[str, Any]], names: Sequence[str] = ()
) -> Hashable:
    """The signature of a call of a step with that name, with these arguments and their leaves.

    `names` are attributes that the step's code reads: of objects among the arguments, such as a
    method's instance, those that are numbers, texts or objects belong to it.
    Raises CaptureError for arguments that a step cannot have.
    """
    casts = current_casts()
    key: list[Any] = [(grad_enabled(), default_device(), get_default_dtype(),
                       None if casts is None else casts.dtype, _kinds(given))]
    owners: dict[int, tuple[int, int]] = {}  # by id: the number and the address of the first one
    handles: dict[int, int] = {}
    for path, x in found:
        if isinstance(x, Tensor):
            array, node = x._array, x._node
            if isinstance(node, Record):
                raise CaptureError(f"{name} is captured and was given a tensor with a history as "
                                   f"argument {path}; wanted one without: detach() it")
            at = layout(array)[0]
            first, start = owners.setdefault(id(owner(array)), (len(owners), at))
            key.append((path, array.shape, array.dtype, array.strides, x._device, type(x),
                        node is not None, first, at - start,
                        handles.setdefault(id(x), len(handles))))
        elif isinstance(x, np.ndarray):
            raise CaptureError(f"{name} is captured and was given an array of NumPy's as argument "
                               f"{path}; wanted a tensor: gt.asarray() makes one over its memory")
        elif isinstance(x, Iterator):
            raise CaptureError(f"{name} is captured and was given {type(x).__name__} as argument "
                               f"{path}, which the step would use up; wanted the tensors, or a "
                               "list of them")
        else:
            key.append((path, type(x), _fixed(x)))
            if type(x) not in _PLAIN:
                _add_attributes(key, path, x, names, _DEPTH)
    made = tuple(key)
    try:
        hash(made)
    except TypeError:
        raise CaptureError(f"{name} is captured and was given a value that has no hash among its "
                           "arguments; wanted tensors, numbers, strings and objects, also in lists "
                           "and dicts") from None
    return made


def _kinds(tree: Any) -> Any:
    """The types of the containers of a tree."""
    found = None if isinstance(tree, Tensor) else parts_of(tree)
    return None if found is None else (type(tree), *map(_kinds, found[0].values()))


def _fixed(x: Any) -> Any:
    """What stands for an argument's value: for an object that equals only itself a weak reference.

    Of floats the text, since -0.0 equals 0.0, and NaN nothing.
    """
    kind = type(x)
    if isinstance(x, (float, complex, np.generic)):
        return _Text(x)
    if kind is slice:
        return _Text(x)
    if kind.__hash__ is object.__hash__ and kind.__weakrefoffset__:
        return weakref.ref(x)
    return x


def _add_attributes(
    key: list[Any], path: str, x: Any, names: Sequence[str], depth: int
) -> None:
    """Add what a step reads of an object; modules and other objects of gtensor's tell of changes.
    """
    kind: Any = type(x)
    if isinstance(x, (type, FunctionType, ModuleType)) or (
            any(base.__module__.partition(".")[0] == "gtensor" for base in kind.__mro__)):
        return
    held = getattr(x, "__dict__", None)
    names = sorted({*names, *_read_by_methods(kind, tuple(names))})
    for name in names:
        if isinstance(held, dict) and name in held:
            _add_value(key, f"{path}.{name}", held[name], names, depth)
        elif isinstance(inspect.getattr_static(kind, name, None), MemberDescriptorType) and (
                hasattr(x, name)):  # one of `__slots__`
            _add_value(key, f"{path}.{name}", getattr(x, name), names, depth)


def _add_value(
    key: list[Any], path: str, value: Any, names: Sequence[str], depth: int
) -> None:
    """Add a value that a step reads of an object, and what it reads of the value."""
    kind = type(value)
    if isinstance(value, (list, tuple, set, dict)):
        parts = [*value, *value.values()] if isinstance(value, dict) else [*value]
        if all(type(part) in _PLAIN for part in parts):
            key.append((path, kind, _Text(value)))
        elif depth:
            key.append((path, kind, len(value)))
            for name, part in value.items() if isinstance(value, dict) else enumerate(value):
                _add_value(key, f"{path}[{name!r}]", part, names, depth - 1)
        return
    fixed = _fixed(value)
    if kind in _PLAIN or isinstance(fixed, weakref.ref):
        key.append((path, kind, fixed))
    if depth and kind not in _PLAIN:
        _add_attributes(key, path, value, names, depth - 1)


@lru_cache(256)
def _read_by_methods(kind: Hashable, names: tuple[str, ...]) -> frozenset[str]:
    """The names in the code of a class's methods that code with these names may call."""
    found: set[str] = set()
    ahead = [*names, "__call__"]
    while ahead:
        method = inspect.getattr_static(kind, ahead.pop(), None)
        method = getattr(method, "fget", None) or getattr(method, "__func__", method)
        if isinstance(method, FunctionType):
            more = {*method.__code__.co_names} - found
            found |= more
            ahead += more
    return frozenset(found)


class _Text(str):
    """A value's text, which shows as it is."""

    __repr__ = str.__str__

    def __new__(cls, value: Any) -> _Text:
        return super().__new__(cls, repr(value))


_ANY = str.__new__(_Text, "any")


def for_any(key: Any, numbers: Collection[str]) -> Hashable:
    """A signature for any values of the floats at these paths."""
    return (key[0], *[(*e[:2], _ANY) if e[0] in numbers else e for e in key[1:]])


def for_some(key: Any, numbers: dict[str, float]) -> Hashable:
    """The signature that has these values of floats, by their paths."""
    return key if not numbers else (key[0], *[
        (*e[:2], _Text(numbers[e[0]])) if e[0] in numbers else e for e in key[1:]])


def is_gone(key: Any) -> bool:
    """Whether a signature has an object that lives no more."""
    return any(isinstance(entry[2], weakref.ref) and entry[2]() is None for entry in key[1:])


def described(key: Any) -> str:
    """A signature in words."""
    return ", ".join(f"{path} {shape}" if len(rest) > 1 else f"{path} = {_value(rest[0])!r}"
                     for path, shape, *rest in key[1:])


def _value(fixed: Any) -> Any:
    return fixed() if isinstance(fixed, weakref.ref) else fixed


def changed(before: Any, last: Any) -> str:
    """The first thing in which two signatures differ, in words."""
    for one, other in zip(before, last, strict=False):
        if one != other:
            return f"argument {other[0]}: {one[1:]} and {other[1:]}"
    return "the number of arguments"


def same_call(
    args: tuple[Any, ...], live: Collection[str]
) -> Callable[[tuple[Any, ...]], bool] | None:
    """Whether other arguments by position have the signature of these; None where it takes more.

    The floats at the live paths may have any values.
    """
    floats = [i for i, x in enumerate(args) if type(x) is float and f"[{i}]" in live]
    if len(args) > _FEW or current_casts() is not None or any(
            type(x) is not Tensor and i not in floats for i, x in enumerate(args)):
        return None
    scope: dict[str, Any] = {"Tensor": Tensor, "Leaf": Leaf, "grad_enabled": grad_enabled,
                             "current_casts": current_casts, "default_device": default_device,
                             "place": default_device()}
    lines = ["def same(args):", f"    if len(args) != {len(args)}: return False"]
    if args:
        lines.append(f"    {''.join(f'x{i}, ' for i in range(len(args)))}= args")
    owners: dict[int, Any] = {}
    for i, x in enumerate(args):
        if i in floats:
            lines.append(f"    if type(x{i}) is not float: return False")
            continue
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
            for j, one in owners.items():
                if one is owner(array):
                    return None  # then it matters how they lie
                lines.append(f"    if b{i} is b{j}: return False")
            owners[i] = owner(array)
    lines.append(f"    return (grad_enabled() is {grad_enabled()} and current_casts() is None"
                 " and default_device() is place)")
    return written("\n".join(lines), scope, "same", "same_call")
