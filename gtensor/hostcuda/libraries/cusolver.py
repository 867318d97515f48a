"""cuSOLVER's dense functions over LAPACK on raw pointers.

Sources, named beside each rule: the sections of NVIDIA's "cuSOLVER" documentation (CUDA 13.0),
cuSolverDN: dense LAPACK function reference. Iterative refinement (gesv, gels), the 64-bit
functions but Xsyevd and Xgeev, and the sparse functions are not here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gtensor.hostcuda.libraries import cublas
from gtensor.hostcuda.libraries.calls import (
    DTYPES,
    Context,
    Handles,
    Library,
    Traffic,
    Work,
    matrix,
    pointers,
    require,
    runtime,
    store,
    view,
)
from gtensor.hostcuda.libraries.lapack import call

# cusolverStatus_t
NOT_INITIALIZED, INVALID_VALUE, EXECUTION_FAILED, INTERNAL_ERROR, NOT_SUPPORTED = 1, 3, 6, 7, 9
VERSION = (12, 0, 3)

library = Library("libcusolver.so.12", refusal=NOT_SUPPORTED, internal=INTERNAL_ERROR)
function = library.function


class Handle(Context):
    def __init__(self) -> None:
        super().__init__(EXECUTION_FAILED)

    def enqueue(self, name: str, work: Work, traffic: Traffic | None = None) -> None:
        # No section allows stream capture, so it is refused.
        require(not runtime.is_capturing(self.stream), NOT_SUPPORTED)
        super().enqueue(name, work, traffic)


handles = Handles(NOT_INITIALIZED)
options = Handles(INVALID_VALUE)  # parameters of Jacobi's methods and of the 64-bit functions


def choose(table: dict[int, bytes], value: int) -> bytes:
    require(value in table, INVALID_VALUE)
    return table[value]


def sizes(*values: int) -> None:
    """Each function's status codes: a size below 0 is an invalid value."""
    require(all(value >= 0 for value in values), INVALID_VALUE)


def leads(ld: int, rows: int) -> None:
    """Each function's status codes: a leading dimension below max(1, rows) is an invalid value."""
    require(ld >= max(1, rows), INVALID_VALUE)


def routine(t: str, real: str, imaginary: str = "") -> str:
    """LAPACK's name of a routine; some have another one for complex numbers."""
    return t.lower() + (imaginary if imaginary and t in "CZ" else real)


def real(t: str) -> np.dtype:
    return np.empty(0, DTYPES[t]).real.dtype


def worked(t: str, name: str, *arguments: Any, tail: tuple[Any, ...] = ()) -> int:
    """Calls a routine that takes a workspace and its length, then `tail`; asks for the length."""
    asked = np.empty(1, DTYPES[t])
    call(name, *arguments, asked, -1, *tail)
    work = np.empty(max(1, int(asked[0].real)), DTYPES[t])
    return call(name, *arguments, work, len(work), *tail)


def room(t: str, *lengths: int) -> int:
    """The elements of workspace that a function asks for: some, so that its absence is seen."""
    return 32 * max(1, *lengths)


def used(t: str, work: int, have: int, want: int) -> Callable[[], None]:
    """Checks a workspace, and writes over it when the function runs, as the real one does."""
    require(bool(work) and have >= want, INVALID_VALUE)

    def spoil() -> None:
        view(work, (want,), DTYPES[t])[...] = np.nan

    return spoil


def unless_failed(work: Callable[..., int], *outputs: np.ndarray) -> int:
    """LAPACK's info of `work(*copies)`, written over the outputs only if it is 0.

    What cuSOLVER leaves in them after a failure is not documented, so programs that ignore `info`
    must not rely on it: here it is what lay there before.
    """
    copies = [np.array(a, order="F") for a in outputs]
    info = work(*copies)
    if info == 0:
        for output, copy in zip(outputs, copies, strict=True):
            output[...] = copy
    return info


# ---------------------------------------------------------------------------- helpers


@function("cusolverDnCreate", "p")
def create(result: int) -> None:
    require(bool(result), INVALID_VALUE)
    store(result, handles.add(Handle()), "u8")


@function("cusolverDnDestroy", "p")
def destroy(handle: int) -> None:
    handles.remove(handle)


@function("cusolverDnSetStream", "pp")
def set_stream(handle: int, stream: int) -> None:
    handles[handle].stream = stream


@function("cusolverDnGetStream", "pp")
def get_stream(handle: int, result: int) -> None:
    require(bool(result), INVALID_VALUE)
    store(result, handles[handle].stream, "u8")


@function("cusolverGetProperty", "ip")
def get_property(kind: int, result: int) -> None:
    require(kind in (0, 1, 2) and bool(result), INVALID_VALUE)
    store(result, VERSION[kind], "i4")


