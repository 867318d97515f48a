"""Batch, group, layer and RMS norm, and in-place activated batch norm."""

from gtensor.ops.norms import batch_norm, group_norm, inplace_abn, layer_norm, rms_norm

__all__: list[str] = []  # the functions are public in gtensor.nn.functional
