"""Draw PyTorch's samples of an op, leave out what the table skips, compare the others."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import ceil
from typing import Any

import numpy as np
import torch

from gtensor.testing.compare import CheckError
from torch_samples.cases import Case, Given
from torch_samples.comparing import compare

DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool)
WITH_GRADIENTS = (torch.float64, torch.complex128)
LAYOUTS = ("strided", "transposed", "contiguous")  # with a limit of one sample, the first alone


@contextmanager
def quiet() -> Iterator[None]:
    """PyTorch's own warnings are not errors; gtensor's are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def database() -> dict[str, Any]:
    """PyTorch's ops by name and variant. Imported when first asked for: it takes 5 s."""
    with quiet():
        from torch.testing._internal.common_methods_invocations import op_db

    return {".".join(filter(None, (info.name, info.variant_test_name))): info for info in op_db}


def samples(info: Any, dtype: torch.dtype) -> list[Given]:
    """All samples of a dtype, the same in every run; none if the op does not have it."""
    if not info.supports_dtype(dtype, "cpu"):
        return []
    wanted = (dtype in WITH_GRADIENTS and info.supports_autograd
              and dtype in info.supported_backward_dtypes("cpu"))
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    with quiet():
        return [Given(s.input, s.args, s.kwargs, dtype)  # sample_inputs() would inspect the stack
                for s in info.sample_inputs_func(info, "cpu", dtype, wanted)]


def compare_op(case: Case, info: Any, limit: int | None = None) -> int:
    """Compare the samples that no skip leaves out; how many. Raise for a skip that is not needed.

    With a limit, at most so many of each dtype, spread evenly, the layouts taking turns.
    """
    compared, used = 0, set()
    for dtype in DTYPES:
        kept = []
        for i, given in enumerate(samples(info, dtype)):
            skips = {skip for skip in case.skips if skip.when(given)}
            used |= skips
            if not skips:
                kept.append((i, given))
        step = ceil(len(kept) / limit) if limit and kept else 1
        for turn, (i, given) in enumerate(kept[::step]):
            for layout in LAYOUTS if limit is None else [LAYOUTS[turn % len(LAYOUTS)]]:
                compared += 1
                _compare(case, info, i, given, layout)
    unused = [skip.reason for skip in case.skips if skip not in used]
    if unused:
        raise CheckError(f"{case.name}: these skips leave nothing out: {unused}")
    if not compared:
        raise CheckError(f"{case.name}: every sample is skipped")
    return compared


def _compare(case: Case, info: Any, i: int, given: Given, layout: str) -> None:
    try:
        with np.errstate(all="ignore"):  # PyTorch does not warn of what has no value
            compare(case, info.op, given, layout, info.supports_gradgrad)
    except Exception as error:
        raise CheckError(f"{case.name}, {given.dtype}, sample {i} ({_summary(given)}), {layout}: "
                         f"{type(error).__name__}: {error}") from error


def _summary(given: Given) -> str:
    def short(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"tensor{tuple(value.shape)}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(short, value))}]"
        return repr(value)

    named = [f"{name}={short(a)}" for name, a in given.kwargs.items()]
    return ", ".join([short(given.input), *map(short, given.args), *named])
