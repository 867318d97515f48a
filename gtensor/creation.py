"""Making tensors: from data, filled, random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gtensor.backend import Device, get_device
from gtensor.core.storage import Storage
from gtensor.core.tensor import Tensor, is_floating, make

DeviceLike = Device | str | None
Shape = int | Sequence[int]

DEFAULT_FLOAT = np.dtype("float32")


def tensor(
    data: Any, dtype: Any = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of its own memory with the values of `data` (nested lists, array, tensor, number).

    Python floats become float32, integers int64, unless `dtype` says otherwise; arrays keep their
    dtype. Without `device`, a tensor's or CuPy array's own device, else the default one.

    Raises TypeError if `data` is not numeric, or a gradient is asked of integers.
    """
    place = _place(data, device)
    source = _values(data, dtype)
    wanted = np.dtype(dtype) if dtype is not None else source.dtype
    _check_differentiable(wanted, requires_grad)
    result = make(place.copy(_on(place, source), dtype=wanted, label="tensor"), place)
    return result.requires_grad_() if requires_grad else result


def asarray(data: Any, dtype: Any = None, device: DeviceLike = None) -> Tensor:
    """A tensor over `data` without a copy where possible: it then shares the caller's memory.

    A tensor of the right dtype and device is returned as it is.
    """
    place = _place(data, device)
    if isinstance(data, Tensor):
        result = data.to(place)
        fits = dtype is None or result.dtype == np.dtype(dtype)
        return result if fits else result.to(np.dtype(dtype))
    source = _values(data, dtype)
    array = _on(place, source)
    if dtype is not None and array.dtype != np.dtype(dtype):
        return make(place.copy(array, dtype=np.dtype(dtype), label="asarray"), place)
    storage = Storage()
    storage.exported = True  # the caller holds the same memory
    return make(array, place, storage)


def from_dlpack(source: Any) -> Tensor:
    """A tensor sharing the memory of any object with `__dlpack__` (PyTorch, JAX, CuPy, NumPy)."""
    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"from_dlpack was given {type(source).__name__}; "
                        "wanted an object with __dlpack__")
    kind, index = source.__dlpack_device__()
    cpu, cuda, cuda_host = 1, 2, 3
    if kind not in (cpu, cuda, cuda_host):
        raise TypeError(f"from_dlpack was given memory of DLPack device type {kind}; "
                        "wanted cpu or cuda")
    place = get_device(f"cuda:{index}" if kind == cuda else "cpu")
    storage = Storage()
    storage.exported = True
    return make(place.xp.from_dlpack(source), place, storage)


def full(
    shape: Shape, value: float, dtype: Any = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of `shape` filled with `value`; float32, int64 or bool by value if dtype is None."""
    if dtype is None and isinstance(value, (bool, np.bool_)):
        dtype = np.bool_
    elif dtype is None and isinstance(value, (int, np.integer)):
        dtype = np.int64
    result = empty(shape, dtype, device, requires_grad)
    result.device.fill(result._array, value)
    return result


def empty(
    shape: Shape, dtype: Any = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """An uninitialized tensor; float32 unless dtype is given."""
    wanted = np.dtype(dtype) if dtype is not None else DEFAULT_FLOAT
    sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if any(n < 0 for n in sizes):
        raise ValueError(f"shape {sizes} given; wanted sizes of 0 or more")
    _check_differentiable(wanted, requires_grad)
    place = get_device(device)
    result = make(place.empty(sizes, wanted, "empty"), place)
    return result.requires_grad_() if requires_grad else result


def zeros(
    shape: Shape, dtype: Any = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of zeros; float32 unless dtype is given."""
    return full(shape, 0.0, dtype, device, requires_grad)


def ones(
    shape: Shape, dtype: Any = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of ones; float32 unless dtype is given."""
    return full(shape, 1.0, dtype, device, requires_grad)


def empty_like(x: Tensor, dtype: Any = None, device: DeviceLike = None) -> Tensor:
    """An uninitialized tensor of x's shape, dtype and device, unless given."""
    return empty(x.shape, dtype or x.dtype, device or x.device)


def full_like(x: Tensor, value: float, dtype: Any = None, device: DeviceLike = None) -> Tensor:
    """A tensor of x's shape, dtype and device, unless given, filled with `value`."""
    return full(x.shape, value, dtype or x.dtype, device or x.device)


def zeros_like(x: Tensor, dtype: Any = None, device: DeviceLike = None) -> Tensor:
    """Zeros of x's shape, dtype and device, unless given."""
    return full_like(x, 0.0, dtype, device)


def ones_like(x: Tensor, dtype: Any = None, device: DeviceLike = None) -> Tensor:
    """Ones of x's shape, dtype and device, unless given."""
    return full_like(x, 1.0, dtype, device)


def arange(
    start: float, stop: float | None = None, step: float = 1, *, dtype: Any = None,
    device: DeviceLike = None,
) -> Tensor:
    """start, start + step, ... below stop (or 0, 1, ... below start).

    Without dtype, int64 for integers, else float32.
    """
    begin, end = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ValueError("arange with step 0; wanted a step that is not 0")
    if dtype is None and any(isinstance(v, float) for v in (begin, end, step)):
        dtype = DEFAULT_FLOAT
    return tensor(np.arange(begin, end, step, dtype=dtype), device=get_device(device))


def linspace(
    start: float, stop: float, num: int, *, dtype: Any = None, device: DeviceLike = None
) -> Tensor:
    """`num` evenly spaced values, start and stop included; float32 unless dtype is given."""
    values = np.linspace(start, stop, num, dtype=dtype or DEFAULT_FLOAT)
    return tensor(values, device=get_device(device))


def eye(
    rows: int, columns: int | None = None, *, dtype: Any = None, device: DeviceLike = None
) -> Tensor:
    """The identity matrix; float32 unless dtype is given."""
    return tensor(np.eye(rows, columns, dtype=dtype or DEFAULT_FLOAT), device=get_device(device))


def _place(data: Any, device: DeviceLike) -> Device:
    if device is None and isinstance(data, Tensor):
        return data.device
    if device is None and hasattr(data, "__cuda_array_interface__"):
        return get_device(f"cuda:{data.device.id}" if hasattr(data.device, "id") else "cuda")
    return get_device(device)


def _values(data: Any, dtype: Any) -> Any:
    """The NumPy or CuPy array behind `data`."""
    if isinstance(data, Tensor):
        return data._array
    if hasattr(data, "__cuda_array_interface__"):
        return data
    python = not hasattr(data, "dtype") and not hasattr(data, "__array__")
    if isinstance(data, (list, tuple)):
        data = [v.tolist() if isinstance(v, Tensor) else v for v in data]
    array = np.asarray(data)
    if array.dtype.kind not in "biufcV":
        raise TypeError(f"data of type {type(data).__name__} (dtype {array.dtype}) given; wanted "
                        "numbers in equally long nested lists, an array or a tensor")
    if python and dtype is None and array.dtype == np.float64:
        return array.astype(DEFAULT_FLOAT)
    return array


def _on(place: Device, source: Any) -> Any:
    """`source` as an array of the device; copied only if it lives elsewhere."""
    if isinstance(source, place.array_type):
        return source
    if isinstance(source, np.ndarray):
        return place.from_numpy(source)
    if place.type == "cuda":
        return place.from_numpy(source)
    return get_device("cuda").to_numpy(source)


def _check_differentiable(dtype: np.dtype, requires_grad: bool) -> None:
    if requires_grad and not is_floating(dtype):
        raise TypeError(f"requires_grad was asked of a tensor of dtype {dtype}; gradients need a "
                        "floating-point dtype")
