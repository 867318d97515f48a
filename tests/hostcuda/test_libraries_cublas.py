"""The cuBLAS stand-in: values against NumPy in float64, refusals against NVIDIA's tables."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from gtensor import hostcuda
from gtensor.hostcuda.libraries import calls, cublas
from gtensor.hostcuda.libraries.calls import BFLOAT16, runtime

from .raw import DTYPES, PAD, blas, call, close, loaded, op, stored, values

LIBRARY = cublas.library
TYPES = pytest.mark.parametrize("t", "SDCZ")
INVALID, NOT_SUPPORTED = cublas.INVALID_VALUE, cublas.NOT_SUPPORTED


def number(value: complex, dtype: Any) -> np.ndarray:
    return np.array([value]).astype(dtype)


def product(
    rng: Any, t: str, transa: int, transb: int, m: int, n: int, k: int, alpha: complex,
    beta: complex, more: int = 3
) -> None:
    """One gemm with padded leading dimensions; with beta 0, C is full of NaN before."""
    dtype = DTYPES[t]
    a = values(rng, (m, k) if transa == 0 else (k, m), dtype)
    b = values(rng, (k, n) if transb == 0 else (n, k), dtype)
    c = values(rng, (m, n), dtype)
    lda, ldb, ldc = (max(1, x.shape[0]) + more for x in (a, b, c))
    wanted = alpha * (op(transa, a).astype("c16") @ op(transb, b)) + beta * c
    memory = stored(np.full_like(c, np.nan) if beta == 0 else c, ldc)
    with blas() as handle:
        status = call(LIBRARY, f"cublas{t}gemm_v2", handle, transa, transb, m, n, k,
                      number(alpha, dtype), stored(a, lda), lda, stored(b, ldb), ldb,
                      number(beta, dtype), memory, ldc)
    assert status == 0
    close(loaded(memory, m, n), wanted if t in "CZ" else wanted.real)


@TYPES
def test_gemm_in_every_transposition(t: str) -> None:
    rng = np.random.default_rng(1)
    for transa, transb in itertools.product(range(3), repeat=2):
        product(rng, t, transa, transb, 5, 3, 7, 1.5, 0)
        product(rng, t, transa, transb, 17, 9, 4, -0.5, 2)


@TYPES
def test_gemm_of_one_row_no_rows_and_no_sum(t: str) -> None:
    rng = np.random.default_rng(2)
    for shape in itertools.product((0, 1, 2), repeat=3):
        for beta in (0, 1, -2):
            product(rng, t, 0, 1, *shape, 1, beta, more=0)


@TYPES
def test_beta_zero_does_not_read_c(t: str) -> None:
    """In all routines that have a beta; C and y are full of NaN."""
    rng, dtype = np.random.default_rng(3), DTYPES[t]
    product(rng, t, 0, 0, 33, 33, 33, 1, 0)
    a, x = values(rng, (6, 4), dtype), values(rng, (6,), dtype)
    one, zero = number(1, dtype), number(0, dtype)
    y, c = np.full(4, np.nan, dtype), np.full((4, 4), np.nan, dtype)
    with blas() as handle:
        assert (
            call(LIBRARY, f"cublas{t}gemv_v2", handle, 1, 6, 4, one, stored(a, 6), 6, x, 1, zero, y,
                 1)
            == 0
        )
        assert (
            call(LIBRARY, f"cublas{t}syrk_v2", handle, 1, 1, 4, 6, one, stored(a, 6), 6, zero, c, 4)
            == 0
        )
    close(y, a.T @ x)
    close(np.triu(c.T), np.triu(a.T @ a))
    assert np.isnan(c.T[np.tril_indices(4, -1)]).all()


# cublasGemmEx in NVIDIA's documentation: compute types -> type of A and B, of C, scale.
FAST = [("f4", "f4", "f4"), ("c8", "c8", "c8")]
ROWS: dict[tuple[int, ...], list[tuple[str, str, str]]] = {
    (64, 65): [("f2", "f2", "f2")],
    (68, 69): [
        ("bf", "bf", "f4"),
        ("f2", "f2", "f4"),
        ("i1", "f4", "f4"),
        ("bf", "f4", "f4"),
        ("f2", "f4", "f4"),
        *FAST,
    ],
    (74, 75, 77, 78): FAST,
    (70, 71): [("f8", "f8", "f8"), ("c16", "c16", "c16")],
    (72, 73): [("i1", "i4", "i4")],
}
NUMBERS = {"f4": 0, "f8": 1, "f2": 2, "i1": 3, "c8": 4, "c16": 5, "i4": 10, "bf": 14}
ALLOWED = {
    compute: {(NUMBERS[a], NUMBERS[c]): NUMBERS[scale] for a, c, scale in rows}
    for computes, rows in ROWS.items()
    for compute in computes
}


@pytest.mark.parametrize("compute", sorted(ALLOWED))
def test_gemm_ex_takes_nvidias_rows_and_no_other(compute: int) -> None:
    rng = np.random.default_rng(compute)
    m, n, k, ld = 5, 3, 7, 8
    for source, target in itertools.product(cublas.NUMPY, repeat=2):
        row = ALLOWED[compute].get((source, target))
        a = values(rng, (m, k), cublas.NUMPY[source])
        b = values(rng, (n, k), cublas.NUMPY[source])
        c = stored(values(rng, (m, n), cublas.NUMPY[target]), ld)
        before = loaded(c, m, n).copy()
        scale = np.float64 if row is None else cublas.NUMPY[row]
        with blas() as handle:
            status = call(LIBRARY, "cublasGemmEx", handle, 0, 1, m, n, k, number(2, scale),
                          stored(a, ld), source, ld, stored(b, ld), source, ld, number(3, scale), c,
                          target, ld, compute, -1)
        assert status == (NOT_SUPPORTED if row is None else 0), (source, target)
        wanted = (
            before
            if row is None
            else (2 * (a.astype("c16") @ b.astype("c16").T) + 3 * before.astype("c16"))
        )
        close(loaded(c, m, n), np.asarray(wanted))


def test_bfloat16_sums_are_taken_in_float32() -> None:
    """4096 products of 1 sum to 4096; a sum in bfloat16 would stop at 256."""
    a = np.ones((1, 4096), BFLOAT16)
    c = np.zeros((1, 1), BFLOAT16)
    with blas() as handle:
        assert (
            call(LIBRARY, "cublasGemmEx", handle, 0, 0, 1, 1, 4096, number(1, "f4"), a, 14, 1, a,
                 14, 4096, number(0, "f4"), c, 14, 1, 68, -1)
            == 0
        )
    assert c[0, 0] == 4096


BAD = {  # what is wrong -> positions and values in the arguments of gemm(3, 4, 5)
    "m < 0": {3: -1},
    "n < 0": {4: -1},
    "k < 0": {5: -1},
    "no such operation": {1: 3},
    "lda < m": {8: 2},
    "ldb < k": {10: 4},
    "ldc < m": {13: 2},
    "lda 0 of no rows": {3: 0, 8: 0},
    "ldb 0 of no sum": {5: 0, 10: 0},
    "no alpha": {6: 0},
    "no beta": {11: 0},
}


@pytest.mark.parametrize("name", BAD)
def test_gemm_refuses_bad_arguments_and_writes_nothing(name: str) -> None:
    a, c = np.ones((9, 9)), np.full((9, 9), PAD)
    one = number(1, "f8")
    with blas() as handle:
        arguments = [handle, 0, 0, 3, 4, 5, one, a, 9, a, 9, one, c, 9]
        for place, value in BAD[name].items():
            arguments[place] = value
        assert call(LIBRARY, "cublasDgemm_v2", *arguments) == INVALID
    assert (c == PAD).all()


def test_the_operands_rows_follow_the_transposition() -> None:
    """A transposed operand's leading dimension is checked against its own rows."""
    a, c, one = np.ones((9, 9)), np.ones((9, 9)), number(1, "f8")
    with blas() as handle:
        for place, trans, ld, status in ((8, 0, 5, 0), (8, 1, 4, INVALID), (8, 1, 5, 0),
                                         (10, 0, 4, INVALID), (10, 1, 4, 0)):
            arguments = [handle, 0, 0, 3, 4, 5, one, a, 9, a, 9, one, c, 9]
            arguments[1 if place == 8 else 2] = trans
            arguments[place] = ld
            assert call(LIBRARY, "cublasDgemm_v2", *arguments) == status, (place, trans, ld)


