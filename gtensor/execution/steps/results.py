"""What a step returns: a tree whose tensors are made anew by each replay."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from gtensor.engine.handle.consumed import Consumed
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.node import Leaf
from gtensor.engine.handle.storage import Storage
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.tape.op import Op
from gtensor.engine.tape.record import Record, new_record
from gtensor.func.trees import leaves, rebuilt

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.execution.steps.recorder import Recorder

_PLAIN = (bool, int, float, complex, str, type(None))


def _refuse(ns: Any, step: Any, g: Any) -> NoReturn:
    raise GradientError("backward() came to a result of a captured step, which keeps no graph; "
                        "call backward() within the step")


_CAPTURED = Op("captured step", cpu=lambda x: x, gpu=lambda x: x, backward=_refuse, tangent=None,
               samples=None, complex=True)


class Results:
    """The tree that a recorded step returned."""

    def __init__(self, recording: Recorder, tree: Any) -> None:
        self.tree = rebuilt(tree, [None if isinstance(x, Tensor) else x
                                   for _, x in leaves(tree)])
        self.leaves: list[Any] = []  # a `_Result` for each tensor, else the value
        shared: dict[int, int] = {}  # id of a storage -> its number among the results'
        handles: dict[int, int] = {}  # the same of tensors
        for path, x in leaves(tree):
            if isinstance(x, Tensor):
                handle = handles.setdefault(id(x), len(handles))
                self.leaves.append(_Result(recording, path, x, handle, shared))
            else:
                self.leaves.append(x)

    def difference(self, other: Results) -> str | None:
        """What differs from another recording's results; tensors that are the same last."""
        if len(self.leaves) != len(other.leaves):
            return "the step returned another tree the second time"
        for one, two in zip(self.leaves, other.leaves, strict=True):
            if isinstance(one, _Result) and isinstance(two, _Result):
                if one.facts != two.facts:
                    return (f"the tensor that the step returned{one.path} was another the second "
                            "time")
                if one.tensor() is two.tensor() and one.argument is None:
                    two.lasting = True
            elif not isinstance(one, _PLAIN) or type(one) is not type(two) or (
                    one != two and one == one):
                return (f"the step returned {one!r}, and {two!r} the second time; return tensors, "
                        "from which the numbers can be read after the step")
        return None

    def numbers(self) -> list[int]:
        """The values that replays return."""
        return [x.number for x in self.leaves if isinstance(x, _Result)]

    def detach(self, tree: Any) -> None:
        """Replace the history of what an eager call returns, as replays have none."""
        for result, (_, x) in zip(self.leaves, leaves(tree), strict=True):
            if isinstance(x, Tensor) and result.record:
                x._node = _node_of(x)

    def builder(self) -> Callable[[Sequence[Tensor], Sequence[Array]], Any]:
        """A function of the arguments and of the values' arrays that makes the tree."""
        results = [x for x in self.leaves if isinstance(x, _Result)]
        if len(self.leaves) == 1 and results and self.tree is None:
            one = results[0]
            if one.is_plain():  # most steps return a loss
                device: Any = one.device
                storage: Any = one.common
                return lambda arguments, arrays: wrap(arrays[0], device, storage)
            return lambda arguments, arrays: one.made(arguments, arrays[0], {})
        plan, tree = self.leaves, self.tree

        def build(arguments: Sequence[Tensor], arrays: Sequence[Array]) -> Any:
            storages: dict[int, Storage] = {}
            handles: dict[int, Tensor] = {}  # one that is returned twice is one tensor
            for x, array in zip(results, arrays, strict=True):
                if x.handle not in handles:
                    handles[x.handle] = x.made(arguments, array, storages)
            return rebuilt(tree, [handles[x.handle] if isinstance(x, _Result) else x for x in plan])

        return build


class _Result:
    """A tensor that a step returns."""

    def __init__(
        self, recording: Recorder, path: str, x: Tensor, handle: int, shared: dict[int, int]
    ) -> None:
        self.path = path
        self.handle = handle  # the number of the tensor among the results'
        self.argument = recording.argument_of(x)
        self.lasting = False  # whether each call returns this same tensor
        self.tensor = weakref.ref(x)
        self.device = x._device
        self.number = -1
        self.record = self.leaf = False
        if isinstance(x._array, Consumed):
            recording.refuse("the step returned a tensor whose memory an op has taken over")
            self.facts: Any = None
            return
        self.number = recording.number(x._array)
        self.record, self.leaf = isinstance(x._node, Record), isinstance(x._node, Leaf)
        storage = x._storage
        self.made_by_op = storage.made
        self.common = storage if storage.common else None
        outside, of = recording.storage_of(x)
        self.storage = storage if outside else None  # of memory that lasts
        self.of = of  # the argument whose memory it is
        self.group = shared.setdefault(id(storage), len(shared))
        self.facts = (self.number, handle, self.argument, self.record, self.leaf, outside, of,
                      None if self.common is not None else self.group)

    def is_plain(self) -> bool:
        """Whether it is a new tensor in memory of its own, without a gradient."""
        return self.common is not None and not (
            self.lasting or self.record or self.leaf) and self.argument is None

    def made(
        self, arguments: Sequence[Tensor], array: Array, storages: dict[int, Storage]
    ) -> Tensor:
        """The tensor of a replay."""
        if self.argument is not None:
            return arguments[self.argument]
        if self.lasting:
            found = self.tensor()
            assert found is not None
            return found
        if self.of is not None:
            storage = arguments[self.of]._own_storage()
        elif self.storage is not None:
            storage = self.storage
        elif self.common is not None:
            storage = self.common
        else:
            storage = storages.get(self.group) or storages.setdefault(self.group, Storage())
            storage.made = self.made_by_op
        x = wrap(array, self.device, storage)
        if self.record:
            x._node = _node_of(x)
        elif self.leaf:
            x.requires_grad_()
        return x


def _node_of(x: Tensor) -> Record:
    return new_record(_CAPTURED, (), 0, (), (), {}, x._array, x._device)