def parameters(create_name: str, destroy_name: str) -> None:
    @function(create_name, "p")
    def create_parameters(result: int) -> None:
        require(bool(result), INVALID_VALUE)
        store(result, options.add({}), "u8")

    @function(destroy_name, "p")
    def destroy_parameters(handle: int) -> None:
        options.remove(handle)


for kind in ("Params", "SyevjInfo", "GesvdjInfo"):
    parameters(f"cusolverDnCreate{kind}", f"cusolverDnDestroy{kind}")
for kind in ("syevj", "gesvdj"):
    # Tolerance and sweeps bound the work of an iteration that LAPACK does to the end.
    for setting, letters in (("Tolerance", "pd"), ("MaxSweeps", "pi"), ("SortEig", "pi")):

        @function(f"cusolverDnX{kind}Set{setting}", letters)
        def set_parameter(handle: int, value: float, name: str = setting) -> None:
            options[handle][name] = value


# ---------------------------------------------------------------------------- Cholesky


@function("cusolverDn{}potrf_bufferSize", "pii pi p", "SDCZ")
def potrf_room(t: str, handle: int, uplo: int, n: int, a: int, lda: int, result: int) -> None:
    handles[handle]
    choose(cublas.FILLS, uplo)
    sizes(n)
    leads(lda, n)
    store(result, room(t, n), "i4")


def cholesky(t: str, part: bytes, factor: np.ndarray) -> int:
    """potrf over one matrix: where it fails, only `info` is documented."""
    n = len(factor)
    return unless_failed(
        lambda copy: call(routine(t, "potrf"), part, n, copy, max(1, n)), factor)


@function("cusolverDn{}potrf", "pii pi pi p", "SDCZ")
def potrf(
    t: str, handle: int, uplo: int, n: int, a: int, lda: int, work: int, lwork: int, info: int
) -> None:
    context, part = handles[handle], choose(cublas.FILLS, uplo)
    sizes(n)
    leads(lda, n)
    spoil = used(t, work, lwork, room(t, n))

    def run() -> None:
        spoil()
        factor = matrix(a, n, n, lda, DTYPES[t])
        store(info, cholesky(t, part, factor), "i4")

    context.enqueue(f"cusolverDn{t}potrf", run)


def solve(
    t: str, part: bytes, n: int, columns: int, a: int, lda: int, b: int, ldb: int
) -> None:
    """A X = B in place of B, with A as potrf leaves it."""
    factor, sides = matrix(a, n, n, lda, DTYPES[t]), matrix(b, n, columns, ldb, DTYPES[t])
    call(routine(t, "potrs"), part, n, columns, factor, lda, sides, ldb)


@function("cusolverDn{}potrs", "piii pi pi p", "SDCZ")
def potrs(
    t: str, handle: int, uplo: int, n: int, columns: int, a: int, lda: int, b: int, ldb: int,
    info: int,
) -> None:  # fmt: skip
    context, part = handles[handle], choose(cublas.FILLS, uplo)
    sizes(n, columns)
    leads(lda, n)
    leads(ldb, n)

    def run() -> None:
        solve(t, part, n, columns, a, lda, b, ldb)
        store(info, 0, "i4")

    context.enqueue(f"cusolverDn{t}potrs", run)


@function("cusolverDn{}potrfBatched", "pii pi p i", "SDCZ")
def potrf_batched(
    t: str, handle: int, uplo: int, n: int, a: int, lda: int, infos: int, batch: int
) -> None:
    """Remark of potrfBatched: "the other part of A is used as a workspace"."""
    context, part = handles[handle], choose(cublas.FILLS, uplo)
    sizes(n, batch)
    leads(lda, n)

    def run() -> None:
        other = np.triu_indices(n, 1) if part == b"L" else np.tril_indices(n, -1)
        for i, address in enumerate(pointers(a, batch)):
            factor = matrix(address, n, n, lda, DTYPES[t])
            store(infos + 4 * i, cholesky(t, part, factor), "i4")
            factor[other] = np.nan

    context.enqueue(f"cusolverDn{t}potrfBatched", run)


@function("cusolverDn{}potrsBatched", "piii pi pi pi", "SDCZ")
def potrs_batched(
    t: str, handle: int, uplo: int, n: int, columns: int, a: int, lda: int, b: int, ldb: int,
    info: int, batch: int,
) -> None:  # fmt: skip
    """Remark 1 of potrsBatched: "only nrhs=1 is supported"."""
    context, part = handles[handle], choose(cublas.FILLS, uplo)
    sizes(n, columns, batch)
    leads(lda, n)
    leads(ldb, n)
    require(columns == 1, NOT_SUPPORTED)

    def run() -> None:
        store(info, 0, "i4")
        for left, right in zip(pointers(a, batch), pointers(b, batch), strict=True):
            solve(t, part, n, columns, left, lda, right, ldb)

    context.enqueue(f"cusolverDn{t}potrsBatched", run)


