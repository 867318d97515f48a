"""The networks that users train on a CPU, from the same weights in gtensor and in PyTorch.

A `Library` has what the two name differently; everything else is one text for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gtensor as gt
from gtensor.models import Denoiser, DenoiserConfig, ResNet, ResNetConfig
from gtensor.models.denoiser import TIME_UNITS
from gtensor.train import digits as recipe

SLOPE = 0.01  # of the leaky ReLUs
Batch = tuple[np.ndarray, np.ndarray]


class Library:
    """gtensor or PyTorch: `lib` is the module, floating-point values have `dtype`."""

    def __init__(self, lib: Any, dtype: str = "float32") -> None:
        self.lib, self.dtype, self.is_own = lib, dtype, lib is gt
        self.functional = lib.nn.functional

    def tensor(self, array: np.ndarray, requires_grad: bool = False) -> Any:
        """The array's values; integers keep their type."""
        if array.dtype.kind == "f":
            array = array.astype(self.dtype)
        return self.lib.tensor(array, requires_grad=requires_grad)

    def network(self, make: Callable[[Library], Any]) -> Any:
        """What `make` gives, with weights that depend on their names and shapes only."""
        net = make(self)
        if self.dtype == "float64":
            net.double()
        net.load_state_dict({name: self.tensor(value) for name, value in drawn(net)}, strict=False)
        return net

    def norm(self, width: int, slope: float = SLOPE) -> Any:
        """Batch norm of images and a leaky ReLU; in gtensor in place."""
        return gt.nn.InPlaceABN(width, activation_param=slope) if self.is_own else (
            PeerNorm(width, slope))


def drawn(net: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Values for the parameters of either library's network."""
    rng = np.random.default_rng(0)
    for name, parameter in sorted(net.named_parameters()):
        shape = tuple(parameter.shape)
        values = rng.standard_normal(shape)
        if len(shape) > 1:
            values *= (2 / np.prod(shape[1:])) ** 0.5
        else:
            values = 0.1 * values + (1 if name.endswith("weight") else 0)
        yield name, values


class PeerNorm(nn.BatchNorm2d):
    """Batch norm and a leaky ReLU in one module, as gtensor's `ABN` has them."""

    def __init__(self, width: int, slope: float) -> None:
        super().__init__(width)
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.slope == 1 else F.leaky_relu(y, self.slope, inplace=True)


# -- networks of images ----------------------------------------------------------------------------


def digits(library: Library) -> Any:
    """The network of `gtensor train digits`."""
    if library.is_own:
        return recipe.model("inplace")
    norm = library.norm
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), norm(32),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), norm(64),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1, bias=False), norm(64),
        nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 2 * 2, 10))


def convolutions(library: Library) -> Any:
    """Three convolutions with batch norm and ReLU, as a first program of PyTorch has them."""
    layers = library.lib.nn
    return layers.Sequential(
        layers.Conv2d(3, 32, 3, padding=1), layers.BatchNorm2d(32), layers.ReLU(),
        layers.MaxPool2d(2),
        layers.Conv2d(32, 64, 3, padding=1), layers.BatchNorm2d(64), layers.ReLU(),
        layers.MaxPool2d(2),
        layers.Conv2d(64, 64, 3, padding=1), layers.BatchNorm2d(64), layers.ReLU(),
        layers.AdaptiveAvgPool2d(1), layers.Flatten(), layers.Linear(64, 10))


def stack(depth: int) -> Callable[[Library], Any]:
    """`depth` convolutions of 16 channels, each with a norm, which gtensor computes in place."""

    def make(library: Library) -> Any:
        layers = library.lib.nn
        body = []
        for layer in range(depth):
            body += [layers.Conv2d(16 if layer else 3, 16, 3, padding=1, bias=False),
                     library.norm(16)]
        return layers.Sequential(
            *body, layers.AdaptiveAvgPool2d(1), layers.Flatten(), layers.Linear(16, 10))

    return make


def resnet(widths: tuple[int, ...], blocks: int) -> Callable[[Library], Any]:
    """A residual network for small images; four widths and two blocks make ResNet-18."""

    def make(library: Library) -> Any:
        if library.is_own:
            return ResNet(ResNetConfig(3, 10, widths, blocks))
        return PeerResNet(library, widths, blocks)

    return make


