"""cuBLAS over BLAS on raw pointers.

Sources, named beside each rule: NVIDIA's "cuBLAS" documentation (CUDA 13.0), by the title of the
section, which mostly is a function. Matrices are column-major with a leading dimension, and indices
that are results count from 1 ("Data Layout").
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gtensor.hostcuda.libraries.calls import (
    BFLOAT16,
    DTYPES,
    Context,
    Handles,
    Library,
    Traffic,
    matrix,
    pointers,
    require,
    runtime,
    scalar,
    store,
    traffic_of_product,
    vector,
    view,
    wide,
)
from gtensor.hostcuda.libraries.lapack import call

# cublasStatus_t
NOT_INITIALIZED, INVALID_VALUE, EXECUTION_FAILED = 1, 7, 13
INTERNAL_ERROR, NOT_SUPPORTED = 14, 15
VERSION = 130000  # 13.0.0

library = Library("libcublas.so.13", refusal=NOT_SUPPORTED, internal=INTERNAL_ERROR)
function = library.function

HOST, DEVICE = 0, 1  # cublasPointerMode_t
# cublasOperation_t; 3, CONJG, is no operation of these routines
OPERATIONS = {0: b"N", 1: b"T", 2: b"C"}
FILLS = {0: b"L", 1: b"U"}  # cublasFillMode_t
DIAGONALS = {0: b"N", 1: b"U"}  # cublasDiagType_t
SIDES = {0: b"L", 1: b"R"}  # cublasSideMode_t
PEDANTIC, TF32 = 2, 3  # cublasMath_t
MATH_MODES = {0, 1, PEDANTIC, 3, 4}
DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # may be added to a mode


class Handle(Context):
    """A cuBLAS context: what its calls have in common."""

    def __init__(self) -> None:
        super().__init__(EXECUTION_FAILED)
        self.pointer_mode = HOST
        self.math_mode = 0
        self.workspace = (0, 0)


handles = Handles(NOT_INITIALIZED)


def number(handle: Handle, address: int, dtype: Any) -> Callable[[], Any]:
    """A scalar argument: read now from the host, or in the queue from the device.

    "Scalar Parameters".
    """
    require(bool(address), INVALID_VALUE)
    if handle.pointer_mode == DEVICE:
        return lambda: scalar(address, dtype)
    value = scalar(address, dtype)
    return lambda: value


def deliver(handle: Handle, name: str, address: int, dtype: Any, compute: Callable) -> None:
    """A scalar result: to the device, or to the host after a wait, which capture forbids.

    "CUDA Graphs Support".
    """
    require(bool(address), INVALID_VALUE)
    waits = handle.pointer_mode == HOST
    require(not (waits and runtime.is_capturing(handle.stream)), EXECUTION_FAILED)
    if not waits:
        handle.enqueue(name, lambda: store(address, compute(), dtype))
        return
    results: list[Any] = []
    handle.enqueue(name, lambda: results.append(compute()))
    require(runtime.synchronize(handle.stream) == 0, EXECUTION_FAILED)
    for result in results:  # none in dry mode
        store(address, result, dtype)


def choose(table: dict[int, bytes], value: int) -> bytes:
    """A BLAS letter for one of NVIDIA's enumerators."""
    require(value in table, INVALID_VALUE)
    return table[value]


def sizes(*values: int) -> None:
    """Refuses a negative size (every routine's table of status codes: m, n, k, batchCount < 0)."""
    require(all(value >= 0 for value in values), INVALID_VALUE)


def leads(ld: int, rows: int) -> None:
    """Refuses a leading dimension that is less than max(1, rows) (every routine's table)."""
    require(ld >= max(1, rows), INVALID_VALUE)


def steps(*values: int) -> None:
    """Refuses an increment of 0 (each level 2 routine's table: incx, incy == 0)."""
    require(all(values), INVALID_VALUE)


def aligned(dtype: Any, *addresses: int) -> None:
    """Memory is read in whole elements (CUDA C++ Programming Guide, "Device Memory Accesses")."""
    size = min(np.dtype(dtype).itemsize, 16)
    require(all(address % size == 0 for address in addresses), EXECUTION_FAILED)


# ---------------------------------------------------------------------------- helpers


@function("cublasCreate_v2", "p")
def create(result: int) -> None:
    require(bool(result), INVALID_VALUE)
    store(result, handles.add(Handle()), "u8")


@function("cublasDestroy_v2", "p")
def destroy(handle: int) -> None:
    handles.remove(handle)


@function("cublasGetVersion_v2", "pp")
def get_version(_: int, result: int) -> None:
    require(bool(result), INVALID_VALUE)
    store(result, VERSION, "i4")


