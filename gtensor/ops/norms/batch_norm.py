"""Batch norm followed by an activation, out of place, as one op over (N, C, ...).

y = act((x - mean) / sqrt(var + eps) * weight + bias). Saved are x and two numbers per channel;
backward recomputes the pre-activation tile by tile. Statistics of half types are float32.
"""

from __future__ import annotations

from itertools import product
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from gtensor.backend import DeviceError
from gtensor.backend.kernels import elementwise
from gtensor.engine.handle.arrays import writable
from gtensor.engine.handle.context import is_recomputing, no_grad, same_again
from gtensor.engine.handle.errors import GradientError, LevelError
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor, is_floating
from gtensor.engine.run.in_place import write
from gtensor.engine.run.writable import count_write
from gtensor.engine.tape.levels import newest
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Sample, normal, positive
from gtensor.ops.activations.activation import ACTIVATIONS
from gtensor.ops.define.arguments import same_dtype, takes_arrays, want_number, want_tensors
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.norms import batch_norm_paths as paths
from gtensor.ops.norms import batching, replicas

if TYPE_CHECKING:
    import numpy as np

    from gtensor.backend.kernels import Elementwise
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import ArrayOrTensor, Step, Values
    from gtensor.ops.norms.batch_norm_paths import Gather

Running: TypeAlias = "tuple[Tensor | None, Tensor | None, Tensor | None]"
"""Running mean and variance, and the count of batches."""

Unbiased: TypeAlias = "tuple[Tensor, float]"
"""A variance, and the number that makes it the unbiased one of its batch."""

Inputs: TypeAlias = "tuple[Array, Array | None, Array | None, Array, Array]"
"""x, weight, bias, mean and variance."""

# -- rules ---------------------------------------------------------------------------------------


def not_channels(x: ArrayOrTensor) -> tuple[int, ...]:
    """The axes of (N, C, ...) but that of the channels, from the end."""
    n: int = len(x.shape)
    return (-n, *range(2 - n, 0))


def sums_at(ns: Namespace, sums: Array | Tensor | None, i: int) -> Any:
    """Row i of batch_norm_sums (2, C)."""
    return ns.slice(sums, key=(..., i, slice(None)))


def _recorded_terms(
    ns: Namespace, g: ArrayOrTensor, x: ArrayOrTensor, weight: ArrayOrTensor | None,
    bias: ArrayOrTensor | None, mean: ArrayOrTensor, var: ArrayOrTensor, params: Params,
) -> tuple[ArrayOrTensor, ArrayOrTensor, ArrayOrTensor]:
    """xhat, the gradient before the activation, and 1 / deviation, in recorded ops.

    In training the statistics are functions of x, so they are recomputed from it.
    """
    axes = not_channels(x)
    kept = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    if params["training"]:
        mean = ns.mean(x, axis=axes, keepdims=True)
        deviation = x - mean
        var = ns.mean(ns.square(deviation), axis=axes, keepdims=True)
    else:
        deviation = x - ns.reshape(mean, shape=kept)
        var = ns.reshape(var, shape=kept)
    rstd = 1 / ns.sqrt(var + params["eps"])
    xhat = deviation * rstd
    y = xhat if weight is None else xhat * ns.reshape(weight, shape=kept)
    y = y if bias is None else y + ns.reshape(bias, shape=kept)
    return xhat, ACTIVATIONS[params["activation"]][1](ns, g, y, params["parameter"]), rstd


def _sums_recorded(
    g: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    **params: Any,
) -> Tensor:
    ns = recorded
    axes = not_channels(x)
    xhat, dy, _ = _recorded_terms(ns, g, x, weight, bias, mean, var, params)
    rows = [ns.reshape(ns.sum(part, axis=axes), shape=(1, x.shape[1])) for part in (dy, dy * xhat)]
    return ns.concat(*rows, axis=-2, sizes=(1, 1))


