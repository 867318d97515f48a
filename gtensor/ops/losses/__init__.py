"""Losses."""

from gtensor.ops.losses import cross_entropy, pointwise, probability

__all__: list[str] = []  # the functions are public in gtensor.nn.functional
