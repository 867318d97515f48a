"""Updates: formulas with several values, which overwrite inputs. Both paths follow from them.

    def momentum(ns, p, g, m, *, rate, keep):
        m = keep * m + g
        return p - rate * m, m

The values overwrite, in order, the first input and those from the third on, the state; the second
is only read. A path takes many tensors at once: `path(*targets, *gradients, out=targets,
state=states, options=options, rows=rows)`. `state` has first all tensors' first states, then all
second ones; tensor i has the parameters `options[rows[i]]`, which may differ in numbers only. All
memory that the path for the CPU takes is made before (`asks`): out of memory nothing is written.

A formula may have parameters that no caller gives:

- `most`: the largest number of the state's dtype, to which it limits its values, or None if that is
  not needed. Then it returns further values, which are watched: if one of them overflows in a tile
  on the CPU, the tile is computed with the limit. CUDA always limits.
- `step`: the number of this update, from 1 on. The CPU is given it as `steps`; on CUDA it is read,
  and counted, in device memory (`steps` are then the counters).
- `first`: whether that is 1; None if it is not known when the graph is chosen.
- `deferred`: whether the numbers are not known when the graph is chosen. On the CPU they are, and a
  number that is `neglected` is None where it is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from ml_dtypes import finfo

from gtensor.backend import compiled, host
from gtensor.backend.multi_tensor import Tensors, launch_apart
from gtensor.engine.run.writable import count_write
from gtensor.engine.tape.op import Op
from gtensor.ops.define.cpu_tiles import computed_in, cut, flat_tiles, whole_tiles
from gtensor.ops.define.formula import Formula, Key
from gtensor.ops.define.formula_numpy import Program, full_tile
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.multi_tensor import MultiTensor
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.tensor import Tensor

SMALL = 1024  # elements up to which buffers are kept for the next call
_WIDE = 1e30  # float16 alone has a largest number below it; float32 overflows later


class _Chosen(NamedTuple):
    """A program and its numbers, what they were made for, and what limits, where that is rare."""

    params: Params
    step: int
    dtype: np.dtype
    arrays: int  # of a tensor
    program: Program
    numbers: tuple[tuple[Array, ...], tuple[Array, ...]]
    rare: Program | None
    given: list[Params]  # what the numbers were made of, and those of `rare`
    in_c: Program | None  # has a kernel, which always limits
    constants: tuple[float, ...]  # of it

    def at(self, step: int) -> _Chosen:
        """The same for another step, of the same program."""
        given = []
        for params in self.given:
            given.append({**params, "step": step})
        constants = () if self.in_c is None else self.in_c.constants(**given[-1])
        return self._replace(step=step, given=given, numbers=self.program.numbers(**given[0]),
                             constants=constants)

    def by_kernel(self, arrays: Sequence[Array]) -> None:
        """Write contiguous arrays in the dtype that is computed in, where there is a kernel."""
        made: Any = self.in_c
        compiled.run(made.kernel, (*arrays,), (), self.constants, arrays[0].size, made.silent)

    def full(self, size: int) -> list[Array]:
        """Arrays of so many elements that hold one number each."""
        return [full_tile(float(value), self.program.dtype, size) for value in self.numbers[1]]

    def write(self, arrays: Sequence[Array], rows: Sequence[Array], limited: Sequence[Array]
              ) -> None:
        """One tile of contiguous arrays in the dtype that is computed in; `rows` are filled ones,
        and buffers."""
        if self.in_c is not None and settings.compiled:
            self.by_kernel(arrays)
        elif not self.program.tile(*arrays, *self.numbers[0], *rows):
            self.write_limited(arrays, limited)

    def write_limited(self, arrays: Sequence[Array], rows: Sequence[Array]) -> None:
        """The same where a watched value overflows, a few elements at a time, in these rows."""
        assert self.rare is not None
        numbers, filled = self.rare.numbers(**self.given[1])
        full = [full_tile(float(value), self.rare.dtype, SMALL) for value in filled]
        flat = [a.reshape(-1) for a in arrays]
        for start in range(0, flat[0].size, SMALL):
            parts = [a[start:start + SMALL] for a in flat]
            size = parts[0].size
            self.rare.tile(*parts, *numbers, *[row[:size] for row in (*full, *rows)])


class _Tiles:
    """Buffers of a tile's size, which all large tensors of an update share: `made`, by dtype.

    They are floats and conditions, a buffer in each row.
    """

    def __init__(self) -> None:
        self._wanted: dict[np.dtype, tuple[int, int, int]] = {}
        self.made: dict[np.dtype, tuple[Array, Array]] = {}

    def want(self, program: Program, copies: int, size: int) -> None:
        """There shall be buffers for so many copies, and for what the program works in."""
        floats, conditions, most = self._wanted.get(program.dtype, (0, 0, 0))
        self._wanted[program.dtype] = (max(floats, program.floats + copies),
                                       max(conditions, program.conditions), max(most, size))

    def make(self) -> None:
        """Make all that is wanted."""
        for dtype, (floats, conditions, size) in self._wanted.items():
            self.made[dtype] = (host().empty((floats, size), dtype, "workspace"),
                                np.empty((conditions, size), np.bool_))


# What an update works in: functions that write, with what they are given, and the buffers of small
# tensors by program and shape.
_Work: TypeAlias = ("tuple[list[tuple[Callable[..., None], tuple[Any, ...]]], "
                    "dict[tuple[Program, tuple[int, ...]], tuple[Array, ...]]]")


def _in_tiles(
    chosen: _Chosen, tensors: Sequence[Sequence[Array]], copied: list[bool], full: list[Array],
    limited: tuple[Array, ...], shared: _Tiles,
) -> None:
    """Large tensors that have a program, and what is copied, in common."""
    program = chosen.program
    count = program.floats + sum(copied)
    scratch, marks = shared.made[program.dtype]
    last: tuple[int, ...] | None = None
    for arrays in tensors:
        target = arrays[0]
        if target.ndim == 1 and count == program.floats and (
                chosen.in_c is not None and settings.compiled):
            chosen.by_kernel(arrays)
            continue
        for key in flat_tiles(target.size) if target.ndim == 1 else whole_tiles(target.shape):
            places = [*map(itemgetter(key), arrays)]  # a comprehension is a call
            if places[0].shape != last:
                last, size = places[0].shape, places[0].size
                buffers = [*cut(scratch[:count], size, last)]
                rows = [*buffers[count - program.floats:],
                        *cut(marks[:program.conditions], size, last)]
                if full:
                    rows = [*[a[:size].reshape(last) for a in full], *rows]
            if count == program.floats:
                chosen.write(places, rows, limited)
                continue
            spare = iter(buffers)
            _in_copies(chosen, places, [next(spare) if c else None for c in copied], rows, limited)


def _in_copies(chosen: _Chosen, places: Sequence[Array], copies: list[Array | None],
               rows: Sequence[Array], limited: Sequence[Array]) -> None:
    values = [place if copy is None else copy for place, copy in zip(places, copies, strict=True)]
    for place, copy in zip(places, copies, strict=True):
        if copy is not None:
            copy[...] = place
    chosen.write(values, rows, limited)
    for i, copy in enumerate(copies):
        if copy is not None and i != 1:
            places[i][...] = copy


def _buffers(small: dict[Any, tuple[Array, ...]], program: Program, shape: tuple[int, ...]
             ) -> tuple[Array, ...]:
    """What a program works in besides its arrays; tensors of one shape share it."""
    found = small.get((program, shape))
    if found is None:
        found = program.spare.pop(shape, None) or program.buffers(shape)
        small[program, shape] = found
    return found


NOTHING = SimpleNamespace(params=None)


class Update:
    """The two paths of an update of many tensors.

    Where `uniform`, the second input is one number for all tensors: it is among the options under
    its name, or it is the last input.
    """

    def __init__(self, name: str, function: Path, other: dict[int, str] | None = None, *,
                 neglected: tuple[str, ...] = (), uniform: bool = False,
                 counted: bool = False, quiet: bool = False) -> None:
        """`other`: names of the kernel for so many states, if not `name`. `counted`: CUDA counts
        the updates of each tensor. `quiet`: NumPy does not warn of infinite values."""
        self.formula = Formula(name, function)
        self.counted = counted
        self._names = other or {}
        self._neglected = neglected
        self.uniform = uniform
        self._quiet = quiet
        self.limits = "most" in self.formula.params
        self._numbered = "step" in self.formula.params
        self._first = "first" in self.formula.params  # on the CPU later steps are then alike
        self._programs: dict[Any, Program] = {}
        self._known: Any = NOTHING
        self._kernels: dict[Any, MultiTensor] = {}

    # -- the CPU ----------------------------------------------------------------------------------

    def cpu(self, *arrays: Array, out: tuple[Array, ...], state: tuple[Array, ...] = (),
            options: Sequence[Params] = ({},), rows: Sequence[int] = (), steps: Sequence[int] = (),
            work: _Work | None = None) -> tuple[Array, ...]:
        """Tile by tile in the arrays, or in copies: in float32 of a half dtype, or contiguous.

        `work` is what `asks` returned for the same arguments.
        """
        writes, small = work or self.asks(
            *arrays, out=out, state=state, options=options, rows=rows, steps=steps)
        if self._quiet:
            with np.errstate(invalid="ignore"):
                for function, given in writes:
                    function(*given)
        else:
            for function, given in writes:
                function(*given)
        for (program, shape), buffers in small.items():  # kept for the next update
            if len(program.spare) > 15:
                program.spare.clear()
            program.spare[shape] = buffers
        return out

    def asks(self, *arrays: Array, out: tuple[Array, ...], state: tuple[Array, ...] = (),
             options: Sequence[Params] = ({},), rows: Sequence[int] = (), steps: Sequence[int] = ()
             ) -> _Work:
        """All memory that the path for the CPU takes, before it writes."""
        work: _Work = [], {}
        writes, small = work
        copies: dict[tuple[np.dtype, tuple[int, ...]], list[Array]] = {}
        shared = None
        tensors: list[Sequence[Array]] = []  # large ones that are written together
        alike: list[bool] | None = None
        full: list[Array] = []  # of them
        widest = 0
        count, tile = len(out), settings.tile_elements
        if self.uniform and len(arrays) > count:
            options = [{**options[0], self.formula.inputs[1]: float(arrays[-1])}]
        known, seen = self._known, None
        limited: tuple[Array, ...] = ()
        for i, target in enumerate(out):
            of = (target, *state[i::count]) if self.uniform else (
                target, arrays[count + i], *state[i::count])
            step = 0 if not self._numbered else min(steps[i], 2) if self._first else steps[i]
            params = options[rows[i]] if rows else options[0]
            # most tensors have these in common
            if known.params is not params or known.step != step or (
                    known.dtype != target.dtype or known.arrays != len(of)):
                known = self._known = self._chosen(params, step, of)
            if known is not seen:
                seen, alike = known, None
                limited = () if known.rare is None else _buffers(small, known.rare, (SMALL,))
            program, shape, size = known.program, target.shape, target.size
            dtype = program.dtype
            copied, flat = [], True
            for a in of:  # one loop: a comprehension is a call
                contiguous = a.flags.c_contiguous
                flat = flat and contiguous
                copied.append(not contiguous or a.dtype != dtype)
            if size > SMALL or size > tile:
                if copied != alike:
                    alike, tensors, full, widest = copied, [], [], 0
                if widest < min(size, tile):
                    widest = min(size, tile)
                    shared = shared or _Tiles()
                    shared.want(program, sum(copied), widest)
                    if known.numbers[1]:
                        full[:] = known.full(widest)
                if not tensors:
                    writes.append((_in_tiles, (known, tensors, copied, full, limited, shared)))
                tensors.append([a.reshape(-1) for a in of] if flat else of)
                continue
            if True not in copied and known.in_c is not None and settings.compiled:
                writes.append((known.by_kernel, (of,)))
                continue
            buffers = _buffers(small, program, shape)
            if known.numbers[1]:
                buffers = (*[a.reshape(shape) for a in known.full(size)], *buffers)
            if True not in copied:
                writes.append((known.write, (of, buffers, limited)))
                continue
            found = copies.setdefault((dtype, shape), [])
            while len(found) < len(of):
                found.append(np.empty(shape, dtype))
            writes.append((_in_copies, (known, of, [
                copy if needed else None for copy, needed in zip(found, copied, strict=False)],
                buffers, limited)))
        if shared is not None:
            shared.make()
        return work

    def prepare(
        self, targets: Sequence[Tensor], gradients: Sequence[Tensor], state: Sequence[Array]
    ) -> Prepared | None:
        """The path for the CPU on these tensors, again and again; None if one has to be copied."""
        prepared = Prepared(self, targets, state)
        out = [x._array for x in targets]
        fits = all(a.dtype == out[0].dtype and a.flags.c_contiguous for a in (*out, *state))
        if self.uniform or self._quiet or not fits or not prepared.serves(gradients) or (
                targets[0]._device is not host() or computed_in(out[0].dtype) != out[0].dtype):
            return None
        return prepared

    def at(self, params: Params, step: int, target: Array, arrays: int) -> _Chosen:
        """The program for the step of a tensor, and its numbers; most tensors have them in common.
        """
        known: _Chosen = self._known
        step = 0 if not self._numbered else min(step, 2) if self._first else step
        if known.params is not params or known.step != step or (
                known.dtype != target.dtype or known.arrays != arrays):
            known = self._known = self._chosen(params, step, (target,) * arrays)
        return known

    def _chosen(self, params: Params, step: int, arrays: tuple[Array, ...]) -> _Chosen:
        """The program for a tensor of these arrays."""
        dtype, count, known = arrays[0].dtype, len(arrays), self._known
        if not self._first and known.params is params and (
                known.dtype == dtype and known.arrays == count):
            again: _Chosen = known.at(step)
            return again
        given: Params = {**params, **{n: params[n] or None for n in self._neglected}}
        if self._numbered:
            given["step"] = step
        given |= {n: v for n, v in (("first", step == 1), ("deferred", False))
                  if n in self.formula.params}
        rare, all_given = None, [given]
        if self.limits:
            given["most"] = most = largest(arrays[-1].dtype)
            if most > _WIDE:
                all_given = [{**given, "most": None}, given]
                rare = self._program(dtype, count, given)
        program = self._program(dtype, count, all_given[0])
        in_c = rare or program if (rare or program).kernel is not None else None
        return _Chosen(params, step, dtype, count, program, program.numbers(**all_given[0]), rare,
                       all_given, in_c, () if in_c is None else in_c.constants(**all_given[-1]))

    def _program(self, dtype: np.dtype, arrays: int, params: Params) -> Program:
        """For a tensor of so many arrays, with the flags of these parameters."""
        dtype = computed_in(dtype)
        static = _static(params)
        key = dtype, arrays, static
        found = self._programs.get(key)
        if found is None:
            inputs, numbers = self.formula.inputs, (1,) if self.uniform else ()
            absent = tuple(range(arrays + len(numbers), len(inputs)))
            found = self._programs[key] = Program(
                self.formula.graphs(static, absent, numbers), dtype, self.formula, absent, numbers,
                (inputs[0], *inputs[2:arrays + len(numbers)]))
        return found

    # -- CUDA -------------------------------------------------------------------------------------

    def flags(self, params: Params) -> Key:
        """The parameters in which tensors of one launch must agree: all but numbers."""
        return tuple([item for item in params.items() if item[0] not in self._neglected
                      and (item[1] is None or item[1] is True or item[1] is False)])

    def numbers(self, params: Params) -> tuple[float, ...]:
        """The row of a kernel's table for these parameters."""
        return tuple([float(value) for name, value in params.items()
                      if not (value is None or value is True or value is False)
                      or name in self._neglected])

    def gpu(self, *arrays: Array, out: tuple[Array, ...], state: tuple[Array, ...] = (),
            options: Sequence[Params] = ({},), rows: Sequence[int] = (),
            live: Sequence[Array | None] = (), steps: Sequence[tuple[Array, int]] = (),
            ticket: tuple[Array, int] | None = None, counts: Sequence[Array] = (),
            skip: Array | None = None) -> tuple[Array, ...]:
        """One launch for all tensors of contiguous arrays that do not overlap.

        `live` has, for a row, an array with its numbers, or None. `steps` and `ticket` are where
        launches are counted, `counts` the arrays of these; if `skip` is not 0, nothing is changed.
        See `backend.multi_tensor`.
        """
        count = len(out)
        states = len(state) // count
        if self.uniform and len(arrays) > count:
            options, live = [{self.formula.inputs[1]: 0.0}], arrays[count:]
        kernel = self.kernel_of(states, options[0])
        values = [self.numbers(each) for each in options]
        positions = [out, *([] if self.uniform else [arrays[count:]]),
                     *[state[k * count:(k + 1) * count] for k in range(states)]]
        written = (0, *range(2 - self.uniform, len(positions)))
        rows = rows or [0] * count
        launch_apart(positions, written, lambda some, which: kernel(Tensors(
            some, [rows[i] for i in which], values, live,
            [steps[i] for i in which] if steps else (), ticket, skip)))
        return out

    def kernel_of(self, states: int, params: Params) -> MultiTensor:
        """The kernel for these parameters and so many states."""
        key = states, self.flags(params)
        if key not in self._kernels:
            from gtensor.ops.define.formula_cuda import update_kernel  # late: only CUDA needs it

            inputs = self.formula.inputs
            static: Key = (*key[1], *[(n, v) for n, v in (
                ("first", None), ("deferred", True)) if n in self.formula.params])
            roots = self.formula.graphs(static, tuple(range(2 + states, len(inputs))),
                                        (1,) if self.uniform else ())
            names = tuple([name for name, value in params.items()
                           if (name, value) not in key[1]])
            self._kernels[key] = update_kernel(
                self._names.get(states, self.formula.name), roots,
                (inputs[0], *inputs[2:2 + states]), () if self.uniform else (inputs[1],), names,
                self.counted)
        return self._kernels[key]