# ---------------------------------------------------------------------------- LU, LDL


@function("cusolverDn{}getrf_bufferSize", "pii pi p", "SDCZ")
def getrf_room(t: str, handle: int, m: int, n: int, a: int, lda: int, result: int) -> None:
    handles[handle]
    sizes(m, n)
    leads(lda, m)
    store(result, room(t, m, n), "i4")


@function("cusolverDn{}getrf", "pii pi ppp", "SDCZ")
def getrf(
    t: str, handle: int, m: int, n: int, a: int, lda: int, work: int, pivots: int, info: int
) -> None:
    """getrf: without pivots (NULL) it does no exchanges.

    Where U is singular, its text says what `info` is, and nothing of the factors and pivots. (That
    of cublas<t>getrfBatched says that the factorization has been completed.)
    """
    context = handles[handle]
    sizes(m, n)
    leads(lda, m)
    spoil = used(t, work, room(t, m, n), room(t, m, n))

    def run() -> None:
        spoil()
        factors = matrix(a, m, n, lda, DTYPES[t])
        if pivots:
            order = view(pivots, (min(m, n),), "i4")
            found = unless_failed(lambda copy, rows: call(
                routine(t, "getrf"), m, n, copy, max(1, m), rows), factors, order)
        else:
            found = unless_failed(cublas.eliminate, factors)
        store(info, found, "i4")

    context.enqueue(f"cusolverDn{t}getrf", run)


@function("cusolverDn{}getrs", "piii pi p pi p", "SDCZ")
def getrs(
    t: str, handle: int, trans: int, n: int, columns: int, a: int, lda: int, pivots: int,
    b: int, ldb: int, info: int,
) -> None:  # fmt: skip
    context, op = handles[handle], choose(cublas.OPERATIONS, trans)
    sizes(n, columns)
    leads(lda, n)
    leads(ldb, n)

    def run() -> None:
        cublas.solve(t, op, n, columns, a, lda, pivots, b, ldb)
        store(info, 0, "i4")

    context.enqueue(f"cusolverDn{t}getrs", run)


@function("cusolverDn{}sytrf_bufferSize", "pi pi p", "SDCZ")
def sytrf_room(t: str, handle: int, n: int, a: int, lda: int, result: int) -> None:
    handles[handle]
    sizes(n)
    leads(lda, n)
    store(result, room(t, n), "i4")


@function("cusolverDn{}sytrf", "pii pi p pi p", "SDCZ")
def sytrf(
    t: str, handle: int, uplo: int, n: int, a: int, lda: int, pivots: int, work: int, lwork: int,
    info: int,
) -> None:  # fmt: skip
    context, part = handles[handle], choose(cublas.FILLS, uplo)
    sizes(n)
    leads(lda, n)
    require(bool(pivots), NOT_SUPPORTED)
    spoil = used(t, work, lwork, room(t, n))

    def run() -> None:
        spoil()
        factors = matrix(a, n, n, lda, DTYPES[t]), view(pivots, (n,), "i4")
        found = unless_failed(lambda copy, rows: worked(
            t, routine(t, "sytrf"), part, n, copy, max(1, n), rows), *factors)
        store(info, found, "i4")

    context.enqueue(f"cusolverDn{t}sytrf", run)


# ---------------------------------------------------------------------------- QR, bidiagonal


@function("cusolverDn{}geqrf_bufferSize", "pii pi p", "SDCZ")
def geqrf_room(t: str, handle: int, m: int, n: int, a: int, lda: int, result: int) -> None:
    # Not checked: lda. CuPy's qr, which runs on GPUs, passes the number of columns.
    handles[handle]
    sizes(m, n)
    store(result, room(t, m, n), "i4")


@function("cusolverDn{}geqrf", "pii pi p pi p", "SDCZ")
def geqrf(
    t: str, handle: int, m: int, n: int, a: int, lda: int, tau: int, work: int, lwork: int,
    info: int,
) -> None:  # fmt: skip
    context = handles[handle]
    sizes(m, n)
    leads(lda, m)
    spoil = used(t, work, lwork, room(t, m, n))

    def run() -> None:
        spoil()
        factors = matrix(a, m, n, lda, DTYPES[t]), lda, view(tau, (min(m, n),), DTYPES[t])
        store(info, worked(t, routine(t, "geqrf"), m, n, *factors), "i4")

    context.enqueue(f"cusolverDn{t}geqrf", run)


