"""LU and Cholesky factors on a GPU whose status is read there: a failure becomes NaN, unwaited.

CuPy's `solve`, `inv` and `cholesky` ignore the status, since reading it on the host would wait.
Then the result of a singular matrix is what the library left: for a batch of inverses, memory that
it did not write. Here a kernel between two calls of the library reads the status on the device.
Each such kernel replaces a copy that CuPy makes, so there are no more launches than CuPy's.
The methods that iterate fail where an element is not finite, which is asked of the elements.

Matrices are (..., n, n). A C-contiguous matrix is its transpose to the libraries.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.cuda_streams import cupy
from gtensor.backend.kernels import elementwise

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}
_UPPER, _PLAIN = 1, 0  # CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N
_NAN = "T(__longlong_as_double(0x7ff8000000000000LL))"

# The pivots are valid from the start, because what a failed factorization writes is not documented,
# and the solver exchanges rows by them.
_BEGIN = elementwise(
    "T a, int64 n, int64 batch, uint64 first, uint64 second, uint64 step, uint64 step_second",
    "T lu, raw int32 pivots, raw uint64 addresses", """
const long long row = i / n;
lu = a;
if (i % n == 0) pivots[row] = static_cast<int>(row % n) + 1;
if (i % (n * n) == 0) {
  const unsigned long long matrix = row / n;
  addresses[matrix] = first + matrix * step;
  addresses[batch + matrix] = second + matrix * step_second;
}""", name="gt_lu_begin")
_SIDES = elementwise(
    "T b, raw int32 status, int64 each", "T y", f"y = status[i / each] == 0 ? b : {_NAN}",
    name="gt_lu_sides")
_IDENTITY = elementwise(
    "raw int32 status, int64 n", "T y",
    f"y = status[i / (n * n)] != 0 ? {_NAN} : i / n % n == i % n ? T(1) : T(0)",
    name="gt_lu_identity")
_INVERSE = elementwise(
    "T x, raw int32 status, int64 each, int64 batch", "T y",
    f"y = (status[i / each] | status[batch + i / each]) == 0 ? x : {_NAN}",
    name="gt_lu_inverse")
_LOWER = elementwise(
    "T x, raw int32 status, int64 n", "T y",
    f"y = status[i / (n * n)] != 0 ? {_NAN} : i % n <= i / n % n ? x : T(0)",
    name="gt_cholesky_lower")
_ADDRESSES = elementwise(
    "uint64 first, uint64 step", "uint64 y", "y = first + i * step", name="gt_addresses")


def _library(name: str) -> Any:
    from cupy_backends.cuda.libs import cublas, cusolver

    return {"cublas": cublas, "cusolver": cusolver}[name]


def _cublas(letter: str, name: str) -> tuple[Any, int]:
    return (getattr(_library("cublas"), letter + name),
            cupy().cuda.device.get_cublas_handle())


def _cusolver(letter: str, name: str) -> tuple[Any, int]:
    return (getattr(_library("cusolver"), letter + name),
            cupy().cuda.device.get_cusolver_handle())


def _address(x: Any) -> int:
    return int(x.data.ptr)


class _Factors:
    """The LU factors of matrices (batch, n, n), and `sides` (batch, k, n) to solve for in place."""

    def __init__(self, a: Array, dtype: np.dtype, columns: int, single: bool) -> None:
        xp = cupy()
        self.batch, self.n, self.single = len(a), a.shape[-1], single
        self.letter = _LETTERS[dtype.char]
        self.lu = xp.empty(a.shape, dtype)
        self.sides = xp.empty((self.batch, columns, self.n), dtype)
        self.pivots = xp.empty((self.batch, self.n), np.int32)
        self.status = xp.empty((2, self.batch), np.int32)
        self.addresses = xp.empty((2, self.batch), np.uint64)
        step = self.n * dtype.itemsize
        _BEGIN(a.astype(dtype, copy=False), self.n, self.batch, self.lu.data.ptr,
               self.sides.data.ptr, self.n * step, columns * step,
               out=(self.lu, self.pivots, self.addresses))
        n, lu, status = self.n, self.lu.data.ptr, self.status.data.ptr
        if single:
            function, handle = _cusolver(self.letter, "getrf")
            asks = _cusolver(self.letter, "getrf_bufferSize")[0]
            work = xp.empty(asks(handle, n, n, lu, n), dtype)
            function(handle, n, n, lu, n, work.data.ptr, self.pivots.data.ptr, status)
        else:
            function, handle = _cublas(self.letter, "getrfBatched")
            function(handle, n, self.addresses.data.ptr, n, self.pivots.data.ptr, status,
                     self.batch)

    def solve(self) -> Array:
        """The sides, in place."""
        n, columns = self.n, self.sides.shape[1]
        if self.single:
            function, handle = _cusolver(self.letter, "getrs")
            function(handle, _PLAIN, n, columns, self.lu.data.ptr, n, self.pivots.data.ptr,
                     self.sides.data.ptr, n, self.status[1].data.ptr)
        else:
            function, handle = _cublas(self.letter, "getrsBatched")
            illegal = np.zeros(1, np.int32)
            function(handle, _PLAIN, n, columns, self.addresses[0].data.ptr, n,
                     self.pivots.data.ptr, self.addresses[1].data.ptr, n, illegal.ctypes.data,
                     self.batch)
        return self.sides

    def invert(self) -> Array:
        """The inverses over the sides, which have n columns."""
        n = self.n
        if self.single:
            _IDENTITY(self.status, n, out=self.sides)
            return self.solve()
        function, handle = _cublas(self.letter, "getriBatched")
        function(handle, n, self.addresses[0].data.ptr, n, self.pivots.data.ptr,
                 self.addresses[1].data.ptr, n, self.status[1].data.ptr, self.batch)
        return _INVERSE(self.sides, self.status, n * n, self.batch, out=self.sides)


def _one_by_one(n: int) -> bool:
    """Whether a batch is too large for the batched functions, as CuPy decides it."""
    from cupy.cublas import get_batched_gesv_limit

    return bool(n > get_batched_gesv_limit())


def solve(a: Array, b: Array) -> Array:
    """The x with a x = b for b (..., n, k), with the batch axes of a; NaN where a is singular."""
    xp, (n, columns) = cupy(), b.shape[-2:]
    lead, dtype = b.shape[:-2], np.result_type(a.dtype, b.dtype)
    if not b.size:
        return xp.empty(b.shape, dtype)
    if lead and _one_by_one(n):
        rows = (s.reshape(-1, *s.shape[-2:]) for s in (a, b))
        return xp.stack([solve(*pair) for pair in zip(*rows, strict=True)]).reshape(b.shape)
    factors = _Factors(a.reshape(-1, n, n).swapaxes(1, 2), dtype, columns, not lead)
    sides = b.reshape(-1, n, columns).swapaxes(1, 2)
    _SIDES(sides.astype(dtype, copy=False), factors.status, n * columns, out=factors.sides)
    return factors.solve().reshape(*lead, columns, n).swapaxes(-1, -2)


def inverse(a: Array) -> Array:
    """The inverses of matrices, NaN where one is singular."""
    n = a.shape[-1]
    if not a.size:
        return cupy().empty(a.shape, a.dtype)
    factors = _Factors(a.reshape(-1, n, n), a.dtype, n, a.ndim == 2)
    return factors.invert().reshape(a.shape)


def cholesky(x: Array) -> Array:
    """The lower factors, NaN where one is not positive definite; they may take the place of x."""
    xp = cupy()
    x = xp.ascontiguousarray(x)
    n, batch, start = x.shape[-1], prod(x.shape[:-2]), _address(x)
    if not x.size:
        return x
    letter, status = _LETTERS[x.dtype.char], xp.empty(batch, np.int32)
    if x.ndim == 2:
        function, handle = _cusolver(letter, "potrf")
        asks = _cusolver(letter, "potrf_bufferSize")[0]
        length = asks(handle, _UPPER, n, start, n)
        work = xp.empty(length, x.dtype)
        function(handle, _UPPER, n, start, n, work.data.ptr, length, status.data.ptr)
    else:
        addresses = xp.empty(batch, np.uint64)
        _ADDRESSES(start, n * n * x.itemsize, out=addresses)
        function, handle = _cusolver(letter, "potrfBatched")
        function(handle, _UPPER, n, addresses.data.ptr, n, status.data.ptr, batch)
    return _LOWER(x, status, n, out=x)


@cache
def _finite() -> Any:
    return cupy().ReductionKernel(
        "T x", "float64 y", "x - x == T(0) ? 0 : 1", "a | b",
        "y = a ? __longlong_as_double(0x7ff8000000000000LL) : 1.0", "0", "gt_finite",
        reduce_type="int")


def finite_or_nan(x: Array, *results: Array) -> None:
    """Make the results NaN, in place, whose matrix of x has an element that is not finite."""
    factor = _finite()(x, axis=(-2, -1))
    lead = factor.ndim
    for result in results:
        result *= factor.reshape(factor.shape + (1,) * (result.ndim - lead))
