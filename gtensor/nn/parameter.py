"""Parameter: a tensor that a Module registers and an optimizer updates."""

from __future__ import annotations

from typing import Any

from gtensor.core.tensor import Tensor
from gtensor.creation import tensor

_FIELDS = tuple(name for name in Tensor.__slots__ if name != "__weakref__")


class Parameter(Tensor):
    """A leaf tensor over the memory of `data`; what is not a tensor yet is copied into one.

    It is a Tensor in every respect. Its class is how a Module tells what is to be trained from what
    is only kept. Raises TypeError if a gradient is asked of integers.
    """

    __slots__ = ()

    def __new__(cls, data: Any, requires_grad: bool = True) -> Parameter:
        made = super().__new__(cls)
        made.become(data if isinstance(data, Tensor) else tensor(data))
        if requires_grad:
            made.requires_grad_()
        return made

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        """All is done by `__new__`; a Tensor's `__init__` refuses to be called."""

    def become(self, other: Tensor) -> None:
        """Stand for `other`'s memory from now on, without history and without a gradient.

        Whoever holds this parameter (a module, an optimizer, the user) goes on holding it, also
        when it moved to another device or dtype.
        """
        other._refuse_cut("Parameter()")
        source = other.detach()
        for name in _FIELDS:
            setattr(self, name, getattr(source, name))
        self._storage.join(self)  # a handle like any other: nobody overwrites it unseen

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse_history("pickle")
        return Parameter, (self.detach(), self.requires_grad)

    def __repr__(self) -> str:
        return f"Parameter({super().__repr__()})"
