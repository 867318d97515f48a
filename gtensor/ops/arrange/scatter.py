"""Sums at indices that may repeat, for the adjoints of gathering."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from gtensor.ops.arrange.index_keys import Key, Selection, is_basic, rows_of, unique
from gtensor.ops.arrange.shape import moved_axes
from gtensor.ops.define.cpu_tiles import computed_in, whole_tiles

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array

_FEW = 8  # elements per place from which it pays to look whether any place repeats
_SMALL = 1024  # elements up to which NumPy's general way is the quickest


def added(
    device: Device, g: Array, key: Key, shape: tuple[int, ...], label: str, out: Array | None,
    beta: float
) -> Array:
    """Zeros (or `out`, if beta) with g added at `key`. Half types are added up in float32."""
    if out is None:
        out, beta = device.empty(shape, g.dtype, label), 0.0
    if not beta:
        out[...] = 0
    work = computed_in(g.dtype)
    total = out if g.dtype == work else device.copy(out, work, "workspace")
    if device.type == "cpu" and total.flags.c_contiguous:
        _add_at(total, key, g.astype(work, copy=False), beta)
    else:
        device.xp.add.at(total, key, g.astype(work, copy=False))
    if total is not out:
        out[...] = total
    return out


def _add_at(out: np.ndarray, key: Key, g: np.ndarray, beta: float) -> None:
    rows = rows_of(out, key)
    if rows is not None:
        flat, positions = rows
        flat[positions] = flat[positions] + g if beta else g
        return
    if out.ndim == 1 or g.size <= _SMALL:
        np.add.at(out, key, g)
        return
    selected = Selection(key, out.shape)
    lead = len(selected.lead)
    front = tuple(range(lead))
    source = g.transpose(moved_axes(
        tuple(range(selected.place, selected.place + lead)), front, g.ndim))
    view = out[selected.view]
    target = view.transpose(moved_axes(selected.axes, range(len(selected.axes)), view.ndim))
    behind = source.shape[lead:]
    arrays = (p for p in key if not is_basic(p))
    if unique(arrays) or not _repeats(selected, target, prod(behind)):
        places = tuple(selected.indices)
        target[places] = target[places] + source if beta else source
        return
    indices = [_before(np.asarray(i), len(behind)) for i in selected.indices]
    indices += [_before(np.arange(n), len(behind) - k - 1) for k, n in enumerate(behind)]
    start = (_address(target) - _address(out)) // out.itemsize
    _add_flat(out.reshape(-1), source, indices, target, start)


def _repeats(selected: Selection, target: np.ndarray, elements: int) -> bool:
    """Whether an index repeats; with few elements per index it is assumed."""
    if elements < _FEW:
        return True
    seen = np.zeros(target.shape[:len(selected.axes)], np.bool_)
    seen[tuple(selected.indices)] = True
    return int(np.count_nonzero(seen)) < prod(selected.lead)


def _before(index: np.ndarray, axes: int) -> np.ndarray:
    """With so many axes of size 1 behind."""
    return index.reshape((*index.shape, *(1,) * axes))


def _add_flat(
    flat: np.ndarray, g: np.ndarray, indices: list[np.ndarray], target: np.ndarray, start: int
) -> None:
    """target[indices] += g, by places in `flat`, the memory of target, which begins at `start`.

    In tiles: NumPy adds up fast along one axis only (at 1M elements 10 ms against 80).
    """
    parts = [(np.broadcast_to(i, g.shape), n if i.size and i.min() < 0 else 0,
              stride // flat.itemsize)
             for i, n, stride in zip(indices, target.shape, target.strides, strict=True)]
    for tile in whole_tiles(g.shape):
        places = np.full(g[tile].shape, start, np.intp)
        for index, size, stride in parts:
            at = index[tile].astype(np.intp, copy=False)
            places += (np.where(at < 0, at + size, at) if size else at) * stride
        np.add.at(flat, places.reshape(-1), g[tile].reshape(-1))


def _address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]
