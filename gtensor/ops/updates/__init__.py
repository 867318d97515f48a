"""The updates of the optimizers."""

from gtensor.ops.updates import optimizers as optimizer_kernels

__all__: list[str] = []  # gtensor.optim calls the ops
