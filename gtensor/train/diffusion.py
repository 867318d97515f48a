"""The diffusion recipe: digits drawn out of noise, by a Transformer that is told the digit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gtensor import checkpoint as files
from gtensor import nn, random
from gtensor.backend import get_device
from gtensor.creation.new_tensors import tensor
from gtensor.data import ArrayDataset
from gtensor.engine.handle.tensor import Tensor
from gtensor.models.denoiser import Denoiser, DenoiserConfig, noise_levels
from gtensor.optim import EMA
from gtensor.train.described import Described
from gtensor.train.digits import Data, data
from gtensor.train.pictures import image_grid
from gtensor.train.progress import Captions
from gtensor.train.recipe import Options, Recipe, option
from gtensor.train.trainer import Trainer

DIGITS = 10
SIGMA_DATA = 0.75  # the standard deviation of the pixels in [-1, 1]
_ROWS = 4  # of an epoch's samples
_SCORED = 2  # draws of noise for each held-out image


@dataclass(frozen=True)
class DiffusionOptions(Options):
    """Those of every recipe, and the network's sizes."""

    epochs: int = option(100, "times through the training data", positive=True)
    batch_size: int = option(64, "images per step", positive=True)
    lr: float = option(5e-3, "highest learning rate", positive=True)
    layers: int = option(4, "blocks of the Transformer", positive=True)
    width: int = option(64, "features of a token", positive=True)
    heads: int = option(4, "heads of attention, a divisor of the width", positive=True)


class Diffusion(Recipe[DiffusionOptions]):
    """Digits out of noise (EDM), their class given."""

    options_type = DiffusionOptions
    captions = Captions(
        title="handwritten digits out of noise, 8 x 8 pixels (scikit-learn)",
        loss="denoising loss (weighted squared error, log scale)", score="denoising loss",
        counted="img")
    describing = ("layers", "width", "heads")
    ema_decay = 0.999
    warmup = 0.05

    def __init__(self, options: DiffusionOptions, parts: Data | None = None) -> None:
        super().__init__(options)
        self._data = data() if parts is None else parts

    def dataset(self) -> ArrayDataset:
        return ArrayDataset(_scaled(self._data.train), self._data.train_labels)

    def held_out(self, device: Any) -> tuple[Tensor, ...]:
        self._placed = (tensor(_scaled(self._data.held_out), device=device),
                        tensor(self._data.held_out_labels, device=device))
        return self._placed

    def check_model(self, run: Described) -> None:
        run.check(make_model, self.options)

    def model(self) -> Denoiser:
        return make_model(self.options)

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        images, labels = batch
        return _denoiser(model).denoising_loss(images, labels)

    def score(self, model: nn.Module) -> float:
        """The loss of the held-out images, each time with the same noise."""
        with random.seeded(self.options.seed):
            return sum(self.loss(model, *self._placed).item() for _ in range(_SCORED)) / _SCORED

    def after_epoch(self, trainer: Trainer) -> None:
        """A grid of samples, from the same noise after each epoch."""
        if trainer.folder is None or not trainer.leads:
            return
        epoch = trainer.progress.epoch
        with trainer.averaged():
            images = draw(_denoiser(trainer.model), _ROWS * DIGITS, self.options.seed)
        image_grid(trainer.folder / "samples" / f"epoch-{epoch:04}.png", _in_rows(images), _NAMES,
                   f"samples after epoch {epoch}")

    def after_run(self, trainer: Trainer) -> Iterable[Any]:
        """The way of one sample."""
        if trainer.folder is not None and trainer.leads:
            with trainer.averaged():
                film_strip(trainer.folder / "film.png", _denoiser(trainer.model), self.options.seed)
        return ()


_NAMES = [str(digit) for digit in range(DIGITS)]


def make_model(options: DiffusionOptions) -> Denoiser:
    """The model that the options describe."""
    return Denoiser(DenoiserConfig(
        size=8, patch=2, classes=DIGITS, sigma_data=SIGMA_DATA, noise_mean=0.1, noise_std=1.3,
        layers=options.layers, width=options.width, heads=options.heads))


def _denoiser(model: nn.Module) -> Denoiser:
    assert isinstance(model, Denoiser)
    return model


def _scaled(images: np.ndarray) -> np.ndarray:
    """From [0, 1] to [-1, 1]."""
    return 2 * images - 1


def _ink(images: Tensor) -> np.ndarray:
    """From [-1, 1] to [0, 1], cut there; (N, 8, 8)."""
    return np.clip((images.numpy()[:, 0] + 1) / 2, 0, 1)


def draw(model: Denoiser, count: int, seed: int) -> np.ndarray:
    """Samples (count, 8, 8) in [0, 1], the digits 0 to 9 in turn, from noise of their own seed."""
    with random.seeded(seed):
        return _ink(model.sample(count))


def _in_rows(images: np.ndarray) -> np.ndarray:
    """(N, 8, 8) -> (rows, 10, 8, 8), the last row filled with white."""
    rows = -(-len(images) // DIGITS)
    blank = np.zeros((rows * DIGITS - len(images), *images.shape[1:]), images.dtype)
    return np.concatenate([images, blank]).reshape(rows, DIGITS, *images.shape[1:])


def film_strip(path: Path, model: Denoiser, seed: int, digit: int = 3, steps: int = 18) -> None:
    """A picture of one sample's way: the noise, and the image after each step of the sampler.

    Each is scaled to the deviation of the images, and has its noise level above it.
    """
    c = model.config
    label = tensor(np.array([digit]), device=model.positions.device)
    levels = noise_levels(steps, c.sigma_min, c.sigma_max, c.rho)
    with random.seeded(seed):
        way = [_ink(x * (c.sigma_data**2 / (c.sigma_data**2 + level**2))**0.5)
               for x, level in zip(model.sampled(1, steps, label), levels, strict=True)]
    image_grid(path, np.stack(way, axis=1), [f"{level:.2g}" for level in levels],
               f"a {digit} out of noise, by noise level")


def averaged_model(run: Described) -> Denoiser:
    """The model of a checkpoint with its averaged weights, in evaluation mode.

    Raises ValueError, before the model is built, if the checkpoint's tensors are of another one.
    """
    model = run.model(make_model, run.options(Diffusion, DiffusionOptions()))
    ema = EMA(model)
    files.load(run.path, model=model, ema=ema, random=False)
    model.load_state_dict({name.removeprefix("module."): value
                           for name, value in ema.state_dict().items() if name != "n_averaged"})
    return model.eval()


def write_samples(run: Described, count: int, seed: int, device: str | None, out: Path) -> None:
    """A picture of samples by a checkpoint of this recipe. Raises ValueError as `averaged_model`,
    and for images that are not finite."""
    with get_device(device):
        images = draw(averaged_model(run), count, seed)
    if not np.isfinite(images).all():
        raise ValueError("the images are not finite")
    image_grid(out, _in_rows(images), _NAMES, f"{count} samples, seed {seed}")
