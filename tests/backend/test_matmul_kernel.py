"""The launcher of the library's own product: strides, axes, what is refused, what a call costs.

The values of the kernels are tested in tests/kernels (cases_matmul.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gtensor import hostcuda
from gtensor.backend import get_device
from gtensor.backend.matmul_kernel import matmul_into, plan
from gtensor.testing.compare import close

pytestmark = pytest.mark.gpu
on_host = pytest.mark.host_cuda

TOLERANCE = (1e-5, 1e-5)


@pytest.fixture
def xp() -> Any:
    return get_device("cuda").xp


def numbers(xp: Any, *shape: int, dtype: Any = np.float32) -> Any:
    return xp.asarray(np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype))


def check(out: Any, wanted: Any) -> None:
    close("the product", get_device("cuda").to_numpy(out), wanted, TOLERANCE)


def test_strides_may_be_negative_zero_or_overlap(xp):
    a, b = numbers(xp, 40, 19), numbers(xp, 19, 6)
    out = xp.full((40, 6), np.nan, np.float32)
    for left in (a[::-1], a[:, ::-1], a[::-2, ::-1], xp.broadcast_to(a[:1], (40, 19)),
                 xp.broadcast_to(a[:, :1], (40, 19)),
                 xp.lib.stride_tricks.as_strided(a, (40, 19), (4, 4)), a.T[:, :0:-1].T):
        for right in (b, b[::-1], b[:, ::-1], xp.broadcast_to(b[:, 0][:, None], (19, 6))):
            into = out[:len(left)][::-1]  # out may go backwards, too
            matmul_into(left, right, into)
            check(into, left.get() @ right.get())


def test_batch_axes_broadcast_and_are_one_launch(xp):
    a, b = numbers(xp, 2, 3, 1, 5, 4), numbers(xp, 3, 2, 4, 7)
    whole = xp.zeros((2, 3, 2, 7, 5 + 2), np.float32)
    out = whole[..., 1:6].swapaxes(-1, -2)
    matmul_into(a, b, out)
    check(out, a.get() @ b.get())
    whole[..., 1:6] = 0
    assert not whole.any()
    many = numbers(xp, *(2,) * 7, 3, 4)  # axes that merge with others in no array
    apart = many.transpose(6, 5, 4, 3, 2, 1, 0, 7, 8)
    matmul_into(apart[0], many[0].swapaxes(-1, -2), out := xp.empty((2,) * 6 + (3, 3), np.float32))
    check(out, apart[0].get() @ many[0].get().swapaxes(-1, -2))
    matmul_into(apart, many.swapaxes(-1, -2), out := xp.empty((2,) * 7 + (3, 3), np.float32))
    check(out, apart.get() @ many.get().swapaxes(-1, -2))  # seven axes: two launches


def test_a_batch_times_one_matrix_is_one_product_of_all_rows():
    dtype = np.dtype(np.float32)
    single = ((3, 4), (16, 4), dtype)
    for m, batched in ((5, True), (1, True), (5, False), (1, False)):
        b = ((6, 3, 4), (48, 16, 4), dtype) if batched else single
        found = plan(((6, m, 3), (m * 12, 12, 4), dtype), b,
                     ((6, m, 4), (m * 16, 16, 4), dtype), None)
        assert found is not None
        lengths = np.frombuffer(found.axes.tobytes(), np.int64).reshape(-1, 5)[:, 0]
        assert lengths[0] == (m if batched else 6 * m) and lengths[3] == (6 if batched else 1)


def test_tiles_are_large_where_they_are_many_and_full():
    dtype = np.dtype(np.float32)
    for lead, m, n, kernel in ((1, 2048, 2048, ""), (1, 1024, 1024, "_small"),
                               (1, 32, 32, "_small"), (500, 32, 32, "_small"), (500, 65, 128, ""),
                               (9999, 1, 1, "_small")):
        shapes = ((lead, m, 4), (lead, 4, n), (lead, m, n))
        found = plan(*((shape, np.empty(shape, dtype).strides, dtype) for shape in shapes), None)
        assert found is not None and found.kernel.function == f"matmul_into{kernel}", (lead, m, n)
        tiles = np.prod(found.grid)
        assert found.tiles == tiles and found.block == (64 if kernel else 256,)


def test_offsets_may_need_more_than_32_bits(xp):
    """The rows, the columns, the result's rows: 2^31 elements apart."""
    whole, far = xp.empty(2**32 + 128, np.uint8), 2**32
    values = np.arange(10, dtype=np.float16).reshape(2, 5)
    rows, columns, out = (
        xp.ndarray(shape, np.float16, whole.data + start, strides) for shape, start, strides in (
            ((2, 5), 0, (far, 2)), ((5, 2), 32, (2, far)), ((2, 2), 64, (far, 2))))
    rows[...], columns[...] = xp.asarray(values), xp.asarray(values.T)
    matmul_into(rows, columns, out)
    check(out, values @ values.T)
    matmul_into(rows.T, columns.T, wide := xp.empty((5, 5), np.float32))
    check(wide, values.T @ values)


