"""Windows for spectra: NumPy's, which are symmetric, and PyTorch's, periodic by default.

They are made on the CPU, in float64.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend import get_default_dtype
from gtensor.creation.new_tensors import asarray
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from collections.abc import Callable

    from gtensor.backend import Device
    from gtensor.backend.typing import DTypeLike
    from gtensor.engine.handle.tensor import Tensor

__all__ = ["bartlett", "blackman", "hamming", "hanning", "kaiser"]


def bartlett(
    M: int, /, *, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> Tensor:
    """The triangle of M numbers from 0 to 1 and back. Of the default dtype unless another is given.
    """
    return _made(np.bartlett(index(M)), dtype, device)


def blackman(
    M: int, /, *, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> Tensor:
    """0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t) at M places t from 0 to 1.

    Of the default dtype unless another is given.
    """
    return _made(np.blackman(index(M)), dtype, device)


def hamming(
    M: int, /, *, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> Tensor:
    """0.54 - 0.46 cos(2 pi t) at M places t from 0 to 1.

    Of the default dtype unless another is given.
    """
    return _made(np.hamming(index(M)), dtype, device)


def hanning(
    M: int, /, *, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> Tensor:
    """(1 - cos(2 pi t)) / 2 at M places t from 0 to 1: Hann's window.

    Of the default dtype unless another is given.

        gt.hanning(5)                                                  # [0, 0.5, 1, 0.5, 0]
    """
    return _made(np.hanning(index(M)), dtype, device)


def kaiser(
    M: int, beta: float, /, *, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> Tensor:
    """I0(beta sqrt(1 - t**2)) / I0(beta) at M places t from -1 to 1.

    I0 is the modified Bessel function of order 0; beta=0 is a rectangle, 14 a good start. Of the
    default dtype unless another is given.
    """
    return _made(np.kaiser(index(M), float(beta)), dtype, device)


def _made(
    window: np.ndarray, dtype: DTypeLike | None, device: Device | str | None
) -> Tensor:
    return asarray(window, get_default_dtype() if dtype is None else dtype, device)


# -- PyTorch's -------------------------------------------------------------------------------------


def _sized(
    window: Callable[[int], np.ndarray], length: int, periodic: bool, dtype: DTypeLike | None,
    device: Device | str | None,
) -> Tensor:
    """A periodic one of n numbers is a symmetric one of n + 1 without the last."""
    if length < 0:
        raise ValueError(f"a window of window_length={length} was asked for; wanted 0 or more")
    length = index(length)
    longer = bool(periodic) and length > 1
    return _made(window(length + longer)[:length], dtype, device)


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None,
) -> Tensor:
    """PyTorch's `bartlett`, periodic unless asked otherwise."""
    return _sized(np.bartlett, window_length, periodic, dtype, device)


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None,
) -> Tensor:
    """PyTorch's `blackman`, periodic unless asked otherwise."""
    return _sized(np.blackman, window_length, periodic, dtype, device)


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None,
) -> Tensor:
    """PyTorch's `hanning`, periodic unless asked otherwise."""
    return _sized(np.hanning, window_length, periodic, dtype, device)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
) -> Tensor:
    """PyTorch's alpha - beta cos(2 pi t), periodic unless asked otherwise."""
    def window(n: int) -> np.ndarray:
        if n == 1:
            return np.ones(1)
        return alpha - beta * np.cos(2 * np.pi * np.arange(n) / (n - 1))

    return _sized(window, window_length, periodic, dtype, device)


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
) -> Tensor:
    """PyTorch's `kaiser`, periodic unless asked otherwise."""
    return _sized(lambda n: np.kaiser(n, float(beta)), window_length, periodic, dtype, device)


enter(globals())
