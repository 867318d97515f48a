"""When a leaf's gradient is complete: no further record of the walk can add to it.

Data parallel training starts the exchange of a gradient then, while the walk goes on. A leaf's
collector gives the memory in which its gradient is gathered, is told when it is complete, and at
the walk's end says what becomes its `.grad`. Listeners of the bus are only told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.node import Collector, Node
from gtensor.engine.tape.record import Record
from gtensor.system.bus import GradientEvent, bus, tell

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.tensor import Tensor


class Collecting:
    """The collectors of a walk."""

    def __init__(self, collectors: Iterable[Collector], leaves: Sequence[Node]) -> None:
        self.collectors = [*collectors]
        self.begun: list[Collector] = []
        for collector in self.collectors:
            self.begun.append(collector)
            try:
                collector.begin(leaves)
            except BaseException:  # undone
                self.cancel()
                raise

    def place(self, leaf: Node) -> Array | None:
        """Where a node's gradient is to be gathered, if a collector says so."""
        return None if leaf.collector is None else leaf.collector.place(leaf)

    def finish(self) -> dict[Node, Tensor]:
        """The gradients of all collectors' leaves."""
        found: dict[Node, Tensor] = {}
        for collector in self.collectors:
            found.update(collector.finish())
        self.begun.clear()
        return found

    def cancel(self) -> None:
        """Tell those whose walk has begun and not finished."""
        while self.begun:
            self.begun.pop().cancel()


def collecting(leaves: Sequence[Node], create_graph: bool, batched: bool) -> Collecting:
    """The collectors of the leaves, told that a walk begins."""
    found = dict.fromkeys([leaf.collector for leaf in leaves if leaf.collector is not None])
    if create_graph or batched:
        raise GradientError(f"backward({'create_graph' if create_graph else 'batched'}=True) "
                            "reaches parameters whose gradients are exchanged with other ranks; "
                            "wanted a plain backward(), or gt.grad(), which exchanges nothing")
    return Collecting(found, leaves)


def completing(records: Sequence[Record], step: Any, told: set[Node]) -> Iterator[Record]:
    """The records of a walk in its order; between two, leaves that are complete now are told.

    A leaf is complete behind the last record that has it as an input, also if that record gets no
    gradient. It is added to `told`. Leaves with hooks, which run at the end of the walk, are left
    to `tell_rest`, unless they have a collector: then their hooks run before it is told.
    """
    last: dict[Node, int] = {}
    for number, record in enumerate(records):
        for parent in record.parents:
            if parent is not None and not isinstance(parent, Record):
                last[parent] = number
    due: dict[int, list[Node]] = {}
    for leaf, number in last.items():
        due.setdefault(number, []).append(leaf)
    collected = step.collecting is not None
    for number, record in enumerate(records):
        yield record
        for leaf in due.get(number, ()):
            if leaf not in step.slots:
                continue
            if collected and leaf.collector is not None:
                leaf.collector.complete(leaf, step.settled(leaf))
                told.add(leaf)
            if bus.leaves and (leaf in told or not leaf.hooks):
                slot = step.slots[leaf]
                told.add(leaf)
                tell(bus.leaves, GradientEvent(
                    None, leaf, slot[0] if isinstance(slot, tuple) else slot._array))
    if collected:
        for leaf in [node for node in step.slots if node.collector and node not in told]:
            leaf.collector.complete(leaf, step.settled(leaf))  # backward() was called on it
            told.add(leaf)


def tell_rest(gradients: dict[Node, Tensor | None], told: set[Node]) -> None:
    """At the end of a walk: tell the leaves with hooks, and those that backward() was called on."""
    for node, grad in gradients.items():
        if grad is not None and node not in told and not isinstance(node, Record):
            tell(bus.leaves, GradientEvent(None, node, grad._array))
