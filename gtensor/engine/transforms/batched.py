"""Vectorization: a function written for one example, run once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gtensor.engine.bind import Extras, bind
from gtensor.engine.errors import LevelError
from gtensor.engine.levels import Level, Traced, running, traced
from gtensor.engine.namespaces import recorded
from gtensor.engine.slots import Slot, Step, call_hooks
from gtensor.engine.stacked import Stack, StackedStep
from gtensor.engine.storage import BORROWED
from gtensor.engine.tensor import Tensor, wrap

if TYPE_CHECKING:
    from gtensor.backend.typing import Params
    from gtensor.engine.op import Op
    from gtensor.engine.tape import Node, Record

Axes = int | None | Sequence[int | None]


class Batched(Traced):
    """The values of all examples, with the batch axis first; or one value that all share."""

    __slots__ = ("mapped", "values")

    values: Tensor
    _level: _Vectorized
    mapped: bool  # whether the values have a batch axis

    def _parts(self) -> tuple[Tensor | None, ...]:
        return (self.values,)

    def _copied(self) -> Batched:
        return _batched(self._level, self.values, self.mapped)

    def detach(self) -> Batched:
        return _batched(self._level, self.values.detach(), self.mapped)


def _batched(level: _Vectorized, values: Tensor, mapped: bool) -> Batched:
    shape = values.shape[1:] if mapped else values.shape
    handle: Batched = traced(Batched, level, shape, values.dtype, values._device)
    handle.values, handle.mapped = values, mapped
    if values._node is not None:
        level.recorded_below = True
    return handle


class _Vectorized(Level):
    """The level of one call of a `vmap` function."""

    name = "vmap"
    recorded_below = False  # whether a tape below is in use

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def step(self, wanted: set[Node] | None) -> Step[Any]:
        """Raw stacks where nothing is recorded below, else recorded ops."""
        if self.depth > 1 or self.recorded_below:
            return super().step(wanted)
        return _ExamplesStep(self, wanted)

    def lift(self, x: Tensor) -> Batched:
        return _batched(self, x, False)

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
        if op.batch is None:
            raise LevelError(f"{op.name} has no batch rule, which vmap() needs; call it outside "
                             "of vmap(), or loop over the examples")
        if not op.extra_names:
            return _batched(self, op.batch(recorded, op.call, values, mapped, params), True), ()
        out, *found = op.batch(recorded, partial(_with_extras, op), values, mapped, params)
        return _batched(self, out, True), tuple(_batched(self, e, True) for e in found)


def _with_extras(op: Op, *inputs: Any, **params: Any) -> tuple[Tensor, ...]:
    store = Extras()
    return bind(op, inputs, params, store), *store.extras


class _ExamplesStep(StackedStep):
    """A walk of a level's tape for all examples: the arrays behind its handles, as stacks."""

    def __init__(self, level: _Vectorized, wanted: set[Node] | None) -> None:
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

    def enter(self, record: Record, slot: Slot, keep: bool) -> Any:
        """Make a record with its gradients current, and the arrays behind what it saved."""
        g = super().enter(record, slot, keep)
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
        return _batched(self.level, wrap(array, node.device), True)


def vmap(
    function: Callable[..., Any], in_axes: Axes = 0, out_axes: int = 0
) -> Callable[..., Any]:
    """A function that runs `function`, written for one example, once for a batch of them.

    It nests with itself, `jvp` and `grad`: `vmap(grad(loss), (None, 0))` gives gradients per
    example. Values within the function have the shape of one example but no memory: `.numpy()`,
    `.item()`, branches on values and in-place writes raise LevelError.

    Args:
        function: takes tensors and returns a tensor or a tuple of tensors.
        in_axes: of each argument the axis of the examples, None for one that all share; one
            number for all arguments.
        out_axes: where the axis of the examples is in the results.

    Raises ValueError for axes that do not fit the arguments, TypeError for results that are not
    tensors, LevelError for an op without a batch rule.

    Source: `torch.func.vmap` and `jax.vmap`.
    """

    if not isinstance(out_axes, int):
        raise TypeError(f"vmap() was given out_axes {out_axes!r}; wanted one integer")

    def vectorized(*args: Any) -> Any:
        axes = _axis_of_each(in_axes, args)
        size = _batch_size(args, axes)
        with running(_Vectorized(size)) as level:
            given = [x if axis is None else _batched(level, _first(x, axis), True)
                     for x, axis in zip(args, axes, strict=True)]
            found = function(*given)
            if isinstance(found, (tuple, list)):
                results = [_out(level, y, size, out_axes) for y in found]
                named = hasattr(found, "_fields")
                return type(found)(*results) if named else type(found)(results)
            return _out(level, found, size, out_axes)

    return vectorized


def _axis_of_each(in_axes: Axes, args: Sequence[object]) -> Sequence[int | None]:
    axes = [in_axes] * len(args) if in_axes is None or isinstance(in_axes, int) else list(in_axes)
    if len(axes) != len(args):
        raise ValueError(f"vmap() was given in_axes for {len(axes)} arguments and called with "
                         f"{len(args)}")
    return axes


def _batch_size(args: Sequence[Any], axes: Sequence[int | None]) -> int:
    """The number of examples, which all mapped arguments must have."""
    sizes = {}
    for i, (x, axis) in enumerate(zip(args, axes, strict=True)):
        if axis is None:
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"vmap() was given argument {i} of type {type(x).__name__} with axis "
                            f"{axis}; wanted a Tensor, or None as its axis")
        x._current_node("vmap()")  # refuses a handle that left another transform
        if not isinstance(axis, int) or isinstance(axis, bool):
            raise TypeError(f"vmap() was given axis {axis!r} for argument {i}; wanted an integer "
                            "or None")
        if not -x.ndim <= axis < x.ndim:
            raise ValueError(f"vmap() was given axis {axis} for argument {i} of shape {x.shape}; "
                             "wanted one that it has")
        sizes[i] = x.shape[axis]
    if len(set(sizes.values())) != 1:
        given = ", ".join(f"{n} in argument {i}" for i, n in sizes.items()) or "no mapped argument"
        raise ValueError(f"vmap() was given {given}; wanted the same number of examples in each, "
                         "and one at least with an axis")
    return next(iter(sizes.values()))


def _first(x: Tensor, axis: int) -> Tensor:
    """x with that axis first."""
    axis %= x.ndim
    order = (axis, *(i for i in range(x.ndim) if i != axis))
    return x if axis == 0 else recorded.permute_dims(x, axes=_from_end(order))


def _out(level: _Vectorized, y: Any, size: int, axis: int) -> Tensor:
    """A result with the axis of the examples at `axis`."""
    if not isinstance(y, Tensor):
        raise TypeError(f"the function given to vmap() returned {type(y).__name__}; wanted a "
                        "Tensor, or a tuple of Tensors")
    y._current_node("vmap()")
    values = y.values if isinstance(y, Batched) and level.owns(y) else y
    if not (isinstance(y, Batched) and level.owns(y) and y.mapped):
        values = recorded.broadcast_to(values, shape=(size, *values.shape))
    if not -values.ndim <= axis < values.ndim:
        raise ValueError(f"vmap() was given out_axes {axis} for a result of shape "
                         f"{values.shape[1:]} per example; wanted one of its axes")
    axis %= values.ndim
    order = (*range(1, axis + 1), 0, *range(axis + 1, values.ndim))
    return values if axis == 0 else recorded.permute_dims(values, axes=_from_end(order))


def _from_end(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i - len(order) for i in order)
