"""Attention; its context and that of one projection are imported with `gtensor.nn`."""

from gtensor.ops.attention import attention

__all__: list[str] = []  # the functions are public in gtensor.nn.functional
