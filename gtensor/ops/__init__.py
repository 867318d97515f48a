"""The op records, by family, and the public functions over them."""

from __future__ import annotations

from gtensor.core.apply import apply_pair
from gtensor.core.namespaces import public
from gtensor.core.op import registry
from gtensor.ops import arithmetic, calculus, index, linalg, reduce, shape, writing
from gtensor.ops.arithmetic import (
    abs,
    add,
    bitwise_and,
    bitwise_invert,
    bitwise_or,
    bitwise_xor,
    divide,
    equal,
    floor_divide,
    greater,
    greater_equal,
    isnan,
    less,
    less_equal,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    pow,
    remainder,
    sign,
    square,
    subtract,
    where,
)
from gtensor.ops.calculus import cos, exp, log, sin, sqrt, tanh
from gtensor.ops.index import take
from gtensor.ops.linalg import matmul
from gtensor.ops.reduce import argmax, max, mean, min, sum, var
from gtensor.ops.shape import (
    astype,
    broadcast_to,
    clone,
    concat,
    expand_dims,
    flatten,
    matrix_transpose,
    permute_dims,
    reshape,
    squeeze,
    stack,
)

__all__ = [
    "abs", "add", "argmax", "astype", "bitwise_and", "bitwise_invert", "bitwise_or", "bitwise_xor",
    "broadcast_to", "clone", "concat", "cos", "divide", "equal", "exp", "expand_dims", "flatten",
    "floor_divide", "greater", "greater_equal", "isnan", "less", "less_equal", "log", "matmul",
    "matrix_transpose", "max", "maximum", "mean", "min", "minimum", "multiply", "negative",
    "not_equal", "permute_dims", "pow", "remainder", "reshape", "sign", "sin", "sqrt", "square",
    "squeeze", "stack", "subtract", "sum", "take", "tanh", "var", "where",
]


def _publish() -> None:
    """Hand the methods and operators of Tensor their functions."""
    for name, record in registry.items():
        setattr(public, name, record)
    for module in (arithmetic, calculus, index, linalg, reduce, shape, writing):
        for name in getattr(module, "METHODS", ()):
            setattr(public, name, getattr(module, name))
    for name in __all__:
        setattr(public, name, globals()[name])
    public.pair = apply_pair


_publish()
