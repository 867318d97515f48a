"""Recipes: an op with its inputs, which consumers save in place of its output.

An activation that cannot be inverted keeps the input of its batch norm. An op that reads the output
would save it, a second buffer of the same size. With a recipe it saves nothing more, and backward
recomputes the output while one rule runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gtensor.engine.handle.arrays import layout
from gtensor.engine.handle.saved import Guards, overwritten, replayed
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.execute import execute

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.saved import Saved
    from gtensor.engine.tape.op import Op


# Recomputed values of checkpointed regions that the walk has not used: region -> number -> values.
Remade: TypeAlias = "dict[object, dict[int, Saved]]"


class Recipe:
    """One op, its input arrays and parameters, from which its output can be recomputed.

    It can be saved for the whole output in its first version, unless the output was exported. A
    saved recipe stays valid when the output is written later; its guards detect writes to the
    inputs. The output's storage refers to it weakly; the record of the output and records that
    saved it own it.
    """

    __slots__ = ("__weakref__", "arrays", "device", "guards", "layout", "op", "params", "version")

    def __init__(
        self, op: Op, inputs: Sequence[object], params: Params, output: Tensor
    ) -> None:
        self.op = op
        self.params = params
        self.device = output._device
        self.arrays: list[Any] = [x._array if isinstance(x, Tensor) else x for x in inputs]
        self.layout = layout(output._array)
        self.version = output._version
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        for x in tensors:
            keep_as_it_is(x)
        self.guards: Guards = tuple((x._own_storage(), x._version, -1) for x in tensors)
        if self.device.graphs:
            for array in self.arrays:
                self.guards += replayed(array, self.device)

    def fits(self, handle: Tensor, value: Array) -> bool:
        """Whether `value`, which a record is about to save, is the whole, unwritten output."""
        return (value is handle._array and handle._version == self.version
                and not handle._storage.exported and layout(value) == self.layout
                and not overwritten(self.guards))

    def made(self) -> Array:
        """The output, in a new buffer."""
        out = execute(self.op, self.device, self.arrays, self.params)
        return out[0] if self.op.extra_names else out


class WithRecipes(tuple[Any, ...]):
    """A record's saved values with recipes among them, which the walk computes before the rule.

    `own` is the recipe of the record's own output, if it has one; it is dropped with the saves.
    """

    own: Recipe | None = None

    def made(self, remade: Remade) -> Saved:
        """The arrays and scalars; `remade` is the walk's, for checkpointed regions."""
        once: dict[Recipe, Array] = {}  # y * y saves one recipe twice
        for value in self:
            if isinstance(value, Recipe) and value not in once:
                once[value] = value.made()
        return tuple(once[v] if isinstance(v, Recipe) else v for v in self)


def keep_as_it_is(x: Tensor) -> None:
    """Mark a tensor's memory as saved, and drop its recipe, which is not needed then."""
    storage = x._own_storage()
    storage.saved = True
    storage.recipe = None
