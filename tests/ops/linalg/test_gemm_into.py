"""gemm_into: every dtype, layout and factor on both devices, its tape, its memory, its refusals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from usage import PYTHON, measure

import gtensor as gt
from gtensor.backend import blas, layouts
from gtensor.linalg import gemm_into
from gtensor.testing.compare import close

BRAIN = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float16), BRAIN, *map(np.dtype, ("f4", "f8", "c8", "c16"))]
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-4, "complex64": 1e-4}
# a, b, out as if nothing were transposed
SHAPES: list[tuple[tuple[int, ...], ...]] = [
    ((3, 7), (7, 5), (3, 5)), ((1, 4), (4, 1), (1, 1)), ((2, 3, 4), (2, 4, 5), (2, 3, 5)),
    ((5, 2, 3), (3, 4), (5, 2, 4)), ((2, 1, 3, 2), (4, 2, 3), (2, 4, 3, 3)), ((4,), (4,), ()),
    ((4,), (4, 3), (3,)), ((2, 3, 4), (4,), (2, 3)), ((2, 0), (0, 3), (2, 3)),
    ((0, 2), (2, 3), (0, 3)),
]
LAYOUTS = ["rows", "columns", "slice", "steps"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Tiles are smaller than some of the matrices."""
    with gt.settings.override(tile_elements=9):
        yield request.param


def numbers(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)


def laid(x: np.ndarray, layout: str, device: str) -> gt.Tensor:
    """The values with elements in rows, in columns, in a part of a larger buffer, or apart."""
    if x.ndim < 2 or layout == "rows":
        return gt.tensor(x, device=device)
    if layout == "columns":
        return gt.tensor(np.ascontiguousarray(x.swapaxes(-1, -2)), device=device).mT
    step = 2 if layout == "steps" else 1
    whole = gt.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), dtype=x.dtype, device=device)
    part = whole[..., 1:1 + step * x.shape[-1]:step]
    part[...] = gt.tensor(x, device=device)
    return part


def turned(x: np.ndarray, flag: bool) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(-1, -2)) if flag and x.ndim > 1 else x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(dtype: np.dtype, device: str) -> None:
    rng = np.random.default_rng()
    wide = np.complex128 if dtype.kind == "c" else np.float64
    choices = [*product(LAYOUTS, LAYOUTS, LAYOUTS)]
    for left, right, shape in SHAPES:
        a, b, c = (numbers(s, dtype, rng) for s in (left, right, shape))
        plain = a.astype(wide) @ b.astype(wide)
        for at_a, at_b, at_out in rng.permutation(choices)[:8]:
            beta = float(rng.choice([0.0, 1.0, -0.5]))
            alpha: Any = float(rng.choice([1.0, 0.25]))
            if dtype.kind == "c" and rng.random() < 0.5:
                alpha = 0.5 - 2j
            across, down = (bool(flag) for flag in rng.random(2) < 0.5)
            out = laid(c if beta else np.full_like(c, np.nan), at_out, device)
            given = gemm_into(out, laid(turned(a, across), at_a, device),
                              laid(turned(b, down), at_b, device), alpha, beta, across, down)
            assert given is out and out.shape == shape
            wanted = alpha * plain + (beta * c.astype(wide) if beta else 0)
            tolerance = TOLERANCE.get(dtype.name, 1e-10)
            close(f"{left} @ {right}, {at_a} {at_b} {at_out}", out, np.asarray(wanted),
                  (tolerance, tolerance))


