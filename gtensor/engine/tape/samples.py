"""Sample inputs of an op, for the tests that are generated from its definition.

A sample has shapes and random draws; `gtensor.testing.opcheck` makes arrays from it, in several
dtypes and layouts (strided, transposed, offset).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

import numpy as np

if TYPE_CHECKING:
    from gtensor.backend.typing import Params

Draw = Callable[["np.random.Generator", tuple[int, ...]], np.ndarray]  # the text imports nothing


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal values."""
    return rng.standard_normal(shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values in [0.5, 2), where logarithms and roots are smooth."""
    return rng.uniform(0.5, 2.0, shape)


def complex_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Complex values whose parts are standard normal."""
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def apart(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values with 0.2 <= |x| < 2: away from a kink or a pole at 0."""
    return rng.uniform(0.2, 2.0, shape) * rng.choice([-1.0, 1.0], shape)


def distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values at least 0.1 apart, so that no maximum is a tie."""
    count = int(np.prod(shape))
    return 0.1 * rng.permutation(count).reshape(shape) - 0.05 * count


def boolean(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """True and False."""
    return rng.random(shape) < 0.5


def below(limit: int) -> Draw:
    """Integers in [0, limit): class labels and indices."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(0, limit, shape)

    return draw


@dataclass(frozen=True)
class Sample:
    """Shapes and draws of the inputs (None for an omitted optional input), and the parameters."""

    shapes: tuple[tuple[int, ...] | None, ...]
    draws: tuple[Draw, ...] | Draw = normal
    params: Params = field(default_factory=dict)

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray | None]:
        """Fresh float64 (or integer, boolean) arrays."""
        draws = self.draws if isinstance(self.draws, tuple) else (self.draws,) * len(self.shapes)
        return [None if shape is None else np.asarray(draw(rng, shape))
                for shape, draw in zip(self.shapes, draws, strict=True)]


Shapes = tuple[tuple[int, ...], ...]  # of the inputs of one sample


class Samples(Sequence[Sample]):
    """Samples that differ in their shapes. Each is made when it is read: only tests do."""

    __slots__ = ("draws", "params", "shapes")

    def __init__(
        self, shapes: tuple[Shapes, ...], draws: tuple[Draw, ...] | Draw, params: Params
    ) -> None:
        self.shapes = shapes
        self.draws = draws
        self.params = params

    def __len__(self) -> int:
        return len(self.shapes)

    @overload
    def __getitem__(self, at: int) -> Sample: ...

    @overload
    def __getitem__(self, at: slice) -> list[Sample]: ...

    def __getitem__(self, at: int | slice) -> Sample | list[Sample]:
        if isinstance(at, slice):
            return [Sample(shapes, self.draws, self.params) for shapes in self.shapes[at]]
        return Sample(self.shapes[at], self.draws, self.params)

    def __add__(self, others: Iterable[Sample]) -> list[Sample]:
        return [*self, *others]

    def __radd__(self, others: Iterable[Sample]) -> list[Sample]:
        return [*others, *self]


_ONE = ((7,), (3, 5), (2, 0), ())  # odd, two-dimensional, empty, 0-d
_TWO = (((5,), (5,)), ((2, 1, 3), (4, 1)), ((0, 3), (3,)), ((), (2, 3)), ((), ()))


def unary(draw: Draw = normal, **params: object) -> Samples:
    """One input: odd, two-dimensional, empty, 0-d."""
    return alike(1, draw, **params)


def binary(first: Draw = normal, second: Draw | None = None, **params: object) -> Samples:
    """Two inputs: equal shapes, broadcasting on both sides, empty, 0-d."""
    return Samples(_TWO, (first, second or first), params)


def alike(count: int, draw: Draw | tuple[Draw, ...] = normal, **params: object) -> Samples:
    """Several inputs of one shape."""
    return Samples(tuple([(shape,) * count for shape in _ONE]), draw, params)
