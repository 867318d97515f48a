"""The paths of attention: blocks of weights, forward and backward, on either kind of device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from math import isqrt, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.handle.namespaces import raw
from gtensor.ops.activations.dropout import keep_factors
from gtensor.ops.attention import fused, whole_matrices
from gtensor.ops.attention.whole_matrices import unseen, unseen_on_cpu
from gtensor.ops.define import rows as row_kernels
from gtensor.ops.define.cpu_tiles import computed_in, row_maxima
from gtensor.ops.define.path_builders import tiles
from gtensor.ops.define.sums import row_sums
from gtensor.system.bus import bus
from gtensor.system.ranges import range as named_range

if TYPE_CHECKING:
    from gtensor.backend import Device, Scratch
    from gtensor.backend.typing import Array

_GPU_BLOCK = 1 << 23  # weights at a time on a GPU: enough to fill it, 32 MiB in float32
Key = tuple[Any, ...]


class _Blocks:
    """One call's arrays with common leading axes, and the blocks of weights that they are cut into.

    A block is (matrices of some leading indices) x (rows: queries) x (columns: keys). With dropout
    a block has all columns, so that its weights use consecutive random numbers.
    """

    def __init__(
        self, device: Device, q: Array, k: Array, v: Array, mask: Array | None, *, scale: float,
        is_causal: bool, dropout_p: float, seed: int, shared: int,
    ) -> None:
        self.device = device
        self.xp = device.xp
        self.work = computed_in(q.dtype)
        self.scale, self.is_causal = scale, is_causal
        self.dropout_p, self.seed = dropout_p, seed
        self.length, self.keys = q.shape[-2], k.shape[-2]
        self.lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        self.repeats = max(1, prod(self.lead[shared:]) * self.length * self.keys)
        self.q, self.k, self.v = (self._broadcast(a, a.shape[-2:]) for a in (q, k, v))
        self.mask = None if mask is None else self._broadcast(mask, (self.length, self.keys))
        limit = whole_matrices.tile_of(self.work) if device.type == "cpu" else _GPU_BLOCK
        self.columns = max(1, min(self.keys, max(isqrt(2 * limit), limit // max(1, self.length))))
        if dropout_p:
            self.columns = max(1, self.keys)
        self.rows = max(1, min(self.length, limit // self.columns))
        whole = self.rows == self.length and self.columns >= self.keys
        self.matrices = max(1, limit // (self.rows * self.columns)) if whole else 1
        count = prod(self.lead)
        # whether a block has all of its matrices, so that the products that are gradients write
        self.whole = (whole and count > 0 and self.length > 0 and self.keys > 0
                      and not (is_causal and self.keys > self.length))
        matrices = min(self.matrices, max(1, count))
        self._unseen: tuple[Any, Any] = None, None
        self._scratch = self.device.workspace(matrices * self.rows * self.columns, self.work, 2)
        self._outputs = matrices * self.rows * v.shape[-1]
        self._factors = matrices * max(self.rows, self.columns) * max(q.shape[-1], v.shape[-1])

    def _broadcast(self, a: Array, last: tuple[int, ...]) -> Array:
        shape = *self.lead, *last
        return a if a.shape == shape else self.xp.broadcast_to(a, shape)

    def batches(self) -> Iterator[tuple[Key, int]]:
        """Keys of the leading axes, and the number of the first matrix that each selects."""
        first = 0
        for key in tiles(self.lead, self.matrices):
            yield key, first
            first += prod(self.q[key].shape[:-2])

    def row_blocks(self) -> Iterator[slice]:
        """Queries, in order."""
        for start in range(0, self.length, self.rows):
            yield slice(start, min(start + self.rows, self.length))

    def column_blocks(self, rows: slice) -> Iterator[slice]:
        """Keys that some query of `rows` sees (with dropout: all), in order."""
        cut = self.is_causal and not self.dropout_p
        stop = min(self.keys, rows.stop) if cut else self.keys
        for start in range(0, stop, self.columns):
            yield slice(start, min(start + self.columns, stop))

    def part(self, a: Array, batch: Key, rows: slice) -> Array:
        """Rows of some matrices; on the CPU, which is slow in half precision, in float32."""
        found = a[batch][..., rows, :]
        return self.wide(found) if self.device.type == "cpu" else found

    def over(self, x: Array, sums: Array) -> tuple[Array, Array | None]:
        """Arrived gradients over the sums of their weights, which are then not to be divided.

        There are fewer of them. A GPU divides the weights in place, without a buffer for these.
        """
        if self.device.type != "cpu":
            return x, sums
        return np.divide(x, sums, out=self.factor(2, x.shape)), None

    def row_dots(self, a: Array, b: Array) -> Array:
        """The sums of a * b along the last axis, as a column."""
        return raw[self.device.type].vecdot(self.wide(a), self.wide(b))[..., None]

    def wide(self, x: Array) -> Array:
        """x in the compute dtype."""
        return x.astype(self.work, copy=False)

    def product(self, which: int, a: Array, b: Array, alpha: float = 1.0) -> Array:
        """alpha * a @ b.mT in work buffer `which`."""
        out = self._scratch(which, (*a.shape[:-1], b.shape[-2]))
        if self.device.type == "cpu" and alpha == 1.0:
            return np.matmul(a, _swapped(b), out)
        return self.device.matmul(a, _swapped(b), out, alpha=alpha)

    @cached_property
    def output(self) -> Scratch:
        """A work buffer for the output of a block."""
        return self.device.workspace(self._outputs, self.work)

    @cached_property
    def factor(self) -> Scratch:
        """Work buffers for queries, keys and arrived gradients of a block."""
        return self.device.workspace(self._factors, self.work, 3)

    def scaled(self, which: int, x: Array) -> tuple[Array, float]:
        """Factors and a number that times a product of them is the scale's.

        BLAS would scale on the CPU, too, but by a call for each matrix.
        """
        if self.device.type != "cpu":
            return x, self.scale
        return np.multiply(x, self.scale, out=self.factor(which, x.shape)), 1.0

    def scores(
        self, queries: Array, scale: float, batch: Key, rows: slice, columns: slice
    ) -> Array:
        """scale * queries @ keys.mT, masked: a block that may be overwritten.

        Kernels of rows hide what is not causal.
        """
        s = self.product(0, queries, self.part(self.k, batch, columns), scale)
        if self.mask is not None:
            mask = self.mask[batch][..., rows, columns]
            if mask.dtype.kind == "b":
                self.xp.copyto(s, -np.inf, where=self.xp.logical_not(mask))
            else:
                s += mask
        if self.is_causal and columns.stop > rows.start + 1 and not self.by_rows:
            self.xp.copyto(s, -np.inf, where=self.unseen(rows, columns))
        return s

    @cached_property
    def by_rows(self) -> bool:
        """Whether the rows of blocks are done by kernels in C."""
        return self.device.type == "cpu" and row_kernels.of_attention(self.work)

    def first(self, rows: slice, columns: slice) -> int | None:
        """The last of the columns that the first query sees; None if all see all."""
        return rows.start - columns.start if self.is_causal else None

    def unseen(self, rows: slice, columns: slice) -> Array:
        """Which keys lie behind each query; the same for all matrices."""
        if self._unseen[0] != (rows, columns):
            make = unseen_on_cpu if self.device.type == "cpu" else unseen
            self._unseen = (rows, columns), make(
                self.xp, rows.start, rows.stop, columns.start, columns.stop)
        return self._unseen[1]

    def kept(self, first: int, rows: slice, shape: tuple[int, ...]) -> Array | None:
        """The dropout factors of the block's weights, all columns; None without dropout."""
        if not self.dropout_p:
            return None
        start = (first * self.length + rows.start) * self.keys
        return keep_factors(
            self.device, shape, start, self.dropout_p, self.seed, self.work, self.repeats)

    def add_product(
        self, total: Array, batch: Key, rows: slice, a: Array, b: Array, alpha: float = 1.0
    ) -> None:
        """total[batch, rows] += alpha * a @ b, by the GEMM where total has all leading axes."""
        a, b = self.wide(a), self.wide(b)
        if total.shape[:-2] == self.lead:
            place = total[batch][..., rows, :]
            self.device.matmul(a, b, place, 0.0 if self.whole else 1.0, alpha)
        else:
            part = self.device.matmul(a, b, alpha=alpha)
            self.add(total, batch, (rows, slice(None)), part)

    def add(self, total: Array, batch: Key, last: tuple[slice, slice], part: Array) -> None:
        """total[batch, last] += part; total may have 1 for, or lack, an axis of the whole."""
        missing = len(self.lead) + 2 - total.ndim
        target = total.reshape((1,) * missing + total.shape)
        key = (*batch, *(slice(None),) * (len(self.lead) - len(batch)), *last)
        view = target[tuple(
            (slice(None) if isinstance(k, slice) else 0) if n == 1 else k
            for k, n in zip(key, target.shape, strict=True))]
        summed = tuple(i for i, n in enumerate(view.shape) if n == 1 and part.shape[i] != 1)
        view += part.sum(axis=summed, keepdims=True) if summed else part


