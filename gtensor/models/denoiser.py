"""A diffusion model of small images: a Transformer with the factors, loss and sampler of EDM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gtensor import random
from gtensor.creation.new_tensors import arange, empty, full
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.models.stack import Stack
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.blocks.diffusion import DiffusionBlock, Modulation, TimeEmbedding, modulate
from gtensor.nn.containers import ModuleList
from gtensor.nn.layers import DeviceLike, Embedding, Linear
from gtensor.nn.normalization import LayerNorm
from gtensor.nn.parameter import Parameter
from gtensor.ops import exp, log, sqrt

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

TIME_UNITS = 50.0  # of the embedding's time, for 1 of c_noise


@dataclass(frozen=True)
class DenoiserConfig:
    """The sizes of a `Denoiser`, and the noise that it is trained and sampled with.

    Args:
        size, channels: of the images (N, channels, size, size).
        patch: a token is a square of patch * patch pixels.
        classes: how many classes the images have; 0 for a model that is not told the class.
        width, heads, layers: of the Transformer.
        sigma_data: the standard deviation of the images' pixels.
        noise_mean, noise_std: of ln(sigma) in training.
        sigma_min, sigma_max, rho: the sampler's noise levels.
    """

    size: int = 8
    channels: int = 1
    patch: int = 2
    classes: int = 0
    width: int = 64
    heads: int = 4
    layers: int = 6
    sigma_data: float = 0.5
    noise_mean: float = -1.2
    noise_std: float = 1.2
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0

    def __post_init__(self) -> None:
        if min(self.size, self.channels, self.patch, self.layers) < 1 or self.size % self.patch:
            raise ValueError(f"size={self.size}, channels={self.channels}, patch={self.patch} and "
                             f"layers={self.layers} given; wanted positive numbers, patch a "
                             "divisor of the size")
        if self.classes < 0:
            raise ValueError(f"classes={self.classes} given; wanted 0 or more")
        if not (0 < self.sigma_min < self.sigma_max and self.sigma_data > 0 and self.rho > 0):
            raise ValueError(f"sigma_min={self.sigma_min}, sigma_max={self.sigma_max}, sigma_data="
                             f"{self.sigma_data} and rho={self.rho} given; wanted positive "
                             "numbers, sigma_min below sigma_max")


class Preconditioning(NamedTuple):
    """EDM's factors for noise levels sigma (N,), each of that shape."""

    c_skip: Tensor
    c_out: Tensor
    c_in: Tensor
    c_noise: Tensor


def preconditioning(sigma: Tensor, sigma_data: float) -> Preconditioning:
    """The factors for noise levels sigma (Karras et al., 2022, table 1)."""
    total = sigma**2 + sigma_data**2
    root = sqrt(total)
    return Preconditioning(sigma_data**2 / total, sigma_data * sigma / root, 1 / root,
                           log(sigma) / 4)


