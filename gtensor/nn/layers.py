"""Linear maps, tables, dropout, reshaping: modules over `gtensor.nn.functional`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from gtensor.backend import Device
from gtensor.creation.new_tensors import empty
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.hooks import is_plain
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter
from gtensor.ops.activations.dropout import residual_dropout
from gtensor.ops.arrange.shape import unflatten
from gtensor.ops.define.arguments import refuse_unsupported, want_tensors
from gtensor.ops.linalg.linear import linear_sum

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

DeviceLike = Device | str | None


def weight_and_bias(
    module: Module, shape: tuple[int, ...], outputs: int, device: DeviceLike,
    dtype: DTypeLike | None
) -> None:
    """Register a weight of `shape` and a bias (outputs,), with PyTorch's initial values.

    Without outputs there is no bias. Both are uniform in +-1 / sqrt(fan_in), which for the weight
    equals PyTorch's Kaiming rule with a slope of sqrt(5).
    """
    weight = Parameter(empty(shape, dtype, device))
    module.register_parameter("weight", weight)
    init.kaiming_uniform_(weight, a=math.sqrt(5))
    if not outputs:
        module.register_parameter("bias", None)
        return
    bias = Parameter(empty(outputs, dtype, device))
    module.register_parameter("bias", bias)
    fan_in, _ = init.fans(weight)
    bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
    init.uniform_(bias, -bound, bound)


class Linear(Module):
    """y = x @ weight.T + bias over the last axis: (..., in_features) -> (..., out_features).

    The weight is (out_features, in_features), the bias (out_features,). Raises ValueError, when it
    is called, for another number of features.
    """

    weight: Parameter  # (out_features, in_features)
    bias: Parameter | None  # (out_features,)

    def __init__(self, in_features: int, out_features: int, bias: bool = True,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        weight_and_bias(self, (out_features, in_features), out_features if bias else 0, device,
                        dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


def residual(x: Tensor, linear: Module, h: Tensor, dropout: Module | None = None) -> Tensor:
    """x + dropout(linear(h)); of plain layers the sum is part of the last one that works."""
    if dropout is not None and drops(dropout):
        return dropped_residual(x, dropout, linear(h))
    if isinstance(linear, Linear) and is_plain(linear, Linear) and (
            x.shape == (*h.shape[:-1], linear.out_features)):
        return linear_sum(h, linear.weight, linear.bias, x)
    return x + linear(h)


def drops(dropout: Module) -> bool:
    """Whether a dropout layer may change what it is given."""
    if not isinstance(dropout, Dropout) or not is_plain(dropout, Dropout):
        return True
    return dropout.training and dropout.p > 0


def dropped_residual(x: Tensor, dropout: Module, h: Tensor) -> Tensor:
    """x + dropout(h); of a plain layer one op."""
    if isinstance(dropout, Dropout) and is_plain(dropout, Dropout) and dropout.training:
        return residual_dropout(x, h, dropout.p)
    return x + dropout(h)


class Embedding(Module):
    """Rows of a table: integer indices (...) -> (..., embedding_dim). Initially normal.

    The row `padding_idx` is zero at first and gets no gradient. On a GPU the gradient sums up
    repeated indices by atomics; GTENSOR_REPEATABLE=1 makes its bits repeat.

    Raises ValueError for a padding_idx that is no row, and unless PyTorch's `max_norm`,
    `scale_grad_by_freq` and `sparse` have their defaults.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
                 max_norm: float | None = None, norm_type: float = 2.0,
                 scale_grad_by_freq: bool = False, sparse: bool = False, *,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        refuse_unsupported(None, "Embedding", max_norm=max_norm)
        refuse_unsupported(False, "Embedding", scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx={padding_idx} given for {num_embeddings} rows; wanted "
                             f"{-num_embeddings} to {num_embeddings - 1}")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.weight = Parameter(empty((num_embeddings, embedding_dim), dtype, device))
        init.normal_(self.weight)
        if padding_idx is not None:
            init.zeros_(self.weight.detach()[padding_idx])

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None
    ) -> Self:
        """A layer whose table is a copy of `embeddings` (num_embeddings, embedding_dim).

        `freeze`: its table is not trained. Raises ValueError for another number of axes.
        """
        want_tensors("from_pretrained", embeddings=embeddings)
        if embeddings.ndim != 2:
            raise ValueError(f"from_pretrained was given embeddings of shape {embeddings.shape}; "
                             "wanted a row for each of them")
        rows, features = embeddings.shape
        made = cls(rows, features, padding_idx, device=embeddings.device, dtype=embeddings.dtype)
        with no_grad():
            made.weight[...] = embeddings
        made.weight.requires_grad_(not freeze)
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Integer indices (...) -> (..., embedding_dim)."""
        return F.embedding(x, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class Dropout(Module):
    """Zeroes elements with probability p and divides the others by 1 - p, while training.

    With `inplace` the input itself becomes the result. Raises ValueError for a p outside of 0 to 1.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p={p} given to Dropout; wanted a probability from 0 to 1")
        self.p = p
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, the same shape out."""
        return F.dropout(x, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace=True" if self.inplace else f"p={self.p}"


class Dropout1d(Dropout):
    """Drops whole channels of signals (N, C, L), or of one (C, L), while training.

    Arguments as for `Dropout`. Raises ValueError for a p outside of 0 to 1.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The same shape out."""
        return F.dropout1d(x, self.p, self.training, self.inplace)


class Dropout2d(Dropout):
    """Drops whole channels of images (N, C, H, W), while training.

    Arguments as for `Dropout`. Raises ValueError for a p outside of 0 to 1.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The same shape out."""
        return F.dropout2d(x, self.p, self.training, self.inplace)


class Dropout3d(Dropout):
    """Drops whole channels of volumes (N, C, D, H, W), or of one (C, D, H, W), while training.

    Arguments as for `Dropout`. Raises ValueError for a p outside of 0 to 1.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The same shape out."""
        return F.dropout3d(x, self.p, self.training, self.inplace)


class Flatten(Module):
    """Axes start_dim to end_dim become one: by default (N, ...) -> (N, features).

    A view where memory allows. Raises ValueError, when it is called, for axes that are out of range
    or in the wrong order.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        """A view where that is possible."""
        want_tensors("Flatten", input=x)
        return x.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Axis `dim` becomes axes of the sizes `unflattened_size`, of which one may be -1.

    A view where memory allows. Raises ValueError, when it is called, for an axis that is out of
    range and sizes that do not make it up.
    """

    def __init__(self, dim: int, unflattened_size: tuple[int, ...] | list[int]) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        """A view where that is possible."""
        want_tensors("Unflatten", input=x)
        return unflatten(x, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
