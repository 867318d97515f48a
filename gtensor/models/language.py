"""Language models: what text is continued with, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Protocol

import numpy as np

from gtensor.creation.new_tensors import tensor
from gtensor.engine.handle.tensor import Tensor
from gtensor.memory.workspace import Workspace


class LanguageModel(Protocol):
    """A model that reads tokens one after another: GPT, SSM."""

    limit: int | None
    """The most tokens that a state holds; None for any number."""

    def initial_state(self, batch: int = 1) -> Any:
        """The state before the first token."""

    def read(self, tokens: Tensor, state: Any) -> Tensor:
        """Scores of the next token (batch, vocabulary) after tokens (batch, T)."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """As `read`, of one token (batch,) each."""

    def clear(self, state: Any) -> None:
        """Make a state that of before the first token."""


def check_tokens(name: str, tokens: Tensor, ndim: int) -> None:
    """Raise unless tokens are integers with that many axes, at least one position."""
    if not isinstance(tokens, Tensor) or tokens.dtype.kind not in "iu":
        kind = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(f"{name} was given tokens of {kind}; wanted a Tensor of integers")
    if tokens.ndim != ndim or not tokens.shape[-1]:
        raise ValueError(f"{name} was given tokens of shape {tokens.shape}; wanted "
                         f"{'(batch, T)' if ndim == 2 else '(batch,)'} with at least one")


def generate(
    model: LanguageModel, prompt: Sequence[int], count: int, temperature: float = 1.0,
    top_k: int | None = None, seed: int = 0,
) -> Iterator[int]:
    """`count` tokens after a prompt, one at a time, without an allocation for each.

    A model that has a limit sees the last half of it again where the text grows beyond.

    Args:
        model: in evaluation mode.
        prompt: the first tokens, at least one.
        count: how many are made.
        temperature: scores are divided by it; 0 takes the likeliest token each time.
        top_k: only so many of the likeliest tokens are drawn from; None for all.
        seed: of the draws.

    Raises ValueError for an empty prompt, a negative temperature, and a top_k below 1.
    """
    if not len(prompt):
        raise ValueError("generate was given an empty prompt; wanted at least one token")
    if not 0 <= temperature < inf or top_k is not None and top_k < 1:
        raise ValueError(f"generate was given temperature={temperature} and top_k={top_k}; wanted "
                         "0 or more, and 1 or more")
    return _generated(model, prompt, count, temperature, top_k, np.random.default_rng(seed))


def _generated(
    model: LanguageModel, prompt: Sequence[int], count: int, temperature: float,
    top_k: int | None, draws: np.random.Generator,
) -> Iterator[int]:
    device = next(iter(model.parameters())).device  # type: ignore[attr-defined]
    known, state = list(prompt), model.initial_state(1)
    token = tensor(np.zeros(1, np.int64), device=device)
    start = seen = 0  # the state holds known[start:start + seen]
    with Workspace(device) as workspace:
        for _ in range(count):
            ahead = len(known) - start - seen
            if model.limit is not None and seen + ahead > model.limit:
                model.clear(state)
                ahead, seen = max(1, model.limit // 2), 0
                start = len(known) - ahead
            with workspace.serving(), workspace.named("scores"):
                if ahead == 1:
                    token[0] = known[-1]
                    scores = model.step(token, state)
                else:
                    unread = np.array([known[-ahead:]])
                    scores = model.read(tensor(unread, device=device), state)
            seen += ahead
            known.append(_chosen(scores.numpy()[0], temperature, top_k, draws))
            del scores  # so that the next ones may lie there
            yield known[-1]


def _chosen(scores: np.ndarray, temperature: float, top_k: int | None,
            draws: np.random.Generator) -> int:
    if not np.isfinite(scores).all():
        raise ValueError("generate was given a model whose scores are not finite")
    if not temperature:
        return int(scores.argmax())
    scaled = scores.astype(np.float64)
    if top_k is not None and top_k < len(scaled):
        scaled[np.argpartition(scaled, -top_k)[:-top_k]] = -np.inf
    scaled -= scaled.max()  # before the division, which may overflow
    weights = np.exp(scaled / temperature)
    sums = weights.cumsum()
    return int(np.searchsorted(sums, draws.random() * sums[-1], side="right"))