@function("cublasGetProperty", "ip")
def get_property(kind: int, result: int) -> None:
    require(kind in (0, 1, 2) and bool(result), INVALID_VALUE)
    store(result, (VERSION // 10000, VERSION // 100 % 100, VERSION % 100)[kind], "i4")


@function("cublasSetStream_v2", "pp")
def set_stream(handle: int, stream: int) -> None:
    """It "unconditionally resets the cuBLAS library workspace back to the default"."""
    context = handles[handle]
    context.stream, context.workspace = stream, (0, 0)


@function("cublasGetStream_v2", "pp")
def get_stream(handle: int, result: int) -> None:
    require(bool(result), INVALID_VALUE)
    store(result, handles[handle].stream, "u8")


@function("cublasSetWorkspace_v2", "ppz")
def set_workspace(handle: int, workspace: int, size: int) -> None:
    """The address must be aligned to 256 bytes."""
    require(workspace % 256 == 0, INVALID_VALUE)
    handles[handle].workspace = (workspace, size)


@function("cublasSetPointerMode_v2", "pi")
def set_pointer_mode(handle: int, mode: int) -> None:
    require(mode in (HOST, DEVICE), INVALID_VALUE)
    handles[handle].pointer_mode = mode


@function("cublasGetPointerMode_v2", "pp")
def get_pointer_mode(handle: int, result: int) -> None:
    require(bool(result), INVALID_VALUE)
    store(result, handles[handle].pointer_mode, "i4")


@function("cublasSetMathMode", "pi")
def set_math_mode(handle: int, mode: int) -> None:
    """Any other value is refused."""
    require(mode & ~DISALLOW_REDUCED_PRECISION_REDUCTION in MATH_MODES, INVALID_VALUE)
    handles[handle].math_mode = mode


@function("cublasGetMathMode", "pp")
def get_math_mode(handle: int, result: int) -> None:
    require(bool(result), INVALID_VALUE)
    store(result, handles[handle].math_mode, "i4")


# ---------------------------------------------------------------------------- level 1


def real(dtype: np.dtype) -> np.dtype:
    return np.empty(0, dtype).real.dtype


def taxicab(x: np.ndarray) -> np.ndarray:
    """|Re| + |Im|, which is what BLAS takes for the size of a complex number."""
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


def summary(name: str, letter: str, dtype: np.dtype, compute: Callable[[np.ndarray], Any]) -> None:
    """A function of one vector; 0 if n or incx is not positive."""

    @function(f"{name}_v2", "pi pi p")
    def summarize(handle: int, n: int, x: int, step: int, result: int) -> None:
        deliver(
            handles[handle], name, result, dtype,
            lambda: compute(vector(x, n, step, DTYPES[letter])) if n > 0 < step else 0,
        )  # fmt: skip


def norm(x: np.ndarray) -> Any:
    """nrm2: it does not overflow where the result does not."""
    wide = np.abs(x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble))
    return np.sqrt(np.sum(wide * wide))


for letter, spelled in (("S", "S"), ("D", "D"), ("C", "Sc"), ("Z", "Dz")):
    low, index = letter.lower(), np.dtype("i4")
    # The smallest index of the extreme, from 1.
    summary(f"cublasI{low}amax", letter, index, lambda x: np.argmax(taxicab(x)) + 1)
    summary(f"cublasI{low}amin", letter, index, lambda x: np.argmin(taxicab(x)) + 1)
    summary(f"cublas{spelled}asum", letter, real(DTYPES[letter]), lambda x: taxicab(x).sum())
    summary(f"cublas{spelled}nrm2", letter, real(DTYPES[letter]), norm)


@function("cublas{}axpy_v2", "pi p pi pi", "SDCZ")
def axpy(t: str, handle: int, n: int, alpha: int, x: int, incx: int, y: int, incy: int) -> None:
    context = handles[handle]
    scale = number(context, alpha, DTYPES[t])
    name = f"{t.lower()}axpy"

    def work() -> None:
        factor = scale()
        if factor:  # else neither x nor y is read
            vectors = vector(x, n, incx, DTYPES[t]), incx, vector(y, n, incy, DTYPES[t]), incy
            call(name, n, factor, *vectors)

    if n > 0:
        context.enqueue(f"cublas{t}axpy", work)


def inner(name: str, letter: str, conjugate: bool) -> None:
    def dot(handle: int, n: int, x: int, incx: int, y: int, incy: int, result: int) -> None:
        dtype = DTYPES[letter]

        def compute() -> Any:
            if n <= 0:
                return 0
            first, second = vector(x, n, incx, dtype), vector(y, n, incy, dtype)
            return (np.vdot if conjugate else np.dot)(first, second)

        deliver(handles[handle], name, result, dtype, compute)

    function(f"{name}_v2", "pi pi pi p")(dot)


for letter, ending in (("S", "dot"), ("D", "dot"), ("C", "dotu"), ("Z", "dotu")):
    inner(f"cublas{letter}{ending}", letter, conjugate=False)
for letter in "CZ":
    inner(f"cublas{letter}dotc", letter, conjugate=True)


def scaling(name: str, t: str, factor: str) -> None:
    def scal(handle: int, n: int, alpha: int, x: int, step: int) -> None:
        context = handles[handle]
        scale = number(context, alpha, DTYPES[factor])

        def work() -> None:
            if n > 0 < step:
                values = vector(x, n, step, DTYPES[t])
                values *= values.dtype.type(scale())

        context.enqueue(name, work)

    function(f"{name}_v2", "pi p pi")(scal)


for name, t, factor in (
    ("Sscal", "S", "S"), ("Dscal", "D", "D"), ("Cscal", "C", "C"), ("Zscal", "Z", "Z"),
    ("Csscal", "C", "S"), ("Zdscal", "Z", "D"),
):  # fmt: skip
    scaling(f"cublas{name}", t, factor)


# ---------------------------------------------------------------------------- level 2


@function("cublas{}gemv_v2", "pi ii p pi pi p pi", "SDCZ")
def gemv(
    t: str, handle: int, trans: int, m: int, n: int, alpha: int, a: int, lda: int,
    x: int, incx: int, beta: int, y: int, incy: int,
) -> None:  # fmt: skip
    context, op = handles[handle], choose(OPERATIONS, trans)
    sizes(m, n)
    leads(lda, m)
    steps(incx, incy)
    one, two = number(context, alpha, DTYPES[t]), number(context, beta, DTYPES[t])

    def work() -> None:
        length = m if op == b"N" else n
        target = vector(y, length, incy, DTYPES[t])
        scale = two()
        if scale == 0:  # BLAS: y is not read
            target[...] = 0
        name = f"{t.lower()}gemv"
        factor = one()
        if m and n and factor:  # else A and x are not read
            source = vector(x, n if op == b"N" else m, incx, DTYPES[t])
            sides = matrix(a, m, n, lda, DTYPES[t]), lda, source, incx
            call(name, op, m, n, factor, *sides, scale or scale + 1, target, incy)
        else:
            target *= target.dtype.type(scale)

    size = DTYPES[t].itemsize
    context.enqueue(f"cublas{t}gemv", work, Traffic(size * (m * n + m + n), size * max(m, n)))


def outer(ending: str, types: str) -> None:
    @function(f"cublas{{}}{ending}_v2", "pii p pi pi pi", types)
    def ger(
        t: str, handle: int, m: int, n: int, alpha: int, x: int, incx: int, y: int, incy: int,
        a: int, lda: int,
    ) -> None:  # fmt: skip
        context = handles[handle]
        sizes(m, n)
        leads(lda, m)
        steps(incx, incy)
        scale, dtype = number(context, alpha, DTYPES[t]), DTYPES[t]

        def work() -> None:
            factor = scale()
            if m and n and factor:  # else nothing is read
                sides = vector(x, m, incx, dtype), incx, vector(y, n, incy, dtype), incy
                target = matrix(a, m, n, lda, dtype)
                call(f"{t.lower()}{ending}", m, n, factor, *sides, target, lda)

        context.enqueue(f"cublas{t}{ending}", work)


outer("ger", "SD")
outer("geru", "CZ")
outer("gerc", "CZ")


@function("cublas{}sbmv_v2", "pi ii p pi pi p pi", "SD")
def sbmv(
    t: str, handle: int, uplo: int, n: int, k: int, alpha: int, a: int, lda: int,
    x: int, incx: int, beta: int, y: int, incy: int,
) -> None:  # fmt: skip
    context, part = handles[handle], choose(FILLS, uplo)
    sizes(n, k)
    leads(lda, k + 1)
    steps(incx, incy)
    one, two = number(context, alpha, DTYPES[t]), number(context, beta, DTYPES[t])

    def work() -> None:
        factor, scale, target = one(), two(), vector(y, n, incy, DTYPES[t])
        if scale == 0:
            target[...] = 0
        if factor:  # else A and x are not read
            sides = matrix(a, k + 1, n, lda, DTYPES[t]), lda, vector(x, n, incx, DTYPES[t]), incx
            call(f"{t.lower()}sbmv", part, n, k, factor, *sides, scale or 1.0, target, incy)
        else:
            target *= target.dtype.type(scale)

    context.enqueue(f"cublas{t}sbmv", work)


# ---------------------------------------------------------------------------- products


class Types:
    """What a product reads, computes in and writes; if `fast`, float32 is multiplied as TF32."""

    def __init__(self, a: Any, b: Any, c: Any, compute: Any, scale: Any, *, fast: bool = False
                 ) -> None:
        self.fast = fast
        self.a, self.b, self.c, self.compute, self.scale = map(np.dtype, (a, b, c, compute, scale))

    @property
    def letter(self) -> str:
        """BLAS's letter where all types are one that BLAS has, else an empty string."""
        same = {self.a, self.b, self.c, self.compute, self.scale}
        return next((t.lower() for t, dtype in DTYPES.items() if same == {dtype}), "")


def operated(op: bytes, x: np.ndarray) -> np.ndarray:
    """N, T or C of a matrix (cublasOperation_t)."""
    if op == b"N":
        return x
    return x.T.conj() if op == b"C" and x.dtype.kind == "c" else x.T


class Product:
    """C = alpha op(A) op(B) + beta C, checked (gemm's table of status codes), for one or many."""

    def __init__(
        self, handle: int, types: Types, transa: int, transb: int, m: int, n: int, k: int,
        alpha: int, lda: int, ldb: int, beta: int, ldc: int,
    ) -> None:  # fmt: skip
        self.context, self.types, self.shape = handles[handle], types, (m, n, k)
        self.ops = choose(OPERATIONS, transa), choose(OPERATIONS, transb)
        sizes(m, n, k)
        leads(lda, m if self.ops[0] == b"N" else k)
        leads(ldb, k if self.ops[1] == b"N" else n)
        leads(ldc, m)
        self.lds = lda, ldb, ldc
        self.alpha = number(self.context, alpha, types.scale)
        self.beta = number(self.context, beta, types.scale)
        self.tf32 = fast(self.context) or types.fast

    def enqueue(self, name: str, batch: Callable[[], list[tuple[int, int, int]]], count: int = 1,
                steps: tuple[int, ...] = (1, 1)) -> None:
        """Queues products of (a, b, c), whose addresses are asked for in the queue."""
        workspace, size = self.context.workspace

        def work() -> None:
            if workspace and size:  # a kernel may write anywhere in it: it has to be there
                view(workspace, (size,), "u1")[:: max(1, size - 1)] = 0xA5
            alpha, beta = self.alpha(), self.beta()
            for a, b, c in batch():
                self.run(alpha, a, b, beta, c)

        reads_out = self.context.pointer_mode == DEVICE or bool(self.beta())
        self.context.enqueue(name, work, traffic_of_product(
            self.shape, count, steps, self.types, self.lds, reads_out, self.tf32))

    def run(self, alpha: Any, a: int, b: int, beta: Any, c: int) -> None:
        (m, n, k), (lda, ldb, ldc), (opa, opb) = self.shape, self.lds, self.ops
        types = self.types
        if not m or not n:
            return
        k = k if alpha else 0  # A and B are not read
        shapes = [(m, k) if opa == b"N" else (k, m), (k, n) if opb == b"N" else (n, k)]
        left, right = matrix(a, *shapes[0], lda, types.a), matrix(b, *shapes[1], ldb, types.b)
        out = matrix(c, m, n, ldc, types.c)
        if types.letter:
            name = f"{types.letter}gemm"
            call(name, opa, opb, m, n, k, alpha, left, lda, right, ldb, beta, out, ldc)
            return
        total = accumulate((operated(opa, left), operated(opb, right)), types, alpha)
        if beta:  # gemm: "if beta == 0, C does not have to be a valid input"
            total = total + types.compute.type(beta) * out.astype(types.compute)
        out[...] = total.astype(types.c)


def accumulate(sides: tuple[np.ndarray, np.ndarray], types: Types, alpha: Any) -> np.ndarray:
    """alpha A B in the compute type; sums of products of 8-bit integers are exact in float64."""
    if not alpha:
        return np.zeros((sides[0].shape[0], sides[1].shape[1]), types.compute)
    wide = np.dtype("f8") if types.compute.kind == "i" else types.compute
    total = sides[0].astype(wide) @ sides[1].astype(wide)
    if types.compute.kind == "i":
        total = total.astype("i8").astype(types.compute)
    return types.compute.type(alpha) * total


VECTOR = 16  # bytes


def listed(
    types: Types, addresses: tuple[int, int, int], batch: int, vectors: bool
) -> list[tuple[int, int, int]]:
    """The matrices of a batch, from its arrays of addresses; only within queued work.

    They lie at whole elements ("Device Memory Accesses" as above). With `vectors` a kernel may load
    16 bytes at once and fault ("cublasGemmBatchedEx": halves, the FAST compute types and fast math
    modes need aligned pointers, ideally to 16 bytes. For some k it recommends less; here it is
    always 16).
    """
    rows = [pointers(address, batch) for address in addresses]
    for dtype, row in zip((types.a, types.b, types.c), rows, strict=True):
        for address in row:
            least = VECTOR if vectors else min(dtype.itemsize, VECTOR)
            wide(address, least, "a matrix of a batch by addresses lies")
    return list(zip(*rows, strict=True))


def fast(context: Handle) -> bool:
    """Whether products of float32 and complex64 are in TF32 by the math mode."""
    return context.math_mode & ~DISALLOW_REDUCED_PRECISION_REDUCTION == TF32


def strided(start: int, stride: int, count: int, dtype: np.dtype) -> list[int]:
    return [start + i * stride * dtype.itemsize for i in range(count)]


def apart(shape: tuple[int, int, int], ldc: int, stride: int, batch: int) -> None:
    """The results of a strided batch may not overlap, "otherwise, undefined behavior"."""
    m, n, _ = shape
    extent = (n - 1) * ldc + m if m and n else 0
    interleaved = abs(stride) * batch <= ldc - m + abs(stride) and abs(stride) >= m
    require(batch < 2 or abs(stride) >= extent or interleaved, INVALID_VALUE)


@function("cublas{}gemm_v2", "pii iii p pi pi p pi", "SDCZ")
def gemm(
    t: str, handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, a: int, lda: int, b: int, ldb: int, beta: int, c: int, ldc: int,
) -> None:  # fmt: skip
    types = Types(*[DTYPES[t]] * 5)
    product = Product(handle, types, transa, transb, m, n, k, alpha, lda, ldb, beta, ldc)
    aligned(DTYPES[t], a, b, c)
    product.enqueue(f"cublas{t}gemm", lambda: [(a, b, c)])


@function("cublas{}gemmBatched", "pii iii p pi pi p pi i", "SDCZ")
def gemm_batched(
    t: str, handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, a: int, lda: int, b: int, ldb: int, beta: int, c: int, ldc: int, batch: int,
) -> None:  # fmt: skip
    types = Types(*[DTYPES[t]] * 5)
    product = Product(handle, types, transa, transb, m, n, k, alpha, lda, ldb, beta, ldc)
    sizes(batch)
    # "cublas<t>gemmBatched": pointers have to be aligned if the math mode is a fast one
    vectors = t in "SC" and fast(product.context)
    product.enqueue(f"cublas{t}gemmBatched", lambda: listed(types, (a, b, c), batch, vectors),
                    batch)


@function("cublas{}gemmStridedBatched", "pii iii p pil pil p pil i", "SDCZ")
def gemm_strided_batched(
    t: str, handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, a: int, lda: int, stridea: int, b: int, ldb: int, strideb: int,
    beta: int, c: int, ldc: int, stridec: int, batch: int,
) -> None:  # fmt: skip
    types = Types(*[DTYPES[t]] * 5)
    product = Product(handle, types, transa, transb, m, n, k, alpha, lda, ldb, beta, ldc)
    enqueue_strided(
        product, f"cublas{t}gemmStridedBatched", (a, b, c), (stridea, strideb, stridec), batch
    )


def enqueue_strided(
    product: Product, name: str, starts: tuple[int, ...], strides: tuple[int, ...], batch: int
) -> None:
    types = product.types
    sizes(batch)
    apart(product.shape, product.lds[2], strides[2], batch)
    dtypes = (types.a, types.b, types.c)
    rows = [
        strided(start, stride, batch, dtype)
        for start, stride, dtype in zip(starts, strides, dtypes, strict=True)
    ]
    for dtype, row in zip(dtypes, rows, strict=True):
        aligned(dtype, *row[:2])
    product.enqueue(name, lambda: list(zip(*rows, strict=True)), batch, strides)


# cudaDataType (library_types.h)
R32F, R64F, R16F, R8I, C32F, C64F, C8I, R32I, R16BF = 0, 1, 2, 3, 4, 5, 7, 10, 14
NUMPY = {
    R32F: "f4", R64F: "f8", R16F: "f2", R8I: "i1", C32F: "c8", C64F: "c16", R32I: "i4",
    R16BF: BFLOAT16,
}  # fmt: skip
# cublasGemmEx: compute type -> (type of A and B, type of C) -> (compute in, scale type).
# Complex 8-bit integers are in NVIDIA's table and not here.
_SINGLE = {
    (R16BF, R16BF): ("f4", R32F), (R16F, R16F): ("f4", R32F), (R8I, R32F): ("f4", R32F),
    (R16BF, R32F): ("f4", R32F), (R16F, R32F): ("f4", R32F), (R32F, R32F): ("f4", R32F),
    (C32F, C32F): ("c8", C32F),
}  # fmt: skip
_FAST = {(R32F, R32F): ("f4", R32F), (C32F, C32F): ("c8", C32F)}
_DOUBLE = {(R64F, R64F): ("f8", R64F), (C64F, C64F): ("c16", C64F)}
_HALF = {(R16F, R16F): ("f4", R16F)}
_INTEGER = {(R8I, R32I): ("i4", R32I)}
COMPUTE = {
    64: _HALF, 65: _HALF, 68: _SINGLE, 69: _SINGLE, 74: _FAST, 75: _FAST, 77: _FAST, 78: _FAST,
    70: _DOUBLE, 71: _DOUBLE, 72: _INTEGER, 73: _INTEGER,
}  # fmt: skip
# cublasSgemmEx: type of C -> types of A and B.
SGEMM_EX = {R16BF: {R16BF}, R16F: {R16F}, R32F: {R8I, R16BF, R16F, R32F}}
# cublasGemmAlgo_t; all but the defaults have no effect since Ampere.
ALGORITHMS = {-1, 99, 999, *range(24), *range(100, 116)}


def mixed(atype: int, btype: int, ctype: int, compute: int) -> Types:
    """The types of cublasGemmEx, refused where NVIDIA's table has no such row."""
    row = COMPUTE.get(compute, {}).get((atype, ctype))
    require(row is not None and atype == btype, NOT_SUPPORTED)
    assert row is not None
    return Types(NUMPY[atype], NUMPY[btype], NUMPY[ctype], row[0], NUMPY[row[1]],
                 fast=COMPUTE[compute] is _FAST)


def integers(types: Types, lds: tuple[int, ...], *addresses: int) -> None:
    """8-bit inputs of integer products: 4-byte alignment, lda and ldb multiples of 4."""
    if types.compute.kind == "i":
        require(all(value % 4 == 0 for value in (*lds[:2], *addresses)), NOT_SUPPORTED)


@function("cublasGemmEx_64", "pii lll p pil pil p pil ii")  # "64-bit Integer Interface"
@function("cublasGemmEx", "pii iii p pii pii p pii ii")
def gemm_ex(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int,
    a: int, atype: int, lda: int, b: int, btype: int, ldb: int,
    beta: int, c: int, ctype: int, ldc: int, compute: int, algorithm: int,
) -> None:  # fmt: skip
    types = mixed(atype, btype, ctype, compute)
    require(algorithm in ALGORITHMS, INVALID_VALUE)
    product = Product(handle, types, transa, transb, m, n, k, alpha, lda, ldb, beta, ldc)
    integers(types, product.lds, a, b)
    aligned(types.a, a)
    aligned(types.b, b)
    aligned(types.c, c)
    product.enqueue("cublasGemmEx", lambda: [(a, b, c)])


@function("cublasGemmStridedBatchedEx_64", "pii lll p pill pill p pill l ii")
@function("cublasGemmStridedBatchedEx", "pii iii p piil piil p piil i ii")
def gemm_strided_batched_ex(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int,
    a: int, atype: int, lda: int, stridea: int, b: int, btype: int, ldb: int, strideb: int,
    beta: int, c: int, ctype: int, ldc: int, stridec: int, batch: int,
    compute: int, algorithm: int,
) -> None:  # fmt: skip
    types = mixed(atype, btype, ctype, compute)
    require(algorithm in ALGORITHMS, INVALID_VALUE)
    product = Product(handle, types, transa, transb, m, n, k, alpha, lda, ldb, beta, ldc)
    integers(types, product.lds, a, b, stridea, strideb)
    enqueue_strided(
        product, "cublasGemmStridedBatchedEx", (a, b, c), (stridea, strideb, stridec), batch
    )


@function("cublasGemmBatchedEx_64", "pii lll p pil pil p pil l ii")
@function("cublasGemmBatchedEx", "pii iii p pii pii p pii i ii")
def gemm_batched_ex(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int,
    a: int, atype: int, lda: int, b: int, btype: int, ldb: int,
    beta: int, c: int, ctype: int, ldc: int, batch: int, compute: int, algorithm: int,
) -> None:  # fmt: skip
    """The arrays of addresses are read in the queue.

    They begin at multiples of 16 bytes. NVIDIA's documentation does not say so: its engineers do,
    of versions after CUDA 11.1 (NVIDIA/FasterTransformer, issue 149). What is known to be refused
    are arrays 8 bytes behind such a multiple.
    """
    types = mixed(atype, btype, ctype, compute)
    require(algorithm in ALGORITHMS, INVALID_VALUE)
    product = Product(handle, types, transa, transb, m, n, k, alpha, lda, ldb, beta, ldc)
    sizes(batch)
    require((a | b | c) % 16 == 0, NOT_SUPPORTED)
    vectors = (atype in (R16F, R16BF) or COMPUTE[compute] is _FAST
               or COMPUTE[compute] is _SINGLE and fast(product.context))
    product.enqueue("cublasGemmBatchedEx", lambda: listed(types, (a, b, c), batch, vectors),
                    batch)


@function("cublasSgemmEx", "pii iii p pii pii p pii")
def sgemm_ex(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int,
    a: int, atype: int, lda: int, b: int, btype: int, ldb: int,
    beta: int, c: int, ctype: int, ldc: int,
) -> None:  # fmt: skip
    require(atype == btype and atype in SGEMM_EX.get(ctype, ()), NOT_SUPPORTED)
    types = Types(NUMPY[atype], NUMPY[btype], NUMPY[ctype], "f4", "f4")
    product = Product(handle, types, transa, transb, m, n, k, alpha, lda, ldb, beta, ldc)
    aligned(types.a, a)
    aligned(types.b, b)
    aligned(types.c, c)
    product.enqueue("cublasSgemmEx", lambda: [(a, b, c)])


# ---------------------------------------------------------------------------- level 3


@function("cublas{}syrk_v2", "pii ii p pi p pi", "SDCZ")
def syrk(
    t: str, handle: int, uplo: int, trans: int, n: int, k: int,
    alpha: int, a: int, lda: int, beta: int, c: int, ldc: int,
) -> None:  # fmt: skip
    context, part, op = handles[handle], choose(FILLS, uplo), choose(OPERATIONS, trans)
    require(t in "SD" or op != b"C", INVALID_VALUE)  # syrk knows A A^T and A^T A only
    sizes(n, k)
    leads(lda, n if op == b"N" else k)
    leads(ldc, n)
    one, two = number(context, alpha, DTYPES[t]), number(context, beta, DTYPES[t])

    def work() -> None:
        factor = one()
        depth = k if factor else 0  # A is not read
        shape = (n, depth) if op == b"N" else (depth, n)
        source, target = matrix(a, *shape, lda, DTYPES[t]), matrix(c, n, n, ldc, DTYPES[t])
        call(f"{t.lower()}syrk", part, op, n, depth, factor, source, lda, two(), target, ldc)

    context.enqueue(f"cublas{t}syrk", work)


def triangle(
    t: str, handle: int, side: int, uplo: int, trans: int, diagonal: int, m: int, n: int,
    alpha: int, lda: int, ldb: int, batch: Callable[[], list[tuple[int, int]]], name: str,
) -> None:  # fmt: skip
    """op(A) X = alpha B or X op(A) = alpha B, in place of B; A is not read for alpha 0."""
    context = handles[handle]
    letters = (
        choose(SIDES, side), choose(FILLS, uplo), choose(OPERATIONS, trans),
        choose(DIAGONALS, diagonal),
    )  # fmt: skip
    sizes(m, n)
    leads(lda, m if side == 0 else n)
    leads(ldb, m)
    scale = number(context, alpha, DTYPES[t])

    def work() -> None:
        factor = scale()
        order = (m if side == 0 else n) if factor else 0
        for a, b in batch():
            left, right = matrix(a, order, order, lda, DTYPES[t]), matrix(b, m, n, ldb, DTYPES[t])
            call(f"{t.lower()}trsm", *letters, m, n, factor, left, lda, right, ldb)

    context.enqueue(name, work)


@function("cublas{}trsm_v2", "piiii ii p pi pi", "SDCZ")
def trsm(
    t: str, handle: int, side: int, uplo: int, trans: int, diagonal: int, m: int, n: int,
    alpha: int, a: int, lda: int, b: int, ldb: int,
) -> None:  # fmt: skip
    aligned(DTYPES[t], a, b)
    triangle(
        t, handle, side, uplo, trans, diagonal, m, n, alpha, lda, ldb,
        lambda: [(a, b)], f"cublas{t}trsm",
    )  # fmt: skip


@function("cublas{}trsmBatched", "piiii ii p pi pi i", "SDCZ")
def trsm_batched(
    t: str, handle: int, side: int, uplo: int, trans: int, diagonal: int, m: int, n: int,
    alpha: int, a: int, lda: int, b: int, ldb: int, batch: int,
) -> None:  # fmt: skip
    sizes(batch)
    triangle(
        t, handle, side, uplo, trans, diagonal, m, n, alpha, lda, ldb,
        lambda: list(zip(pointers(a, batch), pointers(b, batch), strict=True)),
        f"cublas{t}trsmBatched",
    )  # fmt: skip


# ---------------------------------------------------------------------------- extensions


@function("cublas{}geam", "pii ii p pi p pi pi", "SDCZ")
def geam(
    t: str, handle: int, transa: int, transb: int, m: int, n: int,
    alpha: int, a: int, lda: int, beta: int, b: int, ldb: int, c: int, ldc: int,
) -> None:  # fmt: skip
    """C = alpha op(A) + beta op(B); in place only for N and equal leading dimensions."""
    context, dtype = handles[handle], DTYPES[t]
    ops = choose(OPERATIONS, transa), choose(OPERATIONS, transb)
    sizes(m, n)
    leads(ldc, m)
    for op, x, ld in ((ops[0], a, lda), (ops[1], b, ldb)):
        leads(ld, m if op == b"N" else n)
        require(x != c or (op == b"N" and ld == ldc), INVALID_VALUE)
    one, two = number(context, alpha, dtype), number(context, beta, dtype)

    def work() -> None:
        total = np.zeros((m, n), dtype)
        for op, x, ld, scale in ((ops[0], a, lda, one()), (ops[1], b, ldb, two())):
            if scale:  # "the user can set matrix C to zero by setting alpha = beta = 0"
                shape = (m, n) if op == b"N" else (n, m)
                total += dtype.type(scale) * operated(op, matrix(x, *shape, ld, dtype))
        matrix(c, m, n, ldc, dtype)[...] = total

    context.enqueue(f"cublas{t}geam", work)


@function("cublas{}dgmm", "pi ii pi pi pi", "SDCZ")
def dgmm(
    t: str, handle: int, mode: int, m: int, n: int, a: int, lda: int, x: int, incx: int,
    c: int, ldc: int,
) -> None:  # fmt: skip
    """C = diag(x) A on the left, A diag(x) on the right; in place if lda == ldc."""
    context, side = handles[handle], choose(SIDES, mode)
    sizes(m, n)
    leads(lda, m)
    leads(ldc, m)
    require(a != c or lda == ldc, INVALID_VALUE)

    def work() -> None:
        diagonal = vector(x, m if side == b"L" else n, incx, DTYPES[t])
        factor = diagonal[:, None] if side == b"L" else diagonal
        matrix(c, m, n, ldc, DTYPES[t])[...] = factor * matrix(a, m, n, lda, DTYPES[t])

    context.enqueue(f"cublas{t}dgmm", work)


@function("cublas{}tpttr", "pii ppi", "SD")
def tpttr(t: str, handle: int, uplo: int, n: int, packed: int, a: int, lda: int) -> None:
    context, part = handles[handle], choose(FILLS, uplo)
    sizes(n)
    leads(lda, n)

    def work() -> None:
        source = view(packed, (n * (n + 1) // 2,), DTYPES[t])
        call(f"{t.lower()}tpttr", part, n, source, matrix(a, n, n, lda, DTYPES[t]), lda)

    context.enqueue(f"cublas{t}tpttr", work)


@function("cublas{}trttp", "pii pip", "SD")
def trttp(t: str, handle: int, uplo: int, n: int, a: int, lda: int, packed: int) -> None:
    context, part = handles[handle], choose(FILLS, uplo)
    sizes(n)
    leads(lda, n)

    def work() -> None:
        target = view(packed, (n * (n + 1) // 2,), DTYPES[t])
        call(f"{t.lower()}trttp", part, n, matrix(a, n, n, lda, DTYPES[t]), lda, target)

    context.enqueue(f"cublas{t}trttp", work)


def eliminate(a: np.ndarray) -> int:
    """LU without pivots, in place; the first zero of the diagonal, from 1, or 0."""
    for k in range(min(a.shape)):
        if a[k, k] == 0:
            return k + 1
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return 0


@function("cublas{}getrfBatched", "pi pi pp i", "SDCZ")
def getrf_batched(
    t: str, handle: int, n: int, a: int, lda: int, pivots: int, infos: int, batch: int
) -> None:
    """Pivots lie n apart; without pivots nothing is exchanged."""
    context = handles[handle]
    sizes(n, batch)
    leads(lda, n)

    def work() -> None:
        for i, address in enumerate(pointers(a, batch)):
            factors = matrix(address, n, n, lda, DTYPES[t])
            if pivots:
                order = view(pivots + 4 * n * i, (n,), "i4")
                info = call(f"{t.lower()}getrf", n, n, factors, lda, order)
            else:
                info = eliminate(factors)
            store(infos + 4 * i, info, "i4")

    context.enqueue(f"cublas{t}getrfBatched", work)


def solve(
    t: str, op: bytes, n: int, columns: int, a: int, lda: int, pivots: int, b: int, ldb: int
) -> None:
    """op(A) X = B with A as LU; pivots of 0 stand for no exchanges."""
    order = view(pivots, (n,), "i4") if pivots else np.arange(1, n + 1, dtype="i4")
    factors, sides = matrix(a, n, n, lda, DTYPES[t]), matrix(b, n, columns, ldb, DTYPES[t])
    call(f"{t.lower()}getrs", op, n, columns, factors, lda, order, sides, ldb)


@function("cublas{}getrsBatched", "pi ii pi p pi p i", "SDCZ")
def getrs_batched(
    t: str, handle: int, trans: int, n: int, columns: int, a: int, lda: int, pivots: int,
    b: int, ldb: int, info: int, batch: int,
) -> None:  # fmt: skip
    """`info` is on the host and says only which argument is illegal."""
    context, op = handles[handle], choose(OPERATIONS, trans)
    sizes(n, columns, batch)
    leads(lda, n)
    leads(ldb, n)
    require(bool(info), INVALID_VALUE)
    store(info, 0, "i4")

    def work() -> None:
        for i, (left, right) in enumerate(zip(pointers(a, batch), pointers(b, batch), strict=True)):
            solve(t, op, n, columns, left, lda, pivots and pivots + 4 * n * i, right, ldb)

    context.enqueue(f"cublas{t}getrsBatched", work)


@function("cublas{}getriBatched", "pi pi p pi p i", "SDCZ")
def getri_batched(
    t: str, handle: int, n: int, a: int, lda: int, pivots: int, c: int, ldc: int,
    infos: int, batch: int,
) -> None:  # fmt: skip
    """The inverse from LU, out of place; info = k if U(k, k) is 0."""
    context = handles[handle]
    sizes(n, batch)
    leads(lda, n)
    leads(ldc, n)

    def work() -> None:
        for i, (left, right) in enumerate(zip(pointers(a, batch), pointers(c, batch), strict=True)):
            zeros = np.flatnonzero(matrix(left, n, n, lda, DTYPES[t]).diagonal() == 0)
            store(infos + 4 * i, zeros[0] + 1 if len(zeros) else 0, "i4")
            if not len(zeros):
                matrix(right, n, n, ldc, DTYPES[t])[...] = np.eye(n)
                solve(t, b"N", n, n, left, lda, pivots and pivots + 4 * n * i, right, ldc)

    context.enqueue(f"cublas{t}getriBatched", work)
