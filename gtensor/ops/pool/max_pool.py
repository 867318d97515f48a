"""Max pooling over two axes: the op, its adjoint and the adjoint's adjoint are ops."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import compiled, host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import flat_launch, raw
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, distinct
from gtensor.ops.arrange.shape import first_tangent
from gtensor.ops.conv.convolution import on_images
from gtensor.ops.conv.direct import DTYPES, readable
from gtensor.ops.conv.paths import Pair
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import in_channels
from gtensor.ops.define.cpu_tiles import computed_in, masked
from gtensor.ops.define.path_builders import once, placed, settled
from gtensor.ops.define.pointwise import zero_tangent
from gtensor.ops.pool.windows import (
    Single,
    Windows,
    adjoint_gpu,
    plane_scratch,
    planes,
    sizes,
    window_arguments,
    window_params,
    windows,
)

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

# In narrower rows of windows NumPy's steps over whole tiles are faster than those of kernels.
FEWEST_COLUMNS = 8

# -- max pooling ---------------------------------------------------------------------------------


def _max_pool_cpu(x: Array, *, out: Array | None = None, **params: Any) -> tuple[Array, Array]:
    w = windows(x.shape[2:], **params)
    shape = (*x.shape[:2], *w.out)
    if out is None:
        out = host().empty(shape, x.dtype, "max_pool2d")
    places = host().empty(shape, np.int32, "max_pool2d")
    if w.out[1] >= FEWEST_COLUMNS and readable(x, out):
        _run("max_pool", (x, out, places, _first_places(w)),
             (*w.size, *w.out, *w.kernel, *w.stride, *w.padding, *w.dilation))
        return out, places
    places[...] = _first_places(w)
    out[...] = -np.inf
    taps = [(target, source, _tap_places(w, i, j)) for (i, j), target, source in w.taps()]
    scratch = plane_scratch(x.shape, x.dtype, w.out)
    for tile in planes(x.shape):
        plane, best, place = x[tile], out[tile], places[tile]
        value = scratch(0, best.shape)  # dense: only the copy from x moves in small steps
        for target, source, index in taps:
            if (target[0].stop - target[0].start, target[1].stop - target[1].start) != w.out:
                value[...] = -np.inf  # in the padding, which never wins
            value[..., *target] = plane[..., *source]
            better = value > best
            better |= value != value  # NaN wins, the last one of a window as in PyTorch
            np.maximum(best, value, out=best)
            change = place ^ index
            change &= np.negative(better.view(np.int8))  # all bits, or none
            place ^= change
    return out, places


def _run(name: str, arrays: tuple[Array, ...], numbers: tuple[int, ...]) -> None:
    """A kernel of kernels/cpu/pool.c over all planes."""
    first = arrays[0]
    kernel = compiled.kernel(f"{name}_{DTYPES[first.dtype]}")
    assert kernel is not None
    compiled.run(kernel, arrays, numbers, (), first.shape[0] * first.shape[1],
                 quiet=compiled.ALL)  # comparisons with NaN raise flags


def _tap_places(w: Windows, i: int, j: int) -> np.ndarray:
    """The flat index in the plane that tap (i, j) of each window reads (if it lies inside)."""
    rows = np.arange(w.out[0], dtype=np.int32) * w.stride[0] + (i * w.dilation[0] - w.padding[0])
    columns = np.arange(w.out[1], dtype=np.int32) * w.stride[1] + (j * w.dilation[1] - w.padding[1])
    return (rows[:, None] * w.size[1] + columns).astype(np.int32)


def _first_places(w: Windows) -> np.ndarray:
    """The flat index of each window's first tap inside: the place where all are -infinity."""
    starts = []
    for axis in (0, 1):
        start = np.arange(w.out[axis]) * w.stride[axis] - w.padding[axis]
        missing = -(np.minimum(start, 0) // w.dilation[axis])
        starts.append(start + missing * w.dilation[axis])
    return (starts[0][:, None] * w.size[1] + starts[1]).astype(np.int32)


def _max_unpool_cpu(
    g: Array, places: Array, *, size: Pair, out: Array | None = None, beta: float = 0.0,
    **params: Any,
) -> Array:
    w = windows(size, **params)
    shape = (*g.shape[:2], *size)
    if out is None:
        out = host().empty(shape, g.dtype, "max_pool2d_grad")
        beta = 0.0
    if readable(g, out) and places.dtype == np.int32 and places.flags.c_contiguous:
        _run("max_unpool", (g, places, out), (prod(w.out), prod(size), bool(beta)))
        return out
    work = computed_in(g.dtype)
    wide = plane_scratch(shape, work) if work != g.dtype else None
    taps = [(target, source, _tap_places(w, i, j)) for (i, j), target, source in w.taps()]
    for tile in planes(shape):
        total = out[tile] if wide is None else wide(0, out[tile].shape)
        if wide is not None or not beta:
            total[...] = out[tile] if beta else 0
        grad, place = g[tile], places[tile]
        for target, source, index in taps:
            total[..., *source] += masked(grad, place == index)[..., *target]
        if wide is not None:
            out[tile] = total
    return out


def _max_pick(
    device: Device, x: Array, places: Array, *, out: Array | None = None, **params: Any
) -> Array:
    """x at the places of the maxima."""
    if out is None:
        out = device.empty(places.shape, x.dtype, "max_pool2d_pick")
    for tile in planes(x.shape) if device.type == "cpu" else [(slice(None), slice(None))]:
        plane, place = x[tile], places[tile]
        lead = plane.shape[:-2]
        flat = device.xp.take_along_axis(
            plane.reshape(*lead, -1), place.reshape(*lead, -1).astype(np.int64), axis=-1)
        out[tile] = flat.reshape(place.shape)
    return out


def _max_places(x: Array, *, out: Array | None = None, **params: Any) -> Array:
    path = _max_pool_cpu if isinstance(x, np.ndarray) else _max_pool_gpu
    places = path(x, **params)[1]
    return settled(places, out)


_FORWARD = raw("pool.cu", "max_pool2d_forward")
_BACKWARD = raw("pool.cu", "max_pool2d_backward")


def _max_pool_gpu(x: Array, *, out: Array | None = None, **params: Any) -> tuple[Array, Array]:
    xp, w = cupy(), windows(x.shape[2:], **params)
    x = xp.ascontiguousarray(x)
    shape = (*x.shape[:2], *w.out)
    y, places = xp.empty(shape, x.dtype), xp.empty(shape, np.int32)
    grid, block = flat_launch(y.size)
    _FORWARD[x.dtype](grid, block, (x, y, places, *sizes(shape[0] * shape[1], w), *w.dilation))
    if out is None:
        return y, places
    out[...] = y
    return out, places


def _max_unpool_gpu(
    g: Array, places: Array, *, size: Pair, out: Array | None = None, beta: float = 0.0,
    **params: Any,
) -> Array:
    w = windows(size, **params)
    places = cupy().ascontiguousarray(once(places))
    shared = places.shape[0] * places.shape[1]

    def launch(g: Array, result: Array, accumulate: int) -> None:
        grid, block = flat_launch(result.size)
        _BACKWARD[g.dtype](grid, block, (
            g, places, result, *sizes(g.shape[0] * g.shape[1], w), *w.dilation, accumulate, shared))

    return adjoint_gpu(launch, g, size, out, beta)


def _max_pool_backward(ns: Namespace, step: Step, g: Array) -> None:
    (places,) = step.saved
    buffer, beta = step.into(0)
    step.give(0, ns.max_pool2d_grad(
        g, places, size=step.shape(0)[-2:], out=buffer, beta=beta, **step.params))


def _max_unpool_backward(ns: Namespace, step: Step, u: Array) -> None:
    step.give(0, ns.max_pool2d_pick(u, *step.saved, **step.params))


def _max_pick_backward(ns: Namespace, step: Step, g: Array) -> None:
    buffer, beta = step.into(0)
    step.give(0, ns.max_pool2d_grad(g, *step.saved, out=buffer, beta=beta, **step.params))


def _max_pool_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    x = primals[0]
    places = ns.max_pool2d_places(x, **params)
    return ns.max_pool2d_pick(tangents[0], places, size=x.shape[-2:], **params)


def _max_reference(torch: Any, x: Any, kernel: Any, ceil: Any, **params: Any) -> Any:
    return torch.nn.functional.max_pool2d(x, kernel, ceil_mode=ceil, **params)


_MAX_CASES = [
    ((2, 3, 4, 6), window_params()),
    ((1, 2, 5, 6), window_params(kernel=(3, 2), stride=(1, 2), padding=(1, 1), dilation=(1, 2))),
    ((1, 1, 5, 5), window_params(ceil=True)),
]

max_pool2d_places = op(
    "max_pool2d_places", cpu=_max_places, gpu=_max_places, backward=None,
    tangent=zero_tangent, batch=in_channels,
    samples=[Sample((shape,), distinct, params) for shape, params in _MAX_CASES],
    doc="Where in its plane each window of max_pool2d has its maximum: int32, row * W + column.",
)

max_pool2d_pick = op(
    "max_pool2d_pick", **placed(_max_pick), saves={"x": "places"},
    backward=_max_pick_backward, tangent=first_tangent("max_pool2d_pick"), batch=in_channels,
    samples=None,  # places must be those of windows: tested through max_pool2d
    doc="x (N, C, H, W) at places (N, C, OH, OW): the adjoint of max_pool2d_grad.",
)

max_pool2d_grad = op(
    "max_pool2d_grad", cpu=_max_unpool_cpu, gpu=_max_unpool_gpu, saves={"g": "places"},
    backward=_max_unpool_backward, tangent=first_tangent("max_pool2d_grad"), batch=in_channels,
    samples=None,  # as above
    doc="Zeros (N, C, *size) with g (N, C, OH, OW) added at its places.",
)

max_pool2d_op = op(
    "max_pool2d", cpu=_max_pool_cpu, gpu=_max_pool_gpu, extras="places", saves={"x": "places"},
    floating=True, backward=_max_pool_backward, tangent=_max_pool_tangent, batch=in_channels,
    samples=[Sample((shape,), distinct, params) for shape, params in _MAX_CASES],
    reference=_max_reference,
    doc="The largest element of each window of (N, C, H, W). Parameters: kernel, stride, padding, "
        "dilation (pairs), ceil.",
)


@takes_arrays
def max_pool2d(
    input: Tensor, kernel_size: int | Pair, stride: int | Pair | None = None,
    padding: int | Pair = 0, dilation: int | Pair = 1, ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window. Saves where it was (int32 per output).

    Args:
        input: (N, C, H, W) or (C, H, W).
        kernel_size, stride, padding, dilation: one integer, or (height, width). The stride is the
            kernel's size by default; padding, at most half of it, never wins.
        ceil_mode: windows may also begin where less than a whole one fits.
    """
    params = window_arguments(
        "max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode)
    return on_images(input, 2, lambda x: max_pool2d_op(x, **params))


@takes_arrays
def max_pool1d(
    input: Tensor, kernel_size: Single, stride: Single | None = None, padding: Single = 0,
    dilation: Single = 1, ceil_mode: bool = False,
) -> Tensor:
    """max_pool2d of signals (N, C, L) or (C, L).

    Raises ValueError for a window larger than the padded input, and for another number of axes.
    """
    params = window_arguments(
        "max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode)
    return on_images(input, 1, lambda x: max_pool2d_op(x, **params))
