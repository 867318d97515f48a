"""Fourier transforms: the `fft` extension of the Python array API standard 2024.12.

    spectrum = gt.fft.rfft(signal)              # complex, differentiable
    power = (spectrum.abs() ** 2).sum()

Gradients flow through the complex values, to any order; that of a real input is real. Half types
are transformed in float32: a spectrum is complex64, and what comes back from one float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.ops.fft.bins import fftfreq, fftshift, ifftshift, rfftfreq
from gtensor.ops.fft.transforms import (
    fft,
    fft2,
    fftn,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2",
    "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2",
    "rfftfreq", "rfftn",
]

_enter(globals())
