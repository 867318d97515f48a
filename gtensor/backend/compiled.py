"""Kernels in C that paths of the CPU call in place of NumPy's functions, where they were built.

They are an optional part of the installation: without a compiler there is no `_compiled`, and
NumPy's functions do all. `settings.compiled` switches them off. See docs/compiled.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.threads import pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy import ndarray

_compiled: Any = pool()  # None if it was not built, or for another Python
_NUMBERS = {} if _compiled is None else {name: i for i, name in enumerate(_compiled.names())}


def kernel(name: str) -> int | None:
    """The number of the kernel of that name; None where it was not built."""
    return _NUMBERS.get(name)


def run(
    kernel: int, arrays: tuple[ndarray | None, ...], sizes: Sequence[int],
    numbers: Sequence[float], items: int, quiet: int = 0,
) -> int:
    """Compute that many items by a kernel, whose comment in C says what it takes.

    Nothing is checked: shapes, strides and dtypes must be those that it is written for. Flags of
    the floating-point unit that it raised, except the `quiet` ones, have the consequences that
    `np.errstate` gives them. Returns all of them.
    """
    flags: int = _compiled.run(kernel, arrays, sizes, numbers, items)
    if flags & ~quiet:
        report(flags & ~quiet)
    return flags


_DIVIDE, _OVER, _UNDER, INVALID = 1, 2, 4, 8
INFINITE = _OVER | INVALID
"""Flags that are no news where infinite numbers are expected."""
ALL = INFINITE | _DIVIDE | _UNDER


def report(flags: int) -> None:
    """Raise the flags once more in NumPy."""
    if flags & _DIVIDE:
        np.divide(_ONE, 0)
    if flags & _OVER:
        np.multiply(_MOST, 2)
    if flags & _UNDER:
        np.multiply(_LEAST, _LEAST)
    if flags & INVALID:
        np.subtract(_INFINITE, _INFINITE)


_ONE, _MOST, _LEAST, _INFINITE = [
    np.array([value], np.float32) for value in (1, 3e38, 1e-38, np.inf)]


def described() -> str:
    """For `gtensor info`: what kernels there are, and for which processor."""
    if _compiled is None:
        return ("none: they were not built, as without a C compiler when gtensor was installed; "
                "NumPy's functions serve")
    return f"{len(_NUMBERS)} kernels, run as {_compiled.processor()}"
