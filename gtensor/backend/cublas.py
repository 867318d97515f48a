"""Matrix products by cuBLAS, called directly: CuPy's wrappers refuse to be captured into a graph.

A thread has one handle per device; the handles of ended threads are reused. Before a product the
handle is set to the thread's current stream and then to that stream's workspace, since setting a
stream resets the workspace. The workspace is allocated from the device's resource and kept until
the stream ends. On a stream under capture it belongs to the graph, so replays can use it.

Arrays are row-major, cuBLAS's matrices column-major: out.T = b.T @ a.T is computed on the same
memory. By its strides an operand is read directly or transposed; where neither is possible, it is
copied.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache, lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from gtensor.backend.cuda_streams import cupy

if TYPE_CHECKING:
    from gtensor.backend.cuda import CudaDevice
    from gtensor.backend.cuda_streams import CudaStream
    from gtensor.backend.typing import CudaArray

_AS_IT_LIES, _TRANSPOSED = 0, 1  # cublasOperation_t
_DEFAULT_ALGORITHM = -1  # cublasGemmAlgo_t
# cublasMath_t: partial sums of half precision stay in float32 between the parts of a product.
_NO_NARROW_SUMS = 16
# The sizes that the documentation of cublasSetWorkspace recommends, by major compute capability.
_WORKSPACE_BYTES = {9: 32 << 20, 10: 32 << 20, 12: 12 << 20}
_OTHER_WORKSPACE_BYTES = 4 << 20


# The shape of an array, its strides in bytes, and the bytes of an element.
At: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
Factor: TypeAlias = "type[ctypes.Array[ctypes.c_float]] | type[ctypes.Array[ctypes.c_double]]"


class _Kind(NamedTuple):
    """cuBLAS's codes for a product: cudaDataType of inputs and output, compute type."""

    inputs: int
    out: int
    compute: int
    scalar: Factor  # of alpha and beta: an array of one, or of real and imaginary part


_HALF, _BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_COMPLEX, _WIDE_COMPLEX = np.dtype(np.complex64), np.dtype(np.complex128)
_IN_SINGLE, _IN_DOUBLE = 68, 70  # cublasComputeType_t
_FLOAT, _FLOATS = ctypes.c_float * 1, ctypes.c_float * 2
_REAL, _REALS = ctypes.c_double * 1, ctypes.c_double * 2
# (dtype of the inputs, dtype of the output); half precision can be summed into a float32 buffer.
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
    """The cuBLAS that CuPy has loaded: symbols are found through CuPy's module, which links it."""
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


def _call(name: str, *arguments: object) -> None:
    status = getattr(_library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} answered status {status}; wanted 0 (cublasStatus_t says which)")


@lru_cache(64)
def _number(scalar: Factor, value: float) -> ctypes.Array[Any]:
    """A factor in host memory; cuBLAS reads it before the call returns."""
    return scalar(value)


class _Handle:
    """A cuBLAS handle. It is never destroyed, as that would wait for the whole device."""

    def __init__(self) -> None:
        found = ctypes.c_void_p()
        _call("cublasCreate_v2", ctypes.byref(found))
        self.pointer = found.value
        self.stream = -1  # the id of the stream that it is set to
        _call("cublasSetMathMode", self.pointer, _NO_NARROW_SUMS)

    def use(self, stream: CudaStream, workspace: CudaArray) -> None:
        """Queue the next products on the stream."""
        self.stream = -1  # until both calls have succeeded
        _call("cublasSetStream_v2", self.pointer, stream.stream.ptr)
        _call("cublasSetWorkspace_v2", self.pointer, workspace.data.ptr, workspace.nbytes)
        self.stream = stream.id


class _Lease:
    """A thread's use of a handle; it is collected when the thread ends."""

    def __init__(self, handle: _Handle) -> None:
        self.handle = handle


# -- layouts ---------------------------------------------------------------------------------------


class _Laid(NamedTuple):
    """The layout of an array: its shape, and its strides in elements."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]

    def swapped(self) -> _Laid:
        """The layout of the matrices' transposes."""
        return _Laid((*self.shape[:-2], *self.shape[:-3:-1]),
                     (*self.steps[:-2], *self.steps[:-3:-1]))

    def read(self) -> tuple[int, int]:
        """cuBLAS's operation and leading dimension for the matrices; 0 if it cannot read them."""
        (rows, columns), (down, across) = self.shape[-2:], self.steps[-2:]
        leading = _leading(rows, columns, down, across)
        if leading:
            return _AS_IT_LIES, leading
        return _TRANSPOSED, _leading(columns, rows, across, down)

    def readable(self) -> bool:
        """Whether cuBLAS can read the matrices, and one stride leads from each to the next.

        Axes along which the matrices repeat (stride 0) are ignored.
        """
        axes = [(n, s) for n, s in zip(self.shape[:-2], self.steps, strict=False) if n > 1 and s]
        even = all(s == n * step for (_, s), (n, step) in zip(axes, axes[1:], strict=False))
        return even and self.read()[1] > 0

    def over(self, count: int) -> tuple[int, ...]:
        """Strides along `count` leading axes, 0 along those that the matrices repeat over."""
        steps = [s if n > 1 else 0 for n, s in zip(self.shape[:-2], self.steps, strict=False)]
        return (0,) * (count - len(steps)) + tuple(steps)


