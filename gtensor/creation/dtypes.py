"""Data types: their names, kinds, limits and promotion, as in the array API standard.

A dtype is a NumPy dtype object, `bfloat16` is ml_dtypes'. Promotion is NumPy's, in which a Python
number takes the dtype of the array beside it. A float beside integers is of the default dtype, as
in PyTorch: float32 and complex64, unless `set_default_dtype` has set another.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from gtensor.backend import DEFAULTS, element_type
from gtensor.engine.handle.tensor import Tensor

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

__all__ = [
    "bfloat16", "bool", "can_cast", "complex64", "complex128", "finfo", "float16", "float32",
    "float64", "iinfo", "int8", "int16", "int32", "int64", "isdtype", "result_type", "uint8",
    "uint16", "uint32", "uint64",
]

bool = np.dtype("bool")
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)  # the package has no types
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")

_SIGNED = (int8, int16, int32, int64)
_UNSIGNED = (uint8, uint16, uint32, uint64)
_REAL = (float32, float64)
_COMPLEX = (complex64, complex128)
# The standard's kinds; the half floats beside them are gtensor's own.
KINDS: dict[str, tuple[np.dtype, ...]] = {
    "bool": (bool,), "signed integer": _SIGNED, "unsigned integer": _UNSIGNED,
    "integral": _SIGNED + _UNSIGNED, "real floating": _REAL, "complex floating": _COMPLEX,
    "numeric": _SIGNED + _UNSIGNED + _REAL + _COMPLEX,
}
_HALF = (float16, bfloat16)
_WITH_HALF = ("real floating", "numeric")
_NUMBERS = (builtins.bool, int, float, complex)


class finfo_object(NamedTuple):
    """Limits of a floating dtype (of the parts of a complex one), as Python floats."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


class iinfo_object(NamedTuple):
    """Limits of an integer dtype, as Python integers."""

    bits: int
    max: int
    min: int
    dtype: np.dtype


def finfo(type: object, /) -> finfo_object:
    """Limits of a floating or complex dtype, or of a tensor's. Raises TypeError for another."""
    dtype = dtype_of(type)
    if not isdtype(dtype, ("real floating", "complex floating")):
        raise TypeError(f"finfo was given {dtype}; wanted a floating-point dtype")
    found = ml_dtypes.finfo(dtype) if dtype.kind == "V" else np.finfo(dtype)
    return finfo_object(
        int(found.bits), float(found.eps), float(found.max), float(found.min),
        float(found.smallest_normal), np.dtype(found.dtype))


def iinfo(type: object, /) -> iinfo_object:
    """Limits of an integer dtype, or of a tensor's. Raises TypeError for another dtype."""
    dtype = dtype_of(type)
    if dtype.kind not in "iu":
        raise TypeError(f"iinfo was given {dtype}; wanted an integer dtype")
    found = np.iinfo(dtype)
    return iinfo_object(int(found.bits), int(found.max), int(found.min), dtype)


def isdtype(dtype: DTypeLike, kind: Any) -> builtins.bool:
    """Whether `dtype` is of a kind: a dtype, a name of `KINDS` such as "integral", or a tuple.

    Raises ValueError for an unknown kind.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    dtype = element_type(dtype)
    if not isinstance(kind, str):
        return dtype == element_type(kind)
    if kind not in KINDS:
        raise ValueError(f"isdtype was given the kind {kind!r}; wanted a dtype or one of "
                         f"{', '.join(KINDS)}")
    return dtype in KINDS[kind] or (kind in _WITH_HALF and dtype in _HALF)


def can_cast(from_: Any, to: Any, /) -> builtins.bool:
    """Whether values of a dtype (or of a tensor's dtype) all fit into another, as in promotion."""
    return np.can_cast(dtype_of(from_), element_type(to))


def result_type(*arrays_and_dtypes: object) -> np.dtype:
    """The dtype that an op on these tensors, dtypes and Python numbers computes in: NumPy's.

    So integers beside a floating tensor widen it, which they do not in PyTorch; and a 0-d tensor
    counts as any other, where PyTorch takes it for a number. A Python float makes integers the
    default dtype, as in PyTorch.
    """
    strong = [dtype_of(a) for a in arrays_and_dtypes if not isinstance(a, _NUMBERS)]
    numbers = [int(a) if isinstance(a, int) and type(a) is not builtins.bool else a
               for a in arrays_and_dtypes if isinstance(a, _NUMBERS)]  # of no class of its own
    if any(d.kind == "V" for d in strong):  # NumPy would not take a number as ml_dtypes' float
        numbers = [a for a in numbers if isinstance(a, complex)]
    found = np.result_type(*strong, *numbers)
    if found.kind in DEFAULTS and np.result_type(*strong or [bool]).kind in "biu":
        return DEFAULTS[found.kind]  # a number made it so
    return found


def dtype_of(value: Any) -> np.dtype:
    """The dtype of a tensor or an array, or the one that a dtype's name stands for."""
    if isinstance(value, (Tensor, np.ndarray)):
        value = value.dtype
    return element_type(value)