def unitary(types: str, generate: str, multiply: str) -> None:
    """orgqr and ormqr, for complex numbers ungqr and unmqr."""

    def columns(m: int, n: int, k: int, lda: int) -> None:
        """orgqr: m >= n >= k, lda >= max(1, m)."""
        sizes(m, n, k)
        leads(lda, m)
        require(m >= n >= k, INVALID_VALUE)

    @function(f"cusolverDn{{}}{generate}_bufferSize", "piii pi p p", types)
    def generate_room(
        t: str, handle: int, m: int, n: int, k: int, a: int, lda: int, tau: int, result: int
    ) -> None:
        handles[handle]
        columns(m, n, k, lda)
        store(result, room(t, m, n), "i4")

    @function(f"cusolverDn{{}}{generate}", "piii pi p pi p", types)
    def generate_columns(
        t: str, handle: int, m: int, n: int, k: int, a: int, lda: int, tau: int, work: int,
        lwork: int, info: int,
    ) -> None:  # fmt: skip
        context = handles[handle]
        columns(m, n, k, lda)
        spoil = used(t, work, lwork, room(t, m, n))

        def run() -> None:
            spoil()
            factors = matrix(a, m, n, lda, DTYPES[t]), lda, view(tau, (k,), DTYPES[t])
            store(info, worked(t, routine(t, generate), m, n, k, *factors), "i4")

        context.enqueue(f"cusolverDn{t}{generate}", run)

    def product(
        t: str, side: int, trans: int, m: int, n: int, k: int, lda: int, ldc: int
    ) -> tuple[bytes, bytes]:
        """ormqr: A has m rows on the left, n on the right; complex numbers know N and C only."""
        letters = choose(cublas.SIDES, side), choose(cublas.OPERATIONS, trans)
        order = m if letters[0] == b"L" else n
        sizes(m, n, k)
        leads(lda, order)
        leads(ldc, m)
        wanted = (b"N", b"T") if t in "SD" else (b"N", b"C")
        require(k <= order and letters[1] in wanted, INVALID_VALUE)
        return letters

    @function(f"cusolverDn{{}}{multiply}_bufferSize", "pii iii pi p pi p", types)
    def multiply_room(
        t: str, handle: int, side: int, trans: int, m: int, n: int, k: int, a: int, lda: int,
        tau: int, c: int, ldc: int, result: int,
    ) -> None:  # fmt: skip
        handles[handle]
        product(t, side, trans, m, n, k, lda, ldc)
        store(result, room(t, m, n), "i4")

    @function(f"cusolverDn{{}}{multiply}", "pii iii pi p pi pi p", types)
    def multiply_matrix(
        t: str, handle: int, side: int, trans: int, m: int, n: int, k: int, a: int, lda: int,
        tau: int, c: int, ldc: int, work: int, lwork: int, info: int,
    ) -> None:  # fmt: skip
        context = handles[handle]
        letters = product(t, side, trans, m, n, k, lda, ldc)
        spoil = used(t, work, lwork, room(t, m, n))

        def run() -> None:
            spoil()
            order = m if letters[0] == b"L" else n
            factors = matrix(a, order, k, lda, DTYPES[t]), lda, view(tau, (k,), DTYPES[t])
            target = matrix(c, m, n, ldc, DTYPES[t]), ldc
            store(info, worked(t, routine(t, multiply), *letters, m, n, k, *factors, *target), "i4")

        context.enqueue(f"cusolverDn{t}{multiply}", run)


unitary("SD", "orgqr", "ormqr")
unitary("CZ", "ungqr", "unmqr")


@function("cusolverDn{}gebrd_bufferSize", "pii p", "SDCZ")
def gebrd_room(t: str, handle: int, m: int, n: int, result: int) -> None:
    handles[handle]
    sizes(m, n)
    store(result, room(t, m, n), "i4")


@function("cusolverDn{}gebrd", "pii pi pppp pi p", "SDCZ")
def gebrd(
    t: str, handle: int, m: int, n: int, a: int, lda: int, d: int, e: int, tauq: int, taup: int,
    work: int, lwork: int, info: int,
) -> None:  # fmt: skip
    """gebrd: only m >= n."""
    context = handles[handle]
    sizes(m, n)
    leads(lda, m)
    require(m >= n, INVALID_VALUE)
    spoil = used(t, work, lwork, room(t, m, n))

    def run() -> None:
        spoil()
        diagonals = view(d, (n,), real(t)), view(e, (max(0, n - 1),), real(t))
        reflectors = view(tauq, (n,), DTYPES[t]), view(taup, (n,), DTYPES[t])
        whole = matrix(a, m, n, lda, DTYPES[t])
        store(info, worked(t, routine(t, "gebrd"), m, n, whole, lda, *diagonals, *reflectors), "i4")

    context.enqueue(f"cusolverDn{t}gebrd", run)


# ---------------------------------------------------------------------------- singular values


