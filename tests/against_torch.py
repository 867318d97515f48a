"""Comparison of a function with PyTorch's, in value and in derivatives of two orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as TF

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.testing import cases
from gtensor.testing.compare import close, unwritten

Function = Callable[..., Any]
LAYOUTS: dict[str, cases.Layout] = {
    "contiguous": lambda xp, a: xp.copy(a),
    "strided": cases.strided,
    "transposed": cases.transposed,
}
NAMES = ("gtensor", "PyTorch")


def compare(
    function: Function,
    reference: Function,
    arrays: Sequence[np.ndarray],
    *,
    second: bool = True,
    layouts: Sequence[str] = tuple(LAYOUTS),
    tolerance: float = 1e-10,
) -> None:
    """Assert that both functions agree on arrays: values, gradients, second derivatives.

    `function(*tensors)` of gtensor, `reference(*tensors)` of PyTorch, each returning one tensor.
    Complex inputs are made of two real ones, whose gradients are the parts of the complex one.
    The upstream gradient is random, once dense and once a broadcast view. Gradients are computed
    with raw arrays and recorded, and must agree with PyTorch's in both ways. Values agree within a
    hundredth of the tolerance, second derivatives within its hundredfold.
    """
    kinds = [a.dtype.kind for a in arrays]
    parts = [p for a in arrays for p in ([a.real, a.imag] if a.dtype.kind == "c" else [a])]
    theirs = [torch.tensor(p, requires_grad=True) for p in parts]
    wanted = reference(*_joined(kinds, theirs))
    for layout in layouts:
        laid_out = [LAYOUTS[layout](np, p) for p in parts]
        for turn, g in enumerate(_upstreams(wanted)):
            check = unwritten([("the upstream gradient", g),
                               *((f"input {i}", a) for i, a in enumerate(laid_out))])
            upstream = torch.tensor(g)
            first = gradients(torch, [wanted], theirs, [upstream], create_graph=True)
            ours = leaves(laid_out)
            y = function(*_joined(kinds, ours))
            close(f"value, {layout}", y, wanted, tolerance / 100, NAMES)
            y.backward(gt.asarray(g, device="cpu"))
            for i, (mine, their) in enumerate(zip(ours, first, strict=True)):
                close(f"gradient {i}, {layout}", mine.grad, their, tolerance, NAMES)
            check()
            if layout == layouts[0] and not turn:
                ours = leaves(laid_out)
                y = function(*_joined(kinds, ours))
                found = gradients(gt, [y], ours, [gt.asarray(g, device="cpu")], create_graph=True)
                for i, (a, b) in enumerate(zip(found, first, strict=True)):
                    close(f"recorded gradient {i}", a, b, tolerance, NAMES)
                if second:
                    compare_second(ours, found, theirs, first, 100 * tolerance)
                check()


def compare_functional(call: Function, arrays: Sequence[np.ndarray], **options: Any) -> None:
    """`compare` of `call(f, *tensors)` where f is `nn.functional`, gtensor's and PyTorch's."""
    compare(partial(call, F), partial(call, TF), arrays, **options)


def compare_second(
    ours: Sequence[Any], found: Sequence[Any], theirs: Sequence[Any], first: Sequence[Any],
    tolerance: float,
) -> None:
    """Derivatives of a function of all first gradients, whose own derivative is 0 nowhere."""

    def loss(firsts: Sequence[Any]) -> Any:
        return sum((g * g * g + g * (k + 1)).sum() for k, g in enumerate(firsts))

    given, wanted = gradients(gt, [loss(found)], ours), gradients(torch, [loss(first)], theirs)
    for i, (a, b) in enumerate(zip(given, wanted, strict=True)):
        close(f"second derivative {i}", a, b, tolerance, NAMES)


def gradients(
    library: Any, outputs: Sequence[Any], inputs: Sequence[Any],
    upstreams: Sequence[Any] | None = None, *, create_graph: bool = False,
) -> list[Any]:
    """Of gtensor or PyTorch; zeros where an input gives the outputs nothing."""
    kept = [i for i, y in enumerate(outputs) if y.requires_grad]
    if not kept:
        return [library.zeros_like(x) for x in inputs]
    grad = gt.grad if library is gt else torch.autograd.grad
    found = grad([outputs[i] for i in kept], inputs, upstreams and [upstreams[i] for i in kept],
                 retain_graph=True, create_graph=create_graph, allow_unused=True)
    return [library.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def leaves(arrays: Sequence[np.ndarray]) -> list[Any]:
    """Tensors over these very arrays, requiring gradients."""
    return [gt.asarray(a, device="cpu").detach().requires_grad_() for a in arrays]


def _joined(kinds: Sequence[str], parts: Sequence[Any]) -> list[Any]:
    """The inputs, of which complex ones come as two real ones."""
    left = iter(parts)
    return [next(left) + 1j * next(left) if kind == "c" else next(left) for kind in kinds]


def _upstreams(wanted: torch.Tensor) -> list[np.ndarray]:
    """A dense gradient, and one whose elements share memory."""
    shape = tuple(wanted.shape)
    rng = np.random.default_rng(wanted.numel())
    dense = np.asarray(rng.standard_normal(shape))
    if wanted.is_complex():
        dense = dense + 1j * rng.standard_normal(shape)
    return [dense] if not shape else [dense, np.broadcast_to(dense[:1], shape)]
