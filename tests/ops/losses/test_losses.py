"""Elementwise losses, and what all losses refuse and allocate."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare, compare_functional

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.testing.compare import close


@pytest.mark.filterwarnings("ignore:reduction. .mean. divides")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_losses_of_less_precision(dtype: str, rng: np.random.Generator) -> None:
    """A mean over more elements than a half type can count to, of values that it can hold."""
    half = getattr(gt, dtype)
    a = gt.tensor(rng.standard_normal((300, 400)), device="cpu").astype(half)
    b = gt.tensor(rng.uniform(0.1, 0.9, (300, 400)), device="cpu").astype(half)
    wide = [torch.tensor(t.numpy().astype(np.float64), requires_grad=True) for t in (a, b)]
    rtol = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5}[dtype]
    for name in ("l1_loss", "huber_loss", "smooth_l1_loss", "mse_loss", "kl_div",
                 "binary_cross_entropy_with_logits"):
        x = a.detach().requires_grad_()
        loss = getattr(F, name)(x, b)
        wanted = getattr(TF, name)(*wide)
        assert loss.dtype == half
        np.testing.assert_allclose(float(loss.item()), wanted.item(), rtol=rtol)
        loss.backward()
        (g,) = torch.autograd.grad(wanted, wide[:1])
        np.testing.assert_allclose(
            x.grad.numpy().astype(np.float64), g.numpy(), rtol=4 * rtol, atol=2e-7
        )


ELEMENTWISE: dict[str, Any] = {
    "l1_loss": {},
    "huber_loss": {"delta": 0.7},
    "smooth_l1_loss": {"beta": 0.4},
    "smooth_l1_loss of beta 0": {"beta": 0.0},
    "kl_div": {},
    "kl_div of logarithms": {"log_target": True},
    "binary_cross_entropy": {},
    "binary_cross_entropy_with_logits": {},
}


@pytest.mark.filterwarnings("ignore:reduction. .mean. divides")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (), (2, 0)])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_losses(
    name: str, shape: tuple[int, ...], reduction: str, rng: np.random.Generator
) -> None:
    function, options = name.partition(" ")[0], {**ELEMENTWISE[name], "reduction": reduction}
    if shape == (2, 0) and reduction == "mean":
        x = gt.zeros(shape, device="cpu")
        assert np.isnan(getattr(F, function)(x, x, **options).item())
        return
    arrays = [np.asarray(rng.uniform(0.1, 0.9, shape)) for _ in range(2)]
    if function == "binary_cross_entropy_with_logits":
        arrays[0] = 3 * arrays[0] - 1
    with gt.settings.override(tile_elements=4):
        compare_functional(lambda f, a, b: getattr(f, function)(a, b, **options), arrays)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weights", [((3, 4), (4,)), (None, (3, 1)), ((4,), None)])
def test_weights_of_binary_cross_entropy(
    reduction: str, weights: Any, rng: np.random.Generator
) -> None:
    x, t = 2 * rng.standard_normal((3, 4)), rng.uniform(0.1, 0.9, (3, 4))
    weight, positive = (None if s is None else rng.uniform(0.5, 2.0, s) for s in weights)
    ours, theirs = (
        {name: None if a is None else kind(a) for name, a in
         (("weight", weight), ("pos_weight", positive))}
        for kind in (lambda a: gt.tensor(a, device="cpu"), torch.tensor)
    )
    compare(
        lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction=reduction, **ours),
        lambda a, b: TF.binary_cross_entropy_with_logits(a, b, reduction=reduction, **theirs),
        [x, t],
    )
    compare(
        lambda a, b: F.binary_cross_entropy(a, b, ours["weight"], reduction=reduction),
        lambda a, b: TF.binary_cross_entropy(a, b, theirs["weight"], reduction=reduction),
        [1 / (1 + np.exp(-x)), t],
    )


def test_losses_at_their_ends() -> None:
    """Logits far out, probabilities of 0 and 1, targets of 0: finite, and PyTorch's."""
    x = np.array([800.0, -800.0, 0.0, 40.0])
    t = np.array([0.0, 1.0, 1.0, 1.0])
    cases = [("binary_cross_entropy_with_logits", x, t),
             ("binary_cross_entropy", np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.0, 1, 0, 1])),
             ("kl_div", np.array([-1.0, -2.0, -700.0, 0.0]), np.array([0.0, 0.3, 0.0, 1.0]))]
    for name, inputs, target in cases:
        ours, theirs = gt.tensor(inputs, requires_grad=True), torch.tensor(
            inputs, requires_grad=True)
        loss = getattr(F, name)(ours, gt.tensor(target), reduction="sum")
        wanted = getattr(TF, name)(theirs, torch.tensor(target), reduction="sum")
        loss.backward()
        wanted.backward()
        close(name, loss, wanted, 1e-12)
        close(name, ours.grad, theirs.grad, 1e-8)  # its 1e-12 is in single precision
        assert np.isfinite(loss.item())


@pytest.mark.parametrize("beta", [1e-3, 1e-5, 1e-7, 1e-46])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_smooth_l1_loss_of_a_small_beta(dtype: str, beta: float) -> None:
    """Its square's factor, 1 / beta, is no number of these types."""
    values = np.linspace(-1, 1, 7).astype(dtype)
    for reduction in ("none", "mean"):
        x, z = gt.tensor(values, requires_grad=True), torch.tensor(
            values.astype(np.float64), requires_grad=True)
        loss = F.smooth_l1_loss(x, x.detach() * 0, reduction=reduction, beta=beta)
        wanted = TF.smooth_l1_loss(z, z.detach() * 0, reduction=reduction, beta=beta)
        np.testing.assert_allclose(loss.numpy(), wanted.detach().numpy(), rtol=2e-3)
        loss.sum().backward()
        wanted.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), z.grad.numpy(), rtol=2e-3)


