"""The cuFFT stand-in: layouts of batches, directions without scaling, what is overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gtensor.hostcuda.libraries import cufft

from .raw import call, close, values

LIBRARY = cufft.library
LETTERS = {
    kind: letter
    for letter, kind in (("C2C", 0x29), ("R2C", 0x2A), ("C2R", 0x2C), ("Z2Z", 0x69), ("D2Z", 0x6A),
                         ("Z2D", 0x6C))
}


@contextmanager
def planned(
    kind: int, lengths: tuple[int, ...], batch: int, inner: Any = None, outer: Any = None
) -> Iterator[int]:
    cell, size = np.zeros(1, np.int32), np.zeros(1, np.uint64)
    assert call(LIBRARY, "cufftCreate", cell) == 0
    n = np.array(lengths, np.int32)
    (embed, step, distance), (other, onto, apart) = inner or (0, 1, 0), outer or (0, 1, 0)
    assert (
        call(LIBRARY, "cufftMakePlanMany", int(cell[0]), len(lengths), n, embed, step, distance,
             other, onto, apart, kind, batch, size)
        == 0
    )
    assert size[0] > 0
    yield int(cell[0])
    assert call(LIBRARY, "cufftDestroy", int(cell[0])) == 0


def execute(plan: int, kind: int, x: np.ndarray, y: np.ndarray, *direction: int) -> int:
    return call(LIBRARY, f"cufftExec{LETTERS[kind]}", plan, x, y, *direction)


@pytest.mark.parametrize("kind", LETTERS)
@pytest.mark.parametrize("lengths", [(6,), (7,), (1,), (4, 5), (2, 3, 4)])
def test_every_kind_and_rank(kind: int, lengths: tuple[int, ...]) -> None:
    rng, batch = np.random.default_rng(1), 3
    source, target = (np.dtype(x) for x in cufft.TYPES[kind])
    half = (*lengths[:-1], lengths[-1] // 2 + 1)
    axes = tuple(range(1, len(lengths) + 1))
    plain = values(rng, (batch, *lengths), target if source.kind == "c" else source)
    with planned(kind, lengths, batch) as plan:
        if source.kind == "f":
            y = np.zeros((batch, *half), target)
            assert execute(plan, kind, plain, y) == 0
            close(y, np.fft.rfftn(plain, axes=axes))
        elif target.kind == "f":
            x, y = np.fft.rfftn(plain, axes=axes).astype(source), np.zeros_like(plain)
            assert execute(plan, kind, x, y) == 0
            close(y, plain * np.prod(lengths))
            assert np.isnan(x).all() == (len(lengths) > 1), "more dimensions overwrite their input"
        else:
            y = np.zeros_like(plain)
            for direction, function in ((-1, np.fft.fftn), (1, np.fft.ifftn)):
                assert execute(plan, kind, plain, y, direction) == 0
                scale = 1 if direction == -1 else np.prod(lengths)
                close(y, function(plain, axes=axes) * scale)


def test_in_place_real_rows_are_padded() -> None:
    rng = np.random.default_rng(2)
    x = values(rng, (2, 3, 5), np.float64)
    memory = np.zeros((2, 3, 6))
    memory[..., :5] = x
    with planned(0x6A, (3, 5), 2) as forward, planned(0x6C, (3, 5), 2) as back:
        assert execute(forward, 0x6A, memory, memory) == 0
        close(memory.view(np.complex128), np.fft.rfft2(x))
        assert execute(back, 0x6C, memory, memory) == 0
        close(memory[..., :5], x * 15)


def test_embedded_strided_batches() -> None:
    """A transform of columns: element stride 4, batch distance 1; and rows within wider ones."""
    rng = np.random.default_rng(3)
    x = values(rng, (6, 4), np.complex128)
    y = np.zeros_like(x)
    embed = np.array([6], np.int32)
    with planned(0x69, (6,), 4, (embed, 4, 1), (embed, 4, 1)) as plan:
        assert execute(plan, 0x69, x, y, -1) == 0
    close(y, np.fft.fft(x, axis=0))
    wide, out = values(rng, (2, 5, 8), np.complex128), np.zeros((2, 3, 4), np.complex128)
    inner, outer = np.array([5, 8], np.int32), np.array([3, 4], np.int32)
    with planned(0x69, (3, 4), 2, (inner, 1, 40), (outer, 1, 12)) as plan:
        assert execute(plan, 0x69, wide, out, -1) == 0
    close(out, np.fft.fft2(wide[:, :3, :4]))


def test_plans_refuse() -> None:
    cell, size, x = np.zeros(1, np.int32), np.zeros(1, np.uint64), np.zeros(8, np.complex128)
    make = "cufftMakePlan1d"
    assert call(LIBRARY, "cufftCreate", cell) == 0
    plan = int(cell[0])
    assert execute(plan, 0x69, x, x, -1) == cufft.INVALID_PLAN
    assert call(LIBRARY, make, plan, 0, 0x69, 1, size) == cufft.INVALID_SIZE
    assert call(LIBRARY, make, plan, 8, 0x70, 1, size) == cufft.INVALID_TYPE
    assert call(LIBRARY, "cufftSetAutoAllocation", plan, 0) == 0
    assert call(LIBRARY, make, plan, 8, 0x69, 1, size) == 0
    assert call(LIBRARY, make, plan, 8, 0x69, 1, size) == cufft.INVALID_PLAN
    assert execute(plan, 0x69, x, x, -1) == cufft.NO_WORKSPACE
    work = np.zeros(int(size[0]), np.uint8)
    assert call(LIBRARY, "cufftSetWorkArea", plan, work) == 0
    assert execute(plan, 0x69, x, x, 0) == cufft.INVALID_VALUE
    assert execute(plan, 0x29, x, x, -1) == cufft.INVALID_PLAN
    assert execute(plan, 0x69, x, x, -1) == 0
    assert work.all(), "the work area is written"
    assert call(LIBRARY, "cufftDestroy", plan) == 0
    assert call(LIBRARY, "cufftDestroy", plan) == cufft.INVALID_PLAN
