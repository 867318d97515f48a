"""Recipes: how to make an op's output again, saved by its consumers in the output's place.

An activation that cannot be inverted keeps the input of its batch norm. Whoever reads the output
would save it, a second buffer of the same size; with a recipe the consumer saves how to make it,
and backward makes it for as long as one rule runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gtensor.core.arrays import layout
from gtensor.core.modes import run
from gtensor.core.node import Guards, overwritten, replayed
from gtensor.core.tensor import Tensor

if TYPE_CHECKING:
    from gtensor.core.op import Op


class Recipe:
    """One op, its input arrays and parameters: enough to make its output again.

    It holds for the whole output in the version in which it was made, as long as nobody outside
    could write it unseen; whoever took the recipe keeps it when the output is written later. Its
    guards tell that an input was written since. The output's storage knows it only weakly: the
    record that made the output owns it, and whoever saved it.
    """

    __slots__ = ("__weakref__", "arrays", "device", "guards", "layout", "op", "params", "version")

    def __init__(
        self, op: Op, inputs: Sequence[Any], params: dict[str, Any], output: Tensor
    ) -> None:
        self.op = op
        self.params = params
        self.device = output._device
        self.arrays = [x._array if isinstance(x, Tensor) else x for x in inputs]
        self.layout = layout(output._array)
        self.version = output._version
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        for x in tensors:
            keep_as_it_is(x)
        self.guards: Guards = tuple((x._facts(), x._version, -1) for x in tensors)
        if self.device.graphs:
            for array in self.arrays:
                self.guards += replayed(array, self.device)

    def fits(self, handle: Tensor, value: Any) -> bool:
        """Whether `value`, about to be saved through a handle, is the whole, unwritten output."""
        return (value is handle._array and handle._version == self.version
                and not handle._storage.exported and layout(value) == self.layout
                and not overwritten(self.guards))

    def made(self) -> Any:
        """The output, in a buffer of its own."""
        out = run(self.op, self.device, self.arrays, self.params)
        return out[0] if self.op.extra_names else out


class WithRecipes(tuple[Any, ...]):
    """What a record saved, if recipes are among it: the walk makes these before the rule runs.

    `own` is the recipe of the record's own output, if it has one: it goes when the saves go.
    """

    own: Recipe | None = None

    def made(self, remade: dict[Any, Any]) -> tuple[Any, ...]:
        """The arrays and scalars themselves; `remade` is the walk's, for regions made again."""
        once: dict[Any, Any] = {}  # y * y saves one recipe twice
        for value in self:
            if isinstance(value, Recipe) and value not in once:
                once[value] = value.made()
        return tuple(once[v] if isinstance(v, Recipe) else v for v in self)


def keep_as_it_is(x: Tensor) -> None:
    """Let nobody overwrite a tensor's memory unseen; a recipe for what is kept has no use."""
    storage = x._facts()
    storage.saved = True
    storage.recipe = None
