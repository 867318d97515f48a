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

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_dtypes import finfo

from gtensor.backend import Scratch, host
from gtensor.ops.build.cpu_tiles import computed_in, tile_size, whole_tiles
from gtensor.ops.build.formula import Formula, Key
from gtensor.ops.build.formula_numpy import Program, full, numbers_of
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.kernels import Elementwise
    from gtensor.backend.typing import Array, Params, Path, Scalar

_SPARE = 1024  # elements up to which a program's buffers are kept for the next call
_WIDE = 1e30  # float16 alone has a largest number below it; float32 overflows later


class Update:
    """The two paths of an update: (target, gradient, *, out, state, **params)."""

    def __init__(self, name: str, function: Path, other: dict[int, str] | None = None) -> None:
        """`other`: names of the kernel for so many states, if not `name`."""
        self.formula = Formula(name, function)
        self._names = other or {}
        self.limits = "most" in self.formula.params
        self._programs: dict[Any, Program] = {}
        self._kernels: dict[Any, tuple[Elementwise, Any]] = {}

    # -- the CPU ----------------------------------------------------------------------------------

    def cpu(self, target: Array, gradient: Array, *, out: Array, state: tuple[Array, ...] = (),
            scratch: Scratch | None = None, **params: Any) -> Array:
        """Tile by tile in the arrays, or in copies: in float32 of a half dtype, or contiguous."""
        arrays = (out, gradient, *state)
        work = computed_in(out.dtype)
        limited = params
        if self.limits:
            most = largest(arrays[-1].dtype)
            limited = {**params, "most": most}
            params["most"] = None if most > _WIDE else most
        program = self._program(work, len(state), params)
        copied = [a.dtype is not work or not a.flags.c_contiguous for a in arrays]
        if out.size > _SPARE or out.size > settings.tile_elements or True in copied:
            self._in_tiles(program, arrays, copied, scratch, params, limited)
            return out
        rows = program.spare.pop(out.shape, None) or program.buffers(out.shape)
        self._run(program, arrays, rows, params, limited)
        if len(program.spare) > 15:
            program.spare.clear()
        program.spare[out.shape] = rows
        return out

    def _run(self, program: Program, arrays: Any, rows: Any, params: Params,
             limited: Params) -> None:
        """One tile of contiguous arrays in the dtype that is computed in."""
        known = program.known
        if known is None or known[0] != params:  # parameters of a group have them in common
            known = program.known = params, *program.numbers(**params)
        _, numbers, filled = known
        if filled:
            place = arrays[0]
            rows = (*[full(float(value), place.dtype, place.size).reshape(place.shape)
                      for value in filled], *rows)
        if not program.tile(*arrays, *numbers, *rows):
            rare = self._program(program.dtype, len(arrays) - 2, limited)
            self._run(rare, arrays, rare.buffers(arrays[0].shape), limited, limited)

    def _in_tiles(self, program: Program, arrays: tuple[Array, ...], copied: list[bool],
                  scratch: Scratch | None, params: Params, limited: Params) -> None:
        shape, floats = arrays[0].shape, program.floats
        count = floats + sum(copied)
        if scratch is None or len(scratch.buffers) < count:
            scratch = host().workspace(tile_size(shape), program.dtype, count)
        for key in whole_tiles(shape):
            places = [a[key] for a in arrays]
            rows = [scratch(i, places[0].shape) for i in range(count)]
            copies = iter(rows[floats:])
            values = [next(copies) if copy else place
                      for copy, place in zip(copied, places, strict=True)]
            for value, place in zip(values, places, strict=True):
                if value is not place:
                    np.copyto(value, place, casting="unsafe")
            masks = [np.empty(places[0].shape, np.bool_) for _ in range(program.conditions)]
            self._run(program, values, (*rows[:floats], *masks), params, limited)
            for i, (value, place) in enumerate(zip(values, places, strict=True)):
                if value is not place and i != 1:
                    np.copyto(place, value, casting="unsafe")

    def _program(self, dtype: np.dtype, states: int, params: Params) -> Program:
        key = dtype, states, _static(params)
        found = self._programs.get(key)
        if found is None:
            inputs = self.formula.inputs
            absent = tuple(range(2 + states, len(inputs)))
            found = self._programs[key] = Program(
                self.formula.graphs(key[2], absent), dtype, self.formula, absent, (),
                (inputs[0], *inputs[2:2 + states]))
        return found

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
