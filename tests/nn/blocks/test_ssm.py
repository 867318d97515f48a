"""SSMBlock: its equations, steps and parts as the whole sequence, derivatives, mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn
from gtensor.nn.blocks import CausalConvolution, SelectiveRecurrence, SSMBlock
from gtensor.testing import gradcheck

WIDTH = 6
KINDS: dict[str, dict[str, Any]] = {
    "gated": {"mixer": "gated"},
    "selective": {"mixer": "selective", "state": 3, "expansion": 2, "hidden": 0},
    "short": {"conv": 1, "hidden": 5},
}


def random(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def made(kind: str, dtype: Any = np.float64, **more: Any) -> SSMBlock:
    gt.manual_seed(3)
    return SSMBlock(WIDTH, **KINDS[kind], dtype=dtype, **more)


def test_the_convolution_is_pytorchs_of_groups() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.Conv1d(5, 5, 4, groups=5, padding=3).double()
    mine = CausalConvolution(5, 4, dtype=np.float64)
    mine.load_state_dict(theirs.state_dict())
    x = random(7, 2, 5)  # (T, N, C)
    wanted = theirs(torch.tensor(x).permute(1, 2, 0))[..., :7].permute(2, 0, 1)
    np.testing.assert_allclose(mine(gt.tensor(x)).numpy(), wanted.detach().numpy(), rtol=1e-12)


def test_the_selective_recurrence_is_mambas() -> None:
    gt.manual_seed(0)
    mixer = SelectiveRecurrence(5, 3, dtype=np.float64)
    weights = {name: torch.tensor(p.numpy()) for name, p in mixer.named_parameters()}
    u = random(7, 2, 5)
    a, b, c = mixer.terms(gt.tensor(u))
    h = nn.functional.linear_scan(*(x.reshape((7, -1)) for x in (a, b))).reshape(a.shape)
    x = torch.tensor(u)
    packed = x @ weights["x_proj.weight"].T
    delta = torch.nn.functional.softplus(
        packed[..., :1] @ weights["dt_proj.weight"].T + weights["dt_proj.bias"])
    state, wanted = torch.zeros(2, 5, 3, dtype=torch.float64), []
    for t in range(7):
        d = delta[t][..., None]
        state = torch.exp(d * -weights["A_log"].exp()) * state + (
            d * x[t][..., None] * packed[t][:, None, 1:4])
        wanted.append((state * packed[t][:, None, 4:]).sum(-1) + weights["D"] * x[t])
    np.testing.assert_allclose(mixer.read(h, gt.tensor(u), c).numpy(), torch.stack(wanted).numpy(),
                               rtol=1e-10, atol=1e-12)
    step = weights["dt_proj.bias"].exp().log1p()
    assert step.min() >= 1e-3 and step.max() <= 0.1
    np.testing.assert_allclose(weights["A_log"].exp(), [[1.0, 2.0, 3.0]] * 5, rtol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_parts_are_the_whole_sequence(kind: str, dtype: Any, tolerance: float) -> None:
    block = made(kind, dtype)
    x = gt.tensor(random(2, 9, WIDTH, dtype=dtype))
    wanted = block(x).numpy()
    state = block.initial_state(2)
    for _ in range(2):
        steps = [block.step(x[:, i], state).numpy() for i in range(9)]
        np.testing.assert_allclose(np.stack(steps, 1), wanted, atol=tolerance)
        state.clear()
    parts = [block(x[:, part], state).numpy() for part in (
        slice(3), slice(3, 4), slice(4, 4), slice(4, 9))]
    np.testing.assert_allclose(np.concatenate(parts, 1), wanted, atol=tolerance)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_numeric_ones_and_those_of_a_checkpoint(kind: str) -> None:
    block = made(kind)
    x = gt.tensor(random(2, 3, WIDTH), requires_grad=True)
    gradcheck(lambda x, *_: block(x), [x, *block.parameters()])
    found = []
    for run in (block, lambda x: nn.utils.checkpoint(block, x)):
        x.grad = None
        block.zero_grad()
        y = run(x)
        (y * y).sum().backward()
        found.append([x.grad.numpy(), *(p.grad.numpy() for p in block.parameters())])
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


def test_a_selective_block_saves_two_arrays_of_all_its_states() -> None:
    """The factors and the states; beside them the others are small."""
    block = SSMBlock(32, "selective", state=64, hidden=0)
    x = gt.ones((4, 128, 32))
    y = block(x)
    del y
    before = gt.memory.stats().allocated
    y = block(x)
    each = x.nbytes * 64
    assert 2 * each <= gt.memory.stats().allocated - before < 2.5 * each
    assert y.shape == x.shape


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_the_recurrence_is_in_float32(kind: str) -> None:
    """Products alone are rounded: factors near 1 would round to 1 in bfloat16."""
    block, x = made(kind, np.float32), gt.tensor(random(2, 9, WIDTH, dtype=np.float32))
    wanted, seen = block(x).numpy(), []
    scan = nn.functional.linear_scan
    with pytest.MonkeyPatch.context() as patched, gt.autocast("bfloat16"):
        patched.setattr(nn.functional, "linear_scan",
                        lambda *given: seen.append(given[0]) or scan(*given))
        y = block(x)
    assert y.dtype == gt.float32 and seen[0].dtype == gt.float32
    np.testing.assert_allclose(y.numpy(), wanted, atol=0.05)


def test_a_step_sees_only_those_before() -> None:
    block = made("gated")
    x = random(1, 8, WIDTH)
    before = block(gt.tensor(x)).numpy()
    x[:, 5] += 1
    after = block(gt.tensor(x)).numpy()
    assert np.array_equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).all()


def test_a_context_is_applied_and_updated() -> None:
    class Context(nn.Module):
        def apply(self, x: gt.Tensor) -> gt.Tensor:  # type: ignore[override]
            return 2 * x

        def update(self, x: gt.Tensor, y: gt.Tensor) -> None:
            self.seen = x.numpy(), y.numpy()

    context = Context()
    block = made("gated", context=context)
    x = random(2, 3, WIDTH)
    y = block(gt.tensor(x)).numpy()
    np.testing.assert_allclose(y, made("gated")(gt.tensor(2 * x)).numpy(), rtol=1e-12)
    for seen, wanted in zip(context.seen, (x, y), strict=True):
        assert np.array_equal(seen.swapaxes(0, 1), wanted)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: SSMBlock(8, "rnn"), "mixer='rnn'; wanted 'gated' or 'selective'"),
    (lambda: SSMBlock(8, state=0), "state=0, expansion=1, conv=4 and hidden=32; wanted 1 or more"),
    (lambda: SSMBlock(8, hidden=-1), "hidden=-1; wanted 1 or more of each, or hidden=0"),
    (lambda: SSMBlock(8)(gt.ones((1, 3, 4))), r"x of shape \(1, 3, 4\); wanted \(batch, T, 8\)"),
])
def test_mistakes_are_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_state_of_other_sequences_is_named_and_left_as_it_was() -> None:
    block = made("gated")
    state = block.initial_state(2)
    block.step(gt.tensor(random(2, WIDTH)), state)
    before = state.window.numpy().copy(), state.hidden.numpy().copy()
    with pytest.raises(ValueError, match="the state of 2 sequences; wanted as many"):
        block.step(gt.ones((3, WIDTH), dtype=np.float64), state)
    assert all(map(np.array_equal, before, (state.window.numpy(), state.hidden.numpy())))
