"""Initial values of parameters, drawn from `gt.random`'s generator. PyTorch's names and formulas.

Every function writes its tensor in place, outside the tape, and returns it. `fan_in` and `fan_out`
are the numbers of values that one output and one input are connected with: for a weight (out, in,
*kernel), `in * kernel size` and `out * kernel size`.
"""

from __future__ import annotations

import math

from gtensor import random
from gtensor.core.modes import no_grad
from gtensor.core.tensor import Tensor

_GAINS = {"linear": 1.0, "conv2d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2.0)}


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Values uniform in [a, b)."""
    return _written(tensor, random.uniform(tensor.shape, a, b, dtype=tensor.dtype,
                                           device=tensor.device))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normally distributed values."""
    return _written(tensor, random.normal(tensor.shape, mean, std, dtype=tensor.dtype,
                                          device=tensor.device))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """The same value everywhere."""
    return _written(tensor, val)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return constant_(tensor, 1.0)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Uniform in +-gain * sqrt(3 / fan) (He et al., 2015); `a` is the leaky ReLU's slope."""
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / _fan(tensor, mode))
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Normal with standard deviation gain / sqrt(fan) (He et al., 2015)."""
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform in +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal with standard deviation gain * sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance of activations through a nonlinearity.

    Raises ValueError for an unknown one.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        known = ", ".join(map(repr, sorted([*_GAINS, "leaky_relu"])))
        raise ValueError(f"nonlinearity {nonlinearity!r} given; wanted one of {known}")
    return _GAINS[nonlinearity]


def fans(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, *kernel). Raises ValueError below two dimensions."""
    if tensor.ndim < 2:
        raise ValueError(f"fans of a tensor of shape {tensor.shape} asked; wanted a weight of at "
                         "least 2 dimensions (out, in, *kernel)")
    kernel = math.prod(tensor.shape[2:])
    return tensor.shape[1] * kernel, tensor.shape[0] * kernel


def _fan(tensor: Tensor, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode {mode!r} given; wanted 'fan_in' or 'fan_out'")
    return max(1, fans(tensor)[mode == "fan_out"])


def _written(tensor: Tensor, values: Tensor | float) -> Tensor:
    with no_grad():
        tensor[...] = values
    return tensor
