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

import builtins as _builtins
import math as _math
import sys as _sys
from typing import TYPE_CHECKING

from gtensor import linalg, memory, ops
from gtensor.backend import (
    Device,
    DeviceError,
    cuda_device_count,
    default_device,
    get_default_dtype,
    set_default_device,
    set_default_dtype,
    visible_devices,
)
from gtensor.backend import get_device as device
from gtensor.creation.array_api import __array_namespace_info__
from gtensor.creation.dtypes import *
from gtensor.creation.generators import Generator, manual_seed
from gtensor.creation.new_tensors import (
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
from gtensor.engine.handle.context import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from gtensor.engine.handle.errors import AnomalyError, ConsumedError, GradientError, LevelError
from gtensor.engine.handle.tensor import Tensor, _unpickled
from gtensor.engine.run import call_text as _call_text  # which gives ops their calls
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.engine.walk import backward as _backward  # which gives Tensor its method
from gtensor.memory.trace.owners import find_in as _find_in
from gtensor.ops import *
from gtensor.ops.define.pointwise import identity as SAME
from gtensor.ops.define.pointwise import partial as d
from gtensor.ops.define.pointwise import pointwise
from gtensor.settings import settings
from gtensor.system.bus import ListenerError, listen
from gtensor.system.late_imports import after as _after
from gtensor.system.late_imports import late as _late
from gtensor.system.moved_modules import find_moved as _find_moved
from gtensor.system.written_code import enter as _enter
from gtensor.system.written_code import kinds_in as _kinds_in

if TYPE_CHECKING:
    from gtensor import amp as amp
    from gtensor import autograd as autograd
    from gtensor import checkpoint, data, distributed, fft, func, models, nn, optim, profiler
    from gtensor import distributions as distributions
    from gtensor import ndimage as ndimage
    from gtensor import random as random
    from gtensor import special as special
    from gtensor import testing as testing
    from gtensor import train as train
    from gtensor.amp import autocast
    from gtensor.backend.threads import get_num_threads, set_num_threads
    from gtensor.composed.comparing import allclose, isclose, isin, nan_to_num
    from gtensor.composed.curves import (
        convolve,
        correlate,
        cumulative_trapezoid,
        gradient,
        interp,
        trapezoid,
    )
    from gtensor.composed.distances import cdist, renorm
    from gtensor.composed.formulas import fmod, lerp
    from gtensor.composed.histograms import digitize, histogram, histogramdd
    from gtensor.composed.matrices import (
        diag,
        diag_embed,
        kron,
        logspace,
        tril_indices,
        triu_indices,
    )
    from gtensor.composed.missing import nanmean, nanmedian, nanquantile, nansum
    from gtensor.composed.scattering import (
        index_add,
        masked_scatter,
        put_along_axis,
        scatter,
        scatter_add,
        scatter_reduce,
        segment_max,
        segment_min,
        segment_sum,
    )
    from gtensor.composed.shapes import argwhere, hstack, swapaxes, unique, vstack
    from gtensor.composed.spectra import istft, stft
    from gtensor.composed.statistics import bincount, corrcoef, cov, median, percentile, quantile
    from gtensor.composed.typed_names import *
    from gtensor.composed.windows import bartlett, blackman, hamming, hanning, kaiser
    from gtensor.engine.walk.anomaly import detect_anomaly
    from gtensor.execution.graphs import Graph
    from gtensor.execution.steps.captured import CaptureError, capture
    from gtensor.execution.streams import Event, stream
    from gtensor.func import (
        custom_jvp,
        custom_vjp,
        functional_call,
        grad,
        hessian,
        hvp,
        jacfwd,
        jacobian,
        jacrev,
        jvp,
        jvp_batched,
        linearize,
        per_example_grad,
        value_and_grad,
        vjp,
        vmap,
    )
    from gtensor.ops.scan.running import cummax, cummin, logcumsumexp
else:
    __getattr__, __dir__ = _late(__name__, {
        **{name: f"gtensor.{name}" for name in (
            "amp", "autograd", "checkpoint", "data", "distributed", "distributions", "fft", "func",
            "models", "ndimage", "nn", "optim", "profiler", "random", "special", "testing",
            "train")},
        **dict.fromkeys((
            "custom_jvp", "custom_vjp", "functional_call", "grad", "hessian", "hvp", "jacfwd",
            "jacobian", "jacrev", "jvp", "jvp_batched", "linearize", "per_example_grad",
            "value_and_grad", "vjp", "vmap",
        ), "gtensor.func"),
        **dict.fromkeys(("get_num_threads", "set_num_threads"), "gtensor.backend.threads"),
        **{name: f"gtensor.composed.{module}" for module, names in {
            "comparing": "allclose isclose isin nan_to_num",
            "curves": "convolve correlate cumulative_trapezoid gradient interp trapezoid",
            "distances": "cdist renorm",
            "formulas": "fmod lerp",
            "histograms": "digitize histogram histogramdd",
            "matrices": "diag diag_embed kron logspace tril_indices triu_indices",
            "missing": "nanmean nanmedian nanquantile nansum",
            "scattering": "index_add masked_scatter put_along_axis scatter scatter_add "
                          "scatter_reduce segment_max segment_min segment_sum",
            "shapes": "argwhere hstack swapaxes unique vstack",
            "spectra": "istft stft",
            "statistics": "bincount corrcoef cov median percentile quantile",
            "windows": "bartlett blackman hamming hanning kaiser",
        }.items() for name in names.split()},
        **dict.fromkeys(("cummax", "cummin", "logcumsumexp"), "gtensor.ops.scan.running"),
        **dict.fromkeys(("Event", "stream"), "gtensor.execution.streams"),
        "Graph": "gtensor.execution.graphs", "autocast": "gtensor.amp",
        **dict.fromkeys(("CaptureError", "capture"), "gtensor.execution.steps.captured"),
        "detect_anomaly": "gtensor.engine.walk.anomaly"})

_find_moved()
_kinds_in("gtensor.kinds")
_after({"einops._backends": ("gtensor.creation.libraries", "serve_einops"),
        "opt_einsum.backends.dispatch": ("gtensor.creation.libraries", "serve_opt_einsum")})
_find_in("gtensor.profiler.find_owners")  # recordings ask it what modules and optimizers hold

__version__ = "0.1.0"

__array_api_version__ = "2024.12"
newaxis = None
pi, e, inf, nan = _math.pi, _math.e, _math.inf, _math.nan

__all__ = [
    "SAME",
    "AnomalyError",
    "CaptureError",
    "ConsumedError",
    "Device",
    "DeviceError",
    "Event",
    "Generator",
    "GradientError",
    "Graph",
    "LevelError",
    "ListenerError",
    "Sample",
    "Tensor",
    "__array_namespace_info__",
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "allclose",
    "amp",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "argwhere",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "autocast",
    "autograd",
    "bartlett",
    "bfloat16",
    "bincount",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "blackman",
    "bool",
    "broadcast_arrays",
    "broadcast_to",
    "can_cast",
    "capture",
    "cdist",
    "ceil",
    "checkpoint",
    "clip",
    "clone",
    "complex64",
    "complex128",
    "concat",
    "conj",
    "convolve",
    "copysign",
    "corrcoef",
    "correlate",
    "cos",
    "cosh",
    "count_nonzero",
    "cov",
    "cuda_device_count",
    "cummax",
    "cummin",
    "cumulative_prod",
    "cumulative_sum",
    "cumulative_trapezoid",
    "custom_jvp",
    "custom_vjp",
    "d",
    "data",
    "default_device",
    "detect_anomaly",
    "device",
    "diag",
    "diag_embed",
    "diff",
    "digitize",
    "distributed",
    "distributions",
    "divide",
    "e",
    "einsum",
    "empty",
    "empty_like",
    "enable_grad",
    "equal",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "fft",
    "finfo",
    "flatten",
    "flip",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "fmod",
    "from_dlpack",
    "full",
    "full_like",
    "func",
    "functional_call",
    "get_default_dtype",
    "get_num_threads",
    "grad",
    "gradient",
    "greater",
    "greater_equal",
    "hamming",
    "hanning",
    "hessian",
    "histogram",
    "histogramdd",
    "hstack",
    "hvp",
    "hypot",
    "iinfo",
    "imag",
    "index_add",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "interp",
    "is_grad_enabled",
    "isclose",
    "isdtype",
    "isfinite",
    "isin",
    "isinf",
    "isnan",
    "istft",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "jvp_batched",
    "kaiser",
    "kron",
    "lerp",
    "less",
    "less_equal",
    "linalg",
    "linearize",
    "linspace",
    "listen",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logcumsumexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logspace",
    "logsumexp",
    "manual_seed",
    "masked_scatter",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "median",
    "memory",
    "meshgrid",
    "min",
    "minimum",
    "models",
    "moveaxis",
    "multiply",
    "nan",
    "nan_to_num",
    "nanmean",
    "nanmedian",
    "nanquantile",
    "nansum",
    "ndimage",
    "negative",
    "newaxis",
    "nextafter",
    "nn",
    "no_grad",
    "nonzero",
    "not_equal",
    "ones",
    "ones_like",
    "op",
    "ops",
    "optim",
    "per_example_grad",
    "percentile",
    "permute_dims",
    "pi",
    "pointwise",
    "positive",
    "pow",
    "prod",
    "profiler",
    "put_along_axis",
    "quantile",
    "random",
    "real",
    "reciprocal",
    "remainder",
    "renorm",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "round",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "searchsorted",
    "segment_max",
    "segment_min",
    "segment_sum",
    "set_default_device",
    "set_default_dtype",
    "set_grad_enabled",
    "set_num_threads",
    "settings",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sort",
    "special",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "stft",
    "stream",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensor",
    "tensordot",
    "tile",
    "topk",
    "train",
    "trapezoid",
    "tril",
    "tril_indices",
    "triu",
    "triu_indices",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "value_and_grad",
    "var",
    "vecdot",
    "visible_devices",
    "vjp",
    "vmap",
    "vstack",
    "where",
    "zeros",
    "zeros_like",
]

_enter(globals(), leave=("device", "listen", "op", "pointwise"), classes=False)

if settings.debug >= 2:
    from gtensor.profiler.listeners import start as _start

    _start(settings.debug)

if settings.capture_steps:  # before the ranges: their ends are told first
    from gtensor.profiler.capture import start as _start_capture

    _start_capture(settings.capture_after, settings.capture_steps)


def _switch_nvtx(mode: _builtins.int) -> None:
    if mode > 0 or "gtensor.profiler.ranges" in _sys.modules:
        from gtensor.profiler.ranges import switch

        switch(mode)


settings.watch("nvtx", _switch_nvtx)
