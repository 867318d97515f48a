"""What a kernel reads and writes, from its text, its parameters and its machine code.

CuPy's kernels get structures with address, shape and strides of each array; the text names their
types. Kernels of `kernels/` get addresses: the arrays are those that the launcher was called with.
A kernel over many tensors gets a table of them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from cost_model import CONSTANTS, Work
from cost_sass import Code

from gtensor.hostcuda import Launch

WARP = 32
MULTIPROCESSORS = int(CONSTANTS["multiprocessors"].h100)  # an H200 has as many
SIZES = {
    "bool": 1, "char": 1, "signed char": 1, "unsigned char": 1, "short": 2, "unsigned short": 2,
    "int": 4, "unsigned int": 4, "long long": 8, "unsigned long long": 8, "float": 4, "double": 8,
    "float16": 2, "bfloat16": 2, "__half": 2, "__nv_bfloat16": 2, "complex<float>": 8,
    "complex<double>": 16, "size_t": 8, "ptrdiff_t": 8, "long": 8, "unsigned long": 8,
}
_TYPEDEF = re.compile(r"\btypedef ([\w ]+(?:<\w+>)?) (\w+);")
_CARRAY = re.compile(r"(const )?CArray<([\w ]+(?:<\w+>)?), (\d+), .*> (\w+)$")
_ROOM = re.compile(r"gt_(\w+)<(.*), (\d+), (\d+)>$")
_AXIS = struct.Struct("<5q")  # gt_axis: a length and four steps


class Touched(NamedTuple):
    """Distinct bytes of an array that a launch can read and write."""

    reads: int
    writes: int


def kernel_work(launch: Launch, text: str, code: Code | None, arrays: Sequence[Any]) -> Work:
    """A kernel's launch as work; `arrays` are the launcher's arguments, if it has one."""
    work = Work(launch.name)
    found = _tensors(launch) or _from_text(launch, text, arrays)
    if found is None:
        work.known = False
    else:
        work.reads = sum(each.reads for each in found)
        work.writes = sum(each.writes for each in found)
    if launch.name.startswith("matmul_into"):
        work.product = _product(launch)
        work.inputs = "float64" if "double" in launch.name else "float32"  # on CUDA cores
        work.__post_init__()
    elif code is not None:
        _count_instructions(work, launch, code)
    return work


def _count_instructions(work: Work, launch: Launch, code: Code) -> None:
    """From its machine code, and the bytes that its threads can have on the way at once."""
    threads = prod(launch.block)
    warps = prod(launch.grid) * -(-threads // WARP)
    work.instructions = code.executed(warps, work.reads, work.writes)
    if code.on_the_way:
        blocks = min(prod(launch.grid), max(1, launch.resident) * MULTIPROCESSORS)
        work.in_flight = blocks * threads * code.on_the_way


# -- arrays ----------------------------------------------------------------------------------------


def distinct(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Bytes of an array, each counted once where the array repeats or overlaps itself."""
    if 0 in shape:
        return 0
    elements = prod(n for n, step in zip(shape, strides, strict=True) if step)
    span = itemsize + sum((n - 1) * abs(step) for n, step in zip(shape, strides, strict=True))
    return min(elements * itemsize, span)


def distinct_bytes(arrays: Sequence[Any]) -> int:
    """Of arrays together; one that is there twice counts once."""
    once = {(array.data.ptr, array.shape, array.strides): array for array in arrays}
    return sum(distinct(array.shape, array.strides, array.itemsize) for array in once.values())


def _from_text(launch: Launch, text: str, arrays: Sequence[Any]) -> list[Touched] | None:
    name = re.escape(_base(launch.name))
    found = re.search(rf"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*(?://[^\n]*\n\s*)?)?"
                      rf"{name}\s*\((.*?)\)\s*\{{(.*)", text, re.DOTALL)
    if found is None:
        return None
    parameters, body = _split(found[1]), found[2]
    if any("CArray<" in each for each in parameters):
        return _carrays(launch, text, parameters, body)
    return _addresses(parameters, arrays)


def _base(name: str) -> str:
    return name.split("<")[0].split("::")[-1]


