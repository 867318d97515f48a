"""The block of a diffusion Transformer, and the embedding of a noise level or time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.creation.new_tensors import arange
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.activations import SiLU
from gtensor.nn.blocks.workspaces import Block, BlockWorkspace, Places
from gtensor.nn.containers import Sequential
from gtensor.nn.layers import DeviceLike, Linear
from gtensor.nn.module import Module
from gtensor.nn.normalization import LayerNorm
from gtensor.ops import concat, cos, sin

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike
    from gtensor.nn.context import SharedAttentionContext


class TimeEmbedding(Module):
    """Cosines and sines of a time or noise level at several frequencies, and a small network.

    With frequencies period ** (-i / (features / 2)), i = 0, 1, ...: (B,) -> (B, width). Its state
    is that of the published DiT's TimestepEmbedder.

    Args:
        width: of the embedding.
        features: how many cosines and sines there are, half of each.
        period: 2 pi times it is close to the longest wavelength; 2 pi is the shortest.

    Sources: Vaswani et al., "Attention is all you need", 2017; Peebles & Xie, "Scalable diffusion
    models with Transformers", 2023.

    Raises ValueError for an odd number of features, or what is not positive.
    """

    frequencies: Tensor  # (features / 2,)

    def __init__(self, width: int, features: int = 256, period: float = 10000.0,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        if width < 1 or features < 2 or features % 2 or not period > 0:
            raise ValueError(f"width={width}, features={features} and period={period} given to "
                             "TimeEmbedding; wanted a positive width, an even number of features "
                             "and a positive period")
        self.features = features
        self.period = period
        first = Linear(features, width, device=device, dtype=dtype)
        self.mlp = Sequential(first, SiLU(), Linear(width, width, device=device, dtype=dtype))
        half = features // 2
        powers = arange(half, dtype="float64", device=device) / -half
        self.register_buffer("frequencies", (period**powers).astype(first.weight.dtype),
                             persistent=False)

    def forward(self, time: Tensor) -> Tensor:
        """(B,) -> (B, width)."""
        if time.ndim != 1:
            raise ValueError(f"TimeEmbedding was given a time of shape {time.shape}; wanted (B,)")
        angles = time.reshape((-1, 1)) * self.frequencies
        return self.mlp(concat([cos(angles), sin(angles)], axis=1))

    def extra_repr(self) -> str:
        return f"features={self.features}, period={self.period}"


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """FiLM: x (B, T, C) times 1 + scale (B, 1, C), plus shift (B, 1, C).

    Source: Perez et al., "FiLM: Visual reasoning with a general conditioning layer", 2018.
    """
    return x * (1.0 + scale) + shift


class Modulation(Sequential):
    """`parts` vectors (B, 1, width) each from an embedding (B, embedding); all are 0 at first."""

    def __init__(self, embedding: int, width: int, parts: int, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        linear = Linear(embedding, parts * width, device=device, dtype=dtype)
        super().__init__(SiLU(), linear)
        for parameter in linear.parameters():
            init.zeros_(parameter)
        self.parts = parts

    def vectors(self, embedding: Tensor) -> list[Tensor]:
        """`parts` views of one product."""
        whole = self(embedding)  # (B, parts * width)
        whole = whole.reshape((len(whole), self.parts, 1, -1))
        return [whole[:, part] for part in range(self.parts)]


class SelfAttention(Module):
    """Attention of all tokens to all; one projection gives queries, keys and values."""

    def __init__(self, width: int, heads: int, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width, device=device, dtype=dtype)
        self.proj = Linear(width, width, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) -> the same."""
        return self.proj(self.mixed(x))

    def mixed(self, x: Tensor) -> Tensor:
        """The output before its projection."""
        batch, length, width = x.shape
        packed = self.qkv(x).reshape((batch, length, 3 * self.heads, width // self.heads))
        by_head = packed.permute_dims((0, 2, 1, 3))  # (B, 3 * heads, T, width / heads)
        q, k, v = (by_head[:, i * self.heads:(i + 1) * self.heads] for i in range(3))
        y = F.scaled_dot_product_attention(q, k, v)
        return y.permute_dims((0, 2, 1, 3)).reshape(x.shape)


class FeedForward(Module):
    """Two linear maps with GELU (its approximation by tanh) between them."""

    def __init__(self, width: int, hidden: int, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        self.fc1 = Linear(width, hidden, device=device, dtype=dtype)
        self.fc2 = Linear(hidden, width, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same."""
        return F.feed_forward(x, self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias,
                              "gelu_tanh")


class DiffusionBlock(Block):
    """Attention of all tokens and a feed-forward part, told the noise level (adaLN-Zero).

    x + gate * attention(film(norm(x))), then x + gate * feed_forward(film(norm(x))). FiLM's scales
    and shifts and the gates come from one linear map of the embedding. It is 0 at first, so that
    the block at first returns its input. Loads the state dicts of the published DiTBlock.

    Args:
        width, heads: features of a token, and heads that share them.
        embedding: width of the embedding that `forward` is given; None for `width`.
        hidden: features of the feed-forward part; None for 4 * width.
        context: what the layers before have learned of their features (`SharedAttentionContext`):
            applied to the input; updated with input and output in training mode.
        workspace: that of the blocks that run before and after, to share its buffers.

    Raises ValueError unless the heads divide the width.

    Source: Peebles & Xie, "Scalable diffusion models with Transformers", 2023.
    """

    def __init__(self, width: int, heads: int, embedding: int | None = None,
                 hidden: int | None = None, eps: float = 1e-6,
                 context: SharedAttentionContext | None = None,
                 workspace: BlockWorkspace | None = None, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__(width, workspace)
        if width < 1 or heads < 1 or width % heads:
            raise ValueError(f"width={width} and heads={heads} given to DiffusionBlock; wanted "
                             "positive numbers, heads a divisor of the width")
        self.embedding = width if embedding is None else embedding
        self.norm1 = LayerNorm(width, eps, elementwise_affine=False)
        self.attn = SelfAttention(width, heads, device=device, dtype=dtype)
        self.norm2 = LayerNorm(width, eps, elementwise_affine=False)
        self.mlp = FeedForward(width, 4 * width if hidden is None else hidden, device, dtype)
        self.adaLN_modulation = Modulation(self.embedding, width, 6, device, dtype)
        self.context = context

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """x (B, T, width) and the embedding (B, embedding) of the noise level: (B, T, width)."""
        if x.ndim != 3 or x.shape[2] != self.width or (
                embedding.shape != (len(x), self.embedding)):
            raise ValueError(
                f"DiffusionBlock was given x of shape {x.shape} and an embedding of shape "
                f"{embedding.shape}; wanted (B, T, {self.width}) and (B, {self.embedding})")
        with self.places(x.device) as place:
            y = self._run(x, embedding, place)
        if self.context is not None and self.training:
            self.context.update(x, y)
        return y

    def _run(self, x: Tensor, embedding: Tensor, place: Places) -> Tensor:
        if self.context is not None:
            with place.saved("context"):
                x = self.context.apply(x)
        with place.saved("FiLM"):
            shift, scale, gate, shift2, scale2, gate2 = self.adaLN_modulation.vectors(embedding)
        with place.saved("norm output"):
            h = modulate(self.norm1(x), shift, scale)
        with place.saved("mixing"):
            h = self.attn.mixed(h)
        with place.saved("mixing output"):
            h = self.attn.proj(h)
        with place.saved("residual"):
            x = x + gate * h
        with place.saved("norm output"):
            h = modulate(self.norm2(x), shift2, scale2)
        with place.saved("feed-forward"):
            h = self.mlp(h)
        with place("feed-forward output"):
            h = gate2 * h
        return x + h

    def widths(self) -> dict[str, int]:
        width, hidden = self.width, self.mlp.fc1.weight.shape[0]
        return {"norm output": width, "mixing": 3 * width, "mixing output": width,
                "residual": width, "feed-forward": hidden, "feed-forward output": width}

    def extra_repr(self) -> str:
        return f"{self.width}, embedding={self.embedding}"
