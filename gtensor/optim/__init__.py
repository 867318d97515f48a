"""Optimizers, schedules, averaging and clipping with PyTorch's names and formulas: `gt.optim`."""

from typing import TYPE_CHECKING

from gtensor.nn.utils import clip_grad_norm_, clip_grad_value_
from gtensor.optim import lr_scheduler
from gtensor.optim.adam import Adam, AdamW
from gtensor.optim.adaptive import Adagrad, RMSprop
from gtensor.optim.averaging import EMA
from gtensor.optim.grad_scaler import GradScaler
from gtensor.optim.lion import Lion
from gtensor.optim.optimizer import Optimizer
from gtensor.optim.sgd import SGD
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "EMA", "SGD", "Adagrad", "Adam", "AdamW", "GradScaler", "Lion", "Optimizer", "RMSprop",
    "clip_grad_norm_", "clip_grad_value_", "lr_scheduler",
]

_enter(globals())
