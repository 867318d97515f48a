"""What a distribution is: its shapes, its samples, and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gtensor.backend import get_default_dtype
from gtensor.creation.dtypes import result_type
from gtensor.creation.new_tensors import asarray, shape_of
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor, is_floating
from gtensor.ops import (
    abs,
    all,
    broadcast_arrays,
    broadcast_to,
    floor,
    matrix_transpose,
    sqrt,
    sum,
)
from gtensor.ops.linalg.norms import diagonal
from gtensor.random import Generator, Key, known

if TYPE_CHECKING:
    from gtensor.random import Shape


class Constraint(NamedTuple):
    """What values may be: `check(x)` is True where they are, over all but `event_dim` axes."""

    wanted: str
    check: Callable[[Tensor], Tensor]
    event_dim: int = 0


def _simplex(x: Tensor) -> Tensor:
    return all(x >= 0, axis=-1) & (abs(sum(x, axis=-1) - 1) < 1e-6 * x.shape[-1] + 1e-6)


def _lower_cholesky(x: Tensor) -> Tensor:
    zero = all(all(x.tril() == x, axis=-1), axis=-1)
    return zero & all(diagonal(x) > 0, axis=-1)


def _symmetric(x: Tensor) -> Tensor:
    return all(all(abs(x - matrix_transpose(x)) <= 1e-6 * (1 + abs(x)), axis=-1), axis=-1)


REAL = Constraint("numbers", lambda x: x == x)
REAL_VECTOR = Constraint("vectors of numbers", lambda x: all(x == x, axis=-1), 1)
POSITIVE = Constraint("numbers above 0", lambda x: x > 0)
NONNEGATIVE = Constraint("numbers of 0 or more", lambda x: x >= 0)
UNIT_INTERVAL = Constraint("numbers from 0 to 1", lambda x: (x >= 0) & (x <= 1))
BOOLEAN = Constraint("0 or 1", lambda x: (x == 0) | (x == 1))
SIMPLEX = Constraint("vectors of 0 or more that add up to 1", _simplex, 1)
WEIGHTS = Constraint("vectors of 0 or more, not all 0", lambda x: all(x >= 0, axis=-1) & (
    sum(x, axis=-1) > 0), 1)
POSITIVE_VECTOR = Constraint("vectors of numbers above 0", lambda x: all(x > 0, axis=-1), 1)
LOWER_CHOLESKY = Constraint("lower triangular matrices with a diagonal above 0", _lower_cholesky, 2)
SYMMETRIC = Constraint("symmetric matrices", _symmetric, 2)


def integers_below(count: int) -> Constraint:
    """Whole numbers from 0 to count - 1."""
    return Constraint(f"whole numbers from 0 to {count - 1}",
                      lambda x: (x >= 0) & (x < count) & (floor(x) == x))


def between(low: Tensor, high: Tensor) -> Constraint:
    """Numbers from low to high."""
    return Constraint("numbers from low to high", lambda x: (x >= low) & (x <= high))


def with_event(inner: Constraint, ndims: int) -> Constraint:
    """The constraint of events that have `ndims` axes more."""
    def check(x: Tensor) -> Tensor:
        found = inner.check(x)
        return all(found, axis=tuple(range(-ndims, 0))) if ndims else found

    return Constraint(inner.wanted, check, inner.event_dim + ndims)


def broadcast_parameters(name: str, **given: Tensor | float) -> list[Tensor]:
    """The parameters as tensors of one shape, device and floating dtype.

    Raises TypeError for what is no number or tensor.
    """
    found = as_floats(name, **given)
    if len({x.shape for x in found}) == 1:  # those of the caller, not views of them
        return found
    return list(broadcast_arrays(*found))


def as_floats(name: str, **given: Any) -> list[Tensor]:
    """The same, each in its own shape."""
    for label, value in given.items():
        if isinstance(value, str) or not (
                isinstance(value, (Tensor, list, tuple)) or hasattr(value, "__float__")
                or hasattr(value, "__array__")):
            raise TypeError(f"{name} was given {value!r} as its {label}; wanted a tensor or a "
                            "number")
    tensors = [x for x in given.values() if isinstance(x, Tensor)]
    floats = [x.dtype for x in tensors if is_floating(x.dtype)]
    dtype = result_type(*floats) if floats else get_default_dtype()
    place = tensors[0].device if tensors else None
    return [x.astype(dtype) if isinstance(x, Tensor) else asarray(x, dtype=dtype, device=place)
            for x in given.values()]


def inherit_docstrings(cls: type) -> None:
    """Give what a class overrides the docstring of what it overrides."""
    for name, value in vars(cls).items():
        if not name.startswith("_") and getattr(value, "__doc__", "") is None:
            text = getattr(cls.__mro__[1], name, None).__doc__
            for held in (value, getattr(value, "fget", None)):
                if held is not None:
                    held.__doc__ = text


class Distribution:
    """A distribution of events of `event_shape`, for each place of `batch_shape`.

    Subclasses have `rsample`, or `sample` if their values have no gradient, and `log_prob`.

    `validate_args` says whether parameters and values are checked: True always, False never, None
    (the default) where the values can be looked at: not in a captured step or within a transform,
    nor on a GPU, which would have to be waited for.
    """

    def __init_subclass__(cls) -> None:
        inherit_docstrings(cls)

    has_rsample = False
    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self, batch_shape: tuple[int, ...] = (), event_shape: tuple[int, ...] = (),
        validate_args: bool | None = None,
    ) -> None:
        self.batch_shape = batch_shape
        self.event_shape = event_shape
        self._validate = validate_args

    def _check_parameters(self, **given: Tensor) -> None:
        """Raise ValueError for a parameter outside of what `arg_constraints` says."""
        for label, x in given.items():
            self._check(label, x, self.arg_constraints[label])

    def _check(self, label: str, x: Tensor, constraint: Constraint) -> None:
        if self._validate is False or (self._validate is None and not known(x)):
            return
        with no_grad():
            fits = constraint.check(x.detach())
            if all(fits).item():
                return
            found: object = f"of shape {x.shape}"
            if not constraint.event_dim:
                found = broadcast_to(x.detach(), fits.shape)[~fits][0].item()
        raise ValueError(f"{type(self).__name__} was given {label} {found}; wanted "
                         f"{constraint.wanted}")

    def _value(self, value: Any) -> Tensor:
        """A value for `log_prob`, checked."""
        x: Tensor = value if isinstance(value, Tensor) else asarray(value)
        n = len(self.event_shape)
        if n and (x.ndim < n or x.shape[x.ndim - n:] != self.event_shape):
            raise ValueError(f"{type(self).__name__} was given a value of shape {x.shape}; wanted "
                             f"(..., {', '.join(map(str, self.event_shape))})")
        self._check("a value", x, self.support)
        return x

    def _extended(self, sample_shape: Shape) -> tuple[int, ...]:
        return (*shape_of(sample_shape), *self.batch_shape, *self.event_shape)

    @property
    def support(self) -> Constraint:
        """What the values may be."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """The mean, (*batch_shape, *event_shape)."""
        raise NotImplementedError(f"the mean of {type(self).__name__}")

    @property
    def variance(self) -> Tensor:
        """The variance of each element, (*batch_shape, *event_shape)."""
        raise NotImplementedError(f"the variance of {type(self).__name__}")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each element."""
        return sqrt(self.variance)

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        """Values (*sample_shape, *batch_shape, *event_shape), whose gradients flow to parameters.

        Raises NotImplementedError for a distribution whose values have none.
        """
        raise NotImplementedError(f"the values of {type(self).__name__} have no gradient; sample() "
                                  "draws them")

    def sample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        """Values (*sample_shape, *batch_shape, *event_shape), without a gradient."""
        with no_grad():
            return self.rsample(sample_shape, generator=generator).detach()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, at values.

        Args:
            value: of shape (..., *event_shape), which broadcasts against the batch shape.

        Returns (..., *batch_shape). Raises ValueError for a value outside of the support.
        """
        raise NotImplementedError(f"log_prob of {type(self).__name__}")

    def entropy(self) -> Tensor:
        """The entropy in nats, (*batch_shape)."""
        raise NotImplementedError(f"the entropy of {type(self).__name__}")

    def __repr__(self) -> str:
        return (f"{type(self).__name__}(batch_shape={self.batch_shape}, "
                f"event_shape={self.event_shape})")
