"""Builders of the two paths of an op: NumPy with `out=` and tiles, CuPy by name or by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from gtensor.backend import device_of, host
from gtensor.backend.cuda import cupy
from gtensor.creation.dtypes import result_type
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path, Scalar

_ITEM = 16  # bytes of the largest element: a bound that needs no dtype arithmetic
_NUMBERS = (bool, int, float, complex)
_ARRAYS = (ndarray, np.generic)  # NumPy returns scalars for 0-d arrays, typed as strongly


def ufunc(function: np.ufunc) -> Path:
    """The CPU path of an op that is a NumPy ufunc; large outputs use the installed resource."""
    name = function.__name__

    if function.nin == 1:
        write = into(function)

        def unary(x: Array, out: Array | None = None) -> Array:
            if out is None:
                if x.size * _ITEM < settings.arena_min_bytes:
                    return function(x)
                out = _buffer(function, name, (x,))
            return write(x, out)

        return _plain(unary, function)

    def binary(x1: Any, x2: Any, out: Array | None = None) -> Array:
        if out is not None:
            return function(x1, x2, out=out)
        try:
            size, other = x1.size, x2.size
            # Reading shapes costs a third of a small add, so only where it decides.
            if other != size or ((x1.ndim != 1 or x2.ndim != 1) and x1.shape != x2.shape):
                size *= other  # a bound
        except AttributeError:  # a Python number
            size = getattr(x1, "size", 1) * getattr(x2, "size", 1)
        if size * _ITEM < settings.arena_min_bytes:
            return function(x1, x2)
        return function(x1, x2, out=_buffer(function, name, (x1, x2)))

    return _plain(binary, function)


def _buffer(function: np.ufunc, name: str, inputs: tuple[Array | Scalar, ...]) -> ndarray:
    """A buffer for the ufunc's result, of the dtype and shape that NumPy would choose."""
    kinds: list[Any] = []
    shapes = []
    for x in inputs:  # one loop: a generator is a call for each value
        if isinstance(x, _ARRAYS):
            kinds.append(x.dtype)
            shapes.append(x.shape)
        else:
            kinds.append(_kind(x))
    dtype = function.resolve_dtypes((*kinds, None))[-1]
    shape = shapes[0] if shapes.count(shapes[0]) == len(shapes) else np.broadcast_shapes(*shapes)
    return host().empty(shape, dtype, name)


def _kind(x: object) -> np.dtype | type:
    return np.dtype(bool) if isinstance(x, bool) else type(x)


# -- ufuncs that NumPy writes wrongly --------------------------------------------------------------
# Some of NumPy's vector loops use a wrong stride where the output is not contiguous. A test
# compares every ufunc that gtensor uses with its result in contiguous memory: it is right, or it is
# listed here. Only `into` gives a listed ufunc an `out`.


def _square_stride(x: ndarray) -> bool:
    return x.itemsize ** 2 in x.strides or -x.itemsize ** 2 in x.strides


def _any_stride(x: ndarray) -> bool:
    return True


MISWRITTEN: dict[np.ufunc, Callable[[ndarray], bool]] = {
    np.negative: _square_stride,  # from NumPy 2.2 on: columns of (n, 4) float32, (n, 8) float64
    np.isfinite: _any_stride,  # these four with AVX-512, from 16 elements on
    np.isinf: _any_stride,
    np.isnan: _any_stride,
    np.signbit: _any_stride,
}
"""Ufunc -> whether it may go wrong for an input, if the output is not contiguous."""


def into(function: np.ufunc) -> Path:
    """`write(x, out)` of a ufunc of one input, right for all layouts; `out` may be x."""
    wrong = MISWRITTEN.get(function)
    if wrong is None:
        return function

    def write(x: Array, out: Array) -> Array:
        if out.flags.c_contiguous or not wrong(x):
            return function(x, out)
        if x is not out and np.may_share_memory(x, out):
            x = x.copy()  # a tile may be read after others are written
        x = np.broadcast_to(x, out.shape)
        for tile in tiles(out.shape, settings.tile_elements):
            key = (*tile, ...)  # selects arrays, never scalars
            out[key] = function(x[key])
        return out

    return write


negative = into(np.negative)


def cupy_function(
    name: str, kinds: str = "", kernel: Path | None = None, itemsize: int | None = None
) -> Path:
    """The GPU path of an op that CuPy has under NumPy's name, `out=` included.

    Arrays whose common dtype is of one of the `kinds`, and of that size if one is given, are passed
    to the kernel, which has one type.
    """

    def path(*arrays: Array | Scalar, out: Array | None = None, **params: Any) -> Array:
        if kernel is not None and (dtype := common(*arrays)).kind in kinds and (
                itemsize in (None, dtype.itemsize)):
            if out is None or out.dtype == dtype:
                return kernel(*promoted(*arrays), out=out)
            out[...] = kernel(*promoted(*arrays))
            return out
        return getattr(cupy(), name)(*arrays, out=out, **params)

    if kernel is None:
        path.library = lambda: getattr(cupy(), name)  # type: ignore[attr-defined]  # a call less
    return path


