"""Functions with derivatives of their own that are no ops: a call of one is one record.

`gt.custom_vjp`, `gt.custom_jvp` and `gt.autograd.Function` each make a `Rule` of a call, on flat
lists of tensors, and `apply` runs it:

- on the newest tape among the inputs it runs `forward` on handles without history there, and
  records the call; the walk calls `backward`, on tensors, whatever the walk computes with;
- within `vmap` without a tape of its own the rule of all examples is applied one level down;
- within `jvp` so is `tangent`, which by default is the pullback of the pullback.

Saved tensors follow the tape's rules: the record has their arrays, with guards of their versions.
Where backward is itself recorded, a saved input has the input's history, a saved output that of the
record. What `forward` computed beside these has the history of a second run of it, or none: then a
derivative through it is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

import numpy as np

from gtensor.creation.generators import refusing
from gtensor.engine.handle.context import (
    STATE,
    current_casts,
    differentiating,
    grad_enabled,
    record_ops,
)
from gtensor.engine.handle.errors import GradientError, LevelError
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.saved import Guard, Guards, replayed
from gtensor.engine.handle.storage import FRESH, FRESH_ELSEWHERE, Storage
from gtensor.engine.handle.tensor import Tensor, wrap, zeros
from gtensor.engine.run.bind import NO_PARAMS, saves
from gtensor.engine.tape.levels import (
    Level,
    Traced,
    guard,
    innermost,
    is_recording,
    newest,
    recording,
    running,
)
from gtensor.engine.tape.recipes import WithRecipes
from gtensor.engine.tape.record import new_record
from gtensor.engine.transforms.batched import Vectorized
from gtensor.engine.transforms.dual import Directional
from gtensor.engine.walk.slots import RawStep, RecordedStep
from gtensor.engine.walk.stacked import Stack, StackedStep
from gtensor.func.gradients import vjp, without_history

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.engine.handle.node import Node
    from gtensor.engine.tape.record import Record

Values = Sequence[Any]
Nodes: TypeAlias = "Sequence[Node | None]"  # of inputs
DIFFERENTIABLE = "fVc"  # kinds of dtypes whose values may have a gradient
_new = object.__new__
_CAST = {np.dtype("float32"), np.dtype("float16"), np.dtype("bfloat16")}  # by `gt.autocast`


# What a run of `Rule.forward` gives: the outputs (tensors; anything else is handed on), what it
# keeps for `backward` (likewise), a context for it, the numbers of outputs that have no gradient.
Ran: TypeAlias = tuple[list[Any], Values, Any, Collection[int]]


class Rule:
    """A function of tensors with its own derivative, for one call of it.

    `once`: its gradients have no derivative. `closes`: the function may read tensors with a
    history that are not its inputs, as constants; without it that is refused. `repeats`: `forward`
    may be run again, for the history of what it computed and kept.
    """

    name = ""
    once = closes = repeats = False

    def primal(self, inputs: Values) -> Values:
        """The outputs, where no derivative is asked."""
        raise NotImplementedError

    def forward(self, inputs: Values, nodes: Nodes) -> Ran:
        """The outputs, and what `backward` needs; `nodes`: None for an input without a gradient."""
        raise NotImplementedError

    def backward(
        self, context: Any, kept: Values, grads: Values, nodes: Nodes
    ) -> Values:
        """A gradient for each input that needs one; `grads` has None for an output without one."""
        raise NotImplementedError

    def argument(self, i: int) -> str:
        """What a message calls input i."""
        raise NotImplementedError

    def tangent(self, inputs: Values, tangents: Values) -> tuple[Values, Values]:
        """The outputs and their tangents; None for one of zeros.

        A pullback is linear in its cotangents, so its own pullback takes tangents.
        """
        moving = [i for i, t in enumerate(tangents) if t is not None]
        found: list[Any] = []

        def values_at(*moved: Tensor) -> list[Tensor]:
            given = list(inputs)
            for i, x in zip(moving, moved, strict=True):
                given[i] = x
            found[:] = apply(self, given)
            return [y for y in found if differentiable(y)]

        seen = is_recording(innermost()) and any(
            x is not None and x._node is not None for x in (*inputs, *tangents))
        with recording():
            values, pullback = vjp(values_at, *[inputs[i] for i in moving])
            _, push = vjp(lambda *gs: pullback(list(gs)), *[
                zeros(y.device, y.shape, y.dtype) for y in values])
            along = iter(push(tuple([tangents[i] for i in moving])))
        moved = iter(values)
        outputs = [next(moved) if differentiable(y) else y for y in found]
        results = [next(along) if differentiable(y) else None for y in found]
        if not seen:  # no history but of the handles made here
            outputs, results = _bare(outputs), _bare(results)
        return outputs, results


def apply(rule: Rule, inputs: Sequence[Tensor]) -> Values:
    """The outputs of a rule's function, recorded if an input has a history."""
    nodes: list[Node | None] = []
    mask, bit = 0, 1
    for x in inputs:
        if x._version != x._storage.version:
            level = newest(rule.name, inputs)
            if level is not None:
                return _on_level(rule, level, inputs)
            x._check_version(rule.name)
        node = x._node
        nodes.append(node)
        if node is not None:
            mask |= bit
        bit += bit
    if mask and grad_enabled():
        return _recorded(rule, None, inputs, nodes, mask)
    return rule.primal(inputs)


