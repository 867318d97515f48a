"""Devices, streams and kernels; the only package that imports CuPy."""

from gtensor.backend import cuda as _cuda  # noqa: F401  makes the devices of its type
from gtensor.backend.devices import (
    Device,
    DeviceError,
    Scratch,
    cuda_device,
    cuda_device_count,
    default_device,
    device_of,
    get_device,
    on_new_device,
    owner,
    set_default_device,
    visible_devices,
)
from gtensor.backend.elements import (
    DEFAULTS,
    element_type,
    get_default_dtype,
    host_array,
    refuse_mask,
    set_default_dtype,
)
from gtensor.backend.host_device import host

__all__ = [
    "DEFAULTS", "Device", "DeviceError", "Scratch", "cuda_device", "cuda_device_count",
    "default_device", "device_of", "element_type", "get_default_dtype", "get_device", "host",
    "host_array", "on_new_device", "owner", "refuse_mask", "set_default_device",
    "set_default_dtype", "visible_devices",
]
