"""cuBLASLt: one product with its layouts and epilogues, over NumPy on raw pointers.

Sources, named beside each rule: NVIDIA's "cuBLAS" documentation (CUDA 13.0), "Using the cuBLASLt
API", by function, and the comments of cublasLt.h 13.0. Eight-bit floating point, the orders of 32
columns, planar complex numbers, triangular results and scales by pointer are not here.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from gtensor.hostcuda.libraries import cublas
from gtensor.hostcuda.libraries.calls import (
    Handles,
    Library,
    Refused,
    Traffic,
    enqueue,
    require,
    store,
    traffic_of_product,
    view,
    wide,
)
from gtensor.hostcuda.libraries.cublas import (
    C32F,
    C64F,
    EXECUTION_FAILED,
    INVALID_VALUE,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    NUMPY,
    OPERATIONS,
    R8I,
    R16BF,
    R16F,
    R32F,
    R32I,
    R64F,
    Types,
)

library = Library(
    "libcublasLt.so.13",
    refusal=NOT_SUPPORTED, internal=cublas.INTERNAL_ERROR,
)  # fmt: skip
function = library.function

COLUMN, ROW = 0, 1  # cublasLtOrder_t
I4, I8, POINTER = np.dtype("i4"), np.dtype("i8"), np.dtype("u8")

# cublasLtMatmulDescAttributes_t: number -> (name, type, value before it is set)
DESCRIPTION = {
    0: ("compute", I4, None), 1: ("scale", I4, None), 2: ("pointer_mode", I4, 0),
    3: ("transa", I4, 0), 4: ("transb", I4, 0), 5: ("transc", I4, 0), 6: ("fill", I4, 2),
    7: ("epilogue", I4, 1), 8: ("bias", POINTER, 0), 10: ("bias_stride", I8, 0),
    11: ("aux", POINTER, 0), 12: ("aux_ld", I8, 0), 13: ("aux_stride", I8, 0),
    15: ("processors", I4, 0), 22: ("aux_type", I4, -1), 26: ("bias_type", I4, -1),
}  # fmt: skip
# cublasLtMatrixLayoutAttribute_t
LAYOUT = {
    0: ("type", I4, None), 1: ("order", I4, COLUMN), 2: ("rows", POINTER, None),
    3: ("columns", POINTER, None), 4: ("ld", I8, None), 5: ("batch", I4, 1),
    6: ("stride", I8, 0),
}  # fmt: skip
# cublasLtMatmulPreferenceAttributes_t
PREFERENCE = {
    0: ("search", I4, 0), 1: ("workspace", POINTER, 0), 3: ("reductions", I4, -1),
    5: ("align_a", I4, 256), 6: ("align_b", I4, 256), 7: ("align_c", I4, 256),
    8: ("align_d", I4, 256), 9: ("waves", np.dtype("f4"), 0.0), 12: ("implementations", POINTER, 0),
}  # fmt: skip

# cublasLtMatmul, the table of regular data orders:
# (compute type, scale type, A and B, C and D) -> whether an epilogue other than the default may be.
_SINGLE = {(t, R32F, kind, kind): True for t in (68, 69) for kind in (R16BF, R16F, R32F)}
_SINGLE |= {(t, R32F, kind, R32F): True for t in (68, 69) for kind in (R16BF, R16F)}
_SINGLE |= {(t, R32F, R8I, R32F): False for t in (68, 69)}
_SINGLE |= {(t, C32F, C32F, C32F): False for t in (68, 69, 74, 75, 77)}
_SINGLE |= {(t, R32F, R32F, R32F): True for t in (74, 75, 77)}
TABLE = {
    **_SINGLE,
    **{(t, R16F, R16F, R16F): True for t in (64, 65)},
    **{(t, R32I, R8I, R32I): False for t in (72, 73)},
    **{(t, R64F, R64F, R64F): True for t in (70, 71)},
    **{(t, C64F, C64F, C64F): False for t in (70, 71)},
}

# cublasLtEpilogue_t, as bits
DEFAULT, RELU, BIAS, RELU_BACKWARD, BIAS_GRADIENT, GELU, GELU_BACKWARD, AUX = (
    1, 2, 4, 8, 16, 32, 64, 128,
)  # fmt: skip
GRADIENT_OF_A, GRADIENT_OF_B = 256, 512
EPILOGUES = {
    DEFAULT, RELU, RELU | AUX, BIAS, RELU | BIAS, RELU | AUX | BIAS, RELU_BACKWARD | AUX,
    RELU_BACKWARD | AUX | BIAS_GRADIENT, GELU, GELU | AUX, GELU | BIAS, GELU | AUX | BIAS,
    GELU_BACKWARD | AUX, GELU_BACKWARD | AUX | BIAS_GRADIENT, GRADIENT_OF_A, GRADIENT_OF_B,
}  # fmt: skip
VECTOR = 16  # bytes that an epilogue's kernel reads or writes at once
WORKSPACE = 4096  # what an algorithm of ours asks for where the preference allows it
MAGIC = 0x686F7374  # marks an algorithm that the heuristic gave


class Fields:
    """A descriptor: named values, each with a number, a type and a size."""

    def __init__(self, table: dict[int, tuple[str, np.dtype, Any]], **values: Any) -> None:
        self.table = table
        self.values = {name: value for name, _, value in table.values()} | values

    def __getattr__(self, name: str) -> Any:
        return self.values[name]

    def copy(self) -> "Fields":
        return Fields(self.table, **self.values)

    def field(self, number: int) -> tuple[str, np.dtype]:
        if number not in self.table:
            raise Refused(NOT_SUPPORTED)
        return self.table[number][:2]


handles, fields = Handles(NOT_INITIALIZED), Handles(INVALID_VALUE)


def known(handle: int) -> None:
    """A cublasHandle_t contains a cublasLtHandle_t and may stand in its place."""
    try:
        handles[handle]
    except Refused:
        cublas.handles[handle]


@function("cublasLtCreate", "p")
def create(result: int) -> None:
    require(bool(result), INVALID_VALUE)
    store(result, handles.add(True), "u8")


@function("cublasLtDestroy", "p")
def destroy(handle: int) -> None:
    handles.remove(handle)


@function("cublasLtGetVersion", "", result="z")
def get_version() -> int:
    return cublas.VERSION


def descriptor(kind: str, letters: str, table: dict, names: tuple[str, ...]) -> None:
    """Create, Destroy, SetAttribute and GetAttribute of one kind of descriptor."""

    @function(f"cublasLt{kind}Create", letters)
    def create_fields(result: int, *values: int) -> None:
        require(bool(result), INVALID_VALUE)
        given = dict(zip(names, values, strict=True))
        store(result, fields.add(Fields(table, **given)), "u8")

    @function(f"cublasLt{kind}Destroy", "p")
    def destroy_fields(handle: int) -> None:
        fields.remove(handle)

    @function(f"cublasLt{kind}SetAttribute", "pi pz")
    def set_attribute(handle: int, number: int, buffer: int, size: int) -> None:
        """The size must be the attribute's."""
        state = fields[handle]
        name, dtype = state.field(number)
        require(bool(buffer) and size == dtype.itemsize, INVALID_VALUE)
        state.values[name] = view(buffer, (1,), dtype)[0].item()

    @function(f"cublasLt{kind}GetAttribute", "pi pz p")
    def get_attribute(handle: int, number: int, buffer: int, size: int, written: int) -> None:
        state = fields[handle]
        name, dtype = state.field(number)
        require(bool(written or size), INVALID_VALUE)
        if written:
            store(written, dtype.itemsize, "u8")
        if size:
            require(bool(buffer) and size == dtype.itemsize, INVALID_VALUE)
            store(buffer, state.values[name], dtype)