def _on_level(rule: Rule, level: Level, inputs: Sequence[Tensor]) -> Values:
    """The same where the newest input is a handle of a level."""
    if is_recording(level):
        nodes = [x._node if level.owns(x) else None for x in inputs]
        mask = _mask(nodes)
        if mask:
            return _recorded(rule, level, inputs, nodes, mask)
    if isinstance(level, Vectorized):
        return _for_all(rule, level, inputs)
    assert isinstance(level, Directional)
    return _along(rule, level, inputs)


def _bare(values: Values) -> list[Any]:
    """The values without their histories."""
    return [without_history(x) if isinstance(x, Tensor) else x for x in values]


def differentiable(y: object) -> bool:
    """Whether that is a tensor that may have a gradient."""
    return isinstance(y, Tensor) and y._array.dtype.kind in DIFFERENTIABLE


def named(function: Callable[..., Any], number: int, behind: int = 0) -> str:
    """What a message calls an argument of a function; `behind` others come first."""
    with suppress(TypeError, ValueError, IndexError):
        name = [*inspect.signature(function).parameters][number + behind]
        return f"argument {number} ({name!r})"
    return f"argument {number}"


# -- the record ------------------------------------------------------------------------------------


class _Kept:
    """What a record saved beside arrays; the last of its saved values."""

    outputs: Sequence[Device] = ()  # the devices of those in `places`, if they are several
    repeats = 0  # how many inputs are saved last, for another run of `forward`

    def __init__(self, context: Any, count: int, places: Sequence[int]) -> None:
        self.context = context
        self.count = count  # of all outputs
        self.places = places  # those that have a gradient
        self.cast = current_casts() is not None
        # of each saved value the device and the storage; None if it is no tensor, or a recipe
        self.tensors: list[tuple[Device | None, Storage | None]] = []

    def handles(
        self, saved: Values, handle: Callable[..., Any], inputs: bool = False
    ) -> list[Any]:
        """What `forward` kept: `handle(array, device, storage)` of each tensor.

        `inputs`: with the inputs behind it, if they are saved.
        """
        if self.repeats and not inputs:
            saved = saved[:-self.repeats - 1]
        found = []
        for (device, storage), x in zip(self.tensors, saved, strict=False):
            found.append(x if device is None else handle(x, device, storage))
        return found

    def parts(self, g: Any, handle: Callable[..., Any]) -> list[Any]:
        """The gradients of several outputs, `handle(array, device)` of each; None for none."""
        return [None if a is None else handle(a, d) for a, d in zip(g, self.outputs, strict=True)]


class Parts(list[Any]):
    """In the slot of a call with several outputs: the gradient of each, or None."""

    shape, dtype, nbytes, base = (0,), np.dtype("float32"), 0, None


