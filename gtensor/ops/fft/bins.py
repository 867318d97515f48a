"""The bins of a Fourier transform: their frequencies, and zero frequency in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend import Device, element_type, get_default_dtype, get_device
from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.tensor import Tensor, is_floating, wrap
from gtensor.ops.arrange.flip_roll import roll
from gtensor.ops.arrange.shape import axis_indices
from gtensor.ops.define.arguments import given_axis

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike, Path

__all__: list[str] = []  # the functions are public in gtensor.fft


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> Tensor:
    """The frequencies of the n bins of `fft` for samples `d` apart, in cycles per unit of d.

    First 0 and the positive ones, ascending, then the negative ones. Of the default dtype.
    """
    return _rounded(np.fft.fftfreq, n, d, dtype, device)


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> Tensor:
    """The frequencies, from 0 up, of the n // 2 + 1 bins of `rfft`, in cycles per unit of d.

    Of the default dtype unless one is given. Raises ValueError for n below 1, TypeError for a dtype
    that is not floating.
    """
    return _rounded(np.fft.rfftfreq, n, d, dtype, device)


def _rounded(
    function: Path, n: int, d: float, dtype: DTypeLike | None, device: Device | str | None
) -> Tensor:
    """NumPy's frequencies, in float64, rounded once: numbers of bins are too large for float16."""
    found = get_default_dtype() if dtype is None else element_type(dtype)
    if index(n) < 1:
        raise ValueError(f"{function.__name__} of {n} bins; wanted at least 1")
    if not is_floating(found):
        raise TypeError(f"{function.__name__} was given dtype {found}; wanted a real floating one")
    place = get_device(device)
    return wrap(place.from_numpy(function(index(n), d).astype(found)), place)


def fftshift(
    x: Tensor, /, axes: int | Sequence[int] | None = None, *,
    dim: int | Sequence[int] | None = None,
) -> Tensor:
    """The bins with zero frequency moved to the middle, along `axes` (all by default).

    The result has x's shape and dtype. Raises AxisError for an axis that there is not.
    """
    x = asarray(x)
    axes = axes if dim is None else given_axis("fftshift", axes, dim)
    found = _shifted(axes, x.ndim, "fftshift")
    return roll(x, [x.shape[a] // 2 for a in found], axis=found)


def ifftshift(
    x: Tensor, /, axes: int | Sequence[int] | None = None, *,
    dim: int | Sequence[int] | None = None,
) -> Tensor:
    """Undoes `fftshift`: zero frequency moved from the middle to the front.

    The result has x's shape and dtype. Raises AxisError for an axis that there is not.
    """
    x = asarray(x)
    axes = axes if dim is None else given_axis("ifftshift", axes, dim)
    found = _shifted(axes, x.ndim, "ifftshift")
    return roll(x, [-(x.shape[a] // 2) for a in found], axis=found)


def _shifted(axes: int | Sequence[int] | None, ndim: int, name: str) -> tuple[int, ...]:
    return axis_indices(range(ndim) if axes is None else axes, ndim, name)
