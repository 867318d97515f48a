"""Calls on the rows of large arrays, reductions of rows among them, as one loop over tiles of rows.

A softmax written by hand takes the largest of each row, a sum of each row, and elementwise calls in
between. What they make lies in tiles that stay in the cache; only what others need is written to
memory. NumPy reduces each row by itself, so a tile of rows has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gtensor.backend import host
from gtensor.execution.steps.flow import dependences, is_view
from gtensor.execution.steps.fused_numpy import CACHED, Tile, tile_of
from gtensor.execution.steps.grouping import Member, Unit, grouped, ordered
from gtensor.execution.steps.listing import Listing, reads, users_of
from gtensor.execution.steps.pieces import Piece, composed
from gtensor.execution.steps.recorder import Call, Value
from gtensor.execution.steps.totals import RunningSum, Total, reduction, total_of
from gtensor.ops.define.cpu_tiles import broadcast_directly
from gtensor.system.written_code import written

_REDUCE = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}
_LONGEST = 1 << 14  # elements of a row, of which several fit into the cache
_WORTH = 2  # elementwise calls beside a reduction, at least


class _Kind(NamedTuple):
    """What a call is among rows: "full" or "column" by its result, "reduce", "total" or "view"."""

    name: str
    rows: tuple[int, ...]  # the shape of the rows' first axes
    width: int | None  # a row's elements, of what has rows


def row_calls(
    listing: Listing, narrow: Sequence[Any], pieces: Sequence[Piece | None]
) -> tuple[list[Any], bool]:
    """The calls with those on rows as one; whether there are such."""
    kinds = _kinds(listing, narrow, pieces)
    if not any(kind is not None and kind.name == "reduce" for kind in kinds):
        return listing.calls, False
    needs = dependences(listing, pieces)
    units = grouped([None if kind is None else _member(i, kind, narrow[i], pieces[i], listing)
                     for i, kind in enumerate(kinds)], needs)
    users = users_of(listing)
    calls: list[Any] = []
    found = False
    for unit in ordered(units):
        names = [kind.name for i in unit.calls if (kind := kinds[i]) is not None]
        if "reduce" not in names or names.count("full") < _WORTH:
            calls += [listing.calls[i] for i in unit.calls]
            continue
        found = True
        rows = _Rows(listing, narrow, pieces, kinds, unit, users)
        calls += [rows.call(), *rows.after]
    return (calls, True) if found else (listing.calls, False)


def _kinds(
    listing: Listing, narrow: Sequence[Any], pieces: Sequence[Piece | None]
) -> list[_Kind | None]:
    reductions = [_reduced(call, listing) for call in listing.calls]
    prefixes = {shape[:-1] for shape in reductions if shape is not None}
    found: list[_Kind | None] = []
    for call, piece, shape in zip(narrow, pieces, reductions, strict=True):
        if shape is not None:
            found.append(_Kind("reduce", shape[:-1], shape[-1]))
            continue
        total = total_of(call, listing)
        if total is not None:
            *rows, width = listing.values[total.given].shape
            found.append(_Kind("total", tuple(rows), width) if tuple(rows) in prefixes else None)
            continue
        if piece is None and not is_view(call) or call.device.type != "cpu":
            found.append(None)
            continue
        made = listing.values[call.made[0]].shape
        if piece is not None and made[:-1] in prefixes and made[-1] > 1:
            found.append(_Kind("full", made[:-1], made[-1]))
        elif piece is None and call.name == "broadcast_to" and made[:-1] in prefixes:
            found.append(_Kind("view", made[:-1], None))
        elif made in prefixes or made[-1:] == (1,) and made[:-1] in prefixes:
            name = "column" if piece is not None else "view"
            found.append(_Kind(name, made if made in prefixes else made[:-1], None)
                         if piece is not None or call.name == "reshape" else None)
        else:
            found.append(None)
    return found


def _reduced(call: Any, listing: Listing) -> tuple[int, ...] | None:
    """The shape of what a call reduces over its rows; None for any other call."""
    found = reduction(call, _REDUCE, listing)
    if found is None or not listing.contiguous(found[1]):
        return None
    shape = listing.values[found[0]].shape
    rows = len(shape) > 1 and call.params.get("axis") == (-1,) and 1 < shape[-1] <= _LONGEST
    return shape if rows else None


def _member(i: int, kind: _Kind, call: Any, piece: Piece | None, listing: Listing) -> Member:
    values, shape = listing.values, listing.values[call.made[0]].shape
    given = {*reads(call)}
    dtype = piece.dtype if piece is not None else (
        listing.values[call.made[0]].dtype if kind.width is not None else None)

    def fits(unit: Unit) -> bool:
        if kind.width is not None and unit.facts not in (None, kind.width):
            return False
        if given.isdisjoint(unit.values) or kind.name in (
                "view", "total") and given.isdisjoint(unit.made):
            return False
        return all(_slices(values[n].shape, kind, shape) if n in unit.made
                   else _lies(n, kind, shape, listing) for n in given)

    begins = kind.name not in ("view", "total") and all(
        _lies(n, kind, shape, listing) for n in given)
    return Member(kind.rows, dtype, given, call.made[0], fits, kind.width, begins)


def _slices(given: tuple[int, ...], kind: _Kind, shape: tuple[int, ...]) -> bool:
    """Whether a row of the result needs only that row of a value of the group."""
    if kind.name == "full":
        return given in (shape, (*kind.rows, 1))
    if kind.name in ("reduce", "total"):
        return given == (*kind.rows, kind.width)
    return given in (kind.rows, (*kind.rows, 1)) if kind.name == "view" else given == shape


def _lies(number: int, kind: _Kind, shape: tuple[int, ...], listing: Listing) -> bool:
    """Whether a value from outside can be cut into rows, or is the same for all of them."""
    given = listing.values[number].shape
    if _slices(given, kind, shape):
        return listing.contiguous(number)
    if given == kind.rows == shape[-1:]:
        return False  # a row here may be a column elsewhere
    return kind.name in ("full", "column") and _same_for_all(given, kind, shape)


def _same_for_all(given: tuple[int, ...], kind: _Kind, shape: tuple[int, ...]) -> bool:
    if kind.name == "column":
        return math.prod(given) == 1
    lead = len(given) - len(shape) + len(kind.rows)
    return all(n == 1 for n in given[:max(0, lead)])


class _Rows:
    """A group of calls on rows, as one call."""

    def __init__(
        self, listing: Listing, narrow: Sequence[Any], pieces: Sequence[Piece | None],
        kinds: Sequence[_Kind | None], unit: Unit, users: dict[int, set[int]],
    ) -> None:
        self.listing, self.narrow, self.pieces, self.kinds = listing, narrow, pieces, kinds
        self.unit = unit
        inside = {*unit.calls}
        returned = {*listing.returned}
        self.rows = kinds[unit.calls[0]].rows  # type: ignore[union-attr]
        self.width: int = unit.facts
        self.dtype = np.dtype(np.float32) if unit.dtype is None else unit.dtype
        self.alias: dict[int, int] = {}  # a view's value -> what it shows
        self.after: list[Any] = []  # calls of the group that are made after it
        self.totals: dict[int, Total] = {}  # value -> its sum, taken on the way
        outside = {n for i in unit.calls for n in listing.calls[i].made
                   if n in returned or users.get(n, set()) - inside}
        wanted: list[int] = []
        for i in reversed(unit.calls):
            (made,), name = listing.calls[i].made, kinds[i].name  # type: ignore[union-attr]
            if name == "view":
                given = narrow[i].args[0].number
                self.alias[made] = given
                if made in outside:
                    self.after.insert(0, listing.calls[i])
                    outside.add(given)
            elif name != "total" and made in outside:
                wanted.insert(0, made)
        for made in reversed(self.alias):  # a view of a view shows what that one does
            self.alias[made] = self.alias.get(self.alias[made], self.alias[made])
        self.outputs = [*dict.fromkeys(n for n in wanted if n in unit.made)]
        totals = [(i, total_of(narrow[i], listing)) for i in unit.calls
                  if kinds[i].name == "total"]  # type: ignore[union-attr]
        summed = [total.given for _, total in totals if total is not None]
        for i, total in totals:
            if total is None or total.given in self.outputs or summed.count(total.given) > 1:
                self.after.append(listing.calls[i])
                self.outputs = [*dict.fromkeys([*self.outputs, *reads(listing.calls[i])])]
            else:
                self.totals[total.given] = total

    def call(self) -> Call:
        """The call of the group."""
        stages = self._stages()
        last = self.listing.calls[self.unit.calls[-1]]
        inputs = [*dict.fromkeys(n for stage in stages for n in stage.reads
                                 if n not in self.unit.made)]
        for n in [*self.alias.values()]:
            if n not in self.unit.made and n not in inputs and n in {*self.outputs}:
                inputs.append(n)
        name = f"fused_rows_{len(self.unit.calls)}"
        function = _looped(self, stages, inputs, name)
        made = (*self.outputs, *[total.made for total in self.totals.values()])
        return Call(name, function, tuple(map(Value, inputs)), {}, made, len(made) > 1,
                    frozenset(), last.device, last.where)

    def shape_of(self, number: int) -> tuple[int, ...]:
        return self.listing.values[number].shape

    def is_full(self, number: int) -> bool:
        """Whether a value has whole rows."""
        return self.shape_of(number) == (*self.rows, self.width)

    def is_column(self, number: int) -> bool:
        """Whether it has a number for each row."""
        return self.shape_of(number) in (self.rows, (*self.rows, 1)) and (
            number in self.unit.made or not self._is_fixed(number))

    def _is_fixed(self, number: int) -> bool:
        """Whether a value from outside is the same for all rows where it is used."""
        for i in self.unit.calls:
            kind: Any = self.kinds[i]
            shape = self.shape_of(self.listing.calls[i].made[0])
            if number in reads(self.narrow[i]) and not _slices(
                    self.shape_of(number), kind, shape):
                return True
        return False

    def _stages(self) -> list[_Stage]:
        """What is done with each tile, in order."""
        order = [i for i in self.unit.calls
                 if self.kinds[i].name not in ("view", "total")]  # type: ignore[union-attr]
        makers = {self.listing.calls[i].made[0]: k for k, i in enumerate(order)}
        needs = [{makers[m] for n in reads(self.narrow[i])
                  if (m := self.alias.get(n, n)) in makers} for i in order]
        members = []
        for i in order:
            piece, call = self.pieces[i], self.narrow[i]
            members.append(None if piece is None else Member(
                self.kinds[i].name, piece.dtype, set(), call.made[0],  # type: ignore[union-attr]
                lambda unit: True))
        found = []
        for unit in ordered(grouped(members, needs)):
            calls = [order[k] for k in unit.calls]
            found.append(self._reduction(calls[0]) if self.pieces[calls[0]] is None
                         else self._elementwise(calls))
        return found

    def _reduction(self, i: int) -> _Stage:
        call = self.listing.calls[i]
        given = self.alias.get(call.args[0].number, call.args[0].number)
        reduce: Any = _REDUCE[call.name].reduce
        if call.name != "mean":
            def function(x: Any, out: Any) -> None:
                reduce(x, -1, None, out, True)
        else:
            count = self.width

            def function(x: Any, out: Any) -> None:
                reduce(x, -1, None, out, True)
                np.divide(out, count, out)
        return _Stage([given], [call.made[0]], function, None)

    def _elementwise(self, calls: list[int]) -> _Stage:
        made = [self.listing.calls[i].made[0] for i in calls]
        inside = {*calls}
        used = {*self.outputs, *self.totals}
        for i in self.unit.calls:
            if i not in inside:
                used |= {self.alias.get(n, n) for n in reads(self.narrow[i])}
        outputs = [n for n in made if n in used]
        pieces = [(n, self._renamed(self.pieces[i]))  # type: ignore[arg-type]
                  for n, i in zip(made, calls, strict=True)]
        graph = composed(pieces, outputs)
        names = [name for name, given in graph.inputs.items() if isinstance(given, Value)]
        given: list[Any] = [graph.inputs[name] for name in names]
        tile = tile_of(graph, names, [f"v{n}" for n in outputs], self.dtype, "rows")
        return _Stage([a.number for a in given], outputs, tile.function, tile)

    def _renamed(self, piece: Piece) -> Piece:
        """The piece over what views show."""
        inputs = {name: Value(self.alias.get(a.number, a.number)) if isinstance(a, Value) else a
                  for name, a in piece.inputs.items()}
        return piece._replace(inputs=inputs)


class _Stage(NamedTuple):
    """A step of a tile: a function of the values that it reads and makes, and its buffers."""

    reads: list[int]
    makes: list[int]
    function: Callable[..., None]
    tile: Tile | None


class _Buffers:
    """The names of a tile's buffers, by (whether of whole rows, whether of conditions)."""

    def __init__(self) -> None:
        self.free: dict[tuple[bool, bool], list[str]] = {}
        self.kind: dict[str, tuple[bool, bool]] = {}

    def take(self, kind: tuple[bool, bool]) -> str:
        """A free buffer."""
        free = self.free.setdefault(kind, [])
        if free:
            return free.pop()
        name = f"b{len(self.kind)}"
        self.kind[name] = kind
        return name

    def give(self, name: str) -> None:
        """It is free again."""
        self.free[self.kind[name]].append(name)


