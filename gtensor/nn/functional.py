"""Neural-network functions, with PyTorch's names, arguments and defaults.

Shapes: N images or rows, C channels or classes, H and W height and width; `...` any axes. The
tensors of a call share one floating dtype and one device. A NumPy array, a list or a number where a
Tensor is wanted raises TypeError and is not converted (`gt.asarray` does that): its dtype would
seldom be the weights'. Activations of one input, which have no weights, take what `gt.exp` takes.
Wrong shapes and values raise ValueError, wrong dtypes TypeError, before anything is computed.
Importing this module registers the ops behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.engine.namespaces import recorded
from gtensor.engine.op import Op
from gtensor.engine.tensor import Tensor
from gtensor.ops import broadcast_arrays, where
from gtensor.ops.activations import activation as _activation
from gtensor.ops.activations import piecewise_activations as _rectifiers
from gtensor.ops.activations import smooth_activations as _gates
from gtensor.ops.activations import softmax as _softmax
from gtensor.ops.activations.dropout import dropout
from gtensor.ops.arrange.class_indices import one_hot
from gtensor.ops.arrange.embedding import embedding
from gtensor.ops.arrange.padding import pad
from gtensor.ops.arrange.shape import along_one, axis_index
from gtensor.ops.attention.attention import scaled_dot_product_attention
from gtensor.ops.build.arguments import same_dtype, want_tensors
from gtensor.ops.conv.convolution import conv1d, conv2d, conv_transpose1d, conv_transpose2d
from gtensor.ops.elementwise import erf as _special
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

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

__all__ = [
    "abn", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool1d",
    "avg_pool2d", "batch_norm", "batch_norm_act", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "conv1d", "conv2d", "conv_transpose1d",
    "conv_transpose2d", "cosine_similarity", "cross_entropy", "dropout", "elu", "embedding",
    "erf", "gelu", "glu", "group_norm", "hardsigmoid", "hardswish", "hardtanh", "huber_loss",
    "inplace_abn", "interpolate", "kl_div", "l1_loss", "layer_norm", "leaky_relu", "linear",
    "log_softmax", "logsigmoid", "max_pool1d", "max_pool2d", "mish", "mse_loss", "nll_loss",
    "normalize", "one_hot", "pad", "prelu", "relu", "relu6", "rms_norm",
    "scaled_dot_product_attention", "selu", "sigmoid", "silu", "smooth_l1_loss", "softmax",
    "softplus", "softsign", "tanh",
]

# -- activations ---------------------------------------------------------------------------------


def relu(input: Tensor) -> Tensor:
    """max(input, 0), elementwise; NaN passes. The gradient at 0 is 0. Saves its output."""
    return _activation.relu(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """input where positive, else input * negative_slope. With a positive slope saves its output."""
    if negative_slope > 0:
        return _activation.leaky_relu(input, negative_slope=float(negative_slope))
    return where(input > 0, input, input * negative_slope) if negative_slope else relu(input)


def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """input where positive, else alpha * (exp(input) - 1). With a positive alpha saves its output.

    Source: Clevert et al., "Fast and accurate deep network learning by exponential linear units",
    2015.
    """
    if alpha > 0:
        return _activation.elu(input, alpha=float(alpha))
    return where(input > 0, input, alpha * (recorded.exp(recorded.minimum(input, 0)) - 1))


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input times the normal distribution function of it, exact or by tanh (approximate="tanh").

    Source: Hendrycks and Gimpel, "Gaussian error linear units", 2016.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu was given approximate={approximate!r}; wanted 'none' or 'tanh'")
    return _activation.gelu(input, approximate=approximate)


def silu(input: Tensor) -> Tensor:
    """input * sigmoid(input), elementwise."""
    return _activation.silu(input)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input)), elementwise. Saves its output."""
    return _activation.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent, elementwise. Saves its output."""
    return recorded.tanh(input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta; input itself where beta * input > threshold."""
    if not beta > 0:
        raise ValueError(f"softplus was given beta={beta}; wanted a positive number")
    return _activation.softplus(input, factor=float(beta), threshold=float(threshold))


def erf(input: Tensor) -> Tensor:
    """The error function, elementwise (within 3.5 units in the last place)."""
    return _special.erf(input)


