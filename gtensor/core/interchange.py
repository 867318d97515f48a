"""Memory shared with other libraries: DLPack 1.0, the CUDA array interface, NumPy's protocols.

Memory that leaves is marked as exported, and memory that comes in belongs to the caller: no op
reuses either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from gtensor.backend import Device, get_device, host_array, refuse_mask
from gtensor.core.errors import GradientError
from gtensor.core.place import Place
from gtensor.core.storage import Storage

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

    from gtensor.backend.typing import Array, DTypeLike
    from gtensor.core.tensor import Tensor

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3  # DLPack's device types
_LEGACY = 1  # CUDA's default stream, used for a consumer that gives no stream
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Interchange(Place):
    """Mixin of `Tensor`: the protocols by which other libraries read its memory."""

    __slots__ = ()

    __array_ufunc__ = None  # so that `ndarray * tensor` calls the tensor's operator

    _array: Array
    _device: Device

    if TYPE_CHECKING:

        def _facts(self, shares: bool = True) -> Storage:
            """See `Tensor`."""

    def numpy(self) -> np.ndarray:
        """The values as a NumPy array, without history: the same memory on the CPU, else a copy.

        Raises GradientError for a value that a function given to `gt.grad` computes from its
        arguments: detach() it first.
        """
        self._refuse_cut(".numpy()")
        if self._device.type == "cpu":
            self._facts().exported = True
        return self._device.to_numpy(self._array)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if self._device.type != "cpu":
            raise TypeError(f"a tensor on {self._device} was given where a NumPy array is wanted; "
                            "copy it to the CPU with .numpy()")
        self._refuse_gradient("NumPy")
        if not copy:
            self._facts().exported = True
        return np.array(self._array, dtype=dtype, copy=copy)

    def __buffer__(self, flags: int) -> memoryview:
        """The buffer protocol (Python 3.12 and later), for tensors on the CPU."""
        if self._device.type != "cpu":
            raise BufferError(f"a tensor on {self._device} has no buffer on the CPU; use .numpy()")
        self._refuse_gradient("a reader of buffers")
        return self.numpy().data

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Version 3, with the stream that orders the values; only on CUDA."""
        if self._device.type != "cuda":
            raise AttributeError(f"a tensor on {self._device} has no CUDA array interface")
        self._refuse_gradient("another library")
        self._facts().exported = True
        self._device.exported(self._array)
        array: Any = self._array  # CuPy's, as the type does not say
        return array.__cuda_array_interface__

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> CapsuleType:
        """The memory as a DLPack capsule, ready on the consumer's `stream`.

        Raises GradientError for a tensor with a gradient, which the consumer could not follow:
        detach() it first.
        """
        self._refuse_gradient("another library")
        array = self._array
        moves = dl_device is not None and dl_device != self.__dlpack_device__()
        if moves and copy is False:
            raise BufferError(f"a tensor on {self._device} was asked for on DLPack device "
                              f"{dl_device} without a copy; wanted copy=True or None")
        flipped = any(stride < 0 for stride in array.strides)
        if flipped and copy is False:
            raise BufferError("a tensor with negative strides (a flipped view) was given to "
                              "another library without a copy; clone() it first")
        # Consumers refuse negative strides, PyTorch by abort(); CuPy copies to the CPU only.
        if flipped or copy and not moves and self._device.type == "cuda":
            array, copy = self._device.copy(array, label="__dlpack__"), None
        elif not copy:
            self._facts().exported = True
        options: dict[str, Any] = {"stream": stream, "dl_device": dl_device, "copy": copy}
        self._device.exported(array, _LEGACY if stream is None else stream)
        given = {name: value for name, value in options.items() if value is not None}
        return array.__dlpack__(max_version=max_version, **given)

    def _refuse_gradient(self, reader: str) -> None:
        """Raise GradientError for a tensor with a node: the reader could not record a history."""
        if self._current_node(reader) is not None:
            raise GradientError(f"a tensor that requires a gradient was given to {reader}, where "
                                "the gradient would be lost; detach() it first")

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self._array.__dlpack_device__()
        return kind, index


def plain_values(data: object, reader: str) -> Any:
    """Nested lists with the tensors in them as lists.

    Raises GradientError if one has a history; TypeError, which names the `reader`, for a masked
    array.
    """
    if isinstance(data, (list, tuple)):
        return [plain_values(v, reader) for v in data]
    if not isinstance(data, Interchange):
        refuse_mask(data, reader)
        return data
    if data._current_node("a list of values") is not None:
        raise GradientError("values were asked of a tensor that requires a gradient, which would "
                            "be lost; stack() or concat() tensors, or detach() this one first")
    return data._device.to_numpy(data._array).tolist()


def given_values(value: object, device: Device, reader: str) -> Any:
    """A tensor, a number or an array of a GPU unchanged; any other value as a NumPy array.

    Raises TypeError, which names the `reader`, for values that are not numbers or are masked.
    """
    on_gpu = isinstance(value, device.array_type) and not isinstance(value, np.ndarray)
    if on_gpu or isinstance(value, (Interchange, bool, int, float, complex)):
        return value
    return host_array(plain_values(value, reader), reader)


def adopted(array: Array, place: Device) -> Tensor:
    """A tensor over memory that the caller also holds."""
    from gtensor.core.tensor import make

    storage = Storage()
    storage.exported = True
    return make(array, place, storage)


def imported(source: Any, copy: bool | None) -> Tensor:
    """A tensor over the DLPack memory of `source`. See `gtensor.from_dlpack`."""
    from gtensor.core.tensor import make

    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"from_dlpack was given {type(source).__name__}; "
                        "wanted an object with __dlpack__")
    if isinstance(source, np.ndarray):
        host_array(source, "from_dlpack")
    if str(getattr(source, "dtype", "")) == "torch.bfloat16":  # NumPy's DLPack lacks it: as bits
        bits = imported(source.view(source.new_empty(0).short().dtype), copy)
        return adopted(bits._array.view(_BFLOAT16), bits._device)
    kind, index = source.__dlpack_device__()
    if kind not in (_CPU, _CUDA, _CUDA_HOST):
        raise TypeError(f"from_dlpack was given memory of DLPack device type {int(kind)}; "
                        "wanted cpu or cuda")
    place = get_device(f"cuda:{index}" if kind == _CUDA else "cpu")
    array = place.path("from_dlpack", place.xp.from_dlpack)(source)
    return make(place.copy(array, label="from_dlpack"), place) if copy else adopted(array, place)
