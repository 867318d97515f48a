"""The GPT of `gtensor.models` in PyTorch, with the same names of parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.out_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        n, length, width = x.shape
        q, k, v = F.linear(x, self.in_proj_weight).view(
            n, length, 3, self.heads, width // self.heads).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (turned(q, *tables), turned(k, *tables), v))
        if cache is not None:
            k, v = cache.append(k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return self.out_proj(y.transpose(1, 2).reshape(n, length, width))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions of (N, T, heads, features)."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Cache:
    """Keys and values of the positions so far."""

    def __init__(self, heads: int, capacity: int, features: int, device: str) -> None:
        self.keys, self.values = (torch.empty(1, heads, capacity, features, device=device)
                                  for _ in range(2))
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + keys.shape[2]
        self.keys[:, :, start:self.length] = keys
        self.values[:, :, start:self.length] = values
        return self.keys[:, :, :self.length], self.values[:, :, :self.length]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.linear1 = nn.Linear(width, 2 * hidden, bias=False)
        self.linear2 = nn.Linear(hidden, width, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        x = x + self.self_attn(self.norm1(x), tables, cache)
        gate, value = self.linear1(self.norm2(x)).chunk(2, -1)
        return x + self.linear2(F.silu(gate) * value)


class PeerGPT(nn.Module):
    """Tokens (N, T) -> scores (N, T, vocabulary); with caches, of the positions after those."""

    def __init__(self, vocabulary: int, layers: int, width: int, heads: int, hidden: int,
                 length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, heads, hidden) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, 1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        features = width // heads
        angles = torch.arange(length)[:, None] / 10000**(torch.arange(0, features, 2) / features)
        for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
            self.register_buffer(name, table[:, None], persistent=False)  # (T, 1, features / 2)

    def forward(self, tokens: Tensor, caches: list[Cache] | None = None) -> Tensor:
        start = caches[0].length if caches else 0
        stop = start + tokens.shape[1]
        tables = self.cos[start:stop], self.sin[start:stop]
        x = self.embedding(tokens)
        for i, block in enumerate(self.blocks):
            x = block(x, tables, caches[i] if caches else None)
        return self.head(self.norm(x))
