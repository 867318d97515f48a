"""How matrices lie in memory, and the BLAS calls that multiply them there.

Arrays are row-major, the matrices of BLAS and cuBLAS column-major: out.T = b.T @ a.T is computed on
the same memory. By its strides an operand is read directly or transposed, so a transposed view or a
slice of a larger buffer needs no copy. A matrix with a step between elements along both axes can be
neither read nor written by BLAS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

AS_IT_LIES, TRANSPOSED = 0, 1  # the operation on an operand, as in cublasOperation_t

# The shape of an array, its strides in bytes, and the bytes of an element.
At: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]


class Axis(NamedTuple):
    """An axis of several arrays: its length, and what a step along it adds in each, in elements."""

    length: int
    steps: tuple[int, ...]  # of a, b, out, and what else a product reads

    def all_steps(self) -> tuple[int, ...]:
        """What as many steps as the axis is long add."""
        return tuple([self.length * step for step in self.steps])


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """The axes, outermost first; neighbours are one where one step of each array covers both."""
    found: list[Axis] = []
    for axis in axes:
        if axis.length == 1:
            continue
        if found and found[-1].steps == axis.all_steps():
            found[-1] = Axis(found[-1].length * axis.length, axis.steps)
        else:
            found.append(axis)
    return found


class _Laid(NamedTuple):
    """The layout of an array: its shape, and its strides in elements."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]

    def swapped(self) -> _Laid:
        """The layout of the matrices' transposes."""
        return _Laid((*self.shape[:-2], *self.shape[:-3:-1]),
                     (*self.steps[:-2], *self.steps[:-3:-1]))

    def read(self) -> tuple[int, int]:
        """The operation and leading dimension for the matrices; 0 if BLAS cannot read them."""
        (rows, columns), (down, across) = self.shape[-2:], self.steps[-2:]
        leading = _leading(rows, columns, down, across)
        if leading:
            return AS_IT_LIES, leading
        return TRANSPOSED, _leading(columns, rows, across, down)

    def over(self, count: int) -> tuple[int, ...]:
        """Strides along `count` leading axes, 0 along those that the matrices repeat over."""
        steps = [s if n > 1 else 0 for n, s in zip(self.shape[:-2], self.steps, strict=False)]
        return (0,) * (count - len(steps)) + tuple(steps)


def _leading(rows: int, columns: int, down: int, across: int) -> int:
    """The leading dimension of a matrix with contiguous rows; 0 if they are not contiguous."""
    if columns > 1 and across != 1:
        return 0
    if rows == 1:
        return columns
    return down if down >= columns else 0


class Plan(NamedTuple):
    """The products out.T = b.T @ a.T, whose columns are out's rows."""

    exchanged: bool  # a is b.T and b is a.T, since out.T has contiguous rows
    operations: tuple[int, int]  # on the first operand of the call, b, and on the second, a
    sizes: tuple[int, int, int]  # columns and rows of out, inner length
    leading: tuple[int, int, int]  # of a, b, out
    axes: tuple[Axis, ...]  # of a batch: those that one step covers are one
    step_bits: int  # the steps of all axes, in bytes, or-ed: shows how the matrices are aligned

    def products(self) -> int:
        """How many there are."""
        return prod(axis.length for axis in self.axes)

    def longest_even(self) -> tuple[Axis, Plan]:
        """The longest axis with no negative step, and the plan without it."""
        even = [axis for axis in self.axes if min(axis.steps) >= 0]
        chosen = max(even, key=lambda axis: axis.length, default=Axis(1, (0, 0, 0)))
        rest = [axis for axis in self.axes if axis is not chosen]
        return chosen, self._replace(axes=tuple(rest))

    def starts(self) -> Iterator[tuple[int, ...]]:
        """Where the matrices of each product begin in a, b and out, in elements."""
        for index in product(*(range(n) for n, _ in self.axes)):
            yield tuple(sum(i * steps[which] for i, (_, steps) in zip(index, self.axes,
                                                                      strict=True))
                        for which in range(3))


@lru_cache(1024)
def plan(a_at: At, b_at: At, out_at: At) -> Plan | None:
    """The plan from (shape, strides, itemsize) of each; None if BLAS cannot read or write one."""
    if not (_in_elements(a_at) and _in_elements(b_at) and _in_elements(out_at)):
        return None
    a, b, out = (_laid(x) for x in (a_at, b_at, out_at))
    operation, leading = out.read()
    exchanged = operation == TRANSPOSED
    if exchanged:
        a, b, out = b.swapped(), a.swapped(), out.swapped()
    (op_a, leading_a), (op_b, leading_b) = a.read(), b.read()
    if not (leading and leading_a and leading_b):
        return None
    lead, rows = out.shape[:-2], out.shape[-2]
    steps = zip(*(x.over(len(lead)) for x in (a, b, out)), strict=True)
    axes = merged(map(Axis, lead, steps))
    if axes and op_a == AS_IT_LIES and axes[-1].steps == (rows * leading_a, 0, rows * leading):
        rows *= axes.pop().length  # b serves all: the matrices of a are rows of one
    sizes = a_at[2], b_at[2], out_at[2]
    if exchanged:
        sizes = sizes[1], sizes[0], sizes[2]
    step_bits = 0
    for axis in axes:
        for step, size in zip(axis.steps, sizes, strict=True):
            step_bits |= step * size
    return Plan(exchanged, (op_b, op_a), (out.shape[-1], rows, a.shape[-1]),
                (leading_a, leading_b, leading), tuple(axes), step_bits)


