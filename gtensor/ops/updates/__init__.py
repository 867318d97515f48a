"""Passes over many tensors in place: updates of optimizers, averages, clipping, loss scales."""