def test_handles_streams_and_workspaces() -> None:
    memory = np.zeros(4096, np.uint8)
    start = -memory.ctypes.data % 256
    workspace = memory[start : start + 512]
    a, one = np.ones((2, 2)), number(1, "f8")
    gemm = (0, 0, 2, 2, 2, one, a, 2, a, 2, one, a, 2)
    assert call(LIBRARY, "cublasDgemm_v2", 1, *gemm) == cublas.NOT_INITIALIZED
    with blas() as handle:
        assert (
            call(LIBRARY, "cublasSetWorkspace_v2", handle, workspace.ctypes.data + 8, 64) == INVALID
        )
        assert call(LIBRARY, "cublasSetWorkspace_v2", handle, workspace, 512) == 0
        assert call(LIBRARY, "cublasDgemm_v2", handle, *gemm) == 0
        assert workspace.any(), "a product may write its workspace, so the stand-in does"
        workspace[:] = 0
        assert call(LIBRARY, "cublasSetStream_v2", handle, 0) == 0
        assert call(LIBRARY, "cublasDgemm_v2", handle, *gemm) == 0
        assert not workspace.any(), "cublasSetStream resets the workspace"
        assert call(LIBRARY, "cublasSetMathMode", handle, 3 | 16) == 0
        assert call(LIBRARY, "cublasSetMathMode", handle, 5) == INVALID
        assert call(LIBRARY, "cublasSetPointerMode_v2", handle, 2) == INVALID


