"""Calls of the libraries' stand-ins on plain host memory: no CUDA, no CuPy, work runs at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gtensor.hostcuda.libraries import cublas, cusolver
from gtensor.hostcuda.libraries.calls import Library, runtime

DTYPES = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}
PAD = 77.0  # what stands between the columns of a matrix with a leading dimension


def call(library: Library, name: str, *arguments: Any) -> int:
    """Calls a function: arrays as their address, numbers as they are; returns the status."""
    assert len(library.letters[name]) == len(arguments), f"{name}({library.letters[name]})"
    raw = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    assert not runtime.failures
    return library.entries[name](*raw)


@contextmanager
def blas(pointer_mode: int = 0) -> Iterator[int]:
    """A cuBLAS handle."""
    with _made(cublas.library, "cublasCreate_v2", "cublasDestroy_v2") as handle:
        assert call(cublas.library, "cublasSetPointerMode_v2", handle, pointer_mode) == 0
        yield handle


@contextmanager
def solver() -> Iterator[int]:
    """A cuSOLVER handle."""
    with _made(cusolver.library, "cusolverDnCreate", "cusolverDnDestroy") as handle:
        yield handle


@contextmanager
def _made(library: Library, create: str, destroy: str) -> Iterator[int]:
    cell = np.zeros(1, np.uint64)
    assert call(library, create, cell) == 0
    yield int(cell[0])
    assert call(library, destroy, int(cell[0])) == 0


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Normal numbers; whole ones where the type is an integer."""
    kind = np.dtype(dtype).kind
    x = rng.standard_normal(shape)
    if kind in "iu":
        return rng.integers(-9, 10, shape).astype(dtype)
    return (x + 1j * rng.standard_normal(shape) if kind == "c" else x).astype(dtype)


def stored(x: np.ndarray, ld: int) -> np.ndarray:
    """A matrix in column-major order with a leading dimension, PAD between the columns."""
    rows, columns = x.shape
    memory = np.full((max(1, columns), ld), PAD, x.dtype)
    memory[:columns, :rows] = x.T
    return memory


def loaded(memory: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The matrix back; the memory between its columns must be as it was."""
    padding = memory[:columns, rows:].astype(complex)
    assert (padding == PAD).all(), "the memory beyond the leading dimension's rows was written"
    return memory[:columns, :rows].T


def op(trans: int, x: np.ndarray) -> np.ndarray:
    """N, T or C."""
    return (x, x.T, x.conj().T)[trans]


def tolerance(dtype: Any) -> float:
    """How far a result of this type may lie from the one in float64, for values near 1."""
    dtype = np.dtype(dtype)
    size = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    return 0.0 if dtype.kind in "iu" else {2: 5e-2, 4: 2e-4, 8: 1e-10}[size]


def close(found: np.ndarray, wanted: np.ndarray, dtype: Any = None) -> None:
    """Equal within the type's tolerance, relative to the largest value."""
    bound = tolerance(found.dtype if dtype is None else dtype)
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(
        found.astype(complex), wanted.astype(complex), rtol=0, atol=bound * scale
    )
