"""Attention."""

from gtensor.ops.attention import attention, rotary

__all__: list[str] = []  # the functions are public in gtensor.nn.functional
