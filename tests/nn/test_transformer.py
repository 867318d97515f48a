"""A small Transformer written with the modules: equal to PyTorch's block, and it learns."""

from __future__ import annotations

import numpy as np
import torch

import gtensor as gt
from gtensor import nn
from gtensor.nn import functional as F


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + mlp(norm(x)); (N, L, width) in and out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        n, length, width = x.shape
        joint = self.queries_keys_values(self.norm1(x))
        joint = joint.reshape(n, length, 3, self.heads, -1).permute_dims(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(joint[0], joint[1], joint[2], is_causal=True)
        x = x + self.project(heads.permute_dims(0, 2, 1, 3).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Token indices (N, L) to logits (N, L, tokens)."""

    def __init__(self, tokens: int, length: int, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(2)])
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        y = self.tokens(x) + self.places(gt.arange(x.shape[1]))
        for block in self.blocks:
            y = block(y)
        return self.head(y)


def test_the_block_is_pytorchs():
    torch.manual_seed(0)
    width, heads = 8, 2
    theirs = torch.nn.TransformerEncoderLayer(
        width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    mine = Block(width, heads).to(gt.float64)
    names = {"self_attn.in_proj_": "queries_keys_values.", "self_attn.out_proj.": "project.",
             "linear1.": "mlp.0.", "linear2.": "mlp.2."}
    state = {}
    for name, value in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = value
    mine.load_state_dict(state)
    x = np.random.default_rng(0).standard_normal((3, 5, width))
    a, b = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    y, z = mine(a), theirs(b, src_mask=mask, is_causal=True)
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-9, atol=1e-10)
    (y * y).sum().backward()
    (z * z).sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-8, atol=1e-9)


def test_a_tiny_transformer_learns_to_copy():
    """The second half of a sequence repeats the first: only attention can know it."""
    gt.manual_seed(0)
    rng = np.random.default_rng(0)
    half, tokens = 4, 8
    model = Model(tokens, 2 * half - 1)
    optimizer = gt.optim.AdamW(model.parameters(), lr=4e-3)

    def batch(n):
        first = rng.integers(0, tokens, (n, half))
        return gt.tensor(np.concatenate([first, first], axis=1))

    def predicted(sequences):
        return model(sequences[:, :-1])[:, half - 1:]

    for _ in range(60):
        sequences = batch(32)
        logits = predicted(sequences).reshape(-1, tokens)
        loss = F.cross_entropy(logits, sequences[:, half:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    unseen = batch(64)
    right = predicted(unseen).argmax(axis=2) == unseen[:, half:]
    assert right.astype(gt.float32).mean().item() > 0.95