def readable(x: At) -> bool:
    """Whether BLAS can read and write the matrices where they lie."""
    return _in_elements(x) and _laid(x).read()[1] > 0


def _in_elements(x: At) -> bool:
    """Whether strides are whole elements; those of a field of records may not be."""
    return not any(stride % x[2] for stride in x[1])


def _laid(x: At) -> _Laid:
    shape, strides, size = x
    return _Laid(shape, tuple([stride // size for stride in strides]))


def at(x: Array) -> At:
    """What a plan is made from."""
    return x.shape, x.strides, x.itemsize


def rows_in_step(x: Array) -> bool:
    """Whether all leading axes are rows of one matrix, so that a reshape copies nothing."""
    steps = x.strides
    return all(n == 1 or steps[i] == x.shape[i + 1] * steps[i + 1]
               for i, n in enumerate(x.shape[:-2]))


# -- buffers that may be written -------------------------------------------------------------------


def product_shape(a: Array, b: Array) -> tuple[int, ...]:
    """The shape of a @ b, for two axes or more each."""
    left, right = a.shape, b.shape
    if len(left) == len(right) == 2:
        return left[0], right[1]
    lead: tuple[int, ...] = left[:-2]
    if len(right) > 2 and lead != right[:-2]:
        lead = np.broadcast_shapes(lead, right[:-2])
    return *lead, left[-2], right[-1]


def check_out(a: Array, b: Array, out: Array, shape: tuple[int, ...]) -> None:
    """Raise ValueError for an out of another shape, or that overlaps itself or an input."""
    if out.shape != shape:
        raise ValueError(f"a product of shapes {a.shape} and {b.shape} was given an out of shape "
                         f"{out.shape}; wanted {shape}")
    check_apart(out, a, b)


def check_apart(out: Array, a: Array, b: Array) -> None:
    """Raise ValueError for an out that overlaps itself or an input."""
    if _overlaps_itself(out):
        raise ValueError(f"a product was given an out of shape {out.shape} and strides "
                         f"{out.strides} with elements at one place; wanted memory of its own for "
                         "each")
    if overlap(out, a) or overlap(out, b):
        raise ValueError(f"a product was given an out of shape {out.shape} that overlaps an input; "
                         "wanted memory of its own")


def overlap(x: Array, y: Array) -> bool:
    """Whether two arrays of one library have bytes in common.

    NumPy decides from addresses and strides; CuPy's `shares_memory` runs kernels and waits for
    them. A case that is too hard for NumPy counts as an overlap.
    """
    if isinstance(x, np.ndarray):
        if not np.may_share_memory(x, y):  # compares the ends, quicker than `extent`
            return False
    else:
        (start_x, end_x), (start_y, end_y) = extent(x), extent(y)
        if end_x <= start_y or end_y <= start_x:
            return False
    try:
        work: Any = 10000  # NumPy's type hints allow only -1 and 0
        return np.shares_memory(_on_host(x), _on_host(y), max_work=work)
    except np.exceptions.TooHardError:
        return True


def address(x: Array) -> int:
    """Where an array's first element lies."""
    if isinstance(x, np.ndarray):
        found: int = x.__array_interface__["data"][0]  # `x.ctypes` takes twice as long
        return found
    return int(x.data.ptr)


def extent(x: Array) -> tuple[int, int]:
    """The addresses from the array's first byte to the one behind its last."""
    low = high = address(x)
    for n, stride in zip(x.shape, x.strides, strict=True):
        if not n:
            return low, low
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    return low, high + x.itemsize


class _Place:
    """The address and layout of an array, for NumPy, which does not read the memory."""

    def __init__(self, x: Array) -> None:
        self.__array_interface__ = {
            "version": 3, "data": (address(x), True), "shape": x.shape, "strides": x.strides,
            "typestr": f"|V{x.itemsize}"}


def _on_host(x: Array) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else np.asarray(_Place(x))


def _overlaps_itself(x: Array) -> bool:
    """Whether two indices may lead to one element: an axis steps within the extent of another."""
    if x.flags.c_contiguous or not x.size:
        return False
    end = x.itemsize
    for step, n in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if step < end:
            return True
        end += step * (n - 1)
    return False
