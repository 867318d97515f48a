"""The level of `vmap`: a function written for one example, run once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.context import STATE
from gtensor.engine.handle.errors import LevelError
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.storage import BORROWED
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.run.bind import Extras, bind
from gtensor.engine.tape.levels import Level, Traced, traced
from gtensor.engine.walk.slots import Slot, call_hooks
from gtensor.engine.walk.stacked import Stack, StackedStep

if TYPE_CHECKING:
    from gtensor.backend.typing import Params, Path
    from gtensor.engine.handle.node import Node
    from gtensor.engine.tape.op import Op
    from gtensor.engine.tape.record import Record


class Batched(Traced):
    """The values of all examples, with the batch axis first; or one value that all share."""

    __slots__ = ("mapped", "values")

    values: Tensor
    _level: Vectorized
    mapped: bool  # whether the values have a batch axis

    def _parts(self) -> tuple[Tensor | None, ...]:
        return (self.values,)

    def _copied(self) -> Batched:
        return _batched(self._level, self.values, self.mapped)

    def _sharing(self) -> Batched:
        return _batched(self._level, copy(self.values), self.mapped)

    def detach(self) -> Batched:
        return _batched(self._level, self.values.detach(), self.mapped)


def _batched(level: Vectorized, values: Tensor, mapped: bool) -> Batched:
    array = values._array
    shape = array.shape[1:] if mapped else array.shape
    handle: Batched = traced(Batched, level, shape, array.dtype, values._device)
    handle.values, handle.mapped = values, mapped
    if values._node is not None:
        level.recorded_below = True
    return handle


class Vectorized(Level):
    """The level of one call of a `vmap` function."""

    name = "vmap"
    recorded_below = False  # whether a tape below is in use

    def __init__(self, size: int, randomness: str, fallback: Path | None = None) -> None:
        super().__init__()
        self.size = size  # the number of examples
        self.randomness = randomness  # "error", "different" or "same": see `drawn`
        self.fallback = fallback  # the rule of ops without one

    def step(self, wanted: set[Node] | None) -> StackedStep | None:
        """Raw stacks where nothing is recorded below, else recorded ops."""
        if self.depth > 1 or self.recorded_below or self.fallback is not None:
            return None
        return _ExamplesStep(self, wanted)

    def lift(self, x: Tensor) -> Batched:
        return _batched(self, x, False)

    def handle(self, values: Tensor, mapped: bool) -> Batched:
        """Values with the axis of the examples first, or of all examples, as a handle."""
        return _batched(self, values, mapped)

    def start(self, values: Tensor) -> Batched:
        """An argument of the function: the values of all examples, with their axis first."""
        return _batched(self, copy(values), True)  # the caller has the memory, too

    def end(self, result: Tensor) -> tuple[Tensor, bool]:
        """The values of a result, and whether they have an axis of the examples, then first."""
        result._current_node("vmap()")  # refuses a handle that left another transform
        if isinstance(result, Batched) and self.owns(result):
            return result.values, result.mapped
        return result, False

    def run(
        self, op: Op, inputs: tuple[Any, ...], params: Params, keep: bool
    ) -> tuple[Traced, tuple[Traced, ...]]:
        values: list[Any] = []
        mapped: list[bool] = []
        for x in inputs:
            own = isinstance(x, Batched) and x._level is self
            values.append(x.values if own else x)
            mapped.append(own and x.mapped)
        if True not in mapped:
            store = Extras() if keep and op.extra_names else None
            out = bind(op, tuple(values), params, store) if store else op.call(*values, **params)
            extras = tuple(_batched(self, e, False) for e in store.extras) if store else ()
            return _batched(self, out, False), extras
        if op.batch is None and op.composed is not None:
            composed: Any = op.composed(*inputs, **params)
            return composed, ()
        rule = op.batch or self.fallback
        if rule is None:
            raise LevelError(f"{op.name} has no batch rule, which vmap() needs; give it one, or "
                             "run it for each example with vmap(..., fallback='loop')")
        if not op.extra_names:
            made: Any = rule(recorded, op.call, values, mapped, params)
            if type(made) is tuple:  # the gradients of several inputs
                made = tuple([None if y is None else _batched(self, y, True) for y in made])
                return made, ()
            return _batched(self, made, True), ()
        out, *found = rule(recorded, partial(_with_extras, op), values, mapped, params)
        return _batched(self, out, True), tuple(_batched(self, e, True) for e in found)


def _with_extras(op: Op, *inputs: Any, **params: Any) -> tuple[Tensor, ...]:
    store = Extras()
    return bind(op, inputs, params, store), *store.extras


class _ExamplesStep(StackedStep):
    """A walk of a level's tape for all examples: the arrays behind its handles, as stacks."""

    def __init__(self, level: Vectorized, wanted: set[Node] | None) -> None:
        super().__init__(wanted)
        self.level = level
        self.count = level.size

    def seed(self, node: Node, grad: Tensor) -> None:
        """Put the gradient of a root into its slot, for all examples."""
        self.direct = node.device.type == "cpu"
        self._put(node, self._array(node, grad), BORROWED)

    def hooked(self, node: Node, slot: Slot) -> Slot:
        """The slot after the node's hooks, which see a handle."""
        grad = call_hooks(node, self._handle(slot[0], node))
        return self._array(node, grad), BORROWED

    def enter(self, record: Record, slot: Slot | None) -> Any:
        """Make a record with its gradients current, and the arrays behind what it saved."""
        g = super().enter(record, slot)
        if g is None:
            return None
        self.saved = tuple([self._behind(value) for value in self.saved])
        return g

    def result(self, node: Node, slot: Slot | None) -> Tensor | None:
        """A slot's content as a handle."""
        return None if slot is None else self._handle(self._own(node.device, slot), node)

    def _behind(self, value: Any) -> Any:
        if isinstance(value, Batched):
            array = value.values._array
            return Stack(array) if value.mapped else array
        return value._array if isinstance(value, Tensor) else value

    def _array(self, node: Node, grad: Tensor) -> Any:
        """The gradients of all examples, which may be one broadcast."""
        found = self._behind(grad)
        if isinstance(found, Stack):
            return found.array
        return node.device.xp.broadcast_to(found, (self.count, *node.shape))

    def _handle(self, array: Any, node: Node) -> Batched:
        level: Any = self.level
        return _batched(level, wrap(array, node.device), True)


def drawn(name: str, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
    """`draw(shape)`, random values, as the running `vmap`s with their `randomness` want them.

    "different" gives every example values of its own, "same" gives all of them one draw. Raises
    LevelError, which names the op, within a `vmap` whose randomness is "error".
    """
    levels: Any = [level for level in STATE.levels if level.randomness]
    if any(level.randomness == "error" for level in levels):
        raise LevelError(f"{name} was to draw random values within vmap(); wanted vmap(..., "
                         "randomness='different') for values per example, or 'same' for one draw")
    apart = [level for level in levels if level.randomness == "different"]
    values = draw((*(level.size for level in apart), *shape))
    for level in apart:
        values = level.start(values)
    return values
