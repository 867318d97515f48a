"""Comparison of elementwise functions with PyTorch's, complex values included."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import gtensor as gt

LARGE = (70, 90)  # where paths stop using np.where


class TorchModule:
    """PyTorch's functions, and `asarray` for its own."""

    asarray = staticmethod(torch.from_numpy)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


TORCH = TorchModule()


def against_torch(function: Any, arrays: list[np.ndarray], second: bool = True) -> None:
    """Value, gradients raw and recorded, and their gradients: `function(module, *tensors)`.

    Complex inputs are made of two real ones, whose gradients are the parts of the complex one.
    """
    parts = [p for a in arrays for p in ([a.real, a.imag] if a.dtype.kind == "c" else [a])]
    ours = [gt.tensor(p).requires_grad_() for p in parts]
    theirs = [torch.tensor(p, requires_grad=True) for p in parts]
    kinds = [a.dtype.kind for a in arrays]
    y, wanted = (function(m, *joined(kinds, xs)) for m, xs in ((gt, ours), (TORCH, theirs)))
    close(y, wanted, 1e-12)
    rng = np.random.default_rng(np.random.randint(2**31))
    g = rng.standard_normal(y.shape) + (
        1j * rng.standard_normal(y.shape) if y.dtype.kind == "c" else 0)
    expected = torch.autograd.grad(wanted, theirs, torch.tensor(g), create_graph=True)
    recorded = gt.grad(y, ours, gt.tensor(g), create_graph=True)
    raw = gt.grad(y, ours, gt.tensor(g), retain_graph=True)
    for mine, again, their in zip(recorded, raw, expected, strict=True):
        close(mine, their, 1e-10)
        close(again, their, 1e-10)
    if second:
        loss = sum((a * a * float(k + 1)).sum() for k, a in enumerate(recorded))
        their_loss = sum((b * b * (k + 1)).sum() for k, b in enumerate(expected))
        found = gradients_or_none(gt, loss, ours)
        wanted_second = gradients_or_none(torch.autograd, their_loss, theirs)
        for mine, their in zip(found, wanted_second, strict=True):
            if mine is not None and their is not None:
                close(mine, their, 1e-8)
            else:  # nothing flows there: zeros are as good
                assert not any(np.any(v.detach().numpy()) for v in (mine, their) if v is not None)


def joined(kinds: list[str], xs: Any) -> list[Any]:
    """The inputs, of which complex ones come as two real ones."""
    left = iter(xs)
    return [next(left) + 1j * next(left) if kind == "c" else next(left) for kind in kinds]


def gradients_or_none(module: Any, loss: Any, inputs: list[Any]) -> Any:
    if not loss.requires_grad:
        return [None] * len(inputs)
    return module.grad(loss, inputs, allow_unused=True)


def close(given: Any, wanted: Any, tolerance: float) -> None:
    assert given.shape == tuple(wanted.shape)
    b = wanted.detach().resolve_conj().numpy()
    size = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0.0)))
    np.testing.assert_allclose(given.numpy(), b, rtol=tolerance, atol=tolerance * size)
