"""Comparison of values, one table of tolerances, and proof that an array was not written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from gtensor.engine.handle.tensor import Tensor

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

TOLERANCES: dict[np.dtype, tuple[float, float]] = {  # rtol, atol
    np.dtype(ml_dtypes.bfloat16): (6e-2, 6e-2),
    np.dtype(np.float16): (1e-2, 1e-2),
    np.dtype(np.float32): (1e-4, 2e-5),
    np.dtype(np.float64): (1e-7, 1e-9),
}
"""How far two ways of computing a value in a dtype may be apart; other dtypes agree exactly."""

NUMERIC = (1e-5, 1e-6)  # rtol, atol of central differences in float64 with a step of 1e-6
STEP = 1e-6


class CheckError(AssertionError):
    """A check failed; the message says where, and with which seed to repeat it."""


class GradcheckError(CheckError):
    """A gradient differs from its numeric estimate, or the function wrote its inputs."""


class DerivativeError(CheckError):
    """A mode of differentiation disagrees, or raised an error; `mode` and `order` say which."""

    def __init__(self, message: str, mode: str, order: int) -> None:
        super().__init__(message)
        self.mode, self.order = mode, order


class OpcheckError(CheckError):
    """A check of an op failed. `check` is its name, one of `gtensor.testing.CHECKS`."""

    def __init__(self, message: str, check: str) -> None:
        super().__init__(message)
        self.check = check


def to_numpy(value: Any) -> np.ndarray:
    """The values of a Tensor, a NumPy or a CuPy array, or a PyTorch tensor, as a NumPy array."""
    if isinstance(value, Tensor):
        return value._device.to_numpy(value._array)
    if hasattr(value, "detach"):
        return value.numpy(force=True)  # also of what PyTorch conjugates or negates lazily
    return value.get() if hasattr(value, "get") else np.asarray(value)  # CuPy's get() copies


def close(
    what: str, actual: object, wanted: object, tolerance: object = None,
    names: tuple[str, str] = ("given", "wanted"),
) -> None:
    """Assert equal shapes, and equal values within a tolerance (default: that of actual's dtype).

    A tolerance is a pair (rtol, atol), or one number: a share of each element, and of the largest
    finite one (of 1 if that is less). Equal are NaN and NaN, and infinities of one sign. Raises
    CheckError naming the element that is furthest off.
    """
    a, b = to_numpy(actual), to_numpy(wanted)
    if a.shape != b.shape:
        raise CheckError(f"{what}: {names[0]} has shape {a.shape}, {names[1]} has shape {b.shape}")
    if tolerance is None:
        tolerance = TOLERANCES.get(a.real.dtype, (0.0, 0.0))
    wide = np.complex128 if "c" in a.dtype.kind + b.dtype.kind else np.float64
    a, b = a.astype(wide), b.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        size, off = np.where(np.isfinite(b), np.abs(b), 0.0), np.abs(a - b)
        rtol, atol = tolerance if isinstance(tolerance, tuple) else (
            tolerance, tolerance * size.max(initial=1.0))
        allowed = atol + rtol * size
        bad = ~((a == b) | (off <= allowed) | (np.isnan(a) & np.isnan(b)))
    if not bad.any():
        return
    excess = np.where(bad, np.nan_to_num(off / (allowed + 1e-300), nan=np.inf), -1.0)
    worst = tuple(int(i) for i in np.unravel_index(int(excess.argmax()), a.shape))
    raise CheckError(
        f"{what}, element {worst}: {names[0]} {a[worst]:.12g}, {names[1]} {b[worst]:.12g} "
        f"(difference {off[worst]:.3g}, allowed {allowed[worst]:.3g}); "
        f"{int(bad.sum())} of {a.size} elements differ")


def unwritten(arrays: Iterable[tuple[str, Any]]) -> Callable[[], None]:
    """Remember arrays bit by bit (with what lies between strided elements); answers the check."""
    kept = [(name, _whole(a), _bits(_whole(a))) for name, a in arrays if a is not None]

    def check() -> None:
        for name, array, before in kept:
            after = _bits(array)
            if before != after:
                raise CheckError(f"{name} was written: {_first_change(array, before, after)}")

    return check


def _whole(value: Tensor | Array) -> Array:
    """The array that owns the memory of `value`: writes beside a strided view count, too."""
    array: Any = value._array if isinstance(value, Tensor) else value
    while type(array.base) is type(array):
        array = array.base
    return array


def _bits(array: Array) -> bytes:
    return to_numpy(array).tobytes()


def _first_change(array: Array, before: bytes, after: bytes) -> str:
    dtype = np.dtype(array.dtype)
    old, new = np.frombuffer(before, dtype), np.frombuffer(after, dtype)
    size = dtype.itemsize
    i = next(i for i in range(old.size)
             if before[i * size:(i + 1) * size] != after[i * size:(i + 1) * size])
    return f"element {i} in memory was {old[i]}, is {new[i]}"
