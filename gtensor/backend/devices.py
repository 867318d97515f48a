"""Devices: one interned object per processor, and the default one.

A `Device` is the interface between gtensor and an array library: it makes arrays, copies them
between devices, and has the resource that allocates its memory.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.util
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.streams import Stream
from gtensor.settings import settings
from gtensor.system.fork_safety import free_at_forks

if TYPE_CHECKING:
    from gtensor.backend.ordering import Replays, Stamp
    from gtensor.backend.typing import Array, CudaArray, DTypeLike, Path


class DeviceError(ValueError):
    """A device that does not exist was named, or operands live on different devices."""


class Scratch:
    """Work buffers of one size, each taken in any shape that fits. See `Device.workspace`."""

    def __init__(self, buffers: Array) -> None:
        self.buffers = buffers  # (count, elements)

    def __call__(self, which: int, shape: tuple[int, ...]) -> Array:
        """Buffer `which`, uninitialized, as a contiguous array of `shape`."""
        return self.buffers[which, :prod(shape)].reshape(shape)


class Device:
    """A processor with its own memory; `with device:` makes it the default for the block.

    Attributes: `type` ("cpu" or "cuda"), `index`, `xp` (the array module),
    `array_type` (its array class), `resource` (where large blocks of memory come from;
    None is the library's own allocator), `graphs` (weak references to the captures that live),
    `architecture` (the compute capability of a CUDA device: 90 of sm_90; else 0).
    """

    type: str
    array_type: builtins.type[Array]
    architecture = 0
    resource: Any = None

    def __init__(self, index: int) -> None:
        self.index = index
        self.graphs: set[Any] = set()
        self.copies: dict[str, tuple[int, int]] = {}

    def note_copy(self, name: str, nbytes: int) -> None:
        """Count a copy made by an op that overwrites its input."""
        count, total = self.copies.get(name, (0, 0))
        self.copies[name] = count + 1, total + nbytes

    @property
    def xp(self) -> Any:
        """The module of its arrays: NumPy or CuPy."""
        raise TypeError("Device is abstract; get one with gtensor.device('cpu')")

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, label: str = "") -> Array:
        """An uninitialized C-contiguous array; `label` names its op in memory reports."""
        raise TypeError("Device is abstract; get one with gtensor.device('cpu')")

    def workspace(self, elements: int, dtype: DTypeLike, count: int = 1) -> Scratch:
        """`count` uninitialized buffers for an op to work in; one allocation, label "workspace"."""
        return Scratch(self.empty((count, max(1, elements)), dtype, "workspace"))

    def to_numpy(self, array: Array) -> np.ndarray:
        """The array's values as a NumPy array (the same memory on the CPU)."""
        raise TypeError("Device is abstract; get one with gtensor.device('cpu')")

    def from_numpy(self, array: np.ndarray) -> Array:
        """A NumPy array's values on this device (the same memory on the CPU)."""
        raise TypeError("Device is abstract; get one with gtensor.device('cpu')")

    def describe(self) -> tuple[str, int]:
        """The processor's name and its memory in bytes (0: not its own)."""
        return self.type, 0

    def current_stream(self) -> Stream:
        """The stream on which this thread's next op on the device runs."""
        raise TypeError("Device is abstract; get one with gtensor.device('cpu')")

    def new_stream(self, priority: int = 0) -> Stream:
        """A new stream; `with stream:` makes it this thread's current one. See `gtensor.stream`."""
        raise TypeError("Device is abstract; get one with gtensor.device('cpu')")

    def stream_from(self, stream: object) -> Stream:
        """The stream for an object of another library, or for a driver's handle."""
        return self.current_stream()

    def running(self, stream: Stream | None) -> AbstractContextManager[object]:
        """A context whose work is queued on the stream; None keeps the current one."""
        return nullcontext()

    def new_capture(self) -> Any:
        """An object that captures a thread's work and replays it. See `gtensor.Graph`.

        Raises DeviceError if the device has no graphs.
        """
        raise DeviceError(f"a graph on {self} was asked for, which has none; wanted a CUDA device")

    def capturing(self) -> bool:
        """Whether this thread's work on the device is being captured into a graph."""
        return False

    def replays(self) -> Replays | None:
        """What is done before each replay of the graph that this thread captures; None if none."""
        return None

    def upload(self, array: Array, values: Sequence[float]) -> None:
        """Copy numbers into a contiguous array of this device."""
        array[...] = values

    def stamp(self, array: Array) -> Stamp | None:
        """An object whose `version` counts the replays that write an array; None if none does."""
        return None

    def in_graphs(self, array: Array) -> bool:
        """Whether replays of graphs may read or write an array's memory from now on.

        Memory that a running capture has made for itself is no such.
        """
        return False

    def order(self, reads: Iterable[Array], writes: Iterable[Array] = ()) -> None:
        """Let the current stream's next work wait for other streams' work on these arrays.

        A read waits for the arrays' writers, a write also for their readers. Memory that is freed
        meanwhile is not reused before the current stream's work has completed. Does not block.
        """

    def order_transforms(self) -> None:
        """Let the current stream's next FFT wait for FFTs of other streams with the same plan."""

    def block_of(self, array: Array) -> Any:
        """The resource's block that contains an array, None if it is unknown."""
        return None

    def shared(self, array: Array) -> tuple[Array, object]:
        """A new array over the same memory, and an object that lives while it or a view of it does.
        """
        raise TypeError("Device is abstract; get one with gtensor.device('cpu')")

    def exported(self, array: Array, stream: object = None) -> None:
        """Another library will read the array, on the given (DLPack) stream if known."""

    def path(self, name: str, path: Path, inputs: int | None = None) -> Path:
        """`path` wrapped for this device, its allocations labelled `name`.

        `inputs`: how many arrays and numbers it is given by position, if that is known.
        """
        return path

    def rule(self, ns: Any, step: Any, g: Array) -> None:
        """Call the backward rule of a step's record, on the stream of the record's op."""
        step.record.op.backward(ns, step, g)

    def copy(self, array: Array, dtype: DTypeLike | None = None, label: str = "copy") -> Array:
        """A C-contiguous copy in memory of its own."""
        out = self.empty(array.shape, array.dtype if dtype is None else dtype, label)
        out[...] = array
        return out

    def ones(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """A path that makes ones; `xp.ones` takes five times as long for a single one."""
        array: Array = self.xp.empty(shape, dtype)
        array.fill(1)
        return array

    def fill(self, array: Array, value: complex) -> Array:
        """`array` with every element set to `value`."""
        array[...] = value
        return array

    def assign(self, array: Array, values: Array) -> None:
        """array[...] = values, of this device, behind other streams' work on either."""
        array[...] = values

    def assignable(self, value: object, dtype: np.dtype) -> Any:
        """A number or an array in the form in which `array[key] = value` keeps its value."""
        return value

    def matmul(
        self, a: Array, b: Array, out: Array | None = None, beta: complex = 0.0,
        alpha: complex = 1.0, label: str = "matmul",
    ) -> Array:
        """out = alpha * a @ b + beta * out, over the last two axes; others broadcast.

        For arrays of one floating or complex dtype, within a path. Half precision is summed in
        float32, into `out` of either dtype. Without an out one is allocated, with the label. Raises
        ValueError for an out of another shape or one that overlaps an input or itself.
        """
        raise TypeError("Device is abstract; get one with gtensor.device('cpu')")

    def synchronize(self) -> None:
        """Block until the current stream's work has completed."""
        self.current_stream().synchronize()

    def __enter__(self) -> Device:
        _scoped.stack = (*_scoped.stack, self)  # a store: an interrupt could follow an `append`
        return self

    def __exit__(self, *exception: object) -> None:
        _scoped.stack = _scoped.stack[:-1]

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return get_device, (str(self),)


class _Scoped(threading.local):
    """`with device:` blocks of this thread, innermost last."""

    stack: tuple[Device, ...] = ()


_scoped = _Scoped()
_lock = threading.RLock()
free_at_forks(_lock)
makers: dict[str, Callable[[int], Device]] = {}  # device type -> its class, from its own module
_devices: dict[str, Device] = {}
cuda_devices: dict[int, Device] = {}
_watchers: list[Callable[[Device], None]] = []
_default: Device | None = None


def owner(array: Array) -> Array:
    """The array object that owns `array`'s memory: for a view, its base."""
    base = array.base
    return base if type(base) is type(array) else array


@cache
def cuda_device_count() -> int:
    """The number of CUDA devices, from the driver itself, so CuPy is not imported."""
    if importlib.util.find_spec("cupy") is None:
        return 0
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def get_device(device: Device | str | None = None) -> Device:
    """The device of that name ("cpu", "cuda", "cuda:1"), or the default one for None.

    Raises DeviceError if there is no such device.
    """
    try:
        known = _devices.get(device)  # type: ignore[arg-type]
    except TypeError:  # no key
        known = None
    if known is not None:
        return known
    if device is None:
        return default_device()
    return device if isinstance(device, Device) else _create(device)


def _create(name: str) -> Device:
    if not isinstance(name, str):
        from gtensor.system.documents import told

        raise TypeError(f"device {told(name)} given; wanted 'cpu', 'cuda', 'cuda:<index>' or a "
                        "device")
    kind, _, index_text = name.partition(":")
    if kind not in ("cpu", "cuda") or not (index_text == "" or index_text.isdecimal()):
        raise DeviceError(f"device {name!r} given; wanted 'cpu', 'cuda' or 'cuda:<index>'")
    index = int(index_text or 0)
    count = 1 if kind == "cpu" else cuda_device_count()
    if index >= count:
        raise DeviceError(f"device {name!r} given, but this machine has {count} {kind} device(s)"
                          + _why_no_cuda() * (count == 0))
    with _lock:
        canonical = "cpu" if kind == "cpu" else f"cuda:{index}"
        if canonical not in _devices:
            made = makers[kind](index)
            for watcher in _watchers:
                watcher(made)
            _devices[canonical] = made
            if kind == "cuda":
                cuda_devices[index] = made
        _devices[name] = _devices[canonical]
        return _devices[canonical]


def _why_no_cuda() -> str:
    if importlib.util.find_spec("cupy") is None:
        from gtensor.system.installation import cuda_extra, installation_of

        return f": CuPy is not installed ({installation_of(cuda_extra())})"
    return ": no NVIDIA driver answers"


def device_of(array: CudaArray) -> Device:
    """The device of a raw array (or of a scalar, which NumPy returns for 0-d results)."""
    on_host = isinstance(array, (np.ndarray, np.generic))
    return get_device("cpu") if on_host else cuda_device(array.device.id)


def cuda_device(index: int) -> Device:
    """The CUDA device of that index."""
    known = cuda_devices.get(index)
    return get_device(f"cuda:{index}") if known is None else known


def on_new_device(watcher: Callable[[Device], None]) -> None:
    """Call `watcher(device)` for every existing and future device."""
    with _lock:
        _watchers.append(watcher)
        for made in set(_devices.values()):
            watcher(made)


def default_device() -> Device:
    """The device of the innermost `with device:`, else the one set, else cuda if any, or cpu."""
    if _scoped.stack:
        return _scoped.stack[-1]
    global _default
    if _default is None:
        _default = get_device("cuda" if cuda_device_count() else "cpu")
        if settings.debug >= 1:
            print(f"gtensor: default device {_default}")
    return _default


def set_default_device(device: Device | str) -> None:
    """Make `device` the default for the whole process."""
    from gtensor.system import structure

    global _default
    chosen = get_device(device)
    if chosen is not _default:
        structure.changed("the default device was set")
    _default = chosen


def visible_devices() -> list[Device]:
    """Every device of this machine, cpu first."""
    return [get_device("cpu")] + [get_device(f"cuda:{i}") for i in range(cuda_device_count())]
