"""CUDA devices: CuPy arrays, on blocks of the installed resource.

CuPy is imported when the first CUDA device is made, never before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from math import copysign
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.cuda_memory import AsyncMemory, is_pinned, library_malloc, no_room_for
from gtensor.backend.cuda_streams import CudaStream, StreamBook, cupy, running
from gtensor.backend.devices import (
    Device,
    cuda_device,
    cuda_device_count,
    cuda_devices,
    makers,
)
from gtensor.backend.elements import element_type, new_array
from gtensor.backend.ordering import Ordering
from gtensor.system.bus import bus, tell_allocated

if TYPE_CHECKING:
    from gtensor.backend.cuda_graphs import Capture
    from gtensor.backend.cuda_pages import CudaPages
    from gtensor.backend.ordering import Replays, Stamp
    from gtensor.backend.streams import Event
    from gtensor.backend.typing import Array, CudaArray, DTypeLike, Path


class CudaDevice(Device):
    """One NVIDIA GPU through CuPy; `products` are cuBLAS's, to be called within a path."""

    type = "cuda"
    array_type: Any
    library: Callable[[int], Any] | None = None  # the allocator while there is no resource

    def __init__(self, index: int) -> None:
        # here: only a machine with a GPU needs them
        from gtensor.backend.cublas import Products
        from gtensor.backend.cuda_guards import guarded_rule
        from gtensor.backend.cuda_losses import watch

        super().__init__(index)
        watch(cupy().cuda.runtime.CUDARuntimeError, cupy().cuda.driver.CUDADriverError)
        self.cupy_device = cupy().cuda.Device(index)
        self.architecture = int(self.cupy_device.compute_capability)
        self.array_type = cupy().ndarray
        self._paths: dict[tuple[str, Path, int | None], Path] = {}
        self._copies = _Copies(self)
        self.on_stream_end: list[Callable[[int, Event], None]] = []
        self.streams = StreamBook(index, self._stream_ended)
        self._ordering = Ordering(self.streams.get)
        self.current_index = cupy().cuda.runtime.getDevice
        self.stream_on = cupy().cuda.get_current_stream
        self.current_stream = self.streams.current  # type: ignore[method-assign]  # one call less
        self.rule = guarded_rule(self)  # type: ignore[method-assign]
        self.products = Products(self)
        _install_allocator()

    @property
    def xp(self) -> Any:
        return cupy()

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, label: str = "") -> Array:
        if self._elsewhere():
            with self.cupy_device:
                return self.empty(shape, dtype, label)
        before = running.name
        running.name = label or before or ""
        try:
            return new_array()(shape, element_type(dtype))
        finally:
            running.name = before

    def copy(self, array: Array, dtype: DTypeLike | None = None, label: str = "copy") -> Array:
        if dtype is None:
            return self._copies[label](array)
        return self._copies[label](array, dtype=element_type(dtype))

    def fill(self, array: Array, value: complex) -> Array:
        with self.cupy_device:
            self.order((), (array,))
            return super().fill(array, self.assignable(value, array.dtype))

    def assign(self, array: Array, values: Array) -> None:
        with self.cupy_device:
            self.order((values,), (array,))
            super().assign(array, values)

    def matmul(
        self, a: Array, b: Array, out: Array | None = None, beta: complex = 0.0,
        alpha: complex = 1.0, label: str = "matmul", *, bias: Array | None = None,
        sums: Array | None = None, summand: Array | None = None,
    ) -> Array:
        """As on every device; `bias`, `sums` and `summand` as in `cublas.Products`."""
        return self.products.matmul(a, b, out, beta, alpha, bias, sums, summand)

    def running_op(self) -> str:
        """The name of the op that this thread runs."""
        return running.name or ""

    def to_numpy(self, array: Array) -> np.ndarray:
        self.order((array,))
        return cupy().asnumpy(array)

    def from_numpy(self, array: np.ndarray) -> Array:
        """A copy on this device; when it returns, the caller may overwrite `array`.

        A copy from page-locked memory is asynchronous, so this call waits for it.
        """
        with self.cupy_device:
            if _is_negative_zero(array):
                return self.assignable(array, array.dtype)
            return cupy().asarray(array, blocking=is_pinned(array))

    def assignable(self, value: object, dtype: np.dtype) -> Any:
        """-0.0 as an array: CuPy assigns a number equal to 0 by memset, which loses the sign."""
        if dtype.kind in "biu" or not _is_negative_zero(value):
            return value
        array = self.empty((), dtype, "negative zero")
        cupy().copyto(array, value)
        return array

    def current_stream(self) -> CudaStream:
        return self.streams.current()

    def synchronize(self) -> None:
        """Block until the current stream's work has completed.

        If work of ended streams can only be waited for with the device, this waits for the device.
        """
        if self.streams.needs_wait():
            self.streams.synchronize()
        else:
            super().synchronize()

    def new_stream(self, priority: int = 0) -> CudaStream:
        return self.streams.made(priority)

    def stream_from(self, stream: Any) -> CudaStream:
        """A stream of gtensor or CuPy, an object with `__cuda_stream__`, or a driver's handle."""
        if isinstance(stream, CudaStream):
            return stream
        if isinstance(stream, (cupy().cuda.Stream, cupy().cuda.ExternalStream)):
            return self.streams.known(stream)
        if not isinstance(stream, int):
            stream = stream.__cuda_stream__()[1] if hasattr(stream, "__cuda_stream__") else (
                stream.ptr)
        return self.streams.from_handle(stream)

    @contextmanager
    def running(self, stream: Any) -> Iterator[None]:
        gone = stream is None or stream.stream is None  # the current stream is used then
        with self.cupy_device if gone else stream:
            yield

    def order(self, reads: Iterable[Array], writes: Iterable[Array] = ()) -> None:
        stream = self.current_stream()
        unknown = False
        for arrays, access in ((reads, self._ordering.read), (writes, self._ordering.write)):
            for array in arrays:
                block = self.block_of(array)
                if block is None:
                    unknown = unknown or isinstance(array, self.array_type)
                elif block.only != stream.id:
                    access(stream, block)
        if unknown:
            self._ordering.behind_all(stream, self.streams.ids())

    def order_transforms(self) -> None:
        """CuPy's cached plans of a thread share one work area each over all streams (cupy#8079)."""
        plans = [node.plan for _, node in cupy().fft.config.get_plan_cache()]
        self.order((), [cupy().ndarray(0, np.uint8, memptr=plan.work_area) for plan in plans
                        if not isinstance(plan.work_area, list)])  # plans of several GPUs wait

    def block_of(self, array: Array) -> Any:
        if not isinstance(array, self.array_type):
            return None
        memory = array.data.mem
        return memory if hasattr(memory, "only") else None

    def shared(self, array: Array) -> tuple[Array, object]:
        made = cupy().ndarray(array.shape, array.dtype, array.data, array.strides)
        return made, made  # it has no base, so it is that of its views

    def exported(self, array: Array, stream: object = None) -> None:
        self.order((array,))
        block = self.block_of(array)
        if block is not None and stream is not None and stream != -1:
            consumer = self.stream_from(stream)
            if consumer.id != block.stream:
                block.owner.record_use(block, consumer.id)

    def _stream_ended(self, number: int, last: Event) -> None:
        self._ordering.forget(number, last)
        for ended in tuple(self.on_stream_end):
            ended(number, last)

    def new_capture(self) -> Capture:
        from gtensor.backend.cuda_graphs import Capture

        return Capture(self, self._ordering)

    def stamp(self, array: Array) -> Stamp | None:
        return getattr(self.block_of(array), "stamp", None)

    def in_graphs(self, array: Array) -> bool:
        if not self.graphs:
            return False
        block = self.block_of(array)
        if block is None:
            return True
        if self.capturing():
            return bool(block.stream != self.current_stream().id)
        return hasattr(block, "stamp") or any(
            graph is not None and block in graph.touched.read
            for graph in [graph() for graph in list(self.graphs)])

    def capturing(self) -> bool:
        captures = self._ordering.captures
        return bool(captures) and self.current_stream().id in captures

    def replays(self) -> Replays | None:
        captures = self._ordering.captures
        touched = captures.get(self.current_stream().id) if captures else None
        return None if touched is None else touched.replays

    def upload(self, array: Any, values: Sequence[float]) -> None:
        """Asynchronous: the driver copies pageable memory before the call returns."""
        with self.cupy_device:
            self.order((), (array,))
            array.set(np.asarray(values, array.dtype))

    def describe(self) -> tuple[str, int]:
        """The GPU's name and its memory in bytes."""
        found = cupy().cuda.runtime.getDeviceProperties(self.index)
        return found["name"].decode(), int(found["totalGlobalMem"])

    def malloc(self, nbytes: int) -> int:
        """The address of a cudaMalloc on this device. Raises MemoryError without room."""
        with self.cupy_device, no_room_for("cudaMalloc", nbytes, self):
            return int(cupy().cuda.runtime.malloc(nbytes))

    def free(self, address: int) -> None:
        """cudaFree, which waits for the device."""
        with self.cupy_device:
            cupy().cuda.runtime.free(address)

    def pages(self) -> CudaPages:
        """The device's virtual memory; raises ImportError without cuda-bindings."""
        from gtensor.backend.cuda_pages import CudaPages

        return CudaPages(self.index, self.cupy_device)

    def async_memory(self) -> AsyncMemory:
        """Memory of CUDA's pool of the device (cudaMallocAsync)."""
        return AsyncMemory(self.cupy_device)

    def use_library(self, name: str | None) -> None:
        """Allocate by another library (a name of `library_malloc`) while there is no resource.

        None is a pool of CuPy.
        """
        with self.cupy_device:
            self.library = None if name is None else library_malloc(name, self.index)

    def path(self, name: str, path: Path, inputs: int | None = None) -> Path:
        guarded = self._paths.get((name, path, inputs))
        if guarded is None:
            from gtensor.backend.cuda_guards import guarded_path

            placed = getattr(path, "placed", None)  # a path that is given its device
            function = (partial(placed, self) if placed is not None
                        else getattr(path, "library", lambda: path)())
            guarded = self._paths[name, path, inputs] = guarded_path(self, name, function, inputs)
        return guarded

    def bind_thread(self) -> str:
        """Bind the device's context to this thread, at its first op; returns its label before it.

        CuPy does so itself, but libraries and the driver are also called past CuPy.
        """
        cupy().cuda.runtime.setDevice(self.index)
        return ""

    def _elsewhere(self) -> bool:
        """Whether another device is CuPy's current one."""
        return bool(self.current_index() != self.index)