_SEVERAL: Any = Parts()  # in place of the output in the record of such a call


class _Entry:
    """In place of an op's definition in a record; those of one function are equal."""

    view = False
    complex = True
    flops = composed = None
    positions: Sequence[int | None] = (None,)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Entry) and (type(other), other.name) == (type(self), self.name)

    def __hash__(self) -> int:
        return hash(self.name)

    def plan(self, mask: int, count: int) -> Sequence[int | None]:
        """Positions of the saved values: among the inputs, then the output, then others."""
        return self.positions


class _Part(_Entry):
    """One of several outputs of a call, whose record is the parent."""

    def backward(self, ns: Any, step: Any, g: Any) -> None:
        """Put the gradient into the call's slot."""
        call, raw = step.parents[0], isinstance(step, RawStep)
        found = step.slots.get(call)
        parts = found[0] if raw and found is not None else found
        if parts is None:
            parts = Parts([None] * step.params["count"])
            step.slots[call] = (parts, None) if raw else parts
        index = step.params["index"]
        present = parts[index]  # of another record of this output, made in a recorded walk
        parts[index] = g if present is None else ns.add(present, g)
        step.moved = True  # the slot has the hold on g now


class _Refused(_Entry):
    """A value whose derivative is not known; `why` says so."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name)
        self.why = why

    def backward(self, ns: Any, step: Any, g: Any) -> None:
        """Raise the error."""
        raise GradientError(self.why)


class _Call(_Entry):
    """One call of a rule's function."""

    def __init__(self, rule: Rule) -> None:
        self.name, self.rule = rule.name, rule

    def backward(self, ns: Any, step: Any, g: Any) -> None:
        """Call the rule on tensors, and give what it returns."""
        if type(step) is RawStep and not STATE.levels:
            self._raw(step, g)
        elif isinstance(step, RecordedStep):
            self._recorded(step, g)
        elif isinstance(step, StackedStep):
            if step.level is not None:
                return self._stacked(step, g.array, step.level)
            with running(Vectorized(step.count, "error")) as level:
                self._stacked(step, g.array, level)
        else:
            with _levels(()):  # the walk is of no transform
                self._raw(step, g)

    def _raw(self, step: Any, g: Any) -> None:
        """In a walk on arrays. A gradient that nothing else has is given away."""
        kept = step.saved[-1]
        parts = [wrap(g, step.record.device)] if type(g) is not Parts else kept.parts(g, wrap)
        found = self._called(step, kept, kept.handles(step.saved, _alias), parts)
        del parts
        lent: list[Any] = []
        for i in range(len(found)):
            x = found[i]
            if x is None:
                continue
            array, storage, handle = x._array, x._storage, ref(x)
            x = found[i] = None
            if handle() is None and (storage is FRESH or storage is FRESH_ELSEWHERE) and not (
                    lent and any(array is other for other in lent)):  # returned twice
                step.give(i, array)
            else:
                lent.append(array)
                step.lend(i, array)

    def _stacked(self, step: Any, g: Any, level: Any) -> None:
        """In a walk on stacks: the rule sees handles of one example."""
        kept = step.saved[-1]

        def handle(a: Any, device: Device, storage: Storage | None = None) -> Tensor:
            if type(a) is Stack:
                return level.handle(wrap(a.array, device), True)
            return wrap(a, device)

        parts = (kept.parts(g, handle) if type(g) is Parts
                 else [handle(Stack(g), step.record.device)])
        found = self._called(step, kept, kept.handles(step.saved, handle), parts)
        for i, x in enumerate(found):
            if x is not None:
                x, stacked = level.end(x)
                step.lend(i, Stack(x._array) if stacked else x._array)

    def _recorded(self, step: Any, g: Any) -> None:
        """In a walk on tensors: what the rule does is recorded, if a graph is asked for."""
        rule, record = self.rule, step.record
        saved = step.saved
        kept = saved[-1]
        count, several = len(step.parents), len(kept.places)

        def handle(x: Any, device: Device, storage: Storage | None) -> Tensor:
            if not isinstance(x, Tensor):
                return _alias(x, device, storage)
            x._device = device
            return x

        handles = kept.handles(saved, handle, True)
        parents = record.parents or step.parents  # the latter lack those that lead to no target
        for x, before, position in zip(handles, saved, self.positions, strict=False):
            if position is not None and position < count and not isinstance(before, Tensor):
                x._node = parents[position]  # an array of another kind of device
            elif position is not None and count < position <= count + several > count + 1:
                x._node = _part(rule.name, record, position - count - 1, several, x)
        own = len(handles) - kept.repeats
        handles, inputs = handles[:own], handles[own:]
        parts = list(g) if type(g) is Parts else [g]
        if step.create_graph and rule.once:
            found = unrecorded(step.level, self._called, step, kept, _bare(handles), _bare(parts))
            why = (f"the gradient of {record.where()} was differentiated, whose backward rule is "
                   "marked as differentiable once")
            found = [None if x is None else self._refused(step, without_history(x), why)
                     for x in found]
        else:
            if step.create_graph:
                self._give_history(step, handles, inputs, several)
            found = self._called(step, kept, handles, parts)
        for i, x in enumerate(found):
            if x is not None:
                step.give(i, x)

    def _give_history(
        self, step: Any, handles: list[Any], inputs: Sequence[Tensor], several: int
    ) -> None:
        """Histories for what `forward` computed and kept, beside inputs and outputs."""
        computed = len(step.parents) + 1 + several
        own = [k for k, x in enumerate(handles)
               if self.positions[k] == computed and differentiable(x)]
        if not own:
            return
        where = step.record.where()
        again: Values | None = None
        why = (f"a second derivative of {where} reached a tensor that forward computed and saved; "
               "wanted inputs or outputs saved, from which backward computes it, or its detach() "
               "in backward for a constant")
        if inputs:
            try:
                again = self._kept_again(step, inputs, len(handles))
            except GradientError as error:  # matters only if a derivative is taken through it
                why = str(error)
        for k in own:
            handles[k] = self._refused(step, handles[k], why) if again is None else again[k]

    def _kept_again(self, step: Any, inputs: Sequence[Tensor], count: int) -> Values:
        """What `forward` keeps in a recorded run."""
        parents = step.parents
        with differentiating([node for node in parents if node is not None]), refusing(
                f"{step.record.where()} draws random numbers, and a second derivative runs it "
                "again; wanted them drawn outside, as an argument"):
            _, kept, *_ = self.rule.forward(inputs, parents)
        if len(kept) != count:
            raise GradientError(f"{step.record.where()} kept {count} residuals, and {len(kept)} in "
                                "the second run for a second derivative; wanted the same")
        return kept

    def _refused(self, step: Any, x: Tensor, why: str) -> Tensor:
        """x with a history that refuses to be walked."""
        x._node = new_record(*_entry(_Refused(self.name, why), step.parents), (), (), NO_PARAMS,
                             x._array, x._device)
        x._node.level = step.level
        return x

    def _called(self, step: Any, kept: _Kept, handles: Values, parts: Values) -> list[Any]:
        """What the rule returns for the inputs that need a gradient, checked; None elsewhere."""
        grads: Values = parts
        if kept.count > 1:
            grads = [None] * kept.count
            for place, part in zip(kept.places, parts, strict=True):
                grads[place] = part
        parents = step.parents
        found: list[Any] = []
        for x, node in zip(self.rule.backward(kept.context, handles, grads, parents), parents,
                           strict=False):
            if node is None:
                x = None
            elif not (isinstance(x, Tensor) and x._array.dtype is node.dtype
                      and x._array.shape == node.shape and x._device is node.device):
                x = self._fitting(len(found), x, node, kept.cast)
            found.append(x)
        return found

    def _fitting(self, i: int, x: Any, node: Node, cast: bool) -> Tensor:
        """A gradient of the shape, dtype and device of input i, or GradientError."""
        wanted = f"a gradient of shape {node.shape}, dtype {node.dtype} on {node.device}"
        if x is None:
            given, wanted = "None", "zeros, as that requires a gradient"
        elif not isinstance(x, Tensor):
            given = type(x).__name__
        elif x._array.shape != node.shape:
            given = f"a gradient of shape {x.shape}"
        elif x._device is not node.device:
            given = f"a gradient on {x._device}"
        elif x._array.dtype == node.dtype:
            return x
        elif cast and {x.dtype, node.dtype} <= _CAST:
            return recorded.astype(x, dtype=node.dtype)
        else:
            given = f"a gradient of dtype {x.dtype}"
        raise GradientError(f"the backward rule of {self.name} returned {given} for "
                            f"{self.rule.argument(i)}; wanted {wanted}")


