"""Multi-head attention and the layer of a Transformer's encoder, with PyTorch's state dicts."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING

from gtensor.creation.new_tensors import arange, empty, zeros
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn import init
from gtensor.nn.containers import ModuleList, check_layers
from gtensor.nn.hooks import is_plain
from gtensor.nn.layers import (
    DeviceLike,
    Dropout,
    Linear,
    dropped_residual,
    drops,
    residual,
)
from gtensor.nn.module import Module
from gtensor.nn.normalization import LayerNorm, normalized
from gtensor.nn.parameter import Parameter
from gtensor.ops import where
from gtensor.ops.activations.dropout import activated_dropout
from gtensor.ops.attention.attention import attention_weights
from gtensor.ops.attention.packed import packed_attention
from gtensor.ops.define.arguments import refuse_unsupported, want_tensors

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class MultiheadAttention(Module):
    """Attention of several heads between linear maps.

    query (L, N, embed_dim), key (S, N, kdim), value (S, N, vdim) give (L, N, embed_dim); with
    batch_first (N, L, embed_dim) and so on; without a batch (L, embed_dim) and so on.
    add_bias_kv and add_zero_attn must be False.

    Source: Vaswani et al., "Attention is all you need", 2017.

    Raises ValueError unless num_heads divides embed_dim, and for add_bias_kv or add_zero_attn.
    """

    in_proj_weight: Parameter | None  # (3 * embed_dim, embed_dim), of queries, keys and values
    q_proj_weight: Parameter | None  # (embed_dim, embed_dim); these three where widths differ
    k_proj_weight: Parameter | None  # (embed_dim, kdim)
    v_proj_weight: Parameter | None  # (embed_dim, vdim)
    in_proj_bias: Parameter | None  # (3 * embed_dim,)

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
                 add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
                 vdim: int | None = None, batch_first: bool = False, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        refuse_unsupported(False, "MultiheadAttention", add_bias_kv=add_bias_kv,
                           add_zero_attn=add_zero_attn)
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} and num_heads={num_heads} given; wanted "
                             "positive numbers, heads a divisor of the dimension")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        widths = {"q": embed_dim, "k": self.kdim, "v": self.vdim}
        same_width = self.kdim == self.vdim == embed_dim
        joint = Parameter(empty((3 * embed_dim, embed_dim), dtype, device)) if same_width else None
        self.register_parameter("in_proj_weight", joint)
        for name, width in widths.items():
            own = None if same_width else Parameter(empty((embed_dim, width), dtype, device))
            self.register_parameter(f"{name}_proj_weight", own)
        self.register_parameter(
            "in_proj_bias", Parameter(empty(3 * embed_dim, dtype, device)) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        self._initialize()

    def _initialize(self) -> None:
        for name, parameter in self.named_parameters(recurse=False):
            (init.zeros_ if name == "in_proj_bias" else init.xavier_uniform_)(parameter)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the whole attention weights if need_weights.

        Args:
            key_padding_mask: (N, S) or (S,), boolean; True keys are left out. Or added to scores.
            need_weights: False never makes the (L, S) weights: use it where they are not needed.
            attn_mask: (L, S) or (N * heads, L, S), boolean, True leaves out (unlike in
                scaled_dot_product_attention). Or added to the scores.
            average_attn_weights: weights (N, L, S), the mean of the heads', or (N, heads, L, S).
            is_causal: position i sees positions up to i. An attn_mask given with it must be the
                same mask, as in PyTorch; it is not read where nothing else is masked and no weights
                are needed.
        """
        y, weights = self.mixed(query, key, value, key_padding_mask, need_weights, attn_mask,
                                average_attn_weights, is_causal)
        made: Tensor = self.out_proj(y)
        return self._batch_first(made) if query.ndim == 3 else made[0], weights

    def mixed(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None,
        need_weights: bool, attn_mask: Tensor | None, average_attn_weights: bool, is_causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The output before its projection, with the batch first, and the weights."""
        want_tensors("MultiheadAttention", query=query, key=key, value=value,
                     key_padding_mask=key_padding_mask, attn_mask=attn_mask)
        batched = query.ndim == 3
        if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
            raise ValueError(f"MultiheadAttention was given a query of shape {query.shape}, a key "
                             f"of shape {key.shape} and a value of shape {value.shape}; wanted "
                             "three of 2 or 3 dimensions")
        inputs = [self._batch_first(x) if batched else x.reshape((1, *x.shape))
                  for x in (query, key, value)]
        if is_causal and key_padding_mask is None and not need_weights:
            attn_mask = None
        mask = self._mask(attn_mask, key_padding_mask, is_causal, *inputs[:2])
        is_causal = is_causal and mask is None
        p = self.dropout if self.training else 0.0
        if query is key is value and mask is None and not need_weights and (
                self.in_proj_weight is not None):
            packed = F.linear(inputs[0], self.in_proj_weight, self.in_proj_bias)
            y = packed_attention(self._split(packed, 3 * self.num_heads), self.num_heads, p,
                                 is_causal)
            return self._joined(y), None
        q, k, v = (x.permute_dims((0, 2, 1, 3)) for x in self._projected(*inputs))
        weights = None
        if need_weights:
            weights = attention_weights(
                recorded, q, k, mask, scale=(self.embed_dim // self.num_heads)**-0.5,
                is_causal=is_causal)
            weights = F.dropout(weights, p) if p else weights
            y = weights @ v
            weights = weights.mean(axis=1) if average_attn_weights else weights
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, p, is_causal)
        if weights is not None and not batched:
            weights = weights[0]
        return self._joined(y.permute_dims((0, 2, 1, 3))), weights

    def _batch_first(self, x: Tensor) -> Tensor:
        """x with the batch first, and the other way round."""
        return x if self.batch_first else x.permute_dims((1, 0, 2))

    def _joined(self, y: Tensor) -> Tensor:
        """The heads (N, L, heads, features) side by side."""
        return y.reshape((*y.shape[:2], self.embed_dim))

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values after their linear maps, (N, L, heads, features)."""
        size = self.embed_dim
        parts = [slice(i * size, (i + 1) * size) for i in range(3)]
        joint, bias = self.in_proj_weight, self.in_proj_bias
        biases = [None if bias is None else bias[part] for part in parts]
        weights = ((self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if joint is None
                   else [joint[part] for part in parts])
        return [self._split(F.linear(x, weight, own_bias), self.num_heads) for x, weight, own_bias
                in zip((query, key, value), weights, biases, strict=True) if weight is not None]

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """(N, L, width) -> (N, L, heads, width / heads)."""
        n, length, width = x.shape
        return x.reshape((n, length, heads, width // heads))  # -1 is not known of an empty batch

    def _mask(
        self, attn_mask: Tensor | None, padding: Tensor | None, is_causal: bool, query: Tensor,
        key: Tensor,
    ) -> Tensor | None:
        """All masks as one that broadcasts to (N, heads, L, S); boolean ones: True takes part."""
        (n, length, _), keys = query.shape, key.shape[1]
        masks = []
        if attn_mask is not None:
            masks.append(attn_mask if attn_mask.ndim < 3 else attn_mask.reshape(
                (n, self.num_heads, length, keys)))
        if padding is not None:
            masks.append(padding.reshape((-1, 1, 1, keys)))
            if is_causal and attn_mask is None:
                places = arange(length, device=query.device).reshape(-1, 1)
                masks.append(arange(keys, device=query.device) > places)
        if not masks:
            return None
        if all(mask.dtype.kind == "b" for mask in masks):
            return ~functools.reduce(operator.or_, masks)
        nothing = zeros((), query.dtype, query.device)
        return functools.reduce(operator.add, [
            where(mask, -math.inf, nothing) if mask.dtype.kind == "b" else mask for mask in masks])

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, batch_first={self.batch_first}"


class TransformerEncoderLayer(Module):
    """Self-attention and a two-layer network, each with a residual connection and a layer norm.

    Source: Vaswani et al., "Attention is all you need", 2017; norm_first: Xiong et al., "On layer
    normalization in the Transformer architecture", 2020.

    Raises ValueError for an unknown activation.
    """

    norm1: LayerNorm
    norm2: LayerNorm
    dropout: Dropout
    dropout1: Dropout
    dropout2: Dropout

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: str | Callable[[Tensor], Tensor] = "relu",
                 layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False,
                 bias: bool = True, device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise ValueError(f"activation={activation!r} given; wanted 'relu', 'gelu' or a "
                             "function")
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first,
                                            device=device, dtype=dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        for name in ("norm1", "norm2"):
            self.register_module(name, LayerNorm(
                d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype))
        for name in ("dropout", "dropout1", "dropout2"):
            self.register_module(name, Dropout(dropout))
        self.norm_first = norm_first
        self.activation = _ACTIVATIONS[activation] if isinstance(activation, str) else activation

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None, is_causal: bool = False,
    ) -> Tensor:
        """Masks as in MultiheadAttention; the same shape out."""
        masks = (src_mask, src_key_padding_mask, is_causal)
        if self.norm_first:
            h = normalized(self.norm1, src, is_plain(self.self_attn, MultiheadAttention))
            x = self._attended(src, h, *masks)
            return self._transformed(x, normalized(self.norm2, x, is_plain(self.linear1, Linear)))
        x = self.norm1(self._attended(src, src, *masks))
        return self.norm2(self._transformed(x, x))

    def _attended(
        self, x: Tensor, h: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        """x + dropout(attention(h))."""
        attention = self.self_attn
        if (is_plain(attention, MultiheadAttention) and not drops(self.dropout1) and x.ndim == 3
                and attention.batch_first):
            y, _ = attention.mixed(h, h, h, padding, False, mask, True, is_causal)
            return residual(x, attention.out_proj, y)
        y, _ = attention(h, h, h, padding, False, mask, is_causal=is_causal)
        return dropped_residual(x, self.dropout1, y)

    def _transformed(self, x: Tensor, h: Tensor) -> Tensor:
        """x + dropout(feed_forward(h))."""
        if self._is_fused():
            first, second = self.linear1, self.linear2
            dropped = drops(self.dropout2)
            h = F.feed_forward(h, first.weight, first.bias, second.weight, second.bias,
                               summand=None if dropped else x)
            return dropped_residual(x, self.dropout2, h) if dropped else h
        return residual(x, self.linear2, self._activated(self.linear1(h)), self.dropout2)

    def _activated(self, h: Tensor) -> Tensor:
        """dropout(activation(h)), of those that are known in one pass."""
        if is_plain(self.dropout, Dropout) and self.dropout.training:
            for name, function in _ACTIVATIONS.items():
                if self.activation is function:
                    return activated_dropout(h, name, self.dropout.p)
        return self.dropout(self.activation(h))

    def _is_fused(self) -> bool:
        """Whether one op computes the feed-forward part: ReLU, no dropout in it, and no hooks."""
        parts = (self.linear1, Linear), (self.linear2, Linear), (self.dropout, Dropout)
        dropped = self.dropout.training and self.dropout.p > 0
        return self.activation is F.relu and not dropped and all(
            is_plain(part, kind) for part, kind in parts)


class TransformerEncoder(Module):
    """Copies of an encoder layer, one after another, and a norm behind them if one is given.

    Args:
        encoder_layer: of which num_layers copies are made, with its parameters' values.
        num_layers: how many.
        norm: applied to the last one's output.
        enable_nested_tensor, mask_check: have no effect on values.

    Source: Vaswani et al., 2017. Raises ValueError for fewer than no layers.
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
                 enable_nested_tensor: bool = True, mask_check: bool = True) -> None:
        super().__init__()
        check_layers("TransformerEncoder", num_layers, 0)
        self.layers = ModuleList([deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.register_module("norm", norm)

    def forward(
        self, src: Tensor, mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None, is_causal: bool | None = None,
    ) -> Tensor:
        """Masks as of the layers; the same shape out."""
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask,
                        is_causal=bool(is_causal))
        norm = self._modules["norm"]
        return src if norm is None else norm(src)
