"""Clipping of gradients in place (PyTorch's `nn.utils`), and activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf, isfinite
from typing import TypeVar

from gtensor.array.creation import zeros
from gtensor.engine.bind import Extras, bind
from gtensor.engine.checkpointing import run_region
from gtensor.engine.context import no_grad
from gtensor.engine.in_place import write_all
from gtensor.engine.tensor import Tensor
from gtensor.ops.build.arguments import refuse_unsupported
from gtensor.ops.updates import optimizer_kernels
from gtensor.random import repetition


def clip_grad_norm_(
    parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients by min(1, max_norm / norm), `norm` being that of all of them together.

    Args:
        parameters: tensors; those without a gradient are skipped.
        max_norm: the largest norm after clipping.
        norm_type: the order of the norm, above 0; float("inf") is the largest absolute value.
        error_if_nonfinite: raise if the norm is infinite or NaN; it waits for the GPU. Without it
            such a norm scales the gradients to 0 or NaN, as in PyTorch.

    Returns the norm before clipping, 0-d, on the gradients' device. Each gradient is read once for
    the norm, and read and written once to scale it; nothing waits for the GPU.

    Raises ValueError for a negative `max_norm`, an order that is not above 0, or a norm that is not
    finite, DeviceError for gradients on different devices: before any gradient is changed.
    """
    order = float(norm_type)
    if not max_norm >= 0:
        raise ValueError(f"max_norm={max_norm} given; wanted a number of 0 or more")
    if not order > 0:
        raise ValueError(f"norm_type={norm_type} given; wanted an order above 0, or inf")
    gradients = _gradients(parameters)
    if not gradients:
        return zeros(())
    with no_grad():
        kept = Extras()
        norm = bind(optimizer_kernels.norm, tuple(gradients), {
            "order": order, "most": float(max_norm)}, kept)
        if error_if_nonfinite and not isfinite(norm.item()):
            raise ValueError(f"the norm of order {order if order < inf else 'inf'} of the gradients"
                             f" is {norm.item()}, so they cannot be clipped; find the op with "
                             "gt.detect_anomaly()")
        (factor,) = kept.extras
        if factor.device.type != "cpu" or factor.item() != 1:
            for some in by_dtype(gradients):
                write_all(optimizer_kernels.scale, some, [factor], {})
    return norm


def clip_grad_value_(parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
    """Limit every element of every gradient to [-clip_value, clip_value].

    Raises ValueError for a negative `clip_value`, before any gradient is changed.
    """
    if not clip_value >= 0:
        raise ValueError(f"clip_value={clip_value} given; wanted a number of 0 or more")
    with no_grad():
        for some in by_dtype(_gradients(parameters)):
            write_all(optimizer_kernels.clip, some, [], {"options": [{"limit": float(clip_value)}]})


def by_dtype(gradients: list[Tensor]) -> list[list[Tensor]]:
    """The gradients in lists of one device and dtype."""
    found: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        found.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    return [*found.values()]


def _gradients(parameters: Iterable[Tensor] | Tensor) -> list[Tensor]:
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for parameter in given:
        if not isinstance(parameter, Tensor):
            raise TypeError(f"{type(parameter).__name__} given as a parameter; wanted Tensors")
    return [p.grad for p in given if p.grad is not None]


T = TypeVar("T")


def checkpoint(
    function: Callable[..., T], *inputs: object, use_reentrant: bool = False, **kwargs: object
) -> T:
    """function(*inputs, **kwargs), whose records keep the inputs in place of what they saved.

    backward runs the function again when it reaches its first record, and frees the values saved by
    the second run as it passes. So a chain of checkpointed parts keeps the parts' inputs and the
    saved values of one part at a time; it costs a second forward pass.

    Args:
        function: called with the inputs and kwargs; other tensors that it reads, such as parameters
            of a module, get their gradients, too. It must do the same both times. Random numbers of
            gtensor repeat; running statistics of batch norms are updated once.
        inputs, kwargs: anything. Tensors among them (in tuples, lists and dicts, too) are saved and
            guarded; an in-place batch norm on one of them copies it.
        use_reentrant: False, as PyTorch advises.

    Returns the function's result. Only tensors within tuples, lists and dicts are found there;
    records behind other tensors keep their saved values.

    Raises TypeError for a function that cannot be called, ValueError for use_reentrant=True. The
    backward raises GradientError if an input or a saved parameter was written since, or if the
    second run makes other ops or shapes than the first; no `.grad` is changed then.

    Without gradients (`no_grad`), and within `vmap` and `jvp`, it only calls the function. Nesting,
    `retain_graph=True` and `create_graph=True` work; each walk runs the function again. What it
    reads beside its inputs and what its ops saved (a bias, buffers, arrays, a module's mode) must
    not change before: that it is read anew is noticed only where other ops, shapes or options come
    of it.
    """
    refuse_unsupported(False, "checkpoint", use_reentrant=use_reentrant)
    if not callable(function):
        raise TypeError(f"checkpoint was given {type(function).__name__} as its function; wanted "
                        "something to call")
    return run_region(function, inputs, kwargs, repetition())
