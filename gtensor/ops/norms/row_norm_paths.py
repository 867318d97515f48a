"""The CPU and GPU paths of layer norm and RMS norm, which differ only in the mean.

Without a mean (RMS norm) nothing is subtracted and the variance is the mean of squares. Rows are
the last `dims` axes. The CPU works in tiles of whole rows and computes in the output where
possible, so the work buffers are one tile (two in dx), and none in forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gtensor.backend import Scratch, host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import MULTIPROCESSORS, NULL, SHARED_BYTES, packed_launch, raw
from gtensor.engine.handle.namespaces import raw as raw_spaces
from gtensor.ops.define import rows as row_kernels
from gtensor.ops.define.cpu_tiles import SMALL, broadcast_directly, computed_in
from gtensor.ops.define.path_builders import once, tiles
from gtensor.ops.define.sums import recentre, row_means
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path
    from gtensor.ops.define.cpu_tiles import Tile

Needs: TypeAlias = "tuple[bool, bool, bool]"
"""Whether the gradients of x, weight and bias are needed."""

Grads: TypeAlias = "tuple[Array | None, Array | None, Array | None]"

# -- CPU: tiles of whole rows --------------------------------------------------------------------


_PACK = 10000  # elements of short rows that meet a parameter at once: more than NumPy's buffer
_NEAR = 2.0  # deviations between 0 and a mean that takes nothing from the precision


class _Rows:
    """Tiles of rows as matrices (rows, columns), in the dtype that is computed in."""

    def __init__(self, x: Any, dims: int) -> None:
        self.lead, self.row = x.shape[:len(x.shape) - dims], x.shape[len(x.shape) - dims:]
        self.columns = prod(self.row)
        self.work = computed_in(x.dtype)
        # two tiles' worth: beside the arrays, there are at most two work buffers in the cache
        limit = max(1, 2 * settings.tile_elements // max(1, self.columns))
        # groups of short rows, where a tile has several: then nearly all of it is in whole groups
        self._pack = _PACK // self.columns if 0 < self.columns < 256 else 1
        if min(limit, prod(self.lead)) < 2 * self._pack:
            self._pack = 1
        self._limit = limit // self._pack * self._pack
        self._scratch: dict[int, Scratch] = {}

    @property
    def one(self) -> bool:
        """Whether there is one tile."""
        return bool(self.columns) and 0 < prod(self.lead) <= self._limit

    def tiles(self) -> Iterator[Tile]:
        """Keys into the leading axes."""
        if self.columns and prod(self.lead):
            for tile in tiles(self.lead, self._limit):
                yield (*tile, ...)

    def buffer(self, which: int, rows: int) -> np.ndarray:
        """Work buffer `which`, uninitialized."""
        if which not in self._scratch:
            most = min(self._limit, max(1, prod(self.lead)))
            self._scratch[which] = host().workspace(most * self.columns, self.work)
        return self._scratch[which](0, (rows, self.columns))

    def free(self) -> None:
        """Drop the work buffers."""
        self._scratch.clear()

    def read(self, a: np.ndarray, key: Tile) -> np.ndarray:
        """The tile of `a`: a view where its memory allows one."""
        return a[key].reshape(-1, self.columns).astype(self.work, copy=False)

    def target(self, a: np.ndarray, key: Tile, which: int) -> np.ndarray:
        """The array to compute an output's tile in: itself, or work buffer `which`."""
        part = a[key]
        if part.dtype == self.work and part.flags.c_contiguous:
            return part.reshape(-1, self.columns)
        return self.buffer(which, part.size // self.columns)

    def flat(self, weight: Array | None) -> Array | None:
        """A parameter as one row, or for short rows as `_pack` of them."""
        if weight is None:
            return None
        row = weight.reshape(-1).astype(self.work, copy=False)
        return row if self._pack == 1 else np.tile(row, self._pack)

    def along(self, function: np.ufunc, part: np.ndarray, row: np.ndarray, out: np.ndarray) -> None:
        """out = function(part, row) for each row; `row` from `flat`, `out` contiguous."""
        columns = self.columns if len(part) % self._pack else row.size
        function(part.reshape(-1, columns), row[:columns], out=out.reshape(-1, columns))

    def centred(self, x: np.ndarray, mean: Array | None, key: Tile, which: int) -> np.ndarray:
        """x - mean of the tile, in work buffer `which`; x itself where there is no mean."""
        part = self.read(x, key)
        if mean is None:
            return part
        return np.subtract(part, mean[key].reshape(-1, 1), out=self.buffer(which, len(part)))

    def near(
        self, x: np.ndarray, mean: Array | None, rstd: np.ndarray, key: Tile
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """x of the tile and its means, where no mean is far from 0; else x - mean, and None.

        Products of x then lose at most a bit to its mean, and a pass over the tile is saved.
        """
        if mean is not None and x[key].size >= SMALL:
            center = mean[key].reshape(-1, 1)
            if np.abs(center * rstd).max() <= _NEAR:
                return self.read(x, key), center
        return self.centred(x, mean, key, 0), None


def _store(out: np.ndarray, key: Tile, computed: np.ndarray) -> None:
    """Copy a work buffer to the output, unless the tile was computed in place."""
    part = out[key]
    if not np.shares_memory(part, computed):
        part[...] = computed.reshape(part.shape)


def forward_cpu(
    x: Array, weight: Array | None, bias: Array | None, *, dims: int, eps: float,
    dtype: np.dtype | None = None, out: Array | None = None, centred: bool = True,
) -> tuple[Array, Array | None, Array]:
    """(x - mean) * rstd * weight + bias in a dtype (x's), mean (None unless centred), rstd."""
    if out is None:
        out = host().empty(x.shape, dtype or x.dtype, "row_norm")
    statistics = row_kernels.row_norm(x, weight, bias, out, dims, eps, centred)
    if statistics is not None:
        return out, *statistics
    if 0 < x.size < SMALL and x.itemsize > 2 and out.flags.c_contiguous and out.dtype == x.dtype:
        return out, *_forward_small(x, weight, bias, dims, eps, out, centred)
    rows = _Rows(x, dims)
    mean = host().empty(rows.lead, rows.work, "row_norm") if centred else None
    rstd = host().empty(rows.lead, rows.work, "row_norm")
    w, b = rows.flat(weight), rows.flat(bias)
    with np.errstate():
        broadcast_directly(rows.columns)
        for key in rows.tiles():
            part, y = rows.read(x, key), rows.target(out, key, 0)
            average, inverse = _normalize(part, y, eps, centred)
            if mean is not None:
                mean[key] = average.reshape(mean[key].shape)
            rstd[key] = inverse.reshape(rstd[key].shape)
            if w is not None:
                rows.along(np.multiply, y, w, y)
            if b is not None:
                rows.along(np.add, y, b, y)
            _store(out, key, y)
    return out, mean, rstd


def _forward_small(
    x: np.ndarray, weight: Array | None, bias: Array | None, dims: int, eps: float,
    out: np.ndarray, centred: bool
) -> tuple[Array | None, Array]:
    """Rows that make no tile, at once; mean and rstd."""
    lead = x.shape[:x.ndim - dims]
    columns = x.size // prod(lead)
    y = out.reshape(-1, columns)
    average, inverse = _normalize(x.reshape(-1, columns), y, eps, centred)
    if weight is not None:
        y *= weight.reshape(-1)
    if bias is not None:
        y += bias.reshape(-1)
    return average.reshape(lead) if centred else None, inverse.reshape(lead)


def _normalize(
    part: np.ndarray, y: np.ndarray, eps: float, centred: bool
) -> tuple[Any, np.ndarray]:
    """y = (part - mean) * rstd of rows; mean (None unless centred) and rstd, as columns."""
    average = None
    if centred:
        average = row_means(part)
        part = np.subtract(part, average, out=y)
    squares = np.vecdot(part, part)[:, None] / part.shape[-1]
    if average is not None:
        recentre(y, average, squares)
    squares += eps
    inverse = 1 / np.sqrt(squares, out=squares)
    np.multiply(part, inverse, out=y)
    return average, inverse


def _projection(
    h: np.ndarray, part: np.ndarray, center: np.ndarray | None, inverse: np.ndarray, centred: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """slope, level: h - mean(h) - xhat * mean(h * xhat) is h - part * slope - level.

    xhat is (part - center) * inverse, without a center where it is None. No level unless `centred`.
    """
    slope = np.vecdot(h, part)[:, None]
    slope /= part.dtype.type(part.shape[-1])
    level = row_means(h) if centred else None
    if center is not None:
        slope -= center * level
    slope *= inverse
    slope *= inverse
    if center is not None:
        level -= center * slope
    return slope, level


def dx_cpu(
    g: Array, x: Array, weight: Array | None, mean: Array | None, rstd: Array, *, dims: int,
    eps: float, out: Array | None = None, beta: float = 0.0,
) -> Array:
    """rstd * (h - mean(h) - xhat * mean(h * xhat)) with h = g * weight; no mean(h) without mean."""
    dx: Any = grads_cpu(g, x, weight, mean, rstd, dims=dims, eps=eps, needs=(True, False, False),
                        out=out, beta=beta)[0]
    return dx


def grads_cpu(
    g: Array, x: Array, weight: Array | None, mean: Array | None, rstd: Array, *, dims: int,
    eps: float, needs: Needs, out: Array | None = None, beta: float = 0.0,
) -> Grads:
    """The gradients of x, weight and bias, None for those that are not needed. `out` may be g."""
    if needs[0] and out is None:
        out, beta = host().empty(x.shape, x.dtype, "row_norm_dx"), 0.0
    done, sums = row_kernels.row_norm_grads(
        g, x, weight, mean, rstd, out if needs[0] else None, bool(beta), dims, any(needs[1:]))
    if done:
        dweight, dbias = (None if sums is None or not needs[i + 1] else _settled(sums[i], x, dims)
                          for i in (0, 1))
        return out if needs[0] else None, dweight, dbias
    dbias = raw_spaces["cpu"].sum(g, axis=tuple(range(-g.ndim, -dims))) if needs[2] else None
    rows = _Rows(x, dims)
    total = np.zeros(rows.columns, rows.work) if needs[1] else None
    w = rows.flat(weight)
    with np.errstate():
        broadcast_directly(rows.columns)
        for key in rows.tiles():
            grad, inverse = rows.read(g, key), rstd[key].reshape(-1, 1)
            part, center = rows.near(x, mean, inverse, key)
            if total is not None:
                spare = rows.buffer(int(mean is not None and center is None), len(part))
                _add_weight(total, grad, part, center, inverse[:, 0], spare)
            if not needs[0]:
                continue
            assert out is not None
            h = rows.buffer(1, len(part)) if beta else rows.target(out, key, 1)
            _write_dx(rows, h, grad, part, center, inverse, w, mean is not None)
            if beta:
                place = out[key]
                np.add(place, h.reshape(place.shape), out=place, casting="unsafe")
            else:
                _store(out, key, h)
    dweight = None
    if total is not None:
        dweight = _settled(total, x, dims)
    return out if needs[0] else None, dweight, dbias


def _settled(total: np.ndarray, x: Array, dims: int) -> Array:
    """The gradient of a parameter, from its sums in another dtype."""
    gradient = host().empty(x.shape[x.ndim - dims:], x.dtype, "row_norm_dweight")
    gradient[...] = total.reshape(gradient.shape)
    return gradient


def _write_dx(
    rows: _Rows, h: np.ndarray, grad: np.ndarray, part: np.ndarray, center: np.ndarray | None,
    inverse: np.ndarray, w: np.ndarray | None, centred: bool
) -> None:
    """Write a tile of the gradient of x to h, which may be g's."""
    if w is not None:
        rows.along(np.multiply, grad, w, h)
        grad = h
    slope, level = _projection(grad, part, center, inverse, centred)
    np.subtract(grad, np.multiply(part, slope, out=rows.buffer(0, len(part))), out=h)
    if level is not None:
        h -= level
    h *= inverse


def _add_weight(
    total: np.ndarray, grad: np.ndarray, part: np.ndarray, center: np.ndarray | None,
    inverse: np.ndarray, spare: np.ndarray
) -> None:
    """Add the sum over rows of g * xhat to the total."""
    total += inverse @ np.multiply(part, grad, out=spare)
    if center is not None:
        total -= (inverse * center[:, 0]) @ grad


# -- CPU: one tile, by the facts of its arrays ----------------------------------------------------


def _plain_rows(dims: int, *arrays: Any) -> _Rows | None:
    """Of arrays that lie densely, are of one dtype and make one tile; None of others, and where
    kernels serve."""
    first = arrays[0]
    rows = _Rows(first, dims)
    fits = first.dtype.char in "fd" and rows.one and not row_kernels.fits(
        prod(first.shape), rows.columns, first.dtype) and all(
        a.contiguous and a.dtype == first.dtype and a.shape == first.shape for a in arrays)
    return rows if fits else None


def _prepared_forward(
    x: Any, weight: Any, bias: Any, *, dims: int, eps: float, dtype: np.dtype | None = None,
    out: Any = None, centred: bool = True,
) -> Path | None:
    """`forward_cpu` of one tile, without what only finds that out."""
    rows = _plain_rows(dims, x)
    if rows is None or out is not None or dtype not in (None, x.dtype):
        return None
    shape, work, lead, matrix = x.shape, x.dtype, rows.lead, (-1, rows.columns)

    def path(x: Array, weight: Array | None, bias: Array | None, **params: Any) -> Any:
        out = host().empty(shape, work, "row_norm")
        y = out.reshape(matrix)
        w, b = rows.flat(weight), rows.flat(bias)
        with np.errstate():
            broadcast_directly(rows.columns)
            average, inverse = _normalize(x.reshape(matrix), y, eps, centred)
            if w is not None:
                rows.along(np.multiply, y, w, y)
            if b is not None:
                rows.along(np.add, y, b, y)
        return out, average.reshape(lead) if centred else None, inverse.reshape(lead)

    return path


def _prepared_grads(
    g: Any, x: Any, weight: Any, mean: Any, rstd: Any, *, dims: int, eps: float, needs: Needs,
    out: Any = None, beta: float = 0.0,
) -> Path | None:
    """`grads_cpu` of one tile."""
    rows = _plain_rows(dims, g, x)
    if rows is None or not all(needs[:2]):
        return None
    shape, work, matrix, column = x.shape, x.dtype, (-1, rows.columns), (-1, 1)
    sums, axes = raw_spaces["cpu"].sum, tuple(range(-len(shape), -dims))
    whole = (...,)

    def path(
        g: Array, x: Array, weight: Array | None, mean: Array | None, rstd: Array, *,
        out: Array | None = None, **params: Any
    ) -> Grads:
        if out is not None and not (out.flags.c_contiguous and out.dtype == work):
            return grads_cpu(g, x, weight, mean, rstd, out=out, **params)
        dbias = sums(g, axis=axes) if needs[2] else None
        total = np.zeros(rows.columns, work)
        made = host().empty(shape, work, "row_norm_dx") if out is None or beta else out
        w, grad, inverse = rows.flat(weight), g.reshape(matrix), rstd.reshape(column)
        with np.errstate():
            broadcast_directly(rows.columns)
            part, center = rows.near(x, mean, inverse, whole)
            h = made.reshape(matrix)
            spare = rows.buffer(int(mean is not None and center is None), len(part))
            _add_weight(total, grad, part, center, inverse[:, 0], spare)
            _write_dx(rows, h, grad, part, center, inverse, w, mean is not None)
            if out is not None and beta:
                made = np.add(out, made, out=out)
        rows.free()
        return made, total.reshape(rows.row), dbias

    return path


forward_cpu.prepare = _prepared_forward  # type: ignore[attr-defined]
grads_cpu.prepare = _prepared_grads  # type: ignore[attr-defined]


# -- GPU -----------------------------------------------------------------------------------------

_FORWARD = raw("layer_norm.cu", "layer_norm_forward")
_FORWARD_LOW = {name: raw("layer_norm.cu", f"layer_norm_forward_{name}")
                for name in ("float16", "bfloat16")}
_BACKWARD = raw("layer_norm.cu", "layer_norm_backward")
_PARAMETERS = raw("layer_norm.cu", "layer_norm_parameters")


def _dense(a: Array | None, dtype: np.dtype) -> Array | int:
    return NULL if a is None else cupy().ascontiguousarray(a, dtype=dtype)


def _counts(x: Array, dims: int) -> tuple[int, int]:
    return prod(x.shape[:x.ndim - dims]), prod(x.shape[x.ndim - dims:])


def forward_gpu(
    x: Array, weight: Array | None, bias: Array | None, *, dims: int, eps: float,
    dtype: np.dtype | None = None, out: Array | None = None, centred: bool = True,
) -> tuple[Array, Array | None, Array]:
    """As forward_cpu."""
    xp, work = cupy(), computed_in(x.dtype)
    lead = x.shape[:x.ndim - dims]
    y, rstd = xp.empty(x.shape, dtype or x.dtype), xp.empty(lead, work)
    mean = xp.empty(lead, work) if centred else None
    rows, columns = _counts(x, dims)
    kernel = _FORWARD if y.dtype == x.dtype else _FORWARD_LOW[y.dtype.name]
    kernel[x.dtype](*packed_launch(rows, columns, x.itemsize), (
        _dense(x, x.dtype), _dense(weight, x.dtype), _dense(bias, x.dtype), y,
        NULL if mean is None else mean, rstd, rows, columns, float(eps)))
    if out is None:
        return y, mean, rstd
    out[...] = y
    return out, mean, rstd


def dx_gpu(
    g: Array, x: Array, weight: Array | None, mean: Array | None, rstd: Array, *, dims: int,
    eps: float, out: Array | None = None, beta: float = 0.0,
) -> Array:
    """As dx_cpu."""
    work = computed_in(x.dtype)
    dx, accumulate = _target(x, out, beta)
    rows, columns = _counts(x, dims)
    if once(x) is not x and rstd.ndim and rstd.strides[0] == 0:  # the same for all examples
        x, mean, rstd = x[:1], None if mean is None else mean[:1], rstd[:1]
    _BACKWARD[x.dtype](*packed_launch(rows, columns, x.itemsize), (
        _dense(g, x.dtype), _dense(x, x.dtype), _dense(weight, x.dtype), _dense(mean, work),
        _dense(rstd, work), dx, NULL, rows, columns, rstd.size, 0, accumulate))
    return _placed(dx, out, beta)


def _target(x: Array, out: Array | None, beta: float) -> tuple[Array, int]:
    """The array that a kernel writes a gradient of x to, and whether it adds to it."""
    if out is not None and out.flags.c_contiguous:
        return out, int(beta)
    return cupy().empty(x.shape, x.dtype), 0


def _placed(dx: Array, out: Array | None, beta: float) -> Array:
    """`out`, if given, with what a kernel wrote to dx."""
    if out is None or dx is out:
        return dx
    if beta:
        out += dx
    else:
        out[...] = dx
    return out


def grads_gpu(
    g: Array, x: Array, weight: Array | None, mean: Array | None, rstd: Array, *, dims: int,
    eps: float, needs: Needs, out: Array | None = None, beta: float = 0.0,
) -> Grads:
    """As grads_cpu: one pass over g and x; a small launch adds up what its blocks found."""
    xp, work, row = cupy(), computed_in(x.dtype), x.shape[x.ndim - dims:]
    rows, columns = _counts(x, dims)
    dx, accumulate = _target(x, out, beta) if needs[0] else (None, 0)
    dweight, dbias = (xp.empty(row, x.dtype) if needed else None for needed in needs[1:])
    (blocks,), block = packed_launch(rows, columns, x.itemsize)
    # a block writes two numbers a column: few beside the rows that it reads
    blocks = max(1, min(blocks, MULTIPROCESSORS * x.itemsize // 2))
    chip = 4 * columns * work.itemsize
    chip = chip if chip <= SHARED_BYTES else 0
    numbers = 2 if chip else 4
    partials = xp.empty((blocks, numbers, columns), work)
    _BACKWARD[x.dtype]((blocks,), block, (
        _dense(g, x.dtype), _dense(x, x.dtype), _dense(weight, x.dtype), _dense(mean, work),
        _dense(rstd, work), NULL if dx is None else dx, partials, rows, columns, rows,
        int(chip > 0), accumulate), shared_mem=chip)
    sum_partials(partials, dweight, dbias)
    return None if dx is None else _placed(dx, out, beta), dweight, dbias


def sum_partials(partials: Array, dweight: Array | None, dbias: Array | None) -> None:
    """Add up (parts, numbers, columns): those of number 0 to dweight, those of 1 to dbias."""
    parts, numbers, columns = partials.shape
    dtype = (dweight if dweight is not None else dbias).dtype  # type: ignore[union-attr]
    _PARAMETERS[dtype]((-(-columns // 32), 2), (32, 8), (
        partials, *[NULL if a is None else a for a in (dweight, dbias)], parts, columns, numbers))