def test_device_scalars_are_read_in_the_queue_and_host_scalars_before() -> None:
    queue: list[Any] = []
    later = patch.object(calls, "enqueue", lambda stream, name, work, *rest: queue.append(work))
    x = np.ones(3)
    for mode, wanted in ((0, 2.0), (1, 5.0)):
        alpha, y = number(2, "f8"), np.zeros(3)
        with blas(mode) as handle, later:
            assert call(LIBRARY, "cublasDaxpy_v2", handle, 3, alpha, x, 1, y, 1) == 0
        alpha[0] = 5
        assert not y.any()
        queue.pop()()
        assert (y == wanted).all()


def test_a_result_on_the_host_waits_and_so_forbids_capture() -> None:
    x, result = np.ones(3), np.zeros(1)
    for mode, status in ((0, cublas.EXECUTION_FAILED), (1, 0)):
        with blas(mode) as handle, patch.object(runtime, "is_capturing", lambda stream: True):
            assert call(LIBRARY, "cublasDdot_v2", handle, 3, x, 1, x, 1, result) == status
        assert result[0] == (0 if status else 3)


def test_a_handle_works_on_its_device_only() -> None:
    x, alpha = np.ones(3), number(2, "f8")
    with blas() as handle, patch.object(runtime, "device", lambda: 1):
        assert call(LIBRARY, "cublasDscal_v2", handle, 3, alpha, x, 1) == cublas.EXECUTION_FAILED
    assert (x == 1).all()


@TYPES
def test_strided_and_pointer_batches(t: str) -> None:
    rng, dtype, m, n, k, count = np.random.default_rng(4), DTYPES[t], 3, 5, 4, 3
    a, b = values(rng, (count, k, m), dtype), values(rng, (1, n, k), dtype)
    wanted = np.stack([2 * (x.T @ b[0].T) for x in a])
    one, zero = number(2, dtype), number(0, dtype)
    strided, listed = (np.full((count, n, m), np.nan, dtype) for _ in range(2))
    rows = [np.array([x.ctypes.data for x in xs], np.uint64)
            for xs in (a, [b[0]] * count, listed)]
    with blas() as handle:
        head = (handle, 0, 0, m, n, k, one)

        def by_strides(apart: int, batches: int) -> int:
            return call(LIBRARY, f"cublas{t}gemmStridedBatched", *head, a, m, m * k, b, k, 0, zero,
                        strided, m, apart, batches)

        assert by_strides(m * n, count) == 0
        assert call(LIBRARY, f"cublas{t}gemmBatched", *head, rows[0], m, rows[1], k, zero, rows[2],
                    m, count) == 0
        assert by_strides(0, count) == INVALID, "the results overlap"
        assert by_strides(m * n, -1) == INVALID
    close(strided.transpose(0, 2, 1), wanted)
    close(listed.transpose(0, 2, 1), wanted)