def _leading(rows: int, columns: int, down: int, across: int) -> int:
    """The leading dimension of a matrix with contiguous rows; 0 if they are not contiguous."""
    if columns > 1 and across != 1:
        return 0
    if rows == 1:
        return columns
    return down if down >= columns else 0


def _fresh(shape: tuple[int, ...]) -> _Laid:
    """The layout of a copy in C order."""
    return _Laid(shape, tuple(prod(shape[axis + 1:]) for axis in range(len(shape))))


_Axis = tuple[int, tuple[int, ...]]  # length, step of each array


def _joined(lead: tuple[int, ...], *arrays: _Laid) -> list[_Axis]:
    """The leading axes; neighbours are merged where one stride of each array covers both."""
    axes: list[_Axis] = []
    steps = zip(*(x.over(len(lead)) for x in arrays), strict=True)
    for n, step in zip(lead, steps, strict=True):
        if n == 1:
            continue
        if axes and all(far == n * near for far, near in zip(axes[-1][1], step, strict=True)):
            axes[-1] = (axes[-1][0] * n, step)
        else:
            axes.append((n, step))
    return axes


class _Plan(NamedTuple):
    """The call for out.T = b.T @ a.T, whose columns are out's rows."""

    exchanged: bool  # a is b.T and b is a.T, since out.T has contiguous rows
    copied: tuple[bool, bool]  # a, b
    shape: tuple[int, int, int, int, int]  # operations, sizes
    leading: tuple[int, int, int]  # of a, b, out
    batch: _Axis  # its length, 0 for a single product, and steps
    others: tuple[_Axis, ...]  # one call for each index of these