def common(*values: Any) -> np.dtype:
    """The dtype of arrays and numbers, also where an array is of ml_dtypes."""
    return result_type(*(x if type(x) in _NUMBERS else x.dtype for x in values))


def promoted(*values: Any) -> Iterator[Any]:
    """The values with arrays in their common dtype: a kernel has one type."""
    dtype = common(*values)
    return (x if type(x) in _NUMBERS else x.astype(dtype, copy=False) for x in values)


def tiled(name: str, formula: Path, dtype: np.dtype | None = None) -> Path:
    """The CPU path of a fused elementwise op: its formula, evaluated tile by tile into the output.

    `formula(ns, *arrays, **params)` is written with array API names; temporaries are as
    large as a tile (`settings.tile_elements`), never as the output. `out` may be one of
    the inputs. Half precision is computed in float32. `dtype` fixes the output's dtype
    where it is not that of the inputs.
    """

    def path(*arrays: Array | Scalar, out: Array | None = None, **params: Any) -> Array:
        if _simple(arrays):  # one tile of a dtype that is computed in
            value = formula(np, *arrays, **params)
            if out is None:
                return value if dtype is None else value.astype(dtype, copy=False)
            out[...] = value
            return out
        strong = [a for a in arrays if isinstance(a, ndarray)]
        result = dtype or np.result_type(*[a.dtype for a in strong])
        half = result.itemsize == 2 and result.kind in "fV"
        shape = np.broadcast_shapes(*[a.shape for a in strong])
        if out is None:
            out = host().empty(shape, result, name)
        views = [np.broadcast_to(a, shape) if isinstance(a, ndarray) else a for a in arrays]
        for tile in tiles(shape, settings.tile_elements):
            key = (*tile, ...)  # selects arrays, never scalars: those would not be widened
            parts = [v[key] if isinstance(v, ndarray) else v for v in views]
            out[key] = formula(np, *_widened(parts, half), **params)
        return out

    path.formula = formula  # type: ignore[attr-defined]  # whose arguments it takes
    return _plain(path, partial(formula, np))


def _simple(arrays: tuple[object, ...]) -> bool:
    """Whether a formula can be evaluated at once: no array exceeds a tile or is of a half dtype."""
    limit = settings.tile_elements
    for a in arrays:  # noqa: SIM110  a generator costs as much as a small op
        if type(a) is ndarray and (a.size > limit or a.itemsize == 2):
            return False
    return True


def placed(path: Path, gpu: Path | None = None) -> dict[str, Any]:
    """Both paths of an op that are given their device: `path(device, *arrays, out=None, **params)`.

    `gpu` is the GPU's where it differs.
    """
    on_cpu = partial(path, host())
    on_cpu.formula = path  # type: ignore[attr-defined]  # whose arguments it takes
    on_cpu.__qualname__ = path.__qualname__  # type: ignore[attr-defined]
    return {"cpu": on_cpu, "gpu": on_gpu(path if gpu is None else gpu)}


def on_gpu(path: Path) -> Path:
    """A GPU's path that is given its device: by `CudaDevice.path`, else as that of the first array.
    """
    def run(*arrays: Array, **params: Any) -> Array:
        return path(device_of(arrays[0]), *arrays, **params)

    run.placed = run.formula = path  # type: ignore[attr-defined]
    return run


def once(a: Array) -> Array:
    """What an array repeats along its first axis, one of it: for kernels, which count modulo."""
    return a[:1] if a.ndim > 1 and a.shape[0] > 1 and a.strides[0] == 0 else a


def settled(result: Array, out: Array | None) -> Array:
    """A path's result: `value`, or `out` with the value in it, if given."""
    if out is None:
        return result
    out[...] = result
    return out


def _plain(path: Any, function: Path) -> Path:
    """The path, with the NumPy function that it replaces, for comparisons in the ladders."""
    path.plain = function
    return path


def _widened(arrays: Any, half: bool) -> list[Any]:
    if not half:
        return list(arrays)
    return [a.astype(np.float32) if isinstance(a, ndarray) and a.dtype.kind in "fV" else a
            for a in arrays]


def tiles(shape: tuple[int, ...], limit: int) -> Iterator[tuple[int | slice, ...]]:
    """Index tuples that cut an array of `shape` into blocks of at most about `limit` elements."""
    if not shape or prod(shape) == 0:
        yield ()
        return
    row = prod(shape[1:])
    if row > limit:
        for i in range(shape[0]):
            for rest in tiles(shape[1:], limit):
                yield (i, *rest)
        return
    step = max(1, limit // row)
    for start in range(0, shape[0], step):
        yield (slice(start, start + step),)
