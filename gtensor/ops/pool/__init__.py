"""Pooling, and images at another size."""

from gtensor.ops.pool import adaptive_pool, average_pool, max_pool, resample

__all__: list[str] = []  # the functions are public in gtensor.nn.functional
