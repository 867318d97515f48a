"""Kernels over many tensors in one launch, whose table of tensors is an argument by value.

The table is a C++ structure of `kernels/multi_tensor.cuh`: per tensor its addresses, its number of
elements and its row of numbers. As a kernel's argument it takes no copy to the device, and a
captured launch keeps it. A launch takes as many tensors as a table has room for; only more tensors
take more launches. Kernel arguments have at most 4 KB, since CUDA 12.1 almost 32 KB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.backend.kernels import BLOCK, OPTIONS, c_type, inline_includes
from gtensor.backend.layouts import extent

if TYPE_CHECKING:
    from gtensor.backend.typing import CudaArray

CHUNK = 8192  # elements of a block: `gt_chunk` of kernels/multi_tensor.cuh
SMALL, LARGE = (40, 8), (384, 64)  # tensors and rows of a table
_LARGE_SINCE = 12010  # the CUDA version from which on arguments may have 32,764 bytes


class Tensors(NamedTuple):
    """The tensors of a launch, and what the kernel knows of them besides their elements.

    `arrays` has one sequence per position, of contiguous arrays. `rows` has each tensor's row of
    `numbers`; where `live` has an array (float64) for a row, that is read in the place of the
    numbers when the kernel runs. `steps` has the counter of each tensor, as an int64 array and a
    place in it; they are increased if there is a `ticket`, such a counter that is 0. If `skip`
    (float32) is not 0, nothing is written.
    """

    arrays: Sequence[Sequence[CudaArray]]
    rows: Sequence[int]
    numbers: Sequence[tuple[float, ...]]
    live: Sequence[CudaArray | None] = ()
    steps: Sequence[tuple[CudaArray, int]] = ()
    ticket: tuple[CudaArray, int] | None = None
    skip: CudaArray | None = None


class MultiTensor:
    """A kernel over tables: `name`, in CUDA text whose types are those of `letters`.

    The text is that of the kernel `template <typename P, ..., int tensors, int rows> __global__
    void gt_<name>(const gt_table<positions, numbers, tensors, rows> table, ...)`.
    """

    def __init__(self, name: str, text: str, letters: str, positions: int, numbers: int) -> None:
        self.name = name
        self.text = f'#include "multi_tensor.cuh"\n{text}'
        self.letters = letters
        self.positions = positions
        self.numbers = numbers
        self._kernels: dict[Any, Any] = {}
        registered.append(self)

    def __repr__(self) -> str:
        return f"multi_tensor({self.name!r})"

    def source(self) -> str:
        """The text without includes."""
        return inline_includes(self.text, self.name)

    def expression(self, types: Sequence[str], room: tuple[int, int] = SMALL) -> str:
        """The name of the kernel for these C types and this room for tensors and rows."""
        return f"gt_{self.name}<{', '.join([*types, *map(str, room)])}>"

    def __call__(self, tensors: Tensors, *more: Any, blocks_at: Any = None) -> None:
        """Launch on CuPy's current stream; `more` are further arguments.

        With `blocks_at`, an array, a last argument is the place in it of the launch's first block.
        """
        types = tuple([c_type(arrays[0].dtype) for arrays in tensors.arrays])[:len(self.letters)]
        before = 0
        for part in _parts(tensors):
            room = SMALL if _fits(part, SMALL) else LARGE
            kernel = self._kernels.get((types, room)) or self._load(types, room)
            table, blocks = self._table(tensors, part, room)
            if not blocks and tensors.ticket is None:
                continue
            given = more if blocks_at is None else (*more, blocks_at[before:])
            kernel((max(1, blocks),), (BLOCK,), (table, *given))
            before += blocks

    def _load(self, types: tuple[str, ...], room: tuple[int, int]) -> Any:
        import cupy

        name = self.expression(types, room)
        module = cupy.RawModule(code=self.source(), options=OPTIONS, name_expressions=[name])
        kernel = self._kernels[types, room] = module.get_function(name)
        return kernel

    def _table(self, tensors: Tensors, part: _Part, room: tuple[int, int]) -> tuple[Any, int]:
        """The table of some of the tensors, and how many blocks they take."""
        table = np.zeros((), table_type(self.positions, max(1, self.numbers), *room))
        here = slice(part.start, part.stop)
        size = part.stop - part.start
        counts = [array.size for array in tensors.arrays[0][here]]
        table["size"], table["counts"][:size] = size, counts
        table["first"][:size], blocks = _first_blocks(counts)
        for position, arrays in enumerate(tensors.arrays):
            table["at"][position, :size] = [array.data.ptr for array in arrays[here]]
        for k, row in enumerate(part.rows):
            live = tensors.live[row] if tensors.live else None
            if live is not None:
                table["live"][k] = live.data.ptr
            elif self.numbers:
                table["own"][k] = tensors.numbers[row]
        table["row"][:size] = [part.rows.index(row) for row in tensors.rows[here]] if (
            len(part.rows) > 1) else 0
        if tensors.ticket is not None:
            table["ticket"] = tensors.ticket[0].data.ptr + 8 * tensors.ticket[1]
        if tensors.steps:
            table["steps"][:size] = [
                array.data.ptr + 8 * place for array, place in tensors.steps[here]]
        if tensors.skip is not None:
            table["skip"] = tensors.skip.data.ptr
        return table, blocks


class _Part(NamedTuple):
    """Tensors of one launch, and the rows that they have, in the order of the table's rows."""

    start: int
    stop: int
    rows: list[int]


