"""Memory shared with other libraries: DLPack 1.0, the CUDA array interface, NumPy's protocols.

Memory that leaves is marked as exported: no op reuses it. `creation/foreign.py` has what comes in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import Device, host_array, refuse_mask
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.handle_node import HandleNode
from gtensor.engine.handle.storage import Storage
from gtensor.system.bus import bus, here

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import CapsuleType

    from gtensor.backend.typing import Array, DTypeLike

_LEGACY = 1  # CUDA's default stream, used for a consumer that gives no stream


class UfuncProtocol:
    """`__array_ufunc__`: NumPy reads it from the class, CuPy from the instance.

    For CuPy it is None, so that the operators of its arrays call the instance's.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, instance: object, owner: type) -> Callable[..., Any] | None:
        return self._function if instance is None else None


def _operated(
    tensor: Interchange, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
) -> Any:
    """`array * tensor` is the tensor's operator; every other ufunc raises TypeError."""
    from gtensor.engine.handle.numpy_calls import operated

    return operated(tensor, ufunc, method, inputs, options)


class Interchange(HandleNode):
    """Mixin of `Tensor`: the protocols by which other libraries read its memory."""

    __slots__ = ()

    _array: Array
    _device: Device
    _storage: Storage

    if TYPE_CHECKING:

        def _own_storage(self, shares: bool = True) -> Storage:
            """See `Tensor`."""

    __array_ufunc__ = UfuncProtocol(_operated)

    def __array_function__(
        self, function: Callable[..., Any], types: object, args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        """NumPy's functions that only read tensors, such as `np.save`; others raise TypeError."""
        from gtensor.engine.handle.numpy_calls import read_or_refused

        return read_or_refused(function, args, options)

    def numpy(self) -> np.ndarray:
        """The values as a NumPy array, without history: the same memory on the CPU, else a copy.

        Raises GradientError for a value that a function given to `gt.grad` computes from its
        arguments: detach() it first.
        """
        self._refuse_cut(".numpy()")
        self._note_read("numpy()")
        return self._lent() if self._device.type == "cpu" else self._device.to_numpy(self._array)

    def _note_read(self, what: str) -> None:
        """Values go to Python, which a captured step must not depend on."""
        if bus.listeners and here.recorder is not None:
            here.recorder.read(self, what)

    def _lent(self) -> Array:
        """An array over the memory for other code; the storage knows while it, or a view, lives."""
        storage = self._storage
        self._note_read("an array over its memory")
        if storage.common:
            storage = self._own_storage()
        array, lender = self._device.shared(self._array)
        storage.leave(lender)
        return array

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if self._device.type != "cpu":
            raise TypeError(f"a tensor on {self._device} was given where a NumPy array is wanted; "
                            "copy it to the CPU with .numpy()")
        self._refuse_gradient("NumPy")
        self._note_read("an array")
        return np.array(self._array if copy else self._lent(), dtype=dtype, copy=copy)

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
        self._note_read("an array over its memory")
        self._own_storage().leave(None)  # the reader keeps this tensor, as others may
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
        self._note_read("a capsule")
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
            array = self._lent()
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
        try:
            return [plain_values(v, reader) for v in data]
        except RecursionError:
            raise ValueError(f"{reader} was given a list that contains itself, or lists within "
                             "lists too deep; wanted numbers") from None
    if not isinstance(data, Interchange):
        refuse_mask(data, reader)
        return data
    if data._current_node("a list of values") is not None:
        raise GradientError("values were asked of a tensor that requires a gradient, which would "
                            "be lost; stack() or concat() tensors, or detach() this one first")
    data._note_read("its values")
    return data._device.to_numpy(data._array).tolist()


def given_values(value: object, device: Device, reader: str) -> Any:
    """A tensor, a number or an array of a GPU unchanged; any other value as a NumPy array.

    Raises TypeError, which names the `reader`, for values that are not numbers or are masked.
    """
    on_gpu = isinstance(value, device.array_type) and not isinstance(value, np.ndarray)
    if on_gpu or isinstance(value, (Interchange, bool, int, float, complex)):
        return value
    return host_array(plain_values(value, reader), reader)
