"""What no sample of a definition has: sums of halves, and in-place norms in all layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gtensor as gt
import gtensor.nn.functional  # registers its ops
from gtensor.engine.tape.op import registry
from gtensor.ops.conv import paths
from gtensor.testing.compare import close

pytestmark = pytest.mark.gpu


def on_gpu(array: Any) -> Any:
    """An array of the device with this array's values, strides and all."""
    array = np.asarray(array)
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    flipped = tuple(slice(None, None, -1 if stride < 0 else 1) for stride in array.strides)
    dense = np.ascontiguousarray(array[flipped].transpose(order))
    return gt.device("cuda").from_numpy(dense).transpose(np.argsort(order))[flipped]


@pytest.mark.parametrize("value", [300.0, 1e-4])
@pytest.mark.parametrize("name", ["squared_error", "huber_sum"])
def test_sums_of_halves_are_no_halves(name: str, value: float) -> None:
    """Neither are the squares, of which half numbers hold too large ones and too small ones."""
    a, b = on_gpu(np.full(16, value, np.float16)), on_gpu(np.zeros(16, np.float16))
    scale = 1 / (16 * value**2)
    params = {"delta": 1e4, "factor": 1.0} if name == "huber_sum" else {}
    total = registry[name].gpu(a, b, scale=scale, **params)
    assert total.dtype == np.float16
    close("the sum", total, 0.5 if params else 1.0, 2e-3)


@pytest.mark.parametrize(("g", "scale"), [(2000.0, 1e-7), (2.0, 40.0)])
def test_factors_of_gradients_of_halves_are_no_halves(g: float, scale: float) -> None:
    arrays = [on_gpu(np.full(3, value, np.float16)) for value in (g, 3, 1)]
    close("the gradient", registry["squared_error_grad"].gpu(*arrays, scale=scale),
          np.full(3, g * 4 * scale), 2e-3)


def test_weights_of_half_logits_are_no_halves() -> None:
    logits, target = np.array([[8, 0, 0]], np.float16), np.array([0])
    weight, g = np.full(3, 100, np.float16), np.asarray(4096, np.float16)
    options = {"reduction": "sum", "ignore_index": -100, "label_smoothing": 0.0}
    definition, gradient = registry["cross_entropy"], registry["cross_entropy_grad"]
    _, *saved = definition.cpu(logits, target, weight, **options)
    given = g, logits, target, weight, *saved
    wanted = gradient.cpu(*given, **options)
    assert np.isfinite(wanted).all()
    given = gradient.gpu(*map(on_gpu, given), **options)
    close("the gradient", given, wanted, 2e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("shape", "groups"), [
    ((1, 2, 40_000), 1), ((2, 6, 7), 3), ((2, 6, 4, 8), 1), ((3, 8), 2), ((0, 4, 3), 2)])
def test_groups_of_a_block_and_of_several(
    shape: tuple[int, ...], groups: int, dtype: str, rng: np.random.Generator
) -> None:
    """Group norm and its gradients, of strided arrays, too."""
    x, g = (rng.standard_normal((*shape, 2)).astype(dtype)[..., 0] for _ in range(2))
    weight, bias = (rng.standard_normal(shape[1]).astype(dtype) for _ in range(2))
    options = {"groups": groups, "eps": 1e-5}
    definition, gradients = registry["group_norm"], registry["group_norm_grads"]
    wanted = definition.cpu(x, weight, bias, **options)
    found = definition.gpu(*map(on_gpu, (x, weight, bias)), **options)
    loose = 1e-4 if dtype == "float32" else 2e-2
    for a, b in zip(found, wanted, strict=True):
        close("forward", a, b.astype(np.float64), loose)
    options["needs"] = (True, True, True)
    wanted = gradients.cpu(g, x, weight, *wanted[1:], **options)
    found = gradients.gpu(*map(on_gpu, (g, x, weight)), *found[1:], **options)
    for a, b in zip(found, wanted, strict=True):
        close("a gradient", a, b.astype(np.float64), loose)


LAID: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "channels first": np.ascontiguousarray,
    "channels last": lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
    "reversed": lambda a: np.ascontiguousarray(a[:, ::-1])[:, ::-1],
}


@pytest.mark.parametrize("shape", [(3, 5, 7), (4, 8, 16), (2, 1, 9), (6, 4, 1)])
@pytest.mark.parametrize("layout", [*LAID, "strided"])
def test_in_place_norms_take_any_layout(
    shape: tuple[int, ...], layout: str, rng: np.random.Generator
) -> None:
    """z over x and dx over dz, in the layout that they have; dz may have another one."""
    def laid(a: np.ndarray, layout: str) -> Any:
        if layout == "strided":
            return on_gpu(a.repeat(2, axis=0))[::2]
        if layout == "one number":  # as the gradient of a sum
            xp = gt.device("cuda").xp
            return xp.broadcast_to(on_gpu(a[:1, :1, :1]), a.shape)
        return on_gpu(LAID[layout](a))

    c = shape[1]
    weight, bias = rng.uniform(0.5, 1, c), rng.standard_normal(c)
    options = {"training": True, "eps": 1e-5, "activation": "tanh", "parameter": 0.1}
    forward, grad = registry["inplace_abn"], registry["inplace_abn_grad"]
    for theirs in (*LAID, "strided", "one number"):
        x, g = rng.standard_normal(shape), rng.standard_normal(shape)
        if theirs == "one number":
            g = np.broadcast_to(g[:1, :1, :1], shape)
        wanted, mean, var = forward.cpu(x.copy(), weight, bias, None, None, **options)
        expected = grad.cpu(g, wanted, weight, bias, mean, var, **options)
        mine, its = laid(x, layout), laid(g, theirs)
        z, *statistics = forward.gpu(mine, on_gpu(weight), on_gpu(bias), None, None, out=mine,
                                     **options)
        assert z is mine
        for given, value in zip((z, *statistics), (wanted, mean, var), strict=True):
            close(f"forward, {layout}", given, value, 1e-12)
        saved = (z, on_gpu(weight), on_gpu(bias), *map(on_gpu, (mean, var)))
        for given, value in zip(grad.gpu(its, *saved, **options), expected, strict=True):
            close(f"backward, {theirs}", given, value, 1e-12)
        if theirs != "one number":
            dx, *_ = grad.gpu(its, *saved, out=its, **options)
            assert dx is its
            close(f"dx over {theirs}", dx, expected[0], 1e-12)


