"""Activations, softmax and dropout."""

from gtensor.backend import kernels
from gtensor.ops.activations import (
    activation,
    dropout,
    piecewise_activations,
    smooth_activations,
    softmax,
)


def _device_functions() -> str:
    from gtensor.ops.activations.device_functions import text  # late: only CUDA needs it

    return text()


kernels.generated["activation_functions.cuh"] = _device_functions
__all__: list[str] = []  # the functions are public in gtensor.nn.functional
