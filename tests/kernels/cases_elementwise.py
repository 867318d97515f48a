"""Cases of activation.cuh, through elementwise kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kernel_cases import Case, assert_close, exact, normal, unwritten

from gtensor.backend.kernels import Elementwise, elementwise

# name: (parameters, PyTorch's function, whether the gradient can also come from the output)
_ACTIVATIONS: dict[str, tuple[dict[str, float], Callable[..., torch.Tensor], bool]] = {
    "relu": ({}, F.relu, True),
    "leaky_relu": ({"slope": 0.02}, lambda x, slope: F.leaky_relu(x, slope), True),
    "elu": ({"alpha": 1.3}, lambda x, alpha: F.elu(x, alpha), True),
    "gelu": ({}, F.gelu, False),
    "gelu_tanh": ({}, lambda x: F.gelu(x, approximate="tanh"), False),
    "sigmoid": ({}, torch.sigmoid, True),
    "softplus": (
        {"beta": 1.5, "threshold": 6.0}, lambda x, beta, threshold: F.softplus(x, beta, threshold),
        True,
    ),
    "tanh": ({}, torch.tanh, True),
    "silu": ({}, F.silu, False),
}
_SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-6, -1e-6, 30.0, -30.0, 4.0, 3.9, -120.0]
_THRESHOLD = 4.0  # times softplus' beta


def _declared(parameters: dict[str, float]) -> tuple[str, str]:
    return ("".join(f", float64 {name}" for name in parameters),
            "".join(f", {name}" for name in parameters))


def _activation_kernels(name: str) -> tuple[Elementwise, Elementwise, Elementwise | None]:
    parameters, _, inverts = _ACTIVATIONS[name]
    declared, passed = _declared(parameters)
    header = "activation.cuh"
    forward = elementwise("T x" + declared, "T y", f"y = gt_{name}(x{passed})", header)
    grad = elementwise("T g, T x" + declared, "T dx", f"dx = gt_{name}_grad(g, x{passed})", header)
    from_output = None
    if inverts:
        body = f"dx = gt_{name}_grad_from_output(g, y{passed})"
        from_output = elementwise("T g, T y" + declared, "T dx", body, header)
    return forward, grad, from_output


KERNELS = {name: _activation_kernels(name) for name in _ACTIVATIONS}


def _activation(name: str, size: int) -> Case:
    parameters, reference, _ = _ACTIVATIONS[name]
    forward, gradient, from_output = KERNELS[name]
    values = list(parameters.values())

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        special = np.array(_SPECIAL).astype(dtype)
        x = np.concatenate([special, normal(rng, size, dtype, 2.0)])
        g = normal(rng, x.shape, dtype)
        y = unwritten(x.shape, dtype)
        executor.elementwise(forward, dtype, [x, *values], [y])
        wanted = reference(exact(x), *values)
        assert_close(y, wanted, dtype)

        inside = np.isfinite(x)  # at infinity PyTorch's own formulas disagree between versions
        x, g, y = x[inside], g[inside], y[inside]
        leaf = exact(x).requires_grad_()
        reference(leaf, *values).backward(exact(g))
        dx = g.copy()
        executor.elementwise(gradient, dtype, [dx, x, *values], [dx])  # in place over g
        assert_close(dx, leaf.grad, dtype)
        if from_output is not None:
            dx = unwritten(x.shape, dtype)
            executor.elementwise(from_output, dtype, [g, y, *values], [dx])
            # y was rounded: a gradient from it knows the derivative to that precision only. And at
            # softplus' threshold the output cannot tell which side the input was on.
            dx[x == _THRESHOLD] = leaf.grad.numpy()[x == _THRESHOLD]
            assert_close(dx, leaf.grad, dtype, factor=4.0)

    return Case(f"{name}-{size}", check)


CASES = [_activation(name, 1000) for name in _ACTIVATIONS]
BODIES = [kernel for kernels in KERNELS.values() for kernel in kernels if kernel is not None]
