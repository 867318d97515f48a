"""Updates: formulas with several values, which overwrite inputs. Both paths follow from them.

    def momentum(ns, p, g, m, *, rate, keep):
        m = keep * m + g
        return p - rate * m, m

The values overwrite, in order, the first input and those from the third on, the state; the second
is only read. A path takes many tensors at once: `path(*targets, *gradients, out=targets,
state=states, options=options, rows=rows)`. `state` has first all tensors' first states, then all
second ones; tensor i has the parameters `options[rows[i]]`, which may differ in numbers only.

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
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from ml_dtypes import finfo

from gtensor.backend import Scratch, host
from gtensor.backend.multi_tensor import Tensors, launch_apart
from gtensor.ops.build.cpu_tiles import computed_in, tile_size, whole_tiles
from gtensor.ops.build.formula import Formula, Key
from gtensor.ops.build.formula_numpy import Program, full_tile
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.multi_tensor import MultiTensor
    from gtensor.backend.typing import Array, Params, Path

SMALL = 1024  # elements up to which buffers are kept for the next call
_WIDE = 1e30  # float16 alone has a largest number below it; float32 overflows later


_Numbered: TypeAlias = "tuple[Program, tuple[tuple[Array, ...], tuple[Array, ...]]]"


class _Chosen(NamedTuple):
    """A program and its numbers, what they were made for, and what limits, where that is rare."""

    params: Params
    step: int
    dtype: np.dtype
    states: int
    program: Program
    numbers: tuple[tuple[Array, ...], tuple[Array, ...]]
    rare: Callable[[], _Numbered] | None
    given: list[Params]  # what the numbers were made of, and those of `rare`

    def at(self, step: int) -> _Chosen:
        """The same for another step, of the same program."""
        for params in self.given:
            params["step"] = step
        return self._replace(step=step, numbers=self.program.numbers(**self.given[0]))

    def write(self, arrays: Sequence[Array], rows: Sequence[Array]) -> None:
        """One tile of contiguous arrays in the dtype that is computed in."""
        program, (numbers, filled) = self.program, self.numbers
        if filled:
            rows = (*_full(filled, arrays[0]), *rows)
        if not program.tile(*arrays, *numbers, *rows):
            self.write_limited(arrays)

    def write_limited(self, arrays: Sequence[Array]) -> None:
        """The same where a watched value overflows."""
        assert self.rare is not None
        program, (numbers, filled) = self.rare()
        program.tile(*arrays, *numbers, *_full(filled, arrays[0]),
                     *program.buffers(arrays[0].shape))


def _full(numbers: tuple[Array, ...], like: Array) -> list[Array]:
    return [full_tile(float(value), like.dtype, like.size).reshape(like.shape) for value in numbers]


class _Buffers:
    """Buffers of a tile's size that all tensors of an update share."""

    def __init__(self, tensors: Sequence[Array]) -> None:
        self._tensors = tensors
        self._made: dict[np.dtype, Scratch] = {}

    def of(self, dtype: np.dtype, count: int) -> Scratch:
        """At least so many, each as large as the largest tile."""
        found = self._made.get(dtype)
        if found is None or len(found.buffers) < count:
            size = max([tile_size(tensor.shape) for tensor in self._tensors])
            found = self._made[dtype] = host().workspace(size, dtype, count)
        return found


def _in_tiles(
    chosen: _Chosen, arrays: tuple[Array, ...], copied: list[bool], shared: _Buffers
) -> None:
    program = chosen.program
    if all(a.flags.c_contiguous for a in arrays):
        arrays = tuple([a.reshape(-1) for a in arrays])
    count = program.floats + sum(copied)
    scratch = shared.of(program.dtype, count) if count else None
    last: tuple[int, ...] | None = None
    for key in whole_tiles(arrays[0].shape):
        places = [a[key] for a in arrays]
        if places[0].shape != last:
            last = places[0].shape
            buffers = [scratch(i, last) for i in range(count)] if scratch is not None else []
            rows = (*buffers[count - program.floats:],
                    *[np.empty(last, np.bool_) for _ in range(program.conditions)])
        if count == program.floats:
            chosen.write(places, rows)
            continue
        spare = iter(buffers)
        _in_copies(chosen, places, copied, [next(spare) if c else None for c in copied], rows)


def _in_copies(chosen: _Chosen, places: Sequence[Array], copied: list[bool],
               copies: list[Array | None], rows: Sequence[Array]) -> None:
    values = [place if copy is None else copy for place, copy in zip(places, copies, strict=True)]
    for value, place, copy in zip(values, places, copied, strict=True):
        if copy:
            value[...] = place
    chosen.write(values, rows)
    for i, copy in enumerate(copied):
        if copy and i != 1:
            places[i][...] = values[i]