def _dx_recorded(
    g: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    sums: Tensor, **params: Any,
) -> Tensor:
    ns = recorded
    kept = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    xhat, dy, rstd = _recorded_terms(ns, g, x, weight, bias, mean, var, params)
    if params["training"]:
        count = params["count"] or x.size // x.shape[1]
        shift, slope = (ns.reshape(sums_at(ns, sums, i), shape=kept) / count for i in (0, 1))
        dy = dy - shift - xhat * slope
    return dy * rstd if weight is None else dy * (rstd * ns.reshape(weight, shape=kept))


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    x, weight, bias, mean, var, center, spread = step.saved
    params = step.params
    if step.needs(0) and params["training"] and params["gather"] is None and ns is not recorded:
        options = {name: params[name] for name in ("training", "eps", "activation", "parameter")}
        dx, dbias, dweight = ns.batch_norm_grads(
            g, x, weight, bias, center, spread, **options, out=step.reuse(g))
        for i, gradient in enumerate((dx, dweight, dbias)):
            if step.needs(i):
                step.give(i, gradient)
        return
    if not params["training"]:
        center, spread = mean, var  # inputs, which have a history in a recorded pass
    give_gradients(ns, step, g, (x, weight, bias, center, spread), params)


def give_gradients(
    ns: Namespace, step: Step, g: Array, arrays: Inputs, params: Params,
    signed: Array | None = None,
) -> None:
    """The rule of batch norm, from x, weight, bias, mean and variance.

    `signed`: what the op was given, where the weight is |signed| + eps.
    """
    if params["gather"] is not None and ns is recorded:
        raise GradientError("create_graph=True through a batch norm that is synchronized over "
                            "replicas; wanted gather=None")
    options = {**params}
    gather = options.pop("gather")
    for name in ("absolute", "moving"):
        options.pop(name, None)
    sums = None
    if params["training"] or any(step.needs(i) for i in (1, 2, 3, 4)):
        sums = ns.batch_norm_sums(g, *arrays, **options)
    if not params["training"] and sums is not None:
        give_statistics(
            ns, step, sums_at(ns, sums, 0), sums_at(ns, sums, 1), arrays[1], arrays[4])
    dx = None
    if step.needs(0):  # before the sums are given away, since they may be written then
        totals, count = sums, None
        if gather is not None:
            own = replicas.values_per_channel(arrays[0].shape)
            totals, count = ns.joint_means(sums, count=own, gather=gather), 1
        dx = ns.batch_norm_dx(g, *arrays, totals, count=count, out=step.reuse(g), **options)
    if step.needs(1):
        slope = sums_at(ns, sums, 1)
        step.give(1, slope if signed is None else ns.abs_grad(slope, signed))
    if step.needs(2):
        step.give(2, sums_at(ns, sums, 0))
    if dx is not None:
        step.give(0, dx)


def give_statistics(
    ns: Namespace, step: Step, sum_dy: Array, sum_dy_xhat: Array, weight: Array | None, var: Array
) -> None:
    """Gradients of the given mean and variance, where they are needed."""
    if not (step.needs(3) or step.needs(4)):
        return
    rstd = ns.divide(1.0, ns.sqrt(ns.add(var, step.params["eps"])))
    scale = ns.negative(rstd if weight is None else ns.multiply(rstd, weight))
    if step.needs(3):
        step.give(3, ns.multiply(sum_dy, scale))
    if step.needs(4):
        slope = ns.multiply(ns.multiply(scale, rstd), 0.5)
        step.give(4, ns.multiply(sum_dy_xhat, slope))


def tangent(ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params) -> Array:
    """Through the formula, one tangent at a time; the activation's derivative at the end."""
    x, weight, bias, mean, var = primals
    dx, dweight, dbias, dmean, dvar = tangents
    axes, kept = not_channels(x), (1, x.shape[1], *(1,) * (len(x.shape) - 2))

    def wide(a: Array) -> Array:
        return ns.reshape(a, shape=kept)

    def average(a: Array) -> Array:
        return ns.mean(a, axis=axes, keepdims=True)

    if params["training"]:
        mean = average(x)
        var, dmean, dvar = average(ns.square(x - mean)), None, None
        if dx is not None:
            dmean, dvar = average(dx), average(2 * (x - mean) * dx)
    else:
        mean, var = wide(mean), wide(var)
        dmean, dvar = (None if t is None else wide(t) for t in (dmean, dvar))
    rstd = 1 / ns.sqrt(var + params["eps"])
    xhat = (x - mean) * rstd
    scale = rstd if weight is None else rstd * wide(weight)
    terms = []
    if dx is not None:
        terms.append(dx * scale)
    if dmean is not None:
        terms.append(-dmean * scale)
    if dvar is not None:
        terms.append(-0.5 * dvar * (rstd * scale) * xhat)
    if dweight is not None:
        terms.append(xhat * wide(dweight))
    if dbias is not None:
        terms.append(wide(dbias))
    change = ns.broadcast_to(terms[0], shape=out.shape)
    for term in terms[1:]:
        change = change + term
    y = xhat if weight is None else xhat * wide(weight)
    y = y if bias is None else y + wide(bias)
    return ACTIVATIONS[params["activation"]][1](ns, change, y, params["parameter"])


