"""Batch norm and activation over the input's own memory: in-place activated batch norm.

y = act((x - mean) / sqrt(var + eps) * (|weight| + eps) + bias) is written over x, and backward
recomputes x by inverting the activation: the scale |weight| + eps is never 0. So a layer keeps one
buffer, which its consumer saves anyway. With an activation without an inverse the layer saves x
instead, and its consumer saves a recipe for y (gtensor/engine/tape/recipes.py): one buffer again.

Source: Rota Bulo, Porzi, Kontschieder, "In-place activated batch norm", CVPR 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import NULL, elementwise, raw
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.namespaces import raw as raw_spaces
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.take_over import apply_keeping, apply_over, recording
from gtensor.engine.tape.levels import newest
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Draw, Sample, apart, normal, positive, unary
from gtensor.ops.activations.activation import ACTIVATIONS
from gtensor.ops.activations.inverses import INVERSES, Inverse
from gtensor.ops.define import rows as row_kernels
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.path_builders import tiled
from gtensor.ops.define.pointwise import partial, pointwise
from gtensor.ops.norms import batch_norm, batching, replicas
from gtensor.ops.norms.batch_norm import Unbiased, check_activation, check_batch_norm, check_eps
from gtensor.ops.norms.batch_norm_paths import (
    Channels,
    GpuChannels,
    Moving,
    Term,
    activated,
    gradients,
    inverse_deviation,
    move_cpu,
    normalize,
    normalize_cpu,
    pair,
    scale_of,
    summed,
    write_dx,
)
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values
    from gtensor.ops.norms.replicas import Gather

# -- the CPU paths: the gradient is written over that of z, which backward inverts tile by tile ----


def _channels(z: np.ndarray) -> Channels:
    """Scratch buffers: 0 is y or what is made of it, 1 is dy, 2 is work, 3 is z where it is half.

    Together they take one and a half tiles of the settings.
    """
    buffers = 4 if computed_in(z.dtype) != z.dtype else 3
    return Channels(z, buffers, settings.tile_elements * 3 // 2 // buffers)


def _positive(weight: Array | None, eps: float, absolute: bool) -> Array | None:
    if weight is None or not absolute:
        return weight
    scale: Array = np.abs(weight)
    scale += eps
    return scale


def _sums(
    totals: Array, work: np.dtype, weight: Array | None, absolute: bool
) -> tuple[Array, Array]:
    """The sums (2, C) as arrays of their own; the second is the gradient of the weight given."""
    sum_dy, sum_dy_xhat = (host().copy(total, work, "inplace_abn") for total in totals)
    if weight is not None and absolute:
        sum_dy_xhat *= np.sign(weight)
    return sum_dy, sum_dy_xhat


# -- forward ---------------------------------------------------------------------------------------


def _activation(name: str, parameter: float, dtype: np.dtype) -> Callable[[Array], Array]:
    """The activation of a tile, written over it, and kept strictly inside its range."""
    act, ns = ACTIVATIONS[name][0], raw_spaces["cpu"]
    lowest, highest = INVERSES[name].inside(dtype, parameter)

    def activate(y: Array) -> Array:
        z = act(ns, y, parameter, out=y)
        # looking takes a fraction of the time of writing; this way around beside NaN, too
        if lowest > -inf and not z.min(initial=inf) >= lowest:
            np.maximum(z, lowest, out=z)
        if highest < inf and not z.max(initial=-inf) <= highest:
            np.minimum(z, highest, out=z)
        return z

    return activate


def forward_cpu(
    x: Array, weight: Array | None, bias: Array | None, mean: Array | None, var: Array | None, *,
    training: bool, eps: float, activation: str, parameter: float, gather: Gather | None = None,
    absolute: bool = False, moving: Moving | None = None, out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """z, mean, var; mean and var are x's own where mean is None. `out` may be x.

    `absolute`: the weight is |weight| + eps, as in the other paths.
    """
    weight = _positive(weight, eps, absolute)
    if out is None:
        out = host().empty(x.shape, x.dtype, "inplace_abn")
    given = mean is not None
    # the activation makes temporaries: softplus four of a tile's size, others at most half as many
    mean, var = normalize_cpu(x, out, weight, bias, mean, var, eps, activation, parameter,
                              _activation(activation, parameter, x.dtype),
                              4 if activation == "softplus" else 2)
    if not given:
        move_cpu(moving, mean, var)
    return out, mean, var


# -- backward --------------------------------------------------------------------------------------


def _terms(
    c: Channels, g: Array, z: Array, bias: Array | None, inverse: Inverse, parameter: float
) -> Iterator[Term]:
    """Terms with a = y - bias."""
    g, z, bias = c.moved(g), c.moved(z), c.per_channel(bias)
    for key, shape in c.tiles():
        part, work = c.widened(z[key], 3), c.scratch(2, shape)
        dy = inverse.gradient(g[key], part, parameter, c.scratch(1, shape), work)
        y = inverse.invert(part, parameter, c.scratch(0, shape), work)
        if bias is not None:
            y = np.subtract(y, bias[key], out=c.scratch(0, shape))
        yield key, y, dy


def _store(c: Channels, out: Array, terms: Iterator[Term]) -> None:
    """out = dy."""
    result = c.moved(out)
    for key, _, dy in terms:
        result[key] = dy


def _compiled(
    g: Array, z: Array, out: Array, totals: Array, bias: Array | None, gamma: Array, rstd: Array,
    training: bool, activation: str, parameter: float, gather: Gather | None
) -> bool:
    """dx in `out`, and the sums (2, C), by a kernel; False where none serves."""
    if not row_kernels.takes(z, activation):
        return False
    count = z.size // z.shape[1]
    center = np.zeros_like(gamma) if bias is None else bias

    def write(to: Array | None, sums: Array, known: bool, count: float) -> bool:
        return row_kernels.batch_norm_grads(
            g, z, to, sums, center, 1 / gamma, gamma * rstd, activation=activation,
            parameter=parameter, training=training, count=count, known=known, inverted=True)

    sums = np.empty((z.shape[1], 2))
    joined = gather if training else None
    if not write(out if joined is None else None, sums, False, count):
        return False
    totals[...] = sums.T
    if joined is not None:
        joint = replicas.joint_means_cpu(*totals, count=count, gather=joined)
        write(out, np.ascontiguousarray(np.transpose(joint), np.float64), True, 1)
    return True


def grad_cpu(
    g: Array, z: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, *,
    training: bool, eps: float, activation: str, parameter: float, gather: Gather | None = None,
    absolute: bool = False, out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The gradient of x, and the sums of dy and of dy * xhat (C), from z and its gradient g.

    `out` may be g. With `gather`, dx in training takes the sums of all replicas and the count of
    their samples per channel; the sums that are returned are this replica's.
    """
    if out is None:
        out = host().empty(z.shape, z.dtype, "inplace_abn_dx")
    c, inverse = _channels(z), INVERSES[activation]
    gamma = np.ones(z.shape[1]) if weight is None else weight.astype(np.float64)
    if absolute and weight is not None:
        np.abs(gamma, out=gamma)
        gamma += eps
    rstd = inverse_deviation(var, eps, np.float64)
    totals = np.zeros((2, z.shape[1]), np.float64)
    if _compiled(g, z, out, totals, bias, gamma, rstd, training, activation, parameter, gather):
        return out, *_sums(totals, c.work, weight, absolute)
    first = summed(c, _terms(c, g, z, bias, inverse, parameter), totals)
    if not training:
        write_dx(c, out, first, gamma * rstd)
        totals[1] /= gamma
        if absolute and weight is not None:
            totals[1] *= np.sign(weight)
        return out, *totals.astype(c.work)
    if activation != "identity" and out.dtype == c.work:  # dy waits in `out`: it is made once
        _store(c, out, first)
        g, inverse = out, inverse._replace(gradient=INVERSES["identity"].gradient)
    else:
        for _ in first:
            pass
    totals[1] /= gamma
    total, count = totals, max(1, prod(c.shape[1:]))
    if gather is not None:
        total, count = replicas.joint_means_cpu(*totals, count=prod(c.shape[1:]), gather=gather), 1
    # dx = gamma * rstd * (dy - total[0] / count - xhat * total[1] / count), in terms of y
    low, tilt = rstd * total / count
    low = low * gamma if bias is None else low * gamma - tilt * bias.astype(np.float64)
    write_dx(c, out, _terms(c, g, z, None, inverse, parameter), gamma * rstd, tilt, low)
    return out, *_sums(totals, c.work, weight, absolute)


