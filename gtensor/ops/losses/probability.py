"""Losses of probabilities: Kullback-Leibler divergence, binary cross entropy and that of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.levels import underlying
from gtensor.engine.tape.samples import Sample, alike, normal
from gtensor.ops.define.arguments import REDUCTIONS, same_dtype, takes_arrays
from gtensor.ops.losses.pointwise import checked_target, loss_gradient, loss_ops, reduced

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path
    from gtensor.engine.handle.namespaces import Namespace

_LEAST_LOG = -100.0  # logarithms in binary cross entropy are cut here, as in PyTorch
_LEAST_VARIANCE = 1e-12


def _probabilities(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.05, 0.95, shape)


def _grad_samples(samples: Sequence[Sample], without: int | None = None) -> list[Sample]:
    """Samples of a loss's gradient: g first, and one input less where the gradient lacks it."""
    kept = [i for i in range(len(samples[0].shapes)) if i != without]
    return [Sample((s.shapes[0], *[s.shapes[i] for i in kept]),
                   (normal, *[s.draws[i] if isinstance(s.draws, tuple) else s.draws for i in kept]),
                   {"scale": 0.5}) for s in samples]


# -- Kullback-Leibler divergence -------------------------------------------------------------------


def _log_or_0(ns: Namespace, t: Array) -> Array:
    """log(t); 0 where t = 0, where only t log(t) = 0 is wanted."""
    return ns.log(ns.where(ns.equal(t, 0), 1.0, t))


loss_gradient(
    "kl_div_grad", lambda ns, g, t, *, scale: g * (t * -scale),
    samples=alike(2, scale=0.5), reference=lambda torch, g, t, scale: g * t * -scale,
    doc="The gradient of scale * t (log(t) - x) with respect to x.",
)

loss_gradient(
    "kl_div_grad_target",
    lambda ns, g, x, t, *, scale: g * (scale * (_log_or_0(ns, t) + 1 - x)),
    samples=_grad_samples(alike(2, (normal, _probabilities))),
    reference=lambda torch, g, x, t, scale: g * scale * (torch.log(t) + 1 - x),
    doc="The gradient of scale * t (log(t) - x) with respect to t.",
)

kl_div_op, kl_div_sum = loss_ops(
    "kl_div", lambda ns, x, t: t * (_log_or_0(ns, t) - x),
    ("kl_div_grad t", "kl_div_grad_target x t"),
    samples=alike(2, (normal, _probabilities)),
    reference=lambda torch, x, t: torch.nn.functional.kl_div(x, t, reduction="none"),
    doc="t (log(t) - x); -t x and so 0 for x where t = 0",
)

loss_gradient(
    "kl_div_log_grad", lambda ns, g, t, *, scale: g * (-scale * ns.exp(t)),
    samples=alike(2, scale=0.5), reference=lambda torch, g, t, scale: -g * scale * torch.exp(t),
    doc="The gradient of scale * exp(t) (t - x) with respect to x.",
)

loss_gradient(
    "kl_div_log_grad_target",
    lambda ns, g, x, t, *, scale: g * (scale * ns.exp(t) * (t - x + 1)),
    samples=alike(3, scale=0.5),
    reference=lambda torch, g, x, t, scale: g * scale * torch.exp(t) * (t - x + 1),
    doc="The gradient of scale * exp(t) (t - x) with respect to t.",
)

kl_div_log, kl_div_log_sum = loss_ops(
    "kl_div_log", lambda ns, x, t: ns.exp(t) * (t - x),
    ("kl_div_log_grad t", "kl_div_log_grad_target x t"), samples=alike(2),
    reference=lambda torch, x, t: torch.nn.functional.kl_div(
        x, t, reduction="none", log_target=True),
    doc="exp(t) (t - x)",
)


