"""Activations, softmax and dropout."""

from gtensor.ops.activations import (
    activation,
    device_functions,
    dropout,
    piecewise_activations,
    smooth_activations,
    softmax,
)

__all__: list[str] = []  # the functions are public in gtensor.nn.functional
