"""The CPU device: NumPy arrays, large ones over blocks of the installed resource."""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.devices import Device, get_device, makers
from gtensor.backend.elements import NUMBERS, element_type
from gtensor.backend.layouts import check_out, product_shape, rows_in_step
from gtensor.backend.streams import HostStream
from gtensor.settings import settings
from gtensor.system.bus import bus, here, tell_allocated

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

REPLAYED = 8  # by which `settings.arena_min_bytes` is divided in replays of captured steps
_STREAM = HostStream()
_LINE = 64  # bytes of a cache line
_SMALL = 1 << 14  # elements of a batch: a pass for alpha is quicker than a call for each matrix


class HostDevice(Device):
    """NumPy on the CPU."""

    type = "cpu"
    array_type = np.ndarray
    xp: Any = np

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, label: str = "") -> np.ndarray:
        if not isinstance(dtype, np.dtype) or dtype.kind not in NUMBERS:
            dtype = element_type(dtype)
        nbytes = prod(shape) * dtype.itemsize
        resource = self.resource
        least = settings.arena_min_bytes
        if resource is None or nbytes < least and (
                REPLAYED * nbytes < least or not here.replaying) or nbytes == 0:
            return np.empty(shape, dtype)
        block = resource.allocate(nbytes, 0, label)
        if bus.memory:
            tell_allocated(self, block)
        # The block becomes the array's base: views keep it alive, and dropping the last frees it.
        if dtype.isbuiltin == 1:
            block.__array_interface__ = {
                "version": 3, "data": (block.ptr, False), "shape": shape, "typestr": dtype.str}
            return np.asarray(block)
        block.__array_interface__ = {  # ml_dtypes have no type string of their own
            "version": 3, "data": (block.ptr, False), "shape": (nbytes,), "typestr": "|u1"}
        return np.ndarray(shape, dtype, buffer=np.asarray(block))

    def copy(
        self, array: np.ndarray, dtype: DTypeLike | None = None, label: str = "copy"
    ) -> np.ndarray:
        out = self.empty(array.shape, array.dtype if dtype is None else dtype, label)
        if array.ndim == 2 and _collides(array):
            step = max(1, _LINE // out.itemsize)
            for start in range(0, array.shape[1], step):
                out[:, start:start + step] = array[:, start:start + step]
        else:
            out[...] = array
        return out

    def to_numpy(self, array: np.ndarray) -> np.ndarray:
        return array

    def shared(self, array: np.ndarray) -> tuple[np.ndarray, object]:
        # A view keeps the last array of the chain of bases. Here that is `lender`, whose own base
        # is a memoryview; over `array` itself it would be `array`. (`__array_interface__` does the
        # same, but takes 2 us.)
        dtype = array.dtype
        if dtype.isbuiltin == 1:
            lender = np.asarray(array.data)
            return lender, lender
        # ml_dtypes have no buffers
        lender = np.asarray(array.view(f"u{dtype.itemsize}").data)
        return lender.view(dtype), lender

    def from_numpy(self, array: np.ndarray) -> np.ndarray:
        return array

    def matmul(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None, beta: complex = 0.0,
        alpha: complex = 1.0, label: str = "matmul",
    ) -> np.ndarray:
        shape = product_shape(a, b)
        if out is None:
            out, beta = self.empty(shape, a.dtype, label), 0.0
        else:
            check_out(a, b, out, shape)
        a, b = _readable_if_small(a), _readable_if_small(b)
        if beta == alpha == 1 and out.ndim == 2 and _read_by_numpy(a) and _read_by_numpy(b) and (
                8 * REPLAYED * out.size < settings.arena_min_bytes):
            out += np.matmul(a, b)  # a call of BLAS takes longer to plan
            return out
        if beta or alpha != 1 and not (out.ndim > 2 and out.size <= _SMALL) or not (
                _read_by_numpy(a) and _read_by_numpy(b) and out.flags.c_contiguous):
            from gtensor.backend.blas import product_into  # here: few programs need it

            return product_into(self, a, b, out, alpha, beta)
        if b.ndim == 2 < a.ndim and (a.flags.c_contiguous or rows_in_step(a)):
            rows = prod(shape[:-1])  # one product is quicker than many
            np.matmul(a.reshape(rows, a.shape[-1]), b, out.reshape(rows, shape[-1]))
        else:
            np.matmul(a, b, out)
        if alpha != 1:
            out *= _number(alpha, out.dtype)
        return out

    def current_stream(self) -> HostStream:
        return _STREAM

    def new_stream(self, priority: int = 0) -> HostStream:
        return _STREAM


makers["cpu"] = HostDevice


@cache
def host() -> HostDevice:
    """The CPU device, whatever the default is; CPU paths of ops allocate on it."""
    device = get_device("cpu")
    assert isinstance(device, HostDevice)
    return device


@lru_cache(64)
def _number(value: complex, dtype: np.dtype) -> np.ndarray:
    """The number as an array, made once: a product of small matrices makes none."""
    return np.array(value, dtype)


def _collides(x: np.ndarray) -> bool:
    """Whether a copy of a transposed matrix, row by row, would read from few sets of the cache.

    Its steps along a row are multiples of 1 KiB, as of 256 float32. Then columns that fill a cache
    line of the copy are copied at once.
    """
    return x.strides[0] == x.itemsize and x.strides[1] % 1024 == 0 and min(x.shape) >= _LINE


def _readable_if_small(x: np.ndarray) -> np.ndarray:
    """A copy of what `numpy.matmul` would not multiply where it lies, as a broadcast gradient, if
    it is small: a call of BLAS takes longer to plan."""
    if _read_by_numpy(x) or x.itemsize <= 2 or (
            8 * REPLAYED * x.size >= settings.arena_min_bytes):
        return x
    return x.copy()


def _read_by_numpy(x: np.ndarray) -> bool:
    """Whether `numpy.matmul` multiplies it where it lies; it copies others, or is slow."""
    return x.itemsize > 2 and x.itemsize in x.strides[-2:]
