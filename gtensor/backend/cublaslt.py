"""Products with an epilogue by cublasLt: a bias, and the sums that are a bias's gradient.

The description of a product, the layouts of its matrices and the algorithm that cublasLt's
heuristic chooses are kept with a handle, by all that they depend on. A cuBLAS handle stands for one
of cublasLt (NVIDIA, "cuBLAS", "cublasLtHandle_t"). Only the default order of matrices, by columns,
has epilogues, and complex numbers have none.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

from gtensor.backend.cublas_library import Failed, call
from gtensor.backend.layouts import AS_IT_LIES

if TYPE_CHECKING:
    from gtensor.backend.layouts import Plan

BIAS = 4  # cublasLtEpilogue_t: a vector is added to each column of the output
SUMS = 512  # the second factor's sums along the inner axis, CUBLASLT_EPILOGUE_BGRADB

_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _VECTOR, _VECTOR_TYPE = 3, 4, 7, 8, 26  # of a description
_WORKSPACE, _ALIGNMENT = 1, (5, 6, 7, 8)  # of a preference: A, B, C, D
_NOT_SUPPORTED = 15  # cublasStatus_t
_MOST = 512  # products that a handle keeps
_ALIGNED = 256  # bytes

Kind: TypeAlias = tuple[int, int, int]  # cudaDataType of inputs and output, cublasComputeType_t
_DOUBLE = 1  # cudaDataType


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t; the first 64 bytes are the algorithm."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4))


class _Prepared:
    """A product's description, the layouts of its three matrices, and the algorithm for it."""

    def __init__(self, handle: int, key: tuple[Any, ...]) -> None:
        operations, (m, n, k), leading, kind, epilogue, alignments, nbytes = key
        op_a, op_b = operations
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        scale = _DOUBLE if kind[0] == _DOUBLE else 0
        self.description = self._create("MatmulDesc", kind[2], scale)
        for number, value in ((_TRANSPOSE_A, op_a), (_TRANSPOSE_B, op_b), (_EPILOGUE, epilogue),
                              (_VECTOR_TYPE, kind[1])):
            self._set("MatmulDesc", self.description, number, ctypes.c_int32(value))
        of_second, of_first, of_out = leading
        self.first = self._create("MatrixLayout", kind[0], *_stored(m, k, op_a), of_first)
        self.second = self._create("MatrixLayout", kind[0], *_stored(k, n, op_b), of_second)
        self.out = self._create("MatrixLayout", kind[1], m, n, of_out)
        self.result = _Result()
        self.found = self._ask(handle, alignments, nbytes)

    def _ask(self, handle: int, alignments: tuple[int, ...], nbytes: int) -> bool:
        """Whether cublasLt has an algorithm; a vector must be given when the heuristic is asked."""
        self.point_to(_ALIGNED)
        preference = self._create("MatmulPreference")
        self._set("MatmulPreference", preference, _WORKSPACE, ctypes.c_uint64(nbytes))
        for number, value in zip(_ALIGNMENT, alignments, strict=True):
            self._set("MatmulPreference", preference, number, ctypes.c_uint32(value))
        count = ctypes.c_int()
        try:
            call("cublasLtMatmulAlgoGetHeuristic", handle, self.description, self.first,
                 self.second, self.out, self.out, preference, 1, ctypes.byref(self.result),
                 ctypes.byref(count))
        except Failed as error:
            if error.status != _NOT_SUPPORTED:
                raise
        return count.value > 0

    def point_to(self, address: int) -> None:
        """Set the vector that the epilogue reads or writes."""
        self._set("MatmulDesc", self.description, _VECTOR, ctypes.c_uint64(address))

    def _create(self, kind: str, *values: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        call(f"cublasLt{kind}Create", ctypes.byref(made), *values)
        self._made.append((kind, made))
        return made

    def _set(self, kind: str, of: ctypes.c_void_p, number: int, value: Any) -> None:
        call(f"cublasLt{kind}SetAttribute", of, number, ctypes.byref(value),
                 ctypes.sizeof(value))

    def close(self) -> None:
        """Free what cublasLt has made."""
        for kind, made in self._made:
            call(f"cublasLt{kind}Destroy", made)


def _stored(rows: int, columns: int, operation: int) -> tuple[int, int]:
    return (rows, columns) if operation == AS_IT_LIES else (columns, rows)


class Kept:
    """The products of a handle, which one thread at a time uses; the last used comes last."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._products: OrderedDict[tuple[Any, ...], _Prepared] = OrderedDict()

    def prepared(self, *key: Any) -> _Prepared:
        """The product for operations, sizes, leading dimensions, kind, epilogue, ..."""
        found = self._products.get(key)
        if found is None:
            found = self._products[key] = _Prepared(self._handle, key)
            if len(self._products) > _MOST:
                self._products.popitem(last=False)[1].close()
        else:
            self._products.move_to_end(key)
        return found


def matmul(
    kept: Kept, handle: int, laid: Plan, kind: Kind, alpha: Any, first: int, second: int, beta: Any,
    out: int, epilogue: int, vector: int, workspace: tuple[int, int], stream: int,
) -> bool:
    """Queue a product of two column-major matrices; False where cublasLt has no such epilogue.

    Args:
        first, second, out, vector: addresses. Of a row-major product the first is its second.
        workspace: address and bytes.
    """
    alignments = tuple([min(_ALIGNED, x & -x) for x in (first, second, out, out)])
    found = kept.prepared(laid.operations, laid.sizes, laid.leading, kind, epilogue, alignments,
                          workspace[1])
    if not found.found:
        return False
    found.point_to(vector)
    call("cublasLtMatmul", handle, found.description, alpha, first, found.first, second,
         found.second, beta, out, found.out, out, found.out, ctypes.byref(found.result), *workspace,
         stream)
    return True
