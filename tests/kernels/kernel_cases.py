"""One table of comparisons for all kernels, run by two executors: the host machine and a GPU.

A case makes random inputs, launches through the executor, and compares with PyTorch in float64 on
the CPU. An executor has three verbs, all updating NumPy arrays in place:
    raw(file, function, dtype, grid, block, args)
    elementwise(kernel, dtype, inputs, outputs)
    multi(kernel, dtype, arrays, numbers, steps, skip, more)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch

from gtensor.testing.compare import close

DTYPES = {
    "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32), "float64": np.dtype(np.float64),
}
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-12}
"""Half types: two roundings of the result; the others: sums of some hundred rounded terms."""


def raced_dtype(dtypes: tuple[str, ...]) -> str:
    """The dtype that ThreadSanitizer runs: float32 where it is among them."""
    return "float32" if "float32" in dtypes else dtypes[0]


Check = Callable[[Any, np.dtype, np.random.Generator], None]


@dataclass(frozen=True)
class Case:
    """A named check; `dtypes` are the names of those it runs for."""

    name: str
    check: Check
    dtypes: tuple[str, ...] = tuple(DTYPES)


def compute(dtype: np.dtype) -> np.dtype:
    """The dtype of sums and statistics: gt_float<T>."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def normal(rng: np.random.Generator, shape: Any, dtype: np.dtype, scale: float = 1.0) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape) * scale).astype(dtype)


def exact(array: np.ndarray) -> torch.Tensor:
    """The very values of an array, as a float64 tensor."""
    return torch.from_numpy(np.array(array, dtype=np.float64))


def unwritten(shape: Any, dtype: np.dtype) -> np.ndarray:
    """An output: full of a value that no kernel here computes, so that a skipped element shows."""
    return np.full(shape, 77.0, dtype)


def assert_close(
    given: np.ndarray, wanted: torch.Tensor, dtype: np.dtype, factor: float = 1.0
) -> None:
    """Equal within the dtype's tolerance, relative to each element and to max(1, the largest)."""
    with np.errstate(over="ignore"):  # what overflows the half type is infinite in both
        reference = wanted.detach().numpy().astype(dtype)
    close("an output", given, reference, TOLERANCE[dtype.name] * factor)


def assert_equal(given: np.ndarray, wanted: torch.Tensor) -> None:
    """Equal element by element."""
    assert np.array_equal(given.astype(np.float64), wanted.detach().numpy().astype(np.float64))


def all_cases() -> list[Case]:
    """The table, in the order of kernels/."""
    # The case modules import the helpers above.
    import cases_attention
    import cases_bn_act
    import cases_cached
    import cases_context
    import cases_convolution
    import cases_elementwise
    import cases_images
    import cases_matmul
    import cases_multi_tensor
    import cases_recurrent
    import cases_rows
    import cases_scan

    return [*cases_elementwise.CASES, *cases_rows.CASES, *cases_context.CASES,
            *cases_attention.CASES, *cases_cached.CASES,
            *cases_convolution.CASES, *cases_bn_act.CASES, *cases_matmul.CASES,
            *cases_recurrent.CASES, *cases_scan.CASES, *cases_images.CASES,
            *cases_multi_tensor.CASES]


def parameters() -> list[Any]:
    """The table times its dtypes, for `pytest.mark.parametrize(("case", "dtype"), ...)`.

    Attention's many cases, a second each, run in one half type; in the other, of which the text
    knows the type alone, with `-m slow`, but for a sum, whose mask reaches its largest numbers. So
    do most backward cases of TF32, whose text differs from float32's in its products alone.
    """
    import pytest

    def marks(case: Case, name: str) -> Any:
        if case.name.startswith("attention-tf32-backward"):
            long = not case.name.endswith(("tails", "wide-sum", "of-a-causal-sum"))
        else:
            long = (case.name.startswith("attention") and name == "float16"
                    and not case.name.endswith("ion-sum"))
        return pytest.mark.slow if long else ()

    return [
        pytest.param(case, DTYPES[name], id=f"{case.name}-{name}", marks=marks(case, name))
        for case in all_cases() for name in case.dtypes
    ]
