"""Neural-network functions, with PyTorch's names, arguments and defaults.

Shapes: N images or rows, C channels or classes, H and W height and width; `...` any axes. The
tensors of a call share one floating dtype and one device. Wrong shapes and values raise ValueError,
wrong dtypes TypeError, before anything is computed. Importing this module registers
the ops behind it.
"""

from __future__ import annotations

import math

from gtensor.core.namespaces import public, recorded
from gtensor.core.tensor import Tensor
from gtensor.creation import arange
from gtensor.ops import activation as _activation
from gtensor.ops import matmul, where
from gtensor.ops import softmax as _softmax
from gtensor.ops import special as _special
from gtensor.ops.average_pool import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from gtensor.ops.batch_norm import batch_norm, batch_norm_act
from gtensor.ops.classes import one_hot
from gtensor.ops.conv import conv2d
from gtensor.ops.dropout import dropout
from gtensor.ops.embedding import embedding
from gtensor.ops.layer_norm import layer_norm
from gtensor.ops.linear import linear, same_dtype
from gtensor.ops.loss import cross_entropy, mse_loss, nll_loss
from gtensor.ops.reduce import normalize_axis

__all__ = [
    "adaptive_avg_pool2d", "avg_pool2d", "batch_norm", "batch_norm_act", "conv2d", "cross_entropy",
    "dropout", "elu", "embedding", "erf", "gelu", "layer_norm", "leaky_relu", "linear",
    "log_softmax", "max_pool2d", "mse_loss", "nll_loss", "one_hot", "relu",
    "scaled_dot_product_attention", "sigmoid", "silu", "softmax", "softplus", "tanh",
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
    """The error function, elementwise (float32 within 2.5 units in the last place)."""
    return _special.erf(input)


def softmax(input: Tensor, dim: int) -> Tensor:
    """exp(input) over its sum along `dim`, without overflow; same shape. Saves its output."""
    return _softmax.softmax(input, axis=normalize_axis(dim, input.ndim, "softmax")[0])


def log_softmax(input: Tensor, dim: int) -> Tensor:
    """input minus the logarithm of the sum of exp(input) along `dim`. Saves its output."""
    return _softmax.log_softmax(input, axis=normalize_axis(dim, input.ndim, "log_softmax")[0])


# -- attention -----------------------------------------------------------------------------------


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
) -> Tensor:
    """softmax(query @ key.mT * scale + mask) @ value, of shape (..., L, D_v).

    Composed of other ops: it keeps the (..., L, S) weights. Dropout with dropout_p > 0 always acts.

    Args:
        query: (..., L, D).
        key: (..., S, D).
        value: (..., S, D_v).
        attn_mask: broadcastable to (..., L, S): boolean (True takes part), or added to the scores.
        is_causal: position i sees positions up to i; excludes attn_mask.
        scale: 1 / sqrt(D) by default.

    Source: Vaswani et al., "Attention is all you need", 2017.
    """
    same_dtype("scaled_dot_product_attention", query=query, key=key, value=value)
    if min(query.ndim, key.ndim, value.ndim) < 2 or (
            query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]):
        raise ValueError(
            f"scaled_dot_product_attention was given a query of shape {query.shape}, a key of "
            f"shape {key.shape} and a value of shape {value.shape}; wanted (..., L, D), "
            "(..., S, D), (..., S, D_v)")
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention was given attn_mask and is_causal=True; "
                         "wanted one of them")
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = matmul(query * factor, key.mT)
    if is_causal:
        attn_mask = _causal_mask(query, key)
    if attn_mask is not None:
        whole = attn_mask.dtype.kind == "b"
        scores = where(attn_mask, scores, -math.inf) if whole else scores + attn_mask
    weights = softmax(scores, -1)
    return matmul(dropout(weights, dropout_p) if dropout_p else weights, value)


def _causal_mask(query: Tensor, key: Tensor) -> Tensor:
    """(L, S): True where the key's position is not after the query's."""
    rows = arange(query.shape[-2], device=query.device).reshape(-1, 1)
    return rows >= arange(key.shape[-2], device=query.device)


# Methods of Tensor.
public.relu, public.sigmoid = relu, sigmoid
