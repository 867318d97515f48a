"""Neural-network functions, with PyTorch's names, arguments and defaults.

Shapes: N images or rows, C channels or classes, H and W height and width; `...` any axes. The
tensors of a call share one floating dtype and one device. A NumPy array, a list or a number where a
Tensor is wanted raises TypeError and is not converted (`gt.asarray` does that): its dtype would
seldom be the weights'. Activations of one input, which have no weights, take what `gt.exp` takes.
Wrong shapes and values raise ValueError, wrong dtypes TypeError, before anything is computed.
Importing this module registers the ops behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops import broadcast_arrays
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
from gtensor.ops.attention.attention import scaled_dot_product_attention
from gtensor.ops.attention.rotary import rotary_embedding
from gtensor.ops.conv.convolution import conv1d, conv2d, conv_transpose1d, conv_transpose2d
from gtensor.ops.define.arguments import autocast, same_dtype
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
from gtensor.system.late_imports import late as _late

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "abn", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool1d",
    "avg_pool2d", "batch_norm", "batch_norm_act", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d",
    "cosine_similarity", "cross_entropy", "dropout", "elu", "elu_", "embedding", "erf",
    "feed_forward", "gelu", "glu", "group_norm", "hardsigmoid", "hardswish", "hardtanh",
    "hardtanh_", "huber_loss", "inplace_abn", "interpolate", "kl_div", "l1_loss", "layer_norm",
    "leaky_relu", "leaky_relu_", "linear", "linear_scan", "log_softmax", "logsigmoid", "max_pool1d",
    "max_pool2d", "mish", "mse_loss", "nll_loss", "normalize", "one_hot", "pad", "prelu", "relu",
    "relu6", "relu_", "rms_norm", "rotary_embedding", "scaled_dot_product_attention", "selu",
    "selu_", "sigmoid", "silu", "smooth_l1_loss", "softmax", "softplus", "softsign", "swiglu",
    "tanh",
]

_P = ParamSpec("_P")


def _written(function: Callable[Concatenate[Tensor, _P], Tensor]
             ) -> Callable[Concatenate[Tensor, _P], Tensor]:
    """The form of an activation that makes its input the result, as `inplace=True` does."""

    def form(input: Tensor, /, *args: _P.args, **params: _P.kwargs) -> Tensor:
        return function(input, *args, **{**params, "inplace": True})  # type: ignore[arg-type]

    form.__name__ = form.__qualname__ = f"{function.__name__}_"
    form.__doc__ = f"`{function.__name__}` with inplace=True: the input itself becomes the result."
    return form


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