descriptor("MatmulDesc", "pii", DESCRIPTION, ("compute", "scale"))
descriptor("MatrixLayout", "pi ll l", LAYOUT, ("type", "rows", "columns", "ld"))
descriptor("MatmulPreference", "p", PREFERENCE, ())


class Matmul:
    """D = epilogue(alpha op(A) op(B) + beta C), checked against NVIDIA's table."""

    def __init__(self, description: int, a: int, b: int, c: int, d: int) -> None:
        # Copies: the caller may change or destroy a descriptor before the queue comes to the work.
        self.what = what = fields[description].copy()
        self.a, self.b, self.c, self.d = (fields[layout].copy() for layout in (a, b, c, d))
        require({what.transa, what.transb} <= set(OPERATIONS), INVALID_VALUE)
        require(what.transc == 0 and what.fill == 2, NOT_SUPPORTED)
        require(what.pointer_mode in (cublas.HOST, cublas.DEVICE), NOT_SUPPORTED)
        for layout in (self.a, self.b, self.c, self.d):
            self._check(layout)
        self._shapes()
        self._types()
        self._epilogue()

    def _check(self, layout: Fields) -> None:
        """cublasLtOrder_t: the leading dimension is a column's length, in row order a row's."""
        require(layout.order in (COLUMN, ROW), NOT_SUPPORTED)
        require(min(layout.rows, layout.columns) > 0 and layout.batch > 0, INVALID_VALUE)
        least = layout.rows if layout.order == COLUMN else layout.columns
        require(layout.ld >= least, INVALID_VALUE)

    def _shapes(self) -> None:
        ops = OPERATIONS[self.what.transa], OPERATIONS[self.what.transb]
        sides = [
            (x.rows, x.columns) if op == b"N" else (x.columns, x.rows)
            for op, x in zip(ops, (self.a, self.b), strict=True)
        ]
        self.ops, self.k = ops, sides[0][1]
        self.m, self.n = sides[0][0], sides[1][1]
        require(sides[1][0] == self.k, INVALID_VALUE)
        for x in (self.c, self.d):
            require((x.rows, x.columns) == (self.m, self.n), INVALID_VALUE)
        batches = {x.batch for x in (self.a, self.b, self.c, self.d)}
        require(len(batches) == 1, INVALID_VALUE)

    def _types(self) -> None:
        what, kind, out = self.what, self.a.type, self.d.type
        require(self.b.type == kind and self.c.type == out, NOT_SUPPORTED)
        key = (what.compute, what.scale, kind, out)
        require(key in TABLE, NOT_SUPPORTED)
        self.bendable = TABLE[key]
        half = what.scale == R16F
        compute = "f4" if half else NUMPY[what.scale]
        self.types = Types(NUMPY[kind], NUMPY[kind], NUMPY[out], compute, NUMPY[what.scale])

    def _epilogue(self) -> None:
        """cublasLtEpilogue_t, with the comments of its rows and of the attributes."""
        what, kind = self.what, self.what.epilogue
        require(kind in EPILOGUES, INVALID_VALUE)
        if kind == DEFAULT:
            return
        require(self.bendable and self.d.order == COLUMN, NOT_SUPPORTED)
        if kind & (BIAS | BIAS_GRADIENT | GRADIENT_OF_A | GRADIENT_OF_B):
            require(bool(what.bias), INVALID_VALUE)
            require(what.bias_type in (-1, self.d.type), NOT_SUPPORTED)
        if kind & AUX:
            step = 128 if kind & (RELU | RELU_BACKWARD) else 8
            require(bool(what.aux) and what.aux_ld >= self.m, INVALID_VALUE)
            require(what.aux_ld % step == 0 == what.aux_stride % step, INVALID_VALUE)
            require(what.aux_type in (-1, self.d.type), NOT_SUPPORTED)

    def check_pointers(self) -> None:
        """Refuses what an epilogue has no use for, as an H200 did (cuBLAS 13.1, November 2026).

        Its log: "The Bias pointer is NOT allowed for EPILOGUE_RELU" and "Outputting ReLu mask is
        not supported for CUBLASLT_EPILOGUE_RELU". Some kernels of the epilogue BIAS wrote to
        what was to be kept. The heuristic answered as if nothing were wrong. A bias gradient of
        a factor alone was right in spite of the second pointer.
        """
        what, kind = self.what, self.what.epilogue
        if kind == DEFAULT:
            return
        vectors = BIAS | BIAS_GRADIENT | GRADIENT_OF_A | GRADIENT_OF_B
        require(bool(kind & vectors) or not what.bias, INVALID_VALUE)
        require(bool(kind & (AUX | GRADIENT_OF_A | GRADIENT_OF_B)) or not what.aux, NOT_SUPPORTED)

    def check_alignment(self, promised: list[int], addresses: tuple[int, ...]) -> None:
        """Faults, in the queue, where an address is less aligned than its algorithm expects.

        `promised`: of A, B, C and D, what the preferences said ("cublasLtMatmulPreferenceAttributes
        _t", MIN_ALIGNMENT_A_BYTES and its like: "algorithms that can not work with" less are left
        out), or none.

        What an epilogue points to has no preference. The heuristic goes by the address that is set
        then ("cublasLtMatmulDescAttributes_t", EPILOGUE_AUX_POINTER; cublasLt.h: BIAS_POINTER), and
        was seen to choose a kernel that loads 16 bytes of a bias at less (pytorch/pytorch, pull
        request 194497). So here all do.
        """
        for which, address, least in zip("ABCD", addresses, promised, strict=False):
            wide(address, least, f"the matrix {which} lies")
        kind = self.what.epilogue
        if kind != DEFAULT and kind & (BIAS | BIAS_GRADIENT | GRADIENT_OF_A | GRADIENT_OF_B):
            wide(self.what.bias, VECTOR, "an epilogue's vector lies")
        if kind != DEFAULT and kind & AUX:
            wide(self.what.aux, VECTOR, "what an epilogue keeps lies")

    def matrix(self, layout: Fields, address: int, index: int) -> np.ndarray:
        dtype = np.dtype(NUMPY[layout.type])
        strides = (1, layout.ld) if layout.order == COLUMN else (layout.ld, 1)
        start = address + index * layout.stride * dtype.itemsize
        return view(start, (layout.rows, layout.columns), dtype, strides)

    def traffic(self, context: cublas.Handle, beta: Callable[[], Any]) -> Traffic:
        """What it moves, with what its epilogue reads and writes."""
        lds = self.a.ld, self.b.ld, self.d.ld
        tf32 = self.what.compute in (74, 75, 77)
        reads_out = context.pointer_mode == cublas.DEVICE or bool(beta())
        batch = self.d.batch
        found = traffic_of_product((self.m, self.n, self.k), batch, (self.a.stride, self.b.stride),
                                   self.types, lds, reads_out, tf32)
        kind, size = self.what.epilogue, self.types.c.itemsize
        kept = 0
        if kind != DEFAULT and kind & AUX:
            bits = 1 if kind & (RELU | RELU_BACKWARD) else 8 * size
            kept = batch * self.what.aux_ld * self.n * bits // 8
        backward = kind != DEFAULT and kind & (RELU_BACKWARD | GELU_BACKWARD)
        return found._replace(reads=found.reads + (kept if backward else 0),
                              writes=found.writes + (0 if backward else kept))

    def run(self, index: int, alpha: Any, a: int, b: int, beta: Any, c: int, d: int) -> None:
        left, right = self.matrix(self.a, a, index), self.matrix(self.b, b, index)
        sides = cublas.operated(self.ops[0], left), cublas.operated(self.ops[1], right)
        total = cublas.accumulate(sides, self.types, alpha)
        compute = self.types.compute
        if beta:
            total = total + compute.type(beta) * self.matrix(self.c, c, index).astype(compute)
        total = Epilogue(self, index).apply(total, *sides)
        self.matrix(self.d, d, index)[...] = total.astype(self.types.c)


