"""Matrix products by cuBLAS, called directly: CuPy's wrappers refuse to be captured into a graph,
accumulate in two dtypes only, and copy transposed batches.

A thread has one handle per device; the handles of ended threads are reused. Before a product the
handle is set to the thread's current stream and then to that stream's workspace, since setting a
stream resets the workspace. The workspace is allocated from the device's resource and kept until
the stream ends. On a stream under capture it belongs to the graph, so replays can use it.

A product whose operands lie so that cuBLAS can neither read nor write them is one launch of
`kernels/matmul_into.cu`. A bias and the sums of a factor's rows are epilogues of cublasLt where it
has them (`cublaslt`).

A batch of more than one step goes by tables of its matrices' addresses, which cuBLAS reads on the
device. So cuBLAS cannot choose a kernel by these addresses, and for halves and TF32 wants them
aligned to 16 bytes (NVIDIA, "cuBLAS", "cublasGemmBatchedEx"). A batch that is not aligned goes by
strides, in a call for each index of its shorter axes: these functions take the first address on the
host and ask for no alignment. Of too many calls it is a launch of the library's own kernel.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from gtensor.backend import cublaslt
from gtensor.backend.cublas_library import Failed, call
from gtensor.backend.cublaslt import Epilogue
from gtensor.backend.cuda_losses import noted
from gtensor.backend.cuda_streams import cupy, driver
from gtensor.backend.kernels import elementwise
from gtensor.backend.layouts import Axis, Plan, at, check_out, plan, product_shape
from gtensor.backend.matmul_kernel import matmul_into
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.cuda_streams import CudaStream
    from gtensor.backend.typing import CudaArray

CudaDevice: TypeAlias = Any  # of backend.cuda, which imports this

_DEFAULT_ALGORITHM = -1  # cublasGemmAlgo_t
# cublasMath_t: partial sums of half precision stay in float32 between the parts of a product.
_NO_NARROW_SUMS = 16
# The sizes that the documentation of cublasSetWorkspace recommends, by major compute capability.
_WORKSPACE_BYTES = {9: 32 << 20, 10: 32 << 20, 12: 12 << 20}
_OTHER_WORKSPACE_BYTES = 4 << 20


Factor: TypeAlias = "type[ctypes.Array[ctypes.c_float]] | type[ctypes.Array[ctypes.c_double]]"


class _Kind(NamedTuple):
    """cuBLAS's codes for a product: cudaDataType of inputs and output, compute type."""

    inputs: int
    out: int
    compute: int
    scalar: Factor  # of alpha and beta: an array of one, or of real and imaginary part
    aligned: bool = False  # whether matrices in a table of addresses must be: see the top


_HALF, _BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_COMPLEX, _WIDE_COMPLEX = np.dtype(np.complex64), np.dtype(np.complex128)
_IN_SINGLE, _IN_DOUBLE, _IN_TF32 = 68, 70, 77  # cublasComputeType_t
_FLOAT, _FLOATS = ctypes.c_float * 1, ctypes.c_float * 2
_REAL, _REALS = ctypes.c_double * 1, ctypes.c_double * 2
# By dtype of the inputs and of the output; half precision can be summed into a float32 buffer.
_KINDS = {
    (_HALF, _HALF): _Kind(2, 2, _IN_SINGLE, _FLOAT, True),
    (_HALF, _SINGLE): _Kind(2, 0, _IN_SINGLE, _FLOAT, True),
    (_BRAIN, _BRAIN): _Kind(14, 14, _IN_SINGLE, _FLOAT, True),
    (_BRAIN, _SINGLE): _Kind(14, 0, _IN_SINGLE, _FLOAT, True),
    (_SINGLE, _SINGLE): _Kind(0, 0, _IN_SINGLE, _FLOAT),
    (_DOUBLE, _DOUBLE): _Kind(1, 1, _IN_DOUBLE, _REAL),
    (_COMPLEX, _COMPLEX): _Kind(4, 4, _IN_SINGLE, _FLOATS),
    (_WIDE_COMPLEX, _WIDE_COMPLEX): _Kind(5, 5, _IN_DOUBLE, _REALS),
}
_BY_TF32 = {pair: kind._replace(compute=_IN_TF32, aligned=True) for pair, kind in _KINDS.items()
            if pair[0] in (_SINGLE, _COMPLEX)}