registered: list[MultiTensor] = []
"""Every kernel made so far; the tests compile them without a GPU."""


@cache
def table_type(positions: int, numbers: int, tensors: int, rows: int) -> np.dtype:
    """`gt_table<positions, numbers, tensors, rows>` as NumPy's dtype."""
    pointer = np.uint64
    return np.dtype([
        ("ticket", pointer), ("skip", pointer), ("live", pointer, rows),
        ("own", np.float64, (rows, numbers)), ("steps", pointer, tensors),
        ("counts", np.int64, tensors), ("at", pointer, (positions, tensors)),
        ("first", np.int32, tensors), ("row", np.int32, tensors), ("size", np.int32)], align=True)


def block_count(arrays: Sequence[CudaArray]) -> int:
    """How many blocks the launches over these arrays have together."""
    return sum([-(-array.size // CHUNK) for array in arrays])


def _first_blocks(counts: Sequence[int]) -> tuple[list[int], int]:
    first, blocks = [], 0
    for count in counts:
        first.append(blocks)
        blocks += -(-count // CHUNK)
    return first, blocks


def _fits(part: _Part, room: tuple[int, int]) -> bool:
    return part.stop - part.start <= room[0] and len(part.rows) <= room[1]


def _parts(tensors: Tensors) -> Iterator[_Part]:
    """The tensors in launches, as few as the tables allow."""
    count = len(tensors.rows)
    whole = _Part(0, count, [*range(len(tensors.numbers) or 1)])
    if _fits(whole, SMALL):
        yield whole
        return
    most, most_rows = _largest()
    start, rows = 0, dict[int, None]()
    for at, row in enumerate(tensors.rows):
        if at - start == most or (row not in rows and len(rows) == most_rows):
            yield _Part(start, at, [*rows])
            start, rows = at, {}
        rows[row] = None
    yield _Part(start, count, [*rows])


@cache
def _largest() -> tuple[int, int]:
    """The room of the largest table that this machine's kernels take."""
    from cupy.cuda import nvrtc, runtime

    compiler = nvrtc.getVersion()
    version = min(1000 * compiler[0] + 10 * compiler[1], runtime.driverGetVersion())
    return LARGE if version >= _LARGE_SINCE else SMALL


def launch_apart(
    positions: Sequence[Sequence[CudaArray]], written: Sequence[int],
    launch: Callable[[Sequence[Sequence[CudaArray]], Sequence[int]], None],
) -> None:
    """`launch(arrays, which)` for tensors in one launch, or one by one where arrays overlap.

    `written` are the numbers of the positions that the launch writes. Arrays that are not
    contiguous are copied before it, and back after it if they are written.
    """
    if _overlap(positions, written):
        _one_by_one(positions, written, launch)
        return
    strided = [(k, i) for k, arrays in enumerate(positions) for i, array in enumerate(arrays)
               if not array.flags.c_contiguous]
    if strided:
        given, dense = positions, [list(arrays) for arrays in positions]
        for k, i in strided:
            dense[k][i] = given[k][i].copy()
        positions = dense
    launch(positions, range(len(positions[0])))
    for k, i in strided:
        if k in written:
            given[k][i][...] = positions[k][i]


def _one_by_one(
    positions: Sequence[Sequence[CudaArray]], written: Sequence[int],
    launch: Callable[[Sequence[Sequence[CudaArray]], Sequence[int]], None],
) -> None:
    """A launch for each tensor, which reads what the one before has written."""
    for i in range(len(positions[0])):
        one = [arrays[i] for arrays in positions]
        dense = [a if a.flags.c_contiguous else a.copy() for a in one]
        for k in range(len(one)):
            if k not in written and _overlap([[a] for a in dense], written):
                dense[k] = dense[k].copy()
        launch([[a] for a in dense], [i])
        for k in written:
            if dense[k] is not one[k]:
                one[k][...] = dense[k]


def _overlap(positions: Sequence[Sequence[CudaArray]], written: Sequence[int]) -> bool:
    """Whether an array that is written has memory in common with another array."""
    begins, ends, writes = [], [], []
    for k, arrays in enumerate(positions):
        for array in arrays:
            low, high = extent(array)
            begins.append(low)
            ends.append(high - low)
        writes += [k in written] * len(arrays)
    begin = np.array(begins, np.uint64)
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    end = begin + np.array(ends, np.uint64)[order]
    near = np.flatnonzero(begin[1:] < np.maximum.accumulate(end)[:-1])
    return bool(len(near)) and _written_twice(begin, end, np.array(writes)[order])


def _written_twice(begin: np.ndarray, end: np.ndarray, writes: np.ndarray) -> bool:
    """Whether a range that is written has an element of another one; ranges by their begin."""
    for i, last in enumerate(end):
        others = slice(i + 1, int(np.searchsorted(begin, last)))
        if (end[others] > begin[others]).any() and last > begin[i] and (
                writes[i] or writes[others].any()):
            return True
    return False
