"""Attention on the CPU whose matrices of weights fit a tile: some at a time, each of them whole.

As `blocks.py` has it for blocks of any kind, whose bookkeeping takes longer than the products of a
few short rows. A maximum or a sum of a row is final at once, and NumPy writes where results belong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.handle.namespaces import raw
from gtensor.ops.activations.dropout import keep_factors
from gtensor.ops.define import rows
from gtensor.ops.define.cpu_tiles import row_maxima
from gtensor.ops.define.path_builders import tiles
from gtensor.ops.define.sums import row_sums
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array


def serves(
    device: Device, q: Array, k: Array, v: Array, mask: Array | None, is_causal: bool
) -> bool:
    """Whether `attend` takes these; `differentiate` needs the same leading axes of all."""
    length, keys, size = q.shape[-2], k.shape[-2], q.itemsize
    return (device.type == "cpu" and mask is None and q.dtype.char in "fd"
            and 0 < length * keys <= tile_of(q.dtype) and not (is_causal and keys > length)
            and k.strides[-1] == size and v.strides[-1] == size)


def tile_of(dtype: np.dtype) -> int:
    """Weights of a tile. Kernels pass over them once, so more of them may leave the first cache."""
    return settings.tile_elements * (2 if rows.of_attention(dtype) else 1)


def attend(
    device: Device, q: Array, k: Array, v: Array, out: Array, **options: Any
) -> tuple[Array, Array]:
    """Write the output; of each query the largest score, and the sum of exponentials."""
    lead = out.shape[:-2]
    q, k, v = (x if x.shape[:-2] == lead else np.broadcast_to(x, (*lead, *x.shape[-2:]))
               for x in (q, k, v))
    largest, total = device.empty((2, *out.shape[:-1], 1), q.dtype, "attention")
    with np.errstate(invalid="ignore", over="ignore"):  # infinite scores: NaN, as in PyTorch
        for key, some in _matrices(device, q, k, v, **options):
            largest[key], total[key] = some.attend(out[key])
    return largest, total


def differentiate(
    device: Device, g: Array, q: Array, k: Array, v: Array, attended: Array, largest: Array,
    total: Array, made: Sequence[Array | None], **options: Any
) -> None:
    """Write the gradients of q, k and v that are wanted."""
    with np.errstate(invalid="ignore", over="ignore"):
        for key, some in _matrices(device, q, k, v, **options):
            some.differentiate(g[key], attended[key], largest[key], total[key],
                               [None if x is None else x[key] for x in made[:3]])


def _matrices(
    device: Device, q: Array, k: Array, v: Array, *, shared: int, **options: Any
) -> Iterator[tuple[Any, _Matrices]]:
    """As many matrices as a tile holds, and their key in the leading axes."""
    lead, each = q.shape[:-2], q.shape[-2] * k.shape[-2]
    first, repeats = 0, prod(lead[shared:]) * each
    for key in tiles(lead, tile_of(q.dtype) // each):
        some = _Matrices(device, q[key], k[key], v[key], (first, repeats), **options)
        yield key, some
        first += prod(some.shape)


class _Matrices:
    """Some queries, keys and values, and what makes their weights."""

    def __init__(
        self, device: Device, q: Array, k: Array, v: Array, place: tuple[int, int], *,
        scale: float, is_causal: bool, dropout_p: float, seed: int,
    ) -> None:
        self.device, self.q, self.k, self.v = device, q, k, v
        self.scale, self.is_causal = scale, is_causal
        self.dropout_p, self.seed, self.place = dropout_p, seed, place
        self.shape = *q.shape[:-1], k.shape[-2]  # of the weights

    def attend(self, out: Array) -> tuple[Array, Array]:
        p = self._products(self._scaled(self.q))
        if rows.of_attention(p.dtype):
            top, total = rows.attention(p, 0 if self.is_causal else None)
        else:
            self._hide(p)
            top = row_maxima(p)
            p -= np.where(top == -np.inf, 0, top)
            np.exp(p, p)
            total = row_sums(p)
        kept = self._kept()
        if kept is not None:
            p *= kept
        np.matmul(p, self.v, out)
        if not total.all():  # a query that sees no key: 0, as in PyTorch
            nothing = total == 0
            total, top = np.where(nothing, 1, total), np.where(nothing, 0, top)
        out /= total
        return top, total

    def differentiate(
        self, g: Array, attended: Array, largest: Array, total: Array, made: list[Array | None]
    ) -> None:
        dq, dk, dv = made
        arrived = np.divide(g, total, self._empty(g.shape))
        shift = raw["cpu"].vecdot(arrived, attended)[..., None]
        queries = self._scaled(self.q)
        p = self._products(queries)
        change = np.matmul(arrived, self.v.swapaxes(-1, -2), self._empty(self.shape))
        kept = self._kept()
        done = rows.of_attention(p.dtype)
        if done:
            known = (None, None) if kept is not None else (change, shift)
            rows.attention_grad(p, largest, 0 if self.is_causal else None, *known)
        else:
            self._hide(p)
            p -= largest
            np.exp(p, p)
        if kept is not None:
            change *= kept
            kept *= p
        if dv is not None:
            np.matmul((p if kept is None else kept).swapaxes(-1, -2), arrived, dv)
        if kept is not None or not done:
            change -= shift
            change *= p  # the gradient of the scores
        if dq is not None:
            np.matmul(change, self._scaled(self.k), dq)
        if dk is not None:
            np.matmul(change.swapaxes(-1, -2), queries, dk)

    def _products(self, queries: Array) -> Array:
        """The scores of all keys."""
        return np.matmul(queries, self.k.swapaxes(-1, -2), self._empty(self.shape))

    def _hide(self, scores: Array) -> None:
        """Those of keys that a query does not see become -infinity."""
        if self.is_causal:
            length, keys = self.shape[-2:]
            np.copyto(scores, -np.inf, where=unseen_on_cpu(np, 0, length, 0, keys))

    def _kept(self) -> Array | None:
        """The dropout factors of the weights; None without dropout."""
        if not self.dropout_p:
            return None
        first, repeats = self.place
        return keep_factors(self.device, self.shape, first, self.dropout_p, self.seed,
                            self.q.dtype, repeats)

    def _scaled(self, x: Array) -> Array:
        return np.multiply(x, self.scale, self._empty(x.shape))

    def _empty(self, shape: tuple[int, ...]) -> Array:
        return self.device.empty(shape, self.q.dtype, "workspace")


def unseen(xp: Any, first: int, last: int, start: int, stop: int) -> Array:
    """Which of the keys start to stop lie behind each of the queries first to last."""
    made: Array = xp.arange(start, stop) > xp.arange(first, last)[:, None]
    return made


unseen_on_cpu = lru_cache(16)(unseen)  # of a tile's elements each
