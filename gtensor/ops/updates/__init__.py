"""The updates of the optimizers."""

from gtensor.ops.updates import optimizer_kernels

__all__: list[str] = []  # gtensor.optim calls the ops
