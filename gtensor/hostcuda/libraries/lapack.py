"""SciPy's BLAS and LAPACK as raw functions: Cython's table of C functions, called on addresses.

NVIDIA's dense libraries follow BLAS and LAPACK in layout (column-major, leading dimension) and in
most conventions, so that a stand-in is a check of the arguments and one call on the same memory.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

_REAL = {"s": ctypes.c_float, "c": ctypes.c_float, "d": ctypes.c_double, "z": ctypes.c_double}


def lowest(array: np.ndarray) -> int:
    """Where an array's memory begins, which is what BLAS takes for a vector of a negative step."""
    steps = zip(array.shape, array.strides, strict=True)
    return array.ctypes.data + sum(min(0, step * max(0, n - 1)) for n, step in steps)


@cache
def routine(name: str) -> tuple[Any, int]:
    """A routine as a ctypes function, and how many arguments it has."""
    table = cython_blas if name in cython_blas.__pyx_capi__ else cython_lapack
    capsule = table.__pyx_capi__[name]
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    address_of = ctypes.pythonapi.PyCapsule_GetPointer
    address_of.restype, address_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = name_of(capsule)
    count = signature.count(b"*")
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * count)
    return prototype(address_of(capsule, signature)), count


def call(name: str, *arguments: Any) -> int:
    """Calls a routine without a result (a BLAS one or a LAPACK one; `info` is added to the latter).

    bytes are a letter, ints a Fortran integer, floats and complex a number in the routine's
    precision, arrays an address.
    Returns LAPACK's info, 0 for BLAS.
    """
    function, count = routine(name)
    info, real = ctypes.c_int(0), _REAL[name[0]]
    kept: list[Any] = []
    for argument in arguments:
        if isinstance(argument, bytes):
            kept.append(ctypes.c_char_p(argument))
        elif isinstance(argument, int):
            kept.append(ctypes.byref(ctypes.c_int(argument)))
        elif isinstance(argument, float):
            kept.append(ctypes.byref(real(argument)))
        elif isinstance(argument, complex):
            kept.append((real * 2)(argument.real, argument.imag))
        else:
            kept.append(ctypes.c_void_p(lowest(argument)))
    if count == len(arguments) + 1:
        kept.append(ctypes.byref(info))
    elif count != len(arguments):
        raise TypeError(f"{name} has {count} arguments, got {len(arguments)}")
    function(*kept)
    return info.value