class Denoiser(Stack):
    """D(x; sigma): what the noisy images x were, by a Transformer over patches.

    D = c_skip * x + c_out * F(c_in * x; c_noise), with EDM's factors; F is the network. It is 0 at
    first.

    Sources: Karras et al., "Elucidating the design space of diffusion-based generative models"
    (EDM), 2022; Peebles & Xie, "Scalable diffusion models with Transformers", 2023.
    """

    positions: Parameter  # (tokens, width)
    classes: Embedding | None

    def __init__(self, config: DenoiserConfig | None = None, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        config = config or DenoiserConfig()
        width, features = config.width, config.channels * config.patch**2
        super().__init__(width)
        self.config = config
        tokens = (config.size // config.patch)**2
        self.embed = Linear(features, width, device=device, dtype=dtype)
        self.positions = Parameter(empty((tokens, width), dtype, device))
        init.normal_(self.positions)
        self.time = TimeEmbedding(width, device=device, dtype=dtype)
        self.classes = (Embedding(config.classes, width, device=device, dtype=dtype)
                        if config.classes else None)
        self.blocks = ModuleList(DiffusionBlock(
            width, config.heads, workspace=self.workspace, device=device, dtype=dtype)
            for _ in range(config.layers))
        self.norm = LayerNorm(width, 1e-6, elementwise_affine=False)
        self.modulation = Modulation(width, width, 2, device, dtype)
        self.head = Linear(width, features, device=device, dtype=dtype)
        for parameter in self.head.parameters():
            init.zeros_(parameter)

    # -- the function -----------------------------------------------------------------------------

    def forward(self, x: Tensor, sigma: Tensor, labels: Tensor | None = None) -> Tensor:
        """D: noisy images (N, channels, size, size), noise levels (N,) and classes (N,), integers.

        Raises ValueError for other shapes, or where labels are missing or not wanted.
        """
        self._check(x, labels)
        if sigma.shape != x.shape[:1]:
            raise ValueError(f"Denoiser was given sigma of shape {sigma.shape} for x of shape "
                             f"{x.shape}; wanted (N,)")
        factors = preconditioning(sigma, self.config.sigma_data)
        return (_by_image(factors.c_skip) * x
                + _by_image(factors.c_out) * self._network(x, factors, labels))

    def _check(self, x: Tensor, labels: Tensor | None) -> None:
        c = self.config
        wanted = (c.channels, c.size, c.size)
        if x.ndim != 4 or x.shape[1:] != wanted:
            raise ValueError(f"Denoiser was given images of shape {x.shape}; wanted (N, "
                             f"{', '.join(map(str, wanted))})")
        if (labels is None) != (self.classes is None) or (
                labels is not None and labels.shape != x.shape[:1]):
            raise ValueError(
                f"a Denoiser of {c.classes} classes was given "
                f"{'no labels' if labels is None else f'labels of shape {labels.shape}'} for x of "
                f"shape {x.shape}; wanted {'(N,)' if c.classes else 'none'}")

    def _network(self, x: Tensor, factors: Preconditioning, labels: Tensor | None) -> Tensor:
        """F(c_in * x; c_noise)."""
        with self.places(x.device) as place:
            with place.saved("time embedding"):
                e = self.time(TIME_UNITS * factors.c_noise)
                if self.classes is not None and labels is not None:
                    e = e + self.classes(labels)
            with place.saved("stream 0"):
                x = self.embed(self._patches(_by_image(factors.c_in) * x)) + self.positions
            for i, block in enumerate(self.blocks):
                with place.saved(f"stream {(i + 1) % 2}"):
                    x = block(x, e)
            with place.saved("FiLM"):
                shift, scale = self.modulation.vectors(e)
            with place.saved("norm output"):
                x = modulate(self.norm(x), shift, scale)
        return self._images(self.head(x))

    def _patches(self, x: Tensor) -> Tensor:
        """(N, channels, size, size) -> (N, tokens, pixels of a token)."""
        c = self.config
        side = c.size // c.patch
        x = x.reshape((len(x), c.channels, side, c.patch, side, c.patch))
        return x.permute_dims((0, 2, 4, 1, 3, 5)).reshape((len(x), side * side, -1))

    def _images(self, x: Tensor) -> Tensor:
        """The inverse of `_patches`."""
        c = self.config
        side = c.size // c.patch
        x = x.reshape((len(x), side, side, c.channels, c.patch, c.patch))
        return x.permute_dims((0, 3, 1, 4, 2, 5)).reshape((len(x), c.channels, c.size, c.size))

    # -- training ---------------------------------------------------------------------------------

    def denoising_loss(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The mean of EDM's loss over images (N, channels, size, size), each with noise of its own.

        weight(sigma) * (D(images + noise; sigma) - images)**2 with weight = 1 / c_out**2, computed
        as the squared error of F. ln(sigma) and the noise are drawn from gt.random's generator.
        """
        c = self.config
        self._check(images, labels)
        with no_grad():
            sigma = exp(self._noise((len(images),), c.noise_mean, c.noise_std))
            noisy = images + _by_image(sigma) * self._noise(images.shape)
            factors = preconditioning(sigma, c.sigma_data)
            wanted = (images - _by_image(factors.c_skip) * noisy) / _by_image(factors.c_out)
        return F.mse_loss(self._network(noisy, factors, labels), wanted)

    def _noise(self, shape: tuple[int, ...], mean: float = 0.0, std: float = 1.0) -> Tensor:
        return random.normal(shape, mean=mean, std=std, dtype=self.positions.dtype,
                             device=self.positions.device)

    # -- sampling ---------------------------------------------------------------------------------

    def sample(self, count: int, steps: int = 18, labels: Tensor | None = None) -> Tensor:
        """Images (count, channels, size, size) from noise of gt.random's generator.

        Heun's method over `steps` noise levels, 2 * steps - 1 evaluations; nothing is recorded.

        Args:
            labels: their classes (count,); None for all classes in turn.
        """
        way = self.sampled(count, steps, labels)
        x = next(way)
        for later in way:
            x = later
        return x

    def sampled(
        self, count: int, steps: int = 18, labels: Tensor | None = None
    ) -> Iterator[Tensor]:
        """The way of `sample`: the noise, and the images after each of its steps."""
        c = self.config
        if count < 1:
            raise ValueError(f"count={count} given; wanted 1 sample or more")
        levels = noise_levels(steps, c.sigma_min, c.sigma_max, c.rho)
        device, dtype = self.positions.device, self.positions.dtype
        if labels is None and c.classes:
            labels = arange(count, device=device) % c.classes

        def denoise(x: Tensor, level: float) -> Tensor:
            return self(x, full(count, level, dtype=dtype, device=device), labels)

        noise = levels[0] * self._noise((count, c.channels, c.size, c.size))
        yield noise
        yield from heun(denoise, noise, levels)


def _by_image(x: Tensor) -> Tensor:
    return x.reshape((-1, 1, 1, 1))


def noise_levels(steps: int, low: float, high: float, rho: float) -> list[float]:
    """`steps` levels from high to low, even in level**(1 / rho), and 0 (EDM, equation 5)."""
    if steps < 1:
        raise ValueError(f"steps={steps} given; wanted 1 or more")
    first, last = high**(1 / rho), low**(1 / rho)
    return [(first + i / max(1, steps - 1) * (last - first))**rho for i in range(steps)] + [0.0]


def heun(
    denoise: Callable[[Tensor, float], Tensor], x: Tensor, levels: Sequence[float]
) -> Iterator[Tensor]:
    """x after each step of dx / dsigma = (x - denoise(x, sigma)) / sigma along falling levels.

    Heun's method, of the second order; a step to 0 is Euler's. No gradients are recorded.

    Source: Karras et al., 2022, algorithm 1.
    """
    for level, following in zip(levels, levels[1:], strict=False):
        with no_grad():
            slope = (x - denoise(x, level)) / level
            ahead = x + (following - level) * slope
            if following > 0:
                slope = (slope + (ahead - denoise(ahead, following)) / following) / 2
                ahead = x + (following - level) * slope
            x = ahead
        yield x
