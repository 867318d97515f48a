"""CUB's and Thrust's stand-ins on host memory: NaN, edges, what is destroyed, workspaces."""

from __future__ import annotations

import numpy as np
import pytest

from gtensor.hostcuda.libraries import cub, thrust
from gtensor.hostcuda.libraries.calls import Library

from .raw import call, close, values

ENTRIES = {
    name.split("Pv")[0].split("iPm")[0].lstrip("_Z0123456789"): (library, name)
    for library in (cub.library, thrust.library)
    for name in library.entries
}


def entry(start: str) -> tuple[Library, str]:
    """The function whose mangled name begins so."""
    return next(found for name, found in ENTRIES.items() if name.startswith(start))


def in_workspace(start: str, *arguments: object) -> None:
    """Asks for the size, then calls with a workspace of this size, which is written."""
    size = np.zeros(1, np.uint64)
    call(*entry(start), 0, size, *arguments)
    assert size[0] > 0
    workspace = np.zeros(int(size[0]), np.uint8)
    call(*entry(start), workspace, size, *arguments)
    assert workspace.all()


@pytest.mark.parametrize("number", range(13))
def test_reductions_of_every_type(number: int) -> None:
    dtype = cub.DTYPES[number]
    x = values(np.random.default_rng(number), (4, 9), dtype)
    for op, function in ((0, np.sum), (1, np.min), (2, np.max), (7, np.prod)):
        if op != 7:
            kind = np.float32 if dtype == np.float16 else dtype
            options = {"dtype": kind} if op == 0 else {}
            out = np.zeros(1, dtype)
            in_workspace("cub_device_reduce", x, out, x.size, 0, op, number)
            close(out, np.atleast_1d(function(x, **options)).astype(dtype))
        out, part = np.zeros(4, dtype), np.ascontiguousarray(x[:, :3])
        in_workspace("cub_device_segmented_reduce", part, out, 4, 3, 0, op, number)
        options = {"dtype": dtype} if op in (0, 7) else {}
        close(out, function(part, axis=1, **options))
    item, out = np.zeros(32, np.uint8), np.zeros(36, dtype)
    in_workspace("cub_device_reduce", x, item, x.size, 0, 4, number)
    assert item.view(np.int32)[0] == x.argmax()
    in_workspace("cub_device_scan", x, out, x.size, 0, 5, number)
    close(out, np.cumsum(x, dtype=np.float32 if dtype == np.float16 else dtype).astype(dtype))


def test_nan_wins_and_no_elements_give_the_initial_value() -> None:
    x, out = np.array([[1, np.nan, 3], [1, 2, 3]], np.float32), np.zeros(2, np.float32)
    for op, second in ((1, 1), (2, 3)):
        in_workspace("cub_device_segmented_reduce", x, out, 2, 3, 0, op, 9)
        assert np.isnan(out[0]) and out[1] == second
    for op, wanted in ((0, 0), (7, 1), (1, np.inf), (2, -np.inf)):
        in_workspace("cub_device_segmented_reduce", x, out, 2, 0, 0, op, 9)
        assert (out == wanted).all()


def test_the_last_edge_of_a_histogram_is_outside() -> None:
    x, counts = np.array([-1, 0, 0.5, 1, 1.5, 2, 3]), np.full(2, -1, np.int64)
    in_workspace("cub_device_histogram_range", x, counts, 3, np.array([0.0, 1, 2]), 7, 0, 10)
    assert counts.tolist() == [2, 2]
    whole, counts = np.array([-1, 0, 1, 1, 4, 5], np.int32), np.full(5, -1, np.int64)
    in_workspace("cub_device_histogram_even", whole, counts, 6, 0, 5, 6, 0, 4)
    assert counts.tolist() == [1, 2, 0, 0, 1]


def shape(*sizes: int) -> tuple[np.ndarray, np.ndarray]:
    """A std::vector<ptrdiff_t>, and what it points to."""
    inside = np.array(sizes, np.int64)
    start = inside.ctypes.data
    return np.array([start, start + inside.nbytes, start + inside.nbytes], np.uint64), inside


def test_sorts_are_stable_with_nan_last() -> None:
    x = np.array([[3, np.nan, 1, 3], [2, 2, 0, 2]], np.float32)
    for name in ("thrust_sort", "thrust_argsort"):
        data, keys, index = x.copy(), np.zeros((2, 4), np.uint64), np.zeros((2, 4), np.uint64)
        vector, _inside = shape(2, 4)
        first = (index,) if name == "thrust_argsort" else ()
        call(*entry(name), 9, *first, data, keys, vector, 0, 0)
        np.testing.assert_array_equal(data, np.sort(x, axis=1))
        assert (keys == [[0] * 4, [1] * 4]).all()
        if first:
            assert index.tolist() == [[2, 0, 3, 1], [2, 0, 1, 3]]
    index = np.zeros(4, np.uint64)
    call(*entry("thrust_lexsort"), 9, index, np.stack([x[0], x[1]]), 2, 4, 0, 0)
    assert index.tolist() == [2, 0, 3, 1]