def _statistics_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    (x,), (dx,) = primals, tangents
    axes, row = not_channels(x), (1, x.shape[1])
    deviation = ns.subtract(x, ns.mean(x, axis=axes, keepdims=True))
    parts = ns.mean(dx, axis=axes), ns.mean(ns.multiply(deviation, ns.multiply(dx, 2)), axis=axes)
    change = ns.concat(*[ns.reshape(a, shape=row) for a in parts], axis=-2, sizes=(1, 1))
    return change if change.dtype == out.dtype else ns.astype(change, dtype=out.dtype)


# -- definitions -----------------------------------------------------------------------------------


def _options(training: bool, activation: str, parameter: float = 0.01) -> Params:
    return {"training": training, "eps": 1e-5, "activation": activation, "parameter": parameter,
            "gather": None}


_SAVES = "x weight bias mean var center spread"


def _samples() -> list[Sample]:
    found = []
    for shape in ((4, 3), (2, 3, 5), (3, 2, 2, 2)):
        c = (shape[1],)
        for name in ("identity", "silu", "tanh"):  # smooth: kinks would move with weight and bias
            found += [
                Sample((shape, c, c, None, None), normal, _options(True, name)),
                Sample((shape, c, c, c, c), (normal, normal, normal, normal, positive),
                       _options(False, name))]
        found.append(Sample((shape, None, None, None, None), normal, _options(True, "identity")))
    return found


def reference(
    torch: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, gather: Gather | None = None,
) -> Any:
    if training:
        mean, var = None, None
        y = torch.nn.functional.batch_norm(x, None, None, weight, bias, True, 0.1, eps)
    else:
        kept = (1, -1) + (1,) * (x.ndim - 2)
        y = (x - mean.reshape(kept)) / torch.sqrt(var.reshape(kept) + eps)
        y = y * weight.reshape(kept) + bias.reshape(kept)
    return y if activation == "identity" else getattr(torch.nn.functional, activation)(y)


batch_norm_statistics = op(
    "batch_norm_statistics", cpu=paths.statistics_cpu, gpu=paths.statistics_gpu,
    backward=None, tangent=_statistics_tangent, batch=batching.channels_statistics,
    samples=[Sample(((4, 3),)), Sample(((2, 3, 5),))],
    reference=lambda torch, x: torch.stack([
        x.transpose(0, 1).flatten(1).mean(1), x.transpose(0, 1).flatten(1).var(1, correction=0)]),
    doc="Mean and biased variance of each channel of (N, C, ...), (2, C). Has no backward rule "
        "of its own: batch_norm's knows that they depend on x.",
)

batch_norm_sums = op(
    "batch_norm_sums", cpu=paths.sums_cpu, gpu=paths.sums_gpu, backward=None, tangent=None,
    composed=_sums_recorded, batch=batching.channels_sums,
    samples=None,  # mean and var must be x's: tested through batch_norm
    doc="The gradients of bias and weight of batch_norm, (2, C).",
)

batch_norm_dx = op(
    "batch_norm_dx", cpu=paths.dx_cpu, gpu=paths.dx_gpu, backward=None, tangent=None,
    composed=_dx_recorded, batch=batching.channels_dx, samples=None,  # as above
    doc="The gradient of batch_norm's input, from batch_norm_sums. Parameters as batch_norm, and "
        "count: what the sums are divided by, None for x's own samples per channel.",
)

