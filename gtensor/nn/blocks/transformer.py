"""The block of a Transformer that predicts the next token, and its cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gtensor.creation.new_tensors import empty
from gtensor.engine.handle.context import grad_enabled, no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.blocks.rotary import RotaryPositions
from gtensor.nn.blocks.workspaces import Block, BlockWorkspace
from gtensor.nn.hooks import is_plain
from gtensor.nn.layers import DeviceLike, Dropout, Linear, dropped_residual, drops, residual
from gtensor.nn.module import Module
from gtensor.nn.normalization import LayerNorm, RMSNorm, normalized
from gtensor.nn.parameter import Parameter
from gtensor.ops.attention.cache_length import CacheLength
from gtensor.ops.attention.cached import cached_attention
from gtensor.ops.attention.packed import packed_attention
from gtensor.ops.linalg.feed_forward import FUSED
from gtensor.system import structure

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike
    from gtensor.nn.context import SharedAttentionContext

NORMS: dict[str, Callable[..., Module]] = {"layer": LayerNorm, "rms": RMSNorm}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.swiglu,  # of twice as many features
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class KVCache:
    """Keys and values of the positions seen so far, for one attention.

    `keys` and `values` are (batch, heads, capacity, features); the first `length` positions are
    filled. `filled` counts them, for all caches of a model. A captured step goes on at the length
    that it finds at each replay.
    """

    def __init__(self, batch: int, heads: int, capacity: int, features: int,
                 device: DeviceLike = None, dtype: DTypeLike | None = None,
                 filled: CacheLength | None = None) -> None:
        shape = (batch, heads, capacity, features)
        self.keys, self.values = empty(shape, dtype, device), empty(shape, dtype, device)
        self.filled = filled or CacheLength(capacity, self.keys.device)

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__:  # of which captured steps know the memory
            structure.changed(f"KVCache.{name} was set")
        super().__setattr__(name, value)

    @property
    def capacity(self) -> int:
        """The number of positions that there is room for."""
        return self.keys.shape[2]

    @property
    def length(self) -> int:
        """The number of positions that are filled: a smaller one forgets those behind it."""
        return self.filled.number

    @length.setter
    def length(self, length: int) -> None:
        self.filled.number = length

    def attend(self, packed: Tensor, positions: RotaryPositions | None) -> Tensor:
        """What new positions attend to (batch, T, width), and take in their keys and values.

        `packed` (batch, T, heads + 2 * kv_heads, features) are their queries, keys and values,
        whose memory is written. Raises ValueError, with nothing changed, for another batch and
        beyond the capacity.
        """
        batch, heads, capacity, features = self.keys.shape
        if (packed.shape[0] != batch or packed.shape[3] != features
                or packed.shape[2] <= 2 * heads or packed.shape[2] % heads):
            raise ValueError(
                f"a cache for {batch} sequences, {heads} heads and {features} features was given "
                f"{packed.shape[0]} sequences, {packed.shape[2]} heads of queries, keys and "
                f"values, and {packed.shape[3]} features; wanted as many")
        packed = packed.to(self.keys.dtype)  # another one under `gt.autocast`
        with self.filled.adding(packed.shape[1]) as new:
            table = None if positions is None else positions.whole(capacity, packed)
            return cached_attention(packed, self.keys, self.values, new.first, table)


class CausalSelfAttention(Module):
    """Attention of each position to itself and to those before, with groups of heads.

    One projection gives queries (heads), keys and values (kv_heads each). Rotary positions turn
    queries and keys where they lie.

    Sources: Vaswani et al., "Attention is all you need", 2017; Ainslie et al., "GQA: Training
    generalized multi-query Transformer models from multi-head checkpoints", 2023.

    Raises ValueError unless heads divides the width, and kv_heads the heads.
    """

    in_proj_weight: Parameter  # ((heads + 2 * kv_heads) * width / heads, width)
    in_proj_bias: Parameter | None

    def __init__(self, width: int, heads: int, kv_heads: int | None = None, dropout: float = 0.0,
                 bias: bool = False, rotary: RotaryPositions | bool = True,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if min(width, heads, kv_heads) < 1 or width % heads or heads % kv_heads:
            raise ValueError(
                f"width={width}, heads={heads} and kv_heads={kv_heads} given; wanted positive "
                "numbers, heads a divisor of the width and kv_heads one of the heads")
        self.heads, self.kv_heads, self.features = heads, kv_heads, width // heads
        self.dropout = dropout
        if rotary is True:
            rotary = RotaryPositions(self.features, device=device, dtype=dtype)
        self.positions = rotary or None
        rows = (heads + 2 * kv_heads) * self.features
        self.register_parameter("in_proj_weight", Parameter(empty((rows, width), dtype, device)))
        self.register_parameter(
            "in_proj_bias", Parameter(empty(rows, dtype, device)) if bias else None)
        self.out_proj = Linear(width, width, bias, device, dtype)
        init.xavier_uniform_(self.in_proj_weight)
        for vector in (self.in_proj_bias, self.out_proj.bias):
            if vector is not None:
                init.zeros_(vector)

    def forward(self, x: Tensor, cache: KVCache | None = None) -> Tensor:
        """(batch, T, width) -> the same; with a cache, of the positions after those in it."""
        return self.out_proj(self.mixed(x, cache))

    def mixed(self, x: Tensor, cache: KVCache | None = None) -> Tensor:
        """The output before its projection."""
        batch, length, width = x.shape
        packed = F.linear(x, self.in_proj_weight, self.in_proj_bias).reshape(
            (batch, length, self.heads + 2 * self.kv_heads, self.features))
        if cache is not None:
            if cache.keys.shape[1] != self.kv_heads:
                raise ValueError(f"a cache of {cache.keys.shape[1]} heads was given to attention "
                                 f"with kv_heads={self.kv_heads}; wanted as many")
            return cache.attend(packed, self.positions)
        if self.positions is not None:
            packed = F.rotary_embedding(packed, *self.positions.tables(0, length, packed),
                                        self.heads + self.kv_heads, inplace=True)
        y = packed_attention(packed, self.kv_heads, self.dropout if self.training else 0.0)
        return y.reshape((batch, length, width))

    def extra_repr(self) -> str:
        return f"{self.heads * self.features}, heads={self.heads}, kv_heads={self.kv_heads}"


class TransformerBlock(Block):
    """x + attention(norm(x)), then x + feed_forward(norm(x)), causal, for a decoder.

    With `activation="gelu"`, `norm="layer"`, `bias=True` and `rotary=False` it is PyTorch's
    TransformerEncoderLayer(norm_first=True) under a causal mask, whose state dicts it loads.

    Args:
        width, heads: features of a position, and heads that share them.
        kv_heads: heads of keys and values, a divisor of `heads`; None for as many.
        hidden: features of the feed-forward part; None for 4 * width, or with "swiglu", which has
            two matrices there, 8 / 3 * width rounded up to a multiple of 32.
        activation: "swiglu", "gelu", "gelu_tanh" or "relu".
        norm: "rms" or "layer".
        rotary: whether positions turn queries and keys; or the tables of a model's other blocks.
        context: what the layers before have learned of their features (`SharedAttentionContext`):
            applied to the input; updated with input and output in training mode.
        workspace: that of the blocks that run before and after, to share its buffers.

    Sources: Xiong et al., "On layer normalization in the Transformer architecture", 2020; Touvron
    et al., "LLaMA: open and efficient foundation language models", 2023.

    Raises ValueError for an unknown activation or norm, and for heads that do not divide the width.
    """

    norm1: Module
    norm2: Module

    def __init__(self, width: int, heads: int, kv_heads: int | None = None,
                 hidden: int | None = None, activation: str = "swiglu", norm: str = "rms",
                 rotary: RotaryPositions | bool = True, dropout: float = 0.0, bias: bool = False,
                 eps: float = 1e-5, context: SharedAttentionContext | None = None,
                 workspace: BlockWorkspace | None = None, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__(width, workspace)
        if activation not in ACTIVATIONS or norm not in NORMS:
            raise ValueError(
                f"activation={activation!r} and norm={norm!r} given; wanted one of "
                f"{', '.join(ACTIVATIONS)}, and one of {', '.join(NORMS)}")
        gated = activation == "swiglu"
        if hidden is None:
            hidden = -(-8 * width // 96) * 32 if gated else 4 * width
        self.self_attn = CausalSelfAttention(width, heads, kv_heads, dropout, bias, rotary, device,
                                             dtype)
        self.linear1 = Linear(width, 2 * hidden if gated else hidden, bias, device, dtype)
        self.linear2 = Linear(hidden, width, bias, device, dtype)
        for name in ("norm1", "norm2"):
            self.register_module(name, NORMS[norm](width, eps, device=device, dtype=dtype))
        self.dropout = Dropout(dropout)
        self.activation = activation
        self.context = context

    def forward(self, x: Tensor, cache: KVCache | None = None) -> Tensor:
        """(batch, T, width) -> the same.

        With a cache, of the positions after those that are in it, which it then holds, too; nothing
        is recorded. `T` may be any number, up to the cache's capacity.
        """
        if x.ndim != 3 or x.shape[2] != self.width:
            raise ValueError(f"TransformerBlock was given x of shape {x.shape}; wanted (batch, T, "
                             f"{self.width})")
        if cache is None:
            return self._run(x, None)
        with no_grad():
            return self._run(x, cache)

    def _run(self, x: Tensor, cache: KVCache | None) -> Tensor:
        with self.places(x.device) as place:
            mixed_in = x
            if self.context is not None:
                with place.saved("context"):
                    mixed_in = self.context.apply(x)
            with place.saved("norm output"):
                h = normalized(
                    self.norm1, mixed_in, is_plain(self.self_attn, CausalSelfAttention))
            with place.saved("mixing"):
                h = self.self_attn.mixed(h, cache)
            dropped = drops(self.dropout)
            if dropped:
                with place("mixing output"):
                    h = self.self_attn.out_proj(h)
            with place.saved("residual"):
                stream = (dropped_residual(mixed_in, self.dropout, h) if dropped
                          else residual(mixed_in, self.self_attn.out_proj, h))
            plain = is_plain(self.linear1, Linear)
            with place.saved("norm output"):
                h = normalized(self.norm2, stream, plain)
            fused = self.activation in FUSED and plain and is_plain(self.linear2, Linear)
            summed = fused and not dropped and grad_enabled()  # else h, and not y, has a buffer
            with place.saved("feed-forward"):
                if fused:
                    h = F.feed_forward(h, self.linear1.weight, self.linear1.bias,
                                       self.linear2.weight, self.linear2.bias, self.activation,
                                       stream if summed else None)
                else:
                    h = ACTIVATIONS[self.activation](self.linear1(h))
            if dropped and not fused:
                with place("feed-forward output"):
                    h = self.linear2(h)
        if dropped:
            y = dropped_residual(stream, self.dropout, h)
        elif fused:
            y = h if summed else stream + h
        else:
            y = residual(stream, self.linear2, h)
        if self.context is not None and self.training:
            self.context.update(x, y)
        return y

    def widths(self) -> dict[str, int]:
        width = self.width
        found = {"norm output": width, "mixing": self.self_attn.in_proj_weight.shape[0],
                 "residual": width, "feed-forward": self.linear1.weight.shape[0]}
        if self.dropout.p:  # else those are part of the sums
            found |= {"mixing output": width, "feed-forward output": width}
        return found

    def initial_state(
        self, batch: int, capacity: int, filled: CacheLength | None = None
    ) -> KVCache:
        """An empty cache for `capacity` positions of `batch` sequences; `filled`: as a `KVCache`.
        """
        weight, attention = self.linear1.weight, self.self_attn
        return KVCache(batch, attention.kv_heads, capacity, attention.features, weight.device,
                       weight.dtype, filled)

    def step(self, x: Tensor, state: KVCache) -> Tensor:
        """The next position (batch, width) of each sequence -> the same."""
        y = self.forward(x.reshape((len(x), 1, -1)), state)
        return y.reshape(x.shape)