def input_cpu(
    z: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, *, eps: float,
    activation: str, parameter: float, absolute: bool = False, out: Array | None = None,
) -> Array:
    """x, rebuilt from z: (y - bias) / weight * sqrt(var + eps) + mean. `out` may be z."""
    weight = _positive(weight, eps, absolute)
    if out is None:
        out = host().empty(z.shape, z.dtype, "inplace_abn_input")
    c, inverse = _channels(z), INVERSES[activation]
    source, result = c.moved(z), c.moved(out)
    shift, center = c.per_channel(bias), c.per_channel(mean)
    slope = c.per_channel(1 / scale_of(weight, var, eps, np.dtype(np.float64)))
    for key, shape in c.tiles():
        y = inverse.invert(
            c.widened(source[key], 3), parameter, c.scratch(0, shape), c.scratch(2, shape))
        if shift is not None:
            y = np.subtract(y, shift[key], out=c.scratch(0, shape))
        x = np.multiply(y, slope[key], out=c.scratch(0, shape))
        x += center[key]
        result[key] = x
    return out


# -- the GPU paths ---------------------------------------------------------------------------------
#
# One launch for the statistics and one for z, one for the sums and one for dx; one for both where a
# channel fits into the shared memory of a block. An array in neither layout (channels first,
# channels last) or in another one than z, such as a broadcast gradient, is copied once.