batch_norm_grads = op(
    "batch_norm_grads", cpu=paths.grads_cpu, gpu=paths.grads_gpu, backward=None, tangent=None,
    batch=batching.channels_grads, samples=None,  # it returns three arrays
    doc="The gradients of batch_norm's input, bias and weight: on a GPU two launches.",
)

batch_norm_op = op(
    "batch_norm", cpu=paths.forward_cpu, gpu=paths.forward_gpu, extras="center spread",
    saves=dict.fromkeys(("x", "weight", "bias", "mean", "var"), _SAVES),
    backward=_backward, tangent=tangent, batch=batching.channels, samples=_samples(),
    reference=reference,
    doc="act((x - mean) / sqrt(var + eps) * weight + bias) over channels (axis 1). In training "
        "mean and var are x's own statistics, computed where they are not given. Parameters: "
        "training, eps, activation (a name), parameter (its slope, alpha or beta), gather (None, "
        "or what stacks replicas' arrays: backward then takes the sums of all), moving (None, or "
        "the running averages to move towards mean and var that are computed).",
)

def _running_cpu(
    first: Array, now: Array, *later: Array, momentum: float, scales: tuple[float, ...],
    state: tuple[Array, ...] = (), out: Array,
) -> Array:
    for a, b, scale in zip((out, *state), (now, *later), scales, strict=False):
        paths.move(a, b, momentum=momentum, scale=scale, out=a)
    if len(state) > len(later):
        state[-1][...] += 1
    return out


def _running_kernel(averages: int, counted: bool) -> Elementwise:
    """Moves so many averages, and increases a counter."""
    inputs = [f"{'UV'[i]} now{i}, float64 scale{i}" for i in range(averages)]
    outputs = [f"{'AB'[i]} mean{i}" for i in range(averages)]
    outputs += ["raw int64 count"] * counted
    body = " ".join(f"mean{i} = mean{i} + momentum * (scale{i} * now{i} - mean{i});"
                    for i in range(averages))
    return elementwise(
        ", ".join(["float64 momentum", *inputs]), ", ".join(outputs),
        body + " if (i == 0) count[0] += 1;" * counted, name="gt_running_statistics")


_RUNNING = {key: _running_kernel(*key) for key in product((1, 2), (False, True))}


def _running_gpu(
    first: Array, now: Array, *later: Array, momentum: float, scales: tuple[float, ...],
    state: tuple[Array, ...] = (), out: Array,
) -> Array:
    """As _running_cpu, in one launch."""
    moved = 1 + len(later)
    inputs = [x for pair in zip((now, *later), scales, strict=True) for x in pair]
    _RUNNING[moved, len(state) == moved](momentum, *inputs, out=(out, *state))
    return out


running_statistics = Op(
    "running_statistics", inputs="first now later", variadic=True, cpu=_running_cpu,
    gpu=_running_gpu, backward=None, tangent=None, samples=None,
    doc="Averages moved towards scale * now by the fraction momentum, and a counter increased, in "
        "place.")


# -- public functions ----------------------------------------------------------------------------


@takes_arrays
def batch_norm_act(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, activation: str = "leaky_relu",
    activation_param: float = 0.01, num_batches_tracked: Tensor | None = None,
    gather: Gather | None = None,
) -> Tensor:
    """Batch norm and activation in one op, out of place; same shape. Saves the input alone.

    Args:
        input: (N, C, ...).
        running_mean, running_var: (C); in training moved towards the batch's mean and unbiased
            variance by `momentum`, in place; otherwise used to normalize.
        weight, bias: (C), or None for 1 and 0; float32 is allowed with a half input.
        training: normalize by the batch's own mean and biased variance.
        eps: added to the variance.
        activation: "identity", "relu", "leaky_relu", "elu", "gelu", "gelu_tanh", "silu", "sigmoid",
            "softplus" or "tanh".
        activation_param: leaky_relu's slope, elu's alpha, softplus' beta; positive.
        num_batches_tracked: int64 (); in training increased by one, in place.
        gather: None, or a function that returns all replicas' arrays stacked along a new first
            axis: then the batch in training is that of all replicas together, of which some may
            have no samples, and every replica must call. Backward calls it, too.

    Source: Ioffe and Szegedy, "Batch normalization", 2015.
    """
    running = running_mean, running_var, num_batches_tracked
    check_batch_norm(input, running, weight, bias, training, momentum, gather=gather)
    check_activation(activation, activation_param, input.dtype, "batch_norm_act")
    options = {"training": training, "eps": eps, "activation": activation,
               "parameter": activation_param, "gather": gather if training else None}
    if not training:
        return batch_norm_op(input, weight, bias, running_mean, running_var, **options)
    if gather is None:
        return batch_norm_op(input, weight, bias, None, None, **options,
                             **moving(input, running, momentum))
    mean, var, unbiased = batch_statistics(input, gather)
    y = batch_norm_op(input, weight, bias, mean, var, **options)
    move_averages(running, mean, unbiased, momentum)
    return y


