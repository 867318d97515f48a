"""The definition, call and queueing of the functions of the stand-in libraries.

A library is a table: name -> argument types -> implementation. A letter stands for a type:

    p  an address, a handle or a stream (0 where NULL)      i  int        z  size_t
    l  long long                                            f  float      d  double

and, as a result, v for none.

An implementation raises `Refused(status)` where NVIDIA documents an error, before anything is
changed; work that it queues with `enqueue` may not fail for reasons that the arguments show. It
reads host scalars before it queues, and device memory only in the queue.
"""

import ctypes
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from gtensor.hostcuda.libraries.stubs import Stub

LETTERS: dict[str, Any] = {
    "p": ctypes.c_uint64,  # not c_void_p, which passes NULL as None
    "i": ctypes.c_int,
    "l": ctypes.c_longlong,
    "z": ctypes.c_size_t,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "v": None,
}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# A routine's type letter, as BLAS and NVIDIA's libraries spell it.
DTYPES: dict[str, np.dtype] = {
    "S": np.dtype("f4"), "D": np.dtype("f8"), "C": np.dtype("c8"), "Z": np.dtype("c16"),
}  # fmt: skip


class Refused(Exception):
    """A library's status code, returned instead of doing the work."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def require(condition: bool, status: int) -> None:
    """Refuses with this status unless the condition holds."""
    if not condition:
        raise Refused(status)


# ---------------------------------------------------------------------------- memory


class Faulted(Exception):
    """Queued work accessed memory as no GPU can; libhostcuda noted the error."""


def reach(address: int, nbytes: int) -> None:
    """Ends queued work as a GPU would, with an illegal address, where the device has no memory.

    Memory that a call reads or writes before it queues is the host's.
    """
    name = getattr(_running, "name", None)
    if name is not None and runtime.reach(address, nbytes, name):
        raise Faulted


def wide(address: int, nbytes: int, what: str) -> None:
    """Ends queued work as a GPU would, with a misaligned address, where it loads so many bytes."""
    if address % nbytes:
        name = getattr(_running, "name", None)
        runtime.fail(f"{name}: {what} at {address:#x}, which is no multiple of {nbytes} bytes",
                     MISALIGNED_ADDRESS)
        raise Faulted


class _Span:
    """An address range with NumPy's array interface."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def view(
    address: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
) -> np.ndarray:
    """An array over memory at an address; `strides` count elements and are C order if left out.

    In the queue it must be memory that the device reaches: see `reach`.
    """
    dtype = np.dtype(dtype)
    if 0 in shape:
        return np.empty(shape, dtype)
    if strides is None:
        steps, size = [], 1
        for length in reversed(shape):
            steps.append(size)
            size *= length
        strides = tuple(reversed(steps))
    low = sum(min(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True))
    high = sum(max(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True))
    item = dtype.itemsize
    reach(address + low * item, (high - low + 1) * item)
    span = np.asarray(_Span(address + low * item, (high - low + 1) * item)).view(dtype)
    steps_in_bytes = tuple(s * item for s in strides)
    return np.ndarray(shape, dtype, span, -low * item, steps_in_bytes)


def matrix(address: int, rows: int, columns: int, ld: int, dtype: Any) -> np.ndarray:
    """A column-major matrix with a leading dimension."""
    return view(address, (rows, columns), dtype, (1, ld))


def vector(address: int, n: int, step: int, dtype: Any) -> np.ndarray:
    """A BLAS vector: a negative step starts at its far end."""
    start = address if step >= 0 else address - (n - 1) * step * np.dtype(dtype).itemsize
    return view(start, (n,), dtype, (step,))


# The types that ctypes reads and writes itself, which is faster than an array.
CELLS: dict[np.dtype, Any] = {
    np.dtype("f4"): ctypes.c_float,
    np.dtype("f8"): ctypes.c_double,
    np.dtype("i4"): ctypes.c_int,
    np.dtype("u8"): ctypes.c_uint64,
}


def scalar(address: int, dtype: Any) -> Any:
    """The scalar at an address, as a Python number."""
    cell = CELLS.get(np.dtype(dtype))
    if cell is None:
        return view(address, (1,), dtype)[0].item()
    reach(address, ctypes.sizeof(cell))
    return cell.from_address(address).value


def store(address: int, value: Any, dtype: Any) -> None:
    """Writes one scalar."""
    view(address, (1,), dtype)[0] = value