def _swapped(a: Array) -> Array:
    """The last two axes swapped: a view."""
    return a.swapaxes(-1, -2)


def attention_path(
    device: Device, q: Array, k: Array, v: Array, mask: Array | None, *, scale: float,
    is_causal: bool, dropout_p: float, seed: int, shared: int = 0, out: Array | None = None,
) -> Any:
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    shape = (*lead, q.shape[-2], v.shape[-1])
    if out is None:
        out = fused.laid_as(device, shape, q, "attention")
    if whole_matrices.serves(device, q, k, v, mask, is_causal):
        return out, *whole_matrices.attend(
            device, q, k, v, out, scale=scale, is_causal=is_causal, dropout_p=dropout_p, seed=seed,
            shared=shared)
    if fused.serves(device, q.dtype, scale):
        kept = fused.attend(device, q, k, v, mask, out, scale=scale, is_causal=is_causal,
                            dropout_p=dropout_p, seed=seed, shared=shared)
        if kept is not None:
            return out, *kept
    with _said(device, (q, k, v, out), mask, scale, dropout_p):
        return out, *_attend_in_blocks(
            _Blocks(device, q, k, v, mask, scale=scale, is_causal=is_causal, dropout_p=dropout_p,
                    seed=seed, shared=shared), out)


def _said(
    device: Device, arrays: Sequence[Array], mask: Array | None, scale: float, dropout_p: float
) -> AbstractContextManager[object]:
    """A range that tells profiles why a GPU computes blocks of weights."""
    if device.type == "cpu" or not bus.ranges:
        return nullcontext()
    why = fused.unserved(device, arrays, mask, scale, dropout_p)
    return named_range(f"attention in blocks: {why}")


