"""When a leaf's gradient is complete: no further record of the walk can add to it.

Data parallel training starts the exchange of a gradient then, while the walk goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gtensor.engine.tape import Node, Record
from gtensor.system.bus import GradientEvent, bus, tell

if TYPE_CHECKING:
    from gtensor.engine.tensor import Tensor


def completing(records: Sequence[Record], step: Any, told: set[Node]) -> Iterator[Record]:
    """The records of a walk in its order; between two, leaves that are complete now are told.

    A leaf is complete behind the last record that has it as an input, also if that record gets no
    gradient. It is added to `told`. Leaves with hooks, which run at the end of the walk, are left
    to `tell_rest`.
    """
    last: dict[Node, int] = {}
    for number, record in enumerate(records):
        for parent in record.parents:
            if parent is not None and not isinstance(parent, Record):
                last[parent] = number
    due: dict[int, list[Node]] = {}
    for leaf, number in last.items():
        due.setdefault(number, []).append(leaf)
    for number, record in enumerate(records):
        yield record
        for leaf in due.get(number, ()):
            slot = step.slots.get(leaf)
            if slot is not None and not leaf.hooks:
                array = slot[0] if isinstance(slot, tuple) else slot._array
                told.add(leaf)
                tell(bus.leaves, GradientEvent(None, leaf, array))


def tell_rest(gradients: dict[Node, Tensor | None], told: set[Node]) -> None:
    """At the end of a walk: tell the leaves with hooks, and those that backward() was called on."""
    for node, grad in gradients.items():
        if grad is not None and node not in told and not isinstance(node, Record):
            tell(bus.leaves, GradientEvent(None, node, grad._array))