class PeerBlock(nn.Module):
    """gtensor's `ResidualBlock`."""

    def __init__(self, library: Library, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.norm1 = library.norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = library.norm(width, 1)
        self.shortcut: Any = None
        if stride > 1 or width_in != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), library.norm(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x))))
        y = y + (x if self.shortcut is None else self.shortcut(x))
        return F.leaky_relu(y, SLOPE, inplace=True)


class PeerResNet(nn.Module):
    """gtensor's `ResNet`."""

    def __init__(self, library: Library, widths: tuple[int, ...], blocks: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False),
                                  library.norm(widths[0]))
        stages, before = [], widths[0]
        for stage, width in enumerate(widths):
            stages.append(nn.Sequential(*(
                PeerBlock(library, width if block else before, width,
                          2 if stage and not block else 1) for block in range(blocks))))
            before = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


# -- networks of sequences -------------------------------------------------------------------------


def recurrent(kind: str, width: int) -> Callable[[Library], Any]:
    """An LSTM or a GRU of 64 features, given (T, N, 64)."""
    return lambda library: getattr(library.lib.nn, kind)(64, width)


def denoiser(config: DenoiserConfig) -> Callable[[Library], Any]:
    """The Transformer of `gtensor.models.Denoiser`, a DiT with EDM's factors."""
    return lambda library: Denoiser(config) if library.is_own else PeerDenoiser(config)


class PeerDiffusionBlock(nn.Module):
    """gtensor's `DiffusionBlock`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width),
                                   "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width),
                                  "fc2": nn.Linear(4 * width, width)})
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = (
            self.adaLN_modulation(embedding)[:, None].chunk(6, -1))
        h = self.attn["qkv"](normed(x) * (1 + scale) + shift)  # (B, T, 3 * width)
        q, k, v = h.view(*h.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + gate * self.attn["proj"](h)
        h = self.mlp["fc1"](normed(x) * (1 + scale2) + shift2)
        return x + gate2 * self.mlp["fc2"](F.gelu(h, approximate="tanh"))


def normed(x: Tensor) -> Tensor:
    """Layer norm over the last axis, without parameters."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


class PeerDenoiser(nn.Module):
    """gtensor's `Denoiser` without classes."""

    frequencies: Tensor  # (128,)

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.config = c = config
        width, features, side = c.width, c.channels * c.patch**2, c.size // c.patch
        self.embed = nn.Linear(features, width)
        self.positions = nn.Parameter(torch.empty(side * side, width))
        self.time = nn.ModuleDict({"mlp": nn.Sequential(
            nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))})
        self.blocks = nn.ModuleList(PeerDiffusionBlock(width, c.heads) for _ in range(c.layers))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.head = nn.Linear(width, features)
        self.register_buffer("frequencies", 10000.0 ** (
            torch.arange(128, dtype=torch.float64) / -128).float(), persistent=False)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        data = self.config.sigma_data
        total = sigma**2 + data**2
        skip, out, scale = (
            factor[:, None, None, None]
            for factor in (data**2 / total, data * sigma / total.sqrt(), 1 / total.sqrt()))
        return skip * x + out * self.network(scale * x, TIME_UNITS * sigma.log() / 4)

    def network(self, x: Tensor, time: Tensor) -> Tensor:
        """(N, channels, size, size) at times (N,) -> the same."""
        p, (n, channels, size, _) = self.config.patch, x.shape
        angles = time[:, None] * self.frequencies
        e = self.time["mlp"](torch.cat((angles.cos(), angles.sin()), 1))
        x = x.view(n, channels, size // p, p, size // p, p).permute(0, 2, 4, 1, 3, 5)
        x = self.embed(x.reshape(n, (size // p)**2, -1)) + self.positions
        for block in self.blocks:
            x = block(x, e)
        shift, scale = self.modulation(e)[:, None].chunk(2, -1)
        x = self.head(normed(x) * (1 + scale) + shift)
        x = x.view(n, size // p, size // p, channels, p, p).permute(0, 3, 1, 4, 2, 5)
        return x.reshape(n, channels, size, size)