def batch_statistics(x: Tensor, gather: Gather | None) -> tuple[Tensor, Tensor, Unbiased]:
    """Mean, biased and unbiased variance of x, or of all replicas' x.

    When a checkpointed function runs again, the replicas' are those of its first run: nothing is
    exchanged in the order in which a walk reaches checkpointed functions.
    """
    with no_grad():
        if gather is None:
            mean, var = batch_norm_statistics(x)
            return mean, var, unbiased_variance(x, var)
        mean, var, unbiased = same_again(lambda: replicas.joint_statistics(x, gather=gather))
    return mean, var, (unbiased, 1.0)


def unbiased_variance(x: Tensor, var: Tensor) -> Unbiased:
    """From the biased variance of x."""
    count = replicas.values_per_channel(x.shape)
    return var, count / (count - 1)


def moving(x: Tensor, running: Running, momentum: float) -> Params:
    """The parameter with which a norm of x moves the running statistics, for one call of its op.

    None when a checkpointed function runs again: the first run has updated them.
    """
    buffers = [buffer for buffer in running if buffer is not None]
    if is_recomputing() or not buffers:
        return {}
    count = replicas.values_per_channel(x.shape)
    mean, var, batches = (None if buffer is None else buffer._array for buffer in running)
    x._device.order((), tuple(buffer._array for buffer in buffers))
    for buffer in buffers:  # first: an interrupt may come during or after the write
        count_write(buffer)
    return {"moving": paths.Moving(mean, var, batches, momentum, count / (count - 1))}


def move_averages(running: Running, mean: Tensor, var: Unbiased, momentum: float) -> None:
    """Move the running statistics, in place, towards a batch's mean and unbiased variance.

    Not when a checkpointed function runs again: the first run has updated them.
    """
    if is_recomputing():
        return
    *averages, tracked = running
    moved = [(average, now, scale) for average, (now, scale) in zip(
        averages, ((mean, 1.0), var), strict=True) if average is not None]
    with no_grad():
        if moved:
            targets, values, scales = zip(*moved, strict=True)
            others = targets[1:] if tracked is None else (*targets[1:], tracked)
            write(running_statistics, targets[0], values[0],
                  {"momentum": momentum, "scales": scales}, values[1:], others)
        elif tracked is not None:
            tracked += 1


@takes_arrays
def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, num_batches_tracked: Tensor | None = None,
    gather: Gather | None = None,
) -> Tensor:
    """(input - mean) / sqrt(var + eps) * weight + bias per channel: see `batch_norm_act`.

    input is (N, C, ...), the others (C,) or None. Raises ValueError for other shapes, without the
    running statistics outside of training, and in training for one value per channel. Source: Ioffe
    and Szegedy, "Batch normalization", 2015.
    """
    return batch_norm_act(input, running_mean, running_var, weight, bias, training, momentum, eps,
                          "identity", num_batches_tracked=num_batches_tracked, gather=gather)


# -- checks of arguments, before anything is written -----------------------------------------------


