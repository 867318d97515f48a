"""The allowed dtypes of tensors: numbers. Every dtype and foreign array is checked here.

Arena memory holds old bytes. An object dtype would interpret them as pointers, so no such dtype may
reach the arena.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend.cuda_streams import cupy

if TYPE_CHECKING:
    from collections.abc import Callable

    from gtensor.backend.typing import CudaArray, DTypeLike

NUMBERS = "biufc"  # kinds of NumPy's dtypes
DEFAULTS = {"f": np.dtype("float32"), "c": np.dtype("complex64")}  # of Python numbers, by kind
_USER_DTYPE = 256  # dtype numbers from here on are user-defined (ml_dtypes)


def element_type(dtype: DTypeLike) -> np.dtype:
    """The dtype object of `dtype`. Raises TypeError if its elements are not numbers."""
    if isinstance(dtype, np.dtype) and dtype.kind in NUMBERS:
        return dtype
    try:
        found = np.dtype(dtype)
    except TypeError:
        from gtensor.system.documents import told

        raise TypeError(f"dtype {told(dtype)} given; wanted a dtype of numbers") from None
    if found.kind in NUMBERS or _of_ml_dtypes(found):
        return found
    raise TypeError(f"dtype {found} given; wanted one of numbers: booleans, integers, floating or "
                    "complex ones")


def set_default_dtype(dtype: DTypeLike) -> None:
    """Make `dtype` that of Python floats for the whole process, float32 at first.

    Creation functions, `gt.random` and the parameters of modules have it where no dtype is given,
    integer tensors beside a Python float, and those in functions of calculus. Complex numbers
    become complex128 with float64, else complex64. What a loss needs in a wider dtype stays so, as
    moments of optimizers do.

    Raises TypeError unless it is float16, bfloat16, float32 or float64.
    """
    found = None if dtype is None else element_type(dtype)  # NumPy's None is float64
    if found is None or not found.isnative or found.name not in (
            "float16", "bfloat16", "float32", "float64"):
        raise TypeError(f"set_default_dtype was given {found}; wanted float16, bfloat16, float32 "
                        "or float64")
    if found != DEFAULTS["f"]:
        from gtensor.system import structure

        structure.changed("the default dtype was set")
    DEFAULTS.update(f=found, c=np.dtype("complex128" if found.itemsize == 8 else "complex64"))


def get_default_dtype() -> np.dtype:
    """The dtype that Python floats become; `set_default_dtype` sets it."""
    return DEFAULTS["f"]


def _of_ml_dtypes(dtype: np.dtype) -> bool:
    return dtype.kind == "V" and dtype.num >= _USER_DTYPE and not dtype.hasobject


def host_array(value: object, reader: str) -> np.ndarray:
    """`value` as a NumPy array of numbers.

    Raises TypeError, which names the `reader`, for other elements, integers too large, and masks;
    ValueError for nested lists of different lengths.
    """
    if type(value) is np.ndarray and value.dtype.kind in NUMBERS:
        return value
    refuse_mask(value, reader)
    try:
        array = np.asarray(value)
    except ValueError as error:
        if not isinstance(value, (list, tuple)):
            raise
        raise ValueError(f"{reader} was given nested lists of different lengths; wanted equally "
                         "long ones") from error
    try:
        element_type(array.dtype)
    except TypeError:
        if array.dtype == object:
            _refuse_large(array, reader)
        if hasattr(value, "toarray"):  # SciPy's, which NumPy takes for one object
            raise TypeError(f"{reader} was given a sparse {type(value).__name__}; wanted a dense "
                            "one, such as its toarray()") from None
        raise TypeError(f"{reader} was given {type(value).__name__} of dtype {array.dtype}; wanted "
                        "numbers: a tensor, an array, or equally long nested lists") from None
    return array


def _refuse_large(objects: np.ndarray, reader: str) -> None:
    """Raises TypeError if one of them is an integer beyond the range of every integer dtype."""
    for item in objects.flat:
        if isinstance(item, int) and not -2**63 <= item < 2**64:
            raise TypeError(f"{reader} was given an integer of {item.bit_length()} bits, too large "
                            "for any dtype of integers; wanted one from -2**63 to 2**64 - 1, or a "
                            "float")


def refuse_mask(value: object, reader: str) -> None:
    """Raises TypeError for an array with a mask, which gtensor would silently drop."""
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray and hasattr(value, "mask"):
        raise TypeError(f"{reader} was given a masked array, whose mask would be lost; wanted a "
                        "plain one, such as its filled(0)")


@cache
def new_array() -> Callable[[tuple[int, ...], np.dtype], CudaArray]:
    """What makes an uninitialized array of CuPy's on the current device.

    `new_array()(shape, dtype)` is `cupy.ndarray(shape, dtype)`, whose constructor takes any
    arguments, which costs as much again as the array.
    """
    array_type = cupy().ndarray
    make = array_type.__base__.__new__

    def made(shape: tuple[int, ...], dtype: np.dtype) -> CudaArray:
        array = make(array_type)
        array._init(shape, dtype)
        return array

    return made
