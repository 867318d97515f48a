"""DiffusionBlock: equal to the published DiT's block; its gradients, checkpoint and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn
from gtensor.nn.blocks import DiffusionBlock, TimeEmbedding
from gtensor.testing import gradcheck

WIDTH, HEADS = 8, 2


class DiTBlock(torch.nn.Module):
    """The equations and names of the published DiTBlock (Peebles & Xie, 2023; MIT license)."""

    def __init__(self) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.attn = torch.nn.ModuleDict({"qkv": linear(WIDTH, 3 * WIDTH),
                                         "proj": linear(WIDTH, WIDTH)})
        self.mlp = torch.nn.ModuleDict({"fc1": linear(WIDTH, 4 * WIDTH),
                                        "fc2": linear(4 * WIDTH, WIDTH)})
        self.adaLN_modulation = torch.nn.Sequential(torch.nn.SiLU(), linear(WIDTH, 6 * WIDTH))

    def forward(self, x, c):
        shift, scale, gate, shift2, scale2, gate2 = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate.unsqueeze(1) * self._attended(self._film(x, shift, scale))
        hidden = torch.nn.functional.gelu(self.mlp["fc1"](self._film(x, shift2, scale2)),
                                          approximate="tanh")
        return x + gate2.unsqueeze(1) * self.mlp["fc2"](hidden)

    def _film(self, x, shift, scale):
        x = torch.nn.functional.layer_norm(x, (WIDTH,), eps=1e-6)
        return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)

    def _attended(self, x):
        batch, length, _ = x.shape
        qkv = self.attn["qkv"](x).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * (WIDTH // HEADS)**-0.5).softmax(dim=-1)
        return self.attn["proj"]((weights @ v).transpose(1, 2).reshape(x.shape))


class TimestepEmbedder(torch.nn.Module):
    """The published DiT's."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = torch.nn.Sequential(torch.nn.Linear(6, WIDTH), torch.nn.SiLU(),
                                       torch.nn.Linear(WIDTH, WIDTH))

    def forward(self, t):
        powers = torch.exp(-np.log(10000.0) * torch.arange(3, dtype=torch.float64) / 3)
        angles = t[:, None] * powers[None]
        return self.mlp(torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1))


def trained(module: nn.Module, rng: np.random.Generator) -> nn.Module:
    """The module with weights that are nowhere 0."""
    with gt.no_grad():
        for parameter in module.parameters():
            parameter[...] = gt.asarray(0.5 * rng.standard_normal(parameter.shape))
    return module


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def block(rng) -> DiffusionBlock:
    return trained(DiffusionBlock(WIDTH, HEADS, dtype="float64"), rng)


@pytest.fixture
def inputs(rng) -> list[np.ndarray]:
    return [rng.standard_normal((2, 3, WIDTH)), rng.standard_normal((2, WIDTH))]


def gradients(function, module, inputs) -> list[np.ndarray]:
    given = [gt.tensor(each, requires_grad=True) for each in inputs]
    y = function(*given)
    (y * y).sum().backward()
    found = [x.grad.numpy() for x in (*given, *module.parameters())]
    module.zero_grad()
    return found


def test_the_block_is_the_published_one(rng, block, inputs):
    theirs = DiTBlock().double()
    state = {name: torch.tensor(rng.standard_normal(value.shape) / 2)
             for name, value in theirs.state_dict().items()}
    theirs.load_state_dict(state)
    block.load_state_dict(state)
    given = [torch.tensor(each, requires_grad=True) for each in inputs]
    wanted = theirs(*given)
    np.testing.assert_allclose(block(*map(gt.tensor, inputs)).numpy(), wanted.detach().numpy(),
                               rtol=1e-10, atol=1e-10)
    (wanted * wanted).sum().backward()
    for mine, other in zip(gradients(block, block, inputs), given, strict=False):
        np.testing.assert_allclose(mine, other.grad.numpy(), rtol=1e-9, atol=1e-9)


