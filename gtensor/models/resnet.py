"""A residual network for small images, its norms in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn.abn import ABN, InPlaceABN
from gtensor.nn.containers import Sequential
from gtensor.nn.convolution import Conv2d
from gtensor.nn.layers import DeviceLike, Linear
from gtensor.nn.module import Module

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

SLOPE = 0.01  # of the leaky ReLUs


@dataclass(frozen=True)
class ResNetConfig:
    """The sizes of a `ResNet`.

    Args:
        channels, classes: of the images and of the output.
        widths: channels of each stage; every stage but the first halves height and width.
        blocks: residual blocks in each stage; (16, 32, 64) with 3 is CIFAR's ResNet-20.
        inplace: whether norms overwrite their input (`InPlaceABN`) or not (`ABN`): the same
            function, and the same state.
    """

    channels: int = 1
    classes: int = 10
    widths: tuple[int, ...] = (16, 32, 64)
    blocks: int = 1
    inplace: bool = True

    def __post_init__(self) -> None:
        if min((self.channels, self.classes, self.blocks, len(self.widths), *self.widths)) < 1:
            raise ValueError(f"channels={self.channels}, classes={self.classes}, widths="
                             f"{self.widths} and blocks={self.blocks} given; wanted positive "
                             "numbers, and one width or more")


def _conv(width_in: int, width: int, size: int, stride: int, device: DeviceLike,
          dtype: DTypeLike | None) -> Conv2d:
    """size * size pixels, without a bias, which the norm behind it has."""
    return Conv2d(width_in, width, size, stride, size // 2, bias=False, device=device, dtype=dtype)


class ResidualBlock(Module):
    """leaky_relu(shortcut(x) + norm(conv(act(norm(conv(x)))))), with convolutions of 3 x 3 pixels.

    The shortcut is x, or a 1 x 1 convolution and a norm where shapes change. No value that a norm
    overwrites has another reader.
    """

    def __init__(self, width_in: int, width: int, stride: int, norm: type[ABN],
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        self.conv1 = _conv(width_in, width, 3, stride, device, dtype)
        self.norm1 = norm(width, activation_param=SLOPE, device=device, dtype=dtype)
        self.conv2 = _conv(width, width, 3, 1, device, dtype)
        self.norm2 = norm(width, activation="identity", device=device, dtype=dtype)
        self.shortcut = None
        if stride > 1 or width_in != width:
            self.shortcut = Sequential(
                _conv(width_in, width, 1, stride, device, dtype),
                norm(width, activation="identity", device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """(N, width_in, H, W) -> (N, width, H / stride, W / stride), rounded up."""
        y = self.norm2(self.conv2(self.norm1(self.conv1(x))))
        return F.leaky_relu(y + (x if self.shortcut is None else self.shortcut(x)), SLOPE)


class ResNet(Module):
    """Images (N, channels, H, W) -> logits (N, classes): stages of residual blocks, their mean.

    Sources: He et al., "Deep residual learning for image recognition", 2016, section 4.2; Rota Bulò
    et al., "In-place activated BatchNorm for memory-optimized training of DNNs", 2018.
    """

    def __init__(self, config: ResNetConfig | None = None, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        self.config = config = config or ResNetConfig()
        norm = InPlaceABN if config.inplace else ABN
        first = config.widths[0]
        self.stem = Sequential(
            _conv(config.channels, first, 3, 1, device, dtype),
            norm(first, activation_param=SLOPE, device=device, dtype=dtype))
        self.stages = Sequential()
        before = first
        for stage, width in enumerate(config.widths):
            blocks = Sequential()
            for block in range(config.blocks):
                stride = 2 if stage and not block else 1
                blocks.append(ResidualBlock(before, width, stride, norm, device, dtype))
                before = width
            self.stages.append(blocks)
        self.head = Linear(before, config.classes, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) -> (N, classes)."""
        if x.ndim != 4 or x.shape[1] != self.config.channels:
            raise ValueError(f"ResNet was given x of shape {x.shape}; wanted (N, "
                             f"{self.config.channels}, H, W)")
        return self.head(self.stages(self.stem(x)).mean(axis=(2, 3)))