def _looped(
    group: _Rows, stages: list[_Stage], inputs: list[int], name: str
) -> Callable[..., Any]:
    """The function of the group: a loop over tiles of rows."""
    outputs, width, dtype = [*group.outputs, *group.totals], group.width, group.dtype
    values = group.listing.values
    last = {n: k for k, stage in enumerate(stages) for n in (*stage.reads, *stage.makes)}
    buffers, places, lines = _Buffers(), {n: f"v{n}" for n in (*inputs, *outputs)}, []
    scope: dict[str, Any] = {}
    full: list[tuple[str, bool, np.ndarray]] = []  # names of arrays that hold one number
    for k, stage in enumerate(stages):
        wide = [group.is_full(n) for n in stage.makes]
        for n, whole in zip(stage.makes, wide, strict=True):
            if n not in places:
                places[n] = buffers.take((whole, values[n].dtype == np.bool_))
        work = []
        if stage.tile is not None:
            work = [buffers.take((wide[0], False)) for _ in range(stage.tile.floats)]
            work += [buffers.take((wide[0], True)) for _ in range(stage.tile.masks)]
        given = [places[n] for n in (*stage.reads, *stage.makes)] + work
        for number in () if stage.tile is None else stage.tile.filled:
            full.append((f"n{len(full)}", wide[0], number))
            given.append(full[-1][0])
        scope[f"stage{k}"] = stage.function
        lines.append(f"    stage{k}({', '.join(given)})\n")
        for taken in work:
            buffers.give(taken)
        for n in {*stage.reads, *stage.makes}:
            if last[n] == k and places[n] in buffers.kind:
                buffers.give(places[n])
    names = [*[f"v{n}" for n in (*inputs, *outputs)], *buffers.kind, *[n for n, _, _ in full]]
    tile = written(f"def tile({', '.join(names)}):\n{''.join(lines)}", scope, "tile", name)
    sliced = [i for i, n in enumerate(inputs) if group.is_full(n) or group.is_column(n)]
    shapes = [group.shape_of(n) for n in inputs]
    results: list[Any] = [(group.shape_of(n), values[n].dtype) for n in group.outputs]
    totals = [*group.totals.values()]
    kinds = [*buffers.kind.values()]
    across = [width if whole else 1 for whole, _ in kinds]
    count = math.prod(group.rows)
    row_bytes = sum(dtype.itemsize * width for whole, mask in kinds if whole and not mask)
    row_bytes += sum(dtype.itemsize * math.prod(s) // count for s in [
        *[shapes[i] for i in sliced], *[s for s, _ in results]])
    step = max(1, min(count, CACHED // max(1, row_bytes)))
    several = len(outputs) > 1
    first = len(inputs) + len(results)  # the place of what is summed
    numbers = [np.full((step, width if whole else 1), number) for _, whole, number in full]

    def rows(*arrays: Any) -> Any:
        found = [host().empty(shape, t, name) for shape, t in results]
        work = [np.empty((step, n), np.bool_) if mask else
                host().empty((step, n), dtype, "workspace")
                for n, (_, mask) in zip(across, kinds, strict=True)]
        sums = [RunningSum(count * width, dtype, step * width) for _ in totals]
        parts = [*arrays, *[None] * len(outputs), *work, *numbers]
        views = [(i, arrays[i].reshape(count, -1)) for i in sliced]
        views += [(i, out.reshape(count, -1)) for i, out in enumerate(found, len(arrays))]
        with np.errstate():
            broadcast_directly(width)
            for start in range(0, count, step):
                left = min(step, count - start)
                if left < step:
                    parts[first + len(totals):] = [a[:left] for a in (*work, *numbers)]
                for i, view in views:
                    parts[i] = view[start:start + step]
                for i, total in enumerate(sums, first):
                    parts[i] = total.place((left, width))
                tile(*parts)
        found += [x.total(t.shape, t.divisor) for x, t in zip(sums, totals, strict=True)]
        return tuple(found) if several else found[0]

    return rows
