"""Vectorization: a function written for one example, run once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gtensor.engine.bind import Extras, bind
from gtensor.engine.errors import LevelError
from gtensor.engine.levels import Level, Traced, running, traced
from gtensor.engine.namespaces import recorded
from gtensor.engine.tensor import Tensor

if TYPE_CHECKING:
    from gtensor.backend.typing import Params
    from gtensor.engine.op import Op

Axes = int | None | Sequence[int | None]


class Batched(Traced):
    """The values of all examples, with the batch axis first; or one value that all share."""

    __slots__ = ("mapped", "values")

    values: Tensor
    mapped: bool  # whether the values have a batch axis

    def _parts(self) -> tuple[Tensor | None, ...]:
        return (self.values,)

    def _copied(self) -> Batched:
        return _batched(self._level, self.values, self.mapped)

    def detach(self) -> Batched:
        return _batched(self._level, self.values.detach(), self.mapped)


def _batched(level: Level, values: Tensor, mapped: bool) -> Batched:
    shape = values.shape[1:] if mapped else values.shape
    handle: Batched = traced(Batched, level, shape, values.dtype, values._device)
    handle.values, handle.mapped = values, mapped
    return handle


class _Vectorized(Level):
    """The level of one call of a `vmap` function."""

    name = "vmap"

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
            made: Any = op.batch(recorded, op.call, values, mapped, params)
            if type(made) is tuple:  # the gradients of several inputs
                made = tuple([None if y is None else _batched(self, y, True) for y in made])
                return made, ()
            return _batched(self, made, True), ()
        out, *found = op.batch(recorded, partial(_with_extras, op), values, mapped, params)
        return _batched(self, out, True), tuple(_batched(self, e, True) for e in found)


def _with_extras(op: Op, *inputs: Any, **params: Any) -> tuple[Tensor, ...]:
    store = Extras()
    return bind(op, inputs, params, store), *store.extras


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
        with running(_Vectorized()) as level:
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


def _out(level: Level, y: Any, size: int, axis: int) -> Tensor:
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