# -- handles ---------------------------------------------------------------------------------------


@lru_cache(64)
def _number(scalar: Factor, value: Any) -> ctypes.Array[Any]:
    """A factor in host memory; cuBLAS reads it before the call returns."""
    return scalar(value.real, value.imag) if scalar in (_FLOATS, _REALS) else scalar(value)


_ALIGNED = 16  # bytes
_MOST_AXES = 4  # of a batch by addresses
_MOST_CALLS = 32  # by strides, of a batch that is not aligned
_TABLE_ELEMENTS = 1 << 15  # addresses that a stream keeps, 256 KiB
# Addresses in 32 bytes. cuBLAS answers "not supported" for a table that begins 8 bytes behind a
# multiple of 16 (NVIDIA/FasterTransformer, issue 149: "alignment of pointer of array in
# cublasGemmBatchedEx"), and a kernel may read two or four addresses at once.
_TABLE_STEP = 4
_AXES = range(_MOST_AXES)
_ADDRESSES = elementwise(
    "int64 count, " + ", ".join(f"int64 {x}" for x in "abc") + ", " + ", ".join(
        f"int64 n{i}, int64 a{i}, int64 b{i}, int64 c{i}" for i in _AXES),
    "uint64 address",
    "long long which = i / count, rest = i % count, at = which == 0 ? a : which == 1 ? b : c; "
    + " ".join(f"at += rest % n{i} * (which == 0 ? a{i} : which == 1 ? b{i} : c{i}); rest /= n{i};"
               for i in _AXES) + " address = at",
    name="gt_addresses")


_ACTIVATIONS = {  # epilogues: of the activation, and of its slope
    "relu": (cublaslt.RELU, cublaslt.RELU_SLOPE), "gelu_tanh": (cublaslt.GELU, cublaslt.GELU_SLOPE)}


