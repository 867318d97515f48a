"""`x.size`: a number, which a call makes a shape."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, overload

from gtensor.engine.handle.interchange import UfuncProtocol

if TYPE_CHECKING:
    import numpy as np

    from gtensor.backend.typing import Array


def _plain(
    size: Size, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
) -> Any:
    """The ufunc of the number: NumPy takes other classes than int for int64."""
    return getattr(ufunc, method)(
        *[int(x) if isinstance(x, Size) else x for x in inputs], **options)


class Size(int):
    """A number of elements, which a call makes a shape: PyTorch's `x.size()` and `x.size(0)`.

    In operators and ufuncs it is the plain number, so an array beside it keeps its dtype. Other
    functions that take a number as an operand, such as `np.where` and CuPy's, want `int(x.size)`.
    """

    shape: tuple[int, ...]
    __array_ufunc__ = UfuncProtocol(_plain)
    __hash__ = int.__hash__

    @classmethod
    def of(cls, array: Array) -> Self:
        """That of an array."""
        size = cls(array.size)
        size.shape = array.shape
        return size

    @overload
    def __call__(self) -> tuple[int, ...]: ...

    @overload
    def __call__(self, dim: int) -> int: ...

    def __call__(self, dim: int | None = None) -> tuple[int, ...] | int:
        """The shape, or the length of one axis."""
        return self.shape if dim is None else self.shape[dim]

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


def _of_number(function: Callable[[Any, Any], Any]) -> Callable[[Size, Any], Any]:
    return lambda self, other: function(int(self), other)


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Size, Any], Any]:
    return lambda self, other: function(other, int(self))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor",
              "lshift", "rshift"):
    _function = getattr(operator, _name)
    setattr(Size, f"__{_name.rstrip('_')}__", _of_number(_function))
    setattr(Size, f"__r{_name.rstrip('_')}__", _reflected(_function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Size, f"__{_name}__", _of_number(getattr(operator, _name)))
