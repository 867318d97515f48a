"""Activations as modules, for Sequential."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gtensor.array.creation import full
from gtensor.engine.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn.layers import DeviceLike
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter
from gtensor.ops.build.arguments import refuse_unsupported

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike


T = TypeVar("T")


class _Inplace(Module):
    """An activation with PyTorch's argument `inplace`, which must be False."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        refuse_unsupported(False, type(self).__name__, inplace=inplace)


class ReLU(_Inplace):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.relu(x)


class Identity(Module):
    """Its input. Arguments are ignored, so that it can replace any module."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    def forward(self, x: T) -> T:
        """The input itself."""
        return x


class ReLU6(_Inplace):
    """x cut at 0 and 6."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.relu6(x)


class Hardtanh(_Inplace):
    """x cut at min_val and max_val."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class Hardswish(_Inplace):
    """x * hardsigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.hardswish(x)


class Hardsigmoid(_Inplace):
    """(x + 3) / 6 cut at 0 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.hardsigmoid(x)


class PReLU(Module):
    """x where x > 0, else weight * x; one weight, or one per channel of (N, C, ...)."""

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

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(_Inplace):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class SELU(_Inplace):
    """elu with the alpha and the scale that keep mean 0 and variance 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.selu(x)


class GELU(Module):
    """x times the normal distribution function of x, exactly or by tanh (approximate="tanh")."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.gelu(x, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(_Inplace):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.silu(x)


class Mish(_Inplace):
    """x * tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.mish(x)


class GLU(Module):
    """a * sigmoid(b), where a and b are the halves of x along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Half as many elements along `dim`."""
        return F.glu(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.sigmoid(x)


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.logsigmoid(x)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.softsign(x)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x > threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Tanh(Module):
    """tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return x.tanh()


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `dim`."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """The same shape out; TypeError without a `dim`."""
        return F.softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """x - log(sum(exp(x))) along `dim`."""

    def forward(self, x: Tensor) -> Tensor:
        """The same shape out."""
        return F.log_softmax(x, self.dim)