def gelu(x: np.ndarray) -> np.ndarray:
    """CUBLASLT_EPILOGUE_GELU: the approximation by tanh.

    In float64, too, its constant has eight digits: an H200 was wrong by 1e-9 (cuBLAS 13.1).
    """
    return x * (1 + np.tanh(SLOPE * (x + CUBIC * x**3))) / 2


def gelu_slope(x: np.ndarray) -> np.ndarray:
    bent = np.tanh(SLOPE * (x + CUBIC * x**3))
    return (1 + bent) / 2 + x * (1 - bent * bent) * SLOPE * (1 + 3 * CUBIC * x * x) / 2


SLOPE, CUBIC = 0.79788456, 0.044715


class Epilogue:
    """What happens to a product before it is written."""

    def __init__(self, matmul: Matmul, index: int) -> None:
        self.matmul, self.kind = matmul, matmul.what.epilogue
        self.dtype = np.dtype(NUMPY[matmul.d.type])
        what = matmul.what
        self.bias_at = what.bias + index * what.bias_stride * self.dtype.itemsize
        bits = bool(self.kind & (RELU | RELU_BACKWARD))
        step = what.aux_stride // 8 if bits else what.aux_stride * self.dtype.itemsize
        self.aux_at = what.aux + index * step

    def apply(self, x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        kind = self.kind
        if kind & BIAS:
            x = x + self.bias(self.matmul.m)[:, None].astype(x.dtype)
        if kind & RELU:
            if kind & AUX:
                self.mask()[...] = np.packbits(x > 0, axis=0, bitorder="little")
            x = np.maximum(x, 0)
        if kind & GELU:
            if kind & AUX:
                self.input()[...] = x.astype(self.dtype)
            x = gelu(x)
        if kind & RELU_BACKWARD:
            passed = np.unpackbits(self.mask(), axis=0, count=self.matmul.m, bitorder="little")
            x = np.where(passed, x, x.dtype.type(0))
        if kind & GELU_BACKWARD:
            x = x * gelu_slope(self.input().astype(x.dtype))
        if kind & BIAS_GRADIENT:
            self.bias(self.matmul.m)[...] = x.sum(axis=1).astype(self.dtype)
        if kind & GRADIENT_OF_A:
            self.bias(self.matmul.m)[...] = a.astype(x.dtype).sum(axis=1).astype(self.dtype)
        if kind & GRADIENT_OF_B:
            self.bias(self.matmul.n)[...] = b.astype(x.dtype).sum(axis=0).astype(self.dtype)
        return x

    def bias(self, n: int) -> np.ndarray:
        return view(self.bias_at, (n,), self.dtype)

    def mask(self) -> np.ndarray:
        """One bit an element; the leading dimension counts bits."""
        m, n, ld = self.matmul.m, self.matmul.n, self.matmul.what.aux_ld
        return view(self.aux_at, ((m + 7) // 8, n), "u1", (1, ld // 8))

    def input(self) -> np.ndarray:
        m, n, ld = self.matmul.m, self.matmul.n, self.matmul.what.aux_ld
        return view(self.aux_at, (m, n), self.dtype, (1, ld))


class Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t; the first 64 bytes are the algorithm."""

    _fields_ = (
        ("data", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int), ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


@function("cublasLtMatmulAlgoGetHeuristic", "pp pppp p i pp")
def heuristic(
    handle: int, description: int, a: int, b: int, c: int, d: int, preference: int,
    requested: int, results: int, count: int,
) -> None:  # fmt: skip
    """The algorithms that may be used, best first; NOT_SUPPORTED where there is none."""
    known(handle)
    require(bool(results and count) and requested > 0, INVALID_VALUE)
    wanted = fields[preference]
    store(count, 0, "i4")
    Matmul(description, a, b, c, d)
    found = Algorithm.from_address(results)
    need = min(wanted.workspace, WORKSPACE)
    alignments = wanted.align_a, wanted.align_b, wanted.align_c, wanted.align_d
    found.data[:] = [MAGIC, need, *alignments, 0, 0]
    found.workspace, found.state, found.waves = need, 0, 1.0
    store(count, 1, "i4")


@function("cublasLtMatmul", "pp p pp pp p pp pp p pz p")
def matmul(
    handle: int, description: int, alpha: int, a: int, adesc: int, b: int, bdesc: int, beta: int,
    c: int, cdesc: int, d: int, ddesc: int, algorithm: int, workspace: int, nbytes: int,
    stream: int,
) -> None:  # fmt: skip
    """The workspace is aligned to 256 bytes and as large as the algorithm says."""
    known(handle)
    product = Matmul(description, adesc, bdesc, cdesc, ddesc)
    product.check_pointers()
    require(bool(alpha and beta and a and b and d), INVALID_VALUE)
    types = product.types
    for dtype, address in ((types.a, a), (types.b, b), (types.c, c), (types.c, d)):
        cublas.aligned(dtype, address)
    need, promised = 0, list[int]()
    if algorithm:
        magic, need, *promised = (int(value) for value in view(algorithm, (6,), "u8"))
        require(magic == MAGIC, INVALID_VALUE)
    require(nbytes >= need and workspace % 256 == 0, INVALID_VALUE)
    context = cublas.Handle()
    context.stream, context.pointer_mode = stream, product.what.pointer_mode
    scale = cublas.number(context, alpha, types.scale)
    other = cublas.number(context, beta, types.scale)
    require(bool(c) or (context.pointer_mode == cublas.HOST and not other()), INVALID_VALUE)

    def work() -> None:
        product.check_alignment(promised, (a, b, c, d))
        if need:
            view(workspace, (need,), "u1")[...] = 0xA5
        for index in range(product.d.batch):
            product.run(index, scale(), a, b, other(), c, d)

    enqueue(stream, "cublasLtMatmul", work, EXECUTION_FAILED, product.traffic(context, other))
