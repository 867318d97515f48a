"""NumPy's functions that are given tensors: each refuses in a sentence with gtensor's name.

NumPy asks `Tensor.__array_ufunc__` also for the operators of its arrays and numbers, which are the
tensor's own. What reads tensors into arrays, as `np.asarray` does, or asks for facts, is let
through.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_REFLECTED = {  # the ufunc of an operator -> the method of the operand on its right
    "add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__", "remainder": "__rmod__", "power": "__rpow__",
    "divmod": "__rdivmod__", "matmul": "__rmatmul__", "bitwise_and": "__rand__",
    "bitwise_or": "__ror__", "bitwise_xor": "__rxor__", "left_shift": "__rlshift__",
    "right_shift": "__rrshift__", "equal": "__eq__", "not_equal": "__ne__", "less": "__gt__",
    "less_equal": "__ge__", "greater": "__lt__", "greater_equal": "__le__",
}
_READERS = {  # their results are arrays of NumPy's, files, texts or facts, as before
    "allclose", "array2string", "array_equal", "array_equiv", "array_repr", "array_str",
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "can_cast", "copy", "copyto",
    "isclose", "iscomplexobj", "isrealobj", "may_share_memory", "ndim", "ravel", "result_type",
    "save", "savetxt", "savez", "savez_compressed", "shape", "shares_memory", "size",
}


def operated(
    tensor: Any, ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: dict[str, Any]
) -> Any:
    """The result of an operator of NumPy's array, the first input, with a tensor.

    Raises TypeError for every other call of a ufunc.
    """
    if method == "__call__" and not options and inputs[0] is not tensor:
        reflected = getattr(type(tensor), _REFLECTED.get(ufunc.__name__, ""), None)
        if reflected is not None:
            return reflected(tensor, inputs[0])
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    if "out" in options:
        raise TypeError(f"np.{name} was given a Tensor to write into a NumPy array (out=, or an "
                        "operator such as +=); wanted x.numpy()")
    _refuse(name)


def read_or_refused(
    function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """What one of NumPy's readers returns. Raises TypeError for every other function."""
    name, _, room = function.__name__, *(function.__module__ or "").partition(".")[1:]
    if name in _READERS and not room:
        implementation: Callable[..., Any] = function._implementation  # type: ignore[attr-defined]
        return implementation(*args, **options)
    _refuse(f"{room}.{name}" if room in ("linalg", "fft") else name)


def _refuse(name: str) -> NoReturn:
    """Raise TypeError, with the function of gtensor's, by its own name, if there is one."""
    from gtensor.system.foreign_names import ALIASES

    room, _, function = name.rpartition(".")
    if room in ("", "linalg", "fft"):  # else it is a method of a ufunc
        home = f"gtensor.{room}".rstrip(".")
        alias = ALIASES.get(home, {}).get(function, function)
        ours = function if ":" in alias else alias  # one of another room goes by its alias
        if ours != alias or ours in importlib.import_module(home).__all__:
            place = home.replace("gtensor", "gt", 1)
            raise TypeError(f"np.{name} was given a Tensor; use {place}.{ours}, or give it "
                            "x.numpy()")
    raise TypeError(f"np.{name} was given a Tensor; wanted NumPy arrays, such as x.numpy()")
