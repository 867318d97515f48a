"""SSM: steps and parts as the whole text, learning, tied weights, mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.models import SSM, SSMConfig
from gtensor.nn import functional as F
from gtensor.nn.utils import clip_grad_norm_
from gtensor.optim import AdamW

SMALL = {"vocabulary": 11, "layers": 2, "width": 8, "state": 2}


def made(**more: Any) -> SSM:
    gt.manual_seed(1)
    return SSM(SSMConfig(**SMALL, **more))


@pytest.mark.parametrize("mixer", ["gated", "selective"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_steps_and_parts_are_the_whole_text(mixer: str, device: str) -> None:
    model = made(mixer=mixer).to(device)
    tokens = gt.tensor(np.random.default_rng(0).integers(0, 11, (2, 12)), device=device)
    wanted = model(tokens).numpy()
    assert wanted.shape == (2, 12, 11)
    state = model.initial_state(2)
    steps = [model.step(tokens[:, i], state).numpy() for i in range(12)]
    np.testing.assert_allclose(np.stack(steps, 1), wanted, atol=1e-5)
    model.clear(state)
    np.testing.assert_allclose(model.read(tokens[:, :7], state).numpy(), wanted[:, 6], atol=1e-5)
    np.testing.assert_allclose(model.read(tokens[:, 7:], state).numpy(), wanted[:, 11], atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("mixer", ["gated", "selective"])
def test_it_learns_to_remember(mixer: str) -> None:
    """The first token again after four others, beyond the convolutions of both blocks."""
    gt.manual_seed(1)
    model = SSM(SSMConfig(vocabulary=11, layers=2, width=16, state=4, mixer=mixer, conv=2))
    optimizer = AdamW(model.parameters(), lr=2e-2, betas=(0.9, 0.98))
    rng = np.random.default_rng(0)
    for _ in range(160):
        tokens = np.concatenate([rng.integers(0, 10, (32, 1)), np.full((32, 4), 10)], axis=1)
        loss = F.cross_entropy(model(gt.tensor(tokens))[:, -1], gt.tensor(tokens[:, 0]))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)  # or rounding decides what is learned
        optimizer.step()
    assert loss.item() < 0.3  # of 2.3


def test_a_context_is_learned_by_all_blocks_and_read_by_steps() -> None:
    model = made(context=True)
    tokens = gt.tensor(np.random.default_rng(1).integers(0, 11, (2, 5)))
    optimizer = AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(tokens) * model(tokens)).mean().backward()
        optimizer.step()
    strengths = [p for name, p in model.named_parameters() if name.endswith("strength")]
    assert len(strengths) == 1 and strengths[0].item() != 0
    wanted, state = model.eval()(tokens).numpy(), model.initial_state(2)
    for i in range(5):
        np.testing.assert_allclose(model.step(tokens[:, i], state).numpy(), wanted[:, i], atol=1e-5)


def test_tied_weights_are_those_of_the_embedding() -> None:
    assert "head.weight" in made().state_dict()
    tied = made(tied=True)
    assert "head.weight" not in tied.state_dict()
    assert tied(gt.tensor([[1, 2]])).shape == (1, 2, 11)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: SSM(SSMConfig(layers=0)), ValueError, "layers=0; wanted 1 or more"),
    (lambda: made()(gt.ones((1, 2))), TypeError, "tokens of float32; wanted a Tensor of integers"),
    (lambda: made()([[1]]), TypeError, "tokens of list; wanted a Tensor of integers"),
    (lambda: made()(gt.tensor([1])), ValueError, r"shape \(1,\); wanted \(batch, T\)"),
    (lambda: made().step(gt.tensor([[1]]), []), ValueError, r"shape \(1, 1\); wanted \(batch,\)"),
    (lambda: made().step(gt.tensor([1]), []), ValueError, "a state of 0 blocks; wanted one of"),
])
def test_mistakes_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
