"""Neural-network functions, with PyTorch's names, arguments and defaults.

Shapes: N images or rows, C channels or classes, H and W height and width; `...` any axes. The
tensors of a call share one floating dtype and one device. Where a Tensor is wanted a NumPy array, a
list or a number is taken for what `gt.asarray` makes of it, on the device of the tensors beside it.
Wrong shapes and values raise ValueError, wrong dtypes TypeError, before anything is computed.
Importing this module registers the ops behind it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from gtensor.creation.new_tensors import arange, ones
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn.composed_losses import (
    cosine_embedding_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    pairwise_distance,
    poisson_nll_loss,
    soft_margin_loss,
    triplet_margin_loss,
)
from gtensor.nn.patches import channel_shuffle, fold, pixel_shuffle, pixel_unshuffle, unfold
from gtensor.ops import broadcast_arrays, clip, where
from gtensor.ops.activations.activation import (
    elu,
    gelu,
    leaky_relu,
    relu,
    sigmoid,
    silu,
    softplus,
)
from gtensor.ops.activations.dropout import dropout
from gtensor.ops.activations.piecewise_activations import (
    hardsigmoid,
    hardswish,
    hardtanh,
    prelu,
    relu6,
    selu,
)
from gtensor.ops.activations.smooth_activations import (
    glu,
    logsigmoid,
    mish,
    softsign,
    swiglu,
)
from gtensor.ops.activations.softmax import log_softmax, softmax
from gtensor.ops.arrange.class_indices import one_hot
from gtensor.ops.arrange.embedding import embedding
from gtensor.ops.arrange.padding import pad
from gtensor.ops.arrange.writing import overwrite
from gtensor.ops.attention.attention import scaled_dot_product_attention
from gtensor.ops.attention.rotary import rotary_embedding
from gtensor.ops.conv.convolution import conv1d, conv2d, conv_transpose1d, conv_transpose2d
from gtensor.ops.define.arguments import autocast, same_dtype, takes_arrays, want_number
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.elementwise import exponentials
from gtensor.ops.linalg.feed_forward import feed_forward
from gtensor.ops.linalg.linear import linear
from gtensor.ops.linalg.norms import vector_norm
from gtensor.ops.losses.cross_entropy import cross_entropy, nll_loss
from gtensor.ops.losses.pointwise import huber_loss, l1_loss, mse_loss, smooth_l1_loss
from gtensor.ops.losses.probability import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    kl_div,
)
from gtensor.ops.norms.batch_norm import batch_norm, batch_norm_act
from gtensor.ops.norms.group_norm import group_norm
from gtensor.ops.norms.inplace_abn import abn, inplace_abn
from gtensor.ops.norms.layer_norm import layer_norm
from gtensor.ops.norms.rms_norm import rms_norm
from gtensor.ops.pool.adaptive_pool import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool2d,
)
from gtensor.ops.pool.average_pool import avg_pool1d, avg_pool2d
from gtensor.ops.pool.interpolation import interpolate
from gtensor.ops.pool.max_pool import max_pool1d, max_pool2d
from gtensor.ops.scan.linear_scan import linear_scan
from gtensor.random import exponential
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import entrance

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike
else:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "abn", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool1d",
    "avg_pool2d", "batch_norm", "batch_norm_act", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "celu", "celu_", "channel_shuffle", "conv1d", "conv2d",
    "conv_transpose1d", "conv_transpose2d", "cosine_embedding_loss", "cosine_similarity",
    "cross_entropy", "dropout", "dropout1d", "dropout2d", "dropout3d", "elu", "elu_", "embedding",
    "erf", "feed_forward", "fold", "gaussian_nll_loss", "gelu", "glu", "group_norm",
    "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hardtanh_",
    "hinge_embedding_loss", "huber_loss", "inplace_abn", "instance_norm", "interpolate", "kl_div",
    "l1_loss", "layer_norm", "leaky_relu", "leaky_relu_", "linear", "linear_scan", "log_softmax",
    "logsigmoid", "margin_ranking_loss", "max_pool1d", "max_pool2d", "mish", "mse_loss", "nll_loss",
    "normalize", "one_hot", "pad", "pairwise_distance", "pixel_shuffle", "pixel_unshuffle",
    "poisson_nll_loss", "prelu", "relu", "relu6", "relu_", "rms_norm", "rotary_embedding",
    "scaled_dot_product_attention", "selu", "selu_", "sigmoid", "silu", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "swiglu",
    "tanh", "tanhshrink", "threshold", "threshold_", "triplet_margin_loss", "unfold",
]

_P = ParamSpec("_P")


def _written(function: Callable[Concatenate[Tensor, _P], Tensor]
             ) -> Callable[Concatenate[Tensor, _P], Tensor]:
    """The form of an activation that makes its input the result, as `inplace=True` does."""

    def form(input: Tensor, /, *args: _P.args, **params: _P.kwargs) -> Tensor:
        return function(input, *args, **{**params, "inplace": True})  # type: ignore[arg-type]

    form.__name__ = form.__qualname__ = f"{function.__name__}_"
    form.__doc__ = f"`{function.__name__}` with inplace=True: the input itself becomes the result."
    signature = inspect.signature(function)
    form.__signature__ = signature.replace(parameters=[  # type: ignore[attr-defined]
        p for p in signature.parameters.values() if p.name != "inplace"])
    return entrance(form)


elu_ = _written(elu)
hardtanh_ = _written(hardtanh)
leaky_relu_ = _written(leaky_relu)
relu_ = _written(relu)
selu_ = _written(selu)


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent, elementwise. Saves its output."""
    return recorded.tanh(input)


