"""cuSPARSE: present, so that CuPy's module loads; every function answers "not supported"."""

import ctypes

from gtensor.hostcuda.libraries.calls import Library, require, store

NOT_SUPPORTED, INTERNAL_ERROR = 10, 7  # cusparseStatus_t
NAMES = {0: b"CUSPARSE_STATUS_SUCCESS", NOT_SUPPORTED: b"CUSPARSE_STATUS_NOT_SUPPORTED"}
SENTENCE = ctypes.c_char_p(b"cuSPARSE is not part of the host device")

library = Library("libcusparse.so.12", refusal=NOT_SUPPORTED, internal=INTERNAL_ERROR)
_names = {status: ctypes.c_char_p(name) for status, name in NAMES.items()}


def address(text: ctypes.c_char_p) -> int:
    return ctypes.cast(text, ctypes.c_void_p).value or 0


@library.function("cusparseGetErrorName", "i", result="p")
def error_name(status: int) -> int:
    return address(_names.get(status, _names[NOT_SUPPORTED]))


@library.function("cusparseGetErrorString", "i", result="p")
def error_string(status: int) -> int:
    return address(SENTENCE)


@library.function("cusparseGetVersion", "pp")
def get_version(_: int, result: int) -> None:
    require(bool(result), NOT_SUPPORTED)
    store(result, 12600, "i4")
