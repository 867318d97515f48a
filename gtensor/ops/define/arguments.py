"""Checks of arguments that several functions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gtensor.backend import get_default_dtype
from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.context import current_casts
from gtensor.engine.handle.tensor import Tensor

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Operand

_FLOAT32 = np.dtype(np.float32)
REDUCTIONS = ("none", "mean", "sum")


def refuse_unsupported(wanted: object, name: str, **given: object) -> None:
    """Raise ValueError unless every given argument is `wanted`, PyTorch's default.

    The arguments are kept in the signatures so that positional arguments mean the same.
    """
    for argument, value in given.items():
        if value != wanted:
            raise ValueError(f"{name} was given {argument}={value!r}; wanted {wanted!r}: nothing "
                             "else is supported")


def given_axis(name: str, axis: Any, dim: Any, default: Any = None, word: str = "dim") -> Any:
    """`dim`, PyTorch's word for `axis`. Raises TypeError if an axis is given, too."""
    if axis != default:
        raise TypeError(f"{name} was given axis={axis} and {word}={dim}, two words for one thing; "
                        "wanted one of them")
    return dim


def torch_words(
    name: str, axis: Any, dim: Any, keepdims: bool, keepdim: bool | None
) -> tuple[Any, bool]:
    """The axis and whether to keep it, given by PyTorch's words. TypeError for both words of one.
    """
    if keepdims and keepdim is not None:
        raise TypeError(f"{name} was given keepdims={keepdims} and keepdim={keepdim}, two words "
                        "for one thing; wanted one of them")
    return (axis if dim is None else given_axis(name, axis, dim),
            keepdims if keepdim is None else keepdim)


def refuse_pair(name: str, dim: Any) -> NoReturn:
    """Raise TypeError for `dim` of an extreme, with which PyTorch gives the places, too."""
    raise TypeError(f"{name} was given dim={dim}, for which PyTorch gives the values and their "
                    f"places; wanted {name}(x, axis={dim}), and arg{name}(x, axis={dim}) for the "
                    "places")


def floats(x: Operand) -> Tensor:
    """x as a tensor, integers and booleans in the default dtype."""
    x = asarray(x)
    return x if x.dtype.kind in "fVc" else x.astype(get_default_dtype())


def want_tensors(name: str, **inputs: Tensor | None) -> None:
    """Raise TypeError unless the inputs that are there are Tensors."""
    for label, given in inputs.items():
        if given is not None and not isinstance(given, Tensor):
            raise TypeError(f"{name} was given {label} of type {type(given).__name__}; wanted a "
                            "Tensor (gt.asarray makes one)")


def same_dtype(name: str, **tensors: Tensor | None) -> None:
    """Raise TypeError unless those that are there are Tensors of one floating dtype.

    Under `gt.autocast` the op makes one dtype of float32 and half types. Called before their shapes
    are read, which a list lacks.
    """
    first = None
    same = True
    try:
        for t in tensors.values():  # a generator would cost as much as a small op
            if t is None:
                continue
            dtype = t._array.dtype
            if first is None:
                first = dtype
                same = dtype.kind in "fV"
            elif dtype != first:
                same = False
    except AttributeError:  # asking each would cost what trying does not
        want_tensors(name, **tensors)
        raise
    if not same and (casts := current_casts()) is not None:
        same = casts.unites([t.dtype for t in tensors.values() if t is not None])
    if not same:
        listed = ", ".join(
            f"{label} of dtype {t.dtype}" for label, t in tensors.items() if t is not None)
        raise TypeError(f"{name} was given {listed}; wanted one floating-point dtype")


def of_half(input: Any) -> bool:
    """Whether the input is of a half type; a Python number is not."""
    dtype = getattr(input, "dtype", None)
    return dtype is not None and dtype.itemsize == 2 and dtype.kind in "fV"


def sums_in(dtype: np.dtype, other: np.dtype) -> bool:
    """Whether a sum of both has that dtype, which kernels of the other can write: of its own, or
    float32 where that is a half type."""
    return dtype == other or dtype == _FLOAT32 and other.itemsize == 2 and other.kind in "fV"


def autocast(policy: str, *inputs: Any) -> tuple[Any, ...]:
    """Inputs of a function of several ops, cast as an op of that policy casts its own."""
    casts = current_casts()
    return inputs if casts is None else casts.cast(policy, inputs)


def check_reduction(name: str, reduction: str) -> None:
    """Raise ValueError for an unknown reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name} was given reduction={reduction!r}; wanted one of "
                         f"{', '.join(map(repr, REDUCTIONS))}")