def test_the_embedding_is_the_published_one(rng):
    theirs = TimestepEmbedder().double()
    mine = TimeEmbedding(WIDTH, features=6, dtype="float64")
    mine.load_state_dict(theirs.state_dict())
    time = rng.uniform(0, 1000, 5)
    np.testing.assert_allclose(mine(gt.tensor(time)).numpy(),
                               theirs(torch.tensor(time)).detach().numpy(), rtol=1e-10, atol=1e-12)


def test_the_gradients_are_the_numeric_ones(rng):
    block = trained(DiffusionBlock(4, 2, embedding=3, hidden=5, dtype="float64"), rng)
    names = dict(block.named_parameters())
    given = [rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 3)),
             *(p.numpy() for p in names.values())]

    def run(x, embedding, *weights):
        return gt.functional_call(block, dict(zip(names, weights, strict=True)), (x, embedding))

    gradcheck(run, [gt.tensor(each, requires_grad=True) for each in given])


def test_a_new_block_returns_its_input_and_learns(inputs):
    block = DiffusionBlock(WIDTH, HEADS, dtype="float64")
    x, e = map(gt.tensor, inputs)
    y = block(x, e)
    assert y.tolist() == x.tolist()
    ((y - 1.0)**2).sum().backward()
    linear = block.adaLN_modulation[1]
    moved = (linear.weight.grad.numpy() != 0).any(axis=1).reshape(6, WIDTH)
    assert moved.any(axis=1).tolist() == [False, False, True, False, False, True]  # the gates


def test_checkpointed_gradients_are_the_same(block, inputs):
    plain = gradients(block, block, inputs)
    again = gradients(lambda *given: nn.utils.checkpoint(block, *given), block, inputs)
    for first, second in zip(plain, again, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_context_is_mixed_into_the_input_and_moved_once(block, inputs, checkpointed):
    x, e = (gt.tensor(each, requires_grad=True) for each in inputs)
    context, twin = (nn.SharedAttentionContext(WIDTH, rate=0.5, strength=0.3) for _ in range(2))
    for each in (context, twin):
        each.update(x, x * x)
    wanted = block(twin.apply(x), e)
    twin.update(x, wanted)
    block.context = context
    y = nn.utils.checkpoint(block, x, e) if checkpointed else block(x, e)
    y.sum().backward()
    assert y.tolist() == wanted.tolist()
    np.testing.assert_allclose(context.context.numpy(), twin.context.numpy(), rtol=1e-12)


def test_a_warm_block_allocates_its_result_and_nothing_else(block, inputs):
    x, e = map(gt.tensor, inputs)
    with gt.settings.override(arena_min_bytes=0), gt.no_grad():
        block.ensure_capacity(*x.shape)
        assert {"residual", "feed-forward"} <= block.memory_usage().keys()
        wanted = block(x, e)
        before = gt.memory.stats()
        y = block(x, e)
        after = gt.memory.stats()
        assert after.hits + after.misses == before.hits + before.misses + 1
        block(x, -e)
    assert y.tolist() == wanted.tolist() and block.bytes_saved > 0


@pytest.mark.parametrize(("make", "words"), [
    (lambda: DiffusionBlock(10, 4), "width=10 and heads=4"),
    (lambda: DiffusionBlock(8, 0), "heads=0"),
    (lambda: TimeEmbedding(8, features=5), "features=5"),
    (lambda: TimeEmbedding(8)(gt.zeros((2, 1))), r"\(2, 1\); wanted \(B,\)"),
    (lambda: DiffusionBlock(8, 2)(gt.zeros((2, 3, 6)), gt.zeros((2, 8))), r"\(2, 3, 6\)"),
    (lambda: DiffusionBlock(8, 2)(gt.zeros((2, 3, 8)), gt.zeros((1, 8))), r"\(1, 8\)"),
])
def test_bad_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
