"""Products on the CPU into buffers: out = alpha * a @ b + beta * out, without whole temporaries.

`numpy.matmul` can neither scale nor add. The BLAS that NumPy has loaded can, so it is called by
ctypes, where it is one whose names say the size of their integers. What it cannot read or write
(half precision, elements apart along both axes) is multiplied in tiles, which are copied.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from math import isqrt, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.layouts import address, at, plan, readable
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.devices import Device, Scratch

# Of OpenBLAS in NumPy's wheels, and of others built with the suffix for 64-bit integers.
_NAMES = ("scipy_{}64_", "{}64_")
_SMALL = 1 << 19  # multiplications of a matrix of several, up to which `numpy.matmul` is quicker
_BY_COLUMNS = 102  # CBLAS_LAYOUT
_OPERATIONS = (111, 112)  # CBLAS_TRANSPOSE: as it lies, transposed
_REAL = {np.dtype(np.float32): ("s", ctypes.c_float), np.dtype(np.float64): ("d", ctypes.c_double)}
_COMPLEX = {np.dtype(np.complex64): "c", np.dtype(np.complex128): "z"}
_COMPUTED = {2: np.dtype(np.float32)}  # by itemsize, where it is not the arrays' own dtype


def _function(name: str) -> Any:
    """A function of NumPy's BLAS; None without one."""
    library = ctypes.CDLL(sys.modules["numpy._core._multiarray_umath"].__file__)
    found = (getattr(library, form.format(name), None) for form in _NAMES)
    return next((one for one in found if one is not None), None)


@cache
def _gemm(dtype: np.dtype) -> Callable[..., None] | None:
    """CBLAS's gemm for a dtype; None without one. Complex factors are given by address."""
    letter, factor = _REAL.get(dtype) or (_COMPLEX.get(dtype), ctypes.c_void_p)
    found = _function(f"cblas_{letter}gemm") if letter else None
    if found is not None:
        number, size, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
        found.argtypes = (number, number, number, size, size, size, factor, pointer, size,
                          pointer, size, factor, pointer, size)
        found.restype = None
    return found


def threads() -> int:
    """How many threads a product is computed by; 0 where BLAS cannot tell."""
    count = _function("openblas_get_num_threads")
    return 0 if count is None else count()


def set_threads(count: int) -> None:
    """Compute products by so many threads, where BLAS can be told."""
    choose = _function("openblas_set_num_threads")
    if choose is not None:
        choose(count)


def product_into(
    device: Device, a: np.ndarray, b: np.ndarray, out: np.ndarray, alpha: complex, beta: complex
) -> np.ndarray:
    """out = alpha * a @ b + beta * out for checked operands with two axes or more.

    Half precision is multiplied and added in float32. Temporaries are tiles.
    """
    if not out.size:
        return out
    if not a.shape[-1]:
        _scale(out, beta)
    elif _is_many_small(a, b, out):
        _write_batches(device, a, b, out, alpha, beta)
    elif not (a.dtype == b.dtype == out.dtype and _write(a, b, out, alpha, beta)):
        lead = out.shape[:-2]
        a, b = (np.broadcast_to(x, lead + x.shape[-2:]) for x in (a, b))
        tiles = _Tiles(device, a, b, out)
        for index in np.ndindex(lead):
            tiles.write(a[index], b[index], out[index], alpha, beta)
    return out


def _scale(out: np.ndarray, beta: complex) -> None:
    if beta:
        out *= out.dtype.type(beta)
    else:
        out[...] = 0


def _write(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, alpha: complex, beta: complex
) -> bool:
    """One call for each matrix of out; False, with nothing written, where BLAS has none."""
    gemm = _gemm(out.dtype)
    laid = plan(at(a), at(b), at(out)) if gemm else None
    if gemm is None or laid is None:
        return False
    if laid.exchanged:
        a, b = b, a
    leading_a, leading_b, leading = laid.leading
    op_b, op_a = (_OPERATIONS[op] for op in laid.operations)
    factors: Any = alpha, beta
    if out.dtype.kind == "c":
        kept = np.array([alpha, beta], out.dtype)
        factors = kept.ctypes.data, kept[1:].ctypes.data
    at_a, at_b, at_out = address(a), address(b), address(out)
    for x, y, z in laid.starts():
        gemm(_BY_COLUMNS, op_b, op_a, *laid.sizes, factors[0], at_b + y * b.itemsize, leading_b,
             at_a + x * a.itemsize, leading_a, factors[1], at_out + z * out.itemsize, leading)
    return True


