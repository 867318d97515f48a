"""Tensors over the memory of other libraries, which belongs to its owner: no op reuses it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gtensor.backend import Device, get_device, host_array
from gtensor.engine.handle.storage import Storage
from gtensor.engine.handle.tensor import Tensor, wrap

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3  # DLPack's device types
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def adopted(array: Any, place: Device) -> Tensor:
    """A tensor over memory that the caller also holds."""
    storage = Storage()
    storage.leave(None)
    return wrap(array, place, storage)


def imported(source: Any, copy: bool | None) -> Tensor:
    """A tensor over the DLPack memory of `source`. See `gtensor.from_dlpack`."""
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
    return wrap(place.copy(array, label="from_dlpack"), place) if copy else adopted(array, place)
