"""The text recipe: a Transformer or a state-space model that predicts the next byte."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np

from gtensor import nn
from gtensor.creation.dtypes import int64
from gtensor.creation.new_tensors import tensor
from gtensor.data import ArrayDataset
from gtensor.engine.handle.tensor import Tensor
from gtensor.models.gpt import GPT, GPTConfig
from gtensor.nn import functional as F
from gtensor.system.files import read_all
from gtensor.train.described import Described
from gtensor.train.errors import UserError
from gtensor.train.progress import Captions
from gtensor.train.recipe import Options, Recipe, option

_MOST_BYTES = 1 << 30  # of a file
_HELD_OUT = 0.1  # the last part of the text
_AT_ONCE = 32  # windows of the held-out text


@dataclass(frozen=True)
class TextOptions(Options):
    """Those of every recipe, the text, and the model's sizes."""

    epochs: int = option(3, "times through the text", positive=True)
    batch_size: int = option(16, "windows per step", positive=True)
    lr: float = option(3e-3, "highest learning rate", positive=True)
    weight_decay: float = option(0.1, "of AdamW", least=0)
    clip: float = option(1.0, "largest norm of the gradients; 0 for any", least=0)
    data: tuple[str, ...] = option((), "files of text, read as bytes (the help of Python's "
                                   "keywords, which ships with it)", many=True)
    arch: str = option("transformer", "the blocks of the model", ("transformer", "ssm"))
    layers: int = option(4, "blocks", positive=True)
    width: int = option(128, "features of a position", positive=True)
    heads: int = option(4, "of attention; a transformer's", positive=True)
    length: int = option(128, "bytes of a window", positive=True)


def python_topics() -> bytes:
    """The text of `pydoc_data.topics`: what Python's `help()` says about its language."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


def read_files(paths: tuple[str, ...]) -> bytes:
    """The bytes of files, one after another. UserError for one that is missing or empty."""
    parts = []
    for path in paths:
        try:
            found = bytes(read_all(path, _MOST_BYTES))
        except (OSError, ValueError) as error:
            told = getattr(error, "strerror", None) or error
            raise UserError(f"--data {path} could not be read: {told}") from error
        if not found:
            raise UserError(f"--data {path} is empty; wanted a file of text")
        parts.append(found)
    return b"\n\n".join(parts)


class Text(Recipe[TextOptions]):
    """The next byte of a text."""

    options_type = TextOptions
    describing = ("arch", "layers", "width", "heads", "length")

    def __init__(self, options: TextOptions, text: bytes | None = None) -> None:
        super().__init__(options)
        if text is None:
            text = read_files(options.data) if options.data else python_topics()
        self._bytes = np.frombuffer(text, np.uint8)
        self.captions = Captions(
            title="the next byte of a text", loss="cross entropy (nats per byte, log scale)",
            score="nats per byte", shown="{:.3f}".format, counted="bytes", each=options.length)
        self._cut = int(len(self._bytes) * (1 - _HELD_OUT))
        window = options.length + 1
        if self._cut < window or len(self._bytes) - self._cut < 2:
            raise UserError(f"a text of {len(text)} bytes was given; wanted a longer one for "
                            f"--length {options.length}")

    def dataset(self) -> ArrayDataset:
        """Windows of length + 1 bytes, each beginning where the one before ends."""
        return ArrayDataset(_windows(self._bytes[:self._cut], self.options.length))

    @cached_property
    def _held_out_windows(self) -> np.ndarray:
        return _windows(self._bytes[self._cut:], self.options.length)

    def fingerprint(self) -> str:
        return f"{len(self._bytes)} bytes, SHA-256 {sha256(self._bytes.data).hexdigest()}"

    def model(self) -> nn.Module:
        return make_model(self.options)

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        (windows,) = batch
        return _cross_entropy(model, windows)

    def score(self, model: nn.Module) -> float:
        """The mean cross entropy of the held-out windows' bytes, each after those before it."""
        total, windows = 0.0, self._held_out_windows
        device = next(iter(model.parameters())).device
        for start in range(0, len(windows), _AT_ONCE):
            part = windows[start:start + _AT_ONCE]
            total += _cross_entropy(model, tensor(part, device=device)).item() * len(part)
        return total / len(windows)

    def check_model(self, run: Described) -> None:
        run.check(make_model, self.options)


def make_model(options: TextOptions) -> nn.Module:
    """The model that the options describe."""
    if options.arch == "ssm":
        from gtensor.models.ssm import SSM, SSMConfig

        return SSM(SSMConfig(layers=options.layers, width=options.width))
    return GPT(GPTConfig(layers=options.layers, width=options.width, heads=options.heads,
                         length=options.length))


def _windows(text: np.ndarray, length: int) -> np.ndarray:
    """(windows, length + 1), without a copy."""
    each = min(length, len(text) - 1)
    return np.lib.stride_tricks.sliding_window_view(text, each + 1)[::each]


def _cross_entropy(model: nn.Module, windows: Tensor) -> Tensor:
    """The mean over all bytes of the windows but the first ones."""
    windows = windows.astype(int64)  # one batch of them: the text itself stays bytes
    scores = model(windows[:, :-1])  # (batch, T, vocabulary)
    return F.cross_entropy(scores.reshape((-1, scores.shape[-1])), windows[:, 1:].reshape(-1))
