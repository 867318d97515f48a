"""The step, a backward rule's view of the walk: the gradient slots and the ownership verbs.

A rule `backward(ns, step, g)` returns nothing; it writes to its parents' slots:

    step.give(i, a)   move the rule's hold on a to input i (a is new, or g, or a view of g)
    step.lend(i, a)   input i gets another hold (on g, or on an array that is kept elsewhere)
    step.into(i)      -> (buffer, beta): accumulate there (beta=1), overwrite it (beta=0), or
                      (None, 0) to make a new one; in any case give the result. With wide=True
                      the buffer of a rule for halves may be float32: input i is a cast parameter.
                      dtype is that of the rule's gradient, if it is not the output's
    step.reuse(g)     -> g if the rule is its last holder and may overwrite it, else None; call last
    step.take(a)      -> a, which the op `takes`, if the record was its last reader, else None; to
                      overwrite and give

A slot keeps its first gradient unchanged; a later one is added in place into whichever of the two
has no other holder. `docs/ownership.md` has the rules as an executable model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from math import prod
from operator import attrgetter
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias, TypeVar

import numpy as np

from gtensor.backend import Device, owner
from gtensor.engine.handle.arrays import broadcast_view
from gtensor.engine.handle.context import grad_enabled, grad_mode, record_ops
from gtensor.engine.handle.errors import GradientError, refuse_complex
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.handle.node import CONSUMED, FREE, WALKED, Node, Tape
from gtensor.engine.handle.storage import BORROWED, GIVEN, UNREAD, Storage
from gtensor.engine.handle.tensor import Tensor, check_like, wrap
from gtensor.engine.tape.execute import run_aside, run_noted
from gtensor.engine.tape.record import Record
from gtensor.engine.tape.taken import Takeable
from gtensor.settings import settings
from gtensor.system.bus import GradientEvent, bus, heard, tell
from gtensor.system.bus import here as scope
from gtensor.system.fork_safety import free_at_forks

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.saved import Saved
    from gtensor.engine.tape.recipes import Remade, WithRecipes
    from gtensor.engine.walk.complete import Collecting

PLACED = Storage()  # the hold on a collector's memory: never shared, never released
PLACED.holds = 1
PRESENT: Any = None, None  # in the slot of a leaf whose `.grad` the first arrival is added to
_FLOAT32 = np.dtype(np.float32)
_hooks = attrgetter("hooks")
commits = RLock()  # held while `.grad` is stored, or taken
free_at_forks(commits)

# An array and its holders; None: new, held by the slot alone.
Slot: TypeAlias = "tuple[Array, Storage | None]"
V = TypeVar("V", "Array", Tensor)  # what a mode computes with


class Step(Generic[V]):
    """Common to both modes: the current record, and what one walk does otherwise than another."""

    ns: Namespace
    record: Record
    g: Any  # the gradient that its rule gets; None between two records
    # Of raw arrays: the device of the last record, the hold on g, whether that was moved to a slot
    device: Device | None
    hold: Storage | None
    moved: bool
    saved: Saved
    parents: tuple[Node | None, ...]  # per input: its node if this walk needs its gradient
    mask: int  # bit i: input i needs one
    direct: bool  # whether rules are called directly, without making a device current
    level: Tape | None  # on whose tape the walk is
    create_graph: bool  # whether what the rules do is recorded
    keep: bool  # whether the graph is kept for another walk
    # Of leaves: the `.grad` that this walk adds to in place, and a copy of it should the walk fail
    adopted: Mapping[Node, tuple[Tensor, Array | None]] = MappingProxyType({})

    if TYPE_CHECKING:  # the verbs, which each mode defines

        def give(self, i: int, a: V) -> None:
            """Move the rule's hold on `a` to input i."""

        def lend(self, i: int, a: V) -> None:
            """Give input i another hold on `a`."""

        def into(
            self, i: int, wide: bool = False, dtype: np.dtype | None = None
        ) -> tuple[V | None, float]:
            """The buffer to accumulate into, and 1.0; (None, 0.0) to make a new one."""

        def reuse(self, g: V) -> V | None:
            """g if the rule may overwrite it."""

        def take(self, a: V) -> V | None:
            """A saved array if the rule may overwrite it."""

        def rebuilt(self, i: int, a: V) -> V:
            """`a`, recomputed from saved values, in place of input i."""

        def seed(self, node: Node, grad: Tensor) -> None:
            """Put the caller's gradient into a root's slot."""

        def hooked(self, node: Node, slot: Any) -> Any:
            """The slot after the node's hooks."""

        def share(self, slot: Any) -> Any:
            """The slot with one more hold on it."""

        def enter(self, record: Record, slot: Any) -> V | None:
            """Make a record with its gradient current; None if its rule need not run."""

        def leave(self) -> None:
            """The end of the last rule."""

        def result(self, node: Node, slot: Any) -> Tensor | None:
            """A slot's content as a tensor."""

    def __init__(self, wanted: set[Node] | None) -> None:
        self.g = self.hold = self.device = None  # not the class's, which would slow every read
        self.moved, self.direct = False, True
        self.slots: dict[Node, Any] = {}
        self.kept: dict[Node, None] = {}  # whose gradients are asked for; ordered
        self.held: dict[Node, Any] = {}  # the slots of those that are records
        self.remade: Remade = {}  # recomputed values of checkpointed regions, not yet used
        self.wanted = wanted  # None: all reached nodes
        self.prunes = wanted is not None  # whether inputs may lead to no target
        self.told = bool(bus.gradients)
        self.claimed: Sequence[Record] = ()
        self.collecting: Collecting | None = None  # who takes the gradients of leaves meanwhile
        self.complete: set[Node] | None = None  # leaves of which listeners were told, if there are
        self.recorded: bool | None = None  # whether ops were recorded before
        self.late = False  # whether there is something to `finish`

    # -- the walk ---------------------------------------------------------------------------------

    def begin(self, seeds: Sequence[tuple[Node, Tensor]], kept: Sequence[Node]) -> None:
        """Put the seeds into their slots; from then on record ops only to create a graph."""
        self.kept = dict.fromkeys(kept)
        wanted, level = self.wanted, self.level
        if self.collecting is not None or bus.leaves and wanted is None:
            self.complete = set()
        for node, seed in seeds:
            if wanted is None or node in wanted:
                self.seed(node, seed)
        if level is None:
            self.recorded = grad_enabled()
            record_ops(self.create_graph)
        else:  # a walk switches off its own tape only
            self.recorded = level.grad_enabled
            level.grad_enabled = self.create_graph

    def passing(self, records: list[Record]) -> Iterable[Record]:
        """The records; between two, listeners are told of the gradients that are complete."""
        from gtensor.engine.walk.complete import completing

        assert self.complete is not None
        return completing(records, self, self.complete)

    def arrived(self, record: Record, slot: Any) -> Any:
        """A record's slot after its hooks, kept if it is asked for; None if no target is behind."""
        if record.hooks:
            slot = self.hooked(record, slot)
        if record in self.kept:
            self.held[record] = slot = self.share(slot)
        if self.wanted is not None and self.wanted.isdisjoint(record.parents):
            return None
        return slot

    def call(self, record: Record, rule: Any, g: Any) -> None:
        """Run a record's rule, and tell listeners."""
        scope.module, scope.instruction = record.module, (record.code, record.lasti)
        if not bus.ops:
            rule(self.ns, self, g)
        elif self.direct:
            heard(record.op, "backward", rule, (self.ns, self, g))
        else:
            with record.device.running(record.stream):
                heard(record.op, "backward", rule, (self.ns, self, g))

    def results(self) -> dict[Node, Tensor | None]:
        """The gradients that are asked for."""
        self.leave()
        found = {}
        held, take = self.held, self.slots.pop
        for node in self.kept:
            found[node] = self.result(node, held[node] if node in held else take(node, None))
        self.late = self.complete is not None or any(map(_hooks, self.kept))
        return found

    def undo(self) -> None:
        """The end of the walk, after an error too: a kept traceback would keep arrays alive.

        A second time it does nothing; it ends what an interrupt left of the first.
        """
        if self.g is not None:
            self.leave()
        self.slots.clear()
        self.remade.clear()
        self.held.clear()
        if self.recorded is not None:
            if self.level is None:
                record_ops(self.recorded)
            else:
                self.level.grad_enabled = self.recorded
        for record in self.claimed:
            if record.state == WALKED:
                record.state = FREE
        self.claimed, self.recorded = (), None

    def finish(self, results: dict[Node, Tensor | None]) -> None:
        """Replace the gradients of leaves with hooks; listeners are told of the last."""
        for node, grad in results.items():
            if node.hooks and grad is not None and node.op is None and (
                    self.collecting is None or node.collector is None):
                with nullcontext() if self.level else grad_mode(self.create_graph):
                    # a hook may keep its gradient or return a shared tensor; `.grad` needs its own
                    results[node] = recorded.clone(call_hooks(node, grad))
        if self.complete is not None and bus.leaves:
            from gtensor.engine.walk.complete import tell_rest

            tell_rest(results, self.complete)

    # -- what rules ask ---------------------------------------------------------------------------

    @property
    def params(self) -> Params:
        """The parameters with which the op was applied."""
        return self.record.params

    def _refuse_unneeded(self, i: int) -> NoReturn:
        raise GradientError(f"the backward rule of {self.record.where()} asked for input {i}, "
                            "which wants no gradient; ask step.needs(i) first")

    def needs(self, i: int) -> bool:
        """Whether input i needs a gradient."""
        return self.parents[i] is not None

    def shape(self, i: int) -> tuple[int, ...]:
        """Shape of input i, which must need a gradient."""
        node = self.parents[i]
        if node is None:
            self._refuse_unneeded(i)
        return node.shape

    def _made(self, record: Record, saved: WithRecipes) -> Saved:
        """What a record saved, recomputed on the stream of its op."""
        with record.device.running(record.stream):
            return saved.made(self.remade)

    def _prune(self) -> None:
        """Drop the inputs that lead to no target."""
        wanted: Any = self.wanted
        self.parents = tuple([p if p in wanted else None for p in self.parents])
        self.mask, bit = 0, 1
        for p in self.parents:
            if p is not None:
                self.mask |= bit
            bit += bit

    def _fit(self, node: Node, a: V) -> V:
        """`a` summed to the node's shape and cast to its dtype (undoes broadcasting, promotion)."""
        if a.shape != node.shape:
            try:
                fits = np.broadcast_shapes(a.shape, node.shape) == a.shape
            except ValueError:
                fits = False
            if not fits:
                raise GradientError(
                    f"the backward rule of {self.record.where()} gave a gradient of shape "
                    f"{a.shape} for an input of shape {node.shape}")
            a = sum_to(self.ns, a, node.shape)
        return a if a.dtype == node.dtype else self._cast(node, a)

    def _cast(self, node: Node, a: V) -> V:
        """`a` in the node's dtype: of a complex gradient of real values, the real part."""
        if node.dtype.kind == "c" and not self.record.op.complex:
            refuse_complex(self.record.op.name)
        if a.dtype.kind == "c" and node.dtype.kind != "c":
            a = self.ns.real(a)
        return a if a.dtype == node.dtype else self.ns.astype(a, dtype=node.dtype)

    def _tell(self, node: Node, array: Array) -> None:
        record = getattr(self, "record", None)  # none yet when the walk's own seed arrives
        tell(bus.gradients, GradientEvent(record, node, array))