@lru_cache(1024)
def _plan(a_at: At, b_at: At, out_at: At) -> _Plan | None:
    """The plan from (shape, strides, itemsize) of each; None if cuBLAS cannot write the output."""
    a, b, out = (_Laid(shape, tuple(stride // size for stride in strides))
                 for shape, strides, size in (a_at, b_at, out_at))
    operation, leading = out.read()
    if not leading:
        return None
    exchanged = operation == _TRANSPOSED
    if exchanged:
        a, b, out = b.swapped(), a.swapped(), out.swapped()
    copied = (not a.readable(), not b.readable())
    a, b = (_fresh(x.shape) if copy else x for x, copy in zip((a, b), copied, strict=True))
    (op_a, leading_a), (op_b, leading_b) = a.read(), b.read()
    axes = _joined(out.shape[:-2], a, b, out)
    batch = max(axes, default=(0, (0, 0, 0)))
    if axes:
        axes.remove(batch)
    return _Plan(exchanged, copied, (op_b, op_a, out.shape[-1], out.shape[-2], a.shape[-1]),
                 (leading_a, leading_b, leading), batch, tuple(axes))


# -- products --------------------------------------------------------------------------------------


class Products:
    """The products of one device, which must be CuPy's current one."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._workspaces: dict[int, CudaArray] = {}  # by stream
        self._spare: list[_Handle] = []
        self._thread = threading.local()
        device.on_stream_end.append(self._forget)

    def matmul(
        self, a: CudaArray, b: CudaArray, out: CudaArray | None = None, beta: float = 0.0
    ) -> CudaArray:
        """out = a @ b + beta * out, over the last two axes, broadcast over the others.

        `out` may be float32 for inputs of half precision, and is only read if beta is not 0. Raises
        TypeError for dtypes without a cuBLAS product, and ValueError for an `out` of another
        shape or one that overlaps an input or itself.
        """
        a_shape, b_shape, dtype = a.shape, b.shape, a.dtype
        lead = a_shape[:-2]
        if lead != b_shape[:-2]:
            lead = np.broadcast_shapes(lead, b_shape[:-2])
        shape = (*lead, a_shape[-2], b_shape[-1])
        if out is None:
            out, beta = cupy().empty(shape, dtype), 0.0
        else:
            _check_out(a, b, out, shape)
        kind = _KINDS.get((dtype, out.dtype))
        if kind is None or dtype != b.dtype:
            raise TypeError(f"a product of {dtype} and {b.dtype} into {out.dtype}; wanted one "
                            "floating-point or complex dtype")
        if a_shape[-1] == 0:
            return _scaled(out, beta)
        if out.size:
            self._write(kind, a, b, out, beta)
        return out

    def _write(self, kind: _Kind, a: CudaArray, b: CudaArray, out: CudaArray, beta: float) -> None:
        plan = _plan((a.shape, a.strides, a.itemsize), (b.shape, b.strides, b.itemsize),
                     (out.shape, out.strides, out.itemsize))
        if plan is None:
            whole = cupy().array(out, order="C") if beta else cupy().empty(out.shape, out.dtype)
            self._write(kind, a, b, whole, beta)
            out[...] = whole
            return
        if plan.exchanged:
            a, b = b.swapaxes(-1, -2), a.swapaxes(-1, -2)
        if True in plan.copied:
            a, b = (cupy().array(x, order="C") if copy else x
                    for x, copy in zip((a, b), plan.copied, strict=True))
        self._call(kind, plan, a, b, out, beta)

    def _call(
        self, kind: _Kind, plan: _Plan, a: CudaArray, b: CudaArray, out: CudaArray, beta: float
    ) -> None:
        """One call, unless both operands repeat their matrices, along different axes."""
        leading_a, leading_b, leading = plan.leading
        handle, one, factor = self._handle(), _number(kind.scalar, 1.0), _number(kind.scalar, beta)
        at_a, at_b, at_out = a.data.ptr, b.data.ptr, out.data.ptr
        batch, (step_a, step_b, step_out) = plan.batch
        if not batch:
            _call("cublasGemmEx_64", handle, *plan.shape, one, at_b, kind.inputs, leading_b,
                  at_a, kind.inputs, leading_a, factor, at_out, kind.out, leading,
                  kind.compute, _DEFAULT_ALGORITHM)
            return
        for index in product(*(range(n) for n, _ in plan.others)):
            beyond = [sum(i * steps[which] for i, (_, steps) in zip(index, plan.others,
                                                                    strict=True))
                      for which in range(3)]
            _call("cublasGemmStridedBatchedEx_64", handle, *plan.shape, one,
                  at_b + b.itemsize * beyond[1], kind.inputs, leading_b, step_b,
                  at_a + a.itemsize * beyond[0], kind.inputs, leading_a, step_a, factor,
                  at_out + out.itemsize * beyond[2], kind.out, leading, step_out, batch,
                  kind.compute, _DEFAULT_ALGORITHM)

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


def _check_out(a: CudaArray, b: CudaArray, out: CudaArray, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        raise ValueError(f"a product of shapes {a.shape} and {b.shape} was given an out of shape "
                         f"{out.shape}; wanted {shape}")
    if _overlaps_itself(out):
        raise ValueError(f"a product was given an out of shape {shape} and strides {out.strides} "
                         "with elements at one place; wanted memory of its own for each")
    if _overlap(out, a) or _overlap(out, b):
        raise ValueError(f"a product was given an out of shape {shape} that overlaps an input; "
                         "wanted memory of its own")


def _overlap(x: CudaArray, y: CudaArray) -> bool:
    """Whether two arrays have bytes in common.

    NumPy decides from addresses and strides; CuPy's `shares_memory` runs kernels and waits for
    them. A case that is too hard for NumPy counts as an overlap.
    """
    if not cupy().may_share_memory(x, y):
        return False
    try:
        at_x, at_y = np.asarray(_Place(x)), np.asarray(_Place(y))
        work: Any = 10000  # NumPy's type hints allow only -1 and 0
        return np.shares_memory(at_x, at_y, max_work=work)
    except np.exceptions.TooHardError:
        return True


class _Place:
    """The address and layout of an array, for NumPy, which does not read the memory."""

    def __init__(self, x: CudaArray) -> None:
        self.__array_interface__ = {
            "version": 3, "data": (x.data.ptr, True), "shape": x.shape, "strides": x.strides,
            "typestr": f"|V{x.itemsize}"}


def _overlaps_itself(x: CudaArray) -> bool:
    """Whether two indices may lead to one element: an axis steps within the extent of another."""
    if x.flags.c_contiguous or not x.size:
        return False
    end = x.itemsize
    for step, n in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if step < end:
            return True
        end += step * (n - 1)
    return False


def _scaled(out: CudaArray, beta: float) -> CudaArray:
    """beta * out, the result for an inner length of 0."""
    if not beta:
        out[...] = 0
    elif beta != 1:
        out *= beta
    return out
