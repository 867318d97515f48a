"""Activations and erf: values at special points, derivatives, what they save."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare, compare_functional

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.engine.tape.op import registry
from gtensor.ops.define.cpu_tiles import row_maxima

CASES: dict[str, tuple[Any, Any]] = {
    "relu": (F.relu, TF.relu),
    "leaky_relu": (F.leaky_relu, TF.leaky_relu),
    "leaky_relu of slope 1.5": (lambda x: F.leaky_relu(x, 1.5), lambda x: TF.leaky_relu(x, 1.5)),
    "leaky_relu of slope 0": (lambda x: F.leaky_relu(x, 0.0), lambda x: TF.leaky_relu(x, 0.0)),
    "leaky_relu of slope -0.3": (lambda x: F.leaky_relu(x, -0.3), lambda x: TF.leaky_relu(x, -0.3)),
    "elu": (F.elu, TF.elu),
    "elu of alpha 0.3": (lambda x: F.elu(x, 0.3), lambda x: TF.elu(x, 0.3)),
    "elu of alpha -0.3": (lambda x: F.elu(x, -0.3), lambda x: TF.elu(x, -0.3)),
    "gelu": (F.gelu, TF.gelu),
    "gelu by tanh": (lambda x: F.gelu(x, "tanh"), lambda x: TF.gelu(x, approximate="tanh")),
    "silu": (F.silu, TF.silu),
    "sigmoid": (F.sigmoid, torch.sigmoid),
    "tanh": (F.tanh, torch.tanh),
    "softplus": (F.softplus, TF.softplus),
    "softplus of beta 2": (lambda x: F.softplus(x, 2.0, 3.0), lambda x: TF.softplus(x, 2.0, 3.0)),
    "erf": (F.erf, torch.erf),
    "mish": (F.mish, TF.mish),
    "logsigmoid": (F.logsigmoid, TF.logsigmoid),
    "softsign": (F.softsign, TF.softsign),
    "selu": (F.selu, TF.selu),
    "hardtanh": (lambda x: F.hardtanh(x, -1.5, 0.4), lambda x: TF.hardtanh(x, -1.5, 0.4)),
    "relu6": (F.relu6, TF.relu6),
    # PyTorch has its gradient with a sixth in single precision, and no second order
    "hardsigmoid": (F.hardsigmoid, lambda x: TF.relu6(x + 3) / 6),
    "hardswish": (F.hardswish, TF.hardswish),
}
COMPOSED = ("leaky_relu of slope -0.3", "elu of alpha -0.3")  # of other ops
SAVED = {
    "relu": "out",
    "leaky_relu": "out",
    "elu": "out",
    "sigmoid": "out",
    "tanh": "out",
    "gelu": "x",
    "silu": "x",
    "softplus": "x",
    "erf": "x",
    "mish": "x",
    "logsigmoid": "x",
    "selu": "out",
    "hardtanh": "out",
    "hardswish": "x",
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(7,), (3, 4, 2), (0, 3), ()])
def test_values_and_derivatives(
    name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    function, reference = CASES[name]
    x = 2 * rng.standard_normal(shape)
    compare(function, reference, [np.asarray(np.where(np.abs(x) < 0.05, 0.3, x))])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values(name: str, dtype: Any) -> None:
    function, reference = CASES[name]
    values = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 700.0, -700.0, 88.8, -104.0, 20.0], dtype
    )
    if "slope 0" in name or name in COMPOSED:
        values = values[np.isfinite(values)]  # 0 * infinity is PyTorch's answer there
    if "gelu" in name:
        values = values[values != np.inf]  # PyTorch's answer depends on the processor
    with np.errstate(invalid="ignore"):  # of x * 0 at -infinity: NaN in PyTorch, too
        y = function(gt.tensor(values, device="cpu")).numpy()
    wanted = reference(torch.tensor(values)).numpy()
    np.testing.assert_allclose(y, wanted, rtol=1e-6 if dtype == np.float32 else 1e-13, atol=1e-37)


@pytest.mark.parametrize(
    "name", ["relu", "leaky_relu", "elu", "sigmoid", "gelu", "silu", "softplus"]
)
def test_gradient_of_infinite_and_nan_upstream_is_zero_only_where_it_is_cut(name: str) -> None:
    function, reference = CASES[name]
    x = np.array([-2.0, 3.0, -1.0, 2.0])
    g = np.array([np.inf, 1.0, np.nan, np.nan])
    ours, theirs = (
        gt.tensor(x, device="cpu", requires_grad=True),
        torch.tensor(x, requires_grad=True),
    )
    function(ours).backward(gt.tensor(g, device="cpu"))
    reference(theirs).backward(torch.tensor(g))
    assert ours.grad is not None
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy())


def test_gelu_slope_is_exact_in_the_tails() -> None:
    values = np.array([-np.inf, -30.0, -6.0, 6.0, 30.0, np.inf, np.nan], np.float32)
    x = gt.tensor(values, device="cpu", requires_grad=True)
    F.gelu(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), [0, 0, 0, 1, 1, 1, np.nan])


@pytest.mark.parametrize("name", SAVED)
def test_saves(name: str) -> None:
    x = gt.tensor([0.5, -1.0], device="cpu", requires_grad=True)
    y = CASES[name][0](x)
    (saved,) = y._node.saved
    assert saved is (y._array if SAVED[name] == "out" else x._array)


@pytest.mark.parametrize(("shape", "dim"), [((6,), 0), ((3, 4), 1), ((4, 3), -2), ((0, 2), 1)])
def test_glu(shape: tuple[int, ...], dim: int, rng: np.random.Generator) -> None:
    compare_functional(lambda f, x: f.glu(x, dim), [rng.standard_normal(shape)])


@pytest.mark.parametrize(
    ("shape", "weights"), [((7,), 1), ((2, 3), 3), ((2, 3, 4), 3), ((2, 3, 4), 1), ((), 1)]
)
def test_prelu(shape: tuple[int, ...], weights: int, rng: np.random.Generator) -> None:
    arrays = [np.asarray(rng.standard_normal(shape)), rng.standard_normal(weights)]
    compare(F.prelu, TF.prelu, arrays)


def test_softmax_wants_a_dim_and_takes_a_dtype() -> None:
    x = gt.tensor([1.0, 2.0], device="cpu").astype(gt.float16)
    for function in (F.softmax, F.log_softmax):
        with pytest.raises(TypeError, match="dim=None; wanted the axis whose values add up to 1"):
            function(x)
        assert function(x, 0, dtype=gt.float64).dtype == gt.float64


def test_relu_keeps_integers() -> None:
    y = F.relu(gt.tensor(np.array([-3, 0, 4]), device="cpu"))
    assert y.dtype == gt.int64 and y.tolist() == [0, 0, 4]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in COMPOSED])
def test_half_types_are_computed_in_float32(
    name: str, dtype: str, rng: np.random.Generator
) -> None:
    function, reference = CASES[name]
    half = getattr(gt, dtype)
    x = gt.tensor(3 * rng.standard_normal(1000), device="cpu").astype(half)
    y = function(x)
    wide = reference(torch.tensor(x.numpy().astype(np.float32)))
    assert y.dtype == half
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    np.testing.assert_allclose(
        y.numpy().astype(np.float32), wide.numpy(), rtol=1.01 * rounding, atol=1e-6
    )


@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 3.5), (np.float64, 3.5)])
def test_erf_is_within_some_units_in_the_last_place(dtype: Any, most: float) -> None:
    x = np.concatenate(
        [np.linspace(-7, 7, 40001), np.geomspace(1e-30, 1, 4001), np.geomspace(-1e-300, -1e-3, 101)]
    ).astype(dtype)
    wanted = np.array([math.erf(float(v)) for v in x])
    with np.errstate(under="ignore"):
        error = np.abs(registry["erf"].cpu(x).astype(np.float64) - wanted)
    assert (
        error / np.spacing(np.abs(wanted).astype(dtype).clip(np.finfo(dtype).tiny))
    ).max() <= most


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: F.gelu(x, "fast"), "gelu was given approximate='fast'; wanted 'none' or 'tanh'"),
        (lambda x: F.softplus(x, 0.0), "softplus was given beta=0.0; wanted a positive number"),
        (lambda x: F.softmax(x, 2), "softmax along axis 2 of a tensor of 1 dimensions"),
        (lambda x: F.hardtanh(x, 1.0, 0.5), "min_val=1.0 and max_val=0.5; wanted min_val <= max"),
        (lambda x: F.glu(x), "glu was given 1 elements along axis -1; wanted an even number"),
        (lambda x: F.prelu(x, gt.ones(2)), r"a weight of shape \(2,\) .*; wanted \(1,\) or \(1,\)"),
    ],
)
def test_messages(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(gt.tensor([1.0], device="cpu"))


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("name", ("erf", "logsigmoid", "hardswish", "selu", "softsign"))
def test_one_half_alone_is_computed_in_float32(name: str, dtype: str) -> None:
    """A 0-d half was computed as a half: erf(-3) gave NaN, its polynomial overflowed."""
    x = gt.astype(gt.linspace(-4, 4, 33), getattr(gt, dtype))
    many = registry[name](x)
    for i in range(33):
        assert registry[name](x[i]).item() == many[i].item(), x[i]


_DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", _DEVICES)
@pytest.mark.parametrize("name", ["hardswish", "hardsigmoid", "hardtanh", "relu6", "relu", "elu"])
def test_slopes_at_kinks_are_pytorchs(name, device):
    """In all three ways to the slope: backward, recorded and forward."""
    values = np.array([-3.0, -1.0, 0.0, 1.0, 3.0, 6.0], np.float32)
    given = torch.tensor(values, requires_grad=True)
    getattr(TF, name)(given).sum().backward()
    function = getattr(F, name)
    x = gt.asarray(values, device=device).requires_grad_()
    (recorded,) = gt.func.grad([function(x).sum()], [x], create_graph=True)
    function(x).sum().backward()
    forward = gt.func.jvp(function, (x.detach(),), (gt.ones_like(x),))[1]
    for slope in (x.grad, recorded.detach(), forward.detach()):
        np.testing.assert_allclose(slope.numpy(), given.grad.numpy(), rtol=1e-6)


_SAVED_BY_OUTPUT = {
    "elu": (F.elu, TF.elu), "elu of alpha 0.3": (lambda x: F.elu(x, 0.3), lambda x: TF.elu(x, 0.3)),
    "selu": (F.selu, TF.selu), "relu": (F.relu, TF.relu),
    "leaky_relu": (F.leaky_relu, TF.leaky_relu), "relu6": (F.relu6, TF.relu6),
    "hardtanh": (lambda x: F.hardtanh(x, -0.3, 0.1), lambda x: TF.hardtanh(x, -0.3, 0.1)),
}


@pytest.mark.parametrize("device", _DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", _SAVED_BY_OUTPUT)
def test_slopes_of_half_types_lose_nothing_to_a_rounded_output(name, dtype, device):
    """Within a rounding of the exact slope; in bfloat16 elu's output at -6 is -1."""
    ours, theirs = _SAVED_BY_OUTPUT[name]
    small = np.logspace(-6, 0, 40)
    values = np.concatenate([np.linspace(-12, 12, 301), small, -small, [0.1, -0.3]])
    x = gt.asarray(values, dtype=dtype, device=device).requires_grad_()
    ours(x).sum().backward()
    exact = torch.tensor(x.detach().numpy().astype(np.float64), requires_grad=True)
    theirs(exact).sum().backward()
    eps, least = (2.0**-10, 2.0**-24) if dtype == "float16" else (2.0**-7, 0)
    np.testing.assert_allclose(
        x.grad.numpy().astype(np.float64), exact.grad.numpy(), rtol=eps, atol=least)


@pytest.mark.parametrize("columns", [3, 64, 100, 192, 320])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_maxima_of_rows(columns: int, dtype: str, rng: np.random.Generator) -> None:
    """Whatever finds them: ties, infinities and NaN are NumPy's."""
    rows = rng.integers(-3, 3, (2, 60, columns)).astype(dtype)
    for value in (np.inf, -np.inf, np.nan):
        rows[rng.integers(0, 2, 9), rng.integers(0, 60, 9), rng.integers(0, columns, 9)] = value
    rows[1, 7] = -np.inf
    np.testing.assert_array_equal(row_maxima(rows), rows.max(axis=-1, keepdims=True))
