"""The functions of CUB in CuPy's module `cub`, by NumPy on the pointers.

Sources: CuPy 14.2's cupy_cub.cu (signatures, operators, initial values, handling of NaN) and CCCL's
documentation of DeviceReduce, DeviceSegmentedReduce, DeviceScan and DeviceHistogram. Called without
a workspace, a function returns the size that it needs. As on a GPU, the result is written in stream
order, and the workspace is overwritten.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gtensor.hostcuda.libraries.calls import Library, Traffic, enqueue, scalar, store, view

library = Library("cupy/cuda/cub")
function = library.function

# cupy/type_dispatcher.cuh; half precision adds in float32.
DTYPES = tuple(
    np.dtype(name)
    for name in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "?")
)
SUM, MIN, MAX, ARGMIN, ARGMAX, CUMSUM, CUMPROD, PROD = range(8)  # cupy_cub.h
WORKSPACE = 1024


def wide(dtype: np.dtype) -> np.dtype:
    return np.dtype("f4") if dtype == np.float16 else dtype


def no_values(op: int, dtype: np.dtype) -> Any:
    """The initial value of a reduction, which is its result for no elements."""
    if op in (SUM, PROD):
        return int(op == PROD)
    if dtype.kind == "c":
        return dtype.type(complex(np.inf, np.inf) * (1 if op == MIN else -1))
    if dtype.kind == "f":
        return np.inf if op == MIN else -np.inf
    limits = np.iinfo(dtype) if dtype.kind != "b" else None
    if limits is None:
        return op == MIN
    return limits.max if op == MIN else limits.min


REDUCTIONS: dict[int, Callable] = {SUM: np.sum, PROD: np.prod, MIN: np.min, MAX: np.max}


def reduced(x: np.ndarray, op: int) -> np.ndarray:
    """Reduces the last axis; NaN wins in min and max, complex numbers compare by their parts."""
    if x.shape[-1] == 0:
        return np.full(x.shape[:-1], no_values(op, x.dtype), x.dtype)
    if op in (SUM, PROD):
        return np.asarray(REDUCTIONS[op](x, axis=-1, dtype=wide(x.dtype))).astype(x.dtype)
    return np.asarray(REDUCTIONS[op](x, axis=-1))


def queued(
    stream: int, name: str, workspace: int, size: int, dtype: int,
    work: Callable[[np.dtype], None], moved: tuple[int, int] = (0, 0),
) -> None:  # fmt: skip
    """Says the size of the workspace if there is none; else queues the work, which spoils it.

    `moved` are the elements that it reads and writes.
    """
    if not workspace:
        store(size, WORKSPACE, "u8")
        return
    given = scalar(size, "u8")

    def run() -> None:
        if given < WORKSPACE:
            raise ValueError(f"{name} needs {WORKSPACE} bytes of workspace, got {given}")
        view(workspace, (WORKSPACE,), "u1")[...] = 0xA5
        work(DTYPES[dtype])

    nbytes = DTYPES[dtype].itemsize
    enqueue(stream, name, run, 0, Traffic(nbytes * moved[0], nbytes * moved[1]))


def sized(mangled: str, letters: str) -> None:
    function(mangled, letters, result="z")(lambda *_: WORKSPACE)


@function("_Z17cub_device_reducePvRmS_S_iP11CUstream_stii", "pppp i p ii", result="v")
def reduce(
    workspace: int, size: int, x: int, y: int, n: int, stream: int, op: int, dtype: int
) -> None:
    def work(kind: np.dtype) -> None:
        values = view(x, (n,), kind)
        if op not in (ARGMIN, ARGMAX):
            store(y, reduced(values, op), kind)
            return
        # cub::KeyValuePair<int, T>: the value is aligned as CuPy's complex types are.
        item = kind.itemsize
        aligned = item if kind.kind != "c" else item // 2
        offset = max(4, aligned)
        place = int((np.argmin if op == ARGMIN else np.argmax)(values))
        store(y, place, "i4")
        store(y + offset, values[place], kind)

    queued(stream, "cub::DeviceReduce", workspace, size, dtype, work, (n, 1))


sized("_Z36cub_device_reduce_get_workspace_sizePvS_iP11CUstream_stii", "pp i p ii")


@function("_Z27cub_device_segmented_reducePvRmS_S_iiP11CUstream_stii", "pppp ii p ii", result="v")
def segmented_reduce(
    workspace: int, size: int, x: int, y: int, segments: int, length: int, stream: int, op: int,
    dtype: int,
) -> None:  # fmt: skip
    def work(kind: np.dtype) -> None:
        view(y, (segments,), kind)[...] = reduced(view(x, (segments, length), kind), op)

    queued(stream, "cub::DeviceSegmentedReduce", workspace, size, dtype, work,
           (segments * length, segments))


sized("_Z46cub_device_segmented_reduce_get_workspace_sizePvS_iiP11CUstream_stii", "pp ii p ii")


@function("_Z15cub_device_scanPvRmS_S_iP11CUstream_stii", "pppp i p ii", result="v")
def scan(
    workspace: int, size: int, x: int, y: int, n: int, stream: int, op: int, dtype: int
) -> None:
    def work(kind: np.dtype) -> None:
        scanned = np.cumsum if op == CUMSUM else np.cumprod
        view(y, (n,), kind)[...] = scanned(view(x, (n,), kind), dtype=wide(kind)).astype(kind)

    queued(stream, "cub::DeviceScan", workspace, size, dtype, work, (n, n))


sized("_Z34cub_device_scan_get_workspace_sizePvS_iP11CUstream_stii", "pp i p ii")


def counted(y: int, places: np.ndarray, inside: np.ndarray, count: int) -> None:
    view(y, (count,), "i8")[...] = np.bincount(places[inside], minlength=count)[:count]


@function("_Z26cub_device_histogram_rangePvRmS_S_iS_mP11CUstream_sti", "pppp i p z p i", result="v")
def histogram_range(
    workspace: int, size: int, x: int, y: int, levels: int, bins: int, n: int, stream: int,
    dtype: int,
) -> None:  # fmt: skip
    """HistogramRange: sample i is in bin j if levels[j] <= sample < levels[j + 1]."""

    def work(kind: np.dtype) -> None:
        edges = view(bins, (levels,), "f8" if kind.kind in "iub" else kind)
        places = np.searchsorted(edges, view(x, (n,), kind), side="right") - 1
        counted(y, places, (places >= 0) & (places < levels - 1), levels - 1)

    queued(stream, "cub::DeviceHistogram", workspace, size, dtype, work)


sized("_Z45cub_device_histogram_range_get_workspace_sizePvS_iS_mP11CUstream_sti", "pp i p z p i")


@function("_Z25cub_device_histogram_evenPvRmS_S_iiimP11CUstream_sti", "pppp iii z p i", result="v")
def histogram_even(
    workspace: int, size: int, x: int, y: int, levels: int, lower: int, upper: int, n: int,
    stream: int, dtype: int,
) -> None:  # fmt: skip
    """HistogramEven: equal bins over [lower, upper), samples outside are left out."""

    def work(kind: np.dtype) -> None:
        samples = view(x, (n,), kind if kind.kind in "iub" else "i4")
        inside = (samples >= lower) & (samples < upper)
        offset = samples[inside].astype("i8") - lower
        places = offset * (levels - 1) // max(1, upper - lower)
        counted(y, places, np.ones(len(places), bool), levels - 1)

    queued(stream, "cub::DeviceHistogram", workspace, size, dtype, work)


sized("_Z44cub_device_histogram_even_get_workspace_sizePvS_iiimP11CUstream_sti", "pp iii z p i")
