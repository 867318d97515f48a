"""`gt.autograd`: where programs for PyTorch look for `grad`; see `gt.grad` and `gt.func`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.engine.handle.context import enable_grad, no_grad, set_grad_enabled
from gtensor.engine.walk.anomaly import detect_anomaly
from gtensor.func import grad
from gtensor.system.late_imports import late as _late

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = ["detect_anomaly", "enable_grad", "grad", "no_grad", "set_grad_enabled"]