def batch_of(
    dtype: Any, compute: int, offset: int = 0, which: int = 0, table: int = 0, mode: int = 0,
    name: str = "cublasGemmBatchedEx"
) -> tuple[int, bool]:
    """The status of a product of two, and whether its values are right.

    One matrix of an operand lies `offset` bytes behind a multiple of 16, its array of addresses
    `table` bytes.
    """
    rng, m, count = np.random.default_rng(), 8, 2
    kind = {value: key for key, value in cublas.NUMPY.items()}.get(
        "f2" if dtype == np.float16 else "f4" if dtype == np.float32 else dtype)
    matrices, tables, kept = [], [], []
    for place in range(3):
        parts = []
        for index in range(count):
            memory = np.zeros(m * m * np.dtype(dtype).itemsize + 64, np.uint8)
            begin = -memory.ctypes.data % 16 + (offset if (place, index) == (which, 1) else 0)
            kept.append(memory)
            part = memory[begin:begin + m * m * np.dtype(dtype).itemsize].view(dtype).reshape(m, m)
            part[...] = values(rng, (m, m), dtype)
            parts.append(part)
        room = np.zeros(16, np.uint64).view(np.uint8)
        begin = -room.ctypes.data % 16 + (table if place == which else 0)
        rows = room[begin:begin + 8 * count].view(np.uint64)
        rows[...] = [part.ctypes.data for part in parts]
        kept.append(room)
        matrices.append(parts)
        tables.append(rows)
    scale, wide = np.float32, np.float64
    one, zero = number(1, scale), number(0, scale)
    with blas() as handle:
        assert call(LIBRARY, "cublasSetMathMode", handle, mode) == 0
        if name == "cublasSgemmBatched":
            status = call(LIBRARY, name, handle, 0, 0, m, m, m, one, tables[0], m, tables[1], m,
                          zero, tables[2], m, count)
        else:
            status = call(LIBRARY, name, handle, 0, 0, m, m, m, one, tables[0], kind, m, tables[1],
                          kind, m, zero, tables[2], kind, m, count, compute, -1)
    wanted = [b.astype(wide) @ a.astype(wide) for a, b in zip(*matrices[:2], strict=True)]
    right = all(np.allclose(c.astype(wide), w, rtol=0, atol=0.1)
                for c, w in zip(matrices[2], wanted, strict=True))
    return status, right


@pytest.mark.parametrize("which", range(3))
def test_halves_and_tf32_by_addresses_are_aligned_to_sixteen_bytes(
    which: int, faults: list[int]
) -> None:
    """cublasGemmBatchedEx reads addresses on the device, so misaligned ones fault there."""
    for dtype, compute, mode, strict in (
        (np.float16, 68, 0, True), (BFLOAT16, 68, 0, True), (np.float32, 77, 0, True),
        (np.float32, 74, 0, True), (np.float32, 68, 3, True), (np.float32, 68, 3 | 16, True),
        (np.float32, 68, 0, False), (np.float32, 69, 0, False),
    ):
        for offset in (0, 4, 8, 16):
            faults.clear()
            status, right = batch_of(dtype, compute, offset, which, mode=mode)
            assert status == 0
            wrong = strict and offset % 16 != 0
            assert (faults, right) == ([716] if wrong else [], not wrong), (dtype, compute, offset)
    for mode in (0, 3):
        faults.clear()
        batch_of(np.float32, 68, 8, which, mode=mode, name="cublasSgemmBatched")
        assert faults == [716] * bool(mode), "only in a fast math mode"
    faults.clear()
    assert batch_of(np.float32, 68, 2, which) == (0, False)
    assert faults == [716], "not at a whole element"


@pytest.mark.parametrize("which", range(3))
def test_an_array_of_addresses_begins_at_a_multiple_of_sixteen_bytes(which: int) -> None:
    for table, status in ((0, 0), (8, NOT_SUPPORTED), (16, 0), (24, NOT_SUPPORTED)):
        assert batch_of(np.float32, 68, which=which, table=table) == (status, not status)


