"""The result of `gtensor.__array_namespace_info__()`: the array API standard's inspection."""

from __future__ import annotations

from typing import Any

import numpy as np

from gtensor.backend import DEFAULTS, Device, default_device, visible_devices
from gtensor.creation.dtypes import KINDS, int64, isdtype


class NamespaceInfo:
    """Capabilities, devices and dtypes of gtensor, by the array API standard 2024.12.

    The dtypes are the same on every device, so `device` is ignored.
    """

    __module__ = "gtensor"

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks and shapes that depend on data work; arrays have at most 64 dimensions."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Where tensors are made when no device is named."""
        return default_device()

    def devices(self) -> list[Device]:
        """Every device of this machine, the CPU first."""
        return visible_devices()

    def default_dtypes(self, *, device: object = None) -> dict[str, np.dtype]:
        """The dtypes that Python numbers become, and that indices have."""
        return {"real floating": DEFAULTS["f"], "complex floating": DEFAULTS["c"],
                "integral": int64, "indexing": int64}

    def dtypes(self, *, device: object = None, kind: object = None) -> dict[str, np.dtype]:
        """The standard's dtypes by name, all or of a kind (see `isdtype`)."""
        known = (*KINDS["bool"], *KINDS["numeric"])
        return {d.name: d for d in known if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """The namespace's capabilities, devices and dtypes."""
    return NamespaceInfo()
