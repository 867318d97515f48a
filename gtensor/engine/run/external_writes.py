"""Writes from outside: a communicator, or another library, writes a tensor's memory.

They count as one in-place write. Values that a graph has saved are then known to be overwritten,
and the tensor's memory is not taken for exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.engine.handle.context import grad_enabled, no_grad
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.run.writable import check_writable, count_write, refuse_traced

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


class ExternalWrite:
    """A write to a tensor that code outside begins now and ends later.

    `array` is its memory. Ops must not use the tensor before `end()`, which counts once more: what
    a graph saved meanwhile is not valid either.

    Raises GradientError for a tensor with a gradient while gradients are enabled, LevelError within
    a transform, ValueError for memory that may not be written.
    """

    def __init__(self, tensor: Tensor, name: str) -> None:
        refuse_traced(tensor, name)
        if grad_enabled() and tensor.requires_grad:
            raise GradientError(f"in-place {name} on a tensor of shape {tensor.shape} that requires"
                                " a gradient; do it under no_grad(), or on a clone()")
        if tensor._version != tensor._storage.version:
            tensor._check_version(name)
        array = tensor._array
        check_writable(name, array)
        self.tensor = tensor
        self.array: Array = array
        tensor._device.order((), (array,))
        count_write(tensor)

    def end(self) -> None:
        """The write is done."""
        count_write(self.tensor)


def relocate(leaf: Tensor, memory: Array) -> None:
    """Let a leaf's values lie in `memory`, contiguous and of its shape and dtype.

    Its node stays, with gradient and hooks. Views of it that were made before keep the old memory.
    """
    leaf._count("relocation")
    place = wrap(memory, leaf._device)
    with no_grad():
        place[...] = leaf
    storage = place._own_storage()
    leaf._array, leaf._storage, leaf._version = memory, storage, storage.version
    storage.join(leaf)
    storage.leaf = leaf.requires_grad
