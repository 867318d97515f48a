"""gtensor: GPU tensors on CuPy with gradients, on memory you can account for.

    import gtensor as gt

    w = gt.random.normal((3, 2), requires_grad=True)
    loss = (gt.tensor([[1.0, 2.0, 3.0]]) @ w).tanh().sum()
    loss.backward()
    w.grad                      # a tensor of w's shape
    gt.memory.stats()           # bytes in use, reserved, at the peak

Without an NVIDIA GPU the same code runs on NumPy.
"""

from __future__ import annotations

import math as _math
from typing import TYPE_CHECKING as _TYPE_CHECKING

from gtensor import fft, linalg, memory, ops, random
from gtensor.array.array_api import __array_namespace_info__
from gtensor.array.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)
from gtensor.array.dtypes import *  # noqa: F403
from gtensor.array.dtypes import __all__ as _dtypes
from gtensor.backend import (
    Device,
    DeviceError,
    cuda_device_count,
    default_device,
    set_default_device,
    visible_devices,
)
from gtensor.backend import get_device as device
from gtensor.engine.context import (
    detect_anomaly,
    enable_grad,
    is_grad_enabled,
    no_grad,
    observe,
    set_grad_enabled,
)
from gtensor.engine.errors import AnomalyError, ConsumedError, GradientError
from gtensor.engine.gradients import grad
from gtensor.engine.op import op
from gtensor.engine.samples import Sample
from gtensor.engine.tensor import Tensor
from gtensor.execution.graphs import Graph
from gtensor.execution.streams import Event, stream
from gtensor.memory.trace.owners import find_in as _find_in
from gtensor.ops import *  # noqa: F403
from gtensor.ops import __all__ as _functions
from gtensor.ops import networks as _networks  # noqa: F401  defines the ops behind nn and optim
from gtensor.ops.build.pointwise import identity as SAME
from gtensor.ops.build.pointwise import partial as d
from gtensor.ops.build.pointwise import pointwise
from gtensor.random import manual_seed
from gtensor.settings import settings
from gtensor.system.late_imports import late as _late

if _TYPE_CHECKING:
    from gtensor import checkpoint, data, nn, optim, profiler
    from gtensor import testing as testing
else:
    __getattr__, __dir__ = _late(__name__, {name: f"gtensor.{name}" for name in (
        "checkpoint", "data", "nn", "optim", "profiler", "testing")})

_find_in("gtensor.profiler.find_owners")  # recordings ask it what modules and optimizers hold

__version__ = "0.1.0"

__array_api_version__ = "2024.12"
newaxis = None
pi, e, inf, nan = _math.pi, _math.e, _math.inf, _math.nan

__all__ = [
    "SAME", "AnomalyError", "ConsumedError", "Device", "DeviceError", "Event", "GradientError",
    "Graph", "Sample",
    "Tensor", "__array_namespace_info__", "arange", "asarray", "checkpoint",
    "cuda_device_count", "d", "data", "default_device", "detect_anomaly", "device", "e",
    "empty", "empty_like", "enable_grad", "eye", "fft", "from_dlpack", "full", "full_like",
    "grad", "inf", "is_grad_enabled", "linalg", "linspace", "manual_seed", "memory", "meshgrid",
    "nan", "newaxis", "nn", "no_grad", "observe", "ones", "ones_like", "op", "ops", "optim",
    "pi", "pointwise", "profiler", "random", "set_default_device", "set_grad_enabled",
    "settings", "stream", "tensor", "visible_devices", "zeros", "zeros_like", *_dtypes, *_functions,
]
