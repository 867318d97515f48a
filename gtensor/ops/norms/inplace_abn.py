"""Batch norm and activation over the input's own memory: in-place activated batch norm.

y = act((x - mean) / sqrt(var + eps) * (|weight| + eps) + bias) is written over x, and backward
recomputes x by inverting the activation: the scale |weight| + eps is never 0. So a layer keeps one
buffer, which its consumer saves anyway. With an activation without an inverse the layer saves x
instead, and its consumer saves a recipe for y (gtensor/engine/recompute.py): one buffer again.

Source: Rota Bulo, Porzi, Kontschieder, "In-place activated batch norm", CVPR 2018.
"""

from __future__ import annotations

from typing import Any

from gtensor.backend.kernels import elementwise
from gtensor.engine.context import no_grad
from gtensor.engine.namespaces import recorded
from gtensor.engine.op import op
from gtensor.engine.overwrite import apply_keeping, apply_over, recording
from gtensor.engine.samples import Draw, Sample, apart, normal, positive, unary
from gtensor.engine.tensor import Tensor, wrap
from gtensor.ops.activations.inverses import INVERSES
from gtensor.ops.build.arguments import want_tensors
from gtensor.ops.build.cpu_tiles import computed_in
from gtensor.ops.build.path_builders import tiled
from gtensor.ops.build.pointwise import partial, pointwise
from gtensor.ops.norms import batch_norm
from gtensor.ops.norms import inplace_abn_gpu as gpu
from gtensor.ops.norms import inplace_abn_paths as cpu
from gtensor.ops.norms.batch_norm_checks import check_activation, check_batch_norm, check_eps
from gtensor.ops.norms.replicas import Gather, Replicas

# -- rules ---------------------------------------------------------------------------------------


def _backward(ns: Any, step: Any, g: Any) -> None:
    weight, bias, z, center, spread = step.saved
    params = step.params
    if ns is recorded:
        _backward_recorded(ns, step, g, (z, weight, bias, center, spread))
        return
    dx, sums = ns.inplace_abn_grad(g, z, weight, bias, center, spread, **params, out=step.reuse(g))
    if not params["training"]:
        batch_norm.give_statistics(ns, step, sums, weight, spread)
    if step.needs(1):
        step.give(1, ns.slice(sums, key=(1,)))
    if step.needs(2):
        step.give(2, ns.slice(sums, key=(0,)))
    if step.needs(0):
        step.give(0, dx)


def _backward_recorded(ns: Any, step: Any, g: Any, arrays: tuple[Any, ...]) -> None:
    """x again, with its history, and then the rule of the out-of-place op."""
    params = step.params
    with no_grad():
        x = ns.inplace_abn_input(*arrays, **{
            name: params[name] for name in ("eps", "activation", "parameter")})
    _, weight, bias, center, spread = arrays
    if not params["training"]:  # copies of what was given: the history is of that
        center, spread = step.rebuilt(3, center), step.rebuilt(4, spread)
    batch_norm.give_gradients(
        ns, step, g, (step.rebuilt(0, x), weight, bias, center, spread), params)


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
                           "parameter": 1.0, "sync": None}
                statistics = (None, None) if training else (c, c)
                found.append(Sample((shape, c, c, *statistics), draws, options))
    return found


abn_scale = op(
    "abn_scale", inputs="weight", cpu=tiled("abn_scale", lambda ns, w, *, eps: ns.abs(w) + eps),
    gpu=elementwise("T w, float64 eps", "T scale", "scale = abs(gt_up(w)) + gt_float<T>(eps)",
                    "number.cuh", "gt_abn_scale"),
    backward=pointwise(partial("weight", lambda ns, g, w, out, eps: ns.abs_grad(g, w, out=out))),
    samples=unary(apart, eps=1e-5), reference=lambda torch, w, eps: torch.abs(w) + eps,
    doc="|weight| + eps: a scale that an in-place batch norm can divide by. Parameters: eps.",
)

inplace_abn_grad = op(
    "inplace_abn_grad", cpu=cpu.grad_cpu, gpu=gpu.grad_gpu, extras="sums", backward=None,
    tangent=None, samples=None,  # mean and var must be x's: tested through inplace_abn
    doc="The gradient of inplace_abn's input from its output, and the gradients of bias and scale.",
)

inplace_abn_input = op(
    "inplace_abn_input", cpu=cpu.input_cpu, gpu=gpu.input_gpu, backward=None, tangent=None,
    samples=None,  # as above
    doc="The input of inplace_abn, found again from its output.",
)

inplace_abn_op = op(
    "inplace_abn", cpu=cpu.forward_cpu, gpu=gpu.forward_gpu, extras="center spread",
    saves=dict.fromkeys(("x", "weight", "bias", "mean", "var"), "weight bias out center spread"),
    backward=_backward, tangent=batch_norm.tangent, samples=_samples(),
    reference=batch_norm.reference,
    doc="batch_norm for weight > 0 and activations that have an inverse; only the output is saved, "
        "and `gtensor.nn.functional.inplace_abn` writes it over x. Parameters as batch_norm, and "
        "sync: None, or what adds up sums over replicas.",
)


