"""Initial values of parameters, drawn from `gt.random`'s generator, or the `generator` given.

PyTorch's names and formulas.

Every function writes its tensor in place, outside the tape, and returns it. `fan_in` and `fan_out`
are the numbers of values that one output and one input are connected with: for a weight (out, in,
*kernel), `in * kernel size` and `out * kernel size`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gtensor import random
from gtensor.creation.new_tensors import arange
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops import sign, where
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.linalg.decompositions import qr
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if TYPE_CHECKING:
    from gtensor.creation.generators import Generator
else:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "calculate_gain", "constant_", "eye_", "fans", "kaiming_normal_", "kaiming_uniform_", "normal_",
    "ones_", "orthogonal_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_",
    "zeros_",
]

_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv_transpose1d": 1.0, "conv_transpose2d": 1.0,
    "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2.0), "selu": 3 / 4,
}
_LEAST_INSIDE = 1e-3  # below this share of hits trunc_normal_ would draw for too long


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Values uniform in [a, b).

    Raises ValueError for a above b, TypeError for a dtype that is not floating.
    """
    return _written(tensor, random.uniform(tensor.shape, low=a, high=b, dtype=tensor.dtype,
                                           device=tensor.device, generator=generator))


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Normally distributed values.

    Raises ValueError for a negative `std`, TypeError for a dtype that is not floating.
    """
    return _written(tensor, random.normal(tensor.shape, mean=mean, std=std, dtype=tensor.dtype,
                                          device=tensor.device, generator=generator))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """The same value everywhere.

    Raises TypeError for a value that is no number.
    """
    return _written(tensor, val)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return constant_(tensor, 1.0)


def eye_(tensor: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix, zeros beside it.

    Raises ValueError for what is no matrix.
    """
    if tensor.ndim != 2:
        raise ValueError(f"eye_ was given a tensor of shape {tensor.shape}; wanted a matrix")
    rows, columns = (arange(n, device=tensor.device) for n in tensor.shape)
    return _written(tensor, (rows.reshape(-1, 1) == columns).astype(tensor.dtype))


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Normally distributed values, drawn again where they are outside [a, b].

    Raises ValueError for an interval that has next to no share of the distribution: drawing again
    would not end.
    """
    if not _share_inside(mean, std, a, b) > _LEAST_INSIDE:
        raise ValueError(f"trunc_normal_ was given mean={mean}, std={std}, a={a}, b={b}; wanted "
                         "a < b around the mean, so that drawing again ends")

    def draw() -> Tensor:
        return random.normal(tensor.shape, mean=mean, std=std, dtype=tensor.dtype,
                             device=tensor.device, generator=generator)

    values = draw()
    while (outside := (values < a) | (values > b)).sum().item():
        values = where(outside, draw(), values)
    return _written(tensor, values)


def _share_inside(mean: float, std: float, a: float, b: float) -> float:
    """The probability that a normal value is in [a, b]."""
    if std <= 0:
        return float(a <= mean <= b)
    low, high = ((x - mean) / (std * math.sqrt(2.0)) for x in (a, b))
    return (math.erf(high) - math.erf(low)) / 2


def orthogonal_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Orthogonal rows (columns, of a tall matrix) of length `gain`; trailing axes are columns.

    Source: Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep linear
    neural networks", 2013.

    Raises ValueError for fewer than two dimensions.
    """
    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_ was given a tensor of shape {tensor.shape}; wanted at least "
                         "2 dimensions")
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    tall = random.normal((max(rows, columns), min(rows, columns)), dtype="float64",
                         device=tensor.device, generator=generator)
    with no_grad():
        q, r = qr(tall)
        diagonal = (r * (arange(r.shape[0], device=r.device).reshape(-1, 1)
                         == arange(r.shape[0], device=r.device)).astype(r.dtype)).sum(axis=0)
        q = q * sign(diagonal) * gain  # the signs make the distribution uniform
        q = q if rows >= columns else q.mT
    return _written(tensor, q.reshape(tensor.shape).astype(tensor.dtype))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform in +-gain * sqrt(3 / fan) (He et al., 2015); `a` is the leaky ReLU's slope.

    Arguments as for `kaiming_normal_`. Raises ValueError for another mode or nonlinearity, and
    below two dimensions.
    """
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / _fan(tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal with standard deviation gain / sqrt(fan) (He et al., 2015).

    Args:
        tensor: a weight (out, in, *kernel).
        a: the slope of the leaky ReLU behind it.
        mode: which fan, "fan_in" or "fan_out".
        nonlinearity: what `calculate_gain` takes.

    Raises ValueError for another mode or nonlinearity, and below two dimensions.
    """
    std = calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return normal_(tensor, 0.0, std, generator)


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Uniform in +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).

    Raises ValueError below two dimensions.
    """
    bound = gain * math.sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Normal with standard deviation gain * sqrt(2 / (fan_in + fan_out)).

    Raises ValueError below two dimensions. Source: Glorot and Bengio, 2010.
    """
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))), generator)


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


@takes_arrays
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


if TYPE_CHECKING:  # names of other libraries, for type checkers: see `gtensor.system.foreign_names`
    constant, eye, normal, uniform, orthogonal = constant_, eye_, normal_, uniform_, orthogonal_
    kaiming_normal, kaiming_uniform = kaiming_normal_, kaiming_uniform_
    xavier_normal, xavier_uniform = xavier_normal_, xavier_uniform_


_enter(globals(), check=True)