@function("cusolverDn{}gesvd_bufferSize", "pii p", "SDCZ")
def gesvd_room(t: str, handle: int, m: int, n: int, result: int) -> None:
    handles[handle]
    sizes(m, n)
    require(m >= n, INVALID_VALUE)
    store(result, room(t, m, n), "i4")


@function("cusolverDn{}gesvd", "pii ii pi p pi pi pi p p", "SDCZ")
def gesvd(
    t: str, handle: int, jobu: int, jobvt: int, m: int, n: int, a: int, lda: int, s: int,
    u: int, ldu: int, vt: int, ldvt: int, work: int, lwork: int, rwork: int, info: int,
) -> None:  # fmt: skip
    """gesvd: "supports only m >= n", gives V^H."""
    context = handles[handle]
    jobs = bytes([jobu & 0xFF]), bytes([jobvt & 0xFF])
    require(all(job in b"ASON" for job in jobs) and jobs != (b"O", b"O"), INVALID_VALUE)
    sizes(m, n)
    leads(lda, m)
    leads(ldu, m)
    leads(ldvt, n)
    require(m >= n, INVALID_VALUE)
    spoil = used(t, work, lwork, room(t, m, n))

    def run() -> None:
        spoil()
        columns = {b"A": m, b"S": n}.get(jobs[0], 0)  # 0: the vectors are not written there
        left = matrix(u, m, columns, ldu, DTYPES[t]), ldu
        right = matrix(vt, n if jobs[1] in (b"A", b"S") else 0, n, ldvt, DTYPES[t]), ldvt
        whole, values = matrix(a, m, n, lda, DTYPES[t]), view(s, (n,), real(t))
        if not np.isfinite(whole).all():
            store(info, max(1, n), "i4")  # superdiagonals that did not converge
            return
        tail = (np.empty(5 * max(1, n), real(t)),) if t in "CZ" else ()
        arguments = (*jobs, m, n, whole, lda, values, *left, *right)
        store(info, worked(t, routine(t, "gesvd"), *arguments, tail=tail), "i4")

    context.enqueue(f"cusolverDn{t}gesvd", run)


def decompose(
    t: str, job: int, rank: int, whole: bool, shape: tuple[int, int], a: int, lda: int,
    s: int, u: int, ldu: int, v: int, ldv: int,
) -> tuple[int, float]:  # fmt: skip
    """Writes U, S and V (not V^H) of one matrix; LAPACK's info and the norm of the residual."""
    m, n = shape
    x = matrix(a, m, n, lda, DTYPES[t])
    if not np.isfinite(x).all():
        return min(m, n) + 1, np.nan  # nothing else is written
    try:
        left, values, right = np.linalg.svd(x, full_matrices=whole)
    except np.linalg.LinAlgError:
        return min(m, n) + 1, np.nan
    view(s, (rank,), real(t))[...] = values[:rank]
    columns = (m, n) if whole else (rank, rank)
    if job:
        matrix(u, m, columns[0], ldu, DTYPES[t])[...] = left[:, : columns[0]]
        matrix(v, n, columns[1], ldv, DTYPES[t])[...] = right[: columns[1]].conj().T
    residual = x - (left[:, :rank] * values[:rank]) @ right[:rank]
    return 0, float(np.linalg.norm(residual))


def jacobi(job: int, m: int, n: int, lda: int, ldu: int, ldv: int) -> None:
    """gesvdj: its table of status codes."""
    require(job in (0, 1), INVALID_VALUE)
    sizes(m, n)
    leads(lda, m)
    if job:
        leads(ldu, m)
        leads(ldv, n)


@function("cusolverDn{}gesvdj_bufferSize", "pii ii pi p pi pi p p", "SDCZ")
def gesvdj_room(
    t: str, handle: int, job: int, econ: int, m: int, n: int, a: int, lda: int, s: int,
    u: int, ldu: int, v: int, ldv: int, result: int, params: int,
) -> None:  # fmt: skip
    handles[handle]
    options[params]
    jacobi(job, m, n, lda, ldu, ldv)
    store(result, room(t, m, n), "i4")


@function("cusolverDn{}gesvdj", "pii ii pi p pi pi pi p p", "SDCZ")
def gesvdj(
    t: str, handle: int, job: int, econ: int, m: int, n: int, a: int, lda: int, s: int,
    u: int, ldu: int, v: int, ldv: int, work: int, lwork: int, info: int, params: int,
) -> None:  # fmt: skip
    context = handles[handle]
    options[params]
    jacobi(job, m, n, lda, ldu, ldv)
    require(econ in (0, 1), INVALID_VALUE)
    spoil = used(t, work, lwork, room(t, m, n))

    def run() -> None:
        spoil()
        rank = min(m, n)
        outputs = (s, u, ldu, v, ldv)
        store(info, decompose(t, job, rank, not econ, (m, n), a, lda, *outputs)[0], "i4")

    context.enqueue(f"cusolverDn{t}gesvdj", run)