def _entry(op: Any, parents: Sequence[Node | None]) -> tuple[Any, tuple[Node | None, ...], int]:
    """The first arguments of `new_record`."""
    return op, tuple(parents), _mask(parents)


def _mask(nodes: Nodes) -> int:
    """Bit i: input i has a node."""
    return sum([1 << i for i, node in enumerate(nodes) if node is not None])


def _part(name: str, call: Record, index: int, count: int, y: Tensor) -> Record:
    """The record of one of several outputs of a call."""
    part = new_record(*_entry(_Part(name), [call]), (), (), {"index": index, "count": count},
                      y._array, y._device)
    part.level = call.level
    return part


def unrecorded(level: Any, function: Callable[..., Any], *args: Any) -> Any:
    """function(*args) without records on the tape of a level; None is that of tensors."""
    if level is None:
        before = grad_enabled()
        try:
            record_ops(False)
            return function(*args)
        finally:
            record_ops(before)
    before = level.grad_enabled
    try:
        level.grad_enabled = False
        return function(*args)
    finally:
        level.grad_enabled = before


def _alias(array: Any, device: Device, storage: Storage | None) -> Tensor:
    """A handle on memory that a record saved: a write counts, but the handle does not."""
    if storage is None:
        return wrap(array, device)
    x = _new(Tensor)
    x._array, x._device, x._node = array, device, None
    x._storage, x._version = storage, storage.version
    return x