_REDUCE = pair("reduce")
_BACKWARD = pair("backward")
_BACKWARD_ON_CHIP = raw("bn_act.cu", "bn_act_backward_on_chip")
_INPUT = pair("input")
_SLOPE = elementwise(
    "T g, U weight", "T y", "y = g * T((weight > U(0)) - (weight < U(0)))", name="gt_weight_slope")


def forward_gpu(
    x: Array, weight: Array | None, bias: Array | None, mean: Array | None, var: Array | None, *,
    training: bool, eps: float, activation: str, parameter: float, gather: Gather | None = None,
    absolute: bool = False, moving: Moving | None = None, out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """As forward_cpu."""
    return normalize(
        x, weight, bias, mean, var, True, eps, activation, parameter, out, absolute, moving)


def grad_gpu(
    g: Array, z: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, *,
    training: bool, eps: float, activation: str, parameter: float, gather: Gather | None = None,
    absolute: bool = False, out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """As grad_cpu."""
    options = *activated(eps, activation, parameter), int(absolute)
    c, known = GpuChannels(z), (mean, var, weight, bias)
    shared = c.on_chip(2)
    if gather is None and not shared:
        return gradients(_REDUCE, _BACKWARD, g, z, known, training, options, out)
    # apart, so that each can become a leaf's gradient
    sums = [cupy().empty(z.shape[1], computed_in(z.dtype)) for _ in range(2)]
    arrays = c.dense(g), c.dense(z), *c.per_channel(*known)
    dx, direct = c.target(out)
    if gather is None:
        c.launch_on_chip(_BACKWARD_ON_CHIP, shared, *arrays, *sums, dx, *c.sizes, *options,
                         int(training))
    else:
        c.launch(_REDUCE, *arrays, *sums, *c.workspace(2), *c.sizes, *options)
        total = replicas.joint_means_gpu(*sums, count=c.count, gather=gather)
        means = c.per_channel(*total) if training else (NULL, NULL)
        c.launch(_BACKWARD, *arrays, *means, dx, *c.sizes, *options, 1.0, NULL, 0)
        if absolute and weight is not None:
            _SLOPE(sums[1], weight, out=sums[1])
    return c.result(dx, out, direct), *sums


def input_gpu(
    z: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, *, eps: float,
    activation: str, parameter: float, absolute: bool = False, out: Array | None = None,
) -> Array:
    """As input_cpu."""
    c = GpuChannels(z)
    x, direct = c.target(out)
    c.launch(_INPUT, c.dense(z), *c.per_channel(mean, var, weight, bias), x, *c.sizes,
             *activated(eps, activation, parameter), int(absolute))
    return c.result(x, out, direct)


# -- rules ---------------------------------------------------------------------------------------


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    weight, bias, z, center, spread = step.saved
    params = step.params
    if ns is recorded:
        _backward_recorded(ns, step, g, (z, weight, bias, center, spread))
        return
    dx, sum_dy, sum_dy_xhat = ns.inplace_abn_grad(
        g, z, weight, bias, center, spread, out=step.reuse(g),
        **{name: value for name, value in params.items() if name != "moving"})
    if not params["training"]:
        batch_norm.give_statistics(ns, step, sum_dy, sum_dy_xhat, weight, spread)
    if step.needs(1):
        step.give(1, sum_dy_xhat)
    if step.needs(2):
        step.give(2, sum_dy)
    if step.needs(0):
        step.give(0, dx)


def _backward_recorded(ns: Namespace, step: Step, g: Array, arrays: batch_norm.Inputs) -> None:
    """x again, with its history, and then the rule of the out-of-place op."""
    params = step.params
    _, weight, bias, center, spread = arrays
    given = weight if params.get("absolute") else None
    if given is not None:
        weight = ns.abn_scale(given, eps=params["eps"])
    with no_grad():
        x = ns.inplace_abn_input(arrays[0], weight, *arrays[2:], **{
            name: params[name] for name in ("eps", "activation", "parameter")})
    if not params["training"]:  # copies of what was given: the history is of that
        center, spread = step.rebuilt(3, center), step.rebuilt(4, spread)
    batch_norm.give_gradients(
        ns, step, g, (step.rebuilt(0, x), weight, bias, center, spread), params, given)


def _tangent(ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params) -> Array:
    weight, change = primals[1], tangents[1]
    if weight is not None and params.get("absolute"):
        primals = primals[0], ns.abn_scale(weight, eps=params["eps"]), *primals[2:]
        if change is not None:
            tangents = tangents[0], ns.abs_grad(change, weight), *tangents[2:]
    return batch_norm.tangent(ns, primals, tangents, out, params)


# -- definitions -----------------------------------------------------------------------------------


def _within(low: float, high: float) -> Draw:
    return lambda rng, shape: rng.uniform(low, high, shape)


def _samples() -> list[Sample]:
    """Smooth activations (kinks would move with weight and bias), where halves can be inverted."""
    draws = (normal, _within(0.4, 0.8), _within(-0.3, 0.3), _within(-0.3, 0.3), positive)
    found = []
    for shape in ((4, 3), (2, 3, 5), (3, 2, 2, 2)):
        c = (shape[1],)
        for name in ("identity", "sigmoid", "softplus"):
            for training in (True, False):
                options = {"training": training, "eps": 1e-5, "activation": name,
                           "parameter": 1.0, "gather": None}
                statistics = (None, None) if training else (c, c)
                found.append(Sample((shape, c, c, *statistics), draws, options))
    return found


def _out_of_place(
    x: Tensor, weight: Tensor | None, *rest: Tensor | None, absolute: bool = False, **params: Any
) -> Tensor:
    """Within transforms, where no memory is overwritten and a recovered x has no tangent."""
    if weight is not None and absolute:
        weight = recorded.abn_scale(weight, eps=params["eps"])
    return batch_norm.batch_norm_op(x, weight, *rest, **params)


abn_scale = op(
    "abn_scale", inputs="weight", cpu=tiled("abn_scale", lambda ns, w, *, eps: ns.abs(w) + eps),
    gpu=elementwise("T w, float64 eps", "T scale", "scale = abs(gt_up(w)) + gt_float<T>(eps)",
                    "number.cuh", "gt_abn_scale"),
    backward=pointwise(partial("weight", lambda ns, g, w, out, eps: ns.abs_grad(g, w, out=out))),
    samples=unary(apart, eps=1e-5), reference=lambda torch, w, eps: torch.abs(w) + eps,
    doc="|weight| + eps: a scale that an in-place batch norm can divide by. Parameters: eps.",
)

inplace_abn_grad = op(
    "inplace_abn_grad", cpu=grad_cpu, gpu=grad_gpu, extras="sum_dy sum_dy_xhat", backward=None,
    tangent=None, batch=batching.inverted_grad,
    samples=None,  # mean and var must be x's: tested through inplace_abn
    doc="The gradient of inplace_abn's input from its output, and the gradients of bias and scale.",
)

inplace_abn_input = op(
    "inplace_abn_input", cpu=input_cpu, gpu=input_gpu, backward=None, tangent=None,
    batch=batching.inverted, samples=None,  # as above
    doc="The input of inplace_abn, found again from its output.",
)

inplace_abn_op = op(
    "inplace_abn", cpu=forward_cpu, gpu=forward_gpu, extras="center spread",
    saves=dict.fromkeys(("x", "weight", "bias", "mean", "var"), "weight bias out center spread"),
    backward=_backward, tangent=_tangent,
    composed=_out_of_place, samples=_samples(),
    reference=batch_norm.reference,
    doc="batch_norm for weight > 0 and activations that have an inverse; only the output is saved, "
        "and `gtensor.nn.functional.inplace_abn` writes it over x. Parameters as batch_norm, and "
        "absolute: the weight is |weight| + eps.",
)


# -- the public functions ------------------------------------------------------------------------


@takes_arrays
def abn(
    input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
    running_mean: Tensor | None = None, running_var: Tensor | None = None, training: bool = True,
    momentum: float = 0.1, eps: float = 1e-5, activation: str = "leaky_relu",
    activation_param: float = 0.01, num_batches_tracked: Tensor | None = None,
    gather: Gather | None = None,
) -> Tensor:
    """`inplace_abn` out of place; `input` is saved and not changed.

    (N, C, ...), and the other arguments of `inplace_abn`.
    """
    check_eps(eps, input.dtype, "abn")
    work = computed_in(input.dtype)
    scale = None if weight is None else _scale(weight, work, eps)
    return batch_norm.batch_norm_act(input, running_mean, running_var, scale, bias, training,
                                     momentum, eps, activation, activation_param,
                                     num_batches_tracked, gather)


@takes_arrays
def inplace_abn(
    input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
    running_mean: Tensor | None = None, running_var: Tensor | None = None, training: bool = True,
    momentum: float = 0.1, eps: float = 1e-5, activation: str = "leaky_relu",
    activation_param: float = 0.01, num_batches_tracked: Tensor | None = None,
    gather: Gather | None = None,
) -> Tensor:
    """Batch norm and activation over the memory of `input`, which is consumed; same shape.

    act((x - mean) / sqrt(var + eps) * (|weight| + eps) + bias). After the call `input` keeps its
    shape and its gradient; any other use of it raises ConsumedError. Within a transform it is
    `abn`, and nothing is consumed. If another reader could see the write (leaves, data, live views,
    saved or exported memory), the output gets a new buffer instead, counted by
    `gtensor.memory.copies()`, and `input` is not consumed.

    Args:
        input: (N, C, ...), channels first or last in memory.
        weight, bias: (C), or None for a scale of 1 and 0; float32 is allowed with a half input.
        running_mean, running_var: (C), or None; see `batch_norm_act`.
        training: normalize by the batch's own mean and biased variance.
        eps: added to the variance and to |weight|.
        activation: "leaky_relu", "elu", "identity", "tanh", "sigmoid" or "softplus", which are
            inverted; or "relu", "gelu", "gelu_tanh" or "silu", for which x is saved.
        activation_param: leaky_relu's slope, elu's alpha, softplus' beta; positive.
        num_batches_tracked: int64 (); in training increased by one, in place.
        gather: None, or what stacks all replicas' arrays; see `batch_norm_act`.

    Raises:
        ValueError: for shapes, an activation or a parameter that do not fit, and for one value per
            channel in training. Nothing is written then.

    Source: Rota Bulo, Porzi, Kontschieder, "In-place activated batch norm", CVPR 2018.
    """
    running = running_mean, running_var, num_batches_tracked
    check_batch_norm(input, running, weight, bias, training, momentum, "inplace_abn", gather)
    check_eps(eps, input.dtype, "inplace_abn")
    check_activation(activation, activation_param, input.dtype, "inplace_abn")
    if newest("inplace_abn", (input, weight, bias, running_mean, running_var)) is not None:
        return abn(input, weight, bias, running_mean, running_var, training, momentum, eps,
                   activation, activation_param, num_batches_tracked)  # nothing is written there
    gather = gather if training else None
    inverted, work = activation in INVERSES, computed_in(input.dtype)
    absolute = inverted and training  # the kernels take |weight| + eps by themselves
    scale = None if weight is None else (
        _wide(weight, work) if absolute else _scale(weight, work, eps))
    mean, var = (None, None) if training else (running_mean, running_var)
    if not training and recording(input, weight, bias, running_mean, running_var):
        mean, var = recorded.clone(mean), recorded.clone(var)  # they may move before backward
    unbiased: Unbiased | None = None
    if training and (gather is not None or not inverted):
        mean, var, unbiased = batch_norm.batch_statistics(input, gather)
    options = {"training": training, "eps": eps, "activation": activation,
               "parameter": activation_param, "gather": gather}
    inputs = (input, scale, bias, mean, var)
    if inverted:
        options["absolute"] = absolute
        own = running if training and gather is None else (None, None, None)
        moving = batch_norm.moving(input, own, momentum)
        y, _ = apply_over(inplace_abn_op, inputs, options | moving)
    else:
        y = apply_keeping(batch_norm.batch_norm_op, inputs, options)
    if unbiased is not None:
        assert mean is not None
        batch_norm.move_averages(running, mean, unbiased, momentum)
    return y


def _wide(weight: Tensor, work: np.dtype) -> Tensor:
    """The weight in the compute dtype: a half type would lose eps."""
    return weight if weight.dtype == work else recorded.astype(weight, dtype=work)


def _scale(weight: Tensor, work: np.dtype, eps: float) -> Tensor:
    """|weight| + eps, in the compute dtype."""
    return recorded.abn_scale(_wide(weight, work), eps=eps)