def small(m: int, n: int) -> None:
    """gesvdjBatched: "m and n are not greater than 32"."""
    require(m <= 32 and n <= 32, INVALID_VALUE)


@function("cusolverDn{}gesvdjBatched_bufferSize", "pi ii pi p pi pi p pi", "SDCZ")
def gesvdj_batched_room(
    t: str, handle: int, job: int, m: int, n: int, a: int, lda: int, s: int, u: int, ldu: int,
    v: int, ldv: int, result: int, params: int, batch: int,
) -> None:  # fmt: skip
    handles[handle]
    options[params]
    jacobi(job, m, n, lda, ldu, ldv)
    small(m, n)
    sizes(batch)
    store(result, room(t, m, n), "i4")


@function("cusolverDn{}gesvdjBatched", "pi ii pi p pi pi pi p pi", "SDCZ")
def gesvdj_batched(
    t: str, handle: int, job: int, m: int, n: int, a: int, lda: int, s: int, u: int, ldu: int,
    v: int, ldv: int, work: int, lwork: int, infos: int, params: int, batch: int,
) -> None:  # fmt: skip
    """gesvdjBatched: matrices lie lda * n, vectors min(m, n), U ldu * m and V ldv * n apart."""
    context = handles[handle]
    options[params]
    jacobi(job, m, n, lda, ldu, ldv)
    small(m, n)
    sizes(batch)
    spoil = used(t, work, lwork, room(t, m, n))
    item, rank = DTYPES[t].itemsize, min(m, n)

    def run() -> None:
        spoil()
        for i in range(batch):
            info, _ = decompose(
                t, job, rank, True, (m, n), a + i * lda * n * item, lda,
                s + i * rank * real(t).itemsize, u + i * ldu * m * item, ldu,
                v + i * ldv * n * item, ldv,
            )  # fmt: skip
            store(infos + 4 * i, info, "i4")

    context.enqueue(f"cusolverDn{t}gesvdjBatched", run)


@function("cusolverDn{}gesvdaStridedBatched_bufferSize", "piiii pil pl pil pil p i", "SDCZ")
def gesvda_room(
    t: str, handle: int, job: int, rank: int, m: int, n: int, a: int, lda: int, stridea: int,
    s: int, strides: int, u: int, ldu: int, strideu: int, v: int, ldv: int, stridev: int,
    result: int, batch: int,
) -> None:  # fmt: skip
    handles[handle]
    jacobi(job, m, n, lda, ldu, ldv)
    sizes(batch)
    require(m >= n >= rank >= 1, INVALID_VALUE)
    store(result, room(t, m, n), "i4")


@function("cusolverDn{}gesvdaStridedBatched", "piiii pil pl pil pil pi pp i", "SDCZ")
def gesvda(
    t: str, handle: int, job: int, rank: int, m: int, n: int, a: int, lda: int, stridea: int,
    s: int, strides: int, u: int, ldu: int, strideu: int, v: int, ldv: int, stridev: int,
    work: int, lwork: int, infos: int, residuals: int, batch: int,
) -> None:  # fmt: skip
    """gesvdaStridedBatched: tall matrices, the first `rank` singular values, V and not V^H.

    The norms of the residuals go to the host, if an address is given; this waits for them.
    """
    context = handles[handle]
    jacobi(job, m, n, lda, ldu, ldv)
    sizes(batch)
    require(m >= n >= rank >= 1, INVALID_VALUE)
    spoil = used(t, work, lwork, room(t, m, n))
    item = DTYPES[t].itemsize

    norms: list[float] = []

    def run() -> None:
        spoil()
        for i in range(batch):
            info, residual = decompose(
                t, job, rank, False, (m, n), a + i * stridea * item, lda,
                s + i * strides * real(t).itemsize, u + i * strideu * item, ldu,
                v + i * stridev * item, ldv,
            )  # fmt: skip
            store(infos + 4 * i, info, "i4")
            if residuals:
                norms.append(residual)

    context.enqueue(f"cusolverDn{t}gesvdaStridedBatched", run)
    if residuals:
        require(runtime.synchronize(context.stream) == 0, EXECUTION_FAILED)
        view(residuals, (len(norms),), "f8")[...] = norms


# ---------------------------------------------------------------------------- eigenvalues


