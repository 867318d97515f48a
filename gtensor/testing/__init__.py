"""Checks for gtensor's own functions and ops, and for yours.

    check_derivatives(f, x)      # forward, reverse, batched, numeric; first and second order

    x = gt.random.normal((2, 3), dtype=gt.float64, requires_grad=True)
    gradcheck(lambda x: (x * x.tanh()).sum(axis=0), x)

    softplus = gt.op("softplus", cpu=..., gpu=..., backward=..., samples=[(3,), (2, 3), (0,)])
    opcheck(softplus)

Every op of gtensor passes `opcheck`. A new op needs nothing but its definition for it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import gtensor.nn  # whose ops come with it
import gtensor.ops.linalg.exponential
import gtensor.ops.pool.spline_sampling
import gtensor.ops.scan.running  # noqa: F401  whose ops come with it
from gtensor.backend import Device, cuda_device_count, get_device
from gtensor.engine.tape.op import Op, registry
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter
from gtensor.testing import derivatives, values
from gtensor.testing.cases import Case, samples_of
from gtensor.testing.compare import (
    TOLERANCES,
    CheckError,
    DerivativeError,
    GradcheckError,
    OpcheckError,
)
from gtensor.testing.functions import check_derivatives
from gtensor.testing.numeric import fresh_seed, gradcheck

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "CHECKS", "TOLERANCES", "CheckError", "DerivativeError", "GradcheckError", "OpcheckError",
    "check_derivatives", "gradcheck", "opcheck",
]

CHECKS: dict[str, Callable[[Case], None]] = {
    "value": values.reference,
    "composed": values.composed,
    "dtypes": values.dtypes,
    "device": values.device,
    "out": values.out,
    "alias": values.alias,
    "tiles": values.tiles,
    "writes": values.writes,
    "refusal": derivatives.refusal,
    "backward": derivatives.backward,
    "torch": derivatives.torch_gradients,
    "precision": derivatives.precision,
    "compiled": values.compiled,
    "layouts": values.layouts,
    "arena": derivatives.arena,
    "upstream": derivatives.upstreams,
    "masks": derivatives.masks,
    "accumulate": derivatives.accumulate,
    "recorded": derivatives.recorded_mode,
    "second order": derivatives.second,
    "tangent": derivatives.tangent,
    "batch": values.batch,
}
"""The checks of one op at one sample, by name, in the order in which they run."""


def opcheck(
    op: Op | str,
    *,
    seed: int | None = None,
    device: Device | str | None = None,
    dtypes: Sequence[Any] | None = None,
) -> None:
    """Run every check that follows from an op's definition, on random values of each sample.

    Value against PyTorch (if it is installed and the op has a reference), in every dtype and
    layout, from the arena and into given buffers; inputs and upstream gradients unwritten;
    gradients against numeric ones and PyTorch's, for every choice of inputs that require one, added
    in every order; the recorded backward, second order, and the tangent rule against the backward
    rule; the batch rule against a loop, for every choice of inputs with a batch axis; kernels in C
    against NumPy's paths. On a GPU also the value against the CPU's. Samples should lie away from
    kinks: a rule must be smooth there. Those that are bare shapes are filled with standard normal
    values.

    Args:
        op: the op, or its name in the registry.
        seed: of the values; by default another one each time, named in the error.
        device: where to run; by default the CPU, and a GPU too where there is one.
        dtypes: the floating dtypes beside float64 that the op must work in, by default all of
            `TOLERANCES`. NumPy promotes bfloat16 with a Python scalar to float32: an op
            that computes with such scalars converts its result, or leaves bfloat16 out here.

    Raises:
        OpcheckError: (an AssertionError) naming the op, the check, the sample and the seed; its
            `check` is the check's name, one of `CHECKS`.
        KeyError: if no op has that name.
        TypeError: for what is neither an op nor a name.
        ValueError: if the op has no samples, or a dtype has no tolerance.
    """
    definition = registry[op] if isinstance(op, str) else op
    if not isinstance(definition, Op):
        raise TypeError(f"opcheck was given op={op!r}; wanted an op, or the name of one")
    seed = fresh_seed() if seed is None else seed
    wanted = [np.dtype(t) for t in (TOLERANCES if dtypes is None else dtypes)]
    if not set(wanted) <= set(TOLERANCES):
        raise ValueError(f"opcheck was given dtypes {[t.name for t in wanted]}; wanted some of "
                         f"{', '.join(t.name for t in TOLERANCES)}")
    for place in _places(device):
        for k, sample in enumerate(samples_of(definition)):
            for name, check in CHECKS.items():
                try:
                    check(Case.of(definition, sample, place, seed, wanted, _torch()))
                except Exception as error:
                    failed = isinstance(error, CheckError)
                    said = str(error) if failed else f"{type(error).__name__}: {error}"
                    raise OpcheckError(
                        f"op {definition.name!r} fails the check {name!r} on {place}: {said}\n"
                        f"  sample {k}: shapes {sample.shapes}, parameters {sample.params}\n"
                        f"  repeat with opcheck({definition.name!r}, seed={seed})", name
                    ) from (None if failed else error)


def _places(device: Device | str | None) -> list[Device]:
    if device is not None:
        return [get_device(device)]
    return [get_device("cpu")] + ([get_device("cuda")] if cuda_device_count() else [])


@cache
def _torch() -> Any:
    """The module torch, or None where it is not installed."""
    return importlib.import_module("torch") if importlib.util.find_spec("torch") else None


_enter(globals(), check=True)
