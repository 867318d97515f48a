"""Fused elementwise calls: the same bits as unfused and as eager, in fewer calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gtensor as gt

UNARY = ("exp", "tanh", "sin", "log1p", "sqrt", "abs", "negative", "square", "reciprocal",
         "expm1", "sign", "floor", "isfinite", "logical_not")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "equal", "hypot")
SMOOTH = ("gelu", "silu", "sigmoid", "softplus", "elu", "leaky_relu", "relu", "mish", "hardswish")
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (64,), (3, 5), (3, 1), (5,), (0, 4), (2, 3, 5)]
LARGE: list[tuple[int, ...]] = [(40_000,), (200, 301), (301,), (200, 1), ()]


def bits(x: Any) -> bytes:
    array = x.numpy()
    return str((array.shape, array.dtype)).encode() + np.ascontiguousarray(array).tobytes()


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> gt.Tensor:
    """A tensor, now and then a strided view."""
    values = rng.standard_normal((*shape[:-1], 2 * shape[-1]) if shape else ()) * 2
    if dtype == "bool":
        values = values > 0
    if shape and rng.random() < 0.3:
        return gt.asarray(np.asarray(values, dtype))[..., ::2]
    return gt.asarray(np.ascontiguousarray(np.asarray(values[..., ::2] if shape else values, dtype)))


def program(seed: int, shapes: list[tuple[int, ...]], steps: int) -> tuple[Callable[..., Any], Any]:
    """A random function of tensors, with gradients, and a function that draws its arguments."""
    rng = np.random.default_rng(seed)
    one = rng.integers(len(shapes))
    kinds = [(shapes[one if rng.random() < 0.5 else rng.integers(len(shapes))],
              str(rng.choice(["float32", "float32", "float64", "float16"]))) for _ in range(4)]
    plan = [(rng.choice(["unary", "binary", "binary", "number", "smooth", "where", "sum", "view"]),
             rng.integers(1 << 30, size=4)) for _ in range(steps)]

    def function(*given: gt.Tensor) -> Any:
        for x in given[:3]:
            x.grad = None
        known = [*given]
        for kind, r in plan:
            x, y = known[r[0] % len(known)], known[r[1] % len(known)]
            try:
                known.append(step(kind, x, y, r))
            except (TypeError, ValueError):  # shapes that do not broadcast, dtypes that are refused
                continue
        floats = [x for x in known[len(given):] if x.dtype.kind == "f"]
        if floats:
            total = sum([x.astype("float32").sum() for x in floats[-4:]], start=gt.zeros(()))
            if total.requires_grad:
                total.backward()
        return known[len(given):][-6:]

    def step(kind: str, x: gt.Tensor, y: gt.Tensor, r: Any) -> gt.Tensor:
        if kind == "unary":
            return getattr(gt, UNARY[r[2] % len(UNARY)])(x)
        if kind == "binary":
            return getattr(gt, BINARY[r[2] % len(BINARY)])(x, y)
        if kind == "number":
            number = [0.1, 3, -2.5, 0.0, -0.0, 1, 1.0, 0.5, True][r[3] % 9]
            return [x * number, x + number, number - x, x / (number or 7), gt.maximum(x, number),
                    x > number][r[2] % 6]
        if kind == "smooth":
            return getattr(gt.nn.functional, SMOOTH[r[2] % len(SMOOTH)])(x)
        if kind == "where":
            return gt.where(x > 0, y, 0.0 if r[2] % 2 else x)
        if kind == "sum":
            return x.sum(axis=-1, keepdims=True) if x.ndim else x.sum()
        return x.reshape((-1,)) if r[2] % 2 else gt.permute_dims(x, tuple(range(x.ndim))[::-1])

    def arguments(draw: int) -> list[gt.Tensor]:
        rng = np.random.default_rng(draw)
        found = [drawn(rng, *kind) for kind in kinds]
        for x in found[:3]:
            x.requires_grad_()
        return found

    return function, arguments


def compared(function: Any, arguments: Any, fuse: bool | str) -> tuple[Any, list[str]]:
    """The captured function, and what in its replays differs from eager calls."""
    step = gt.capture(function, fuse=fuse)
    wrong = []
    for draw in range(4):
        given, same = arguments(draw), arguments(draw)
        found, wanted = step(*given), function(*same)
        for i, (x, y) in enumerate(zip(found, wanted, strict=True)):
            if bits(x) != bits(y):
                wrong.append(f"draw {draw}: result {i}")
        for i, (x, y) in enumerate(zip(given, same, strict=True)):
            if (x.grad is None) is not (y.grad is None) or (
                    x.grad is not None and bits(x.grad) != bits(y.grad)):
                wrong.append(f"draw {draw}: gradient {i}")
    return step, wrong
