"""The walk: from seeds back along the records, newest first. It names no op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.context import casting, current_casts
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.node import CONSUMED, FREE, WALKED, Node
from gtensor.engine.handle.storage import Storage
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.record import Record
from gtensor.system.bus import bus
from gtensor.system.fork_safety import free_at_forks

if TYPE_CHECKING:
    from gtensor.engine.walk.slots import Step

_by_age = attrgetter("seq")
_claims = RLock()
free_at_forks(_claims)


def walk(
    seeds: list[tuple[Node, Tensor]], records: list[Record], kept: Sequence[Node], step: Step[Any]
) -> list[Tensor | None]:
    """Run every record's rule, newest first; returns the gradients at the `kept` nodes.

    What varies between walks is the step's: whether rules see arrays, stacks or Tensors; hooks,
    listeners and collectors; streams; and what is pruned, recorded or kept for another walk. At the
    end of a walk nothing is claimed, and no slot is full.
    """
    if current_casts() is not None:  # rules run in the dtypes of the forward pass
        with casting(None):
            return walk(seeds, records, kept, step)
    take = step.slots.pop
    try:
        try:
            claim(records, step)
            step.begin(seeds, kept)
            for record in records if step.complete is None else step.passing(records):
                g = step.enter(record, take(record, None))
                if g is None:
                    continue  # no gradient arrived, or no target is behind it
                rule: Any = record.op.backward if step.direct else record.device.rule
                if bus.listeners:
                    step.call(record, rule, g)
                else:
                    rule(step.ns, step, g)
            results = step.results()
        finally:
            step.undo()
    except BaseException:  # undone: as by `Undone`, with fewer calls
        step.undo()
        raise
    if step.late:
        step.finish(results)
    return list(map(results.get, kept))


def reached(roots: Iterable[Node]) -> tuple[list[Record], list[Node]]:
    """Every record that the roots reach, newest first, and every leaf."""
    found = set(roots)
    records: list[Record] = []
    leaves: list[Node] = []
    nodes = [*found]
    for node in nodes:  # which grows
        if type(node) is not Record:
            leaves.append(node)
            continue
        records.append(node)
        for parent in node.parents:
            if parent is not None and parent not in found:
                found.add(parent)
                nodes.append(parent)
    if len(records) > 1:
        records.sort(key=_by_age, reverse=True)
    return records, leaves


def leading_to(targets: set[Node], records: list[Record]) -> set[Node]:
    """The nodes through which a gradient reaches a target."""
    leading = set(targets)
    for record in reversed(records):
        if not leading.isdisjoint(record.parents):
            leading.add(record)
    return leading


def claim(records: list[Record], step: Step[Any]) -> None:
    """Check that every record can be walked, and claim it for the step's walk, which releases it.

    A finalizer that runs meanwhile may walk another graph; records claimed so far are refused.
    """
    taken = 0
    try:
        with _claims:
            for record in records:
                free = record.state == FREE and record.op.backward is not None
                for count, version, _ in record.guards:  # `overwritten`, without a call for each
                    free = free and count.version == version
                if not free:
                    raise GradientError(refusal(record))
                record.state = WALKED  # stores, for each record
                taken += 1
    finally:
        step.claimed = records[:taken]


def refusal(record: Record) -> str:
    """The message why a record cannot be walked (again)."""
    if record.state == CONSUMED:
        return (f"the graph behind {record.where()} was consumed by an earlier backward; run the "
                "forward pass again, or keep it with retain_graph=True")
    if record.state == WALKED:
        return (f"{record.where()} is being walked by another backward right now; give each thread "
                "a graph of its own")
    if record.op.backward is None:
        return f"{record.where()} has no derivative; detach() its input to treat it as a constant"
    if any(count.version != version and not isinstance(count, Storage)
           for count, version, _ in record.guards):
        return (f"an array that {record.where()} saved for its gradient is one that a graph's "
                "replays write; save a clone() of it, or run backward() before the next replay "
                "(within the capture, if it was recorded there)")
    return (f"an array that {record.where()} saved for its gradient was overwritten in place "
            "since; clone() it before writing")
