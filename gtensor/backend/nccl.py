"""NCCL through CuPy: the collectives of one communicator, queued on CUDA's streams.

NVIDIA, "NCCL User Guide": collectives of one communicator run in the order of the calls, and every
rank makes the same calls. They can be captured into a graph.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.devices import DeviceError
from gtensor.system.installation import installation_of

if TYPE_CHECKING:
    from gtensor.backend.cuda import CudaDevice
    from gtensor.backend.cuda_streams import CudaStream
    from gtensor.backend.typing import CudaArray

_TYPES = {  # dtype -> the name of NCCL's type, which it reduces
    "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "uint32": "UINT32", "int64": "INT64",
    "uint64": "UINT64", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT32",
    "float64": "FLOAT64"}
_PARTS = {"complex64": ("float32", 2), "complex128": ("float64", 2)}  # reduced as real numbers
_OPERATIONS = {"sum": "SUM", "mean": "AVG", "max": "MAX", "min": "MIN"}


@cache
def _nccl() -> Any:
    """CuPy's module of NCCL. Raises DeviceError without the library."""
    with warnings.catch_warnings():  # CuPy warns of what is absent; here it is an error
        warnings.simplefilter("ignore")
        from cupy.cuda import nccl
    if not nccl.available:
        raise DeviceError(f"NCCL's library libnccl.so.2 is not installed; "
                          f"{installation_of('nccl')}, or nccl12 in its place for CUDA 12")
    return nccl


def available() -> bool:
    """Whether NCCL is installed; imports CuPy."""
    try:
        return _nccl() is not None
    except DeviceError:
        return False


def version() -> tuple[int, int, int]:
    """NCCL's version: major, minor, patch."""
    number = _nccl().get_version()
    return number // 10000, number // 100 % 100, number % 100


def unique_id() -> bytes:
    """The name of a new communicator (128 bytes), which one rank makes and all are told."""
    return bytes(_nccl().get_unique_id())


def place(device: CudaDevice) -> str:
    """Machine and PCI address of a device, which no two ranks of a communicator may share."""
    return f"{socket.gethostname()}, PCI {device.cupy_device.pci_bus_id}"


def reduces(dtype: np.dtype) -> bool:
    """Whether NCCL reduces this dtype."""
    return dtype.name in _TYPES or dtype.name in _PARTS


class NcclCommunicator:
    """One rank of a communicator, on a device. It is made when all ranks make theirs.

    The collectives are queued on a stream of that device and return at once. Arrays are contiguous
    and on the device; the caller orders them (`Device.order`), and keeps them until the work is
    done. Every call raises DeviceError, with NCCL's status, if NCCL refuses it.

    Args:
        device: whose memory it reads and writes; no other rank may have it.
        size: how many ranks there are.
        identity: `unique_id()` of one of them.
        rank: from 0.
    """

    def __init__(self, device: CudaDevice, size: int, identity: bytes, rank: int) -> None:
        self.device = device
        where = f"rank {rank} of {size} on {device}"
        with device.cupy_device:
            self._comm = _checked("ncclCommInitRank", where, _nccl().NcclCommunicator, size,
                                  identity, rank)

    def all_reduce(self, array: CudaArray, out: CudaArray, op: str, stream: CudaStream) -> None:
        """out = the reduction of all ranks' arrays by "sum", "mean", "max" or "min"."""
        count, kind = _numbers(array)
        self._call("allReduce", array, out, count, kind, _operation(op), stream)

    def broadcast(self, array: CudaArray, root: int, stream: CudaStream) -> None:
        """array = that of rank `root`."""
        self._call("broadcast", array, array, array.nbytes, _nccl().NCCL_UINT8, root, stream)

    def all_gather(self, array: CudaArray, out: CudaArray, stream: CudaStream) -> None:
        """out (size, *array.shape) = all ranks' arrays."""
        self._call("allGather", array, out, array.nbytes, _nccl().NCCL_UINT8, stream)

    def reduce_scatter(self, array: CudaArray, out: CudaArray, op: str, stream: CudaStream) -> None:
        """out = this rank's part of the reduction of all ranks' arrays (size, *out.shape)."""
        count, kind = _numbers(out)
        self._call("reduceScatter", array, out, count, kind, _operation(op), stream)

    def error(self) -> str | None:
        """What has gone wrong since a call returned, such as the end of a rank; None if nothing."""
        try:
            self._comm.check_async_error()
        except _nccl().NcclError as error:
            return str(error)
        return None

    def abort(self) -> None:
        """End the collectives that are queued, whose results are undefined, and the communicator.

        Every thread may call it, and every later call raises.
        """
        self._comm.abort()

    def destroy(self) -> None:
        """End the communicator, once its collectives have ended; all ranks do."""
        self._comm.destroy()

    def _call(self, name: str, array: CudaArray, out: CudaArray, *arguments: Any) -> None:
        *numbers, stream = arguments
        what = f"{array.dtype} {array.shape} on {self.device}"
        _checked(f"nccl{name[0].upper()}{name[1:]}", what, getattr(self._comm, name),
                 array.data.ptr, out.data.ptr, *numbers, stream.stream.ptr)


def _checked(name: str, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """The call's result, or DeviceError in place of NCCL's error."""
    try:
        return call(*arguments)
    except _nccl().NcclError as error:
        raise DeviceError(f"{name} of {what} answered status {error.status} ({error})") from error


def _numbers(array: CudaArray) -> tuple[int, int]:
    """How many numbers an array has for NCCL, and their type."""
    name, parts = _PARTS.get(array.dtype.name, (array.dtype.name, 1))
    return prod(array.shape) * parts, getattr(_nccl(), f"NCCL_{_TYPES[name]}")


def _operation(op: str) -> int:
    return int(getattr(_nccl(), f"NCCL_{_OPERATIONS[op]}"))
