"""Batch norm with and without activation, and layer norm, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare, leaves

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.engine.tape.op import registry
from gtensor.testing.compare import close

ACTIVATIONS: dict[str, tuple[float, Callable[..., Any]]] = {
    "identity": (1.0, lambda y: y),
    "relu": (1.0, TF.relu),
    "leaky_relu": (0.01, lambda y: TF.leaky_relu(y, 0.01)),
    "elu": (0.5, lambda y: TF.elu(y, 0.5)),
    "gelu": (1.0, TF.gelu),
    "gelu_tanh": (1.0, lambda y: TF.gelu(y, approximate="tanh")),
    "silu": (1.0, TF.silu),
    "sigmoid": (1.0, torch.sigmoid),
    "tanh": (1.0, torch.tanh),
    "softplus": (2.0, lambda y: TF.softplus(y, 2.0)),
}
SHAPES = [(5, 3), (2, 3, 5), (3, 4, 3, 2), (2, 1, 2, 2, 3)]


def statistics(rng: np.random.Generator, channels: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal(channels), rng.uniform(0.5, 2.0, channels)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("activation", "shape", "tile"),
    [(name, shape, 65536) for name in ACTIVATIONS for shape in SHAPES[1:3]]
    + [("leaky_relu", shape, tile) for shape in SHAPES for tile in (65536, 7)],
)
def test_batch_norm_and_activation(
    activation: str, training: bool, shape: tuple[int, ...], tile: int, rng: np.random.Generator
) -> None:
    parameter, after = ACTIVATIONS[activation]
    channels = shape[1]
    mean, var = statistics(rng, channels)
    arrays = [
        2 * rng.standard_normal(shape) + 3,
        rng.standard_normal(channels),
        rng.standard_normal(channels),
    ]

    def ours(x: Any, weight: Any, bias: Any) -> Any:
        running = [gt.tensor(a, device="cpu") for a in (mean, var)]
        return F.batch_norm_act(x, *running, weight, bias, training, activation=activation,
                                activation_param=parameter)

    def theirs(x: Any, weight: Any, bias: Any) -> Any:
        running = [torch.tensor(a) for a in (mean, var)]
        return after(TF.batch_norm(x, *running, weight, bias, training))

    with gt.settings.override(tile_elements=tile):
        compare(ours, theirs, arrays, second=tile > 7, tolerance=1e-9)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("given", [("weight",), ("bias",), ()])
def test_batch_norm_without_some(training: bool, given: Any, rng: np.random.Generator) -> None:
    mean, var = statistics(rng, 3)
    arrays = [rng.standard_normal((2, 3, 4)), *(rng.standard_normal(3) for _ in given)]

    def ours(x: Any, *rest: Any) -> Any:
        running = [gt.tensor(a, device="cpu") for a in (mean, var)]
        return F.batch_norm(x, *running, training=training, **dict(zip(given, rest, strict=True)))

    def theirs(x: Any, *rest: Any) -> Any:  # PyTorch has no derivative for a bias without a weight
        y = TF.batch_norm(x, torch.tensor(mean), torch.tensor(var), training=training)
        for name, a in zip(given, rest, strict=True):
            y = y * a[:, None] if name == "weight" else y + a[:, None]
        return y

    compare(ours, theirs, arrays)


def test_running_statistics_are_unbiased_averages_and_outside_the_graph(
    rng: np.random.Generator,
) -> None:
    mean, var = statistics(rng, 3)
    ours = [gt.tensor(a, device="cpu") for a in (mean, var)]
    theirs = [torch.tensor(a) for a in (mean, var)]
    for momentum in (0.1, 1.0, 0.0):
        x = rng.standard_normal((4, 3, 5)) * 3 + 1
        F.batch_norm(gt.tensor(x, device="cpu", requires_grad=True), *ours, training=True,
                     momentum=momentum)
        TF.batch_norm(torch.tensor(x), *theirs, training=True, momentum=momentum)
        for a, b in zip(ours, theirs, strict=True):
            close(f"momentum {momentum}", a, b, 1e-12)
            assert not a.requires_grad
    assert F.batch_norm(gt.tensor(x, device="cpu"), None, None, training=True).shape == x.shape


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mean_far_larger_than_the_deviation(dtype: Any, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((64, 2, 9)) + np.array([3e3, -1e4])[:, None]).astype(dtype)
    y = F.batch_norm(gt.tensor(x, device="cpu"), None, None, training=True)
    wanted = TF.batch_norm(torch.tensor(x.astype(np.float64)), None, None, training=True)
    rounding = 1e4 * np.finfo(dtype).eps  # of the mean
    np.testing.assert_allclose(y.numpy(), wanted.numpy(), atol=rounding)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_have_float32_statistics(dtype: str, rng: np.random.Generator) -> None:
    half = getattr(gt, dtype)
    arrays = [
        a.astype(half)
        for a in (rng.standard_normal((500, 2, 4)) + 5, rng.standard_normal(2),
                  rng.standard_normal(2))
    ]
    ours = leaves(arrays)
    theirs = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in arrays]
    running = [gt.zeros(2, device="cpu"), gt.ones(2, device="cpu")]
    y = F.batch_norm_act(ours[0], *running, *ours[1:], training=True)
    wanted = TF.leaky_relu(TF.batch_norm(theirs[0], None, None, *theirs[1:], training=True))
    g = rng.standard_normal(y.shape).astype(half)
    y.backward(gt.tensor(g, device="cpu"))
    wanted.backward(torch.tensor(g.astype(np.float64)))
    rtol = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert y.dtype == half and running[0].dtype == gt.float32
    np.testing.assert_allclose(y.numpy().astype(np.float64), wanted.detach().numpy(), rtol=2 * rtol,
                               atol=2 * rtol)
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None and a.grad.dtype == half
        np.testing.assert_allclose(a.grad.numpy().astype(np.float64), b.grad.numpy(), rtol=4 * rtol,
                                   atol=8 * rtol)


def test_batch_norm_saves_its_input_and_two_numbers_per_channel() -> None:
    x = gt.tensor(np.arange(24.0).reshape(2, 3, 4), device="cpu", requires_grad=True)
    y = F.batch_norm_act(x, None, None, training=True)
    saved = [a for a in y._node.saved if a is not None]
    assert sum(a.shape == x.shape for a in saved) == 1 and saved[0] is x._array
    assert all(a.shape == (3,) for a in saved[1:])


def test_running_statistics_get_gradients_in_evaluation(rng: np.random.Generator) -> None:
    arrays = [
        rng.standard_normal((2, 3, 4)),
        *statistics(rng, 3),
        rng.standard_normal(3),
        rng.standard_normal(3),
    ]

    def reference(x: Any, mean: Any, var: Any, weight: Any, bias: Any) -> Any:
        kept = (1, 3, 1)
        xhat = (x - mean.reshape(kept)) / torch.sqrt(var.reshape(kept) + 1e-5)
        return TF.silu(xhat * weight.reshape(kept) + bias.reshape(kept))

    compare(lambda *t: F.batch_norm_act(*t, activation="silu"), reference, arrays)


X = np.zeros((2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, c: F.batch_norm(x, None, None), ValueError,
         "no running_mean or no running_var outside"),
        (lambda x, c: F.batch_norm(x, c, x[0, 0]), ValueError,
         r"running_var of shape \(4,\) .* \(3,\)"),
        (lambda x, c: F.batch_norm(x, c, c, c[:2]), ValueError, r"a weight of shape \(2,\)"),
        (lambda x, c: F.batch_norm(x[0, 0], c, c), ValueError,
         r"shape \(4,\); wanted \(N, C, ...\)"),
        (lambda x, c: F.batch_norm(x[:1, :, :1], c, c, training=True), ValueError,
         "more than one value"),
        (lambda x, c: F.batch_norm(x, c, c, c.astype("float64")), TypeError,
         "weight of dtype float64"),
        (lambda x, c: F.batch_norm_act(x, c, c, activation="cube"), ValueError,
         "activation='cube'; wanted"),
        (lambda x, c: F.batch_norm_act(x, c, c, activation_param=0), ValueError,
         "activation_param=0 for"),
        (lambda x, c: F.layer_norm(x, 3), ValueError,
         r"normalized_shape=\(3,\) for .* \(2, 3, 4\)"),
        (lambda x, c: F.layer_norm(x, ()), ValueError, r"normalized_shape=\(\)"),
        (lambda x, c: F.layer_norm(x, 4, c), ValueError,
         r"a weight of shape \(3,\); wanted \(4,\)"),
        (lambda x, c: F.layer_norm(x.astype("int64"), 4), TypeError, "input of dtype int64"),
    ],
)
def test_messages(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(gt.tensor(X, device="cpu"), gt.ones(3, device="cpu"))


@pytest.mark.parametrize("columns", [60, 300, 5000])  # rows that share a parameter, and long ones
@pytest.mark.parametrize("mean", [0.0, 50.0])  # near 0, where x is not centred, and far
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_layer_norm_of_tiles_that_fill_the_cache(
    columns: int, mean: float, dtype: str, rng: np.random.Generator
) -> None:
    x = (rng.standard_normal((180000 // columns, columns)) + mean).astype(dtype)
    g, weight, bias = (rng.standard_normal(s).astype(dtype) for s in (x.shape, columns, columns))
    ours = [gt.tensor(a, device="cpu", requires_grad=True) for a in (x, weight, bias)]
    theirs = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in (x, weight, bias)]
    y = F.layer_norm(ours[0], (columns,), *ours[1:])
    wanted = TF.layer_norm(theirs[0], (columns,), *theirs[1:])
    y.backward(gt.tensor(g, device="cpu"))
    wanted.backward(torch.tensor(g.astype(np.float64)))
    loose = {"float16": 2e-3, "float32": 1e-6, "float64": 2e-15}[dtype] * (1 + mean)
    for a, b in ((y, wanted), *((p.grad, q.grad) for p, q in zip(ours, theirs, strict=True))):
        size = np.sqrt(x.shape[0]) if a.ndim == 1 else 1  # of a sum over rows
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=4 * loose,
                                   atol=4 * loose * size)
    assert np.getbufsize() == 8192  # a path's setting ends with it


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("shape", [(3, 5), (4, 32, 128), (40, 300), (2, 2, 5)])
@pytest.mark.parametrize("far", [False, True])
@gt.settings.override(compiled=0)  # what kernels in C do is not prepared
def test_what_captured_steps_prepare_has_the_same_bits(
    kind: str, shape: tuple[int, ...], far: bool, rng: np.random.Generator
) -> None:
    """For rows of one tile with mean near 0 and far from it, with and without parameters."""
    def fact(a: Any) -> Any:
        return a if a is None else SimpleNamespace(
            shape=a.shape, dtype=a.dtype, contiguous=a.flags.c_contiguous)

    forward, grads = registry[kind].cpu, registry[f"{kind}_grads"].cpu
    served = 0
    for dtype, some in product(("f4", "f8", "f2"), (False, True)):
        x, g = ((rng.standard_normal(shape) + 50 * far).astype(dtype) for _ in range(2))
        parameters = [rng.standard_normal(shape[-1]).astype(dtype) if some else None
                      for _ in range(1 + (kind == "layer_norm"))]
        options = {"dims": 1, "eps": 1e-5}
        run = forward.prepare(*map(fact, (x, *parameters)), **options)
        kept = forward(x, *parameters, **options)
        given = (x, parameters[0], *kept[1:])
        served += run is not None
        if run is not None:
            for _ in range(2):
                assert same(run(x, *parameters, **options), kept)
        for beta in (None, 0.0, 1.0):
            more = options | {"needs": (True, True, some and kind == "layer_norm")}
            outs = [{} if beta is None else {"out": g.copy(), "beta": beta} for _ in range(3)]
            run = grads.prepare(*map(fact, (g, *given)), **more, **outs[0])
            served += run is not None
            wanted = grads(g, *given, **more, **outs[0])
            if run is not None:
                assert same(run(g, *given, **more, **outs[1]), wanted)
            if beta == 0:  # the gradient's own memory
                assert same(grads(outs[2]["out"], *given, **more, **outs[2]), wanted)
    assert served == 16  # all of float32 and float64


def same(found: Any, wanted: Any) -> bool:
    return all(a is b is None or a.tobytes() == b.tobytes() and a.shape == b.shape
               for a, b in zip(found, wanted, strict=True))
