"""Comparison, logic, bits and classification: booleans and integers, without gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend.kernels import elementwise
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import below, binary, boolean, normal, unary
from gtensor.ops.define.batching import broadcasting
from gtensor.ops.define.path_builders import cupy_function, ufunc
from gtensor.ops.define.pointwise import zero_tangent

if TYPE_CHECKING:
    from gtensor.backend.typing import Path
    from gtensor.engine.tape.samples import Sample
    from gtensor.engine.walk.typing import Tangent

__all__ = [
    "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less",
    "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "nextafter",
    "not_equal", "signbit",
]


def _discrete(
    name: str, function: np.ufunc, samples: Sequence[Sample], reference: Path, doc: str,
    gpu: Path | None = None, tangent: Tangent | None = zero_tangent
) -> Op:
    return op(name, cpu=ufunc(function), gpu=gpu or cupy_function(function.__name__),
              backward=None, tangent=tangent, batch=broadcasting, samples=samples,
              reference=reference,
              doc=f"{doc}, elementwise{' with broadcasting' * (function.nin > 1)}.")


def _shift_gpu(way: str) -> Path:
    return cupy_function(f"{way}_shift", "iu", elementwise(
        "T x1, T x2", "T y", f"y = gt_shift_{way}(x1, x2)", "shift.cuh"))


_ALMOST_EQUAL = binary(below(3))  # integers of which many are equal

equal = _discrete("equal", np.equal, _ALMOST_EQUAL, lambda torch, a, b: a == b,
                  "Whether x1 and x2 are equal (NaN equals nothing; integers and a float are "
                  "compared exactly, in PyTorch as float32)")
not_equal = _discrete("not_equal", np.not_equal, _ALMOST_EQUAL, lambda torch, a, b: a != b,
                      "Whether x1 and x2 differ; NaN differs from everything")
less = _discrete("less", np.less, binary(), lambda torch, a, b: a < b, "Whether x1 < x2")
less_equal = _discrete("less_equal", np.less_equal, _ALMOST_EQUAL, lambda torch, a, b: a <= b,
                       "Whether x1 <= x2")
greater = _discrete("greater", np.greater, binary(), lambda torch, a, b: a > b, "Whether x1 > x2")
greater_equal = _discrete("greater_equal", np.greater_equal, _ALMOST_EQUAL,
                          lambda torch, a, b: a >= b, "Whether x1 >= x2")

logical_and = _discrete("logical_and", np.logical_and, binary(boolean),
                        lambda torch, a, b: torch.logical_and(a, b), "Whether x1 and x2 are true")
logical_or = _discrete("logical_or", np.logical_or, binary(boolean),
                       lambda torch, a, b: torch.logical_or(a, b), "Whether x1 or x2 is true")
logical_xor = _discrete("logical_xor", np.logical_xor, binary(boolean),
                        lambda torch, a, b: torch.logical_xor(a, b),
                        "Whether one of x1 and x2 is true, and not both")
logical_not = _discrete("logical_not", np.logical_not, unary(boolean),
                        lambda torch, a: torch.logical_not(a), "Whether x is false")

_BITS = [*binary(boolean), *binary(below(64))]

bitwise_and = _discrete("bitwise_and", np.bitwise_and, _BITS, lambda torch, a, b: a & b,
                        "The bits set in x1 and in x2")
bitwise_or = _discrete("bitwise_or", np.bitwise_or, _BITS, lambda torch, a, b: a | b,
                       "The bits set in x1 or in x2")
bitwise_xor = _discrete("bitwise_xor", np.bitwise_xor, _BITS, lambda torch, a, b: a ^ b,
                        "The bits in which x1 and x2 differ")
bitwise_invert = _discrete("bitwise_invert", np.bitwise_not,
                           [*unary(boolean), *unary(below(64))], lambda torch, a: ~a,
                           "The bits not set in x")
bitwise_left_shift = _discrete("bitwise_left_shift", np.left_shift, binary(below(64), below(8)),
                               lambda torch, a, b: a << b, "x1 times 2 ** x2, for integers",
                               _shift_gpu("left"))
bitwise_right_shift = _discrete("bitwise_right_shift", np.right_shift,
                                binary(below(64), below(8)), lambda torch, a, b: a >> b,
                                "x1 divided by 2 ** x2 and rounded down, for integers",
                                _shift_gpu("right"))

isnan = _discrete("isnan", np.isnan, unary(), lambda torch, a: torch.isnan(a),
                  "Whether x is NaN, also in one part of a complex x")
isinf = _discrete("isinf", np.isinf, unary(), lambda torch, a: torch.isinf(a),
                  "Whether x is infinite, also in one part of a complex x")
isfinite = _discrete("isfinite", np.isfinite, unary(), lambda torch, a: torch.isfinite(a),
                     "Whether x is neither infinite nor NaN")
signbit = _discrete("signbit", np.signbit, unary(), lambda torch, a: torch.signbit(a),
                    "Whether the sign of x is negative, that of -0.0 and of a NaN included")
nextafter = _discrete("nextafter", np.nextafter, binary(normal),
                      lambda torch, a, b: torch.nextafter(a, b),
                      "The number next to x1 towards x2. Has no derivative",
                      cupy_function("nextafter", "f", elementwise(
                          "T x1, T x2", "T y", "y = gt_next_after(x1, x2)", "next_after.cuh"), 4),
                      tangent=None)