def _split(text: str) -> list[str]:
    """A list of parameters at its commas, but for those of template arguments."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            parts.append(text[start:place])
            start = place + 1
    return [" ".join(part.split()) for part in (*parts, text[start:]) if part.strip()]


def _carrays(launch: Launch, text: str, parameters: Sequence[str], body: str) -> list[Touched]:
    types = {name: kind for kind, name in _TYPEDEF.findall(text)}
    touched, elements = [], 0
    for declared, value in zip(parameters, launch.parameters, strict=True):
        if declared.startswith("CIndexer"):
            elements = max(elements, struct.unpack_from("<q", value)[0])
    for declared, value in zip(parameters, launch.parameters, strict=True):
        found = _CARRAY.match(declared)
        if found is None:
            continue
        const, kind, ndim, name = found[1], found[2], int(found[3]), found[4]
        while kind in types:
            kind = types[kind]
        size = SIZES[kind]
        numbers = struct.unpack_from(f"<{1 + 2 * ndim}q", value, 8)
        nbytes = distinct(numbers[1:1 + ndim], numbers[1 + ndim:], size)
        if not name.startswith("_raw_"):  # a raw argument: the body takes elements of its own
            nbytes = min(nbytes, elements * size)
        written = not const
        read = bool(const) or _is_read(name.removeprefix("_raw_"), body)
        touched.append(Touched(nbytes if read else 0, nbytes if written else 0))
    return touched


def _is_read(name: str, body: str) -> bool:
    """Whether an output is read: a reference to its element stands right of an assignment.

    CuPy's ufuncs compute in a variable of their own, which they store at the end.
    """
    _, reference, rest = body.partition(f"&{name} = _raw_{name}[")
    return bool(reference) and re.search(rf"\b{name}\b(?!\s*=[^=])", rest) is not None


def _addresses(parameters: Sequence[str], arrays: Sequence[Any]) -> list[Touched] | None:
    touched = []
    if len(arrays) != len(parameters):
        return None
    for declared, array in zip(parameters, arrays, strict=True):
        if "*" not in declared or not hasattr(array, "strides") or not hasattr(array, "data"):
            continue
        nbytes = distinct(array.shape, array.strides, array.itemsize)
        const = declared.startswith("const ")
        touched.append(Touched(nbytes if const else 0, 0 if const else nbytes))
    return touched


# -- tables and products ---------------------------------------------------------------------------


def _tensors(launch: Launch) -> list[Touched] | None:
    """The tensors of a kernel's table; None if it has none. See `gtensor.backend.multi_tensor`."""
    from gtensor.backend.multi_tensor import registered, table_type

    found = _ROOM.match(launch.name)
    kernel = found and next((each for each in registered if each.name == found[1]), None)
    if not found or not kernel:
        return None
    types = [each.strip() for each in found[2].split(",")]
    room = int(found[3]), int(found[4])
    table = np.frombuffer(launch.parameters[0], table_type(
        kernel.positions, max(1, kernel.numbers), *room))[0]
    elements = int(table["counts"][:table["size"]].sum())
    touched = []
    for position in range(kernel.positions):
        nbytes = elements * SIZES[types[min(position, len(types) - 1)]]
        written = _is_written(kernel.text, position)
        touched.append(Touched(nbytes, nbytes if written else 0))
    return touched


def _is_written(text: str, position: int) -> bool:
    found = re.search(rf"(const )?\w+ \*(\w+) = static_cast<.*>\(table\.at\[{position}\]", text)
    if not found or found[1]:
        return False
    few = found[2].removesuffix("_at") + "_few"
    return f"{few}.read(" not in text or f"{few}.write(" in text


def _product(launch: Launch) -> tuple[int, int, int, int] | None:
    """m, n, k and the number of products of a `gt_product`."""
    for value in launch.parameters:
        if len(value) > 3 * _AXIS.size:
            rows, columns, inner, *batch = (
                _AXIS.unpack_from(value, start)[0]
                for start in range(0, len(value) - _AXIS.size + 1, _AXIS.size))
            return rows, columns, inner, prod(batch)
    return None