def _without_node(x: Tensor) -> Tensor:
    """An input for `forward`."""
    if isinstance(x, Traced):
        return x._copied()
    storage = x._storage
    if storage.common:
        storage = x._own_storage(False)
    storage.saved = True  # so no op may take the memory over
    alias = _new(Tensor)
    alias._array, alias._device, alias._node = x._array, x._device, None
    alias._storage, alias._version = storage, storage.version
    return alias


def _recorded(
    rule: Rule, level: Level | None, inputs: Sequence[Tensor], nodes: Nodes, mask: int
) -> Values:
    """Run `forward`, and record the call on the tape of a level, or on that of tensors."""
    given: Sequence[Tensor] = inputs
    if rule.closes:
        outputs, values, context, constants = unrecorded(level, rule.forward, given, nodes)
    else:
        given = []
        for x, node in zip(inputs, nodes, strict=True):
            if node is not None:
                x = _without_node(x)
            given.append(x)
        del x
        outputs, values, context, constants = rule.forward(given, nodes)
    places = []
    for j in range(len(outputs)):
        y = outputs[j]
        if isinstance(y, Tensor):
            if y._node is not None or isinstance(y, Traced):
                _refuse_closure(rule, level, y)
            if y._array.dtype.kind in DIFFERENTIABLE and j not in constants:
                places.append(j)
    if not places:
        _renew(level, outputs)
        return outputs
    several = len(places) if len(places) > 1 else 0
    kept = _Kept(context, len(outputs), places)
    ends = [*given, outputs[places[0]]]
    if several:
        kept.outputs = [outputs[j]._device for j in places]
        ends = [*given, None, *[outputs[j] for j in places]]
    op: Any = _Call(rule)
    op.positions, saved, guards = _saved(rule, level, kept, values, len(given), ends)
    del given, values, ends, y
    _renew(level, outputs)
    first = outputs[places[0]]
    call = new_record(op, tuple(nodes), mask, saved, guards, NO_PARAMS,
                      _SEVERAL if several else first._array, first._device)
    if level is not None:
        call.level = level
    if not several:
        first._node = call
        return outputs
    for k, j in enumerate(places):
        outputs[j]._node = _part(rule.name, call, k, several, outputs[j])
    return outputs


