"""Matrix products by cuBLAS, called directly: CuPy's wrappers refuse to be captured into a graph.

A thread has one handle per device; the handles of threads that have ended serve new ones. Before a
product the handle is set to the thread's current stream, and then to that stream's workspace, which
setting a stream takes away. The workspace is memory of the device's resource: on a stream that is
being captured it is the graph's, as all that a capture allocates, so replays find it. It is kept as
long as the stream is there.

Arrays are row-major, cuBLAS's matrices column-major: out.T = b.T @ a.T is computed on the same
memory. Strides decide whether an operand is read as it lies or transposed; where neither is
possible, it is copied.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from gtensor.backend.cuda_streams import cupy

if TYPE_CHECKING:
    from gtensor.backend.cuda import CudaDevice

_AS_IT_LIES, _TRANSPOSED = 0, 1  # cublasOperation_t
_DEFAULT_ALGORITHM = -1  # cublasGemmAlgo_t
# cublasMath_t: partial sums of half precision stay in float32 between the parts of a product.
_NO_NARROW_SUMS = 16
# cuBLAS, cublasSetWorkspace: what is recommended, by the major compute capability.
_WORKSPACE_BYTES = {9: 32 << 20, 10: 32 << 20, 12: 12 << 20}
_OTHER_WORKSPACE_BYTES = 4 << 20


class _Kind(NamedTuple):
    """How cuBLAS names the types of a product: cudaDataType of inputs and output, compute type."""

    inputs: int
    out: int
    compute: int
    scalar: Any  # of alpha and beta: an array of one, or of real and imaginary part


_HALF, _BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_COMPLEX, _WIDE_COMPLEX = np.dtype(np.complex64), np.dtype(np.complex128)
_IN_SINGLE, _IN_DOUBLE = 68, 70  # cublasComputeType_t
_FLOAT, _FLOATS = ctypes.c_float * 1, ctypes.c_float * 2
_REAL, _REALS = ctypes.c_double * 1, ctypes.c_double * 2
# (dtype of the inputs, dtype of the output); half precision can be added up in a float32 buffer.
_KINDS = {
    (_HALF, _HALF): _Kind(2, 2, _IN_SINGLE, _FLOAT),
    (_HALF, _SINGLE): _Kind(2, 0, _IN_SINGLE, _FLOAT),
    (_BRAIN, _BRAIN): _Kind(14, 14, _IN_SINGLE, _FLOAT),
    (_BRAIN, _SINGLE): _Kind(14, 0, _IN_SINGLE, _FLOAT),
    (_SINGLE, _SINGLE): _Kind(0, 0, _IN_SINGLE, _FLOAT),
    (_DOUBLE, _DOUBLE): _Kind(1, 1, _IN_DOUBLE, _REAL),
    (_COMPLEX, _COMPLEX): _Kind(4, 4, _IN_SINGLE, _FLOATS),
    (_WIDE_COMPLEX, _WIDE_COMPLEX): _Kind(5, 5, _IN_DOUBLE, _REALS),
}


# -- the library -----------------------------------------------------------------------------------


@cache
def _library() -> ctypes.CDLL:
    """The cuBLAS that CuPy has loaded: names are looked up in what CuPy's module depends on."""
    from cupy_backends.cuda.libs import cublas

    library = ctypes.CDLL(cublas.__file__)
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    library.cublasCreate_v2.argtypes = (ctypes.POINTER(pointer),)
    library.cublasSetMathMode.argtypes = (pointer, number)
    library.cublasSetStream_v2.argtypes = (pointer, pointer)
    library.cublasSetWorkspace_v2.argtypes = (pointer, pointer, ctypes.c_size_t)
    shape, factor = (number, number, size, size, size), (pointer,)
    library.cublasGemmEx_64.argtypes = (
        pointer, *shape, *factor, *(pointer, number, size) * 2, *factor, pointer, number, size,
        number, number)
    library.cublasGemmStridedBatchedEx_64.argtypes = (
        pointer, *shape, *factor, *(pointer, number, size, size) * 2, *factor,
        pointer, number, size, size, size, number, number)
    return library


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} answered status {status}; wanted 0 (cublasStatus_t says which)")


@lru_cache(64)
def _number(scalar: Any, value: float) -> Any:
    """A factor as cuBLAS reads it, from the host, before the call returns."""
    return scalar(value)


