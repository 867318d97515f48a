"""Losses made of a few ops: of distances, of margins, and of likelihoods. PyTorch's formulas.

The functions are public in `gtensor.nn.functional`. Inputs share one floating dtype; halves are
computed in float32. Targets of 1 and -1 may have any dtype.
"""

from __future__ import annotations

import math

from gtensor.creation.new_tensors import full_like
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops import where
from gtensor.ops.activations.activation import relu
from gtensor.ops.activations.smooth_activations import logsigmoid
from gtensor.ops.define.arguments import (
    autocast,
    check_reduction,
    same_dtype,
    takes_arrays,
    want_number,
)
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.linalg.norms import vector_norm


def _wide(name: str, **inputs: Tensor) -> list[Tensor]:
    """The inputs in the dtype that is computed in."""
    same_dtype(name, **inputs)
    given = autocast("float32", *inputs.values())
    return [x.to(computed_in(x.dtype)) for x in given]


def _reduced(losses: Tensor, reduction: str, like: Tensor) -> Tensor:
    """The losses, their mean or their sum, in the dtype of an input."""
    if reduction != "none":
        losses = losses.mean() if reduction == "mean" else losses.sum()
    (like,) = autocast("float32", like)
    return losses.to(like.dtype)


# -- of distances ----------------------------------------------------------------------------------


@takes_arrays
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm (...) of x1 - x2 + eps along the last axis of (..., D); shapes broadcast.

    With keepdim the axis stays, of size 1.
    """
    a, b = _wide("pairwise_distance", x1=x1, x2=x2)
    return _reduced(_distance(a, b, p, eps, keepdim), "none", x1)


def _distance(a: Tensor, b: Tensor, p: float, eps: float, keepdims: bool = False) -> Tensor:
    return vector_norm(a - b + eps, axis=-1, keepdims=keepdims, ord=p)


@takes_arrays
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-6, swap: bool = False, *, reduction: str = "mean",
) -> Tensor:
    """max(0, margin + |anchor - positive| - |anchor - negative|) of rows (N, D) or (D,); reduced.

    Args:
        anchor, positive, negative: rows of shapes that broadcast.
        margin: by how much the negative is to be farther, above 0.
        p: the order of the distances.
        eps: added to the differences.
        swap: take |positive - negative| where that is smaller than |anchor - negative|.
        reduction: "mean", "sum", or "none" for a loss (N) per row.

    Source: Balntas et al., "Learning local feature descriptors with triplets and shallow
    convolutional neural networks", 2016. Raises ValueError for a margin that is not above 0.
    """
    check_reduction("triplet_margin_loss", reduction)
    if not margin > 0:
        raise ValueError(f"triplet_margin_loss was given margin={margin}; wanted a number above 0")
    a, b, c = _wide("triplet_margin_loss", anchor=anchor, positive=positive, negative=negative)
    far = _distance(a, c, p, eps)
    if swap:
        far = recorded.minimum(far, _distance(b, c, p, eps))
    return _reduced(relu(margin + _distance(a, b, p, eps) - far), reduction, anchor)


# -- of margins ------------------------------------------------------------------------------------


@takes_arrays
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, *, reduction: str = "mean"
) -> Tensor:
    """max(0, -target * (input1 - input2) + margin), elementwise and reduced.

    A target of 1 wants the first input larger, one of -1 the second. Shapes broadcast. `reduction`
    is "mean", "sum" or "none".
    """
    check_reduction("margin_ranking_loss", reduction)
    a, b = _wide("margin_ranking_loss", input1=input1, input2=input2)
    signs = target.astype(a.dtype)
    return _reduced(relu(margin - signs * (a - b)), reduction, input1)


@takes_arrays
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, *, reduction: str = "mean"
) -> Tensor:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1; of rows, reduced.

    The inputs are (N, D) with a target (N), or (D,) with one (). `reduction` is "mean", "sum" or
    "none". Raises ValueError for other shapes.
    """
    name = "cosine_embedding_loss"
    check_reduction(name, reduction)
    a, b = _wide(name, input1=input1, input2=input2)
    signs = target.astype(a.dtype)
    if not a.shape == b.shape == (*signs.shape, *a.shape[-1:]) or a.ndim not in (1, 2):
        raise ValueError(f"{name} was given inputs of shapes {input1.shape} and {input2.shape} and "
                         f"a target of shape {target.shape}; wanted (N, D), (N, D) and (N)")
    tiny = 1e-12  # PyTorch's, which keeps the root away from 0
    squares = ((a * a).sum(axis=-1) + tiny) * ((b * b).sum(axis=-1) + tiny)
    cosine = (a * b).sum(axis=-1) / recorded.sqrt(squares)
    losses = where(signs == 1, 1 - cosine, where(signs == -1, relu(cosine - margin), 0.0))
    return _reduced(losses, reduction, input1)


