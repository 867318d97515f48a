"""Cases of spline_sampling.cu (cubic splines over two axes) and resample.cu."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from kernel_cases import Case, assert_close, exact, normal, unwritten
from scipy import ndimage

from gtensor.ops.pool.mixing import matrix
from gtensor.ops.pool.spline_sampling import sizes_of

FILE, ROWS = "spline_sampling.cu", "resample.cu"
FLOATING = ("float32", "float64")


def _sampled(grid: tuple[int, int], mode: str, batch: int, points: int, blocks: int = 2) -> Case:
    sizes = sizes_of(grid, points, mode, (0, 0))

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        x = normal(rng, (batch, *grid), dtype)
        coords = rng.uniform(-1.2, 1.9, (batch, 2, points)) * np.array(grid)[:, None]
        coords = coords.astype(dtype)
        out, g = unwritten((batch, points), dtype), normal(rng, (batch, points), dtype)
        executor.raw(FILE, "spline_sample", dtype, (blocks,), (64,), [
            x, coords, out, 0.5, batch, *sizes])
        high, low = (np.zeros(x.shape, np.uint64) for _ in range(2))
        lost, exponent = np.zeros(x.shape, np.uint32), np.array([4], np.int32)
        executor.raw(FILE, "spline_spread", dtype, (blocks,), (64,), [
            g, coords, high, low, lost, exponent, batch, *sizes])
        spread = np.ldexp(high.view("i8").astype("f8"), 4 - 35) + np.ldexp(
            low.view("i8").astype("f8"), 4 - 70)
        assert not lost.any()
        units = np.eye(grid[0] * grid[1]).reshape(-1, *grid)
        for b in range(batch):
            def read(image: np.ndarray, cval: float, b: int = b) -> np.ndarray:
                return np.asarray(ndimage.map_coordinates(
                    image, coords[b].astype("f8"), order=3, mode=mode, cval=cval, prefilter=False))

            assert_close(out[b], torch.tensor(read(x[b].astype("f8"), 0.5)), dtype, factor=8.0)
            wanted = torch.tensor([read(unit, 0.0) @ g[b].astype("f8") for unit in units])
            assert_close(spread[b].astype(dtype), wanted.reshape(grid), dtype, factor=8.0)

    return Case(f"spline_sampling-{mode}-{batch}x{grid[0]}x{grid[1]}-{points}", check, FLOATING)


def _slope(axis: int) -> Case:
    orders = (1, 0) if axis == 0 else (0, 1)

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        x = normal(rng, (1, 6, 5), dtype)
        coords = (rng.uniform(0.2, 3.8, (1, 2, 9))).astype(dtype)
        out = unwritten((1, 9), dtype)
        executor.raw(FILE, "spline_sample", dtype, (1,), (64,), [
            x, coords, out, 0.0, 1, *sizes_of((6, 5), 9, "mirror", orders)])
        ends = []
        for sign in (1, -1):
            moved = coords[0].astype("f8")
            moved[axis] += sign * 1e-5
            ends.append(ndimage.map_coordinates(x[0].astype("f8"), moved, order=3, mode="mirror",
                                                prefilter=False))
        np.testing.assert_allclose(out[0], (ends[0] - ends[1]) / 2e-5, rtol=0, atol=2e-5)

    return Case(f"spline_sampling-slope-{axis}", check, FLOATING)


def _resampled(lead: int, trail: int, made: Any, transposed: bool, accumulate: bool) -> Case:
    mixing = matrix(made, transposed)

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        x = normal(rng, (lead, mixing.columns, trail), dtype)
        shape = (lead, mixing.rows, trail)
        out = normal(rng, shape, dtype) if accumulate else unwritten(shape, dtype)
        before = exact(out) if accumulate else 0
        starts, columns, weights = mixing.compressed
        work = np.float64 if dtype == np.float64 else np.float32
        executor.raw(ROWS, "resample", dtype, (2,), (64,), [
            x, starts, columns, weights.astype(work), out, lead, mixing.rows, mixing.columns, trail,
            int(accumulate)])
        dense = torch.tensor(mixing.dense())
        assert_close(out, before + torch.einsum("rc,lct->lrt", dense, exact(x)), dtype, factor=2.0)

    more = "-transposed" * transposed + "-accumulate" * accumulate
    return Case(f"resample-{made[0]}-{lead}x{trail}{more}".replace(" ", "-"), check)


CASES = [
    *(_sampled((4, 3), mode, 2, 37) for mode in (
        "constant", "nearest", "mirror", "reflect", "wrap", "grid-wrap")),
    _sampled((1, 5), "mirror", 1, 200), _slope(0), _slope(1),
    _resampled(2, 3, ("linear", 5, 8, None, False), False, False),
    _resampled(3, 1, ("linear", 5, 8, None, False), True, True),
    _resampled(1, 70, ("correlation", 9, "reflect", 0.25, 0.5, 0.25), False, False),
]
