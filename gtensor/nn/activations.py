"""Activations as modules, for Sequential."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gtensor.creation.new_tensors import full
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn.layers import DeviceLike
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike


T = TypeVar("T")


class _Function(Module):
    """A function of one tensor; its options are attributes of these names."""

    _function: Callable[..., Tensor]
    _options: tuple[str, ...] = ()
    inplace = False

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise, or along `dim`."""
        if self.inplace:
            return self._function(x, *[getattr(self, name) for name in self._options], inplace=True)
        if not self._options:
            return self._function(x)
        return self._function(x, *[getattr(self, name) for name in self._options])

    def extra_repr(self) -> str:
        names = (*self._options, "inplace") if self.inplace else self._options
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class _Inplace(_Function):
    """An activation with PyTorch's argument `inplace`: the input itself becomes the result."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


class ReLU(_Inplace):
    """max(x, 0)."""

    _function = staticmethod(F.relu)


class Identity(Module):
    """Its input. Arguments are ignored, so that it can replace any module."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    def forward(self, x: T) -> T:
        """The input itself."""
        return x


class ReLU6(_Inplace):
    """x cut at 0 and 6."""

    _function = staticmethod(F.relu6)


class Hardtanh(_Inplace):
    """x cut at min_val and max_val.

    Elementwise. Raises ValueError, when it is called, for a min_val above max_val.
    """

    _function = staticmethod(F.hardtanh)
    _options = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.min_val = min_val
        self.max_val = max_val


class Hardswish(_Inplace):
    """x * hardsigmoid(x)."""

    _function = staticmethod(F.hardswish)


class Hardsigmoid(_Inplace):
    """(x + 3) / 6 cut at 0 and 1."""

    _function = staticmethod(F.hardsigmoid)


class PReLU(Module):
    """x where x > 0, else weight * x; one weight, or one per channel of (N, C, ...).

    The weights begin as `init`. Raises ValueError, when it is called, unless num_parameters is 1 or
    C. Source: He et al., "Delving deep into rectifiers", 2015.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(full(num_parameters, init, dtype, device))

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class LeakyReLU(_Inplace):
    """x where x > 0, else negative_slope * x."""

    _function = staticmethod(F.leaky_relu)
    _options = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope


class ELU(_Inplace):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    _function = staticmethod(F.elu)
    _options = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha


class SELU(_Inplace):
    """elu with the alpha and the scale that keep mean 0 and variance 1."""

    _function = staticmethod(F.selu)


class GELU(_Function):
    """x times the normal distribution function of x, exactly or by tanh (approximate="tanh")."""

    _function = staticmethod(F.gelu)
    _options = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate


class SiLU(_Inplace):
    """x * sigmoid(x)."""

    _function = staticmethod(F.silu)


class Mish(_Inplace):
    """x * tanh(softplus(x))."""

    _function = staticmethod(F.mish)


class GLU(_Function):
    """a * sigmoid(b), where a and b are the halves of x along `dim`."""

    _function = staticmethod(F.glu)
    _options = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim


class Sigmoid(_Function):
    """1 / (1 + exp(-x))."""

    _function = staticmethod(F.sigmoid)


class LogSigmoid(_Function):
    """log(sigmoid(x))."""

    _function = staticmethod(F.logsigmoid)


class Softsign(_Function):
    """x / (1 + |x|)."""

    _function = staticmethod(F.softsign)


class Softplus(_Function):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x > threshold.

    Elementwise. Raises ValueError, when it is called, for a beta that is not positive.
    """

    _function = staticmethod(F.softplus)
    _options = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold


class Tanh(_Function):
    """tanh(x)."""

    _function = staticmethod(F.tanh)


class Softmax(_Function):
    """exp(x) / sum(exp(x)) along `dim`."""

    _function = staticmethod(F.softmax)
    _options = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim


class LogSoftmax(Softmax):
    """x - log(sum(exp(x))) along `dim`."""

    _function = staticmethod(F.log_softmax)