NOTHING = SimpleNamespace(params=None)


class Update:
    """The two paths of an update of many tensors.

    Where `uniform`, the second input is one number for all tensors: it is among the options under
    its name, or it is the last input.
    """

    def __init__(self, name: str, function: Path, other: dict[int, str] | None = None, *,
                 neglected: tuple[str, ...] = (), uniform: bool = False,
                 counted: bool = False) -> None:
        """`other`: names of the kernel for so many states, if not `name`. `counted`: CUDA counts
        the updates of each tensor."""
        self.formula = Formula(name, function)
        self.counted = counted
        self._names = other or {}
        self._neglected = neglected
        self.uniform = uniform
        self.limits = "most" in self.formula.params
        self._numbered = "step" in self.formula.params
        self._first = "first" in self.formula.params  # on the CPU later steps are then alike
        self._programs: dict[Any, Program] = {}
        self._known: Any = NOTHING
        self._kernels: dict[Any, MultiTensor] = {}

    # -- the CPU ----------------------------------------------------------------------------------

    def cpu(self, *arrays: Array, out: tuple[Array, ...], state: tuple[Array, ...] = (),
            options: Sequence[Params], rows: Sequence[int],
            steps: Sequence[int] = ()) -> tuple[Array, ...]:
        """Tile by tile in the arrays, or in copies: in float32 of a half dtype, or contiguous."""
        count = len(out)
        shared = _Buffers(out)
        for i, target in enumerate(out):
            step = steps[i] if self._numbered else 0
            self._one(target, arrays[count + i], state[i::count], options[rows[i]],
                      min(step, 2) if self._first else step, shared)
        return out

    def _one(self, target: Array, gradient: Array, state: tuple[Array, ...], params: Params,
             step: int, shared: _Buffers) -> None:
        known = self._known  # most tensors have these in common
        if known.params is not params or (
                known.dtype != target.dtype or known.states != len(state)):
            known = self._known = self._chosen(params, step, target.dtype, state)
        elif known.step != step:
            known = self._known = (self._chosen(params, step, target.dtype, state) if self._first
                                   else known.at(step))
        program, shape = known.program, target.shape
        arrays = (target, gradient, *state)
        copied = [a.dtype != program.dtype or not a.flags.c_contiguous for a in arrays]
        if target.size > SMALL or target.size > settings.tile_elements:
            _in_tiles(known, arrays, copied, shared)
            return
        rows = program.spare.pop(shape, None) or program.buffers(shape)
        if True in copied or known.numbers[1]:
            _in_copies(known, arrays, copied,
                       [np.empty(shape, program.dtype) if c else None for c in copied], rows)
        elif not program.tile(*arrays, *known.numbers[0], *rows):
            known.write_limited(arrays)
        if len(program.spare) > 15:
            program.spare.clear()
        program.spare[shape] = rows

    def _chosen(
        self, params: Params, step: int, dtype: np.dtype, state: tuple[Array, ...]
    ) -> _Chosen:
        given: Params = {**params, **{n: params[n] or None for n in self._neglected}}
        if self._numbered:
            given["step"] = step
        given |= {n: v for n, v in (("first", step == 1), ("deferred", False))
                  if n in self.formula.params}
        rare, all_given = None, [given]
        if self.limits:
            given["most"] = most = largest(state[-1].dtype)
            if most > _WIDE:
                all_given = [{**given, "most": None}, given]
                rare = partial(self._program, dtype, len(state), given)
        return _Chosen(params, step, dtype, len(state),
                       *self._program(dtype, len(state), all_given[0]), rare, all_given)

    def _program(self, dtype: np.dtype, states: int, params: Params) -> _Numbered:
        dtype = computed_in(dtype)
        static = _static(params)
        key = dtype, states, static
        found = self._programs.get(key)
        if found is None:
            inputs = self.formula.inputs
            absent = tuple(range(2 + states, len(inputs)))
            found = self._programs[key] = Program(
                self.formula.graphs(static, absent), dtype, self.formula, absent, (),
                (inputs[0], *inputs[2:2 + states]))
        return found, found.numbers(**params)

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
            from gtensor.ops.build.formula_cuda import update_kernel  # late: only CUDA needs it

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


def _static(params: Params) -> Key:
    """`static_of` for numbers, flags and None, without calls."""
    return tuple([item for item in params.items()
                  if item[1] is None or item[1] is True or item[1] is False])


@lru_cache(16)
def largest(dtype: np.dtype) -> float:
    """A number that sums of shares of it, rounded in the dtype, do not exceed its range by."""
    limits = finfo(dtype)
    return float(limits.max) * (1 - 4 * float(limits.eps))
