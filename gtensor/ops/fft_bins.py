"""The bins of a Fourier transform: their frequencies, and zero frequency in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from gtensor.backend import Device
from gtensor.core.tensor import Tensor
from gtensor.creation import DEFAULT_FLOAT, arange, asarray
from gtensor.ops.joining import concat
from gtensor.ops.moving import roll
from gtensor.ops.reduce import Axis, normalize_axis

__all__: list[str] = []  # the functions are public in gtensor.fft


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: Any = None, device: Device | str | None = None
) -> Tensor:
    """The frequencies of the n bins of `fft` for samples `d` apart, in cycles per unit of d.

    First 0 and the positive ones, ascending, then the negative ones. float32 by default.
    """
    real = _checked(n, dtype, "fftfreq")
    parts = [arange(start, stop, dtype=real, device=device)
             for start, stop in ((0, (n + 1) // 2), (-(n // 2), 0))]
    return concat(parts) / (n * d)


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: Any = None, device: Device | str | None = None
) -> Tensor:
    """The frequencies, from 0 up, of the n // 2 + 1 bins of `rfft`, in cycles per unit of d."""
    real = _checked(n, dtype, "rfftfreq")
    return arange(n // 2 + 1, dtype=real, device=device) / (n * d)


def _checked(n: int, dtype: Any, name: str) -> np.dtype:
    found = DEFAULT_FLOAT if dtype is None else np.dtype(dtype)
    if index(n) < 1:
        raise ValueError(f"{name} of {n} bins; wanted at least 1")
    if found.kind != "f":
        raise TypeError(f"{name} was given dtype {found}; wanted a real floating one")
    return found


def fftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """The bins with zero frequency moved to the middle, along `axes` (all by default)."""
    x = asarray(x)
    found = normalize_axis(_given(axes), x.ndim, "fftshift")
    return roll(x, [x.shape[a] // 2 for a in found], axis=found)


def ifftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Undoes `fftshift`: zero frequency moved from the middle to the front."""
    x = asarray(x)
    found = normalize_axis(_given(axes), x.ndim, "ifftshift")
    return roll(x, [-(x.shape[a] // 2) for a in found], axis=found)


def _given(axes: int | Sequence[int] | None) -> Axis:
    return axes if axes is None or isinstance(axes, int) else tuple(axes)
