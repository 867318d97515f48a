"""The cuBLASLt stand-in: layouts, epilogues and their gradients, and what NVIDIA refuses."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gtensor.hostcuda.libraries import cublas, cublaslt

from .raw import call, close, loaded, stored, values

LIBRARY = cublaslt.library
M, N, K, LD = 5, 3, 7, 8
R32F, R16BF = cublas.R32F, cublas.R16BF
NAMES = {name: (number, dtype) for number, (name, dtype, _) in cublaslt.DESCRIPTION.items()}
ORDER, BATCH, STRIDE = 1, 5, 6


@contextmanager
def made(kind: str, *arguments: int) -> Iterator[int]:
    cell = np.zeros(1, np.uint64)
    assert call(LIBRARY, f"cublasLt{kind}Create", cell, *arguments) == 0
    yield int(cell[0])
    assert call(LIBRARY, f"cublasLt{kind}Destroy", int(cell[0])) == 0


def put(kind: str, handle: int, number: int, dtype: Any, value: int) -> int:
    cell = np.array([value], dtype)
    return call(LIBRARY, f"cublasLt{kind}SetAttribute", handle, number, cell, cell.nbytes)


def matmul(
    a: np.ndarray, b: np.ndarray, d: np.ndarray, kind: int = R32F, compute: int = 68,
    out: int | None = None, order: int = 0, batch: int = 1, workspace: int = 0, nbytes: int = 0,
    promised: int = 8, **description: int
) -> int:
    """D = A B^T in column order with leading dimension LD; the status.

    `promised`: how all matrices are aligned, in bytes.
    """
    out = kind if out is None else out
    scale = {70: cublas.R64F}.get(compute, R32F)
    one, zero = (np.array([x], cublas.NUMPY[scale]) for x in (1, 0))
    with (made("MatmulDesc", compute, scale) as what, made("MatrixLayout", kind, M, K, LD) as la,
          made("MatrixLayout", kind, N, K, LD) as lb, made("MatrixLayout", out, M, N, LD) as ld,
          made("MatmulPreference") as preference, handle() as lt):
        for name, value in {"transb": 1, **description}.items():
            assert put("MatmulDesc", what, *NAMES[name], value) == 0
        assert put("MatrixLayout", ld, ORDER, np.int32, order) == 0
        for layout, stride in ((la, LD * K), (lb, 0), (ld, LD * N)):
            assert put("MatrixLayout", layout, BATCH, np.int32, batch) == 0
            assert put("MatrixLayout", layout, STRIDE, np.int64, stride) == 0
        assert put("MatmulPreference", preference, 1, np.uint64, nbytes) == 0
        for number in (5, 6, 7, 8):
            assert put("MatmulPreference", preference, number, np.int32, promised) == 0
        found, count = (cublaslt.Algorithm * 1)(), np.zeros(1, np.int32)
        status = call(LIBRARY, "cublasLtMatmulAlgoGetHeuristic", lt, what, la, lb, ld, ld,
                      preference, 1, ctypes.addressof(found), count)
        assert count[0] == (status == 0)
        again = call(LIBRARY, "cublasLtMatmul", lt, what, one, a, la, b, lb, zero, d, ld, d, ld,
                     0 if status else ctypes.addressof(found), workspace, nbytes, 0)
        assert again or not status, "what the heuristic refuses, the product does"
        return again or status


@contextmanager
def handle() -> Iterator[int]:
    cell = np.zeros(1, np.uint64)
    assert call(LIBRARY, "cublasLtCreate", cell) == 0
    yield int(cell[0])
    assert call(LIBRARY, "cublasLtDestroy", int(cell[0])) == 0


def operands(dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(9)
    a, b = values(rng, (M, K), dtype), values(rng, (N, K), dtype)
    wide = np.float64
    return a, b, a.astype(wide) @ b.astype(wide).T, values(rng, (M,), dtype)


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


FORWARD = {
    "default": (1, lambda x, b: x),
    "relu": (2, lambda x, b: np.maximum(x, 0)),
    "bias": (4, lambda x, b: x + b),
    "relu_bias": (6, lambda x, b: np.maximum(x + b, 0)),
    "gelu": (32, lambda x, b: tanh_gelu(x)),
    "gelu_bias": (36, lambda x, b: tanh_gelu(x + b)),
}


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("kind", [R32F, R16BF])
def test_epilogues(name: str, kind: int) -> None:
    dtype = cublas.NUMPY[kind]
    a, b, product, bias = operands(dtype)
    number, formula = FORWARD[name]
    d = stored(np.full((M, N), np.nan, dtype), LD)
    more = {"bias": bias.ctypes.data} if number & 4 else {}
    assert matmul(stored(a, LD), stored(b, LD), d, kind, epilogue=number, **more) == 0
    wanted = formula(product, bias.astype(np.float64)[:, None])
    bound = 2e-6 if kind == R32F else 2**-8  # GELU's exact form differs by 5e-4
    np.testing.assert_allclose(loaded(d, M, N), wanted, rtol=bound, atol=bound * 8)
    if number & 4:
        assert (
            matmul(stored(a, LD), stored(b, LD), d, kind, epilogue=number) == cublas.INVALID_VALUE
        ), "without a bias pointer"


def test_gradients_go_with_what_the_forward_epilogue_kept() -> None:
    """RELU_AUX then DRELU_BGRAD, GELU_AUX then DGELU_BGRAD: differences of the forward one."""
    a, b, product, _ = operands()
    left, right = stored(a, LD), stored(b, LD)
    for forward, backward, ld in ((130, 152, 128), (160, 208, 8)):
        aux = np.zeros((N, 128), np.float32)
        d, bias = stored(np.zeros((M, N), np.float32), LD), np.zeros(M, np.float32)
        kept = {"aux": aux.ctypes.data, "aux_ld": ld}
        assert matmul(left, right, d, epilogue=forward, **kept) == 0
        assert matmul(left, right, d, epilogue=backward, bias=bias.ctypes.data, **kept) == 0
        function = tanh_gelu if forward == 160 else lambda x: np.maximum(x, 0)
        slope = (function(product + 1e-6) - function(product - 1e-6)) / 2e-6
        close(loaded(d, M, N), product * slope, np.float32)
        close(bias, (product * slope).sum(axis=1), np.float32)
        assert (
            matmul(left, right, d, epilogue=forward, aux=kept["aux"], aux_ld=ld + 4)
            == cublas.INVALID_VALUE
        )


def test_bias_gradients_of_the_operands() -> None:
    a, b, product, _ = operands()
    for number, wanted in ((256, a.sum(axis=1)), (512, b.sum(axis=1))):
        bias, d = np.zeros(len(wanted), np.float32), stored(np.zeros((M, N), np.float32), LD)
        assert matmul(stored(a, LD), stored(b, LD), d, epilogue=number, bias=bias.ctypes.data) == 0
        close(bias, wanted)
        close(loaded(d, M, N), product, np.float32)


def test_row_order_batches_and_workspaces() -> None:
    a, b, product, _ = operands()
    d = np.full((M, LD), 77, np.float32)
    assert matmul(stored(a, LD), stored(b, LD), d, order=1) == 0
    close(d[:, :N], product, np.float32)
    assert (d[:, N:] == 77).all()
    many = np.stack([stored(a * i, LD) for i in (1, 2)])
    results = np.zeros((2, N, LD), np.float32)
    memory = np.zeros(8192, np.uint8)
    start = -memory.ctypes.data % 256
    place = memory.ctypes.data + start
    assert matmul(many, stored(b, LD), results, batch=2, workspace=place, nbytes=4096) == 0
    close(results[1, :, :M].T, 2 * product, np.float32)
    assert memory[start : start + 4096].all(), "the workspace is written"


REFUSED = {
    "relu in row order": ({"order": 1, "epilogue": 2}, cublas.NOT_SUPPORTED),
    "gelu and bias in row order": ({"order": 1, "epilogue": 36, "bias": 8}, cublas.NOT_SUPPORTED),
    "a complex epilogue": ({"kind": cublas.C32F, "epilogue": 2}, cublas.NOT_SUPPORTED),
    "mixed types": ({"kind": R16BF, "out": cublas.R16F}, cublas.NOT_SUPPORTED),
    "32 columns": ({"order": 2}, cublas.NOT_SUPPORTED),
    "no such epilogue": ({"epilogue": 3}, cublas.INVALID_VALUE),
    "a transposed C": ({"transc": 1}, cublas.NOT_SUPPORTED),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nvidia_refuses_is_refused(name: str) -> None:
    options, status = REFUSED[name]
    a = np.ones((LD, LD), np.complex128)
    assert matmul(a, a, np.zeros((LD, LD), np.complex128), **options) == status


def at(x: np.ndarray, offset: int) -> np.ndarray:
    """A copy that lies so many bytes behind a multiple of 256."""
    memory = np.zeros(x.nbytes + 512, np.uint8)
    start = -memory.ctypes.data % 256 + offset
    found = memory[start:start + x.nbytes].view(x.dtype).reshape(x.shape)
    found[...] = x
    return found


def test_what_an_epilogue_points_to_is_aligned_to_sixteen_bytes(faults: list[int]) -> None:
    """NVIDIA's heuristic may take a kernel that loads 16 bytes of it; the call itself succeeds."""
    a, b, _, bias = operands()
    left, right, d = stored(a, LD), stored(b, LD), stored(np.zeros((M, N), np.float32), LD)
    for offset in (0, 4, 8, 16, 32):
        kept, vector = at(np.zeros((N, 128), np.float32), offset), at(bias, offset)
        options: tuple[dict[str, int], ...] = (
            {"epilogue": 4, "bias": vector.ctypes.data},
            {"epilogue": 512, "bias": vector.ctypes.data},
            {"epilogue": 130, "aux": kept.ctypes.data, "aux_ld": 128},
            {"epilogue": 160, "aux": kept.ctypes.data, "aux_ld": 8},
        )
        for given in options:
            faults.clear()
            assert matmul(left, right, d, **given) == 0
            assert faults == ([716] if offset % 16 else []), (given, offset)