class _Handle:
    """A handle of cuBLAS's. It is never destroyed, as that would wait for the whole device."""

    def __init__(self) -> None:
        found = ctypes.c_void_p()
        _call("cublasCreate_v2", ctypes.byref(found))
        self.pointer = found.value
        self.stream = -1  # the id of the one that it is set to
        _call("cublasSetMathMode", self.pointer, _NO_NARROW_SUMS)

    def use(self, stream: Any, workspace: Any) -> None:
        """Queue what follows on the stream."""
        self.stream = -1  # until both calls have succeeded
        _call("cublasSetStream_v2", self.pointer, stream.stream.ptr)
        _call("cublasSetWorkspace_v2", self.pointer, workspace.data.ptr, workspace.nbytes)
        self.stream = stream.id


class _Lease:
    """Stands for a thread's use of a handle, and goes with the thread."""

    def __init__(self, handle: _Handle) -> None:
        self.handle = handle


# -- layouts ---------------------------------------------------------------------------------------


def _leading(rows: int, columns: int, down: int, across: int) -> int:
    """The leading dimension of a matrix whose rows lie in one piece; 0 if they do not."""
    if columns > 1 and across != 1:
        return 0
    if rows == 1:
        return columns
    return down if down >= columns else 0


def _steps(x: Any) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple(stride // x.itemsize for stride in x.strides)


def _read(x: Any) -> tuple[int, int]:
    """How cuBLAS reads the matrices of x: the operation and the leading dimension; (0, 0): not."""
    (rows, columns), (down, across) = x.shape[-2:], _steps(x)[-2:]
    leading = _leading(rows, columns, down, across)
    if leading:
        return _AS_IT_LIES, leading
    return _TRANSPOSED, _leading(columns, rows, across, down)


def _in_one_run(x: Any) -> bool:
    """Whether one step leads from each matrix of x to the next, repetitions left out."""
    axes = [(n, s) for n, s in zip(x.shape[:-2], _steps(x), strict=False) if n > 1 and s]
    return all(s == n * step for (_, s), (n, step) in zip(axes, axes[1:], strict=False))


def _readable(x: Any) -> Any:
    """x itself, or a copy that cuBLAS can read."""
    return x if _read(x)[1] and _in_one_run(x) else cupy().array(x, order="C")


def _swapped(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _lead_steps(x: Any, count: int) -> tuple[int, ...]:
    """Steps along `count` leading axes, 0 along those that x repeats its matrices over."""
    steps = [s if n > 1 else 0 for n, s in zip(x.shape[:-2], _steps(x), strict=False)]
    return (0,) * (count - len(steps)) + tuple(steps)


_Axis = tuple[int, tuple[int, ...]]  # length, step of each array


def _joined(lead: tuple[int, ...], *arrays: Any) -> list[_Axis]:
    """The leading axes, neighbours along which all arrays step evenly as one."""
    axes: list[_Axis] = []
    steps = zip(*(_lead_steps(x, len(lead)) for x in arrays), strict=True)
    for n, step in zip(lead, steps, strict=True):
        if n == 1:
            continue
        if axes and all(far == n * near for far, near in zip(axes[-1][1], step, strict=True)):
            axes[-1] = (axes[-1][0] * n, step)
        else:
            axes.append((n, step))
    return axes


# -- products --------------------------------------------------------------------------------------


class Products:
    """The products of one device, which has to be CuPy's current one."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._workspaces: dict[int, Any] = {}  # by stream
        self._spare: list[_Handle] = []
        self._thread = threading.local()
        device.on_stream_end.append(self._forget)

    def matmul(self, a: Any, b: Any, out: Any = None, beta: float = 0.0) -> Any:
        """out = a @ b + beta * out, over the last two axes, broadcast over the others.

        `out` may be float32 for inputs of half precision, and is only read if beta is not 0. Raises
        TypeError for dtypes that cuBLAS has no product of, and ValueError for an `out` of another
        shape or one that overlaps an input.
        """
        lead = a.shape[:-2]
        if lead != b.shape[:-2]:
            lead = np.broadcast_shapes(lead, b.shape[:-2])
        shape = (*lead, a.shape[-2], b.shape[-1])
        if out is None:
            out, beta = cupy().empty(shape, a.dtype), 0.0
        else:
            _check_out(a, b, out, shape)
        kind = _KINDS.get((a.dtype, out.dtype))
        if kind is None or a.dtype != b.dtype:
            raise TypeError(f"a product of {a.dtype} and {b.dtype} into {out.dtype}; wanted one "
                            "floating-point or complex dtype")
        if a.shape[-1] == 0:
            return _scaled(out, beta)
        if out.size:
            self._write(kind, a, b, out, beta)
        return out

    def _write(self, kind: _Kind, a: Any, b: Any, out: Any, beta: float) -> None:
        operation, leading = _read(out)
        if not leading:
            whole = cupy().array(out, order="C") if beta else cupy().empty(out.shape, out.dtype)
            self._write(kind, a, b, whole, beta)
            out[...] = whole
        elif operation == _TRANSPOSED:
            self._multiply(kind, _swapped(b), _swapped(a), _swapped(out), leading, beta)
        else:
            self._multiply(kind, a, b, out, leading, beta)

    def _multiply(
        self, kind: _Kind, a: Any, b: Any, out: Any, leading: int, beta: float
    ) -> None:
        """The call for out.T = b.T @ a.T + beta * out.T, whose columns are out's rows.

        One call does it, unless both operands repeat their matrices, along different axes: then one
        for each index of the shorter axes.
        """
        a, b = _readable(a), _readable(b)
        (op_a, leading_a), (op_b, leading_b) = _read(a), _read(b)
        rows, columns = out.shape[-2:]
        before = (self._handle(), op_b, op_a, columns, rows, a.shape[-1], _number(kind.scalar, 1.0))
        factor, after = _number(kind.scalar, beta), (kind.compute, _DEFAULT_ALGORITHM)
        axes = _joined(out.shape[:-2], a, b, out)
        if not axes:
            _call("cublasGemmEx_64", *before, b.data.ptr, kind.inputs, leading_b,
                  a.data.ptr, kind.inputs, leading_a, factor, out.data.ptr, kind.out, leading,
                  *after)
            return
        batch, (step_a, step_b, step_out) = max(axes)
        axes.remove((batch, (step_a, step_b, step_out)))
        for index in product(*(range(n) for n, _ in axes)):
            at_a, at_b, at_out = (
                x.data.ptr + x.itemsize * sum(i * steps[which] for i, (_, steps) in
                                              zip(index, axes, strict=True))
                for which, x in enumerate((a, b, out)))
            _call("cublasGemmStridedBatchedEx_64", *before, at_b, kind.inputs, leading_b, step_b,
                  at_a, kind.inputs, leading_a, step_a, factor, at_out, kind.out, leading, step_out,
                  batch, *after)

    def _handle(self) -> int | None:
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
        """A handle that no thread has, given back when this thread ends."""
        try:
            handle = self._spare.pop()
        except IndexError:
            handle = _Handle()
        lease = _Lease(handle)
        weakref.finalize(lease, self._spare.append, handle).atexit = False
        return lease

    def _workspace(self, stream: int) -> Any:
        """What cuBLAS may write while it works on the stream with that id."""
        found = self._workspaces.get(stream)
        if found is None:
            made = self._device.empty((self._workspace_bytes(),), np.uint8, "cublas")
            found = self._workspaces.setdefault(stream, made)  # two threads may share the stream
        return found

    def _workspace_bytes(self) -> int:
        capability = cupy().cuda.Device(self._device.index).compute_capability
        return _WORKSPACE_BYTES.get(int(capability[:-1]), _OTHER_WORKSPACE_BYTES)

    def _forget(self, stream: int, last: Any) -> None:
        """The stream has ended."""
        self._workspaces.pop(stream, None)


def _check_out(a: Any, b: Any, out: Any, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        raise ValueError(f"a product of shapes {a.shape} and {b.shape} was given an out of shape "
                         f"{out.shape}; wanted {shape}")
    may_share = cupy().may_share_memory
    if may_share(out, a) or may_share(out, b):
        raise ValueError(f"a product was given an out of shape {shape} that overlaps an input; "
                         "wanted memory of its own")


def _scaled(out: Any, beta: float) -> Any:
    """beta * out, which is what a sum of no products leaves."""
    if not beta:
        out[...] = 0
    elif beta != 1:
        out *= beta
    return out
