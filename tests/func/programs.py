"""Random programs in gtensor and in PyTorch: functions of x (3, 4), w (4, 4) and b (4,).

Operands are chosen among everything computed so far, so subexpressions are shared. Factors keep the
numbers near 1. An op is left out while an op of gtensor that it calls has no batch rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

import gtensor as gt
from gtensor.engine.tape.op import registry
from gtensor.nn import functional as F

Shape = tuple[int, ...]
Program = list[tuple[str, list[int]]]
ROW, MATRIX, SQUARE, ONE = (4,), (3, 4), (4, 4), ()
ARGUMENTS = (MATRIX, SQUARE, ROW)
OPS: dict[str, tuple[tuple[Shape, ...], Shape, Callable[..., Any]]] = {}


def define(
    name: str, reads: tuple[Shape, ...], makes: Shape, both: Callable[..., Any], *calls: str
) -> None:
    """An op of both libraries, `both(library, functions, *operands)`, which calls these ops."""
    if all(registry[op].batch is not None for op in calls):
        OPS[name] = reads, makes, both


for tag, shape in (("row", ROW), ("matrix", MATRIX), ("square", SQUARE)):
    define(f"add {tag}", (shape, shape), shape, lambda xp, nn, a, b: a + b * 0.5)
    define(f"multiply {tag}", (shape, shape), shape, lambda xp, nn, a, b: a * b)
    define(f"divide {tag}", (shape, shape), shape, lambda xp, nn, a, b: a / (1 + b * b))
    define(f"tanh {tag}", (shape,), shape, lambda xp, nn, a: xp.tanh(a))
    define(f"sin {tag}", (shape,), shape, lambda xp, nn, a: xp.sin(2 * a))
    define(f"bell {tag}", (shape,), shape, lambda xp, nn, a: xp.exp(-(a * a)))
    define(f"root {tag}", (shape,), shape, lambda xp, nn, a: xp.sqrt(1 + a**2) - 0.5)
    define(f"where {tag}", (shape, shape), shape, lambda xp, nn, a, b: xp.where(a > b, a, b * 0.5))
    define(f"scaled {tag}", (shape, ONE), shape, lambda xp, nn, a, s: a * s)
    define(f"softmax {tag}", (shape,), shape, lambda xp, nn, a: nn.softmax(a, -1), "softmax",
           "softmax_grad")
    define(f"norm {tag}", (shape,), shape, lambda xp, nn, a: 0.5 * nn.layer_norm(a, (4,), eps=0.1),
           "layer_norm", "layer_norm_dx")
    define(f"flip {tag}", (shape,), shape, lambda xp, nn, a: xp.flip(a, (0,)))
    define(f"mean {tag}", (shape,), ONE, lambda xp, nn, a: a.mean())
    define(f"sum {tag}", (shape,), ONE, lambda xp, nn, a: (a * a).sum() * 0.1)
    define(f"logsumexp {tag}", (shape,), ONE, lambda xp, nn, a: 0.3 * xp.logsumexp(
        a.reshape(-1), 0), "logsumexp")
    define(f"running {tag}", (shape,), shape, lambda xp, nn, a: 0.4 * (
        xp.cumulative_sum if xp is gt else torch.cumsum)(a, -1), "cumulative_sum")
    define(f"join {tag}", (shape, shape), shape, lambda xp, nn, a, b: xp.concat(
        [a[..., 2:], b[..., :2]], -1), "concat")
define("row beside matrix", (MATRIX, ROW), MATRIX, lambda xp, nn, a, b: a + b)
define("row times square", (ROW, SQUARE), SQUARE, lambda xp, nn, a, b: a * b)
define("column sums", (MATRIX,), ROW, lambda xp, nn, a: a.sum(0) * 0.5)
define("row means", (SQUARE,), ROW, lambda xp, nn, a: a.mean(-1))
define("largest", (SQUARE,), ROW, lambda xp, nn, a: (xp.max if xp is gt else xp.amax)(a, -1), "max",
       "equal")
define("variance", (MATRIX,), ROW, lambda xp, nn, a: xp.var(
    a, 0, **({} if xp is gt else {"correction": 0})), "var")
define("broadcast", (ROW,), MATRIX, lambda xp, nn, a: xp.broadcast_to(a, MATRIX) * 0.7)
define("transpose", (SQUARE,), SQUARE, lambda xp, nn, a: a.mT * 0.8)
define("matmul", (MATRIX, SQUARE), MATRIX, lambda xp, nn, a, b: (a @ b) * 0.3)
define("matrix times row", (SQUARE, ROW), ROW, lambda xp, nn, a, b: (a @ b) * 0.3)
define("gram", (MATRIX,), SQUARE, lambda xp, nn, a: (a.mT @ a) * 0.25)
define("linear", (MATRIX, SQUARE, ROW), MATRIX, lambda xp, nn, a, b, c: nn.linear(a, b, c) * 0.4)
define("outer", (ROW, ROW), SQUARE, lambda xp, nn, a, b: a.reshape(4, 1) * b.reshape(1, 4))
define("slice row", (MATRIX,), ROW, lambda xp, nn, a: a[1])
define("slice column", (SQUARE,), ROW, lambda xp, nn, a: a[:, 2])
define("slice part", (SQUARE,), MATRIX, lambda xp, nn, a: a[1:])
define("every second", (SQUARE, SQUARE), SQUARE, lambda xp, nn, a, b: (
    a[::2, :, None] * b[None, :, 1::2]).reshape(4, 4))
define("convolution", (SQUARE, MATRIX), SQUARE, lambda xp, nn, a, b: 0.3 * nn.conv2d(
    a.reshape(1, 1, 4, 4), b[:, :3].reshape(1, 1, 3, 3), padding=1).reshape(4, 4),
    "conv2d", "conv2d_grad_input", "conv2d_grad_weight")
define("mean of groups", (SQUARE,), SQUARE, lambda xp, nn, a: nn.group_norm(
    a.reshape(1, 4, 4), 2, eps=0.2).reshape(4, 4) * 0.5, "group_norm", "group_norm_dx",
    "group_norm_sums", "concat")


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Some ops with the places of their operands among the arguments and earlier values."""
    shapes: list[Shape] = list(ARGUMENTS)
    program: Program = []
    names = sorted(OPS)
    for _ in range(draw(st.integers(2, 9))):
        able = [name for name in names if set(OPS[name][0]) <= set(shapes)]
        name = draw(st.sampled_from(able))
        reads, makes, _ = OPS[name]
        program.append((name, [draw(st.sampled_from(
            [i for i, shape in enumerate(shapes) if shape == wanted])) for wanted in reads]))
        shapes.append(makes)
    return program


def function(program: Program, xp: Any) -> Callable[..., Any]:
    """The program as a function of x, w and b: its last value and the product of all others.

    So every value has an effect.
    """
    nn = F if xp is gt else torch.nn.functional

    def run(*arguments: Any) -> Any:
        values = list(arguments)
        for name, places in program:
            values.append(OPS[name][2](xp, nn, *(values[i] for i in places)))
        rest = sum(xp.tanh(value).mean() for value in values)
        return values[-1] * rest

    return run
