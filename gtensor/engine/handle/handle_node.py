"""A handle's node: whether it matches the handle's values, and when values may leave the tape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.engine.handle.consumed import Consumed
from gtensor.engine.handle.context import STATE
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.node import Node, hangs_on

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.storage import Storage


class HandleNode:
    """Mixin of `Tensor`: access to its node for code that reads it together with the values."""

    __slots__ = ()

    _array: Array
    _node: Node | None
    _storage: Storage
    _version: int

    def _current_node(self, reader: str) -> Node | None:
        """The handle's node; raises GradientError if another handle has overwritten its values.

        Code that reads the node together with the values calls this, or compares the versions as
        `bind` does. A consumed handle keeps its node.
        """
        if not isinstance(self._array, Consumed) and self._version != self._storage.version:
            self._check_version(reader)
        return self._node

    def _tracked_node(self, reader: str) -> Node:
        """The current node of a tensor that must require a gradient."""
        node = self._current_node(reader)
        if node is None:
            raise GradientError(f"{reader} on a tensor of shape {self._array.shape} that does "
                                "not require a gradient; no input of it has requires_grad, or it "
                                "was made under no_grad()")
        return node

    def _refuse_history(self, reader: str) -> None:
        """Raise GradientError for an op's output, which must not be copied as a leaf."""
        node = self._current_node(reader)
        if node is not None and node.op is not None:
            raise GradientError(f"{reader} of the output of {node.where()}; detach() it first")
        self._refuse_cut(reader)

    def _refuse_cut(self, reader: str) -> None:
        """Raise GradientError for a value that `gt.grad` differentiates in this thread."""
        arguments = STATE.differentiated
        if arguments:
            node = self._current_node(reader)
            through = None if node is None else hangs_on(node, arguments, STATE.apart)
            if through in arguments:
                raise GradientError(f"{reader} of a value that gt.grad() differentiates would cut "
                                    "its gradient; call .detach() first to treat it as a constant")
            if through is not None:
                raise GradientError(f"{reader} of a value that may depend on what gt.grad() "
                                    "differentiates, since an inner backward() consumed its graph; "
                                    "call .detach() first to treat it as a constant")

    def _check_version(self, reader: str) -> None:
        """Accept the version of a storage that another handle wrote, unless a history is lost."""
        if self._node is not None and self._node.op is not None:
            raise GradientError(
                f"{reader} reads a tensor recorded by {self._node.where()} whose memory was "
                "overwritten in place through another handle since; use the handle that was "
                "written, or clone() before writing")
        if self._storage.history:
            raise GradientError(
                f"{reader} reads a view of memory that a recorded in-place op overwrote through "
                "another handle since, so its gradient would be lost; take the view again after "
                "the write")
        self._version = self._storage.version  # type: ignore[misc]  # a slot of Tensor
