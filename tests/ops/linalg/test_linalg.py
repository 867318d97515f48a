"""The linalg extension: its values against NumPy's, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest

import gtensor as gt
from gtensor import linalg
from gtensor.testing.compare import close

INF = float("inf")
SQUARES = [(1, 1), (3, 3), (5, 5), (2, 3, 3), (2, 1, 4, 4), (0, 3, 3), (2, 0, 0), (0, 0)]
OBLONGS = [*SQUARES, (4, 2), (2, 5), (3, 4, 2), (2, 0, 3), (3, 0)]
DTYPES = ["float32", "float64", "complex64", "complex128"]
TOLERANCE = {"float32": 1e-4, "complex64": 1e-4, "float64": 1e-10, "complex128": 1e-10}


def random(shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    """Normal values; of matrices, with a heavy diagonal."""
    values = np.random.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * np.random.standard_normal(shape)
    if len(shape) > 1:
        values = values + 4.0 * np.eye(*shape[-2:]) * (1 + np.arange(shape[-1]))
    return values.astype(dtype)


def hermitian(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    x = random(shape, dtype)
    return (x + x.conj().swapaxes(-1, -2)) / 2 + 4 * np.eye(shape[-1], dtype=dtype)


def agree(given: Any, wanted: Any, dtype: str = "float64") -> None:
    """In dtype, too."""
    assert given.dtype == wanted.dtype, (given.dtype, wanted.dtype)
    close("the result", given, wanted, TOLERANCE[dtype])


# -- values ----------------------------------------------------------------------------------------

PLAIN: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "inv": (linalg.inv, np.linalg.inv, SQUARES),
    "det": (linalg.det, np.linalg.det, SQUARES),
    "pinv": (linalg.pinv, lambda x: np.linalg.pinv(x, rtol=None), OBLONGS),
    "svdvals": (linalg.svdvals, np.linalg.svdvals, OBLONGS),
    "matrix_rank": (linalg.matrix_rank, np.linalg.matrix_rank,
                    [s for s in OBLONGS if 0 not in s[-2:]]),
    "power 5": (lambda x: linalg.matrix_power(x, 5), lambda x: np.linalg.matrix_power(x, 5),
                SQUARES),
    "power 1": (lambda x: linalg.matrix_power(x, 1), lambda x: x, SQUARES),
    "power 0": (lambda x: linalg.matrix_power(x, 0), lambda x: np.linalg.matrix_power(x, 0),
                SQUARES),
    "power -3": (lambda x: linalg.matrix_power(x, -3), lambda x: np.linalg.matrix_power(x, -3),
                 SQUARES),
    "trace": (linalg.trace, lambda x: np.trace(x, axis1=-2, axis2=-1), OBLONGS),
    "trace 1": (lambda x: linalg.trace(x, offset=1),
                lambda x: np.trace(x, 1, axis1=-2, axis2=-1), OBLONGS),
    "diagonal -1": (lambda x: linalg.diagonal(x, offset=-1),
                    lambda x: np.diagonal(x, -1, -2, -1), OBLONGS),
    "transpose": (linalg.matrix_transpose, np.linalg.matrix_transpose, OBLONGS),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PLAIN)
def test_values_are_numpys(name: str, dtype: str) -> None:
    ours, theirs, shapes = PLAIN[name]
    for shape in shapes:
        x = random(shape, dtype)
        agree(ours(gt.asarray(x)), theirs(x), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_symmetric_decompositions(dtype: str) -> None:
    for shape in SQUARES:
        x = hermitian(shape, dtype)
        agree(linalg.eigvalsh(gt.asarray(x)), np.linalg.eigvalsh(x), dtype)
        found = linalg.eigh(gt.asarray(x))
        agree(found.eigenvalues, np.linalg.eigvalsh(x), dtype)
        v = found.eigenvectors.numpy()
        agree(gt.asarray((v * found.eigenvalues.numpy()[..., None, :]) @ v.conj().swapaxes(-1, -2)),
              x, dtype)
        definite = x @ x.conj().swapaxes(-1, -2)
        for upper in (False, True):
            agree(linalg.cholesky(gt.asarray(definite), upper=upper),
                  np.linalg.cholesky(definite, upper=upper), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_symmetric_decompositions_read_the_lower_triangle(dtype: str) -> None:
    for shape in ((3, 3), (2, 4, 4)):
        x = hermitian(shape, dtype)
        definite = x @ x.conj().swapaxes(-1, -2)
        for full in (x, definite):
            lower = np.tril(full) + np.triu(np.full(shape, np.nan, dtype), 1)
            agree(linalg.eigvalsh(gt.asarray(lower)), np.linalg.eigvalsh(full), dtype)
            agree(linalg.eigh(gt.asarray(lower))[0], np.linalg.eigvalsh(full), dtype)
        agree(linalg.cholesky(gt.asarray(lower)), np.linalg.cholesky(definite), dtype)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_signs_of_vectors_do_not_depend_on_the_library(dtype: str) -> None:
    def opposite(u: Any, s: Any, vh: Any) -> Any:
        return -u, s, -vh

    eigh, svd = np.linalg.eigh, np.linalg.svd
    x, oblong = gt.asarray(hermitian((2, 4, 4), dtype)), gt.asarray(random((2, 4, 3), dtype))
    once = [*linalg.eigh(x), *linalg.svd(oblong)]
    with (patch.object(np.linalg, "eigh", lambda a: (eigh(a)[0], -eigh(a)[1])),
          patch.object(np.linalg, "svd", lambda a, full_matrices: opposite(*svd(a)))):
        again = [*linalg.eigh(x), *linalg.svd(oblong)]
    for first, second in zip(once[:2] + once[3:], again[:2] + again[3:], strict=True):
        np.testing.assert_array_equal(first.numpy(), second.numpy())
    np.testing.assert_array_equal(once[2].numpy()[..., :3], again[2].numpy()[..., :3])


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16])
def test_dot_products_of_halves_are_added_up_in_float32_by_tiles(dtype: Any) -> None:
    x1, x2 = np.random.standard_normal((4, 1, 3000)), np.random.standard_normal((5, 3000))
    a, b = gt.tensor(x1, dtype), gt.tensor(x2, dtype)
    wide = np.vecdot(a.numpy().astype(np.float64), b.numpy().astype(np.float64))
    for tile in (256, 4096, 1 << 15):
        with gt.settings.override(tile_elements=tile):
            given = linalg.vecdot(a, b)
            mixed = linalg.vecdot(a, b.astype(gt.float64))
        assert given.dtype == dtype and mixed.dtype == gt.float64
        agree(gt.asarray(given.numpy().astype(np.float64)), wide.astype(dtype).astype(np.float64),
              "float32")
        agree(mixed, wide)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("complete", [False, True])
def test_qr_and_svd(dtype: str, complete: bool) -> None:
    for shape in OBLONGS:
        x = random(shape, dtype)
        rows, columns = shape[-2:]
        q, r = linalg.qr(gt.asarray(x), mode="complete" if complete else "reduced")
        wanted = np.linalg.qr(x, mode="complete" if complete else "reduced")
        assert (q.shape, r.shape) == (wanted.Q.shape, wanted.R.shape)
        if min(shape):
            agree(gt.asarray(q.numpy() @ r.numpy()), x, dtype)
            assert np.all(np.tril(r.numpy(), -1) == 0)
        u, s, vh = linalg.svd(gt.asarray(x), full_matrices=complete)
        parts = np.linalg.svd(x, full_matrices=complete)
        assert (u.shape, s.shape, vh.shape) == tuple(p.shape for p in parts)
        agree(s, parts.S, dtype)
        k = min(rows, columns)
        product = (u.numpy()[..., :k] * s.numpy()[..., None, :]) @ vh.numpy()[..., :k, :]
        agree(gt.asarray(product.astype(dtype)), x, dtype)
        if complete:
            agree(gt.asarray(u.numpy() @ u.numpy().conj().swapaxes(-1, -2)),
                  np.broadcast_to(np.eye(rows, dtype=dtype), u.shape), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_solve_and_slogdet(dtype: str) -> None:
    for a, b in (((3, 3), (3,)), ((2, 3, 3), (3,)), ((2, 3, 3), (3, 2)), ((2, 1, 3, 3), (4, 3, 2)),
                 ((0, 3, 3), (3, 2)), ((2, 0, 0), (2, 0, 3)), ((3, 3), (2, 3, 1))):
        x1, x2 = random(a, dtype), random(b, dtype)
        agree(linalg.solve(gt.asarray(x1), gt.asarray(x2)), np.linalg.solve(x1, x2), dtype)
    for shape in SQUARES:
        x = random(shape, dtype)
        for given, wanted in zip(linalg.slogdet(gt.asarray(x)), np.linalg.slogdet(x), strict=True):
            agree(given, wanted, dtype)


def test_named_tuples_have_the_standards_fields() -> None:
    x = gt.eye(3)
    assert linalg.qr(x)._fields == ("Q", "R")
    assert linalg.svd(x)._fields == ("U", "S", "Vh")
    assert linalg.eigh(x)._fields == ("eigenvalues", "eigenvectors")
    assert linalg.slogdet(x)._fields == ("sign", "logabsdet")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [INF, -INF, 0, 1, 2, 3, -1, 0.5])
def test_vector_norms(order: float, dtype: str) -> None:
    for shape, axis in (((5,), None), ((3, 4), 0), ((3, 4), None), ((2, 3, 4), (0, -1)),
                        ((2, 3, 4), 1), ((0, 3), 1), ((), None)):
        x = random(shape, dtype)
        for keepdims in (False, True):
            given = linalg.vector_norm(gt.asarray(x), axis=axis, keepdims=keepdims, ord=order)
            wanted = np.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=order)
            agree(given, np.asarray(wanted, given.dtype), dtype)
            assert given.dtype == np.abs(x).dtype


def test_a_large_norm_is_summed_in_tiles() -> None:
    x = np.random.standard_normal((7, 500))
    for axis in (None, 0, 1):
        with gt.settings.override(tile_elements=64):
            agree(linalg.vector_norm(gt.asarray(x), axis=axis),
                  np.linalg.vector_norm(x, axis=axis))


@pytest.mark.parametrize("order", ["fro", "nuc", 2, -2, 1, -1, INF, -INF])
def test_matrix_norms(order: Any) -> None:
    for shape in ((3, 3), (2, 4), (2, 4, 3), (2, 1, 2, 5)):
        for dtype in ("float64", "complex128"):
            x = random(shape, dtype)
            for keepdims in (False, True):
                agree(linalg.matrix_norm(gt.asarray(x), ord=order, keepdims=keepdims),
                      np.linalg.matrix_norm(x, ord=order, keepdims=keepdims))


@pytest.mark.parametrize("order", [2, 1, INF])
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 0, 3)])
def test_the_largest_of_no_elements_is_0(shape: tuple[int, ...], order: float) -> None:
    x = gt.zeros(shape, gt.float64, requires_grad=True)
    for norm in (linalg.matrix_norm(x, ord=order), linalg.vector_norm(x, axis=(-2, -1), ord=order)):
        assert norm.shape == shape[:-2] and np.array_equal(norm.numpy(), np.zeros(shape[:-2]))
        norm.sum().backward()
    assert x.grad is not None and x.grad.shape == shape


@pytest.mark.parametrize("dtype", [*DTYPES, "int64", "int16"])
def test_products(dtype: str) -> None:
    def make(*shape: int) -> np.ndarray:
        return (3 * random(shape, "complex128" if "complex" in dtype else "float64")).astype(dtype)

    def same(given: Any, wanted: Any) -> None:
        agree(given, wanted, dtype) if dtype in TOLERANCE else np.testing.assert_array_equal(
            given.numpy(), np.asarray(wanted), strict=True)

    for a, b in (((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((0, 3), (3, 2)),
                 ((2, 3, 4), (4, 2)), ((3,), (2, 3, 1)), ((2, 1, 3, 2), (4, 2, 3)), ((0,), (0,)),
                 ((2, 0), (0, 3))):
        x1, x2 = make(*a), make(*b)
        same(linalg.matmul(gt.asarray(x1), gt.asarray(x2)), np.matmul(x1, x2))
    for a, b, axes in (((2, 3, 4), (3, 4, 5), 2), ((2, 3), (4,), 0), ((2, 3, 4), (4, 2), ([0, 2],
                       [1, 0])), ((3, 2), (2, 3), ([-2], [1])), ((3,), (3,), 1), ((), (2,), 0),
                       ((3, 2), (4, 3), (np.int64(0), np.int64(1))), ((3, 2), (2, 3), np.int64(1)),
                       ((3, 2), (2, 3), (np.array([0, 1]), [np.int64(1), 0]))):
        x1, x2 = make(*a), make(*b)
        same(linalg.tensordot(gt.asarray(x1), gt.asarray(x2), axes=axes),
             np.tensordot(x1, x2, axes=axes))
    for a, b, axis in (((4,), (4,), -1), ((2, 3), (2, 3), 0), ((2, 3), (3,), -1),
                       ((3, 1, 4), (3, 2, 4), 0)):
        x1, x2 = make(*a), make(*b)
        same(linalg.vecdot(gt.asarray(x1), gt.asarray(x2), axis=axis),
             np.linalg.vecdot(x1, x2, axis=axis))
    for a, b, axis in (((3,), (3,), -1), ((2, 3), (3,), -1), ((3, 4), (3, 4), 0),
                       ((2, 3, 1), (2, 3, 5), 1)):
        x1, x2 = make(*a), make(*b)
        given = linalg.cross(gt.asarray(x1), gt.asarray(x2), axis=axis)
        full = np.broadcast_shapes(a, b)
        same(given, np.cross(np.broadcast_to(x1, full), np.broadcast_to(x2, full), axis=axis))
    x1, x2 = make(3), make(2)
    same(linalg.outer(gt.asarray(x1), gt.asarray(x2)), np.outer(x1, x2))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_types_are_computed_in_float32(dtype: Any) -> None:
    x = random((2, 3, 3), "float32").astype(dtype)
    for name in ("inv", "det", "pinv", "svdvals", "trace", "matrix_norm"):
        given = getattr(linalg, name)(gt.asarray(x))
        wanted = getattr(linalg, name)(gt.asarray(x.astype(np.float32))).numpy()
        assert given.dtype == dtype
        np.testing.assert_allclose(given.numpy().astype(np.float32), wanted, rtol=2e-2, atol=2e-2)
    mixed = linalg.matmul(gt.asarray(x), gt.asarray(x.astype(np.float32)))
    assert mixed.dtype == np.float32


def test_integers_become_float32_and_a_diagonal_is_a_writable_view() -> None:
    x = gt.tensor([[2, 1], [1, 3]])
    agree(linalg.inv(x), np.linalg.inv(x.numpy()).astype(np.float32), "float32")
    assert linalg.trace(x).item() == 5
    linalg.diagonal(x)[...] = 7
    assert x.tolist() == [[7, 1], [1, 7]]


def test_rank_and_pseudo_inverse_take_tolerances_per_matrix() -> None:
    x = np.stack([np.diag([1.0, 1e-3, 1e-9])] * 2)
    rtol = np.array([1e-6, 1e-2])
    assert linalg.matrix_rank(gt.asarray(x), rtol=rtol).tolist() == [2, 1]
    assert linalg.matrix_rank(gt.asarray(x), rtol=gt.asarray(rtol)).tolist() == [2, 1]
    assert linalg.matrix_rank(gt.zeros((2, 3))).item() == 0
    agree(linalg.pinv(gt.asarray(x), rtol=rtol), np.linalg.pinv(x, rtol=rtol))


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cholesky", "eigh", "eigvalsh", "inv", "det", "slogdet"])
def test_matrices_must_be_square(name: str) -> None:
    with pytest.raises(np.linalg.LinAlgError, match=rf"{name} of .*\(2, 4, 3\); wanted square"):
        getattr(linalg, name)(gt.ones((2, 4, 3)))
    with pytest.raises(ValueError, match=rf"{name} of .*\(3,\); wanted matrices"):
        getattr(linalg, name)(gt.ones(3))


def test_singular_matrices_are_refused_on_the_cpu() -> None:
    x = gt.ones((2, 3, 3))
    for function in (linalg.inv, lambda x: linalg.solve(x, x),
                     lambda x: linalg.matrix_power(x, -1)):
        with pytest.raises(np.linalg.LinAlgError, match=r"of shape .*\(2, 3, 3\).*Singular"):
            function(x)
    with pytest.raises(np.linalg.LinAlgError, match=r"cholesky of shape \(2, 2\).*positive"):
        linalg.cholesky(gt.tensor([[1.0, 2.0], [2.0, 1.0]]))


WRONG = {
    r"solve of shapes \(3, 3\) and \(2,\)": lambda: linalg.solve(gt.eye(3), gt.ones(2)),
    r"solve of shapes \(3, 3\) and \(\)": lambda: linalg.solve(gt.eye(3), gt.ones(())),
    "qr was given mode 'full'": lambda: linalg.qr(gt.eye(3), mode="full"),
    "ord='frob'": lambda: linalg.matrix_norm(gt.eye(3), ord="frob"),
    "no elements over axis None": lambda: linalg.vector_norm(gt.ones((0,)), ord=-INF),
    "cross along axis -1": lambda: linalg.cross(gt.ones(2), gt.ones(2)),
    r"vecdot along axis -1 of shapes \(2,\) and \(3,\)": lambda: linalg.vecdot(
        gt.ones(2), gt.ones(3)),
    "vecdot along axis 0 of shapes": lambda: linalg.vecdot(gt.ones((2, 3)), gt.ones(2), axis=0),
    "outer of shapes": lambda: linalg.outer(gt.ones((2, 2)), gt.ones(2)),
    r"tensordot was given axes \(0, 1, 2\)": lambda: linalg.tensordot(
        gt.ones((2, 2)), gt.ones((2, 2)), axes=(0, 1, 2)),  # type: ignore[arg-type]
    "tensordot over 3 axes": lambda: linalg.tensordot(gt.ones((2, 2)), gt.ones((2, 2)), axes=3),
    r"tensordot over axes \[0\]": lambda: linalg.tensordot(
        gt.ones((2, 3)), gt.ones((3, 2)), axes=([0], [0])),
    r"matmul of shapes \(2, 3, 4\) and \(3, 4, 5\): the leading axes \(2,\) and \(3,\) do not "
    "broadcast; wanted": lambda: gt.ones((2, 3, 4)) @ gt.ones((3, 4, 5)),
    r"matmul of .*: the leading axes \(3, 2\) and \(2, 2\) do not": lambda: gt.matmul(
        gt.ones((3, 2, 3, 4)), gt.ones((2, 2, 4, 5)), alpha=2.0),
    r"solve of .*: the leading axes \(2,\) and \(3,\) do not broadcast": lambda: linalg.solve(
        gt.ones((2, 4, 4)), gt.ones((3, 4, 5))),
    "the inner sizes 3 and 2 differ": lambda: linalg.matmul(gt.ones((2, 3)), gt.ones((2, 3))),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WRONG[message]()


@pytest.mark.gpu
def test_systems_without_a_right_side_have_an_empty_answer_on_cuda() -> None:
    x = linalg.solve(gt.ones((2, 1, 1, 1)), gt.ones((3, 1, 0), dtype="float64"))
    assert (x.shape, x.dtype, x.device.type) == ((2, 3, 1, 0), "float64", "cuda")


def test_what_has_no_derivative_says_so() -> None:
    x = gt.asarray(random((4, 2))).requires_grad_()
    with pytest.raises(gt.GradientError, match="qr_complete .*has no derivative"):
        linalg.qr(x, mode="complete").R.sum().backward()
    with pytest.raises(gt.GradientError, match="inv has no derivative for complex values"):
        linalg.inv(gt.ones((2, 2), requires_grad=True) * 1j + 3 * gt.eye(2))
    assert not linalg.matrix_rank(x).requires_grad


# -- what NumPy has beside the standard ------------------------------------------------------------


@np.errstate(divide="ignore")  # 0 to the power -1
def test_norm_chooses_as_numpys():
    for shape in ((3,), (3, 4), (2, 3, 4), (0,), (3, 0), ()):
        x = random(shape)
        for order in (None, 1, 2, -1, INF, -INF, 0, 3, "fro", "nuc"):
            for axis in (None, -1, 0, (0, 1), (1, 0), (0,), (0, -1, 1)):
                for keepdims in (False, True):
                    try:
                        wanted = np.linalg.norm(x, order, axis, keepdims)
                    except ValueError:  # an AxisError, too
                        with pytest.raises((ValueError, IndexError)):
                            linalg.norm(gt.tensor(x), order, axis, keepdims=keepdims)
                    else:
                        agree(linalg.norm(gt.tensor(x), order, axis, keepdims=keepdims),
                              np.asarray(wanted))
    with pytest.raises(ValueError, match=r"norm was given ord='fro' for vectors; wanted a number"):
        linalg.norm(gt.ones(3), "fro")
    with pytest.raises(ValueError, match=r"ord=1 for shape \(2, 3, 4\); wanted one axis, of vec"):
        linalg.norm(gt.ones((2, 3, 4)), 1)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (3, 3), (4, 1)])
@pytest.mark.parametrize("columns", [(), (2,), (0,)])
def test_lstsq_is_numpys(shape, columns):
    for rank in (min(shape), 1):
        a, b = random((shape[0], rank)) @ random((rank, shape[1])), random((shape[0], *columns))
        found = linalg.lstsq(gt.tensor(a), gt.tensor(b))
        x, _, wanted_rank, values = np.linalg.lstsq(a, b)
        agree(found.solution, x)
        agree(found.residuals, ((a @ x - b) ** 2).sum(axis=0))
        agree(found.singular_values, values)
        assert found.rank.item() == wanted_rank
    a = np.diag([1.0, 1e-3])
    assert linalg.lstsq(gt.tensor(a), gt.ones(2, dtype=gt.float64), 0.1).rank.item() == 1
    with pytest.raises(ValueError, match=r"wanted x2\[..., None\] for vectors of a batch, as"):
        linalg.lstsq(gt.ones((3, 3, 2)), gt.ones((3, 3)))
    with pytest.raises(ValueError, match=r"lstsq of shapes \(5, 3\) and \(3,\); wanted a vector"):
        linalg.lstsq(gt.ones((5, 3)), gt.ones(3))


@pytest.mark.parametrize("p", [None, 2, -2, 1, -1, INF, -INF, "fro", "nuc"])
def test_cond_is_numpys(p):
    for shape in ((3, 3), (2, 3, 3), (0, 2, 2), *([(4, 2)] if p in (None, 2, -2) else ())):
        x = random(shape)
        agree(linalg.cond(gt.tensor(x), p), np.asarray(np.linalg.cond(x, p)))
    with pytest.raises(ValueError, match=r"shape \(2, 0, 0\); wanted matrices with elements"):
        linalg.cond(gt.ones((2, 0, 0)), p)
    with pytest.raises(np.linalg.LinAlgError, match="cond of a tensor of shape"):
        linalg.cond(gt.ones((3, 2)), 1)


@pytest.mark.parametrize("upper", [True, False])
def test_a_triangular_system_reads_its_triangle_only(upper):
    import scipy.linalg

    a, b = random((4, 4)), random((4, 2))
    for unit in (False, True):
        hidden = np.where(np.tri(4, k=-1) if upper else np.tri(4, k=-1).T, np.nan, a)
        if unit:
            hidden = np.where(np.eye(4), np.nan, hidden)
        wanted = scipy.linalg.solve_triangular(a, b, lower=not upper, unit_diagonal=unit)
        x = gt.tensor(hidden, requires_grad=True)
        found = linalg.solve_triangular(x, gt.tensor(b), upper=upper, unitriangular=unit)
        agree(found, wanted)
        agree(linalg.solve_triangular(x, gt.tensor(b[:, 0]), upper=upper, unitriangular=unit),
              wanted[:, 0])
        turned = linalg.solve_triangular(x.mT, gt.tensor(b).mT, upper=not upper, left=False,
                                         unitriangular=unit)
        agree(turned.mT, wanted)
        found.sum().backward()
        assert (x.grad.numpy()[np.isnan(hidden)] == 0).all()
    with pytest.raises(np.linalg.LinAlgError):
        linalg.solve_triangular(gt.zeros((2, 2)), gt.ones(2))


def test_norms_take_pytorchs_names_of_axes():
    x = random((2, 3, 4))
    for keep in (False, True):
        for axis in (1, (0, 2)):
            wanted = np.linalg.norm(x, axis=axis, keepdims=keep)
            for norm in (linalg.norm, linalg.vector_norm):
                agree(norm(gt.tensor(x), dim=axis, keepdim=keep), wanted)
        agree(linalg.matrix_norm(gt.tensor(x), keepdim=keep),
              np.linalg.norm(x, axis=(1, 2), keepdims=keep))