def _attend_in_blocks(blocks: _Blocks, out: Array) -> tuple[Array, Array]:
    """Write the output; of each query the largest score, and the sum of exponentials."""
    shape = out.shape
    largest, total = blocks.device.empty((2, *shape[:-1], 1), blocks.work, "attention")
    with np.errstate(invalid="ignore", over="ignore"):  # infinite scores: NaN, as in PyTorch
        for batch, first in blocks.batches():
            for rows in blocks.row_blocks():
                parts = _attend(blocks, batch, first, rows, out[batch][..., rows, :])
                for whole, part in zip((largest, total), parts, strict=True):
                    whole[batch][..., rows, :] = part
    return largest, total


def _attend(
    blocks: _Blocks, batch: Key, first: int, rows: slice, place: Array
) -> tuple[Any, Any]:
    """Write the output of some queries; their largest scores and sums of exponentials."""
    xp, on_cpu = blocks.xp, blocks.device.type == "cpu"
    # on the CPU many matrices are one call only where they lie one behind the other
    direct = place.dtype == blocks.work and (place.flags.c_contiguous or not on_cpu)
    mixed = place if direct else blocks.output(0, place.shape)
    top: Any = None
    total: Any = None
    queries, scale = blocks.scaled(0, blocks.part(blocks.q, batch, rows))
    for columns in blocks.column_blocks(rows):
        p = blocks.scores(queries, scale, batch, rows, columns)
        if blocks.by_rows:
            higher, sums = row_kernels.attention(p, blocks.first(rows, columns), top)
        else:
            higher = row_maxima(p) if on_cpu else p.max(axis=-1, keepdims=True)
            if top is not None:
                higher = xp.maximum(top, higher)
        origin = xp.where(higher == -np.inf, 0, higher)  # nothing seen yet: not -inf minus -inf
        if not blocks.by_rows:
            p -= origin
            xp.exp(p, out=p)
            sums = row_sums(p) if on_cpu else p.sum(axis=-1, keepdims=True)
        if top is None:
            total = sums
        else:
            shrunk = xp.exp(top - origin)
            total *= shrunk
            total += sums
            mixed *= shrunk
        kept = blocks.kept(first, rows, p.shape)
        if kept is not None:
            p *= kept
        values = blocks.wide(blocks.part(blocks.v, batch, columns))
        blocks.device.matmul(p, values, mixed, beta=float(top is not None))
        top = higher
    if top is None:
        place[...] = 0
        return 0, 1
    nothing = total == 0  # a query that sees no key: 0, as in PyTorch
    if not on_cpu or nothing.any():
        total, top = xp.where(nothing, 1, total), xp.where(nothing, 0, top)
    if place.dtype == blocks.work:
        xp.divide(mixed, total, out=place)
    else:
        mixed /= total
        place[...] = mixed
    return top, total


# -- backward --------------------------------------------------------------------------------------


