"""Optimizers with PyTorch's names, defaults and formulas: `gt.optim`."""

from gtensor.optim.adam import Adam, AdamW
from gtensor.optim.optimizer import Optimizer
from gtensor.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]
