"""Elementwise functions of the array API: arithmetic, calculus, trigonometry, comparison, bits."""

from __future__ import annotations

from typing import Any

import torch

import gtensor as gt
from torch_samples.cases import (
    INTEGERS,
    NO_BOOL,
    NO_COMPLEX,
    Skip,
    always,
    complex_values,
    never,
    of,
    same,
)

UNARY = {
    "abs": gt.abs, "acos": gt.acos, "acosh": gt.acosh, "asin": gt.asin, "asinh": gt.asinh,
    "atan": gt.atan, "atanh": gt.atanh, "bitwise_not": gt.bitwise_invert, "ceil": gt.ceil,
    "conj": gt.conj, "conj_physical": gt.conj, "cos": gt.cos, "cosh": gt.cosh, "exp": gt.exp,
    "expm1": gt.expm1, "floor": gt.floor, "imag": gt.imag, "isfinite": gt.isfinite,
    "isinf": gt.isinf, "isnan": gt.isnan, "log": gt.log, "log10": gt.log10, "log1p": gt.log1p,
    "log2": gt.log2, "logical_not": gt.logical_not, "neg": gt.negative, "positive": gt.positive,
    "real": gt.real, "reciprocal": gt.reciprocal, "round": gt.round, "sgn": gt.sign,
    "sign": gt.sign, "signbit": gt.signbit, "sin": gt.sin, "sinh": gt.sinh, "sqrt": gt.sqrt,
    "square": gt.square, "tan": gt.tan, "tanh": gt.tanh, "trunc": gt.trunc, "clone": gt.clone,
}
BINARY = {
    "atan2": gt.atan2, "bitwise_and": gt.bitwise_and, "bitwise_left_shift": gt.bitwise_left_shift,
    "bitwise_or": gt.bitwise_or, "bitwise_right_shift": gt.bitwise_right_shift,
    "bitwise_xor": gt.bitwise_xor, "clamp_max": lambda x, high: gt.clip(x, None, high),
    "clamp_min": lambda x, low: gt.clip(x, low), "copysign": gt.copysign,
    "div.floor_rounding": lambda x, y, rounding_mode: gt.floor_divide(x, y),
    "div.no_rounding_mode": gt.divide,
    "eq": gt.equal, "floor_divide": gt.floor_divide, "ge": gt.greater_equal, "gt": gt.greater,
    "hypot": gt.hypot, "le": gt.less_equal, "logaddexp": gt.logaddexp,
    "logical_and": gt.logical_and, "logical_or": gt.logical_or, "logical_xor": gt.logical_xor,
    "lt": gt.less, "max.binary": gt.maximum, "maximum": gt.maximum, "min.binary": gt.minimum,
    "minimum": gt.minimum, "mul": gt.multiply, "ne": gt.not_equal, "nextafter": gt.nextafter,
    "pow": gt.pow, "remainder": gt.remainder, "true_divide": gt.divide,
    "__rand__": lambda x, y: y & x, "__rdiv__": lambda x, y: y / x, "__rmod__": lambda x, y: y % x,
    "__rmul__": lambda x, y: y * x, "__ror__": lambda x, y: y | x, "__rpow__": lambda x, y: y ** x,
    "__rsub__": lambda x, y: y - x, "__rxor__": lambda x, y: y ^ x, "__radd__": lambda x, y: y + x,
}
MIXED = Skip("dtypes of different kinds promote as in NumPy", lambda given: any(
    isinstance(a, torch.Tensor) and a.dtype != given.dtype for a in given.args))
SKIPS = {
    "conj": NO_BOOL, "conj_physical": NO_BOOL, "square": NO_BOOL, "sign": NO_BOOL, "sgn": NO_BOOL,
    "logaddexp": NO_COMPLEX,
    "__rpow__": Skip("NumPy refuses negative powers of integers", of(*INTEGERS)),
}
REFUSES = {"sgn": complex_values, "nextafter": always}


def _scaled(function: Any) -> Any:
    return lambda x, y, alpha=1: function(x, y if alpha == 1 else alpha * y)


TABLE = [
    *(same(name, function, *([SKIPS[name]] if name in SKIPS else []),
           refuses=REFUSES.get(name, never))
      for name, function in {**UNARY, **BINARY}.items()),
    same("add", _scaled(gt.add)),
    same("sub", _scaled(gt.subtract)),
    same("rsub", lambda x, y, alpha=1: y - alpha * x),
    same("clamp", gt.clip, MIXED),
    same("where", lambda x, condition, y: gt.where(condition, x, y)),
    same("lerp", lambda x, y, weight: x + weight * (y - x)),
    same("addcmul", lambda x, a, b, value=1: x + value * a * b),
    same("addcdiv", lambda x, a, b, value=1: x + value * a / b),
    same("complex", lambda x, y: x + 1j * y),
    same("sigmoid", gt.nn.functional.sigmoid, refuses=complex_values),
    same("erf", gt.nn.functional.erf),
]