def erf(input: Tensor) -> Tensor:
    """The error function, elementwise (within 3.5 units in the last place)."""
    return exponentials.erf(input)


@takes_arrays
def normalize(
    input: Tensor, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12
) -> Tensor:
    """input over its p-norm along `dim`, or over eps where that is larger; same shape.

    Raises TypeError for an input that is not floating.
    """
    same_dtype("normalize", input=input)
    (input,) = autocast("float32", input)
    wide = input.to(computed_in(input.dtype))
    return _normalized(wide, p, dim, eps).to(input.dtype)


def _normalized(
    input: Tensor, p: float, dim: int | tuple[int, ...], eps: float
) -> Tensor:
    return input / recorded.maximum(vector_norm(input, axis=dim, keepdims=True, ord=p), eps)


@takes_arrays
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along `dim`, which is left out of the shape.

    Shapes broadcast; `dim` counts the axes of the common shape. Norms below eps count as eps.
    """
    same_dtype("cosine_similarity", x1=x1, x2=x2)
    x1, x2 = autocast("float32", x1, x2)
    dtype = x1.dtype
    pair = (x.to(computed_in(dtype)) for x in (x1, x2))
    first, second = (_normalized(x, 2.0, dim, eps) for x in broadcast_arrays(*pair))
    return (first * second).sum(axis=dim).to(dtype)


# -- activations that are a few ops ----------------------------------------------------------------


@takes_arrays
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where positive, else alpha * (exp(input / alpha) - 1), elementwise.

    Source: Barron, "Continuously differentiable exponential linear units", 2017.

    Raises ValueError for an alpha that is not above 0.
    """
    if not alpha > 0:
        raise ValueError(f"celu was given alpha={alpha}; wanted a number above 0")
    return overwrite(celu, input, alpha) if inplace else alpha * elu(input / alpha)


celu_ = _written(celu)


@takes_arrays
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """0 where |input| <= lambd, else input, elementwise."""
    return where((input >= -lambd) & (input <= lambd), 0, input)


@takes_arrays
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """input moved by lambd towards 0, and 0 where it would pass that, elementwise.

    Raises ValueError for a negative lambd.
    """
    if not lambd >= 0:
        raise ValueError(f"softshrink was given lambd={lambd}; wanted 0 or more")
    return input - clip(input, -lambd, lambd)


@takes_arrays
def tanhshrink(input: Tensor) -> Tensor:
    """input - tanh(input), elementwise."""
    return input - recorded.tanh(input)


@takes_arrays
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """input where it is above the threshold, else `value`, elementwise."""
    if inplace:
        return overwrite(_threshold, input, threshold, value)
    return _threshold(input, threshold, value)


def _threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    return where(input <= threshold, value, input)


threshold_ = _written(threshold)