@pytest.mark.parametrize(("epilogue", "more", "status"), [
    (2, "bias", 7), (32, "bias", 7), (130, "bias", 7), (136, "bias", 7), (160, "bias", 7),
    (4, "aux", 15), (2, "aux", 15), (6, "aux", 15), (36, "aux", 15), (512, "aux", 0)])
def test_a_pointer_that_the_epilogue_has_no_use_for_is_refused(
    epilogue: int, more: str, status: int
) -> None:
    a, b, _, bias = operands()
    kept = np.zeros((N, 128), np.float32)
    given = {"epilogue": epilogue}
    if epilogue & 128 or more == "aux":
        given |= {"aux": kept.ctypes.data, "aux_ld": 128}
    if epilogue & (4 | 512) or more == "bias":
        given["bias"] = bias.ctypes.data
    left, right, d = stored(a, LD), stored(b, LD), stored(np.zeros((M, N), np.float32), LD)
    assert matmul(left, right, d, **given) == status


def test_matrices_are_aligned_as_the_preferences_said(faults: list[int]) -> None:
    a, b, product, _ = operands()
    for offset, promised in ((4, 4), (4, 8), (16, 16), (16, 256), (0, 256)):
        for which in range(3):
            given = [at(x, offset if place == which else 0) for place, x in enumerate(
                (stored(a, LD), stored(b, LD), stored(np.zeros((M, N), np.float32), LD)))]
            faults.clear()
            assert matmul(*given, promised=promised) == 0
            assert faults == ([716] if offset % promised else []), (offset, promised, which)
            if not faults:
                close(loaded(given[2], M, N)[:M], product, np.float32)


def test_attributes_have_sizes() -> None:
    with made("MatmulDesc", 68, R32F) as what:
        number, cell = NAMES["epilogue"][0], np.array([2], np.int64)
        assert (
            call(LIBRARY, "cublasLtMatmulDescSetAttribute", what, number, cell, 8)
            == cublas.INVALID_VALUE
        )
        assert (
            call(LIBRARY, "cublasLtMatmulDescSetAttribute", what, 99, cell, 8)
            == cublas.NOT_SUPPORTED
        )
        size = np.zeros(1, np.uint64)
        assert call(LIBRARY, "cublasLtMatmulDescGetAttribute", what, number, cell, 4, size) == 0
        assert size[0] == 4 and cell.view(np.int32)[0] == 1
