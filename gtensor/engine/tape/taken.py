"""Saved arrays that a backward rule may overwrite, as the gradient of cross entropy its logits.

An op names with `takes` an input that it saves. Its rule may then ask for that array, `step.take`,
and write the gradient over it. It gets the array if the walk is its last reader: an op made it, no
other record saved it, no living tensor shares its storage, it never left gtensor, the record's
graph is not kept, and the device has no captured graph, whose replays may read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from gtensor.engine.handle.arrays import writable

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.storage import Storage
    from gtensor.engine.handle.tensor import Tensor


# A saved array, its storage, and the storage's `saved` until another record saves it.
Spare: TypeAlias = "tuple[Array, Storage, object]"


class Takeable(tuple[Any, ...]):
    """A record's saved values, among them an array that its rule may take."""

    spare: Spare | None = None

    def made(self, remade: object) -> Takeable:
        """The values themselves: none is a recipe, as in `WithRecipes`."""
        return self

    def free(self, a: Array) -> bool:
        """Whether that is the array, and nothing but these values can read it."""
        if self.spare is None:
            return False
        array, storage, mark = self.spare
        return (a is array and storage.saved is mark and not (storage.exported or storage.leaf)
                and not storage.shared_beside(None))


class Named(Takeable):
    """The same for the rule of a user's op, with an attribute for each value."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, saved: tuple[Any, ...]) -> Named:
        """Saved values with their names."""
        made = cls(saved)
        if type(saved) is Takeable:
            made.spare = saved.spare
        return made

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"step.saved.{name} was read, which the op does not save; it saves "
                             f"{', '.join(self.names)}")


def saved_first(x: Tensor, storage: Storage) -> object | None:
    """The mark of a storage that a record saves as the first, and may take; else None."""
    if not storage.made or x._device.graphs or not writable(x._array):
        return None
    mark = object()
    if storage.__dict__.setdefault("saved", mark) is not mark:  # one step, also for two threads
        return None
    if not storage.has(x):
        storage.join(x)
    return mark