def eigen(t: str, job: int, part: bytes, n: int, a: int, lda: int, w: int) -> int:
    """syevd, heevd: ascending eigenvalues, vectors in place of A; otherwise A is destroyed."""
    name = routine(t, "syevd", "heevd")
    letter = b"V" if job else b"N"
    work, small_work = np.empty(1, DTYPES[t]), np.empty(1, "i4")
    rest: tuple[Any, ...] = (small_work, -1)
    if t in "CZ":
        rest = (np.empty(1, real(t)), -1, *rest)
    whole, values = matrix(a, n, n, lda, DTYPES[t]), view(w, (n,), real(t))
    if not np.isfinite((np.triu if part == b"U" else np.tril)(whole)).all():
        return max(1, n)  # the iteration does not converge
    call(name, letter, part, n, whole, lda, values, work, -1, *rest)
    work = np.empty(max(1, int(work[0].real)), DTYPES[t])
    ranges = []
    for asked in rest[::2]:
        ranges += [np.empty(max(1, int(asked[0])), asked.dtype), max(1, int(asked[0]))]
    return unless_failed(
        lambda copy, found: call(
            name, letter, part, n, copy, max(1, n), found, work, len(work), *ranges),
        whole, values)


def symmetric(job: int, uplo: int, n: int, lda: int) -> bytes:
    require(job in (0, 1), INVALID_VALUE)
    sizes(n)
    leads(lda, n)
    return choose(cublas.FILLS, uplo)


def eigenvalues(types: str, kind: str, jacobi_kind: str) -> None:
    """syevd, syevj and syevjBatched, for complex numbers heevd, heevj and heevjBatched."""

    @function(f"cusolverDn{{}}{kind}_bufferSize", "piii pi p p", types)
    def direct_room(
        t: str, handle: int, job: int, uplo: int, n: int, a: int, lda: int, w: int, result: int
    ) -> None:
        handles[handle]
        symmetric(job, uplo, n, lda)
        store(result, room(t, n), "i4")

    @function(f"cusolverDn{{}}{jacobi_kind}_bufferSize", "piii pi p p p", types)
    def jacobi_room(
        t: str, handle: int, job: int, uplo: int, n: int, a: int, lda: int, w: int, result: int,
        params: int,
    ) -> None:  # fmt: skip
        handles[handle]
        options[params]
        symmetric(job, uplo, n, lda)
        store(result, room(t, n), "i4")

    @function(f"cusolverDn{{}}{jacobi_kind}Batched_bufferSize", "piii pi p p p i", types)
    def batched_room(
        t: str, handle: int, job: int, uplo: int, n: int, a: int, lda: int, w: int, result: int,
        params: int, batch: int,
    ) -> None:  # fmt: skip
        handles[handle]
        options[params]
        symmetric(job, uplo, n, lda)
        sizes(batch)
        store(result, room(t, n), "i4")

    @function(f"cusolverDn{{}}{kind}", "piii pi p pi p", types)
    def direct(
        t: str, handle: int, job: int, uplo: int, n: int, a: int, lda: int, w: int,
        work: int, lwork: int, info: int, name: str = kind, batch: int = 1,
    ) -> None:  # fmt: skip
        context, part = handles[handle], symmetric(job, uplo, n, lda)
        spoil = used(t, work, lwork, room(t, n))

        def run() -> None:
            spoil()
            for i in range(batch):
                matrix_at = a + i * lda * n * DTYPES[t].itemsize
                values_at = w + i * n * real(t).itemsize
                store(info + 4 * i, eigen(t, job, part, n, matrix_at, lda, values_at), "i4")

        context.enqueue(f"cusolverDn{t}{name}", run)

    @function(f"cusolverDn{{}}{jacobi_kind}", "piii pi p pi p p", types)
    def one(t: str, *arguments: int) -> None:
        *rest, params = arguments
        options[params]
        direct(t, *rest, name=jacobi_kind)

    @function(f"cusolverDn{{}}{jacobi_kind}Batched", "piii pi p pi p p i", types)
    def batched(t: str, *arguments: int) -> None:
        """syevjBatched: matrices lie lda * n, eigenvalues n apart."""
        *rest, params, batch = arguments
        options[params]
        sizes(batch)
        direct(t, *rest, name=f"{jacobi_kind}Batched", batch=batch)


eigenvalues("SD", "syevd", "syevj")
eigenvalues("CZ", "heevd", "heevj")

# Xsyevd: (type of A, of W, compute type) -> the routine's letter; one row per data type.
SYEVD_TYPES = {
    (cublas.R32F, cublas.R32F, cublas.R32F): "S",
    (cublas.R64F, cublas.R64F, cublas.R64F): "D",
    (cublas.C32F, cublas.R32F, cublas.C32F): "C",
    (cublas.C64F, cublas.R64F, cublas.C64F): "Z",
}


def typed(atype: int, wtype: int, compute: int) -> str:
    types = (atype, wtype, compute)
    require(types in SYEVD_TYPES, INVALID_VALUE)
    return SYEVD_TYPES[types]