@takes_arrays
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, *, reduction: str = "mean"
) -> Tensor:
    """The input where the target is 1, max(0, margin - input) where it is -1; reduced.

    Shapes broadcast. `reduction` is "mean", "sum" or "none".
    """
    check_reduction("hinge_embedding_loss", reduction)
    (a,) = _wide("hinge_embedding_loss", input=input)
    signs = target.astype(a.dtype)
    losses = where(signs != 1, relu(margin - a), 0.0) + where(signs != -1, a, 0.0)
    return _reduced(losses, reduction, input)


@takes_arrays
def soft_margin_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target * input)) for targets of 1 and -1, without overflow; reduced.

    Shapes broadcast. `reduction` is "mean", "sum" or "none".
    """
    check_reduction("soft_margin_loss", reduction)
    (a,) = _wide("soft_margin_loss", input=input)
    signs = target.astype(a.dtype)
    return _reduced(-logsigmoid(signs * a), reduction, input)


# -- of likelihoods --------------------------------------------------------------------------------


@takes_arrays
def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, *, full: bool = False,
    eps: float = 1e-8, reduction: str = "mean",
) -> Tensor:
    """exp(input) - target * input: minus the log-likelihood of counts; elementwise and reduced.

    Args:
        input: the logarithm of the expected count.
        target: counts; shapes broadcast.
        log_input: False for an input that is the expected count itself.
        full: add Stirling's approximation of log(target!), where the target is above 1.
        eps: added to the expected count before its logarithm is taken.
        reduction: "mean", "sum" or "none".
    """
    check_reduction("poisson_nll_loss", reduction)
    want_number("poisson_nll_loss", eps=eps)
    a, t = _wide("poisson_nll_loss", input=input, target=target)
    losses = recorded.exp(a) - t * a if log_input else a - t * recorded.log(a + eps)
    if full:
        count = where(t > 1, t, 2.0)  # where the logarithm is taken of nothing else
        stirling = count * recorded.log(count) - count + 0.5 * recorded.log(2 * math.pi * count)
        losses = losses + where(t > 1, stirling, 0.0)
    return _reduced(losses, reduction, input)


@takes_arrays
def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6,
    *, reduction: str = "mean",
) -> Tensor:
    """(log(var) + (input - target)^2 / var) / 2: minus a normal log-likelihood; reduced.

    Args:
        input: the means.
        target: of shapes that broadcast with the input's.
        var: variances of the input's shape, or with its last axis left out or of size 1, or one
            number. They count as eps where they are smaller; the gradient does not know of that.
        full: add log(2 pi) / 2.
        eps: the smallest variance, above 0.
        reduction: "mean", "sum" or "none".

    Raises ValueError for a var of another shape and an eps that is not above 0.
    """
    name = "gaussian_nll_loss"
    check_reduction(name, reduction)
    if not eps > 0:
        raise ValueError(f"{name} was given eps={eps}; wanted a number above 0")
    given = var if isinstance(var, Tensor) else full_like(input, var)
    a, t, v = _wide(name, input=input, target=target, var=given)
    if v.shape != a.shape and v.shape == a.shape[:-1]:
        v = v.reshape((*v.shape, 1))
    elif v.shape not in (a.shape, (*a.shape[:-1], 1)):
        raise ValueError(f"{name} was given a var of shape {given.shape} for an input of shape "
                         f"{input.shape}; wanted the input's, or that with a last axis of 1")
    v = v + (recorded.maximum(v, eps) - v).detach()
    losses = (recorded.log(v) + (a - t) ** 2 / v) / 2
    return _reduced(losses + math.log(2 * math.pi) / 2 if full else losses, reduction, input)