class Prepared:
    """An update of known tensors on the CPU, whose tiles and buffers are made once."""

    def __init__(
        self, update: Update, targets: Sequence[Tensor], state: Sequence[Array]
    ) -> None:
        self._update = update
        self._targets = [(x, x._array, x._storage) for x in targets]
        self._arrays = 2 + len(state) // len(targets)
        self._pieces: list[tuple[int, slice | None, list[Array]]] | None = None
        self._state = state
        self._buffers: dict[Any, tuple[Array, ...]] = {}

    def serves(self, gradients: Sequence[Tensor | None]) -> bool:
        """Whether the tensors are where they were, and these gradients fit."""
        for (x, array, storage), g in zip(self._targets, gradients, strict=True):
            if g is None:
                return False
            found = g._array
            if x._array is not array or x._storage is not storage or (
                    x._version != storage.version or not found.flags.c_contiguous
                    or found.dtype != array.dtype or found.shape != array.shape):
                return False
        return True

    def _cut(self) -> list[tuple[int, slice | None, list[Array]]]:
        """The tiles: of which tensor, its key for large ones, target and states."""
        pieces: list[tuple[int, slice | None, list[Array]]] = []
        count = len(self._targets)
        for i, (_, target, _) in enumerate(self._targets):
            own = [target, *self._state[i::count]]
            if target.size <= min(SMALL, settings.tile_elements):
                pieces.append((i, None, own))
                continue
            flat = [a.reshape(-1) for a in own]
            pieces += [(i, key, [a[key] for a in flat]) for key in flat_tiles(target.size)]
        return pieces

    def write(
        self, gradients: Sequence[Tensor], options: Sequence[Params], rows: Sequence[int],
        steps: Sequence[int],
    ) -> None:
        """The update with these gradients, options and numbers of steps."""
        self._pieces = self._pieces or self._cut()
        at, arrays, buffers = self._update.at, self._arrays, self._buffers
        try:
            for i, key, (target, *state) in self._pieces:
                known = at(options[rows[i]], steps[i], target, arrays)
                g = gradients[i]._array
                if key is not None:
                    g = g.reshape(-1)[key]
                shape, program = target.shape, known.program
                found = buffers.get((program, shape))
                if found is None:
                    found = buffers[program, shape] = program.buffers(shape)
                if known.numbers[1]:
                    found = (*[a.reshape(shape) for a in known.full(target.size)], *found)
                if known.in_c is not None and settings.compiled:
                    known.by_kernel((target, g, *state))
                elif not program.tile(target, g, *state, *known.numbers[0], *found):
                    assert known.rare is not None
                    known.write_limited((target, g, *state), known.rare.buffers((SMALL,)))
        finally:
            for x, _, _ in self._targets:
                count_write(x)


def _static(params: Params) -> Key:
    """`static_of` for numbers, flags and None, without calls."""
    return tuple([item for item in params.items()
                  if item[1] is None or item[1] is True or item[1] is False])


@lru_cache(16)
def largest(dtype: np.dtype) -> float:
    """A number that sums of shares of it, rounded in the dtype, do not exceed its range by."""
    limits = finfo(dtype)
    return float(limits.max) * (1 - 4 * float(limits.eps))


def update_op(update: Update, doc: str, name: str = "") -> Op:
    """The op with an update's paths, which `write_all` runs."""
    return Op(name or update.formula.name, inputs="tensors", variadic=True, cpu=update.cpu,
              gpu=update.gpu, backward=None, tangent=None, samples=None, asks=update.asks, doc=doc)


def update_of(op: Op) -> Update:
    """The update whose paths an op has."""
    found: Update = op.gpu.__self__
    return found