def _is_many_small(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether calls for single matrices would take longer than the products."""
    rows, columns = out.shape[-2:]
    several = out.size > rows * columns
    return (several and rows * columns * a.shape[-1] <= _SMALL and out.itemsize > 2
            and out.size // len(out) <= settings.tile_elements
            and a.dtype == b.dtype == out.dtype)


def _write_batches(
    device: Device, a: np.ndarray, b: np.ndarray, out: np.ndarray, alpha: complex, beta: complex
) -> None:
    """As many of the matrices at a time as a tile holds, by `numpy.matmul`."""
    each = out.size // len(out)
    step = min(len(out), max(1, settings.tile_elements // each))
    scratch = device.workspace(step * each, out.dtype)
    for start in range(0, len(out), step):
        left, right, place = (_rows(x, out.ndim, start, start + step) for x in (a, b, out))
        product = np.matmul(left, right, out=scratch(0, place.shape))
        if alpha != 1:
            product *= out.dtype.type(alpha)
        if beta:
            if beta != 1:
                place *= out.dtype.type(beta)
            place += product
        else:
            place[...] = product


def _rows(x: np.ndarray, ndim: int, start: int, stop: int) -> np.ndarray:
    """Part of the first axis of an operand, all of it where it repeats."""
    return x[start:stop] if x.ndim == ndim and len(x) > 1 else x


# -- tiles -----------------------------------------------------------------------------------------


class _Tiles:
    """A product tile by tile: what BLAS cannot read or write is copied, in the compute dtype."""

    def __init__(self, device: Device, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        self.dtype = _COMPUTED.get(out.itemsize, out.dtype)
        self.side = max(1, isqrt(settings.tile_elements))
        (rows, columns), inner = out.shape[-2:], a.shape[-1]
        self._device = device
        self._elements = prod(sorted(min(n, self.side) for n in (rows, columns, inner))[1:])
        self._buffers: dict[str, Scratch] = {}

    def write(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray, alpha: complex, beta: complex
    ) -> None:
        """out = alpha * a @ b + beta * out for matrices."""
        direct = self._readable(out)
        for i in self._parts(out.shape[0]):
            for j in self._parts(out.shape[1]):
                place = out[i, j]
                if direct:
                    self._sum(a[i], b[:, j], place, alpha, beta)
                    continue
                total = self._buffer("total", place.shape)
                if beta:
                    np.copyto(total, place, casting="unsafe")
                self._sum(a[i], b[:, j], total, alpha, beta)
                np.copyto(place, total, casting="unsafe")

    def _sum(
        self, a: np.ndarray, b: np.ndarray, total: np.ndarray, alpha: complex, beta: complex
    ) -> None:
        for k in self._parts(a.shape[1]):
            left, right = self._read("left", a[:, k]), self._read("right", b[k])
            if not _write(left, right, total, alpha, beta):
                self._add(np.matmul(left, right, out=self._buffer("product", total.shape)),
                          total, alpha, beta)
            beta = 1.0

    def _add(
        self, product: np.ndarray, total: np.ndarray, alpha: complex, beta: complex
    ) -> None:
        """What gemm does, where NumPy's BLAS cannot be called."""
        product *= self.dtype.type(alpha)
        _scale(total, beta)
        total += product

    def _read(self, name: str, x: np.ndarray) -> np.ndarray:
        if self._readable(x):
            return x
        copy = self._buffer(name, x.shape)
        np.copyto(copy, x, casting="unsafe")
        return copy

    def _readable(self, x: np.ndarray) -> bool:
        return x.dtype == self.dtype and readable(at(x))

    def _buffer(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in self._buffers:
            self._buffers[name] = self._device.workspace(self._elements, self.dtype)
        return self._buffers[name](0, shape)

    def _parts(self, length: int) -> Iterator[slice]:
        for start in range(0, length, self.side):
            yield slice(start, start + self.side)