@takes_arrays
def kl_div(
    input: Tensor, target: Tensor | float, *, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """target (log(target) - input): the Kullback-Leibler divergence, reduced.

    Args:
        input: log-probabilities.
        target: probabilities, or their logarithms with log_target=True; of one shape with input.
        reduction: "mean" over all elements, "batchmean" (the sum over the first axis' length, which
            is the divergence by its definition), "sum" or "none".

    Raises ValueError for an unknown reduction, "batchmean" of a scalar, and shapes that differ.
    """
    per_row = reduction == "batchmean"
    if not per_row and reduction not in REDUCTIONS:
        raise ValueError(f"kl_div was given reduction={reduction!r}; wanted 'none', 'mean', "
                         "'batchmean' or 'sum'")
    target = checked_target("kl_div", "sum" if per_row else reduction, input, target)
    if per_row and not input.ndim:
        raise ValueError("kl_div was given reduction='batchmean' and shape (); wanted (N, ...)")
    ops = (kl_div_log, kl_div_log_sum) if log_target else (kl_div_op, kl_div_sum)
    total = reduced(ops, (input, target), "sum" if per_row else reduction)
    return total / input.shape[0] if per_row else total


# -- binary cross entropy --------------------------------------------------------------------------


def _times(a: Array, weight: Array | None) -> Array:
    return a if weight is None else a * weight


def _partial_weight(loss: str) -> Path:
    """The derivative by the weight, which comes third: the loss without it."""

    def partial(
        ns: Namespace, g: Array, x: Array, t: Array, weight: Array | None, *more: Array | None,
        out: Array | None, scale: float
    ) -> Array:
        losses = getattr(ns, loss)(x, t, None, *more)
        # NumPy answers scalars for 0-d; of weights of several examples the product is larger
        fits = not g.ndim or g.shape == losses.shape
        over = losses if losses.ndim and fits else None
        return ns.multiply(ns.multiply(g, losses, out=over), scale, out=over)

    return partial


def _bce_formula(ns: Namespace, x: Array, t: Array, weight: Array | None) -> Array:
    hit = ns.maximum(ns.log(x), _LEAST_LOG)
    missed = ns.maximum(ns.log1p(-x), _LEAST_LOG)
    return _times((t - 1) * missed - t * hit, weight)


def _bce_grad_formula(
    ns: Namespace, g: Array, x: Array, t: Array, weight: Array | None, *, scale: float
) -> Array:
    variance = ns.maximum(x * (1 - x), _LEAST_VARIANCE)
    return _times(g * (scale * (x - t) / variance), weight)


def _bce_grad_target_formula(
    ns: Namespace, g: Array, x: Array, weight: Array | None, *, scale: float
) -> Array:
    change = ns.maximum(ns.log1p(-x), _LEAST_LOG) - ns.maximum(ns.log(x), _LEAST_LOG)
    return _times(g * (scale * change), weight)


_THREE = [*alike(3, _probabilities), Sample(((2, 3), (2, 3), None), _probabilities),
          Sample(((2, 3), (2, 3), (3,)), _probabilities)]

loss_gradient(
    "bce_grad", _bce_grad_formula,
    samples=_grad_samples(_THREE),
    doc="The gradient of scale * bce with respect to x.",
)

loss_gradient(
    "bce_grad_target", _bce_grad_target_formula,
    samples=_grad_samples(_THREE, without=1),
    doc="The gradient of scale * bce with respect to t.",
)

bce, bce_sum = loss_ops(
    "bce", _bce_formula,
    ("bce_grad x t weight", "bce_grad_target x weight", _partial_weight("bce")),
    samples=_THREE,
    reference=lambda torch, x, t, weight: torch.nn.functional.binary_cross_entropy(
        x, t, reduction="none") * (1 if weight is None else weight),
    doc="-(t log(x) + (1 - t) log(1 - x)) weight, logarithms cut at -100",
)


@takes_arrays
def binary_cross_entropy(
    input: Tensor, target: Tensor | float, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """-(target log(input) + (1 - target) log(1 - input)) weight, reduced; logarithms cut at -100.

    Args:
        input: probabilities, from 0 to 1 (checked on the CPU only; on a GPU that would wait).
        target: of the same shape, from 0 to 1.
        weight: broadcasts to that shape.

    Raises ValueError for an input that is no probability (on the CPU), and for shapes that differ.
    """
    target = checked_target("binary_cross_entropy", reduction, input, target)
    _check_weight("binary_cross_entropy", input, weight=weight)
    values = underlying(input)._array
    if input.device.type == "cpu" and values.size:
        lowest, highest = values.min(), values.max()
        if not (lowest >= 0 and highest <= 1):  # NaN is neither
            raise ValueError("binary_cross_entropy was given an input with values from "
                             f"{float(lowest)} to {float(highest)}; wanted 0 to 1 (for logits use "
                             "binary_cross_entropy_with_logits)")
    return reduced((bce, bce_sum), (input, target, weight), reduction)


def _check_weight(name: str, input: Tensor, **weights: Tensor | None) -> None:
    """Raise unless each weight that is there broadcasts to the input and has its dtype."""
    for label, weight in weights.items():
        if weight is None:
            continue
        try:
            fits = np.broadcast_shapes(weight.shape, input.shape) == input.shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"{name} was given {label} of shape {weight.shape}; wanted one that "
                             f"broadcasts to {input.shape}")
    same_dtype(name, input=input, **weights)


# -- binary cross entropy of logits ----------------------------------------------------------------


def _misses(ns: Namespace, x: Array) -> Array:
    """softplus(-x) = -log(sigmoid(x)), without overflow."""
    return ns.log1p(ns.exp(-ns.abs(x))) - ns.minimum(x, 0)


def _logits_formula(
    ns: Namespace, x: Array, t: Array, weight: Array | None, positive: Array | None
) -> Array:
    missed = _misses(ns, x)
    if positive is not None:
        missed = missed * (1 + (positive - 1) * t)
    return _times((1 - t) * x + missed, weight)


def _logits_grad_formula(
    ns: Namespace, g: Array, x: Array, t: Array, weight: Array | None, positive: Array | None, *,
    scale: float
) -> Array:
    if positive is None:
        change = ns.sigmoid(x) - t
    else:
        hit = positive * t
        change = (hit + 1 - t) * ns.sigmoid(x) - hit
    return _times(g * (scale * change), weight)


def _logits_grad_target_formula(
    ns: Namespace, g: Array, x: Array, weight: Array | None, positive: Array | None, *, scale: float
) -> Array:
    change = -x if positive is None else (positive - 1) * _misses(ns, x) - x
    return _times(g * (scale * change), weight)


def _logits_grad_positive_formula(
    ns: Namespace, g: Array, x: Array, t: Array, weight: Array | None, *, scale: float
) -> Array:
    return _times(g * (scale * t * _misses(ns, x)), weight)


_WEIGHTS = (((2, 3), (2, 3)), (None, (3,)), ((2, 1), None), (None, None))
_FOUR = [*alike(4, (normal, _probabilities, _probabilities, _probabilities)),
         *[Sample(((2, 3), (2, 3), *ws), (normal, *[_probabilities] * 3)) for ws in _WEIGHTS]]

loss_gradient(
    "bce_logits_grad", _logits_grad_formula,
    samples=_grad_samples(_FOUR),
    doc="The gradient of scale * bce_logits with respect to x.",
)

loss_gradient(
    "bce_logits_grad_target", _logits_grad_target_formula,
    samples=_grad_samples(_FOUR, without=1),
    doc="The gradient of scale * bce_logits with respect to t.",
)

loss_gradient(
    "bce_logits_grad_positive", _logits_grad_positive_formula,
    samples=_grad_samples(_FOUR, without=3),
    doc="The gradient of scale * bce_logits with respect to the weight of positives.",
)


def _logits_reference(torch: Any, x: Any, t: Any, weight: Any, positive: Any) -> Any:
    softplus = torch.nn.functional.softplus
    hit = t * softplus(-x) * (1 if positive is None else positive)
    return (hit + (1 - t) * softplus(x)) * (1 if weight is None else weight)


bce_logits, bce_logits_sum = loss_ops(
    "bce_logits", _logits_formula,
    ("bce_logits_grad x t weight positive", "bce_logits_grad_target x weight positive",
     _partial_weight("bce_logits"), "bce_logits_grad_positive x t weight"),
    samples=_FOUR, reference=_logits_reference,
    doc="((1 - t) x + softplus(-x) (1 + (positive - 1) t)) weight",
)


@takes_arrays
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor | float, weight: Tensor | None = None, *, reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Binary cross entropy of sigmoid(input), without overflow; reduced.

    Args:
        input: logits, of any shape.
        target: of the same shape, from 0 to 1.
        weight: of the losses; broadcasts to that shape.
        pos_weight: of the positive targets; broadcasts to that shape.
    """
    name = "binary_cross_entropy_with_logits"
    target = checked_target(name, reduction, input, target)
    _check_weight(name, input, weight=weight, pos_weight=pos_weight)
    return reduced((bce_logits, bce_logits_sum), (input, target, weight, pos_weight), reduction)
