"""Parameter: a tensor that a Module registers and an optimizer updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.creation.new_tensors import tensor
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.cached_values import CachedValue
from gtensor.ops.updates.clipping import total_norm
from gtensor.system import structure

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Operand

_FIELDS = tuple(name for name in Tensor.__slots__ if name != "__weakref__")


class Parameter(Tensor):
    """A leaf tensor over the memory of `data`; other values are copied into a tensor.

    It is a Tensor; a Module registers tensors of this class as parameters to be trained. Raises
    TypeError for integers with requires_grad.
    """

    __slots__ = ("_norm",)

    _norm: CachedValue[Tensor]  # absent before the first call of `norm`

    def __new__(cls, data: Operand, requires_grad: bool = True) -> Parameter:
        try:
            trained = bool(requires_grad)
        except ValueError:  # of an array
            raise TypeError("Parameter was given requires_grad of type "
                            f"{type(requires_grad).__name__}; wanted True or False") from None
        made = super().__new__(cls)
        made.become(data if isinstance(data, Tensor) else tensor(data))
        if trained:
            made._begin_as_leaf()
        return made

    def __init__(self, data: Operand, requires_grad: bool = True) -> None:
        """Empty: `__new__` does the work, and Tensor's `__init__` raises."""

    def become(self, other: Tensor) -> None:
        """Take `other`'s memory, without history and without a gradient.

        So modules, optimizers and users keep the same parameter object after a move to another
        device or dtype.
        """
        other._refuse_cut("Parameter()")
        if hasattr(self, "_storage"):  # else it is being made
            structure.changed(f"a Parameter of shape {self.shape} was moved or converted")
        source = other.detach()
        for name in _FIELDS:
            setattr(self, name, getattr(source, name))
        self._storage.join(self)  # so that no op overwrites the memory

    def kept_norm(self) -> Tensor:
        """The Euclidean norm of all elements, 0-d, float32 or wider, without history.

        It is computed once and kept until the memory is written: by an optimizer, a load or any op
        in place. While an array of `.numpy()`, `.array` or DLPack lives, through which other code
        can write, it is computed at each call. Nothing waits for the GPU. `norm()` has a history.
        """
        kept = getattr(self, "_norm", None)
        if kept is None:
            kept = self._norm = CachedValue()
        return kept.get((self,), lambda: total_norm((self,))[0])

    def __reduce__(self) -> tuple[object, ...]:
        self._refuse_history("pickle")
        return Parameter, (self.detach(), self.requires_grad)

    def __repr__(self) -> str:
        return f"Parameter({super().__repr__()})"
