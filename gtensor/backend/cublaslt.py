"""Products with an epilogue by cublasLt: biases, activations, their derivatives, sums.

The description of a product, the layouts of its matrices and the algorithm that cublasLt's
heuristic chooses are kept with a handle, by all that they depend on. A cuBLAS handle stands for one
of cublasLt (NVIDIA, "cuBLAS", "cublasLtHandle_t"). Only the default order of matrices, by columns,
has epilogues, and complex numbers have none.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gtensor.backend.cublas_library import Failed, call
from gtensor.backend.layouts import AS_IT_LIES

if TYPE_CHECKING:
    from gtensor.backend.layouts import Plan

# cublasLtEpilogue_t, which are sums of these
NOTHING = 1
RELU, BIAS, GELU = 2, 4, 32  # what follows a product; GELU's approximation by tanh
RELU_SLOPE, GELU_SLOPE = 8 | 128, 64 | 128  # a factor, from what a forward product has kept
KEEP = 128  # what the slope needs: ReLU a bit for each element, GELU its input
SUMS, FACTOR_SUMS = 16, 512  # of the output's columns; of the second factor's inner axis
GELUS = GELU | 64  # those with GELU or its slope
_VECTORS = BIAS | SUMS | FACTOR_SUMS


class Epilogue(NamedTuple):
    """What follows a product: its code, and the addresses of a vector and of what is kept (or 0).

    `leading` is that of what is kept: elements for GELU, bits for ReLU.
    """

    code: int
    vector: int = 0
    kept: int = 0
    leading: int = 0


# Attributes of a description.
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _VECTOR, _KEPT, _LEADING = 3, 4, 7, 8, 11, 12
_WORKSPACE, _ALIGNMENT = 1, (5, 6, 7, 8)  # of a preference: A, B, C, D
_NOT_SUPPORTED = 15  # cublasStatus_t
_MOST = 512  # products that a handle keeps
_ALIGNED = 256  # bytes
# Bytes. An epilogue's kernels read and write what it points to 16 bytes at a time. No preference
# says how these addresses are aligned: the heuristic goes by those that the description has then
# (NVIDIA, "cuBLAS", "cublasLtMatmulDescAttributes_t", EPILOGUE_AUX_POINTER; cublasLt.h says it of
# BIAS_POINTER, too), and may choose a kernel that faults for less (pytorch/pytorch, 194497).
_EPILOGUE_ALIGNED = 16

Kind: TypeAlias = tuple[int, int, int]  # cudaDataType of inputs and output, cublasComputeType_t
_DOUBLE = 1  # cudaDataType


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t; the first 64 bytes are the algorithm."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4))


class _Product:
    """A product's description, the layouts of its three matrices, and the algorithm for it."""

    def __init__(self, handle: int, key: tuple[Any, ...]) -> None:
        operations, (m, n, k), leading, kind, epilogue, kept_leading, alignments, nbytes = key
        op_a, op_b = operations
        self._code = epilogue
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        scale = _DOUBLE if kind[0] == _DOUBLE else 0
        self.description = self._create("MatmulDesc", kind[2], scale)
        for number, value in ((_TRANSPOSE_A, op_a), (_TRANSPOSE_B, op_b), (_EPILOGUE, epilogue)):
            self._set("MatmulDesc", self.description, number, ctypes.c_int32(value))
        if kept_leading:
            self._set("MatmulDesc", self.description, _LEADING, ctypes.c_int64(kept_leading))
        of_second, of_first, of_out = leading
        self.first = self._create("MatrixLayout", kind[0], *_stored(m, k, op_a), of_first)
        self.second = self._create("MatrixLayout", kind[0], *_stored(k, n, op_b), of_second)
        self.out = self._create("MatrixLayout", kind[1], m, n, of_out)
        self.result = _Result()
        self.found = self._ask(handle, alignments, nbytes)

    def _ask(self, handle: int, alignments: tuple[int, ...], nbytes: int) -> bool:
        """Whether cublasLt has an algorithm; the heuristic wants all addresses that will be given.

        Only those: a product with one more is refused, or writes there.
        """
        self.point_to(Epilogue(0, *(_EPILOGUE_ALIGNED if self._code & uses else 0
                                    for uses in (_VECTORS, KEEP))))
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

    def point_to(self, epilogue: Epilogue) -> None:
        """Set what the epilogue reads and writes."""
        for number, address in ((_VECTOR, epilogue.vector), (_KEPT, epilogue.kept)):
            if address:
                self._set("MatmulDesc", self.description, number, ctypes.c_uint64(address))

    def _create(self, kind: str, *values: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        call(f"cublasLt{kind}Create", ctypes.byref(made), *values)
        self._made.append((kind, made))
        return made

    def _set(self, kind: str, of: ctypes.c_void_p, number: int, value: Any) -> None:
        call(f"cublasLt{kind}SetAttribute", of, number, ctypes.byref(value), ctypes.sizeof(value))

    def close(self) -> None:
        """Free what cublasLt has made."""
        for kind, made in self._made:
            call(f"cublasLt{kind}Destroy", made)


def _stored(rows: int, columns: int, operation: int) -> tuple[int, int]:
    return (rows, columns) if operation == AS_IT_LIES else (columns, rows)


class Prepared:
    """The products of a handle, which one thread at a time uses; the last used comes last."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._products: OrderedDict[tuple[Any, ...], _Product] = OrderedDict()

    def product(self, *key: Any) -> _Product:
        """The product for operations, sizes, leading dimensions, kind, epilogue, ..."""
        found = self._products.get(key)
        if found is None:
            found = self._products[key] = _Product(self._handle, key)
            if len(self._products) > _MOST:
                self._products.popitem(last=False)[1].close()
        else:
            self._products.move_to_end(key)
        return found


def matmul(
    prepared: Prepared, handle: int, laid: Plan, kind: Kind, alpha: Any, first: int, second: int,
    beta: Any, summand: int, out: int, epilogue: Epilogue, workspace: tuple[int, int], stream: int,
) -> bool:
    """Queue a product of two column-major matrices; False where cublasLt has no such epilogue.

    It has none either for a vector, or for what is kept, at less than a multiple of 16 bytes.

    Args:
        first, second, out: addresses. Of a row-major product the first is its second.
        summand: the address of what is added, times beta, which lies as out does or is out.
        workspace: address and bytes.
    """
    if (epilogue.vector | epilogue.kept) % _EPILOGUE_ALIGNED:
        return False
    alignments = tuple([min(_ALIGNED, x & -x) for x in (first, second, summand, out)])
    found = prepared.product(laid.operations, laid.sizes, laid.leading, kind, epilogue.code,
                             epilogue.leading, alignments, workspace[1])
    if not found.found:
        return False
    found.point_to(epilogue)
    call("cublasLtMatmul", handle, found.description, alpha, first, found.first, second,
         found.second, beta, summand, found.out, out, found.out, ctypes.byref(found.result),
         *workspace, stream)
    return True
