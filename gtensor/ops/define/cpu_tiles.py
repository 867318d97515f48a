"""Tiles of CPU paths, the dtypes that they compute in, and selection without branches."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gtensor.ops.define.path_builders import tiles
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

# The key of a tile: it ends with an ellipsis, so that it selects an array.
Tile: TypeAlias = tuple[int | slice | EllipsisType, ...]


def computed_in(dtype: np.dtype) -> np.dtype:
    """The dtype that sums and statistics are computed in: float32 for the half types."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype


def sortable(x: Any) -> Any:
    """x (a Python number stays one) in a dtype that NumPy and CuPy sort well; its order is kept."""
    kind = x.dtype.kind if hasattr(x, "dtype") else ""
    return x.astype(np.float32) if kind == "V" else x


def whole_tiles(shape: tuple[int, ...]) -> Iterator[Tile]:
    """Keys of tiles that select arrays and never scalars, so that a tile can be written."""
    for tile in tiles(shape, settings.tile_elements):
        yield (*tile, ...)


def flat_tiles(size: int) -> Iterator[slice]:
    """The same for so many elements of one axis, at the cost of no call of Python's."""
    step = settings.tile_elements
    return map(slice, range(0, size, step), range(step, size + step, step))


def cut(buffers: np.ndarray, size: int, shape: tuple[int, ...]) -> np.ndarray:
    """The first `size` elements of each row, as arrays of that shape, which they fill."""
    return buffers[:, :size].reshape(len(buffers), *shape)


def tile_size(shape: tuple[int, ...]) -> int:
    """Elements of the largest of `whole_tiles(shape)`."""
    return min(prod(shape), settings.tile_elements)


def row_tiles(shape: tuple[int, ...], factor: int = 1) -> Iterator[Tile]:
    """Keys that cut an array into tiles of whole rows (its last axis), at least one row each.

    A tile has `factor * settings.tile_elements`, for paths whose few buffers leave the room in the
    cache.
    """
    for tile in tiles(shape[:-1], _row_count(shape, factor)):
        yield (*tile, ...)


def row_tile_size(shape: tuple[int, ...], factor: int = 1) -> int:
    """Elements of the largest of `row_tiles(shape, factor)`."""
    return min(prod(shape), _row_count(shape, factor) * max(1, shape[-1]))


def _row_count(shape: tuple[int, ...], factor: int) -> int:
    return max(1, factor * settings.tile_elements // max(1, shape[-1]))


# -- tiles of rows ---------------------------------------------------------------------------------
# NumPy's own reductions and broadcasting over the last axis cost several times an op of two whole
# arrays if rows are short. `profiling/ladder_overhead.py --only softmax` shows what these save.

SMALL = 4096  # elements below which the calls cost more than the loops


def row_maxima(rows: np.ndarray) -> np.ndarray:
    """The maxima of rows (..., columns), at least one column, as a column."""
    if rows.size < SMALL or not rows.flags.c_contiguous:
        return rows.max(axis=-1, keepdims=True)
    columns = rows.shape[-1]
    starts = np.arange(0, rows.size, columns)
    if columns % 64 == 0 and columns <= 256:  # whole vectors, which `argmax` compares at once
        starts += rows.reshape(-1, columns).argmax(axis=-1)
        return rows.reshape(-1)[starts].reshape(*rows.shape[:-1], 1)
    return np.maximum.reduceat(rows.reshape(-1), starts).reshape(*rows.shape[:-1], 1)


def broadcast_directly(columns: int) -> None:
    """Until the end of the `np.errstate` that it is called in, NumPy broadcasts without copies.

    Where rows are shorter than 8192, a ufunc gathers the column or row that it broadcasts in a
    buffer of that size, to call its loop less often. From 256 columns on the copy costs more than
    the calls. Like `errstate`, this holds for one thread alone.
    """
    if columns >= 256:
        np.setbufsize(16)  # elements, the least that NumPy takes


# -- selection without branches --------------------------------------------------------------------
# np.where and masked copies branch on every element: on random masks they cost ten multiplies.


def _integer(dtype: np.dtype) -> str:
    return f"i{dtype.itemsize}"


_NONE, _ONE = np.zeros((), np.int8), np.ones((), np.int8)


def _bits(mask: np.ndarray, keep: bool = True, spare: bool = False) -> np.ndarray:
    """All bits where the mask is `keep`, else none; in the mask's own memory if that is spare."""
    bits = mask.view(np.int8)
    out = bits if spare else None
    return np.subtract(_NONE, bits, out=out) if keep else np.subtract(bits, _ONE, out=out)


def masked(
    a: np.ndarray, mask: np.ndarray, out: np.ndarray | None = None, keep: bool = True,
    spare: bool = False,
) -> np.ndarray:
    """a where the mask is `keep`, else 0 (also where a is infinite or NaN). `out` may be `a`.

    A mask that is `spare` is lost.
    """
    integer = _integer(a.dtype)
    kept = _bits(mask, keep, spare)
    if out is None:
        return np.bitwise_and(a.view(integer), kept).view(a.dtype)
    np.bitwise_and(a.view(integer), kept, out=out.view(integer))
    return out


def select(mask: Array, x1: Any, x2: Any) -> Array:
    """x1 where mask, else x2, as np.where; one of the two may be a Python number."""
    model = x1 if isinstance(x1, np.ndarray) else x2
    if not isinstance(model, np.ndarray) or not isinstance(mask, np.ndarray) or not mask.ndim:
        return np.where(mask, x1, x2)
    integer = _integer(model.dtype)
    a, b = (np.asarray(x, model.dtype).view(integer) for x in (x1, x2))
    chosen = np.bitwise_xor(a, b)
    if chosen.shape != mask.shape:
        return np.where(mask, x1, x2)
    chosen &= _bits(mask)
    chosen ^= b
    return chosen.view(model.dtype)


def select_into(
    out: np.ndarray, mask: np.ndarray, x1: np.ndarray, x2: np.ndarray, work: np.ndarray,
    spare: bool = False,
) -> np.ndarray:
    """out = x1 where mask, else x2; `out` may be x1 or x2, and the buffer `work` may be x1 or out.

    A mask that is `spare` is lost.
    """
    if not mask.any():
        np.copyto(out, x2)
        return out
    integer = _integer(out.dtype)
    change = work.view(integer)
    np.bitwise_xor(x1.view(integer), x2.view(integer), out=change)
    change &= _bits(mask, spare=spare)
    np.bitwise_xor(x2.view(integer), change, out=out.view(integer))
    return out


def sign_into(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    """np.sign, which branches on every element. `out` may be x."""
    if x.size < SMALL:
        return np.sign(x, out)
    unordered = np.not_equal(x, x)
    kept = x[unordered] if unordered.any() else None  # NaN as it is
    signs = np.greater(x, 0).view(np.int8)
    signs -= np.less(x, 0).view(np.int8)
    np.copyto(out, signs)
    if kept is not None:
        out[unordered] = kept
    return out