@pytest.mark.parametrize("n", [8, 90])
@pytest.mark.parametrize("count", [2, 30])
def test_several_matrices_into_a_part_of_a_buffer(
    n: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By NumPy's products where the matrices are small, else by a call of BLAS for each."""
    runs: list[str] = []

    def counted(name: str, function: Any, *given: Any) -> Any:
        runs.append(name)
        return function(*given)

    for name in ("_write", "_write_batches"):
        monkeypatch.setattr(blas, name, partial(counted, name, getattr(blas, name)))
    rng = np.random.default_rng()
    x, y, z = (rng.standard_normal((count, n, n)) for _ in range(3))
    for alpha, beta in ((1.0, 0.0), (0.5, 1.0), (-2.0, 0.25)):
        whole = gt.zeros((n, 2 * count, n), dtype=np.float64)
        out = gt.permute_dims(whole[:, :count], (1, 0, 2))
        out[...] = gt.asarray(z)
        gemm_into(out, gt.asarray(x), gt.asarray(y).mT, alpha, beta)
        close("several", out, alpha * (x @ y.swapaxes(1, 2)) + beta * z, (1e-10, 1e-10))
        assert (whole.numpy()[:, count:] == 0).all()
    assert {*runs} == {"_write_batches" if n == 8 else "_write"}


def test_matrices_in_reverse_and_fields_of_records(device: str) -> None:
    """Steps below 0 between the matrices of a batch, and strides that are no whole elements."""
    rng = np.random.default_rng()
    x, y = rng.standard_normal((3, 2, 4)), rng.standard_normal((3, 4, 5))
    a, b = gt.tensor(x, device=device), gt.tensor(y, device=device)
    out = gt.ones((3, 2, 5), dtype=np.float64, device=device)
    gemm_into(out, a[::-1], b, 2.0, 1.0)
    close("reversed", out, 2 * x[::-1] @ y + 1, (1e-10, 1e-10))
    if device == "cpu":
        records = np.zeros((4, 5), [("value", np.float64), ("flag", np.int8)])
        records["value"] = y[0]
        gemm_into(out[0], gt.asarray(x[0]), gt.asarray(records["value"]))
        close("records", out[0], x[0] @ y[0], (1e-10, 1e-10))


def test_half_precision_may_be_summed_into_float32(device: str) -> None:
    for dtype in DTYPES[:2]:
        a, b = gt.ones((1, 4096), dtype=dtype, device=device), gt.ones((4096, 2), dtype=dtype,
                                                                       device=device)
        out = gt.full((1, 2), 0.25, dtype=np.float32, device=device)
        gemm_into(out, a, b, beta=1)
        assert (out.numpy() == 4096.25).all()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("across, down", [*product([False, True], repeat=2)])
def test_the_write_is_recorded(dtype: str, across: bool, down: bool, device: str) -> None:
    """Against the same in other ops, with gradients for the factors and for what was there."""
    rng = np.random.default_rng()
    alpha, beta = (0.5 - 1j, 2 + 1j) if dtype == "complex128" else (0.5, -2.0)
    for left, right, shape in SHAPES:
        arrays = [numbers(shape, np.dtype(dtype), rng),
                  turned(numbers(left, np.dtype(dtype), rng), across),
                  turned(numbers(right, np.dtype(dtype), rng), down)]

        def into(c: gt.Tensor, a: gt.Tensor, b: gt.Tensor) -> gt.Tensor:
            return gemm_into(c * 1.5, a, b, alpha, beta, across, down)

        def composed(c: gt.Tensor, a: gt.Tensor, b: gt.Tensor) -> gt.Tensor:
            first, second = (x.mT if flag and x.ndim > 1 else x
                             for x, flag in ((a, across), (b, down)))
            return alpha * gt.matmul(first, second) + beta * (c * 1.5)

        g = gt.tensor(numbers(shape, np.dtype(dtype), rng), device=device)
        found = []
        for function in (into, composed):
            leaves = [gt.tensor(part, device=device, requires_grad=True)
                      for x in arrays for part in (x.real, x.imag)]
            y = function(*[re if np.dtype(dtype).kind == "f" else re + 1j * im
                           for re, im in zip(leaves[::2], leaves[1::2], strict=True)])
            y.backward(g)
            found.append([y.detach(), *[leaf.grad for leaf in leaves if leaf.grad is not None]])
            assert len(found[-1]) == 7 if dtype == "complex128" else 4
        for ours, wanted in zip(*found, strict=True):
            close("gemm_into", ours, wanted.numpy(), (1e-10, 1e-10))


def test_gradients_of_gradients() -> None:
    rng = np.random.default_rng()
    arrays = [rng.standard_normal(s) for s in ((3, 5), (4, 3), (5, 4))]

    def function(c: gt.Tensor, a: gt.Tensor, b: gt.Tensor) -> gt.Tensor:
        return gt.tanh(gt.tanh(gemm_into(c * 1.0, a, b, 0.5, 2.0, True, True)))

    gt.testing.gradcheck(function, [gt.tensor(x, requires_grad=True) for x in arrays], order=2)


def test_a_product_takes_out_alpha_and_beta(device: str) -> None:
    rng = np.random.default_rng()
    a, b = (rng.standard_normal(s) for s in ((2, 3, 4), (4, 5)))
    x, y = (gt.tensor(v, device=device) for v in (a, b))
    close("alpha", gt.matmul(x, y, alpha=-0.5), -0.5 * (a @ b), (1e-10, 1e-10))
    out = gt.ones((2, 3, 5), dtype=np.float64, device=device)
    assert gt.matmul(x, y, out=out, alpha=2, beta=3) is out
    close("out", out, 2 * (a @ b) + 3, (1e-10, 1e-10))
    with pytest.raises(ValueError, match="given beta=1 without out; wanted the out to add to"):
        gt.matmul(x, y, beta=1)
    with pytest.raises(ValueError, match="alpha=0.5 for int64; wanted floating-point or complex"):
        gt.matmul(gt.asarray([[1]]), gt.asarray([[1]]), alpha=0.5)


def test_what_is_refused_before_anything_is_written(device: str) -> None:
    single = np.float32
    whole = gt.ones((4, 8), dtype=single, device=device)
    a, b = gt.ones((4, 4), dtype=single, device=device), gt.ones((4, 4), dtype=single,
                                                                 device=device)
    out = gt.zeros((4, 4), dtype=single, device=device)
    refused: list[tuple[Any, ...]] = [
        (ValueError, "overlaps an input; wanted memory of its own", whole[:, :4], whole[:, 3:7], b),
        (ValueError, "overlaps an input", a, b, a),
        (ValueError, "with elements at one place", gt.broadcast_to(out[0], (4, 4)), a, b),
        (ValueError, "of float32 and float64 and an out of float32; wanted one floating-point",
         out, a, gt.ones((4, 4), dtype=np.float64, device=device)),
        (ValueError, "and an out of float64", gt.ones((4, 4), dtype=np.float64, device=device),
         a, b),
        (ValueError, "of int64 and int64", *[gt.ones((2, 2), dtype=np.int64, device=device)] * 3),
        (ValueError, r"the inner sizes 4 and 3; wanted equal ones", out, a, b[:3]),
        (ValueError, r"and an out of shape \(4, 4\); wanted \(4, 3\)", out, a, b[:, :3]),
        (ValueError, "wanted leading axes that broadcast", out, gt.ones((2, 4, 4), device=device),
         gt.ones((3, 4, 4), device=device)),
        (TypeError, "given an out of ndarray; wanted a Tensor", np.zeros((4, 4)), a, b),
    ]
    for kind, text, *given in refused:
        before = given[0]._version if isinstance(given[0], gt.Tensor) else None
        with pytest.raises(kind, match=text):
            gemm_into(*given, beta=1)
        assert before is None or given[0]._version == before
    for value, kind, text in ((1j, ValueError, "alpha=1j given for float32; wanted a real number"),
                              ("2", TypeError, "alpha of str given; wanted a number"),
                              (True, TypeError, "alpha of bool given; wanted a number")):
        with pytest.raises(kind, match=text):
            gemm_into(out, a, b, alpha=value)  # type: ignore[arg-type]
    assert (whole.numpy() == 1).all() and (out.numpy() == 0).all() and (a.numpy() == 1).all()
    gemm_into(whole[:, 4:], whole[:, :4], b)  # apart in one buffer
    assert (whole.numpy()[:, 4:] == 4).all()


def test_what_the_tape_refuses(device: str) -> None:
    a, b = gt.ones((3, 3), device=device), gt.ones((3, 3), device=device)
    leaf = gt.zeros((3, 3), device=device, requires_grad=True)
    with pytest.raises(gt.GradientError, match="in-place gemm on a leaf that requires a gradient"):
        gemm_into(leaf, a, b)
    saved = leaf * 1.0
    y = gt.exp(saved) * saved
    with pytest.raises(gt.GradientError, match="given an out that an op saved for its gradient"):
        gemm_into(saved, a, b)
    assert (saved.numpy() == 0).all()
    y.sum().backward()
    with gt.no_grad():
        gemm_into(leaf, a, b)
        gemm_into(saved, a, b)
    assert (leaf.numpy() == 3).all() and (saved.numpy() == 3).all()
    with pytest.raises(gt.LevelError, match="gemm"):
        gt.func.vmap(lambda x: gemm_into(x, a, b))(gt.ones((2, 3, 3), device=device))


# -- memory ----------------------------------------------------------------------------------------

SIDE, TILE_ELEMENTS = 512, 4096
TILE = 4 * TILE_ELEMENTS


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(np.float32)], ids=str)
def test_no_whole_temporary_on_the_cpu(dtype: np.dtype, layout: str) -> None:
    """Nothing at all where BLAS reads and writes the matrices, else tiles."""
    x = np.ones((SIDE, SIDE), dtype)
    a, b, out = laid(x, layout, "cpu"), laid(x, "columns", "cpu"), laid(x, layout, "cpu")
    direct = layout != "steps" and dtype == np.float32
    bound = PYTHON / 4 if direct else 3 * TILE + 2 * PYTHON  # NumPy casts in buffers of its own
    with gt.settings.override(tile_elements=TILE_ELEMENTS):
        for beta in (0.0, 1.0):
            usage = measure(lambda beta=beta: gemm_into(out, a, b, 0.5, beta))
            assert usage.peak == 0 and usage.behind <= bound < dtype.itemsize * SIDE**2


def test_without_a_blas_to_call_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_gemm", lambda dtype: None)
    for dtype in DTYPES[2:]:
        test_values(dtype, "cpu")


# -- the tests tested ------------------------------------------------------------------------------


FAULTS = {
    "leading axes are dropped": (layouts, "merged", lambda axes: []),
    "an operand is read as it lies": (
        layouts._Laid, "read", lambda laid: (layouts.AS_IT_LIES, max(laid.shape[-1], 1))),
    "a tile forgets those before it": (blas, "_scale", lambda out, beta: out.fill(0)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, wrong = FAULTS[name]
    monkeypatch.setattr(where, what, wrong)
    if "tile" in name:
        monkeypatch.setattr(blas, "_gemm", lambda dtype: None)
    layouts.plan.cache_clear()
    with gt.settings.override(tile_elements=9), pytest.raises(AssertionError):
        test_values(np.dtype(np.float64), "cpu")
    layouts.plan.cache_clear()
