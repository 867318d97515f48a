"""The functions of Thrust in CuPy's module `thrust`: stable sorts, by NumPy on the pointers.

Source: CuPy 14.2's cupy_thrust.cu (signatures, order of NaN and complex numbers, overwritten
arguments). All keys compare as in NumPy, NaN last. Unlike Thrust, it allocates no temporary memory
from CuPy.
"""

import numpy as np

from gtensor.hostcuda.libraries.calls import Library, enqueue, pointers, view
from gtensor.hostcuda.libraries.cub import DTYPES

library = Library("cupy/cuda/thrust")
function = library.function


def shape_of(vector: int) -> tuple[int, int]:
    """Rows and length of rows from a std::vector<ptrdiff_t>: its begin and end pointers."""
    begin, end = pointers(vector, 2)
    *rows, length = (int(size) for size in view(begin, ((end - begin) // 8,), "i8"))
    return int(np.prod(rows, dtype="i8")), length


def row_numbers(keys: int, rows: int, length: int) -> None:
    """For more than one dimension the number of each element's row was the first key."""
    if keys:
        view(keys, (rows, length), "u8")[...] = np.arange(rows, dtype="u8")[:, None]


@function("_Z11thrust_sortiPvPmRKSt6vectorIlSaIlEElS_", "i ppp l p", result="v")
def sort(dtype: int, data: int, keys: int, shape: int, stream: int, memory: int) -> None:
    rows, length = shape_of(shape)

    def work() -> None:
        view(data, (rows, length), DTYPES[dtype]).sort(axis=-1, kind="stable")
        row_numbers(keys, rows, length)

    enqueue(stream, "thrust::stable_sort", work, 0)


@function("_Z14thrust_argsortiPmPvS0_RKSt6vectorIlSaIlEElS0_", "i pppp l p", result="v")
def argsort(
    dtype: int, index: int, data: int, keys: int, shape: int, stream: int, memory: int
) -> None:
    """The data is sorted, too."""
    rows, length = shape_of(shape)

    def work() -> None:
        values = view(data, (rows, length), DTYPES[dtype])
        order = np.argsort(values, axis=-1, kind="stable")
        view(index, (rows, length), "u8")[...] = order
        values[...] = np.take_along_axis(values, order, axis=-1)
        row_numbers(keys, rows, length)

    enqueue(stream, "thrust::stable_sort_by_key", work, 0)


@function("_Z14thrust_lexsortiPmPvmmlS0_", "i pp zz l p", result="v")
def lexsort(
    dtype: int, index: int, keys: int, count: int, n: int, stream: int, memory: int
) -> None:
    """The last key is the first that is looked at."""

    def work() -> None:
        order = np.arange(n)
        for key in view(keys, (count, n), DTYPES[dtype]):
            order = order[np.argsort(key[order], kind="stable")]
        view(index, (n,), "u8")[...] = order

    enqueue(stream, "thrust::lexsort", work, 0)
