"""Comparison up to a tolerance or with a set, and numbers in the place of those not finite."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from gtensor.creation.dtypes import finfo, float64, result_type
from gtensor.creation.new_tensors import asarray, zeros_like
from gtensor.ops import (
    abs,
    all,
    clip,
    clone,
    equal,
    flatten,
    isfinite,
    isinf,
    isnan,
    less_equal,
    searchsorted,
    sort,
    where,
)
from gtensor.ops.define.arguments import takes_arrays
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Operand, Tensor

__all__ = ["allclose", "isclose", "isin", "nan_to_num"]


def isclose(
    x1: Operand, x2: Operand, /, rtol: Tensor | float = 1e-5, atol: Tensor | float = 1e-8,
    equal_nan: bool = False
) -> Tensor:
    """Whether |x1 - x2| <= atol + rtol * |x2|, elementwise; NaN equals NaN if `equal_nan`.

    Equal infinities are close. Integers are compared as float64.
    """
    a, b = (x if x.dtype.kind in "fVc" else x.astype(float64) for x in map(asarray, (x1, x2)))
    finite = isfinite(b)
    size = where(finite, b, 0)  # no difference of infinities
    near = equal(a, b) | finite & less_equal(abs(a - size), atol + rtol * abs(size))
    return near | isnan(a) & isnan(b) if equal_nan else near


def allclose(
    x1: Operand, x2: Operand, /, rtol: Tensor | float = 1e-5, atol: Tensor | float = 1e-8,
    equal_nan: bool = False
) -> builtins.bool:
    """Whether all elements are close, as `isclose` says: True or False. Waits for the GPU."""
    return builtins.bool(all(isclose(x1, x2, rtol, atol, equal_nan)))


@takes_arrays
def isin(x1: Tensor, x2: Tensor, /, *, invert: bool = False) -> Tensor:
    """Whether each element of x1 is one of x2: booleans of x1's shape; whether not, if `invert`.

    The array API's and NumPy's. NaN is in no set. It sorts x2, so that memory is that of both
    tensors. Raises TypeError for complex numbers, and for kinds that have no common dtype.

        gt.isin(gt.tensor([1, 5, 2]), [2, 1])                  # [True, False, True]
    """
    if "c" in (x1.dtype.kind, x2.dtype.kind):
        raise TypeError(f"isin of dtypes {x1.dtype} and {x2.dtype}; wanted real numbers")
    dtype = result_type(x1, x2)
    x1, x2 = (x.detach().astype("uint8" if dtype.kind == "b" else dtype) for x in (x1, x2))
    if x2.size:
        known = sort(flatten(x2))
        found = equal(known[clip(searchsorted(known, x1), 0, known.size - 1)], x1)
    else:
        found = zeros_like(x1, dtype="bool")
    return ~found if invert else found


@takes_arrays
def nan_to_num(
    x: Tensor, /, *, nan: Tensor | float = 0.0, posinf: Tensor | float | None = None,
    neginf: Tensor | float | None = None
) -> Tensor:
    """x with `nan` for NaN, and numbers for infinities: by default the dtype's largest.

    Elements that were replaced get no gradient. Integers are as they are, copied. Raises TypeError
    for complex numbers.
    """
    if x.dtype.kind == "c":
        raise TypeError(f"nan_to_num of a tensor of dtype {x.dtype}; wanted real numbers, such as "
                        "those of gt.real(x) and gt.imag(x)")
    if x.dtype.kind not in "fV":
        return clone(x)
    limits = finfo(x.dtype)
    ends = ((limits.max if posinf is None else posinf, x > 0),
            (limits.min if neginf is None else neginf, x < 0))
    infinite, found = isinf(x), where(isnan(x), nan, x)
    for number, side in ends:
        found = where(infinite & side, number, found)
    return found


enter(globals())
