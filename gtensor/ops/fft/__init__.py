"""Discrete Fourier transforms."""

from gtensor.ops.fft import transforms

__all__: list[str] = []  # the functions are public in gtensor.fft