@function("cusolverDnXsyevd_bufferSize", "pp ii l i pl i p i pp")
def xsyevd_room(
    handle: int, params: int, job: int, uplo: int, n: int, atype: int, a: int, lda: int,
    wtype: int, w: int, compute: int, on_device: int, on_host: int,
) -> None:  # fmt: skip
    handles[handle]
    symmetric(job, uplo, n, lda)
    t = typed(atype, wtype, compute)
    store(on_device, room(t, n) * DTYPES[t].itemsize, "u8")
    store(on_host, 0, "u8")


@function("cusolverDnXsyevd", "pp ii l i pl i p i pz pz p")
def xsyevd(
    handle: int, params: int, job: int, uplo: int, n: int, atype: int, a: int, lda: int,
    wtype: int, w: int, compute: int, work: int, nbytes: int, host: int, host_bytes: int,
    info: int,
) -> None:  # fmt: skip
    context, part = handles[handle], symmetric(job, uplo, n, lda)
    t = typed(atype, wtype, compute)
    spoil = used(t, work, nbytes // DTYPES[t].itemsize, room(t, n))

    def run() -> None:
        spoil()
        store(info, eigen(t, job, part, n, a, lda, w), "i4")

    context.enqueue("cusolverDnXsyevd", run)


# Xgeev: (type of A, of W, of VR, compute type) -> the routine's letter; W is always complex.
GEEV_TYPES = {
    (cublas.R32F, cublas.C32F, cublas.R32F, cublas.R32F): "S",
    (cublas.R64F, cublas.C64F, cublas.R64F, cublas.R64F): "D",
    (cublas.C32F, cublas.C32F, cublas.C32F, cublas.C32F): "C",
    (cublas.C64F, cublas.C64F, cublas.C64F, cublas.C64F): "Z",
}


def general(
    left: int, right: int, n: int, lda: int, ldvr: int, atype: int, wtype: int, vltype: int,
    vrtype: int, compute: int,
) -> str:  # fmt: skip
    """Xgeev: left eigenvectors are not supported."""
    require(left == 0 and right in (0, 1), INVALID_VALUE)
    sizes(n)
    leads(lda, n)
    leads(ldvr, n if right else 1)
    types = (atype, wtype, vrtype, compute)
    require(types in GEEV_TYPES and vltype == vrtype, INVALID_VALUE)
    return GEEV_TYPES[types]


@function("cusolverDnXgeev_bufferSize", "pp ii l i pl i p i pl i pl i pp")
def xgeev_room(
    handle: int, params: int, left: int, right: int, n: int, atype: int, a: int, lda: int,
    wtype: int, w: int, vltype: int, vl: int, ldvl: int, vrtype: int, vr: int, ldvr: int,
    compute: int, on_device: int, on_host: int,
) -> None:  # fmt: skip
    handles[handle]
    t = general(left, right, n, lda, ldvr, atype, wtype, vltype, vrtype, compute)
    store(on_device, room(t, n) * DTYPES[t].itemsize, "u8")
    store(on_host, 0, "u8")


@function("cusolverDnXgeev", "pp ii l i pl i p i pl i pl i pz pz p")
def xgeev(
    handle: int, params: int, left: int, right: int, n: int, atype: int, a: int, lda: int,
    wtype: int, w: int, vltype: int, vl: int, ldvl: int, vrtype: int, vr: int, ldvr: int,
    compute: int, work: int, nbytes: int, host: int, host_bytes: int, info: int,
) -> None:  # fmt: skip
    """Vectors of a real matrix are LAPACK's: of a pair, real parts, then imaginary parts."""
    context = handles[handle]
    t = general(left, right, n, lda, ldvr, atype, wtype, vltype, vrtype, compute)
    spoil = used(t, work, nbytes // DTYPES[t].itemsize, room(t, n))

    def run() -> None:
        spoil()
        job, none = b"V" if right else b"N", np.empty(1, DTYPES[t])
        parts = [np.empty(n, DTYPES[t]) for _ in range(1 if t in "CZ" else 2)]
        vectors = matrix(vr, n, n if right else 0, ldvr, DTYPES[t])
        outputs = (*parts, none, 1, vectors, max(1, ldvr))
        tail = (np.empty(2 * max(1, n), real(t)),) if t in "CZ" else ()
        whole = matrix(a, n, n, lda, DTYPES[t])
        found = worked(t, routine(t, "geev"), b"N", job, n, whole, lda, *outputs, tail=tail)
        values = parts[0] if t in "CZ" else parts[0] + 1j * parts[1]
        view(w, (n,), cublas.NUMPY[wtype])[...] = values
        store(info, found, "i4")

    context.enqueue("cusolverDnXgeev", run)
