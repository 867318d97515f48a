"""Products, einsum, the linalg extension and the fft extension."""

from __future__ import annotations

from typing import Any

import torch

import gtensor as gt
from torch_samples.cases import (
    INTEGERS,
    Case,
    Given,
    Skip,
    always,
    axes,
    complex_values,
    of,
    same,
    scalar_axis,
)

L, F = gt.linalg, gt.fft


def _vectors_squared(result: Any) -> Any:
    """Eigenvectors are unique up to a phase."""
    values, vectors = result
    return values, abs(vectors)


def _svd_unique(result: Any) -> Any:
    """Singular vectors are unique up to a phase that left and right share."""
    u, s, vh = result
    k = s.shape[-1]
    return abs(u[..., :, :k]), s, abs(vh[..., :k, :])


def _one_axis(name: str) -> Case:
    function = getattr(F, name)
    return same(f"fft.{name}", lambda x, n=None, dim=-1, norm=None: function(
        x, n=n, axis=dim, norm=norm or "backward"))


def _many_axes(name: str) -> Case:
    function = getattr(F, name)
    usual = (-2, -1) if name.endswith("2") else None
    return same(f"fft.{name}", lambda x, s=None, dim=usual, norm=None: function(
        x, s=s, axes=(dim,) if isinstance(dim, int) else axes(dim), norm=norm or "backward"))


def _norm(x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    return L.norm(x, ord, axes(dim), keepdims=keepdim)


def _matrix_norm(x: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Any:
    first, second = (i % x.ndim for i in dim)
    norm = L.matrix_norm(gt.moveaxis(x, (first, second), (-2, -1)), ord=ord)
    return gt.expand_dims(norm, axis=tuple(sorted((first, second)))) if keepdim else norm


def _addmm(x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return beta * x + alpha * (a @ b)


def _hermitian(function: Any) -> Any:
    """Both libraries get a matrix whose triangles agree: they read one and differ in which."""
    return lambda x, UPLO: function(x + x.mT.conj())


def _cross(x: Any, y: Any, dim: Any = None) -> Any:
    return L.cross(x, y, axis=next(i for i, n in enumerate(x.shape) if n == 3)
                   if dim is None else dim)


def _by_singular_values(given: Given) -> bool:
    return complex_values(given) and (given.argument(0, "ord") in ("nuc", 2, -2)
                                      and given.input.ndim > 1)


FRACTIONS = Skip("PyTorch rounds alpha and beta to integers", of(*INTEGERS))


ATOL = Skip("gtensor's tolerance is relative", lambda given: given.kwargs.get("atol") is not None)
ONE_ELEMENT = Skip("PyTorch repeats axes of one element", lambda given: (
    isinstance(given.kwargs["dims"], tuple) and 1 in given.input.shape))
VECTORS = Skip("the array API takes a batch of vectors for matrices", lambda given: (
    given.args[0].ndim > 1 and given.args[0].shape == given.input.shape[:-1]))
REAL_GRADIENTS = {  # functions whose derivatives gtensor has for real matrices
    "cholesky": L.cholesky, "linalg.cholesky": L.cholesky, "linalg.det": L.det,
    "linalg.inv": L.inv, "linalg.slogdet": L.slogdet, "linalg.svdvals": L.svdvals,
    "linalg.qr": lambda x, mode="reduced": L.qr(x, mode=mode),
    "qr": lambda x, some=True: L.qr(x, mode="reduced" if some else "complete"),
    "linalg.pinv": lambda x, rtol=None: L.pinv(x, rtol=rtol),
    "linalg.pinv.singular": lambda a, b: L.pinv(a @ gt.matrix_transpose(b)),
    "linalg.cond": L.cond,
}

PRODUCTS = [
    *(same(name, gt.matmul) for name in ("matmul", "mm", "mv", "bmm", "dot")),
    same("__rmatmul__", lambda x, y: y @ x),
    *(same(name, _addmm, FRACTIONS) for name in ("addmm", "addmv", "baddbmm")),
    same("vdot", gt.vecdot),
    same("linalg.vecdot", lambda x, y, dim=-1: gt.vecdot(x, y, axis=dim)),
    same("outer", L.outer),
    same("inner", lambda x, y: (
        gt.tensordot(x, y, axes=([-1], [-1])) if x.ndim and y.ndim else x * y)),
    same("kron", lambda x, y: gt.reshape(
        gt.tensordot(x, y, axes=0).permute_dims(0, 2, 1, 3),
        (x.shape[0] * y.shape[0], x.shape[1] * y.shape[1]))),
    same("tensordot", lambda x, y, dims: gt.tensordot(x, y, axes=dims), ONE_ELEMENT),
    same("einsum", lambda operands, subscripts: gt.einsum(subscripts, *operands)),
    same("linalg.multi_dot", lambda xs: gt.einsum(
        ",".join("abcdefgh"[i:i + 2] for i in range(len(xs))), *xs)),
    same("cross", _cross),
    same("linalg.cross", lambda x, y, dim=-1: L.cross(x, y, axis=dim)),
    same("trace", L.trace),
    same("linalg.diagonal", lambda x, offset=0, dim1=-2, dim2=-1: L.diagonal(
        gt.moveaxis(x, (dim1, dim2), (-2, -1)), offset=offset)),
]
NORMS = [
    same("linalg.vector_norm", lambda x, ord=2, dim=None, keepdim=False: L.vector_norm(
        x, axis=axes(dim), keepdims=keepdim, ord=ord), scalar_axis(1)),
    same("linalg.matrix_norm", _matrix_norm, refuses=_by_singular_values),
    same("linalg.norm", _norm, refuses=_by_singular_values),
    same("linalg.norm.subgradients_at_zero", _norm, refuses=_by_singular_values,
         once=always),  # PyTorch's second derivative there is NaN
]
SOLVERS = [
    *(same(name, function, refuses=complex_values) for name, function in REAL_GRADIENTS.items()),
    same("logdet", lambda x: L.slogdet(x).logabsdet, refuses=complex_values,
         theirs=lambda x: torch.linalg.slogdet(x)[1]),
    same("linalg.eigh", _hermitian(L.eigh), theirs=_hermitian(torch.linalg.eigh),
         outputs=_vectors_squared, refuses=complex_values),
    same("linalg.eigvalsh", _hermitian(L.eigvalsh), theirs=_hermitian(torch.linalg.eigvalsh),
         refuses=complex_values),
    same("linalg.matrix_power", L.matrix_power,
         refuses=lambda given: complex_values(given) and given.args[0] < 0),
    same("linalg.matrix_rank", lambda x, atol=None, rtol=None: L.matrix_rank(x, rtol=rtol), ATOL),
    same("linalg.solve", L.solve, VECTORS, refuses=complex_values),
    same("linalg.solve_triangular", L.solve_triangular, refuses=complex_values),
    same("linalg.lstsq.grad_oriented", lambda x, y, driver=None: L.lstsq(x, y).solution,
         theirs=lambda x, y, driver=None: torch.linalg.pinv(x) @ y, refuses=complex_values),
    same("linalg.svd", L.svd, outputs=_svd_unique, refuses=complex_values),
]
TRANSFORMS = [
    *(_one_axis(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")),
    *(_many_axes(name) for name in (
        "fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2")),
    same("fft.fftshift", lambda x, dim=None: F.fftshift(x, axes=axes(dim))),
    same("fft.ifftshift", lambda x, dim=None: F.ifftshift(x, axes=axes(dim))),
]
TABLE = PRODUCTS + NORMS + SOLVERS + TRANSFORMS