@takes_arrays
def softmin(input: Tensor, dim: int | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
    """`softmax` of -input along `dim`, which must be given."""
    return softmax(-input, dim, dtype=dtype)


@takes_arrays
def gumbel_softmax(
    logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A random choice along `dim` that has a gradient: softmax((logits + Gumbel noise) / tau).

    Args:
        logits: unnormalized log-probabilities, of any shape.
        tau: the temperature, above 0; near 0 the result is nearly one-hot.
        hard: make the result one-hot, with the gradient of the soft one.
        eps: has no effect, as in PyTorch.
        dim: along which the result adds up to 1.

    Source: Jang et al., "Categorical reparameterization with Gumbel-softmax", 2017. Raises
    ValueError for a tau that is not above 0, TypeError for logits that are not floating.
    """
    same_dtype("gumbel_softmax", logits=logits)
    want_number("gumbel_softmax", eps=eps)
    if not tau > 0:
        raise ValueError(f"gumbel_softmax was given tau={tau}; wanted a number above 0")
    (logits,) = autocast("float32", logits)
    work = computed_in(logits.dtype)
    noise = -recorded.log(exponential(logits.shape, dtype=work, device=logits.device))
    soft = softmax((logits.to(work) + noise) / tau, dim).to(logits.dtype)
    if not hard:
        return soft
    places = arange(soft.shape[dim], device=soft.device).reshape((-1,) + (1,) * (
        -dim - 1 if dim < 0 else soft.ndim - dim - 1))
    first = soft.detach().argmax(axis=dim, keepdims=True) == places
    return first.astype(soft.dtype) - soft.detach() + soft


# -- channels --------------------------------------------------------------------------------------


@takes_arrays
def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`dropout` of whole channels of signals (N, C, L), or of one (C, L).

    Raises ValueError for another number of axes.
    """
    return _dropped_channels("dropout1d", input, p, training, inplace, (2, 3))


@takes_arrays
def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`dropout` of whole channels of images (N, C, H, W).

    Source: Tompson et al., "Efficient object localization using convolutional networks", 2015.
    Raises ValueError for another number of axes: PyTorch takes three for (N, C, L) in the function
    and for (C, H, W) in the layer.
    """
    return _dropped_channels("dropout2d", input, p, training, inplace, (4,))


@takes_arrays
def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`dropout` of whole channels of volumes (N, C, D, H, W), or of one (C, D, H, W).

    Raises ValueError for another number of axes.
    """
    return _dropped_channels("dropout3d", input, p, training, inplace, (4, 5))


def _dropped_channels(
    name: str, input: Tensor, p: float, training: bool, inplace: bool, dims: tuple[int, ...]
) -> Tensor:
    if input.ndim not in dims:
        raise ValueError(f"{name} was given shape {input.shape}; wanted "
                         f"{' or '.join(map(str, dims))} axes")
    lead = input.ndim - (max(dims) - 2)
    kept = dropout(ones((*input.shape[:lead], *(1,) * (input.ndim - lead)), dtype=input.dtype,
                        device=input.device), p, training)
    if not training or p == 0:
        return input
    return overwrite(recorded.multiply, input, kept) if inplace else input * kept


@takes_arrays
def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:
    """Each channel of each image to mean 0 and variance 1, times weight, plus bias: (N, C, ...).

    It is `group_norm` of as many groups as channels. `momentum` has no effect.

    Source: Ulyanov et al., "Instance normalization", 2016. Raises ValueError for running statistics
    or use_input_stats=False, and for a weight or bias that is not (C).
    """
    want_number("instance_norm", momentum=momentum)
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise ValueError("instance_norm was given running statistics, or use_input_stats=False; "
                         "wanted neither: it normalizes by each image's own")
    if input.ndim < 3:
        raise ValueError(f"instance_norm was given shape {input.shape}; wanted (N, C, ...) with an "
                         "axis at least after C")
    return group_norm(input, input.shape[1], weight, bias, eps)


if TYPE_CHECKING:  # names of other libraries, for type checkers: see `gtensor.system.foreign_names`
    from gtensor.ops import logsumexp as logsumexp

    upsample, swish, soft_sign, log_sigmoid = interpolate, silu, softsign, logsigmoid
    hard_sigmoid, hard_tanh = hardsigmoid, hardtanh
    hard_swish = hard_silu = hardswish
