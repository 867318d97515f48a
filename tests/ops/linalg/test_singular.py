"""Singular matrices: determinants to second order, and results that a library does not write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import linalg

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
RANKS = [(1, 1), (1, 0), (2, 2), (2, 1), (2, 0), (3, 2), (3, 1), (3, 0), (4, 4), (4, 3), (4, 2),
         (4, 1), (5, 3)]


def _of_rank(n: int, rank: int, rng: np.random.Generator) -> np.ndarray:
    """Integers, so that the lost ranks are lost exactly."""
    return (rng.integers(-3, 4, (n, rank)) @ rng.integers(-3, 4, (rank, n))).astype(float)


def _second(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The derivative of all cofactors in the direction t: a row of each minor is t's, in turn."""
    n = len(x)
    found = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            minor, moved = (np.delete(np.delete(a, i, 0), j, 1) for a in (x, t))
            for row in range(n - 1):
                rows = minor.copy()
                rows[row] = moved[row]
                found[i, j] += (-1) ** (i + j) * np.linalg.det(rows)
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "rank"), RANKS)
def test_second_derivatives_of_determinants_are_right_for_every_rank(n, rank, device, rng):
    """Backward of backward and forward of backward, of a matrix and of a batch."""
    values = np.stack([_of_rank(n, rank, rng), rng.standard_normal((n, n))])
    directions = rng.standard_normal((2, n, n))
    wanted = np.stack([_second(*pair) for pair in zip(values, directions, strict=True)])
    for key in (0, slice(None)):
        x = gt.asarray(values[key], device=device).requires_grad_()
        t = gt.asarray(directions[key], device=device)

        def total(x: Any) -> Any:
            return linalg.det(x).sum()

        (g,) = gt.func.grad([total(x)], [x], create_graph=True)
        (g * t).sum().backward()
        forward = gt.func.jvp(gt.func.grad(total), (x.detach(),), (t,))[1]
        scale = 1 + np.abs(wanted[key]).max()
        for found in (x.grad, forward.detach()):
            np.testing.assert_allclose(found.numpy(), wanted[key], atol=1e-12 * scale)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("factor", [1e-20, 1e18])
def test_second_derivatives_of_determinants_overflow_only_where_they_must(factor, device):
    """The squares of such elements are 0 or infinite in float32."""
    x = gt.asarray(np.diag([factor, 1 / factor, 2.0, 0.0]), dtype="float32", device=device)
    t = gt.asarray(np.diag([0.0, 0.0, 0.0, 1.0]), dtype="float32", device=device)
    found = gt.func.jvp(gt.func.grad(linalg.det), (x,), (t,))[1].numpy()
    np.testing.assert_allclose(np.diag(found), [2 / factor, 2 * factor, 1, 0], rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_singular_matrix_leaves_the_others_their_gradient_of_slogdet(device):
    values = np.stack([np.diag([1.0, 2.0]), np.ones((2, 2)), np.diag([4.0, -5.0])])
    x = gt.asarray(values, device=device).requires_grad_()
    sign, logarithm = linalg.slogdet(x)
    np.testing.assert_array_equal(sign.numpy(), [1, 0, -1])
    assert logarithm.numpy()[1] == -np.inf
    logarithm.sum().backward()
    found = x.grad.numpy()
    np.testing.assert_allclose(found[[0, 2]], [np.diag([1, 0.5]), np.diag([0.25, -0.2])])
    assert not np.isfinite(found[1]).any()


# -- memory that a library leaves unwritten --------------------------------------------------------


def _leave_numbers(like: np.ndarray) -> None:
    """Free blocks of finite numbers for the results to be made in."""
    shapes = [like.shape, like.shape, like.shape[:-1], like.shape[:-2] + like.shape[-1:]]
    kept = [gt.full(shape, 7.0, dtype=like.dtype.name, device="cuda") for shape in shapes * 3]
    del kept


_FAILING = {
    "inv": (lambda x: linalg.inv(x), "singular"),
    "solve": (lambda x: linalg.solve(x, gt.ones_like(x)), "singular"),
    "solve for a vector": (lambda x: linalg.solve(x, gt.ones_like(x)[..., :1]), "singular"),
    "matrix_power": (lambda x: linalg.matrix_power(x, -2), "singular"),
    "cholesky": (linalg.cholesky, "indefinite"),
    "upper cholesky": (lambda x: linalg.cholesky(x, upper=True), "indefinite"),
    "eigh": (lambda x: linalg.eigh(x).eigenvectors, "infinite"),
    "eigenvalues": (lambda x: linalg.eigh(x).eigenvalues, "infinite"),
    "eigvalsh": (linalg.eigvalsh, "infinite"),
    "U": (lambda x: linalg.svd(x).U, "infinite"),
    "S": (lambda x: linalg.svd(x).S, "infinite"),
    "Vh": (lambda x: linalg.svd(x).Vh, "infinite"),
    "svdvals": (linalg.svdvals, "infinite"),
    "pinv": (linalg.pinv, "infinite"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("lead", [(), (3,), (2, 2)])
@pytest.mark.parametrize("name", _FAILING)
def test_a_failure_on_cuda_is_not_finite_and_nothing_else_changes(name, lead, dtype):
    """Of a batch only the matrix that fails; a result is never memory of a freed tensor."""
    function, kind = _FAILING[name]
    good = np.broadcast_to(np.diag([1.0, 2.0, 3.0, 5.0]) + 0.25, (*lead, 4, 4)).astype(dtype)
    bad = good.copy()
    first = (0,) * len(lead)
    bad[first] = {"singular": np.diag([1.0, 0.0, 3.0, 0.0]), "indefinite": np.diag([1, 2, -3, 4.0]),
                  "infinite": np.full((4, 4), np.inf)}[kind]
    wanted = function(gt.asarray(good, device="cuda")).numpy()
    _leave_numbers(good)
    found = function(gt.asarray(bad, device="cuda")).numpy()
    assert np.isfinite(wanted).all()
    affected = np.asarray(found[first])
    if name == "upper cholesky":
        affected = affected.diagonal()
    assert not np.isfinite(affected).any()
    if lead:
        rest = np.ones(lead, bool)
        rest[first] = False
        np.testing.assert_array_equal(found[rest], wanted[rest])
