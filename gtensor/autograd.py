"""`gt.autograd`: where programs for PyTorch look for `grad` and `Function`; see also `gt.func`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.engine.handle.context import enable_grad, no_grad, set_grad_enabled
from gtensor.engine.walk.anomaly import detect_anomaly
from gtensor.func import grad
from gtensor.func.own_functions import Function, once_differentiable
from gtensor.system.late_imports import late as _late

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "Function", "detect_anomaly", "enable_grad", "grad", "no_grad", "once_differentiable",
    "set_grad_enabled",
]
