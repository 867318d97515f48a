"""What `grad` and `value_and_grad` return, for type checkers. Nothing here is needed at run time.

The classes are generic over the parameters P of the function, whose first one is differentiated.
The first overload is for pyright: a first parameter without annotation, as in a lambda, has the
type of what is given.
"""

from __future__ import annotations

from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from gtensor.func.trees import P, R

Rest = ParamSpec("Rest")
A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)


class Unannotated:
    """A type that no function names, so that only a parameter without annotation has it."""


class AnyArguments(Protocol):
    """A `Callable[..., R]`, of whose parameters mypy takes none for the first."""

    def __call__(self, *args: Unannotated, **kwargs: Unannotated) -> Any: ...


class Gradient(Protocol[P]):
    """`grad(f)`: the gradient by the first argument, of its type."""

    @overload
    def __call__(
        self: Gradient[Concatenate[Unannotated, Rest]], first: A, /, *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> A: ...

    @overload
    def __call__(
        self: Gradient[Concatenate[A, Rest]], first: A, /, *args: Rest.args, **kwargs: Rest.kwargs,
    ) -> A: ...


class ValueAndGradient(Protocol[P, R_co]):
    """`value_and_grad(f)`: the value of f, and the gradient by the first argument."""

    @overload
    def __call__(
        self: ValueAndGradient[Concatenate[Unannotated, Rest], R], first: A, /, *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> tuple[R, A]: ...

    @overload
    def __call__(
        self: ValueAndGradient[Concatenate[A, Rest], R], first: A, /, *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> tuple[R, A]: ...
