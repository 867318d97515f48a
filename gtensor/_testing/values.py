"""Checks of an op's value: references, dtypes, layouts, out=, tiles, and what it must not write."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np

from gtensor._testing.cases import FLOAT64, LAYOUTS, Case
from gtensor._testing.compare import TOLERANCES, CheckError, close, to_numpy, unwritten
from gtensor.backend import get_device
from gtensor.core.modes import no_grad
from gtensor.core.tensor import FLOATING
from gtensor.settings import settings


def reference(case: Case) -> None:
    """The value equals PyTorch's."""
    if case.torch is None or case.op.reference is None:
        return
    tensors = [None if a is None else case.torch.from_numpy(a.copy()) for a in case.arrays]
    wanted = case.op.reference(case.torch, *tensors, **case.sample.params)
    close("the value", case.value(case.inputs()), wanted, names=("gtensor", "PyTorch"))


def dtypes(case: Case) -> None:
    """In lower precision the value is that of float64 on the same (rounded) inputs, in its own dtype."""
    if not case.floats:
        return
    full = case.value(case.inputs())
    for dtype, tolerance in TOLERANCES.items():
        if dtype == FLOAT64:
            continue
        rounded = [a.astype(dtype).astype(FLOAT64) if i in case.floats and a is not None else a
                   for i, a in enumerate(case.arrays)]
        with np.errstate(divide="ignore", invalid="ignore"):
            given = case.value(case.inputs(rounded, dtype=dtype))
            wanted = case.value(case.inputs(rounded))
        expected = dtype if full.dtype == FLOAT64 else full.dtype
        if given.dtype != expected:
            raise CheckError(f"{dtype} inputs give a value of dtype {given.dtype}; wanted {expected}")
        if given.dtype.kind in FLOATING:
            close(f"the value in {dtype}", given, wanted, tolerance, (dtype.name, "float64"))


def device(case: Case) -> None:
    """On a GPU: the value is the CPU's, in every dtype."""
    if case.device.type == "cpu":
        return
    cpu = get_device("cpu")
    for dtype, tolerance in TOLERANCES.items():
        wanted = case.value(case.inputs(dtype=dtype, device=cpu), cpu)
        given = case.value(case.inputs(dtype=dtype))
        if given.dtype != wanted.dtype:
            raise CheckError(f"{dtype} inputs give {given.dtype} on {case.device}, {wanted.dtype} on cpu")
        close(f"the value in {dtype}", given, wanted, tolerance, (str(case.device), "cpu"))


def layouts(case: Case) -> None:
    """Value and gradients do not depend on how inputs and the upstream gradient lie in memory."""
    for name, layout in LAYOUTS.items():
        requires = case.floats if case.differentiable else ()
        laid = case.inputs(requires=requires, layout=layout)
        plain = case.inputs([None if x is None else to_numpy(x) for x in laid], requires=requires)
        names = (name, "contiguous")
        with np.errstate(all="ignore"):  # a gradient between equal elements may be 0 / 0
            output, wanted = case.call(laid), case.call(plain)
            close(f"the value of {name} inputs", output, wanted, names=names)
            if not case.differentiable:
                continue
            upstream = case.upstream(wanted, layout)
            contiguous = type(upstream)._from(upstream) if False else upstream
            grads = case.walk(output, upstream, laid)
            expected = case.walk(wanted, contiguous, plain)
        for i, (g, e) in enumerate(zip(grads, expected, strict=True)):
            if g is not None:
                close(f"the gradient of input {i}, {name}", g, e, names=names)
