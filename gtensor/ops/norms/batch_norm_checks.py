"""The checks of the batch norms' arguments, before anything is written."""

from __future__ import annotations

from math import inf, prod
from typing import Any

from gtensor.backend import DeviceError
from gtensor.engine.arrays import writable
from gtensor.engine.tensor import Tensor, is_floating
from gtensor.ops.activations.activation import ACTIVATIONS
from gtensor.ops.build.arguments import same_dtype, want_tensors
from gtensor.ops.build.cpu_tiles import computed_in


def check_batch_norm(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None,
    bias: Tensor | None, training: bool, momentum: float, name: str = "batch_norm",
    alone: bool = True,
) -> None:
    """Raise for shapes or dtypes that do not fit; `alone`: there is no other replica."""
    want_tensors(name, input=x, running_mean=running_mean, running_var=running_var, weight=weight,
                 bias=bias)
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
        _check_averages(name, x, running_mean, running_var, momentum)
    if training and alone and prod(x.shape) // max(1, x.shape[1]) < 2:
        raise ValueError(f"{name} was given an input of shape {x.shape} in training; wanted "
                         "more than one value per channel")


def _check_averages(
    name: str, x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
) -> None:
    """Raise for running statistics that cannot be updated, and for a momentum not a number."""
    if not isinstance(momentum, (int, float)):
        raise TypeError(f"{name} was given momentum={momentum!r}; wanted a number")
    for which, running in (("running_mean", running_mean), ("running_var", running_var)):
        if running is None:
            continue
        if running.device is not x.device:
            raise DeviceError(f"{name} was given a {which} on {running.device} for an input on "
                              f"{x.device}; move it with .to({str(x.device)!r}) first")
        if not is_floating(running.dtype):
            raise TypeError(f"{name} was given a {which} of dtype {running.dtype}; wanted a "
                            "floating-point one")
        if not writable(running._array):
            raise ValueError(f"{name} was given a {which} whose elements share memory or are "
                             "read-only; clone() it first")


def check_eps(eps: float, dtype: Any, name: str) -> None:
    """Raise unless eps is a positive number in the compute dtype."""
    if not 0 < computed_in(dtype).type(eps) < inf:
        raise ValueError(f"{name} was given eps={eps}; wanted a positive number, which keeps its "
                         "scale from 0")


def check_activation(activation: str, parameter: float, dtype: Any, name: str) -> None:
    """Raise for an activation that is not known, and for a parameter that it cannot have."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"{name} was given activation={activation!r}; wanted one of "
                         f"{', '.join(ACTIVATIONS)}")
    takes_one = activation in ("leaky_relu", "elu", "softplus")
    if takes_one and not 0 < computed_in(dtype).type(parameter) < inf:  # 1e-50 is 0 as a float32
        raise ValueError(f"{name} was given activation_param={parameter} for {activation}; "
                         "wanted a positive number")