def _renew(level: Level | None, outputs: list[Any]) -> None:
    """Put new handles in place of those given, as `forward` may have its own elsewhere."""
    for j in range(len(outputs)):  # `enumerate` would hold the handle
        y = outputs[j]
        if not isinstance(y, Tensor):
            continue
        if level is not None:
            outputs[j] = without_history(y if level.owns(y) else level.lift(y))
            continue
        array, device, storage, last = y._array, y._device, y._storage, ref(y)
        outputs[j] = y = None
        y = last()
        outputs[j] = wrap(array, device, storage) if y is None else without_history(y)


def _saved(
    rule: Rule, level: Level | None, kept: _Kept, values: Values, count: int, ends: list[Any]
) -> tuple[list[int | None], tuple[Any, ...], Guards]:
    """Of what a record saves: the positions, the values, the guards.

    The positions are among the `ends`: `count` inputs, then outputs.
    """
    positions: list[int | None] = []
    again = False
    for x in values:
        position = None
        if isinstance(x, Tensor):
            position = count + 1 + len(kept.places)
            for i, end in enumerate(ends):
                if end is x:
                    position = i
                    break
            else:
                again = again or differentiable(x)
        positions.append(position)
    if again and rule.repeats:
        kept.repeats = count
        values = [*values, *ends[:count]]
        positions += range(count)
    positions.append(None)
    saved: list[Any] = []
    guards: list[Guard] = []
    kind: type[tuple[Any, ...]] = tuple
    for x in values:
        device = storage = None
        if isinstance(x, Tensor):
            device = x._device
            if level is not None:
                guard(x, guards)
                if isinstance(x, Traced) and level.owns(x):
                    x = x._copied()
            elif x._storage.recipe is not None:  # which may take its place
                (x,), more = saves((0,), (x._array,), (x,))
                kind = WithRecipes
                guards += more
            else:
                storage = x._storage
                if storage.common:
                    storage = x._own_storage(False)
                storage.saved = True
                guards.append((storage, x._version, len(saved)))
                x = x._array
                if device.graphs:
                    guards += replayed(x, device)
        saved.append(x)
        kept.tensors.append((device, storage))
    saved.append(kept)
    return positions, kind(saved), tuple(guards)


def _refuse_closure(rule: Rule, level: Level | None, y: Tensor) -> None:
    """Raise for an output that depends on a tensor beside the inputs."""
    if level is None and isinstance(y, Traced):
        _lowered(rule, y._level, [y])
    if y._node is not None and not rule.closes and (level is None or level.owns(y)):
        raise GradientError(
            f"{rule.name} reads a tensor that requires a gradient and is not among its "
            "arguments; wanted it as an argument, or its detach()")


# -- levels ----------------------------------------------------------------------------------------


@contextmanager
def _levels(levels: tuple[Any, ...]) -> Iterator[None]:
    """Within the block these are the levels that run."""
    before = STATE.levels
    STATE.levels = levels
    try:
        yield
    finally:
        STATE.levels = before


def _along(rule: Rule, level: Directional, inputs: Sequence[Tensor]) -> Values:
    """The outputs on the level of a `jvp`."""
    duals: Sequence[Any] = inputs
    primals = [x.primal if level.owns(x) else x for x in duals]
    tangents = [x.tangent if level.owns(x) else None for x in duals]
    with _levels(STATE.levels[:level.depth - 1]):
        if not any(t is not None for t in tangents):
            outputs = apply(rule, primals)
            along: Values = [None] * len(outputs)
        else:
            outputs, along = rule.tangent(primals, tangents)
    return [level.handle(y, t) if isinstance(y, Tensor) else y for y, t in zip(
        _lowered(rule, level, outputs), _lowered(rule, level, along), strict=True)]


