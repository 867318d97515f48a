"""Losses."""

from gtensor.ops.losses import cross_entropy, pointwise, probability, soft_cross_entropy

__all__: list[str] = []  # the functions are public in gtensor.nn.functional
