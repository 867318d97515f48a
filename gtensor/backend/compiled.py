"""Kernels in C that paths of the CPU call in place of NumPy's functions, where they were built.

They are an optional part of the installation: without a compiler there is no `_compiled`, and
NumPy's functions do all. `settings.compiled` switches them off. See docs/compiled.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    from gtensor.backend import _compiled
except ImportError:  # not built, or for another Python
    _compiled = None  # type: ignore[assignment]

VERSION = 1  # of `_compiled`: an earlier one may lie where sources are newer than the installation
if _compiled is not None and getattr(_compiled, "version", None) != VERSION:
    _compiled = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy import ndarray

extension: Any = _compiled
"""None where it was not built."""


def numbered(extension: Any) -> dict[str, int]:
    """The kernels by name; none without the extension, or on a processor that lacks instructions.
    """
    if extension is None or not extension.processor():
        return {}
    return {name: i for i, name in enumerate(extension.names())}


NUMBERS = numbered(_compiled)


def kernel(name: str) -> int | None:
    """The number of the kernel of that name; None where it was not built."""
    return NUMBERS.get(name)


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


_DIVIDE, OVERFLOW, _UNDER, INVALID = 1, 2, 4, 8
INFINITE = OVERFLOW | INVALID
"""Flags that are no news where infinite numbers are expected."""
ALL = INFINITE | _DIVIDE | _UNDER


def report(flags: int) -> None:
    """Raise the flags once more in NumPy."""
    if flags & _DIVIDE:
        np.divide(_ONE, 0)
    if flags & OVERFLOW:
        np.multiply(_MOST, 2)
    if flags & _UNDER:
        np.multiply(_LEAST, _LEAST)
    if flags & INVALID:
        np.add(_INFINITE, -np.inf)


_ONE, _MOST, _LEAST, _INFINITE = [
    np.array([value], np.float32) for value in (1, 3e38, 1e-38, np.inf)]


def described(extension: Any = _compiled) -> str:
    """For `gtensor info`: what kernels there are, and for which processor."""
    if extension is None:
        return ("none: they were not built, as without a C compiler when gtensor was installed, or "
                "its sources have changed since; NumPy's functions serve")
    if not extension.processor():
        return "none: they need AVX2 and FMA, which this processor lacks; NumPy's functions serve"
    return f"{len(extension.names())} kernels, run as {extension.processor()}"


# -- threads ---------------------------------------------------------------------------------------

# Ranks on this machine, as mpiexec, Open MPI and torchrun tell them.
_RANKS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE")
MOST_THREADS = 256  # threads of the pool


def _number(name: str) -> int:
    """A positive integer of the environment, the first of several; 0 if there is none."""
    text = os.environ.get(name, "").partition(",")[0].strip()
    return int(text) if text.isascii() and text.isdecimal() else 0


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def first_threads() -> int:
    """How many threads calls have at first: OMP_NUM_THREADS; else this rank's part of the cores."""
    ranks = max(1, *map(_number, _RANKS))
    return min(MOST_THREADS, _number("OMP_NUM_THREADS") or max(1, cores() // ranks))


if _compiled is not None:
    _compiled.set_num_threads(first_threads())