def test_an_empty_inner_axis_leaves_what_is_added(xp):
    a, b, bias = xp.empty((3, 0), np.float32), xp.empty((0, 4), np.float32), numbers(xp, 4)
    out = xp.full((3, 4), np.nan, np.float32)
    matmul_into(a, b, out, alpha=np.nan)
    check(out, np.zeros((3, 4)))
    matmul_into(a, b, out := numbers(xp, 3, 4), bias=bias, alpha=np.inf, beta=2.0)
    check(out, bias.get() + 2 * numbers(xp, 3, 4).get())


@on_host
def test_a_call_is_one_launch_and_copies_nothing(xp):
    a, b, out = numbers(xp, 2, 3, 5, 4), numbers(xp, 3, 4, 7), xp.empty((2, 3, 5, 7), np.float32)
    empty = xp.empty((0, 7), np.float32)
    for half in (a, a[..., ::-1, ::-1], a.swapaxes(0, 1).copy().swapaxes(0, 1)):
        matmul_into(half, b, out)
        hostcuda.reset_counters()
        matmul_into(half, b, out)
        found = hostcuda.counters()
        assert sum(found.kernels.values()) == 1
        assert found.library == found.copies == found.memsets == found.other == {}
    hostcuda.reset_counters()
    matmul_into(xp.empty((0, 4), np.float32), b[0], empty)
    assert hostcuda.counters().kernels == {}


def test_what_is_refused_is_named_before_anything_is_changed(xp):
    a, b, out = numbers(xp, 3, 4), numbers(xp, 4, 5), xp.zeros((3, 5), np.float32)
    half = a.astype(np.float16)
    refused: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (TypeError, "of float32 and float16 into float32; wanted one", (a, half.T, out), {}),
        (TypeError, "of float16 and float16 into float64; wanted one",
         (half, half.T, xp.zeros((3, 3))), {}),
        (TypeError, "of int64 and int64 into int64; wanted one floating",
         (*[xp.ones((2, 2), np.int64)] * 3,), {}),
        (TypeError, "a bias of float64; wanted float32", (a, b, out), {"bias": xp.ones(5)}),
        (TypeError, "alpha 1j and beta 0.0; wanted real numbers", (a, b, out), {"alpha": 1j}),
        (ValueError, r"an out of shape \(5, 3\); wanted \(3, 5\)", (a, b, out.T), {}),
        (ValueError, r"of shapes \(3, 4\) and \(3, 4\); wanted", (a, a, out), {}),
        (ValueError, r"of shapes \(2, 3, 4\) and \(3, 4, 5\); wanted",
         (numbers(xp, 2, 3, 4), numbers(xp, 3, 4, 5), out), {}),
        (ValueError, r"of shapes \(4,\) and \(4, 5\); wanted", (a[0], b, out[0]), {}),
        (ValueError, r"a bias of shape \(3,\); wanted \(5,\)", (a, b, out),
         {"bias": xp.ones(3, np.float32)}),
    ]
    for error, match, arrays, options in refused:
        with pytest.raises(error, match=match):
            matmul_into(*arrays, **options)
    assert not out.any()
    bytes_ = xp.zeros(100, np.uint8)
    odd = xp.ndarray((3, 4), np.float32, bytes_.data, (18, 4))
    with pytest.raises(ValueError, match=r"strides \(18, 4\) with elements of 4 bytes; wanted who"):
        matmul_into(odd, b, out)
