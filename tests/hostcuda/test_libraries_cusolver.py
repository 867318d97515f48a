"""The cuSOLVER stand-in: factors multiply to the matrix they came from, refusals as documented."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gtensor.hostcuda.libraries import cusolver

from .raw import DTYPES, call, close, loaded, solver, stored, values

LIBRARY = cusolver.library
TYPES = pytest.mark.parametrize("t", "SDCZ")
INVALID = cusolver.INVALID_VALUE


def spelled(t: str, real: str, imaginary: str) -> str:
    return f"cusolverDn{t}{imaginary if t in 'CZ' else real}"


def workspace(name: str, dtype: Any, *arguments: Any) -> np.ndarray:
    """What the function's bufferSize asks for."""
    size = np.zeros(1, np.int32)
    assert call(LIBRARY, f"{name}_bufferSize", *arguments, size) == 0
    return np.zeros(size[0], dtype)


def hermitian(rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray:
    x = values(rng, (n, n), dtype)
    return x @ x.conj().T + np.eye(n, dtype=dtype)


@TYPES
def test_lu_and_cholesky_solve(t: str) -> None:
    rng, dtype, n, ld = np.random.default_rng(1), DTYPES[t], 5, 7
    b, info, pivots = values(rng, (n, 2), dtype), np.full(1, -9, np.int32), np.zeros(n, np.int32)
    a = values(rng, (n, n), dtype)
    with solver() as handle:
        memory, right = stored(a, ld), stored(b, ld)
        name = f"cusolverDn{t}getrf"
        work = workspace(name, dtype, handle, n, n, memory, ld)
        assert call(LIBRARY, name, handle, n, n, memory, ld, work, pivots, info) == 0
        assert info[0] == 0 and np.isnan(work).all(), "the workspace is written"
        info[0] = -9
        assert (
            call(LIBRARY, f"cusolverDn{t}getrs", handle, 1, n, 2, memory, ld, pivots, right, ld,
                 info)
            == 0
        )
        assert info[0] == 0
        close(a.T @ loaded(right, n, 2), b)
        for uplo in (0, 1):
            s = hermitian(rng, n, dtype)
            memory, right = stored(s, ld), stored(b, ld)
            name = f"cusolverDn{t}potrf"
            work = workspace(name, dtype, handle, uplo, n, memory, ld)
            assert call(LIBRARY, name, handle, uplo, n, memory, ld, work, len(work), info) == 0
            assert (
                call(LIBRARY, f"cusolverDn{t}potrs", handle, uplo, n, 2, memory, ld, right, ld,
                     info)
                == 0
            )
            close(s @ loaded(right, n, 2), b)
            memory = stored(-s, ld)
            assert call(LIBRARY, name, handle, uplo, n, memory, ld, work, len(work), info) == 0
            assert info[0] == 1, "not positive definite from the first row"
            assert call(LIBRARY, name, handle, uplo, n, memory, ld, work, 1, info) == INVALID


@TYPES
def test_qr_and_its_products(t: str) -> None:
    rng, dtype, m, n, ld = np.random.default_rng(2), DTYPES[t], 6, 4, 8
    a, c = values(rng, (m, n), dtype), values(rng, (m, 3), dtype)
    tau, info, big = np.zeros(n, dtype), np.zeros(1, np.int32), np.zeros(4096, dtype)
    with solver() as handle:
        memory = stored(a, ld)
        assert (
            call(LIBRARY, f"cusolverDn{t}geqrf", handle, m, n, memory, ld, tau, big, len(big), info)
            == 0
        )
        r = np.triu(loaded(memory, m, n)[:n])
        product = stored(c, ld)
        adjoint = 2 if t in "CZ" else 1
        assert (
            call(LIBRARY, spelled(t, "ormqr", "unmqr"), handle, 0, adjoint, m, 3, n, memory, ld,
                 tau, product, ld, big, len(big), info)
            == 0
        )
        name = spelled(t, "orgqr", "ungqr")
        assert call(LIBRARY, name, handle, m, n, n, memory, ld, tau, big, len(big), info) == 0
        q = loaded(memory, m, n)
        assert call(LIBRARY, name, handle, n, m, n, memory, ld, tau, big, len(big), info) == INVALID
    close(q @ r, a)
    close(q.conj().T @ q, np.eye(n))
    close(loaded(product, m, 3)[:n], q.conj().T @ c)


@TYPES
def test_singular_values_by_every_method(t: str) -> None:
    """gesvd gives V^H and wants m >= n; gesvdj and gesvda give V."""
    rng, dtype = np.random.default_rng(3), DTYPES[t]
    real, info, big = np.zeros(1, dtype).real.dtype, np.zeros(3, np.int32), np.zeros(8192, dtype)
    with solver() as handle:
        info_handle = np.zeros(1, np.uint64)
        assert call(LIBRARY, "cusolverDnCreateGesvdjInfo", info_handle) == 0
        params = int(info_handle[0])
        for m, n in ((6, 4), (4, 4), (3, 5)):
            rank = min(m, n)
            a = values(rng, (m, n), dtype)
            s, u, v = np.zeros(rank, real), np.zeros((m, m), dtype), np.zeros((n, n), dtype)
            status = call(LIBRARY, f"cusolverDn{t}gesvd", handle, ord("A"), ord("A"), m, n,
                          stored(a, m), m, s, u, m, v, n, big, len(big), 0, info)
            assert status == (0 if m >= n else INVALID)
            if status == 0:
                close(u.T[:, :rank] * s @ v.T[:rank], a)
            for econ in (0, 1):
                u[:], v[:] = 0, 0
                assert (
                    call(LIBRARY, f"cusolverDn{t}gesvdj", handle, 1, econ, m, n, stored(a, m), m, s,
                         u, m, v, n, big, len(big), info, params)
                    == 0
                )
                close(u.T[:, :rank] * s @ v.T[:, :rank].conj().T, a)
                assert (np.diff(s) <= 0).all()
            batch = np.stack([stored(a * i, m) for i in (1, 2)])
            ss, us, vs = (np.zeros((2, *x.shape), x.dtype) for x in (s, u, v))
            assert (
                call(LIBRARY, f"cusolverDn{t}gesvdjBatched", handle, 1, m, n, batch, m, ss, us, m,
                     vs, n, big, len(big), info, params, 2)
                == 0
            )
            close(us[1].T[:, :rank] * ss[1] @ vs[1].T[:, :rank].conj().T, 2 * a)
            norms = np.full(2, np.nan)
            status = call(LIBRARY, f"cusolverDn{t}gesvdaStridedBatched", handle, 1, rank, m, n,
                          batch, m, m * n, ss, rank, us, m, m * m, vs, n, n * n, big, len(big),
                          info, norms, 2)
            assert status == (0 if m >= n else INVALID)
            if status == 0:
                close(us[1].T[:, :rank] * ss[1] @ vs[1].T[:, :rank].conj().T, 2 * a)
                assert (norms < 1e-3).all()
        assert (
            call(LIBRARY, f"cusolverDn{t}gesvdjBatched", handle, 0, 33, 1, big, 33, ss, us, 33, vs,
                 1, big, len(big), info, params, 1)
            == INVALID
        )


@TYPES
def test_eigenvalues_by_every_method(t: str) -> None:
    rng, dtype, n, ld = np.random.default_rng(4), DTYPES[t], 5, 6
    real, info, big = np.zeros(1, dtype).real.dtype, np.zeros(2, np.int32), np.zeros(4096, dtype)
    kind = {"S": 0, "D": 1, "C": 4, "Z": 5}[t]
    params = np.zeros(1, np.uint64)
    with solver() as handle:
        assert call(LIBRARY, "cusolverDnCreateSyevjInfo", params) == 0
        for uplo in (0, 1):
            s = hermitian(rng, n, dtype)
            half = (np.tril if uplo == 0 else np.triu)(s)

            def check(w: np.ndarray, memory: np.ndarray, wanted: np.ndarray = s) -> None:
                x = memory[:, :n].T
                close(wanted @ x, x * w)
                assert (np.diff(w) >= 0).all()

            w, memory = np.zeros(n, real), stored(half, ld)
            assert (
                call(LIBRARY, spelled(t, "syevd", "heevd"), handle, 1, uplo, n, memory, ld, w, big,
                     len(big), info)
                == 0
            )
            check(w, memory)
            memory = stored(half, ld)
            assert (
                call(LIBRARY, spelled(t, "syevj", "heevj"), handle, 1, uplo, n, memory, ld, w, big,
                     len(big), info, int(params[0]))
                == 0
            )
            check(w, memory)
            both, many = np.stack([stored(half, ld), stored(3 * half, ld)]), np.zeros((2, n), real)
            assert (
                call(LIBRARY, spelled(t, "syevj", "heevj") + "Batched", handle, 1, uplo, n, both,
                     ld, many, big, len(big), info, int(params[0]), 2)
                == 0
            )
            check(many[1], both[1], 3 * s)
            memory, wtype = stored(half, ld), kind % 4
            head = (handle, 0, 1, uplo, n, kind, memory, ld)
            assert (
                call(LIBRARY, "cusolverDnXsyevd", *head, wtype, w, kind, big, big.nbytes, 0, 0,
                     info)
                == 0
            )
            check(w, memory)
            assert (
                call(LIBRARY, "cusolverDnXsyevd", *head, 2, w, kind, big, big.nbytes, 0, 0, info)
                == INVALID
            )
            assert (
                call(LIBRARY, spelled(t, "syevd", "heevd"), handle, 1, uplo, n, memory, n - 1, w,
                     big, len(big), info)
                == INVALID
            )


@TYPES
def test_cholesky_of_a_batch_destroys_the_other_triangle(t: str) -> None:
    rng, dtype, n = np.random.default_rng(5), DTYPES[t], 4
    s, b = hermitian(rng, n, dtype), values(rng, (n, 1), dtype)
    memory, right, info = stored(s, n), stored(b, n), np.full(1, -9, np.int32)
    rows, rights = (np.array([x.ctypes.data], np.uint64) for x in (memory, right))
    with solver() as handle:
        assert call(LIBRARY, f"cusolverDn{t}potrfBatched", handle, 0, n, rows, n, info, 1) == 0
        low = np.tril(memory.T)
        close(low @ low.conj().T, s)
        assert np.isnan(memory.T[np.triu_indices(n, 1)]).all()
        assert (
            call(LIBRARY, f"cusolverDn{t}potrsBatched", handle, 0, n, 1, rows, n, rights, n, info,
                 1)
            == 0
        )
        close(s @ right.T, b)
        assert (
            call(LIBRARY, f"cusolverDn{t}potrsBatched", handle, 0, n, 2, rows, n, rights, n, info,
                 1)
            == cusolver.NOT_SUPPORTED
        )


@TYPES
def test_a_failed_factorization_writes_its_status_only(t: str) -> None:
    """NVIDIA's text documents nothing but `info` then, so a program must not rely on the rest."""
    dtype, n = DTYPES[t], 3
    info, work, pivots = np.zeros(1, np.int32), np.zeros(4096, dtype), np.full(n, -7, np.int32)
    singular, indefinite = np.diag([1, 0, 3]).astype(dtype), np.diag([1, 2, -3]).astype(dtype)
    broken, w = np.full((n, n), np.nan, dtype), np.full(n, 7, np.zeros(1, dtype).real.dtype)
    with solver() as handle:
        memory = stored(singular, n)
        before = memory.copy()
        name = f"cusolverDn{t}getrf"
        assert call(LIBRARY, name, handle, n, n, memory, n, work, pivots, info) == 0
        assert info[0] == 2 and (memory == before).all() and (pivots == -7).all()
        memory = stored(indefinite, n)
        before = memory.copy()
        name = f"cusolverDn{t}potrf"
        assert call(LIBRARY, name, handle, 0, n, memory, n, work, len(work), info) == 0
        assert info[0] == 3 and (memory == before).all()
        name = spelled(t, "syevd", "heevd")
        memory = stored(broken, n)
        assert call(LIBRARY, name, handle, 1, 0, n, memory, n, w, work, len(work), info) == 0
        assert info[0] > 0 and (w == 7).all()
        u, v = np.full((n, n), 7, dtype), np.full((n, n), 7, dtype)
        assert call(LIBRARY, f"cusolverDn{t}gesvd", handle, ord("A"), ord("A"), n, n,
                    stored(broken, n), n, w, u, n, v, n, work, len(work), 0, info) == 0
        assert info[0] > 0 and (w == 7).all() and (u == 7).all() and (v == 7).all()
