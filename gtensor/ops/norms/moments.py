"""Sums and moments over the trailing axes of a view, walked in tiles: for the norms on the CPU."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend import host
from gtensor.ops.define.cpu_tiles import tile_size, whole_tiles

if TYPE_CHECKING:
    from gtensor.ops.define.cpu_tiles import Tile


def _place(key: Tile, lead: int) -> tuple[Tile, int]:
    """A tile's place in arrays over the first `lead` axes, and how many of these axes it has."""
    place = key[:-1][:lead]
    return (*place, ...), lead - sum(not isinstance(k, slice) for k in place)


def add_sums(totals: np.ndarray, key: Tile, part: np.ndarray) -> None:
    """totals += the sums of a tile over the axes that totals has not."""
    place, axes = _place(key, totals.ndim)
    totals[place] += part.sum(axis=tuple(range(axes, part.ndim)))


def add_products(totals: np.ndarray, key: Tile, a: np.ndarray, b: np.ndarray) -> None:
    """totals += the sums of a * b of a tile over the axes that totals has not."""
    place, axes = _place(key, totals.ndim)
    shape = (*a.shape[:axes], prod(a.shape[axes:]))
    totals[place] += np.vecdot(a.reshape(shape), b.reshape(shape))


def moments(a: np.ndarray, lead: int, work: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Mean and biased variance over all but the first `lead` axes, float64, in two passes.

    The mean is a number of dtype `work` plus its rounding error, which matters for a huge mean.
    """
    mean, var, rest = (np.zeros(a.shape[:lead]) for _ in range(3))
    count = max(1, prod(a.shape[lead:]))
    scratch = host().workspace(tile_size(a.shape), work)
    for key in whole_tiles(a.shape):
        part = a[key]
        if part.dtype != work:
            wide = scratch(0, part.shape)
            wide[...] = part
            part = wide
        add_sums(mean, key, part)
    mean = (mean / count).astype(work)
    center = over_lead(mean, a.shape)
    for key in whole_tiles(a.shape):
        part = a[key]
        part = np.subtract(part, center[key], out=scratch(0, part.shape))
        add_sums(rest, key, part)
        add_products(var, key, part, part)
    rest /= count
    return mean + rest, np.maximum(var / count - rest**2, 0)


def over_lead(a: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An array over leading axes, broadcast to `shape`: to be read at a tile's key."""
    return np.broadcast_to(a.reshape(*a.shape, *(1,) * (len(shape) - a.ndim)), shape)