class RawStep(Step["Array"]):
    """Raw arrays, with counted holders; buffers are written in place."""

    namespaces: Any = raw  # of rules, by type of device
    arrays: Any = raw  # of what the slots have
    stored = GIVEN  # the storage of results

    def add_in_place(self, leaves: Iterable[Node], records: Iterable[Record]) -> None:
        """Add to the `.grad` of leaves in place, where no other code has a handle of it.

        Not where a hook is to see this walk's gradient alone, or looks for `.grad` meanwhile; nor
        where the device has graphs, whose replays write or read it.
        """
        self.adopted, self.stored = {}, UNREAD
        if any(map(_hooks, records)):
            return
        recorder = scope.recorder if bus.listeners else None
        for leaf in leaves:
            grad = leaf.grad
            if grad is not None and grad._storage is UNREAD and not leaf.hooks and (
                    grad._array.shape == leaf.shape and not leaf.device.graphs) and (
                    recorder is None or recorder.has_stored(leaf)):
                self.slots[leaf] = PRESENT

    def seed(self, node: Node, grad: Tensor) -> None:
        """Put the caller's gradient into a root's slot; it is never written."""
        self.direct = node.device.type == "cpu"
        if node in self.slots or self.told:
            self._put(node, grad._array, BORROWED)
        else:
            self.slots[node] = grad._array, BORROWED

    def share(self, slot: Slot) -> Slot:
        """The slot with one more hold on it."""
        array, hold = slot
        hold = hold or Storage()
        hold.holds += 1
        return array, hold

    def hooked(self, node: Node, slot: Slot) -> Slot:
        """The slot after the node's hooks, which may keep the gradient, so it is never written."""
        array, _ = slot
        grad = call_hooks(node, wrap(array, node.device))
        return grad._array, BORROWED

    def enter(self, record: Record, slot: Slot | None) -> Array | None:
        """Make a record with its gradient current; take what it saved unless the graph is kept."""
        if slot is None:
            return None
        if record.hooks or record in self.kept or self.wanted is not None:
            slot = self.arrived(record, slot)
            if slot is None:
                return None
        if self.hold is not None and not self.moved:
            self.hold.holds -= 1  # on the gradient of the record before
        self.record = record
        if record.device is not self.device:
            self.device = record.device
            self.direct = record.device.type == "cpu"
            self.ns = self.namespaces[record.device.type]
        self.parents = record.parents
        self.mask = record.mask
        if self.prunes:
            self._prune()
        saved: Any = record.saved
        self.saved = saved if type(saved) is tuple else self._made(record, saved)
        if not self.keep:
            record.saved = ()
            record.state, record.parents, record.guards = CONSUMED, (), ()
        self.g, self.hold = slot
        self.moved = False
        return self.g

    def leave(self) -> None:
        """Release the hold on g unless the last rule moved it."""
        if self.hold is not None and not self.moved:
            self.hold.holds -= 1
        self.g = self.hold = None
        self.saved = ()

    def result(self, node: Node, slot: Slot | None) -> Tensor | None:
        """A slot's content as a tensor that owns its memory."""
        if slot is None or slot is PRESENT:
            return None
        device = node.device
        return wrap(self._own(device, slot), device, self.stored)

    def rebuilt(self, i: int, a: Array) -> Array:
        """`a`, recomputed from saved values, in place of input i."""
        return a

    def give(self, i: int, a: Array) -> None:
        """Move the rule's hold on a's storage to input i: a is new, or g, or a view of g."""
        node = self.parents[i]
        if node is None:
            self._refuse_unneeded(i)
        record = self.record
        if a is self.g and node.shape is record.shape and node.dtype is record.dtype:
            pass  # g has the record's shape and dtype
        elif a.shape != node.shape or a.dtype is not node.dtype and a.dtype != node.dtype:
            a = self._fit(node, a)
        if a is self.g:
            if self.moved:
                self._refuse_moved()
            self.moved = True
            hold = self.hold
        elif a.base is None:
            hold = None  # a new array
            if not node.shape:
                a = node.device.xp.asarray(a)  # NumPy returns scalars for 0-d
        elif broadcast_view(a):
            hold = BORROWED
            if self._mine(a):
                self._hold_more()  # never released, so g is not written again
        else:
            hold = self._move() if self._mine(a) else None
        if node in self.slots or self.told:
            self._put(node, a, hold)
        else:
            self.slots[node] = a, hold

    def lend(self, i: int, a: Array) -> None:
        """Give input i another hold on g, or an array that is kept elsewhere."""
        node = self.parents[i]
        if node is None:
            self._refuse_unneeded(i)
        fitted = a
        if a.shape != node.shape or a.dtype is not node.dtype and a.dtype != node.dtype:
            fitted = self._fit(node, a)
            if not node.shape:
                fitted = node.device.xp.asarray(fitted)  # NumPy returns scalars for 0-d
        hold: Storage | None
        if fitted is self.g:
            hold = self._hold_more()  # a hold on a broadcast view is never released
        elif self._mine(fitted):
            hold = self._hold_more()
            hold = BORROWED if broadcast_view(fitted) else hold
        else:
            hold = BORROWED if fitted is a else None
        if node in self.slots or self.told:
            self._put(node, fitted, hold)
        else:
            self.slots[node] = fitted, hold

    def into(
        self, i: int, wide: bool = False, dtype: np.dtype | None = None
    ) -> tuple[Array | None, float]:
        """(buffer, 1.0) to accumulate into. When input i has no gradient yet, or a leaf only a
        small `.grad`, (None, 0.0), or (buffer, 0.0), which is to be overwritten: its collector's.

        The parameter of a cast has another dtype than the op. Its buffer is given only to a rule
        that asks for a `wide` one, and then a new one, too."""
        node = self.parents[i]
        if node is None:
            self._refuse_unneeded(i)
        own = self.record.dtype if dtype is None else dtype
        cast = node.dtype is not own and node.dtype != own
        if cast and not (wide and node.dtype == _FLOAT32):
            return None, 0.0
        slot = self.slots.get(node)
        if slot is PRESENT:
            if self.direct and not cast and prod(node.shape) < settings.tile_elements:
                return None, 0.0  # a sum is quicker than a product that adds
            slot = self._adopt(node)
        if slot is None:
            place = None if self.collecting is None else self._placed(node)
            if cast and place is None:
                place = self._empty(node, node.shape, node.dtype)
                self.slots[node] = place, None
            return place, 0.0
        array = self._own(node.device, slot)
        if not self.direct:
            node.device.order((), (array,))
        self.slots[node] = array, None
        return array, 1.0

    def _adopt(self, node: Node) -> Slot | None:
        """A leaf's `.grad`, in its slot from now on; None if other code has a handle of it by now.

        While the walk runs the leaf has no `.grad`; that of another walk is added at the end.
        """
        del self.slots[node]
        with commits:
            grad = node.grad
            if grad is None or grad._storage is not UNREAD:
                return None
            before = node.device.copy(grad._array, label="gradient") if settings.debug else None
            self.adopted[node] = grad, before  # type: ignore[index]
            node.grad = None
        slot = self.slots[node] = grad._array, None
        return slot

    def _empty(self, node: Node, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """New memory for a gradient."""
        return run_noted("gradient", node.device, node.device.empty, shape, dtype, "gradient")

    def _placed(self, node: Node) -> Array | None:
        """The memory of a node's collector, in its slot from now on; None without one."""
        assert self.collecting is not None
        place = self.collecting.place(node)
        if place is not None:
            if not self.direct:
                node.device.order((), (place,))
            self.slots[node] = place, PLACED
        return place

    def settled(self, node: Node) -> Array:
        """A leaf's complete gradient, after its hooks, in its collector's memory if it has some."""
        slot = self.slots[node]
        if node.hooks:
            slot = self.hooked(node, slot)
        array, hold = slot
        if hold is PLACED:
            return array
        place = self._placed(node)
        if place is None:
            place = self._own(node.device, slot)
            self.slots[node] = place, None
        else:
            run_aside("gradient", node.device, node.device.xp.copyto, place, array)
            _release(hold)
        return place

    def reuse(self, g: Array) -> Array | None:
        """g, if this walk is its last holder and may overwrite it; else None."""
        hold = self.hold
        if g is self.g and not self.moved and (hold is None or hold.holds == 1):
            if not self.direct:  # the stream was ordered for a read of g, not for a write
                self.record.device.order((), (g,))
            return g
        return None

    def take(self, a: Array) -> Array | None:
        """A saved array, once, if this walk consumes its record and is its last reader; else None.
        """
        saved, record = self.saved, self.record
        if not isinstance(saved, Takeable) or record.state != CONSUMED or not saved.free(a) or (
                record.device.graphs):  # a capture since then may read it in its replays
            return None
        saved.spare = None
        if not self.direct:  # the stream was ordered for a read of it, not for a write
            record.device.order((), (a,))
        return a

    def _move(self) -> Storage | None:
        """The rule's hold on g, which can be moved once."""
        if self.moved:
            self._refuse_moved()
        self.moved = True
        return self.hold

    def _hold_more(self) -> Storage:
        """Another hold on g."""
        if self.moved:
            self._refuse_moved()
        if self.hold is None:
            self.hold = Storage()
        self.hold.holds += 1
        return self.hold

    def _refuse_moved(self) -> NoReturn:
        raise GradientError(f"the backward rule of {self.record.where()} used its gradient after "
                            "giving it away; lend it to all inputs but the last")

    def _mine(self, a: Array) -> bool:
        """Whether `a` is g or a view of g's storage."""
        return a is self.g or owner(a) is owner(self.g)

    def _own(self, device: Device, slot: Slot) -> Array:
        """The slot's content in a contiguous buffer without another holder or unused bytes."""
        array, hold = slot
        if hold is PLACED or ((hold is None or hold.holds == 1) and array.flags.c_contiguous
                              and array.nbytes == owner(array).nbytes):
            return array
        copy = (device.copy(array, label="gradient") if self.arrays is raw
                else self.arrays[device.type].clone(array))
        if hold is not None:
            hold.holds -= 1
        return copy

    def _put(self, node: Node, a: Array, hold: Storage | None) -> None:
        """Store the first gradient; add a later one into whichever has no other holder."""
        if self.told:
            self._tell(node, a)
        slots = self.slots
        slot = slots.get(node)
        if slot is PRESENT:
            slot = self._adopt(node)
        if slot is None:
            slots[node] = a, hold
            return
        present, present_hold = slot
        if a is present and hold is None:
            return  # it was accumulated in place by `into`; for x + x the hold is not None
        add = (node.device.xp if self.arrays is raw else self.arrays[node.device.type]).add
        if not self.direct:  # they may be from different streams, and either may be written
            node.device.order((), (present, a))
        if _sole(present_hold):
            add(present, a, out=present)
            _release(hold)
        elif _sole(hold):
            slots[node] = add(a, present, out=a), hold
            _release(present_hold)
        else:
            total = self._empty(node, a.shape, a.dtype)
            slots[node] = add(present, a, out=total), None
            _release(hold)
            _release(present_hold)


class RecordedStep(Step[Tensor]):
    """Tensors and recorded ops: the backward pass is recorded; nothing is drained or reused."""

    ns = recorded

    def seed(self, node: Node, grad: Tensor) -> None:
        """Put the gradient of a root into its slot, with its history."""
        self._put(node, grad)

    def share(self, slot: Tensor) -> Tensor:
        """The slot itself: tensors need no holds."""
        return slot

    def hooked(self, node: Node, slot: Tensor) -> Tensor:
        """The gradient after the node's hooks."""
        return call_hooks(node, slot)

    def enter(self, record: Record, slot: Tensor | None) -> Tensor | None:
        """Rebuild handles: saved input i with its parent's node, a saved output with the record."""
        if slot is not None:
            slot = self.arrived(record, slot)
        if slot is None:
            return None
        self.record = record
        self.parents, self.mask = record.parents, record.mask
        if self.prunes:
            self._prune()
        plan = record.op.plan(record.mask, len(record.parents))
        nodes = (*record.parents, record)
        storages = {place: count for count, _, place in record.guards
                    if isinstance(count, Storage)}
        for storage in storages.values():
            if storage.handles is None:  # handles made here would be known, the tensor itself not
                storage.made = False
        saved: list[Any] = []
        values: Any = record.saved
        values = values if type(values) is tuple else self._made(record, values)
        for place, value in enumerate(values):
            if isinstance(value, record.device.array_type) or (
                    record.level is not None and record.level.owns(value)):
                handle = (copy(value) if isinstance(value, Tensor)
                          else wrap(value, record.device, storages.get(place, GIVEN)))
                position = plan[place]
                if position is not None and position < len(nodes):
                    handle._node = nodes[position]
                saved.append(handle)
            else:
                saved.append(value)
        self.saved = tuple(saved)
        if not self.keep:
            record.state, record.parents, record.guards = CONSUMED, (), ()
        self.g = slot
        return slot

    def leave(self) -> None:
        """Drop the handles."""
        self.g, self.saved = None, ()

    def result(self, node: Node, slot: Tensor | None) -> Tensor | None:
        """The gradient, with its history."""
        return slot

    def rebuilt(self, i: int, a: Tensor) -> Tensor:
        """`a`, recomputed from saved values, with the history of input i."""
        a._node = self.record.parents[i]
        return a

    def give(self, i: int, a: Tensor) -> None:
        """Add `a` to the gradient of input i."""
        node = self.parents[i]
        if node is None:
            self._refuse_unneeded(i)
        self._put(node, self._fit(node, a))

    lend = give

    def into(
        self, i: int, wide: bool = False, dtype: np.dtype | None = None
    ) -> tuple[None, float]:
        """(None, 0.0): a recorded gradient is never accumulated in place."""
        return None, 0.0

    def reuse(self, g: Tensor) -> None:
        """None: a recorded gradient is never overwritten."""
        return None

    def take(self, a: Tensor) -> None:
        """None: what a record saved is part of the recorded graph."""
        return None

    def _put(self, node: Node, a: Tensor) -> None:
        if self.told:
            self._tell(node, a._array)
        present = self.slots.get(node)
        self.slots[node] = a if present is None else recorded.add(present, a)


def call_hooks(node: Node, grad: Tensor) -> Tensor:
    """The gradient after every hook of the node, each of which may replace it."""
    for hook in list((node.hooks or {}).values()):
        changed = hook(grad)
        if changed is not None:
            if not isinstance(changed, Tensor):
                raise TypeError(f"a gradient hook returned {type(changed).__name__}; wanted a "
                                "Tensor or None")
            check_like("the gradient that a hook returned", changed, node)
            grad = changed
    return grad


def _sole(hold: Storage | None) -> bool:
    return hold is None or hold.holds == 1


def _release(hold: Storage | None) -> None:
    if hold is not None:
        hold.holds -= 1


def sum_to(ns: Namespace, a: V, shape: tuple[int, ...]) -> V:
    """`a` summed over the axes along which `shape` was broadcast to a's shape."""
    lead: int = len(a.shape) - len(shape)
    axes = (*range(-len(a.shape), -len(shape)),
            *(i - len(shape) for i, n in enumerate(shape) if n == 1 and a.shape[lead + i] != 1))
    total = ns.sum(a, axis=axes, keepdims=False) if axes else a
    return total if total.shape == shape else ns.reshape(total, shape=shape)