def kept_layout(
    activation: str, rows: int, columns: int, dtype: np.dtype
) -> tuple[tuple[int, int], np.dtype]:
    """Shape and dtype of what `activated` keeps for an activation's derivative.

    For ReLU it has a bit for each element; for GELU the input, in the first `columns` columns.
    """
    if activation == "relu":
        return (rows, -(-columns // 128) * 16), np.dtype(np.uint8)
    return (rows, -(-columns // 8) * 8), dtype


def _kind_of(a: CudaArray, b: CudaArray, out: CudaArray) -> _Kind:
    pair = a.dtype, out.dtype
    kind = settings.tf32 and _BY_TF32.get(pair) or _KINDS.get(pair)
    if kind is None or a.dtype != b.dtype:
        raise TypeError(f"a product of {a.dtype} and {b.dtype} into {out.dtype}; wanted one "
                        "floating-point or complex dtype")
    return kind


def _of_vector(
    out: CudaArray, bias: CudaArray | None, sums: CudaArray | None
) -> Epilogue | None:
    """The epilogue that adds a bias, or sums up a factor; None where there is none."""
    if bias is not None and sums is not None:
        return None
    code, vector = (cublaslt.BIAS, bias) if sums is None else (cublaslt.FACTOR_SUMS, sums)
    assert vector is not None
    fits = vector.dtype == out.dtype and vector.flags.c_contiguous
    return Epilogue(code, vector.data.ptr) if fits else None


class _Tables:
    """Tables of addresses that a thread's handle has made on a stream, in one allocation."""

    def __init__(self) -> None:
        self.known: dict[Any, CudaArray] = {}
        self._buffer = cupy().empty(_TABLE_ELEMENTS, np.uint64)
        self._used = 0

    def room(self, key: Any, width: int) -> CudaArray:
        """Memory for another table (3, width), kept under `key`; `width` is of `_width`.

        When the buffer is full it is used anew: products that read it are earlier on the stream.
        """
        if 3 * width > self._buffer.size:
            return cupy().empty((3, width), np.uint64)
        if self._used + 3 * width > self._buffer.size:
            self._used = 0
            self.known.clear()
        part = self._buffer[self._used:self._used + 3 * width].reshape(3, width)
        self._used += 3 * width
        self.known[key] = part
        return part


def _width(count: int) -> int:
    """The length of a table's rows for that many addresses, so that each row is aligned.

    The addresses behind the last one are the first ones again.
    """
    return -(-count // _TABLE_STEP) * _TABLE_STEP


def _fill_addresses(
    table: CudaArray, starts: tuple[int, int, int], size: int, out_size: int,
    axes: tuple[Axis, ...]
) -> None:
    numbers: list[int] = []
    for n, (step_a, step_b, step_out) in (*reversed(axes), *[(1, (0, 0, 0))] * _MOST_AXES):
        numbers += [n, step_a * size, step_b * size, step_out * out_size]
    _ADDRESSES(table.shape[1], *starts, *numbers[:4 * _MOST_AXES], out=table)


class _Handle:
    """A cuBLAS handle. It is never destroyed, as that would wait for the whole device."""

    def __init__(self) -> None:
        found = ctypes.c_void_p()
        call("cublasCreate_v2", ctypes.byref(found))
        self.pointer = found.value
        self.stream = -1  # the id of the stream that it is set to
        self.prepared = cublaslt.Prepared(found.value or 0)
        call("cublasSetMathMode", self.pointer, _NO_NARROW_SUMS)

    def use(self, stream: CudaStream, workspace: CudaArray) -> None:
        """Queue the next products on the stream."""
        self.stream = -1  # until both calls have succeeded
        call("cublasSetStream_v2", self.pointer, stream.stream.ptr)
        call("cublasSetWorkspace_v2", self.pointer, workspace.data.ptr, workspace.nbytes)
        self.stream = stream.id


class _Lease:
    """A thread's use of a handle; it is collected when the thread ends."""

    def __init__(self, handle: _Handle) -> None:
        self.handle = handle


# -- products --------------------------------------------------------------------------------------


class Products:
    """The products of one device, which must be CuPy's current one."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._workspaces: dict[int, CudaArray] = {}  # by stream
        self._tables: dict[tuple[int, _Handle], _Tables] = {}  # of addresses
        self._spare: list[_Handle] = []
        self._thread = threading.local()
        device.on_stream_end.append(self._forget)

    def matmul(
        self, a: CudaArray, b: CudaArray, out: CudaArray | None = None, beta: complex = 0.0,
        alpha: complex = 1.0, bias: CudaArray | None = None, sums: CudaArray | None = None,
        summand: CudaArray | None = None,
    ) -> CudaArray:
        """out = alpha * a @ b + beta * out + bias, over the last two axes; others broadcast.

        `bias` (columns,) is added to each row; `sums` (rows,) is given the sums of a's rows. Both
        have the dtype of out, and take matrices. A `summand` like `out` is added in its place, and
        `out` is not read. `out` may be float32 for inputs of half precision,
        and is only read if beta is not 0. Raises TypeError for dtypes without a cuBLAS product,
        ValueError for an `out` of another shape or one that overlaps an input or itself, and
        RuntimeError if cuBLAS fails.
        """
        shape = product_shape(a, b)
        if out is None:
            out, beta = cupy().empty(shape, a.dtype), 0.0
        else:
            check_out(a, b, out, shape)
        kind = _kind_of(a, b, out)
        if summand is not None:
            if self._summed(kind, (a, b, out), bias, summand):
                return out
            out[...] = summand
            beta = 1.0
        if not out.size:
            if sums is not None:
                cupy().sum(a, axis=-1, out=sums)
            return out
        laid = plan(at(a), at(b), at(out)) if a.shape[-1] else None
        if laid is not None and len(laid.axes) > _MOST_AXES:
            laid = None
        try:
            if laid is None:
                matmul_into(a, b, out, alpha=alpha, beta=beta, bias=bias)
            elif bias is None and sums is None:
                self._write(kind, laid, a, b, out, alpha, beta)
            elif self._fused(kind, laid, (a, b, out), (alpha, beta), _of_vector(out, bias, sums)):
                return out
            else:
                self._write(kind, laid, a, b, out, alpha, beta)
                if bias is not None:
                    out += bias
        except Failed as error:
            raise self._failure(error, a, b, out) from None
        if sums is not None:
            cupy().sum(a, axis=-1, out=sums)
        return out

    def _summed(
        self, kind: _Kind, arrays: tuple[CudaArray, CudaArray, CudaArray], bias: CudaArray | None,
        summand: CudaArray,
    ) -> bool:
        """out = a @ b + bias + summand in one call; False, with nothing written, without one."""
        a, b, out = arrays
        epilogue = Epilogue(cublaslt.NOTHING) if bias is None else _of_vector(out, bias, None)
        if not out.size or not a.shape[-1] or summand.dtype != out.dtype or (
                summand.strides != out.strides):
            return False
        laid = plan(at(a), at(b), at(out))
        try:
            return laid is not None and self._fused(
                kind, laid, arrays, (1.0, 1.0), epilogue, summand)
        except Failed as error:
            raise self._failure(error, a, b, out) from None

    def _failure(self, error: Failed, a: CudaArray, b: CudaArray, out: CudaArray) -> RuntimeError:
        """The error with the op's name and its operands."""
        stream = ctypes.c_void_p(cupy().cuda.get_current_stream().ptr)
        return noted(RuntimeError(
            f"{error} in {self._device.running_op()} of {a.dtype} {a.shape} and {b.shape} into "
            f"{out.dtype} {out.shape}"), driver().cuStreamQuery(stream))

    def _write(
        self, kind: _Kind, laid: Plan, a: CudaArray, b: CudaArray, out: CudaArray, alpha: complex,
        beta: complex,
    ) -> None:
        """One call: of a single product, of a batch by one step, or of one by addresses.

        Of a batch by addresses that is not aligned it is several calls, or the library's kernel.
        """
        if laid.exchanged:
            a, b = b, a
        leading_a, leading_b, leading = laid.leading
        handle = self._handle()
        first = handle, *laid.operations, *laid.sizes, _number(kind.scalar, alpha)
        factor = _number(kind.scalar, beta)
        at_a, at_b, at_out = a.data.ptr, b.data.ptr, out.data.ptr
        last = kind.compute, _DEFAULT_ALGORITHM
        if not laid.axes:
            call("cublasGemmEx_64", *first, at_b, kind.inputs, leading_b, at_a, kind.inputs,
                 leading_a, factor, at_out, kind.out, leading, *last)
        elif len(laid.axes) == 1 and min(laid.axes[0][1]) >= 0:
            ((count, (step_a, step_b, step_out)),) = laid.axes
            call("cublasGemmStridedBatchedEx_64", *first, at_b, kind.inputs, leading_b, step_b,
                 at_a, kind.inputs, leading_a, step_a, factor, at_out, kind.out, leading, step_out,
                 count, *last)
        elif kind.aligned and (at_a | at_b | at_out | laid.step_bits) % _ALIGNED:
            (count, (step_a, step_b, step_out)), rest = laid.longest_even()
            if rest.products() > _MOST_CALLS:
                if laid.exchanged:
                    a, b = b, a
                matmul_into(a, b, out, alpha=alpha, beta=beta)
                return
            size, out_size = a.itemsize, out.itemsize
            for from_a, from_b, from_out in rest.starts():
                call("cublasGemmStridedBatchedEx_64", *first, at_b + size * from_b, kind.inputs,
                     leading_b, step_b, at_a + size * from_a, kind.inputs, leading_a, step_a,
                     factor, at_out + out_size * from_out, kind.out, leading, step_out, count,
                     *last)
        else:
            table = self._addresses((at_a, at_b, at_out), a.itemsize, out.itemsize, laid.axes)
            of_a, of_b, of_out = (table[i].data.ptr for i in range(3))
            call("cublasGemmBatchedEx_64", *first, of_b, kind.inputs, leading_b, of_a, kind.inputs,
                 leading_a, factor, of_out, kind.out, leading, laid.products(), *last)

    def _addresses(
        self, starts: tuple[int, int, int], size: int, out_size: int, axes: tuple[Axis, ...]
    ) -> CudaArray:
        """The addresses of a batch's matrices, on the device: rows as long as `_width` says.

        They are kept for the next product of the same memory. In a capture they are made by the
        graph: other memory could be written before a replay.
        """
        width = _width(prod(n for n, _ in axes))
        handle: _Handle = self._thread.lease.handle
        place = handle.stream, handle
        if self._device.capturing():
            found = cupy().empty((3, width), np.uint64)
        else:
            tables = self._tables.get(place)
            if tables is None:
                tables = self._tables[place] = _Tables()
            key = starts, size, out_size, axes
            if key in tables.known:
                return tables.known[key]
            found = tables.room(key, width)
        _fill_addresses(found, starts, size, out_size, axes)
        return found

    def _fused(
        self, kind: _Kind, laid: Plan, arrays: tuple[CudaArray, CudaArray, CudaArray],
        factors: tuple[complex, complex], epilogue: Epilogue | None,
        summand: CudaArray | None = None,
    ) -> bool:
        """One call with an epilogue; False, with nothing written, where cublasLt has none."""
        if laid.axes or laid.exchanged or epilogue is None or kind.scalar in (_FLOATS, _REALS):
            return False
        a, b, out = arrays
        alpha, beta = (_number(kind.scalar, factor) for factor in factors)
        pointer = self._handle()
        handle: _Handle = self._thread.lease.handle
        workspace = self._workspaces[handle.stream]
        return cublaslt.matmul(
            handle.prepared, pointer, laid, kind[:3], alpha, b.data.ptr, a.data.ptr, beta,
            (out if summand is None else summand).data.ptr, out.data.ptr, epilogue,
            (workspace.data.ptr, workspace.nbytes),
            self._device.current_stream().stream.ptr)

    def activated(
        self, a: CudaArray, b: CudaArray, out: CudaArray, activation: str, bias: CudaArray | None,
        kept: CudaArray | None,
    ) -> bool:
        """out = activation(a @ b + bias) for new memory `out` of matrices; False if it cannot be.

        `kept` (see `kept_layout`) is given what the activation's derivative needs.
        """
        code = _ACTIVATIONS[activation][0] | (cublaslt.BIAS if bias is not None else 0)
        return self._followed(a, b, out, code | (cublaslt.KEEP if kept is not None else 0), bias,
                              kept)

    def differentiated(
        self, a: CudaArray, b: CudaArray, out: CudaArray, activation: str, kept: CudaArray,
        sums: CudaArray | None,
    ) -> bool:
        """out = (a @ b) * activation', from what `activated` kept; False if it cannot be.

        `sums` (columns,) is given the sums of out's columns.
        """
        code = _ACTIVATIONS[activation][1] | (cublaslt.SUMS if sums is not None else 0)
        return self._followed(a, b, out, code, sums, kept)

    def _followed(
        self, a: CudaArray, b: CudaArray, out: CudaArray, code: int, vector: CudaArray | None,
        kept: CudaArray | None,
    ) -> bool:
        kind = _kind_of(a, b, out)
        laid = plan(at(a), at(b), at(out)) if out.size and a.shape[-1] else None
        if out.dtype == _DOUBLE and code & cublaslt.GELUS:  # it is right to nine digits only
            return False
        if laid is None or (vector is not None and not vector.flags.c_contiguous):
            return False
        leading = 0 if kept is None else kept.shape[1] * (8 if kept.dtype == np.uint8 else 1)
        epilogue = Epilogue(code, 0 if vector is None else vector.data.ptr,
                            0 if kept is None else kept.data.ptr, leading)
        try:
            return self._fused(kind, laid, (a, b, out), (1.0, 0.0), epilogue)
        except Failed as error:
            raise self._failure(error, a, b, out) from None

    def _handle(self) -> Any:
        """This thread's handle, set to its current stream."""
        lease = getattr(self._thread, "lease", None)
        if lease is None:
            lease = self._thread.lease = self._leased()
        handle: _Handle = lease.handle
        stream = self._device.current_stream()
        if handle.stream != stream.id:
            handle.use(stream, self._workspace(stream.id))
        return handle.pointer

    def _leased(self) -> _Lease:
        """An unused handle, which becomes unused again when this thread ends."""
        try:
            handle = self._spare.pop()
        except IndexError:
            handle = _Handle()
        lease = _Lease(handle)
        weakref.finalize(lease, self._spare.append, handle).atexit = False
        return lease

    def _workspace(self, stream: int) -> CudaArray:
        """The memory that cuBLAS may write while it works on the stream with that id."""
        found = self._workspaces.get(stream)
        if found is None:
            nbytes = self._workspace_bytes()
            made = self._device.workspace(nbytes, np.uint8)(0, (nbytes,))
            found = self._workspaces.setdefault(stream, made)  # two threads may share the stream
        return found

    def _workspace_bytes(self) -> int:
        capability = cupy().cuda.Device(self._device.index).compute_capability
        return _WORKSPACE_BYTES.get(int(capability[:-1]), _OTHER_WORKSPACE_BYTES)

    def _forget(self, stream: int, last: object) -> None:
        """The stream has ended."""
        self._workspaces.pop(stream, None)
        for place in [*self._tables]:
            if place[0] == stream:
                self._tables.pop(place, None)