def mish(input: Tensor) -> Tensor:
    """input * tanh(softplus(input)), elementwise."""
    return _gates.mish(input)


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(input)), elementwise, without overflow."""
    return _gates.logsigmoid(input)


def softsign(input: Tensor) -> Tensor:
    """input / (1 + |input|), elementwise."""
    return _gates.softsign(input)


def selu(input: Tensor) -> Tensor:
    """elu with the alpha and the scale that keep mean 0 and variance 1. Saves its output.

    Source: Klambauer et al., "Self-normalizing neural networks", 2017.
    """
    return _rectifiers.selu(input)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """input cut at min_val and max_val; the gradient is 0 there and beyond. Saves its output."""
    if not min_val <= max_val:
        raise ValueError(f"hardtanh was given min_val={min_val} and max_val={max_val}; wanted "
                         "min_val <= max_val")
    return _rectifiers.hardtanh(input, lowest=float(min_val), highest=float(max_val))


def relu6(input: Tensor) -> Tensor:
    """input cut at 0 and 6."""
    return hardtanh(input, 0.0, 6.0)


def hardsigmoid(input: Tensor) -> Tensor:
    """(input + 3) / 6 cut at 0 and 1, elementwise."""
    return _rectifiers.hardsigmoid(input)


def hardswish(input: Tensor) -> Tensor:
    """input * hardsigmoid(input), elementwise.

    Source: Howard et al., "Searching for MobileNetV3", 2019.
    """
    return _rectifiers.hardswish(input)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """input where positive, else weight * input; weight (1,), or (C,) for input (N, C, ...).

    Source: He et al., "Delving deep into rectifiers", 2015.
    """
    same_dtype("prelu", input=input, weight=weight)
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.ndim > 1 or weight.size not in (1, channels):
        raise ValueError(f"prelu was given a weight of shape {weight.shape} for an input of shape "
                         f"{input.shape}; wanted (1,) or ({channels},)")
    tail = (1,) * (input.ndim - 2) if weight.size > 1 else ()
    shape = (weight.size, *tail) if input.ndim else ()
    return _rectifiers.prelu(input, weight.reshape(shape))


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b), where a and b are the halves of input along `dim`. Saves input only.

    Source: Dauphin et al., "Language modeling with gated convolutional networks", 2016.
    """
    want_tensors("glu", input=input)
    axis = axis_index(dim, input.ndim, "glu")
    half, odd = divmod(input.shape[axis], 2)
    if odd:
        raise ValueError(f"glu was given {input.shape[axis]} elements along axis {dim}; wanted an "
                         "even number")
    lead = (slice(None),) * axis
    return _gates.gated(input[(*lead, slice(0, half))], input[(*lead, slice(half, None))])


def softmax(input: Tensor, dim: int | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
    """exp(input) over its sum along `dim`, without overflow; same shape. Saves its output.

    `dim` must be given; with `dtype` the input is converted to it first.
    """
    return _normalized(_softmax.softmax, input, dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
    """input minus the logarithm of the sum of exp(input) along `dim`. Saves its output.

    `dim` must be given; with `dtype` the input is converted to it first.
    """
    return _normalized(_softmax.log_softmax, input, dim, dtype)


def _normalized(op: Op, input: Tensor, dim: int | None, dtype: DTypeLike | None) -> Tensor:
    """PyTorch still guesses `dim` where it is left out, and warns; a guess may sum wrong rows."""
    name = op.name
    if dim is None:
        raise TypeError(f"{name} was given dim=None; wanted the axis whose values add up to 1, "
                        "such as dim=-1")
    want_tensors(name, input=input)
    return along_one(op, input if dtype is None else input.astype(dtype), dim, name)


# -- directions ----------------------------------------------------------------------------------


def normalize(
    input: Tensor, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12
) -> Tensor:
    """input over its p-norm along `dim`, or over eps where that is larger; same shape."""
    same_dtype("normalize", input=input)
    return input / recorded.maximum(vector_norm(input, axis=dim, keepdims=True, ord=p), eps)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along `dim`, which is left out of the shape.

    Shapes broadcast; `dim` counts the axes of the common shape. Norms below eps count as eps.
    """
    same_dtype("cosine_similarity", x1=x1, x2=x2)
    first, second = (normalize(x, dim=dim, eps=eps) for x in broadcast_arrays(x1, x2))
    return (first * second).sum(axis=dim)