def _lowered(rule: Rule, level: Level, values: Values) -> Values:
    """The values, none of which may be of the level."""
    for x in values:
        if level.owns(x):
            raise LevelError(f"{rule.name} reads a value of {level.name}() that is not among its "
                             "arguments; wanted it as an argument, or its detach()")
    return values


def _for_all(rule: Rule, level: Vectorized, inputs: Sequence[Any]) -> Values:
    """The outputs on the level of a `vmap`."""
    mapped = [level.owns(x) and x.mapped for x in inputs]
    values = [x.values if level.owns(x) else x for x in inputs]
    with _levels(STATE.levels[:level.depth - 1]):
        outputs = apply(_Examples(rule, level, mapped), values)
    return [level.handle(y, True in mapped) if isinstance(y, Tensor) else y for y in outputs]


class _Examples(Rule):
    """A rule for one example as that of all of them, with their axis first."""

    def __init__(self, rule: Rule, level: Vectorized, mapped: list[bool]) -> None:
        self.rule, self.level, self.mapped = rule, level, mapped
        self.name, self.once, self.closes = rule.name, rule.once, rule.closes
        self.repeats = rule.repeats

    @contextmanager
    def _running(self) -> Iterator[Any]:
        """The level of the call, or one like it once that is over."""
        level = self.level
        if level.alive:
            with _levels((*STATE.levels, level)):
                yield level
        else:
            with running(Vectorized(level.size, level.randomness, level.fallback)) as level:
                yield level

    def _handles(self, level: Vectorized, values: Values, mapped: Sequence[bool]) -> list[Any]:
        return [level.handle(x, m) if isinstance(x, Tensor) else x
                for x, m in zip(values, mapped, strict=True)]

    def _whole(self, level: Vectorized, y: Any) -> Any:
        """The values of an output for all examples."""
        if not isinstance(y, Tensor):
            return y
        _refuse_closure(self.rule, level, y)
        values, mapped = level.end(y)
        return values if mapped or True not in self.mapped else recorded.broadcast_to(
            values, shape=(level.size, *values.shape))

    def primal(self, inputs: Values) -> Values:
        with self._running() as level:
            return [self._whole(level, y) for y in self.rule.primal(
                self._handles(level, inputs, self.mapped))]

    def forward(self, inputs: Values, nodes: Nodes) -> Ran:
        with self._running() as level:
            outputs, values, context, constants = self.rule.forward(
                self._handles(level, inputs, self.mapped), nodes)
            kept = [level.end(x) if isinstance(x, Tensor) else (x, False) for x in values]
            return ([self._whole(level, y) for y in outputs], [x for x, _ in kept],
                    (context, [m for _, m in kept]), constants)

    def backward(
        self, context: Any, kept: Values, grads: Values, nodes: Nodes
    ) -> Values:
        context, mapped = context
        several = True in self.mapped
        with self._running() as level:
            found = self.rule.backward(
                context, self._handles(level, kept, mapped),
                self._handles(level, grads, [several] * len(grads)), nodes)
            return [self._total(level, x, m) if isinstance(x, Tensor) else x
                    for x, m in zip(found, self.mapped, strict=True)]

    def _total(self, level: Vectorized, x: Tensor, mapped: bool) -> Tensor:
        """The gradient of an input: for each example, or the sum if all share the input."""
        values, found = level.end(x)
        if mapped:
            return values if found else recorded.broadcast_to(
                values, shape=(level.size, *values.shape))
        if found:
            return recorded.sum(values, axis=(-values.ndim,), keepdims=False)
        return recorded.multiply(values, level.size) if True in self.mapped else values

    def tangent(self, inputs: Values, tangents: Values) -> tuple[Values, Values]:
        with self._running() as level:
            outputs, along = self.rule.tangent(
                self._handles(level, inputs, self.mapped),
                self._handles(level, tangents, self.mapped))
            return ([self._whole(level, y) for y in outputs],
                    [self._whole(level, t) for t in along])

    def argument(self, i: int) -> str:
        return self.rule.argument(i)
