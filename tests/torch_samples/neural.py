"""gtensor.nn.functional, by PyTorch's own argument names."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import gtensor as gt
from torch_samples.cases import (
    NO_COMPLEX,
    NO_INTEGER,
    Case,
    Skip,
    complex_values,
    keyword,
    never,
    of,
    same,
    scalar_axis,
)

F = gt.nn.functional

AS_THEY_ARE = (
    "relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "mish", "logsigmoid", "softsign",
    "selu", "hardtanh", "relu6", "hardsigmoid", "hardswish", "prelu", "glu", "linear",
    "layer_norm", "group_norm", "rms_norm", "batch_norm", "scaled_dot_product_attention",
    "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "avg_pool1d", "cross_entropy", "nll_loss", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "one_hot", "celu", "hardshrink", "softshrink", "tanhshrink",
    "threshold", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "unfold", "instance_norm",
    "pairwise_distance", "triplet_margin_loss", "margin_ranking_loss", "cosine_embedding_loss",
    "hinge_embedding_loss", "soft_margin_loss", "poisson_nll_loss", "gaussian_nll_loss",
)
IMAGES = Skip("interpolate is for one or two axes beside N and C",
              lambda given: given.input.ndim > 4)
PADS = Skip("PyTorch cuts where the width is negative, gtensor only with mode='constant'",
            lambda given: min(given.args[0]) < 0)
SKIPS: dict[str, list[Skip]] = {
    "hardtanh": [NO_INTEGER], "relu6": [NO_INTEGER], "avg_pool1d": [NO_INTEGER],
    "linear": [NO_INTEGER, NO_COMPLEX], "rms_norm": [NO_COMPLEX], "l1_loss": [NO_COMPLEX],
    "conv1d": [NO_INTEGER, NO_COMPLEX], "conv2d": [NO_INTEGER, NO_COMPLEX],
    "conv_transpose1d": [NO_INTEGER, NO_COMPLEX], "conv_transpose2d": [NO_INTEGER, NO_COMPLEX],
    "batch_norm": [Skip("an input has rows and channels", lambda given: given.input.ndim < 2)],
    "scaled_dot_product_attention": [
        Skip("dropout is random", lambda given: given.kwargs["dropout_p"] > 0)],
    "max_pool2d": [NO_INTEGER], "tanhshrink": [NO_INTEGER],
    "pairwise_distance": [NO_INTEGER, NO_COMPLEX],
    "instance_norm": [Skip("there are no running statistics", lambda given: (
        given.kwargs.get("running_mean") is not None))],
    "triplet_margin_loss": [NO_INTEGER, NO_COMPLEX],
    "cosine_embedding_loss": [NO_INTEGER, Skip("no numbers", of(torch.bool))],
    "margin_ranking_loss": [NO_INTEGER], "poisson_nll_loss": [NO_INTEGER],
    "interpolate.nearest": [IMAGES], "interpolate.area": [IMAGES],
    "pad.reflect": [PADS], "pad.replicate": [PADS], "pad.circular": [PADS],
}
REFUSES = {"unfold": complex_values, "softsign": complex_values, "pad.constant": complex_values}
TOLERANCES = {"hardsigmoid": 1e-7}  # PyTorch's sixth in the gradient is a float32


def _attention(*args: Any, **kwargs: Any) -> Any:
    """PyTorch's attention by its formula: its fused kernel has no second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


def _nll_loss(input: Any, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's, whose gradient of a transposed input is an error."""
    return torch.nn.functional.nll_loss(input.contiguous(), *args, **kwargs)


THEIRS = {"scaled_dot_product_attention": _attention, "nll_loss": _nll_loss}


def _plain(name: str) -> Case:
    return same(f"nn.functional.{name}", getattr(F, name.partition(".")[0]), *SKIPS.get(name, ()),
                theirs=THEIRS.get(name), tolerance=TOLERANCES.get(name),
                refuses=REFUSES.get(name, never))


def _max_pool(name: str) -> Case:
    """PyTorch answers the values, and the places if it is asked for them."""
    function = getattr(F, name)
    return same(f"nn.functional.{name}", lambda x, *args, return_indices=False, **kwargs: function(
        x, *args, **kwargs), *SKIPS.get(name, ()), outputs=_values)


def _values(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def _avg_pool2d(x: Any, size: Any, stride: Any = None, padding: Any = 0, *args: Any) -> Any:
    """PyTorch takes (2,) for a pair; its last argument, a divisor, gtensor does not have."""
    padding = padding * 2 if isinstance(padding, tuple) and len(padding) == 1 else padding
    return F.avg_pool2d(x, size, stride, padding, *args[:2])


TABLE = [
    *(_plain(name) for name in AS_THEY_ARE),
    *(_plain(f"interpolate.{mode}") for mode in ("nearest", "linear", "bilinear", "area")),
    *(_plain(f"pad.{mode}") for mode in ("constant", "reflect", "replicate", "circular")),
    *(_max_pool(name) for name in ("max_pool1d", "max_pool2d")),
    same("nn.functional.adaptive_max_pool2d", lambda x, size, return_indices: F.adaptive_max_pool2d(
        x, size), outputs=_values),
    same("nn.functional.avg_pool2d", _avg_pool2d, NO_INTEGER, Skip(
        "gtensor's avg_pool2d has no divisor_override",
        lambda given: given.argument(5, "divisor_override") is not None)),
    same("nn.functional.embedding", lambda weight, indices, padding_idx=None, sparse=False:
         F.embedding(indices, weight, padding_idx), *(Skip(
             f"gtensor's embedding has no {name}", keyword(name)) for name in
             ("max_norm", "scale_grad_by_freq"))),
    same("nn.functional.dropout", F.dropout, Skip("dropout is random", lambda given: (
        given.kwargs.get("training", True) and given.kwargs.get("p", 0.5) not in (0, 1)))),
    same("constant_pad_nd", lambda x, pad, value=0: F.pad(x, pad, value=value),
         refuses=complex_values),
    *(same(name, getattr(F, name), scalar_axis()) for name in ("softmax", "log_softmax")),
    *(same(f"{name}.with_dtype", getattr(F, name), scalar_axis(), NO_COMPLEX)
      for name in ("softmax", "log_softmax")),
]
