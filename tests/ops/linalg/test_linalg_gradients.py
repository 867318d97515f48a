"""The gradients of the linalg extension against PyTorch's, numeric ones, and cofactors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import linalg
from gtensor.engine.tape.op import registry
from gtensor.engine.tape.samples import Sample
from gtensor.testing import derivatives, gradcheck
from gtensor.testing.cases import Case

INF = float("inf")


def random(shape: tuple[int, ...]) -> np.ndarray:
    """Normal values, with a heavy diagonal that rises."""
    return np.random.standard_normal(shape) + 4.0 * np.eye(*shape[-2:]) * (
        1 + np.arange(shape[-1]))


def gradients(function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """The gradients of a function of a gtensor tensor or a PyTorch one, of scalar result."""
    leaves = [gt.tensor(a, requires_grad=True) for a in arrays]
    function(linalg, *leaves).backward()
    return [x.grad.numpy() for x in leaves]  # type: ignore[union-attr]


def torch_gradients(function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    function(torch.linalg, *leaves).backward()
    return [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in leaves]


def _svd_loss(la: Any, x: Any) -> Any:
    u, s, vh = la.svd(x, full_matrices=False)
    return (u * u * u.shape[-1]).sum(-2)[..., 0].sum() + (u[..., 0, :] * vh[..., :, 1]).sum() + (
        (s * s * s).sum() + (vh[..., 0, :] ** 2 * vh[..., 0, :] ** 2).sum())


def _eigh_loss(la: Any, x: Any) -> Any:
    w, v = la.eigh((x + x.mT) / 2)
    return (w * w * w).sum() + (v[..., 0, :] ** 2 * w).sum() + (v[..., 1, :] ** 4).sum()


def _qr_loss(la: Any, x: Any, mode: str = "reduced") -> Any:
    q, r = la.qr(x, mode=mode)
    return (q[..., 0, :] * 3 + q[..., 1, :] ** 2).sum() + (r * r * r).sum()


def _full_svd_loss(la: Any, x: Any) -> Any:
    """Of the full matrices, which is what there is by default, the singular part."""
    u, s, vh = la.svd(x)
    k = s.shape[-1]
    return (s * s * s).sum() + (u[..., :k] ** 4).sum() + (vh[..., :k, 0] * u[..., 0, :k]).sum()


LOSSES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "svd": (_svd_loss, [(3, 3), (4, 3), (2, 3, 4), (2, 1, 3, 3)]),
    "full svd": (_full_svd_loss, [(4, 3), (2, 2, 4), (3, 3), (5, 1)]),
    "singular values": (lambda la, x: (la.svd(x)[1] ** 3).sum(), [(4, 2), (2, 2, 3), (0, 3, 2)]),
    "eigh": (_eigh_loss, [(3, 3), (2, 4, 4), (2, 1, 2, 2)]),
    "qr": (_qr_loss, [(3, 3), (4, 2), (2, 3, 5), (0, 3, 2)]),
    "complete qr": (lambda la, x: _qr_loss(la, x, "complete"), [(3, 3), (2, 3, 5)]),
    "cholesky": (lambda la, x: (la.cholesky(x @ x.mT) ** 3).sum(), [(3, 3), (2, 2, 4)]),
    "upper": (lambda la, x: (la.cholesky(x @ x.mT, upper=True) ** 3).sum(), [(3, 3), (2, 2, 4)]),
    "eigvalsh": (lambda la, x: (la.eigvalsh(x + x.mT) ** 3).sum(), [(3, 3), (2, 4, 4)]),
    "svdvals": (lambda la, x: (la.svdvals(x) ** 3).sum(), [(3, 3), (2, 4, 2), (0, 2, 3)]),
    "inv": (lambda la, x: (la.inv(x) ** 3).sum(), [(3, 3), (2, 4, 4)]),
    "det": (lambda la, x: (la.det(x) ** 2).sum(), [(3, 3), (2, 4, 4), (1, 1)]),
    "slogdet": (lambda la, x: (la.slogdet(x)[1] ** 2).sum(), [(3, 3), (2, 4, 4)]),
    "pinv": (lambda la, x: (la.pinv(x) ** 3).sum(), [(3, 3), (4, 2), (2, 2, 4)]),
    "power": (lambda la, x: la.matrix_power(x, 5).sum() + la.matrix_power(x, -2).sum(),
              [(3, 3), (2, 2, 2)]),
    "power 0": (lambda la, x: la.matrix_power(x, 0).sum(), [(3, 3)]),
    "solve": (lambda la, x: (la.solve(x, x[..., :2]) ** 2 * x[..., :2]).sum(), [(3, 3), (2, 3, 3)]),
    "solve, vector": (lambda la, x: (la.solve(x, x[0, 0]) ** 3).sum(), [(2, 3, 3)]),
    "diagonal": (lambda la, x: (la.diagonal(x, offset=1) ** 2).sum(), [(3, 4), (2, 4, 3)]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_pytorchs(name: str) -> None:
    loss, shapes = LOSSES[name]
    for shape in shapes:
        x = random(shape)
        np.testing.assert_allclose(gradients(loss, x), torch_gradients(loss, x),
                                   rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("order", [INF, -INF, 0, 1, 2, 3, 1.5, -1, 0.5])
def test_gradients_of_norms_at_zero_and_at_ties_are_pytorchs(order: float) -> None:
    x = random((3, 4))
    x[0] = 0
    x[1, :2] = 5.0, -5.0
    x[2, 1] = 0

    def loss(la: Any, x: Any) -> Any:
        norms = (la.vector_norm(x, ord=order, axis=1) if la is linalg
                 else la.vector_norm(x, order, dim=1))
        return (norms * norms).sum() + norms[0] * 3

    with np.errstate(divide="ignore"):  # 0 ** -1
        given = gradients(loss, x)
    np.testing.assert_allclose(given, torch_gradients(loss, x), rtol=1e-10)


@pytest.mark.parametrize("order", ["fro", "nuc", 2, -2, 1, -1, INF, -INF])
def test_gradients_of_matrix_norms_are_pytorchs(order: Any) -> None:
    for shape in ((3, 3), (2, 4, 3)):
        x = random(shape)

        def loss(la: Any, x: Any) -> Any:
            return (la.matrix_norm(x, ord=order) ** 2).sum()

        np.testing.assert_allclose(gradients(loss, x), torch_gradients(loss, x), rtol=1e-8,
                                   atol=1e-10)


def test_eigenvalues_and_singular_values_that_are_equal_have_gradients() -> None:
    x = np.diag([2.0, 2.0, 3.0])
    for loss in (lambda la, x: (la.eigh(x)[0] ** 2).sum(), lambda la, x: la.eigvalsh(x).sum(),
                 lambda la, x: la.svd(x, full_matrices=False)[1].sum(),
                 lambda la, x: (la.svdvals(x) ** 2).sum()):
        np.testing.assert_allclose(gradients(loss, x), torch_gradients(loss, x), atol=1e-12)
    leaf = gt.tensor(x, requires_grad=True)
    with np.errstate(all="ignore"):
        linalg.eigh(leaf).eigenvectors[0].sum().backward()
    assert leaf.grad is not None and not np.isfinite(leaf.grad.numpy()).all()


def test_the_gradient_of_a_determinant_is_right_where_it_is_zero() -> None:
    rank_two = random((3, 2)) @ random((2, 3))
    for x in (rank_two, np.diag([1.0, 0.0, 0.0]), np.zeros((2, 2)), np.array([[0.0]])):
        wanted = np.empty_like(x)
        for i, j in np.ndindex(*x.shape):
            minor = np.delete(np.delete(x, i, 0), j, 1)
            wanted[i, j] = (-1) ** (i + j) * np.linalg.det(minor)
        given = gradients(lambda la, x: la.det(x), x)[0]
        np.testing.assert_allclose(given, wanted, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_gradient_of_a_determinant_overflows_only_where_it_must(dtype: str) -> None:
    for diagonal in ([1e-20, 1e25, 1e25, 1e-10], [1e-10, 1e-10, 1e10], [0.0, 1e30, 1e-30],
                     [1e-30, 1e-30, 1.0]):
        x = gt.tensor(np.diag(diagonal), dtype, requires_grad=True)
        with np.errstate(over="ignore", under="ignore"):
            (given,) = gt.grad([linalg.det(x)], [x])
            wanted = [np.prod(diagonal[:i] + diagonal[i + 1:]) for i in range(len(diagonal))]
            np.testing.assert_allclose(given.numpy(), np.diag(np.array(wanted, dtype)), rtol=1e-5)


def test_the_gradient_of_the_determinant_of_a_large_matrix() -> None:
    dense = np.random.standard_normal((200, 200))
    dense /= np.exp(np.linalg.slogdet(dense).logabsdet / 200)
    for x in (np.eye(1100), dense, np.eye(200) * 1.41):
        given = gradients(lambda la, x: la.det(x), x.astype(np.float32))[0]
        wanted = np.linalg.det(x) * np.linalg.inv(x).T
        np.testing.assert_allclose(given, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


def test_symmetric_decompositions_of_a_lower_triangle_have_pytorchs_gradient() -> None:
    x = random((3, 3))
    definite = x @ x.T
    lower = np.tril(definite) + np.triu(np.full((3, 3), np.nan), 1)
    losses = [lambda la, x: (la.cholesky(x) ** 3).sum(), lambda la, x: (la.eigvalsh(x) ** 3).sum(),
              lambda la, x: (la.eigh(x)[0] ** 3).sum() + (la.eigh(x)[1] ** 4).sum()]
    for loss in losses:
        given = gradients(loss, lower)
        np.testing.assert_allclose(given, torch_gradients(loss, lower), rtol=1e-8)
        np.testing.assert_allclose(given[0], given[0].T)


@pytest.mark.parametrize("shape", [(4, 2), (2, 2, 4)])
def test_the_vectors_beside_the_singular_ones(shape: tuple[int, ...]) -> None:
    """A function of the space they span has its gradient, of second order, too."""
    weights = gt.asarray(np.random.standard_normal((4, 4)))

    def outside(x: Any) -> Any:
        u, s, vh = linalg.svd(x)
        rest = u[..., 2:] if shape[-2] == 4 else vh[..., 2:, :].mT
        return (rest @ rest.mT * weights).sum() * s.sum()

    def by_the_inside(x: Any) -> Any:
        u, s, vh = linalg.svd(x, full_matrices=False)
        first = u if shape[-2] == 4 else vh.mT
        return ((gt.eye(4, dtype=gt.float64) - first @ first.mT) * weights).sum() * s.sum()

    found = []
    for function in (outside, by_the_inside):
        x = gt.tensor(random(shape) if not found else found[0][0], requires_grad=True)
        (g,) = gt.grad([function(x)], [x], create_graph=True)
        (h,) = gt.grad([(g * g).sum()], [x])
        found.append((x.numpy(), g.numpy(), h.numpy()))
    for mine, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(mine, wanted, 1e-7, 1e-9)
    sample = Sample((shape,), params={"full": True})
    derivatives.tangent(Case.of(registry["svd"], sample, gt.default_device(), 1, [], None))


def test_second_derivatives_through_parts_of_decompositions() -> None:
    x = gt.asarray(random((3, 3)) / 4).requires_grad_()
    gradcheck(lambda x: linalg.eigh(x + x.mT), x, order=2, atol=1e-5, rtol=1e-4)
    gradcheck(lambda x: linalg.svd(x), x, order=2, atol=1e-5, rtol=1e-4)
    gradcheck(lambda x: linalg.slogdet(x @ x.mT).logabsdet, x, order=2, atol=1e-5, rtol=1e-4)
    gradcheck(lambda x: linalg.solve(x, x @ x), x, order=2, atol=1e-5, rtol=1e-4)


def test_products_of_complex_values_have_pytorchs_gradients() -> None:
    def loss(la: Any, x: Any, y: Any) -> Any:
        a, b = x * (1 + 2j) + y * 1j, y * (2 - 1j) - x
        total = la.matmul(a, b.mT).sum() + la.vecdot(a, b).sum() * (1 - 1j)
        total = total + (la.cross(a, b) * (2 + 1j)).sum() + la.diagonal(a).sum() * 1j
        return (total * (1 + 1j)).real + la.vector_norm(a) + la.matrix_norm(b, ord=1)

    x, y = random((3, 3)), random((3, 3))
    np.testing.assert_allclose(gradients(loss, x, y), torch_gradients(loss, x, y), rtol=1e-9)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 3, 5)])
@pytest.mark.parametrize("scale", [2.0**-100, 2.0**-70, 2.0**62, 2.0**100])
def test_gradients_of_singular_vectors_do_not_depend_on_the_scale(scale, shape, device, rng):
    """Squares of singular values vanish below 1e-23 in float32, and overflow above 1e19.

    Near 1e-36 a GPU, which takes float32 below 1e-38 for 0, keeps two digits of differences.
    """
    values = rng.standard_normal(shape).astype(np.float32)
    weights = [rng.standard_normal(s.shape).astype(np.float32)
               for s in gt.linalg.svd(gt.tensor(values, device="cpu"), full_matrices=False)]

    def total(x):
        u, s, vh = gt.linalg.svd(x, full_matrices=False)
        wu, ws, wvh = (gt.asarray(w, device=device) for w in weights)
        return (u * wu).sum() + (vh * wvh).sum() + (s * (ws / gt.max(s))).sum()

    gradients, moved = [], []
    for factor in (1.0, scale):
        x = gt.asarray(values * np.float32(factor), device=device).requires_grad_()
        total(x).backward()
        gradients.append(x.grad.numpy() * np.float32(factor))
        direction = gt.asarray(np.ones(shape, np.float32) * np.float32(factor), device=device)
        moved.append(gt.func.jvp(total, (x.detach(),), (direction,))[1].item())
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(moved[1], moved[0], rtol=2e-3, atol=2e-3)
