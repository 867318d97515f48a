"""One row of the comparison: a function of gtensor under the name PyTorch's samples have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Predicate = Callable[["Given"], bool]
COMPLEX = (torch.complex128, torch.complex64)


@dataclass(frozen=True)
class Given:
    """One sample: what PyTorch's op is called with."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dtype: torch.dtype

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument after the first, given by position (from 0) or by name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


@dataclass(frozen=True)
class Skip:
    """Samples that are left out, and why. A skip that leaves nothing out fails the tests."""

    reason: str
    when: Predicate


def _as_it_is(result: Any) -> Any:
    return result


def never(given: Given) -> bool:
    return False


def always(given: Given) -> bool:
    return True


@dataclass(frozen=True)
class Case:
    """`ours` takes the arguments of PyTorch's op `name`, as gtensor's tensors.

    Attributes:
        theirs: what to compare with, where that is not the op itself.
        outputs: brings both results to one form, such as vectors of a free sign to their squares.
        tolerance: in float64, where the usual one does not do; say why beside it.
        refuses: samples whose gradient gtensor refuses with a GradientError; PyTorch has one.
        once: samples whose second derivative is not compared; say why beside it.
    """

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any] | None = None
    outputs: Callable[[Any], Any] = _as_it_is
    tolerance: float | None = None
    refuses: Predicate = never
    once: Predicate = never
    skips: tuple[Skip, ...] = ()


def same(name: str, ours: Callable[..., Any], *skips: Skip, **other: Any) -> Case:
    """A row whose function takes the arguments of PyTorch's op as they are."""
    return Case(name, ours, skips=skips, **other)


def axes(dim: Any) -> Any:
    """PyTorch's `dim` as the array API's `axis`."""
    return tuple(dim) if isinstance(dim, (list, tuple, torch.Size)) else dim


def keyword(name: str) -> Predicate:
    """Samples that give the keyword argument a value."""
    return lambda given: given.kwargs.get(name) not in (None, False)


def of(*dtypes: torch.dtype) -> Predicate:
    """Samples of these dtypes."""
    return lambda given: given.dtype in dtypes


def complex_values(given: Given) -> bool:
    """Samples of complex values."""
    return given.dtype in COMPLEX


def scalar_axis(position: int = 0, name: str = "dim") -> Skip:
    """Samples with an axis of a 0-d tensor: PyTorch takes it for a 1-d one there."""
    return Skip("a 0-d tensor has no axis", lambda given: given.input.ndim == 0 and (
        given.argument(position, name) not in (None, ())))


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NO_BOOL = Skip("the array API defines it for numbers, not for truth values", of(torch.bool))
NO_COMPLEX = Skip("gtensor has it for real values", of(*COMPLEX))
NO_INTEGER = Skip("gtensor has it for floating dtypes", of(*INTEGERS))
