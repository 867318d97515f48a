"""Properties of an array: its memory layout, and whether it may be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


def layout(a: Array) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Address, shape and strides. Arrays with equal layouts have the same elements in order."""
    at = a.__array_interface__["data"][0] if isinstance(a, np.ndarray) else a.data.ptr
    return at, a.shape, a.strides


def broadcast_view(a: Array) -> bool:
    """Whether several elements share one address, so that a write to one changes others."""
    strides = a.strides
    if 0 in strides and a.size > 1:
        for stride, n in zip(strides, a.shape, strict=True):
            if stride == 0 and n > 1:  # axes of size 1 may have any stride
                return True
    return False


def writable(a: Array) -> bool:
    """Whether every element may be written: none shares an address, and no flag forbids it."""
    return not broadcast_view(a) and bool(getattr(a.flags, "writeable", True))  # CuPy: no such flag
