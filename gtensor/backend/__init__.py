"""The only package that knows which array library a device computes with."""

from gtensor.backend.devices import (
    Device,
    DeviceError,
    cuda_device_count,
    default_device,
    device_of,
    get_device,
    on_new_device,
    owner,
    set_default_device,
    visible_devices,
)
from gtensor.backend.host import host

__all__ = [
    "Device", "DeviceError", "cuda_device_count", "default_device", "device_of", "get_device",
    "host", "on_new_device", "owner", "set_default_device", "visible_devices",
]