def test_binary_cross_entropy_refuses_nan() -> None:
    with pytest.raises(ValueError, match="from nan to nan; wanted 0 to 1"):
        F.binary_cross_entropy(gt.tensor([0.5, float("nan")], device="cpu"), gt.ones(2))


def test_kl_div_by_batch() -> None:
    x, t = np.log(np.full((4, 3), 1 / 3)), np.full((4, 3), 0.25)
    wanted = TF.kl_div(torch.tensor(x), torch.tensor(t), reduction="batchmean").item()
    assert abs(F.kl_div(gt.tensor(x), gt.tensor(t), reduction="batchmean").item() - wanted) < 1e-12


@pytest.mark.parametrize(
    "name", ["l1_loss", "huber_loss", "kl_div", "binary_cross_entropy_with_logits",
             "cross_entropy of probabilities"]
)
def test_a_reduced_loss_makes_nothing_of_the_inputs_size(name: str) -> None:
    """Forward takes tiles; backward makes the gradients it gives, and no more."""
    shape = (1024, 512)
    rng = np.random.default_rng(0)
    x = gt.tensor(rng.uniform(0.1, 0.9, shape).astype(np.float32), device="cpu")
    t = gt.tensor(rng.uniform(0.1, 0.9, shape).astype(np.float32), device="cpu")
    x.requires_grad_()
    function = getattr(F, name.partition(" ")[0])
    function(x, t)
    with gt.settings.override(arena_min_bytes=1 << 60, tile_elements=8192):
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            loss = function(x, t)
            forward = tracemalloc.get_traced_memory()[1] - before
            loss.backward()
            both = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    tile = 8192 * 4
    assert forward < 8 * tile and both < x.nbytes + 8 * tile


def test_messages_of_weights_and_shapes() -> None:
    x, target = gt.ones((4, 3), device="cpu"), gt.zeros(4, "int64", "cpu")
    share = x * 0.5
    for call, error, message in (
        (lambda: F.cross_entropy(x, target, gt.ones(4)), ValueError,
         r"weight of shape \(4,\) for 3 classes; wanted \(3,\)"),
        (lambda: F.nll_loss(x, target, gt.ones(3, requires_grad=True)), ValueError,
         "nll_loss was given a weight that requires a gradient; it is a constant"),
        (lambda: F.cross_entropy(x, target, gt.ones(3, gt.float64)), TypeError,
         "weight of dtype float64; wanted one"),
        (lambda: F.cross_entropy(x, share, ignore_index=1), ValueError,
         "ignore_index=1 and a target of probabilities"),
        (lambda: F.l1_loss(x, share[0]), ValueError, "l1_loss was given an input of shape"),
        (lambda: F.huber_loss(x, share, delta=0.0), ValueError, "delta=0.0; wanted a positive"),
        (lambda: F.smooth_l1_loss(x, share, beta=-1.0), ValueError, "beta=-1.0; wanted 0 or more"),
        (lambda: F.kl_div(x, share, reduction="avg"), ValueError, "'batchmean' or 'sum'"),
        (lambda: F.binary_cross_entropy(x * 2, share), ValueError, "from 2.0 to 2.0; wanted 0 to"),
        (lambda: F.binary_cross_entropy_with_logits(x, share, pos_weight=gt.ones(2)), ValueError,
         r"pos_weight of shape \(2,\); wanted one that broadcasts to \(4, 3\)"),
    ):
        with pytest.raises(error, match=message):
            call()


_MASSLESS = {
    "weights of 0": ([0, 0, 0], [0.0, 1.0, 1.0], 0.0),
    "weights of 0, ignored rows": ([0, -100, 0], [0.0, 1.0, 1.0], 0.0),
    "weights of 0, smoothed": ([0, 0, 0], [0.0, 1.0, 1.0], 0.1),
    "all weights 0": ([0, 1, 2], [0.0, 0.0, 0.0], 0.0),
    "all rows ignored": ([-100, -100, -100], None, 0.0),
    "all rows ignored, smoothed": ([-100, -100, -100], [1.0, 2.0, 3.0], 0.1),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", _MASSLESS)
def test_a_mean_over_no_weight_has_no_finite_gradient(name, device):
    """NaN as PyTorch's, so that a loss scale and clipping see it; rows that are ignored have 0."""
    classes, weight, smoothing = _MASSLESS[name]
    values = np.array([[1, 2, 3], [0, 1, 5], [2, 2, 2]], np.float32)
    given = torch.tensor(values, requires_grad=True)
    options = {"label_smoothing": smoothing}
    loss = TF.cross_entropy(given, torch.tensor(classes),
                            None if weight is None else torch.tensor(weight), **options)
    loss.backward()
    target = gt.asarray(np.array(classes), device=device)
    factors = None if weight is None else gt.asarray(np.float32(weight), device=device)

    def ours(x):
        return F.cross_entropy(x, target, factors, **options)

    x = gt.asarray(values, device=device).requires_grad_()
    (recorded,) = gt.func.grad([ours(x)], [x], create_graph=True)
    assert np.isnan(loss.item()) and np.isnan(ours(x).item())
    ours(x).backward()
    batched = gt.func.vmap(gt.func.grad(ours))(gt.stack([x.detach(), x.detach()]))[1]
    for gradient in (x.grad, recorded.detach(), batched.detach()):
        np.testing.assert_allclose(gradient.numpy(), given.grad.numpy())
    moved = gt.func.jvp(ours, (x.detach(),), (gt.ones_like(x),))[1]
    assert np.isnan(moved.item()) == np.isnan(given.grad.numpy()).any()