makers["cuda"] = CudaDevice


@cache
def _install_allocator() -> None:
    """Route every allocation of CuPy to the device's resource, once per process."""
    memory = cupy().cuda.memory
    runtime = cupy().cuda.runtime
    pool = memory.MemoryPool()

    known, current, stream_on = cuda_devices, runtime.getDevice, cupy().cuda.get_current_stream
    pointer_to, several = memory.MemoryPointer, cuda_device_count() > 1

    def allocate(nbytes: int) -> Any:
        index = current() if several else 0
        try:
            device: Any = known[index]
            stream = stream_on(index)._gtensor[index]
        except (AttributeError, KeyError):  # one of them is used for the first time
            device = cuda_device(index)
            stream = device.current_stream()
        resource = device.resource
        if resource is None:
            return (device.library or pool.malloc)(nbytes)
        block = resource.allocate(nbytes or 1, stream.id, running.name or "")
        if index:  # a block's is 0 until it is set
            block.device_id = index
        if bus.memory:
            tell_allocated(device, block)
        return pointer_to(block, 0)

    cupy().cuda.set_allocator(allocate)


class _Copies(dict[str, "Path"]):
    """The device's guarded path that copies an array, by the label of the copy."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def __missing__(self, label: str) -> Path:
        self[label] = path = self._device.path(label, _copied, 1)
        return path


def _copied(array: CudaArray, dtype: np.dtype | None = None) -> CudaArray:
    """A C-contiguous copy; from memory of one layout and dtype by cudaMemcpyAsync."""
    found = array.dtype
    out = new_array()(array.shape, found if dtype is None else dtype)
    if array._c_contiguous and (dtype is None or dtype == found):
        out.data.copy_from_device_async(array.data, out.nbytes)
    else:
        out[...] = array
    return out


def _is_negative_zero(value: object) -> bool:
    """Whether a number, or a 0-d host array, equals 0 and has a negative real or imaginary part."""
    if not isinstance(value, (float, complex, np.generic, np.ndarray)) or np.ndim(value):
        return False
    number = complex(value)
    return number == 0 and (copysign(1, number.real) < 0 or copysign(1, number.imag) < 0)