def attention_grad_path(
    device: Device, g: Array, q: Array, k: Array, v: Array, mask: Array | None, attended: Array,
    largest: Array, total: Array, *, wanted: tuple[bool, ...], scale: float, is_causal: bool,
    dropout_p: float, seed: int, shared: int = 0
) -> tuple[Array | None, ...]:
    """Gradients of q, k, v and mask, in their shapes; None where not `wanted`.

    Sums over blocks are kept in float32 for the half types, the only additional memory.
    """
    inputs: Any = (q, k, v, mask)
    made = [fused.laid_as(device, x.shape, x, "attention_grad") if want else None
            for x, want in zip(inputs, wanted, strict=True)]
    write_gradients(device, g, q, k, v, mask, attended, largest, total, made, scale=scale,
                    is_causal=is_causal, dropout_p=dropout_p, seed=seed, shared=shared)
    return tuple(made)


def write_gradients(
    device: Device, g: Array, q: Array, k: Array, v: Array, mask: Array | None, attended: Array,
    largest: Array, total: Array, made: Sequence[Array | None], *, scale: float, is_causal: bool,
    dropout_p: float, seed: int, shared: int = 0
) -> None:
    """The same into arrays that are there, None where no gradient is wanted."""
    if q.shape[:-2] == k.shape[:-2] == v.shape[:-2] and (
            whole_matrices.serves(device, q, k, v, mask, is_causal)):
        whole_matrices.differentiate(
            device, g, q, k, v, attended, largest, total, made, scale=scale, is_causal=is_causal,
            dropout_p=dropout_p, seed=seed, shared=shared)
        return
    if fused.serves(device, q.dtype, scale) and fused.gradients(
            device, g, q, k, v, mask, attended, largest, total, made, scale=scale,
            is_causal=is_causal, dropout_p=dropout_p, seed=seed, shared=shared):
        return
    with _said(device, (q, k, v, attended), mask, scale, dropout_p):
        blocks = _Blocks(device, q, k, v, mask, scale=scale, is_causal=is_causal,
                         dropout_p=dropout_p, seed=seed, shared=shared)
        sums = [None if x is None else _sum_of(blocks, x, i < 3) for i, x in enumerate(made)]
        with np.errstate(invalid="ignore", over="ignore"):
            for batch, first in blocks.batches():
                for rows in blocks.row_blocks():
                    _attend_backward(
                        blocks, batch, first, rows, (g, attended, largest, total), sums)
        for place, added in zip(made, sums, strict=True):
            if place is not None and added is not place:
                place[...] = added


def _sum_of(blocks: _Blocks, place: Array, of_products: bool) -> Array:
    """Zeros, or memory that one product will write: the gradient's own in the compute dtype."""
    total = place
    if place.dtype != blocks.work:
        total = blocks.device.empty(place.shape, blocks.work, "attention_grad")
    if not (of_products and blocks.whole and place.shape[:-2] == blocks.lead):
        total[...] = 0
    return total


def _attend_backward(
    blocks: _Blocks, batch: Key, first: int, rows: slice, known: tuple[Any, ...],
    sums: list[Array | None],
) -> None:
    """Add to `sums` the gradients of q, k, v and mask through the outputs of some queries."""
    xp = blocks.xp
    g, attended, largest, total = known
    queries, scale = blocks.scaled(0, blocks.part(blocks.q, batch, rows))
    arrived, sums_left = blocks.over(blocks.part(g, batch, rows), total[batch][..., rows, :])
    shift = blocks.row_dots(arrived, attended[batch][..., rows, :])
    for columns in blocks.column_blocks(rows):
        keys, values = (blocks.part(x, batch, columns) for x in (blocks.k, blocks.v))
        p = blocks.scores(queries, scale, batch, rows, columns)
        change = blocks.product(1, arrived, values)
        kept = blocks.kept(first, rows, p.shape)
        top = largest[batch][..., rows, :]
        if blocks.by_rows:
            known = (None, None) if kept is not None else (change, shift)
            row_kernels.attention_grad(p, top, blocks.first(rows, columns), *known)
        else:
            p -= top
            xp.exp(p, out=p)
            if sums_left is not None:
                p /= sums_left
        if kept is not None:
            change *= kept
            kept *= p
        if sums[2] is not None:
            used = p if kept is None else kept
            blocks.add_product(sums[2], batch, columns, _swapped(used), arrived)
        if kept is not None or not blocks.by_rows:
            change -= shift
            change *= p  # the gradient of the scores
        if sums[0] is not None:
            scaled, alpha = blocks.scaled(1, keys)
            blocks.add_product(sums[0], batch, rows, change, scaled, alpha)
        if sums[1] is not None:
            blocks.add_product(sums[1], batch, columns, _swapped(change), queries, scale)
        if sums[3] is not None:
            blocks.add(sums[3], batch, (rows, columns), change)
