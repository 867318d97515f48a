"""Language models: what text is continued with, token by token."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Protocol, cast

import numpy as np

from gtensor.creation.new_tensors import tensor
from gtensor.engine.handle.tensor import Tensor
from gtensor.execution.steps.captured import CaptureError
from gtensor.execution.steps.captured import capture as gt_capture
from gtensor.memory.workspace import Workspace

_PAYS = 64  # tokens from which on capturing takes less than it saves


class LanguageModel(Protocol):
    """A model that reads tokens one after another: GPT, SSM.

    Its attribute `capturable`, if it has one and that is True, says that a captured `step` serves
    all positions: its state is tensors that are written in place, and `KVCache`s.
    """

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
    top_k: int | None = None, seed: int = 0, capture: bool | str = "auto",
) -> Iterator[int]:
    """`count` tokens after a prompt, one at a time, without an allocation for each.

    A captured step is recorded with the first tokens and replayed for all others: they are the
    same, and on CUDA a token is one graph.

    A model that has a limit sees the last half of it again where the text grows beyond.

    Args:
        model: in evaluation mode.
        prompt: the first tokens, at least one.
        count: how many are made.
        temperature: scores are divided by it; 0 takes the likeliest token each time.
        top_k: only so many of the likeliest tokens are drawn from; None for all.
        seed: of the draws.
        capture: whether the model's step is captured (`gt.capture`). "auto": where it pays, of a
            model that is `capturable`, as GPT and SSM are; one that cannot be goes on as it is, of
            which a warning tells. True: that is a CaptureError.

    Raises ValueError for an empty prompt, a negative temperature, a top_k below 1, and another
    `capture`.
    """
    if not len(prompt):
        raise ValueError("generate was given an empty prompt; wanted at least one token")
    if not 0 <= temperature < inf or top_k is not None and top_k < 1:
        raise ValueError(f"generate was given temperature={temperature} and top_k={top_k}; wanted "
                         "0 or more, and 1 or more")
    if capture != "auto" and not isinstance(capture, bool):
        raise ValueError(f"generate was given capture={capture!r}; wanted 'auto', True or False")
    if capture == "auto" and not (count >= _PAYS and getattr(model, "capturable", False)):
        capture = False
    return _generated(model, prompt, count, temperature, top_k, np.random.default_rng(seed),
                      capture)


def _generated(
    model: LanguageModel, prompt: Sequence[int], count: int, temperature: float,
    top_k: int | None, draws: np.random.Generator, capture: bool | str,
) -> Iterator[int]:
    device = next(iter(model.parameters())).device  # type: ignore[attr-defined]
    known, state = list(prompt), model.initial_state(1)
    token = tensor(np.zeros(1, np.int64), device=device)
    step = _stepping(model, state, capture)
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
                    scores = step(token)
                else:
                    unread = np.array([known[-ahead:]])
                    scores = model.read(tensor(unread, device=device), state)
            seen += ahead
            known.append(_chosen(scores.numpy()[0], temperature, top_k, draws))
            del scores  # so that the next ones may lie there
            yield known[-1]


def _stepping(
    model: LanguageModel, state: Any, capture: bool | str
) -> Callable[[Tensor], Tensor]:
    """The model's step from a state on; captured, as long as it can be."""
    def step(token: Tensor) -> Tensor:
        return model.step(token, state)

    if not capture:
        return step
    current: Callable[[Tensor], Tensor] = gt_capture(step, outputs="shared")

    def replayed(token: Tensor) -> Tensor:
        nonlocal current
        try:
            return current(token)
        except CaptureError as error:
            if capture is True:
                raise
            warnings.warn(f"tokens are not captured: {error}", stacklevel=3)
            current = step
            return cast(Tensor, error.result)  # the step has run as always

    return replayed


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
