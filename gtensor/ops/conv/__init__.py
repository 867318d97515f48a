"""Convolutions."""

from gtensor.ops.conv import convolution

__all__: list[str] = []  # the functions are public in gtensor.nn.functional
