"""Softmax, its logarithm, and the losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare, compare_functional, leaves

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.testing.compare import close

SOFTMAXES = {
    "softmax": (F.softmax, torch.softmax),
    "log_softmax": (F.log_softmax, torch.log_softmax),
}


@pytest.mark.parametrize("name", SOFTMAXES)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((5,), 0),
        ((4, 6), 1),
        ((4, 6), 0),
        ((3, 1, 4), 1),
        ((2, 3, 4, 5), -3),
        ((0, 3), 1),
        ((3, 0), 0),
        ((1, 9), -1),
    ],
)
@pytest.mark.parametrize("tile", [65536, 4])
def test_softmax(
    name: str, shape: tuple[int, ...], dim: int, tile: int, rng: np.random.Generator
) -> None:
    function, reference = SOFTMAXES[name]
    with gt.settings.override(tile_elements=tile):
        compare(lambda x: function(x, dim), lambda x: reference(x, dim),
                [3 * rng.standard_normal(shape)])


@pytest.mark.parametrize("name", SOFTMAXES)
@pytest.mark.parametrize("columns", [100, 300, 9000])  # broadcast with copies, without; added up
@pytest.mark.parametrize("special", [None, 200.0, -np.inf, np.nan])  # in one row of the first tile
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_softmax_of_tiles_that_fill_the_cache(
    name: str, columns: int, special: float | None, dtype: str, rng: np.random.Generator
) -> None:
    function, reference = SOFTMAXES[name]
    x = rng.standard_normal((180000 // columns, columns)).astype(dtype)
    g = rng.standard_normal(x.shape).astype(dtype)
    if special is not None:
        x[3, :columns // 2] = special
        x[4] = special if special == -np.inf else x[4]
    ours, theirs = gt.tensor(x, device="cpu", requires_grad=True), torch.tensor(
        x.astype(np.float64), requires_grad=True)
    y, wanted = function(ours, 1), reference(theirs, 1)
    y.backward(gt.tensor(g, device="cpu"))
    wanted.backward(torch.tensor(g.astype(np.float64)))
    loose = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-14}[dtype]
    for a, b in ((y, wanted), (ours.grad, theirs.grad)):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=loose, atol=loose)
    assert np.getbufsize() == 8192  # a path's setting ends with it


@pytest.mark.parametrize("name", SOFTMAXES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_softmax_of_extreme_rows(name: str, dtype: str) -> None:
    function, reference = SOFTMAXES[name]
    rows = np.array(
        [
            [6e4, -6e4, 6e4],
            [-np.inf, 1.0, 2.0],
            [-np.inf, -np.inf, -np.inf],
            [np.inf, 0.0, 1.0],
            [np.nan, 0.0, 1.0],
            [1e-4, 0.0, 0.0],
        ]
    )
    x = gt.tensor(rows, device="cpu").astype(getattr(gt, dtype))
    y = function(x, 1)
    wanted = reference(torch.tensor(x.numpy().astype(np.float64)), 1).numpy()
    with np.errstate(over="ignore"):
        wanted = wanted.astype(x.dtype).astype(np.float64)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(
        y.numpy().astype(np.float64), wanted,
        rtol={"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}[dtype])


def test_softmax_of_many_half_values_adds_up_in_float32() -> None:
    y = F.softmax(gt.zeros((1, 10000), gt.float16, "cpu"), 1)
    assert y.numpy()[0, 0] == np.float16(1e-4)


# -- cross entropy ---------------------------------------------------------------------------------

SHAPES = [
    ((6, 4), (6,)),
    ((2, 5, 3), (2, 3)),
    ((2, 3, 2, 4), (2, 2, 4)),
    ((4,), ()),
    ((1, 1), (1,)),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize(("shape", "target_shape"), SHAPES)
@pytest.mark.parametrize("tile", [65536, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(
    reduction: str, smoothing: float, shape: Any, target_shape: Any, tile: int, weighted: bool,
    rng: np.random.Generator
) -> None:
    classes = shape[min(1, len(shape) - 1)]
    weight = rng.uniform(0.2, 2.0, classes) if weighted else None
    target = rng.integers(0, classes, target_shape)
    if target.ndim:
        target.flat[0] = 2 if classes > 2 else -100  # ignored, once by an index that is a class
    options: dict[str, Any] = {
        "ignore_index": 2 if classes > 2 else -100,
        "reduction": reduction,
        "label_smoothing": smoothing,
    }
    ours, theirs = gt.tensor(target, device="cpu"), torch.tensor(target)
    if not (target != options["ignore_index"]).any():
        ours, theirs = ours * 0, theirs * 0
    my_weight, their_weight = (None if weight is None else kind(weight)
                               for kind in (gt.tensor, torch.tensor))
    with gt.settings.override(tile_elements=tile):
        compare(lambda x: F.cross_entropy(x, ours, my_weight, **options),
                lambda x: TF.cross_entropy(x, theirs, their_weight, **options),
                [2 * rng.standard_normal(shape)])


@pytest.mark.parametrize("function", ["cross_entropy", "nll_loss"])
def test_all_rows_ignored(function: str) -> None:
    x, target = np.ones((3, 2)), np.full(3, -100)
    for reduction in ("mean", "sum", "none"):
        (ours,), theirs = leaves([x]), torch.tensor(x, requires_grad=True)
        with np.errstate(invalid="ignore"):
            loss = getattr(F, function)(ours, gt.tensor(target, device="cpu"), reduction=reduction)
        wanted = getattr(TF, function)(theirs, torch.tensor(target), reduction=reduction)
        close(reduction, loss, wanted, 1e-12)
        if reduction == "mean":
            assert np.isnan(loss.item())
            continue
        loss.sum().backward()
        assert ours.grad.numpy().tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_cross_entropy_of_large_logits(dtype: str, rng: np.random.Generator) -> None:
    x = gt.tensor(rng.standard_normal((50, 300)) * 40, device="cpu").astype(getattr(gt, dtype))
    target = rng.integers(0, 300, 50)
    leaf = x.detach().requires_grad_()
    loss = F.cross_entropy(leaf, gt.tensor(target, device="cpu"))
    wide = torch.tensor(x.numpy().astype(np.float64), requires_grad=True)
    wanted = TF.cross_entropy(wide, torch.tensor(target))
    rtol = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}[dtype]
    np.testing.assert_allclose(float(loss.item()), wanted.item(), rtol=rtol)
    loss.backward()
    wanted.backward()
    assert leaf.grad is not None and leaf.grad.dtype == x.dtype
    np.testing.assert_allclose(leaf.grad.numpy().astype(np.float64), wide.grad.numpy(), rtol=rtol,
                               atol=1e-6)


def test_what_cross_entropy_saves() -> None:
    x = gt.tensor(np.ones((3, 4)), device="cpu", requires_grad=True)
    loss = F.cross_entropy(x, gt.tensor([0, 1, 2], device="cpu"))
    logits, target, weight, largest, total, count = loss._node.saved
    assert logits is x._array and weight is None and count == 3
    assert largest.shape == total.shape == target.shape == (3,)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("shape", "target_shape"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss(
    reduction: str, shape: Any, target_shape: Any, weighted: bool, rng: np.random.Generator
) -> None:
    classes = shape[min(1, len(shape) - 1)]
    target = rng.integers(0, classes, target_shape)
    if target.size > 1:
        target.flat[1] = -5
    weight = rng.uniform(0.2, 2.0, classes)
    ours, theirs = ((kind(target), kind(weight) if weighted else None)
                    for kind in (gt.tensor, torch.tensor))
    compare(lambda x: F.nll_loss(x, *ours, ignore_index=-5, reduction=reduction),
            lambda x: TF.nll_loss(x, *theirs, ignore_index=-5, reduction=reduction),
            [rng.standard_normal(shape)])


@pytest.mark.parametrize("extra", [(), (2,)])
@pytest.mark.parametrize(("target", "weight"), [
    ([-100, -100], None), ([-100, -100], [1.0, 2.0, 3.0]), ([1, -100], [1.0, 0.0, 0.0]),
    ([0, -100], [0.0, 0.0, 0.0]),
])
def test_nll_loss_gives_ignored_rows_no_gradient(target: Any, weight: Any, extra: Any) -> None:
    """Not even NaN, where the mean is over nothing."""
    rows = np.broadcast_to(np.reshape(target, (2, *(1,) * len(extra))), (2, *extra)).copy()
    x = np.zeros((2, 3, *extra))
    ours, theirs = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    loss = F.nll_loss(ours, gt.tensor(rows), weight and gt.tensor(weight, gt.float64))
    wanted = TF.nll_loss(theirs, torch.tensor(rows), weight and torch.tensor(weight).double())
    loss.backward()
    wanted.backward()
    np.testing.assert_equal(loss.item(), wanted.item())
    np.testing.assert_array_equal(ours.grad.numpy(), theirs.grad.numpy())


def test_nll_loss_ignores_what_is_infinite() -> None:
    x = gt.tensor([[-np.inf, -1.0], [-2.0, -3.0]], device="cpu")
    assert F.nll_loss(x, gt.tensor([0, 1], device="cpu"), ignore_index=0).item() == 3.0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (), (2, 0)])
def test_mse_loss(reduction: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    if shape == (2, 0) and reduction == "mean":
        x = gt.zeros(shape, device="cpu")
        assert np.isnan(F.mse_loss(x, x).item())
        return
    compare_functional(lambda f, a, b: f.mse_loss(a, b, reduction=reduction),
                       [rng.standard_normal(shape), rng.standard_normal(shape)])


# -- weights and probabilities ---------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(6, 4), (2, 5, 3), (2, 3, 2, 4), (4,)])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_probabilities(
    reduction: str, smoothing: float, shape: Any, weighted: bool, rng: np.random.Generator
) -> None:
    classes = shape[min(1, len(shape) - 1)]
    weight = rng.uniform(0.2, 2.0, classes)
    ours, theirs = (
        ({"weight": kind(weight)} if weighted else {})
        for kind in (lambda a: gt.tensor(a, device="cpu"), torch.tensor)
    )
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    with gt.settings.override(tile_elements=7):
        compare(lambda x, t: F.cross_entropy(x, t, **ours, **options),
                lambda x, t: TF.cross_entropy(x, t, **theirs, **options),
                [2 * rng.standard_normal(shape), rng.uniform(0.1, 1, shape)])


LOGITS, TARGET = np.zeros((4, 3), np.float32), np.array([0, 1, 2, 0])


@pytest.mark.parametrize("function", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize(
    ("logits", "target", "options", "error", "message"),
    [
        (LOGITS, TARGET + 1, {}, ValueError,
         r"was given the target 3; wanted 0 to 2, or -100 to ignore it"),
        (LOGITS, TARGET - 1, {"ignore_index": 5}, ValueError,
         r"the target -1; wanted 0 to 2, or 5"),
        (LOGITS, TARGET[:3], {}, ValueError,
         r"targets of shape \(3,\) for scores of shape \(4, 3\)"),
        (LOGITS, TARGET.astype(np.float32), {}, TypeError,
         "targets of dtype float32; wanted integer"),
        (TARGET, TARGET, {}, TypeError, "input of dtype int64; wanted one floating-point dtype"),
        (LOGITS, TARGET, {"reduction": "median"}, ValueError,
         "reduction='median'; wanted one of 'none', 'mean', 'sum'"),
        (LOGITS[0, 0], TARGET, {}, ValueError,
         r"scores of shape \(\); wanted \(C,\) or \(N, C, ...\)"),
    ],
)
def test_messages(
    function: str, logits: Any, target: Any, options: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=f"{function} was given .*{message}|{message}"):
        getattr(F, function)(gt.tensor(logits, device="cpu"), gt.tensor(target, device="cpu"),
                             **options)


def test_more_messages() -> None:
    x = gt.tensor(LOGITS, device="cpu")
    with pytest.raises(ValueError, match="label_smoothing=2; wanted a number from 0 to 1"):
        F.cross_entropy(x, gt.tensor(TARGET, device="cpu"), label_smoothing=2)
    with pytest.raises(ValueError,
                       match=r"an input of shape \(4, 3\) and a target of shape \(3,\)"):
        F.mse_loss(x, x[0])
    with pytest.raises(TypeError,
                       match="input of dtype float32, target of dtype float64; wanted one"):
        F.mse_loss(x, x.astype(gt.float64))
