"""Cases of direct convolution, and its kernels called from a library that is given by its path.

`python direct_cases.py LIBRARY` runs all cases with the kernels of that library, every array in
memory of its own, and compares with the products: for libraries that sanitizers watch.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import gtensor as gt
from gtensor.backend import Scratch
from gtensor.ops.conv import convolution, direct, paths

KINDS = (2, 1, 0)  # of processors: with AVX-512, with AVX2, any


class Case(NamedTuple):
    """An input, a weight, and parameters other than the usual ones."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    params: dict[str, Any]

    def geometry(self) -> paths.Geometry:
        return paths.geometry(self.x[2:], self.weight[2:], **self.parameters())

    def parameters(self) -> dict[str, Any]:
        usual = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
        return {**usual, **self.params}


CASES = {
    "two blocks of outputs": Case((2, 5, 9, 7), (43, 5, 3, 3), {"padding": (1, 1, 1, 1)}),
    "one block and a part": Case((2, 17, 5, 18), (5, 17, 2, 3), {"padding": (0, 2, 1, 0)}),
    "images in a tile": Case((5, 3, 4, 4), (18, 3, 3, 3), {"padding": (1, 1, 1, 1)}),
    "one channel": Case((3, 1, 8, 8), (16, 1, 3, 3), {"padding": (1, 1, 1, 1)}),
    "stride": Case((2, 6, 11, 10), (9, 6, 3, 3), {"stride": (2, 2), "padding": (1, 1, 1, 1)}),
    "stride beyond the kernel": Case((2, 3, 11, 10), (4, 3, 2, 1), {"stride": (3, 4)}),
    "dilation and stride": Case(
        (2, 4, 13, 12), (6, 2, 3, 2),
        {"stride": (2, 3), "padding": (1, 0, 2, 1), "dilation": (2, 3), "groups": 2}),
    "groups": Case((2, 12, 7, 9), (15, 4, 3, 3), {"padding": (1, 1, 1, 1), "groups": 3}),
    "depthwise": Case((2, 5, 9, 33), (5, 1, 3, 3), {"padding": (1, 1, 1, 1), "groups": 5}),
    "depthwise with stride": Case(
        (2, 3, 10, 19), (6, 1, 3, 5), {"stride": (2, 2), "padding": (1, 2, 1, 2), "groups": 3}),
    "padding beyond the kernel": Case((2, 2, 3, 3), (3, 2, 2, 2), {"padding": (3, 4, 3, 4)}),
    "one pixel": Case((3, 4, 1, 1), (5, 4, 3, 3), {"padding": (1, 1, 1, 1)}),
    "cropped": Case((2, 3, 8, 9), (4, 3, 2, 2), {"padding": (-1, -2, 0, -1), "stride": (2, 1)}),
}
SMALL = {"WINDOW_BYTES": 2000, "TILE_PIXELS": 9, "GRADIENT_PIXELS": 6, "PLANE_BYTES": 600}


@contextmanager
def choices(planes: bool, small: bool = False, kind: int = KINDS[0]) -> Iterator[None]:
    """Which kernels serve in the block, whether tiles are small, and the kind of processor."""
    kept = {name: getattr(direct, name)
            for name in (*SMALL, "_by_planes", "_gradient_by_planes")}
    if small:
        vars(direct).update(SMALL)
    direct._by_planes = direct._gradient_by_planes = lambda *sizes: planes
    limit(kind)
    try:
        yield
    finally:
        vars(direct).update(kept)
        limit(KINDS[0])


def limit(kind: int) -> None:
    """Kernels run as on that kind of processor, or as on the one there is if that has less."""
    direct._call("limit", np.dtype(np.float32), (), kind, 1)
    direct._forward_pass.cache_clear()  # sizes depend on it
    direct._adjoint_passes.cache_clear()


def results(
    case: Case, dtype: str, arrays: dict[str, np.ndarray], beta: float
) -> dict[str, np.ndarray]:
    """The output and the gradients of x and weight, each by itself, added to `arrays`' own."""
    x, w, g, bias = (arrays[name].astype(dtype) for name in ("x", "weight", "g", "bias"))
    out = {name: arrays[name].astype(dtype) for name in ("y", "dx", "dweight")}
    params, kernel = case.parameters(), case.weight[2:]
    convolution._conv2d_cpu(x, w, bias, out=out["y"], beta=beta, **params)
    convolution._grad_input_cpu(
        g, w, None, size=case.x[2:], out=out["dx"], beta=beta, **params)
    convolution._grad_weight_cpu(g, x, kernel=kernel, out=out["dweight"], beta=beta, **params)
    return out


