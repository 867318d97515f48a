"""Layers with weights, pooling, dropout, reshaping: modules over `gtensor.nn.functional`."""

from __future__ import annotations

import math
from typing import Any

from gtensor.backend import Device
from gtensor.core.tensor import Tensor
from gtensor.creation import empty
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter

DeviceLike = Device | str | None
Pair = int | tuple[int, int]


def weight_and_bias(
    module: Module, shape: tuple[int, ...], bias: bool, device: DeviceLike, dtype: Any
) -> None:
    """Register a weight (out, in, *kernel) and a bias (out,), with PyTorch's initial values.

    Both are uniform in +-1 / sqrt(fan_in). For the weight PyTorch writes that as Kaiming's rule
    with a slope of sqrt(5).
    """
    module.weight = Parameter(empty(shape, dtype, device))
    init.kaiming_uniform_(module.weight, a=math.sqrt(5))
    if not bias:
        module.register_parameter("bias", None)
        return
    module.bias = Parameter(empty(shape[:1], dtype, device))
    fan_in, _ = init.fans(module.weight)
    bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
    init.uniform_(module.bias, -bound, bound)


class Linear(Module):
    """y = x @ weight.T + bias over the last axis: (..., in_features) -> (..., out_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True,
                 device: DeviceLike = None, dtype: Any = None) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        weight_and_bias(self, (out_features, in_features), bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Conv2d(Module):
    """Cross-correlation of images (N, in_channels, H, W) -> (N, out_channels, H', W')."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Pair, stride: Pair = 1,
                 padding: Pair | str = 0, dilation: Pair = 1, groups: int = 1, bias: bool = True,
                 device: DeviceLike = None, dtype: Any = None) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(f"groups={groups} given for {in_channels} input and {out_channels} "
                             "output channels; wanted a divisor of both")
        kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        weight_and_bias(self, (out_channels, in_channels // groups, *kernel), bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) -> (N, out_channels, H', W')."""
        return F.conv2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding,
                        dilation=self.dilation, groups=self.groups)

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
                 f"stride={self.stride}"]
        parts += [f"{name}={value!r}" for name, value, default in (
            ("padding", self.padding, 0), ("dilation", self.dilation, 1),
            ("groups", self.groups, 1), ("bias", self.bias is not None, True)) if value != default]
        return ", ".join(parts)


class Embedding(Module):
    """Rows of a table: integer indices (...) -> (..., embedding_dim). Initially normal.

    The row `padding_idx` is zero at first and gets no gradient.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
                 device: DeviceLike = None, dtype: Any = None) -> None:
        super().__init__()
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

    def forward(self, x: Tensor) -> Tensor:
        """Integer indices (...) -> (..., embedding_dim)."""
        return F.embedding(x, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class _Pool(Module):
    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0,
                 **options: Any) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.options = options

    def extra_repr(self) -> str:
        more = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}{more}"


class MaxPool2d(_Pool):
    """The largest value of every window: (N, C, H, W) -> (N, C, H', W')."""

    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0,
                 dilation: Pair = 1, ceil_mode: bool = False) -> None:
        super().__init__(kernel_size, stride, padding, dilation=dilation, ceil_mode=ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, H', W')."""
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding, **self.options)


class AvgPool2d(_Pool):
    """The mean of every window: (N, C, H, W) -> (N, C, H', W')."""

    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0,
                 ceil_mode: bool = False, count_include_pad: bool = True) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode=ceil_mode,
                         count_include_pad=count_include_pad)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, H', W')."""
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding, **self.options)


class AdaptiveAvgPool2d(Module):
    """Means of windows laid out so that the output has `output_size`: (N, C, *output_size)."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, *output_size)."""
        return F.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class Dropout(Module):
    """Zeroes elements with probability p and divides the others by 1 - p, while training."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p={p} given to Dropout; wanted a probability from 0 to 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, the same shape out."""
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Flatten(Module):
    """Axes start_dim to end_dim become one: by default (N, ...) -> (N, features)."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        """A view where that is possible."""
        return x.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