def check_batch_norm(
    x: Tensor, running: Running, weight: Tensor | None, bias: Tensor | None, training: bool,
    momentum: float, name: str = "batch_norm", gather: Gather | None = None,
) -> None:
    """Raise for shapes or dtypes that do not fit, and within transforms for what they refuse."""
    running_mean, running_var, tracked = running
    if gather is not None and not callable(gather):
        raise TypeError(f"{name} was given gather={gather!r}; wanted a function or None")
    if momentum is not None:  # which no average may be
        want_number(name, momentum=momentum)
    want_tensors(name, running_mean=running_mean, running_var=running_var,
                 num_batches_tracked=tracked)
    if x.ndim < 2:
        raise ValueError(f"{name} was given an input of shape {x.shape}; wanted (N, C, ...)")
    named = {"running_mean": running_mean, "running_var": running_var, "weight": weight,
             "bias": bias}
    for which, tensor in named.items():
        if tensor is not None and tensor.shape != x.shape[1:2]:
            raise ValueError(f"{name} was given a {which} of shape {tensor.shape} for an input "
                             f"of shape {x.shape}; wanted ({x.shape[1]},)")
    work = computed_in(x.dtype)  # in which weights may be beside a half input
    same_dtype(name, input=x, **{which: t for which, t in (("weight", weight), ("bias", bias))
                                 if t is not None and t.dtype != work})
    if not training and (running_mean is None or running_var is None):
        raise ValueError(f"{name} was given no running_mean or no running_var outside training; "
                         "wanted both, or training=True")
    if training:
        _refuse_traced(name, (x, weight, bias, running_mean, running_var), gather)
        _check_averages(name, x, running, momentum)
    if training and gather is None and replicas.values_per_channel(x.shape) < 2:
        raise ValueError(f"{name} was given an input of shape {x.shape} in training; wanted "
                         "more than one value per channel")


def _refuse_traced(
    name: str, inputs: tuple[Tensor | None, ...], gather: Gather | None
) -> None:
    """Raise LevelError for replicas, and for averages that a transform would have to update."""
    level = newest(name, inputs)
    if level is not None and gather is not None:
        raise LevelError(f"{name} was given gather within {level.name}(); wanted None: "
                         "replicas are synchronized outside of transforms only")
    if level is not None and any(running is not None for running in inputs[3:]):
        raise LevelError(f"{name} would move its running statistics within {level.name}(), where "
                         "nothing is written; wanted None for both (track_running_stats=False), "
                         "or training=False")


def _check_averages(
    name: str, x: Tensor, running: Running, momentum: float
) -> None:
    """Raise for running statistics that cannot be updated, and for a momentum not a number."""
    if not isinstance(momentum, (int, float)):
        raise TypeError(f"{name} was given momentum={momentum!r}; wanted a number")
    names = "running_mean", "running_var", "num_batches_tracked"
    for which, buffer in zip(names, running, strict=True):
        if buffer is None:
            continue
        if buffer.device is not x.device:
            raise DeviceError(f"{name} was given a {which} on {buffer.device} for an input on "
                              f"{x.device}; move it with .to({str(x.device)!r}) first")
        if which != names[2] and not is_floating(buffer.dtype):
            raise TypeError(f"{name} was given a {which} of dtype {buffer.dtype}; wanted a "
                            "floating-point one")
        if not writable(buffer._array):
            raise ValueError(f"{name} was given a {which} whose elements share memory or are "
                             "read-only; clone() it first")
    tracked = running[2]
    if tracked is not None and (tracked.shape or tracked.dtype != "int64"):
        raise ValueError(f"{name} was given a {names[2]} of shape {tracked.shape} and dtype "
                         f"{tracked.dtype}; wanted one int64 of shape ()")


def check_eps(eps: float, dtype: np.dtype, name: str) -> None:
    """Raise unless eps is a positive number in the compute dtype."""
    if not 0 < computed_in(dtype).type(eps) < inf:
        raise ValueError(f"{name} was given eps={eps}; wanted a positive number, which keeps its "
                         "scale from 0")


def check_activation(activation: str, parameter: float, dtype: np.dtype, name: str) -> None:
    """Raise for an activation that is not known, and for a parameter that it cannot have."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"{name} was given activation={activation!r}; wanted one of "
                         f"{', '.join(ACTIVATIONS)}")
    takes_one = activation in ("leaky_relu", "elu", "softplus")
    if takes_one and not 0 < computed_in(dtype).type(parameter) < inf:  # 1e-50 is 0 as a float32
        raise ValueError(f"{name} was given activation_param={parameter} for {activation}; "
                         "wanted a positive number")