def test_integer_products_need_multiples_of_four() -> None:
    a, c, one = np.ones((8, 8), np.int8), np.zeros((8, 8), np.int32), number(1, "i4")
    with blas() as handle:
        for ld, status in ((8, 0), (7, NOT_SUPPORTED)):
            assert call(LIBRARY, "cublasGemmEx", handle, 0, 0, 4, 4, 4, one, a, 3, ld, a, 3, 8,
                        one, c, 10, 8, 72, -1) == status


@TYPES
def test_vectors(t: str) -> None:
    """Level 1 with steps of 2 and -1."""
    rng, dtype = np.random.default_rng(5), DTYPES[t]
    low, real = t.lower(), np.zeros(1, dtype).real.dtype
    x, y = values(rng, (10,), dtype), values(rng, (5,), dtype)
    short, back = x[::2], y[::-1]
    spelled = {"S": "S", "D": "D", "C": "Sc", "Z": "Dz"}[t]
    sizes = np.abs(short.real) + np.abs(short.imag)
    with blas() as handle:
        found, place, size = np.zeros(1, dtype), np.zeros(1, np.int32), np.zeros(1, real)
        for ending, function in (("u", np.dot), ("c", np.vdot)) if t in "CZ" else (("", np.dot),):
            assert call(LIBRARY, f"cublas{t}dot{ending}_v2", handle, 5, x, 2, y, -1, found) == 0
            close(found, function(short, back))
        for name, wanted in (("asum", sizes.sum()), ("nrm2", np.linalg.norm(short))):
            assert call(LIBRARY, f"cublas{spelled}{name}_v2", handle, 5, x, 2, size) == 0
            close(size, wanted)
        for name, index in (("amax", sizes.argmax()), ("amin", sizes.argmin())):
            assert call(LIBRARY, f"cublasI{low}{name}_v2", handle, 5, x, 2, place) == 0
            assert place[0] == index + 1
            assert call(LIBRARY, f"cublasI{low}{name}_v2", handle, 0, x, 2, place) == 0
            assert place[0] == 0
        wanted = y.copy()
        wanted[::-1] += dtype(3) * short
        assert call(LIBRARY, f"cublas{t}axpy_v2", handle, 5, number(3, dtype), x, 2, y, -1) == 0
        close(y, wanted)
        wanted = x.copy()
        wanted[::2] *= dtype(-2)
        assert call(LIBRARY, f"cublas{t}scal_v2", handle, 5, number(-2, dtype), x, 2) == 0
        close(x, wanted)


@TYPES
def test_matrices_and_vectors(t: str) -> None:
    """gemv, ger, geam, dgmm, trsm."""
    rng, dtype, ld = np.random.default_rng(6), DTYPES[t], 7
    a, b = values(rng, (5, 3), dtype), values(rng, (3, 5), dtype)
    x, y = values(rng, (6,), dtype), values(rng, (5,), dtype)
    one, two = number(1, dtype), number(-2, dtype)
    with blas() as handle:
        for trans in range(3):
            n = 5 if trans == 0 else 3
            out = np.resize(y, n)
            wanted = op(trans, a) @ x[: 8 - n] - 2 * out
            memory = out.copy()
            assert (
                call(LIBRARY, f"cublas{t}gemv_v2", handle, trans, 5, 3, one, stored(a, ld), ld, x,
                     1, two, memory, 1)
                == 0
            )
            close(memory, wanted)
            assert (
                call(LIBRARY, f"cublas{t}gemv_v2", handle, trans, 5, 3, one, stored(a, ld), ld, x,
                     0, two, memory, 1)
                == INVALID
            )
        for ending in ("geru", "gerc") if t in "CZ" else ("ger",):
            memory = stored(a, ld)
            second = x[:3].conj() if ending == "gerc" else x[:3]
            assert (
                call(LIBRARY, f"cublas{t}{ending}_v2", handle, 5, 3, two, y, 1, x, 1, memory, ld)
                == 0
            )
            close(loaded(memory, 5, 3), a - 2 * np.outer(y, second))
        memory = np.full((3, ld), PAD, dtype)
        assert (
            call(LIBRARY, f"cublas{t}geam", handle, 0, 2, 5, 3, one, stored(a, ld), ld, two,
                 stored(b, 4), 4, memory, ld)
            == 0
        )
        close(loaded(memory, 5, 3), a - 2 * op(2, b))
        assert (
            call(LIBRARY, f"cublas{t}geam", handle, 0, 2, 5, 3, one, memory, ld, two, memory, ld,
                 memory, ld)
            == INVALID
        ), "in place only without a transposition"
        for side, diagonal in ((0, y), (1, x[:3])):
            memory = np.full((3, ld), PAD, dtype)
            assert (
                call(LIBRARY, f"cublas{t}dgmm", handle, side, 5, 3, stored(a, ld), ld, diagonal, 1,
                     memory, ld)
                == 0
            )
            wanted = np.diag(diagonal) @ a if side == 0 else a @ np.diag(diagonal)
            close(loaded(memory, 5, 3), wanted)


