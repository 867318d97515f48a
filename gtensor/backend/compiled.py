"""Kernels in C that paths of the CPU call in place of NumPy's functions, where they were built.

They are an optional part of the installation: without a compiler there is no `_compiled`, and
NumPy's functions do all. `settings.compiled` switches them off. See docs/compiled.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from gtensor.backend import _compiled
except ImportError:  # not built, or for another Python
    _compiled = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy import ndarray

_NUMBERS = {} if _compiled is None else {name: i for i, name in enumerate(_compiled.names())}


def kernel(name: str) -> int | None:
    """The number of the kernel of that name; None where it was not built."""
    return _NUMBERS.get(name)


def run(
    kernel: int, arrays: tuple[ndarray | None, ...], sizes: Sequence[int],
    numbers: Sequence[float], items: int,
) -> None:
    """Compute that many items by a kernel, whose comment in C says what it takes.

    Nothing is checked: shapes, strides and dtypes must be those that it is written for.
    """
    _compiled.run(kernel, arrays, sizes, numbers, items)


def described() -> str:
    """For `gtensor info`: what kernels there are, and for which processor."""
    if _compiled is None:
        return ("none: they were not built, as without a C compiler when gtensor was installed; "
                "NumPy's functions serve")
    return f"{len(_NUMBERS)} kernels, run as {_compiled.processor()}"