def values(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Normal numbers for all arrays, and for what results are added to."""
    y = (case.x[0], case.weight[0], *case.geometry().out)
    shapes = {"x": case.x, "weight": case.weight, "bias": case.weight[:1], "g": y, "y": y,
              "dx": case.x, "dweight": case.weight}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def assert_close(
    case: Case, arrays: dict[str, np.ndarray], found: dict[str, np.ndarray],
    wanted: dict[str, np.ndarray], beta: float,
) -> None:
    """To as many roundings of the largest sum of absolute values as sums have terms at most."""
    sizes = results(case, "float64", {name: np.abs(a) for name, a in arrays.items()}, beta)
    taps = case.weight[1] * case.weight[2] * case.weight[3]
    terms = {"y": taps, "dx": taps * case.weight[0] // case.weight[1],
             "dweight": case.x[0] * arrays["g"][0, 0].size}
    for name, value in found.items():
        bound = (terms[name] + 3) * np.finfo(value.dtype).eps * sizes[name]
        assert (np.abs(value - wanted[name]) <= bound).all(), name


# -- a library given by its path -----------------------------------------------------------------


class _Call(ctypes.Structure):
    """As kernels/cpu/kernel.h has it."""

    _fields_ = [("arrays", ctypes.c_void_p * 16), ("sizes", ctypes.c_int64 * 24),
                ("numbers", ctypes.c_double * 16)]


class _Entry(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("run", ctypes.CFUNCTYPE(
        None, ctypes.POINTER(_Call), ctypes.c_int64, ctypes.c_int64))]


class Library:
    """The kernels of a library; items are given to them in ranges of `step`, from the last on."""

    def __init__(self, path: str, step: int | None = None) -> None:
        entries = (_Entry * 64).in_dll(ctypes.CDLL(path), "convolution")
        self.kernels: dict[str, Any] = {}
        for entry in entries:
            if not entry.name:
                break
            self.kernels[entry.name.decode()] = entry.run
        self.step = step

    def call(
        self, name: str, dtype: np.dtype, arrays: tuple[np.ndarray | None, ...], size: int,
        items: int,
    ) -> bool:
        """What `direct._call` does."""
        kernel = self.kernels[f"conv_{name}_{dtype.name}"]
        call = _Call()
        for i, array in enumerate(arrays):
            call.arrays[i] = None if array is None else array.ctypes.data
        call.sizes[0] = size
        step = self.step or items
        for begin in reversed(range(0, items, step)):
            kernel(ctypes.byref(call), begin, min(begin + step, items))
        return False

    @contextmanager
    def serving(self) -> Iterator[None]:
        """In the block direct convolution runs this library's kernels, in memory of their own."""
        kept = direct._call, direct._BUILT, direct.host
        direct._call, direct._BUILT = self.call, True
        direct.host = _Own
        try:
            yield
        finally:
            direct._call, direct._BUILT, direct.host = kept


class _Own:
    """A device whose workspaces are NumPy's: memory that ends where they end."""

    def workspace(self, elements: int, dtype: Any, count: int = 1) -> Scratch:
        return Scratch(np.empty((count, max(1, elements)), dtype))


def compare_all(path: str) -> None:
    """All cases with a library's kernels, against the products."""
    rng = np.random.default_rng(0)
    with Library(path, step=2).serving():
        for case in CASES.values():
            arrays = values(case, rng)
            with gt.settings.override(compiled=0):
                wanted = results(case, "float64", arrays, 1.0)
            for number, kind in enumerate(KINDS):
                for planes in (False, True):
                    with choices(planes, small=number % 2 == 0, kind=kind):
                        found = results(case, "float32" if planes else "float64", arrays, 1.0)
                    with gt.settings.override(compiled=0):
                        assert_close(case, arrays, found, wanted, 1.0)


if __name__ == "__main__":
    compare_all(sys.argv[1])
    print("right")