def pointers(address: int, count: int) -> list[int]:
    """The addresses in an array of them."""
    return [int(value) for value in view(address, (count,), "u8")]


# ---------------------------------------------------------------------------- the queue

Work = Callable[[], None]
Enqueue = Callable[[int, Work, str], int]

_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_works: dict[int, tuple[str, Work]] = {}
_running = threading.local()  # `name`: of the work that this thread runs
_keys = itertools.count(1)
# cudaError_t: they stay until the process ends.
MISALIGNED_ADDRESS, LAUNCH_FAILURE = 716, 719


@_RUN
def _run(key: int) -> None:
    try:
        _running.name, work = _works[key]
        with np.errstate(all="ignore"):  # a GPU warns of no overflow
            work()
    except Faulted:
        pass
    except BaseException as error:  # delivered: the caller is C
        traceback.print_exc()
        runtime.fail(f"a stand-in for one of NVIDIA's libraries failed: {error}")
    finally:
        _running.name = None


@_RUN
def _drop(key: int) -> None:
    _works.pop(key, None)


class Traffic(NamedTuple):
    """What a library's call reads, writes (bytes) and multiplies, for programs that watch it.

    `product` has m, n, k and the number of products. `inputs` is the dtype of the factors, "tf32"
    where float32 is multiplied as such. `aligned`: rows of the matrices begin at 16 bytes.
    """

    reads: int
    writes: int
    product: tuple[int, int, int, int] | None = None
    inputs: str = ""
    aligned: bool = True


def traffic_of_product(
    shape: tuple[int, int, int], count: int, steps: tuple[int, ...], types: Any,
    lds: tuple[int, ...], reads_out: bool, tf32: bool,
) -> Traffic:  # fmt: skip
    """The traffic of `count` products C = A B; there is one A, or B, if the step to the next is 0.
    """
    (m, n, k), (lda, ldb, ldc) = shape, lds
    a, b, c = (dtype.itemsize for dtype in (types.a, types.b, types.c))
    written = m * n * c * count
    read = m * k * a * (count if steps[0] else 1) + k * n * b * (count if steps[1] else 1)
    return Traffic(
        read + (written if reads_out else 0), written, (m, n, k, count),
        "tf32" if tf32 and types.a.name == "float32" else types.a.name,
        (lda * a | ldb * b | ldc * c) % 16 == 0)


class Context:
    """A handle of a library: its stream, and the device that was current when it was made."""

    def __init__(self, failed: int) -> None:
        self.stream = 0
        self.device = runtime.device()
        self.failed = failed

    def enqueue(self, name: str, work: Work, traffic: Traffic | None = None) -> None:
        """Queues work; the device must be current (cuBLAS, "cuBLAS Context")."""
        require(runtime.device() == self.device, self.failed)
        enqueue(self.stream, name, work, self.failed, traffic)


class Runtime:
    """The functions of the CUDA runtime that the libraries need; `attach` connects libhostcuda's.

    Without one (tests of the libraries alone) work runs at once and nothing is ever captured.
    """

    def __init__(self) -> None:
        self.native: ctypes.CDLL | None = None
        self.failures: list[str] = []

    def attach(self, native: ctypes.CDLL) -> None:
        native.hostcuda_enqueue.argtypes = [
            ctypes.c_void_p, _RUN, _RUN, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p,
        ]  # fmt: skip
        native.hostcuda_is_capturing.argtypes = [ctypes.c_void_p]
        native.hostcuda_fail.argtypes = [ctypes.c_int, ctypes.c_char_p]
        native.hostcuda_reach.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p]
        native.hostcuda_missing.argtypes = [ctypes.c_char_p]
        native.cudaStreamSynchronize.argtypes = [ctypes.c_void_p]
        native.cudaGetDevice.argtypes = [ctypes.c_void_p]
        self.native = native

    def enqueue(self, stream: int, key: int, name: str) -> int:
        if self.native is None:
            _run(key)
            _drop(key)
            return 0
        return int(self.native.hostcuda_enqueue(stream, _run, _drop, key, 1, name.encode()))

    def is_capturing(self, stream: int) -> bool:
        return self.native is not None and self.native.hostcuda_is_capturing(stream) == 1

    def device(self) -> int:
        number = ctypes.c_int(0)
        if self.native is not None:
            self.native.cudaGetDevice(ctypes.byref(number))
        return number.value

    def synchronize(self, stream: int) -> int:
        return 0 if self.native is None else int(self.native.cudaStreamSynchronize(stream))

    def reach(self, address: int, nbytes: int, name: str) -> int:
        """An error's number if the device does not reach this memory; only from within work."""
        if self.native is None:
            return 0
        return int(self.native.hostcuda_reach(address, nbytes, name.encode()))

    def fail(self, sentence: str, error: int = LAUNCH_FAILURE) -> None:
        """Set a sticky error of the device; only from within queued work.

        After a launch failure, which stands for a bug of a stand-in, the libraries refuse all.
        """
        if error == LAUNCH_FAILURE or self.native is None:
            self.failures.append(sentence)
        if self.native is not None:
            self.native.hostcuda_fail(error, sentence.encode())


