"""Sample inputs of an op, for the tests that are generated from its definition.

A sample has shapes and random draws; `gtensor.testing.opcheck` makes arrays from it, in several
dtypes and layouts (strided, transposed, offset).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gtensor.backend.typing import Params

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


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


def unary(draw: Draw = normal, **params: object) -> list[Sample]:
    """One input: odd, two-dimensional, empty, 0-d."""
    return [Sample((shape,), draw, params) for shape in ((7,), (3, 5), (2, 0), ())]


def binary(first: Draw = normal, second: Draw | None = None, **params: object) -> list[Sample]:
    """Two inputs: equal shapes, broadcasting on both sides, empty, 0-d."""
    pairs = (((5,), (5,)), ((2, 1, 3), (4, 1)), ((0, 3), (3,)), ((), (2, 3)), ((), ()))
    return [Sample(pair, (first, second or first), params) for pair in pairs]


def alike(count: int, draw: Draw | tuple[Draw, ...] = normal, **params: object) -> list[Sample]:
    """Several inputs of one shape."""
    return [Sample((shape,) * count, draw, params) for shape in ((7,), (3, 5), (2, 0), ())]