@TYPES
def test_triangular_solves_in_every_form(t: str) -> None:
    rng, dtype = np.random.default_rng(7), DTYPES[t]
    b = values(rng, (4, 3), dtype)
    with blas() as handle:
        for side, uplo, trans, unit in itertools.product((0, 1), (0, 1), (0, 1, 2), (0, 1)):
            order = 4 if side == 0 else 3
            a = values(rng, (order, order), dtype) + 4 * np.eye(order, dtype=dtype)
            triangle = (np.tril if uplo == 0 else np.triu)(a)
            if unit:
                np.fill_diagonal(triangle, 1)
            memory = stored(b, 6)
            assert (
                call(LIBRARY, f"cublas{t}trsm_v2", handle, side, uplo, trans, unit, 4, 3,
                     number(2, dtype), stored(a, 5), 5, memory, 6)
                == 0
            )
            x = loaded(memory, 4, 3)
            close(op(trans, triangle) @ x if side == 0 else x @ op(trans, triangle), 2 * b)


@TYPES
def test_batched_lu(t: str) -> None:
    """getrf, getrs and getri of a batch, with pivots and without; a singular one says where."""
    rng, dtype, n, count = np.random.default_rng(8), DTYPES[t], 4, 3
    for pivoting in (True, False):
        a = values(rng, (count, n, n), dtype) + 5 * np.eye(n, dtype=dtype)
        b = values(rng, (count, n, 2), dtype)
        lu = np.ascontiguousarray(a.transpose(0, 2, 1))
        right = np.ascontiguousarray(b.transpose(0, 2, 1))
        inverse = np.full_like(lu, np.nan)
        rows = [np.array([x.ctypes.data for x in xs], np.uint64) for xs in (lu, right, inverse)]
        pivots = np.zeros((count, n), np.int32) if pivoting else 0
        infos = np.full(count, -9, np.int32)
        with blas() as handle:
            assert (
                call(LIBRARY, f"cublas{t}getrfBatched", handle, n, rows[0], n, pivots, infos, count)
                == 0
            )
            assert not infos.any()
            assert (
                call(LIBRARY, f"cublas{t}getrsBatched", handle, 0, n, 2, rows[0], n, pivots,
                     rows[1], n, infos, count)
                == 0
            )
            assert (
                call(LIBRARY, f"cublas{t}getriBatched", handle, n, rows[0], n, pivots, rows[2], n,
                     infos, count)
                == 0
            )
            close(a @ right.transpose(0, 2, 1), b)
            close(a @ inverse.transpose(0, 2, 1), np.broadcast_to(np.eye(n), a.shape))
            lu[1] = 0
            assert (
                call(LIBRARY, f"cublas{t}getrfBatched", handle, n, rows[0], n, pivots, infos, count)
                == 0
            )
            assert infos[1] == 1


def test_a_failure_in_the_queue_is_the_status_of_every_later_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runtime, "failures", [])
    monkeypatch.setattr(cublas, "vector", lambda *_: 1 / 0)
    x, alpha = np.ones(3), number(2, "f8")
    with blas() as handle:
        name = "cublasDscal_v2"
        LIBRARY.entries[name](handle, 3, alpha.ctypes.data, x.ctypes.data, 1)
        assert "ZeroDivisionError" in capsys.readouterr().err
        monkeypatch.undo()
        monkeypatch.setattr(runtime, "failures", ["an earlier failure"])
        assert (
            LIBRARY.entries[name](handle, 3, alpha.ctypes.data, x.ctypes.data, 1)
            == cublas.EXECUTION_FAILED
        )
        monkeypatch.undo()
    if hostcuda.installed():
        hostcuda.forgive()