# -- the public functions ------------------------------------------------------------------------


def abn(
    input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
    running_mean: Tensor | None = None, running_var: Tensor | None = None, training: bool = True,
    momentum: float = 0.1, eps: float = 1e-5, activation: str = "leaky_relu",
    activation_param: float = 0.01,
) -> Tensor:
    """`inplace_abn` out of place; `input` is saved and not changed."""
    want_tensors("abn", input=input, weight=weight)
    check_eps(eps, input.dtype, "abn")
    work = computed_in(input.dtype)
    scale = None if weight is None else _scale(weight, work, eps)
    return batch_norm.batch_norm_act(input, running_mean, running_var, scale, bias, training,
                                     momentum, eps, activation, activation_param)


def inplace_abn(
    input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
    running_mean: Tensor | None = None, running_var: Tensor | None = None, training: bool = True,
    momentum: float = 0.1, eps: float = 1e-5, activation: str = "leaky_relu",
    activation_param: float = 0.01, gather: Gather | None = None,
) -> Tensor:
    """Batch norm and activation over the memory of `input`, which is consumed; same shape.

    act((x - mean) / sqrt(var + eps) * (|weight| + eps) + bias). After the call `input` keeps its
    shape and its gradient; any other use of it raises ConsumedError. If another reader could see
    the write (leaves, data, live views, saved or exported memory), the output gets a new buffer
    instead, counted by `gtensor.memory.copies()`, and `input` is not consumed.

    Args:
        input: (N, C, ...), channels first or last in memory.
        weight, bias: (C), or None for a scale of 1 and 0; float32 is allowed with a half input.
        running_mean, running_var: (C), or None; see `batch_norm_act`.
        training: normalize by the batch's own mean and biased variance.
        eps: added to the variance and to |weight|.
        activation: "leaky_relu", "elu", "identity", "tanh", "sigmoid" or "softplus", which are
            inverted; or "relu", "gelu", "gelu_tanh" or "silu", for which x is saved.
        activation_param: leaky_relu's slope, elu's alpha, softplus' beta; positive.
        gather: None, or a function that returns all replicas' arrays stacked along a new first
            axis: then the batch is that of all replicas together, and every replica must call.

    Raises:
        ValueError: for shapes, an activation or a parameter that do not fit, and for one value per
            channel in training. Nothing is written then.

    Source: Rota Bulo, Porzi, Kontschieder, "In-place activated batch norm", CVPR 2018.
    """
    check_batch_norm(input, running_mean, running_var, weight, bias, training, momentum,
                     "inplace_abn", alone=gather is None)
    check_eps(eps, input.dtype, "inplace_abn")
    check_activation(activation, activation_param, input.dtype, "inplace_abn")
    scale = None if weight is None else _scale(weight, computed_in(input.dtype), eps)
    mean, var = (None, None) if training else (running_mean, running_var)
    if not training and recording(input, weight, bias, running_mean, running_var):
        mean, var = recorded.clone(mean), recorded.clone(var)  # they may move before backward
    count = input.size // max(1, input.shape[1])
    inverted = activation in INVERSES
    sync = Replicas(gather) if gather is not None and training else None
    if sync is not None or (training and not inverted):
        mean, var = _statistics(input, sync)
        count = count if sync is None else sync.count
        if count < 2:
            raise ValueError("inplace_abn was given one value per channel over all replicas in "
                             "training; wanted more")
    options = {"training": training, "eps": eps, "activation": activation,
               "parameter": activation_param, "sync": sync}
    inputs = (input, scale, bias, mean, var)
    if inverted:
        y, (center, spread) = apply_over(inplace_abn_op, inputs, options)
        mean, var = (wrap(a, y.device) for a in (center, spread))
    else:
        y = apply_keeping(batch_norm.batch_norm_op, inputs, options)
    if training:
        assert mean is not None and var is not None
        batch_norm.move_averages(running_mean, running_var, mean, var, count, momentum)
    return y


def _statistics(x: Tensor, sync: Replicas | None) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of x, or of all replicas' x."""
    with no_grad():
        mean, var = batch_norm.batch_norm_statistics(x)
    if sync is None:
        return mean, var
    total = sync.statistics(mean._array, var._array, x.size // max(1, x.shape[1]))
    return wrap(total[0], x.device), wrap(total[1], x.device)


def _scale(weight: Tensor, work: Any, eps: float) -> Tensor:
    """|weight| + eps, in the compute dtype: a half type would lose eps."""
    wide = weight if weight.dtype == work else recorded.astype(weight, dtype=work)
    return recorded.abn_scale(wide, eps=eps)
