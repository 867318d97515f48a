"""Updates: formulas with several values, which overwrite inputs. Both paths follow from them.

    def momentum(ns, p, g, m, *, rate, keep):
        m = keep * m + g
        return p - rate * m, m

The values overwrite, in order, the first input and those from the third on, the state; the second
is only read. The paths take the first as `out`, too, and the state as a tuple.

A formula may have the parameter `most`: the largest number of the state's dtype, to which it limits
its values, or None if that is not needed. Then it returns further values, which are watched: if one
of them overflows in a tile on the CPU, the tile is computed with the limit. CUDA always limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from ml_dtypes import finfo

from gtensor.backend import Scratch, host
from gtensor.ops.build.cpu_tiles import computed_in, tile_size, whole_tiles
from gtensor.ops.build.formula import Formula, Key
from gtensor.ops.build.formula_numpy import Program, full_tile, numbers_of
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.kernels import Elementwise
    from gtensor.backend.typing import Array, Params, Path, Scalar

SMALL = 1024  # elements up to which buffers are kept for the next call
_WIDE = 1e30  # float16 alone has a largest number below it; float32 overflows later


_Numbered: TypeAlias = "tuple[Program, tuple[tuple[Array, ...], tuple[Array, ...]]]"


class _Chosen(NamedTuple):
    """A program and its numbers, what they were made for, and what limits, where that is rare."""

    params: Params
    dtype: np.dtype
    states: int
    program: Program
    numbers: tuple[tuple[Array, ...], tuple[Array, ...]]
    rare: Callable[[], _Numbered] | None

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


def _in_tiles(
    chosen: _Chosen, arrays: tuple[Array, ...], copied: list[bool], scratch: Scratch | None
) -> None:
    program = chosen.program
    if all(a.flags.c_contiguous for a in arrays):
        arrays = tuple([a.reshape(-1) for a in arrays])
    count = program.floats + sum(copied)
    if scratch is None or len(scratch.buffers) < count:
        scratch = host().workspace(tile_size(arrays[0].shape), program.dtype, count)
    last: tuple[int, ...] | None = None
    for key in whole_tiles(arrays[0].shape):
        places = [a[key] for a in arrays]
        if places[0].shape != last:
            last = places[0].shape
            buffers = [scratch(i, last) for i in range(count)]
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
    """The two paths of an update: (target, gradient, *, out, state, **params)."""

    def __init__(self, name: str, function: Path, other: dict[int, str] | None = None) -> None:
        """`other`: names of the kernel for so many states, if not `name`."""
        self.formula = Formula(name, function)
        self._names = other or {}
        self.limits = "most" in self.formula.params
        self._programs: dict[Any, Program] = {}
        self._known: Any = NOTHING
        self._kernels: dict[Any, tuple[Elementwise, Any]] = {}

    # -- the CPU ----------------------------------------------------------------------------------

    def cpu(self, target: Array, gradient: Array, *, out: Array, state: tuple[Array, ...] = (),
            scratch: Scratch | None = None, **params: Any) -> Array:
        """Tile by tile in the arrays, or in copies: in float32 of a half dtype, or contiguous."""
        known = self._known  # the parameters of a group, and often all, have these in common
        if known.params != params or known.dtype is not out.dtype or known.states != len(state):
            known = self._known = self._chosen(params, out.dtype, state)
        program, shape = known.program, out.shape
        arrays = (out, gradient, *state)
        copied = [a.dtype is not program.dtype or not a.flags.c_contiguous for a in arrays]
        if out.size > SMALL or out.size > settings.tile_elements:
            _in_tiles(known, arrays, copied, scratch)
            return out
        rows = program.spare.pop(shape, None) or program.buffers(shape)
        if True in copied or known.numbers[1]:
            _in_copies(known, arrays, copied,
                       [np.empty(shape, program.dtype) if c else None for c in copied], rows)
        elif not program.tile(*arrays, *known.numbers[0], *rows):
            known.write_limited(arrays)
        if len(program.spare) > 15:
            program.spare.clear()
        program.spare[shape] = rows
        return out

    def _chosen(self, params: Params, dtype: np.dtype, state: tuple[Array, ...]) -> _Chosen:
        given, rare = params, None
        if self.limits:
            most = largest(state[-1].dtype)
            given = {**params, "most": most}
            if most > _WIDE:
                rare = partial(self._program, dtype, len(state), given)
                given = {**params, "most": None}
        return _Chosen(params, dtype, len(state), *self._program(dtype, len(state), given),
                       rare)

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

    def gpu(self, target: Array, gradient: Array | Scalar, *, out: Array,
            state: tuple[Array, ...] = (), scratch: None = None, **params: Any) -> Array:
        """One kernel, which takes what is the same for all elements as few numbers."""
        number = isinstance(gradient, (int, float))
        if number:
            params[self.formula.inputs[1]] = gradient
        if self.limits:
            params["most"] = largest((out, *state)[-1].dtype)
        kernel, numbers = self.kernel_of(len(state), number, params)
        given = numbers(**params)
        kernel(*(given if number else (gradient, *given)), out=(out, *state) if state else out)
        return out

    def kernel_of(self, states: int, number: bool, params: Params) -> tuple[Elementwise, Any]:
        """The kernel for these parameters, and the function that makes its numbers of them."""
        key = states, number, _static(params)
        if key not in self._kernels:
            from gtensor.ops.build.formula_cuda import update_kernel  # late: only CUDA needs it

            inputs = self.formula.inputs
            roots = self.formula.graphs(key[2], tuple(range(2 + states, len(inputs))),
                                        (1,) if number else ())
            kernel, numbers = update_kernel(
                self._names.get(states, self.formula.name), roots,
                (inputs[0], *inputs[2:2 + states]), () if number else (inputs[1],))
            self._kernels[key] = kernel, numbers_of(numbers, params)
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
