"""Stub libraries, and random numbers of the host API."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gtensor.hostcuda.libraries import curand, stubs

from .raw import call

LIBRARY = curand.library


def test_a_stub_refuses_until_it_is_filled_and_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GTENSOR_HOSTCUDA_CACHE", str(tmp_path))
    stub = stubs.Stub("libprobe.so.7", ["second", "first"], 42)
    assert stub.library.first() == stub.library.second() == stub.library.second() == 42
    assert stub.refused() == {"first": 1, "second": 2}
    answer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)
    stub.fill({"first": ctypes.cast(answer, ctypes.c_void_p).value or 0})
    assert stub.library.first(4) == 5 and stub.library.second() == 42
    stub.end()
    assert stub.library.first(4) == 0
    monkeypatch.setattr(subprocess, "run", None)  # a second build would call it
    assert stubs.build("libprobe.so.7", ["first", "second"], 42) == stub.path
    assert [p.name for p in stub.path.parent.iterdir()] == [stub.path.name], "nothing half-built"


def made(seed: int) -> int:
    cell = np.zeros(1, np.uint64)
    assert call(LIBRARY, "curandCreateGenerator", cell, 100) == 0
    assert call(LIBRARY, "curandSetPseudoRandomGeneratorSeed", int(cell[0]), seed) == 0
    return int(cell[0])


def drawn(generator: int, n: int, name: str = "", dtype: str = "u4", *more: float) -> np.ndarray:
    out = np.zeros(n, dtype)
    assert call(LIBRARY, f"curandGenerate{name}", generator, out, n, *more) == 0
    return out


def test_seeds_and_offsets_name_places_of_one_sequence() -> None:
    whole = drawn(made(3), 100)
    assert (drawn(made(3), 100) == whole).all() and (drawn(made(4), 100) != whole).any()
    pieces = made(3)
    assert (np.concatenate([drawn(pieces, n) for n in (1, 7, 30, 62)]) == whole).all()
    assert call(LIBRARY, "curandSetGeneratorOffset", pieces, 13) == 0
    assert (drawn(pieces, 20) == whole[13:33]).all()


def test_distributions_and_their_bounds() -> None:
    top = np.full(2, 2**32 - 1, np.uint32)
    for dtype in ("f4", "f8"):
        assert curand.uniform(top, np.dtype(dtype))[0] == 1
        assert curand.uniform(0 * top, np.dtype(dtype))[0] > 0
    generator = made(5)
    for name, dtype in (("", "f4"), ("Double", "f8")):
        x = drawn(generator, 20000, f"Uniform{name}", dtype)
        assert abs(x.mean() - 0.5) < 0.01 and abs(x.var() - 1 / 12) < 0.005
        x = drawn(generator, 20000, f"Normal{name}", dtype, 2.0, 3.0)
        assert abs(x.mean() - 2) < 0.1 and abs(x.std() - 3) < 0.1
        assert (
            abs(np.log(drawn(generator, 20000, f"LogNormal{name}", dtype, 1.0, 2.0)).mean() - 1)
            < 0.1
        )
    assert abs(drawn(generator, 20000, "Poisson", "u4", 4.0).mean() - 4) < 0.1
    odd = np.zeros(3, np.float32)
    assert (
        call(LIBRARY, "curandGenerateNormal", generator, odd, 3, 0.0, 1.0)
        == curand.LENGTH_NOT_MULTIPLE
    )
    assert call(LIBRARY, "curandGenerateLongLong", generator, odd, 1) == curand.TYPE_ERROR
    assert call(LIBRARY, "curandCreateGenerator", odd, 200) == curand.TYPE_ERROR