CONVOLUTIONS = {  # shape of x, of the weight, parameters
    "a product for each image": ((3, 4, 6, 5), (4, 4, 3, 3), {"padding": (1, 1, 1, 1)}),
    "of groups": ((2, 6, 5, 5), (4, 3, 2, 2), {"groups": 2}),
    "images as columns": ((3, 4, 4, 5), (6, 2, 1, 1), {"groups": 2}),
    "few positions": ((3, 4, 4, 4), (4, 4, 2, 2), {"stride": (2, 2)}),
    "one position": ((3, 4, 3, 2), (6, 2, 3, 2), {"groups": 2}),
    "no image": ((0, 2, 4, 4), (3, 2, 1, 1), {}),
}


@pytest.mark.parametrize(("most_weights", "together"), [
    (512, 0), (0, 8 << 20), (0, 0)])  # without columns, with outputs moved with them, or alone
@pytest.mark.parametrize("into", ["new", "added", "strided"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_write_into_any_buffer(
    case: str, into: str, most_weights: int, together: int, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paths, "MOST_WEIGHTS", most_weights)
    monkeypatch.setattr(paths, "MOVED_TOGETHER", together)
    x_shape, weight_shape, given = CONVOLUTIONS[case]
    params = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, **given}
    x, weight = rng.standard_normal(x_shape), rng.standard_normal(weight_shape)
    bias = rng.standard_normal(weight_shape[0])
    y = registry["conv2d"].cpu(x, weight, bias, **params)
    calls = {
        "conv2d": ((x, weight, bias), {}), "conv2d_grad_weight": ((y, x), {
            "kernel": weight_shape[2:]}),
        "conv2d_grad_input": ((y, weight, None), {"size": x_shape[2:]}),
    }
    for name, (inputs, more) in calls.items():
        wanted = registry[name].cpu(*inputs, **params, **more)
        out: dict[str, Any] = {}
        if into != "new":
            before = rng.standard_normal(wanted.shape)
            wanted = wanted + before
            buffer = on_gpu(before.repeat(2, axis=-1))[..., ::2]
            out = {"out": buffer if into == "strided" else on_gpu(before), "beta": 1.0}
        path = gt.device("cuda").path(name, registry[name].gpu)
        result = path(*[None if a is None else on_gpu(a) for a in inputs], **params, **more, **out)
        close(name, result, wanted, 1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(3, 5), (2000, 3), (40, 30, 33), (1, 7, 1)])
def test_sums_over_leading_axes(shape: tuple[int, ...], dtype: str, rng: Any) -> None:
    """They are the same bit for bit over repeats, into a strided buffer, too."""
    x = rng.standard_normal(shape).astype(gt.empty(0, dtype=dtype).dtype)
    axis = tuple(range(-len(shape), -1))
    path = gt.device("cuda").path("sum", registry["sum"].gpu)
    total = path(on_gpu(x), axis=axis)
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    close("the sum", total, x.astype(wide).sum(axis).astype(x.dtype),
          2e-2 if x.itemsize == 2 else 1e-4)
    buffer = on_gpu(np.zeros((shape[-1], 2), x.dtype))[:, 0]
    assert path(on_gpu(x), axis=axis, out=buffer) is buffer
    assert (buffer == total).all() and path(on_gpu(x), axis=axis, keepdims=True).ndim == x.ndim


@pytest.mark.parametrize("weight", [(1.0, -2.0, 0.0), None])
@pytest.mark.parametrize("layout", ["channels first", "channels last"])
def test_in_place_norms_take_weights_of_either_sign(
    layout: str, weight: tuple[float, ...] | None, rng: np.random.Generator
) -> None:
    """On chip and in two launches; the gradient of a weight of 0 is 0."""
    options = {"training": True, "eps": 0.5, "activation": "tanh", "parameter": 0.0,
               "absolute": True}
    x, g = rng.standard_normal((2, 4, 3, 6))
    scale = None if weight is None else np.array(weight)
    shift = rng.standard_normal(3)
    forward, grad = registry["inplace_abn"], registry["inplace_abn_grad"]
    wanted = forward.cpu(x, scale, shift, None, None, **options)
    expected = grad.cpu(g, wanted[0], scale, shift, *wanted[1:], **options)
    given = [None if a is None else on_gpu(a) for a in (scale, shift)]
    found = forward.gpu(on_gpu(LAID[layout](x)), *given, None, None, **options)
    for a, b in zip(found, wanted, strict=True):
        close("forward", a, b, 1e-12)
    for a, b in zip(grad.gpu(on_gpu(LAID[layout](g)), found[0], *given, *found[1:], **options),
                    expected, strict=True):
        close("backward", a, b, 1e-11)
    if scale is not None:
        assert expected[2][2] == 0 and expected[2].any()