runtime = Runtime()


watched: list[Traffic | None] | None = None
"""Of each call that was queued, in order, while the host device is watched."""


def enqueue(
    stream: int, name: str, work: Work, failed: int, traffic: Traffic | None = None
) -> None:
    """Puts work into a stream's queue; refuses with the status `failed` if that is impossible.

    An error of the work is a bug of the stand-in: its traceback is printed, and every later call
    returns `failed`, as after a sticky CUDA error.
    """
    require(not runtime.failures, failed)
    key = next(_keys)
    _works[key] = name, work
    status = runtime.enqueue(stream, key, name)
    if status:
        _works.pop(key, None)
    require(not status, failed)
    if watched is not None:
        watched.append(traffic)


# ---------------------------------------------------------------------------- libraries


class Library:
    """One library's functions, by name, and the stub that they are filled into."""

    def __init__(self, soname: str, *, refusal: int = 0, internal: int = 0) -> None:
        self.soname = soname
        self.refusal, self.internal = refusal, internal
        self.letters: dict[str, str] = {}
        self.results: dict[str, str] = {}
        self.entries: dict[str, Callable[..., int]] = {}
        self.stub: Stub | None = None
        self._callbacks: list[Any] = []

    def function(self, name: str, letters: str, types: str = "", result: str = "i") -> Callable:
        """Declares a function; with `types`, one per letter, which stands for {} in the name.

        The implementation gets the type letter first where there is one, then the arguments.
        `result` is the letter of what it returns where that is not a status.
        """

        def declare(implement: Callable) -> Callable:
            for letter in types or [""]:
                full = name.format(letter)
                first = (letter,) if letter else ()
                self.letters[full] = letters.replace(" ", "")
                self.results[full] = result
                self.entries[full] = self._entry(implement, first)
            return implement

        return declare

    def _entry(self, implement: Callable, first: tuple[str, ...]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            try:
                return implement(*first, *arguments) or 0
            except Refused as refused:
                return refused.status
            except BaseException:  # delivered: the caller is C
                traceback.print_exc(file=sys.stderr)
                return self.internal

        return call

    def load(self, wanted: Iterable[str]) -> Stub:
        """Builds and loads the stub, and fills in the implemented functions."""
        names = {*wanted, *self.entries}
        self.stub = Stub(self.soname, names, self.refusal)
        self.stub.fill(self.addresses())
        return self.stub

    def addresses(self) -> dict[str, int]:
        """Machine code that calls each function; it lives as long as the library."""
        addresses = {}
        for name, entry in self.entries.items():
            kinds = [LETTERS[letter] for letter in self.letters[name]]
            callback = ctypes.CFUNCTYPE(LETTERS[self.results[name]], *kinds)(entry)
            self._callbacks.append(callback)
            addresses[name] = ctypes.cast(callback, ctypes.c_void_p).value or 0
        return addresses

    def missing(self) -> list[str]:
        """The functions that a program called and that are not implemented."""
        return sorted(self.stub.refused()) if self.stub else []


class Handles:
    """Objects behind opaque handles, which are unique over all libraries."""

    _next = itertools.count(0x10000, 0x100)

    def __init__(self, unknown: int) -> None:
        self.unknown = unknown
        self._objects: dict[int, Any] = {}

    def add(self, value: Any) -> int:
        handle = next(self._next)
        self._objects[handle] = value
        return handle

    def __getitem__(self, handle: int) -> Any:
        require(handle in self._objects, self.unknown)
        return self._objects[handle]

    def remove(self, handle: int) -> None:
        require(handle in self._objects, self.unknown)
        del self._objects[handle]
