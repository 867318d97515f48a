"""The functions of cuBLAS and cublasLt, of the libraries that CuPy has loaded."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from gtensor.backend.cuda_streams import cupy

_STATUS = {  # cublasStatus_t
    1: "not initialized", 3: "allocation failed", 7: "invalid value", 8: "architecture mismatch",
    11: "mapping error", 13: "execution failed", 14: "internal error", 15: "not supported",
    16: "license error"}

_POINTER, _NUMBER, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_UNSIGNED, _SIZE = ctypes.c_uint64, ctypes.c_size_t
_PRODUCT = (_POINTER, _NUMBER, _NUMBER, _LONG, _LONG, _LONG, _POINTER)  # to alpha
_MATRIX, _MATRICES = (_POINTER, _NUMBER, _LONG), (_POINTER, _NUMBER, _LONG, _LONG)
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cublasCreate_v2": (_POINTER,),
    "cublasSetMathMode": (_POINTER, _NUMBER),
    "cublasSetStream_v2": (_POINTER, _POINTER),
    "cublasSetWorkspace_v2": (_POINTER, _POINTER, _SIZE),
    "cublasGemmEx_64": (*_PRODUCT, *_MATRIX * 2, _POINTER, *_MATRIX, _NUMBER, _NUMBER),
    "cublasGemmStridedBatchedEx_64": (
        *_PRODUCT, *_MATRICES * 2, _POINTER, *_MATRICES, _LONG, _NUMBER, _NUMBER),
    "cublasGemmBatchedEx_64": (
        *_PRODUCT, *_MATRIX * 2, _POINTER, *_MATRIX, _LONG, _NUMBER, _NUMBER),
    "cublasLtMatmulDescCreate": (_POINTER, _NUMBER, _NUMBER),
    "cublasLtMatrixLayoutCreate": (_POINTER, _NUMBER, _UNSIGNED, _UNSIGNED, _LONG),
    "cublasLtMatmulPreferenceCreate": (_POINTER,),
    **{f"cublasLt{kind}{verb}": arguments for kind in ("MatmulDesc", "MatrixLayout",
                                                       "MatmulPreference")
       for verb, arguments in (("Destroy", (_POINTER,)),
                               ("SetAttribute", (_POINTER, _NUMBER, _POINTER, _SIZE)))},
    "cublasLtMatmulAlgoGetHeuristic": (*(_POINTER,) * 7, _NUMBER, _POINTER, _POINTER),
    "cublasLtMatmul": (*(_POINTER,) * 14, _SIZE, _POINTER),
}


class Failed(Exception):
    """A function of cuBLAS answered with an error."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function} answered status {status} ({_STATUS.get(status, 'unknown')})")
        self.status = status


@cache
def _function(name: str) -> Any:
    """A function by name: it is found through CuPy's module, which links the libraries."""
    from cupy_backends.cuda.libs import cublas

    try:
        found = getattr(ctypes.CDLL(cublas.__file__), name)
    except AttributeError:  # a libcublas that does not link libcublasLt
        major = cupy().cuda.runtime.runtimeGetVersion() // 1000
        found = getattr(ctypes.CDLL(f"libcublasLt.so.{major}"), name)
    found.argtypes = _ARGUMENTS[name]
    return found


def call(name: str, *arguments: object) -> None:
    """Call a function by name; raises `Failed` for another status than success."""
    status = _function(name)(*arguments)
    if status:
        raise Failed(name, status)
