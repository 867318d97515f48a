"""Gradients of what a softmax is in, at logits as large as floats go: those of small ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import gtensor as gt
import gtensor.nn.functional as F

_LARGE = {  # losses of logits (6, 5), classes and probabilities; ours and PyTorch's
    "indices": lambda f, x, t, q, w: f.cross_entropy(x, t, reduction="sum"),
    "smoothed": lambda f, x, t, q, w: f.cross_entropy(x, t, label_smoothing=0.2),
    "weighted": lambda f, x, t, q, w: f.cross_entropy(x, t, w, label_smoothing=0.2, ignore_index=4),
    "probabilities": lambda f, x, t, q, w: f.cross_entropy(x, q, w, label_smoothing=0.1),
    "nll_loss": lambda f, x, t, q, w: f.nll_loss(f.log_softmax(x, 1), t, w),
    "kl_div": lambda f, x, t, q, w: f.kl_div(f.log_softmax(x, 1), q, reduction="sum"),
    "softmax": lambda f, x, t, q, w: (f.softmax(x, 1) * q).sum(),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", _LARGE)
@pytest.mark.parametrize("shift", [0.0, 1e5, 1e7, 1e30, 3e38, -3e38, None])
@pytest.mark.parametrize(("tile", "recorded"), [(65536, False), (8, False), (65536, True)])
def test_the_size_of_logits_takes_nothing_from_the_gradient(name, shift, tile, recorded, rng):
    """The logarithm of the sum is not rounded as a large logit is: float64 of the same values."""
    values = rng.standard_normal((6, 5)) * 2 + (0.0 if shift is None else shift)
    if shift is None:
        values = np.where(rng.random((6, 5)) < 0.5, 3e38, -3e38)
    values = values.astype(np.float32)
    classes, q = np.array([0, 1, 2, 3, 4, 0]), rng.random((6, 5), np.float32)
    q /= q.sum(axis=1, keepdims=True)
    w = rng.random(5, np.float32) + 0.5
    with gt.settings.override(tile_elements=tile):
        x = gt.tensor(values, requires_grad=True)
        target = gt.tensor(q, requires_grad=name == "probabilities")
        loss = _LARGE[name](F, x, gt.tensor(classes), target, gt.tensor(w))
        loss.backward(create_graph=recorded)
    x64 = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    q64 = torch.tensor(q, dtype=torch.float64, requires_grad=name == "probabilities")
    exact = _LARGE[name](TF, x64, torch.tensor(classes), q64, torch.tensor(w).double())
    exact.backward()
    if shift is not None:  # else differences of logits are infinite
        np.testing.assert_allclose(loss.item(), exact.item(), rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), x64.grad.numpy(), rtol=1e-5, atol=1e-6)
    if shift is not None and target.requires_grad:
        np.testing.assert_allclose(target.grad.numpy(), q64.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shift", [0.0, 1e7, 1e30, 3e38])
def test_the_size_of_scores_takes_nothing_from_the_gradients_of_attention(shift, rng):
    shapes = ((1, 4, 2), (1, 6, 2), (1, 6, 3), (4, 6))
    q, k, v, mask = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    q *= 0  # the scores are the mask
    mask = np.round(mask * 2).astype(np.float32) + np.float32(shift)
    g = rng.standard_normal((1, 4, 3))
    ours = [gt.tensor(a, requires_grad=True) for a in (q, k, v, mask)]
    (F.scaled_dot_product_attention(*ours[:3], attn_mask=ours[3]) * g.astype(np.float32)
     ).sum().backward()
    exact = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (q, k, v, mask)]
    (TF.scaled_dot_product_attention(*exact[:3], attn_mask=exact[3]) * torch.tensor(g)
     ).sum().backward()
    for a, b in zip(ours, exact, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("shift", [0.0, 1e7, 1e30, 3e38, -3e38])
@pytest.mark.parametrize("recorded", [False, True])
def test_the_gradient_of_logsumexp_is_the_softmax_of_large_values_too(shift, recorded, rng):
    values = (rng.standard_normal((3, 4)) + shift).astype(np.float32)
    wide = values.astype(np.float64)
    terms = np.exp(wide - wide.max())
    x = gt.tensor(values, requires_grad=True)
    gt.logsumexp(x).backward(create_graph=recorded)
    np.testing.assert_allclose(x.grad.numpy(), terms / terms.sum(), rtol=1e-5, atol=1e-6)
