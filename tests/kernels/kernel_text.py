"""What both GPU-less checks compile: kernel files as they are, elementwise bodies in our own loop.

CuPy generates the loop around an elementwise body only when it has a driver; the one here gives the
body the same names, and half classes with the same conversions (host/elementwise_half.h).
"""

from __future__ import annotations

import re
from pathlib import Path

from gtensor.backend import kernels
from gtensor.backend.kernels import Elementwise, Parameter

HOST = Path(__file__).parent / "host"

ELEMENT_TYPES = {
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float", "float64": "double",
}
"""The C type of `T` in an elementwise kernel, by dtype."""

_CONCRETE = {
    **ELEMENT_TYPES, "bool": "bool", "int8": "signed char", "int16": "short", "int32": "int",
    "int64": "long long", "uint8": "unsigned char", "uint16": "unsigned short",
    "uint32": "unsigned int", "uint64": "unsigned long long",
}


_BOUNDS = re.compile(
    r"__launch_bounds__\((?P<threads>\w+), (?P<blocks>\d+)\)"
    r"(?:  // at most (?P<registers>\d+) registers)?[^\n]*\n\s*(?P<name>\w+)\(")


def launch_bounds(text: str) -> dict[str, tuple[int, int]]:
    """The threads of a block and the blocks of a multiprocessor of kernels that state both."""
    defined = dict(re.findall(r"^#define (\w+) (\d+)\b", text, re.MULTILINE))
    return {found["name"]: (int(defined.get(found["threads"], found["threads"])),
                            int(found["blocks"])) for found in _BOUNDS.finditer(text)}


def register_bounds(text: str) -> dict[str, int]:
    """The registers that kernels state beside their launch bounds."""
    return {found["name"]: int(found["registers"]) for found in _BOUNDS.finditer(text)
            if found["registers"]}


def is_array(parameter: Parameter) -> bool:
    """Whether our loop takes this parameter as an array (a letter, or raw) and not as a scalar."""
    return parameter.raw or parameter.ctype not in _CONCRETE


def element_name(index: int, kernel: Elementwise, dtype: str) -> str:
    """The name expression of one elementwise kernel of a text made by `elementwise_text`."""
    types = ",".join([ELEMENT_TYPES[dtype]] * len(_letters(kernel)))
    return f"gt_body_{index}" + (f"<{types}>" if types else "")


def elementwise_text(bodies: list[Elementwise]) -> str:
    """CUDA text with one `__global__` template for each elementwise kernel.

    A kernel's arguments are the element count, the inputs, the outputs; arrays are dense.
    """
    headers = dict.fromkeys(["number.cuh", *(body.include for body in bodies if body.include)])
    lines = [f'#include "{header}"' for header in headers]
    lines += [_loop(index, kernel) for index, kernel in enumerate(bodies)]
    return kernels.inline_includes("\n".join(lines), "bodies")


def _letters(kernel: Elementwise) -> list[str]:
    types = (p.ctype for p in (*kernel.inputs, *kernel.outputs))
    return list(dict.fromkeys(ctype for ctype in types if ctype not in _CONCRETE))


def _loop(index: int, kernel: Elementwise) -> str:
    letters = _letters(kernel)
    names = ", ".join(f"typename {letter}" for letter in letters)
    head = f"template <{names}>\n" if letters else ""
    parameters = ["gt_index gt_size"]
    bindings = []
    for parameter in (*kernel.inputs, *kernel.outputs):
        ctype = _CONCRETE.get(parameter.ctype, parameter.ctype)
        name = parameter.name
        const = "const " if parameter in kernel.inputs else ""
        if parameter.raw:
            parameters.append(f"{const}{ctype} *{name}")
        elif is_array(parameter) or parameter in kernel.outputs:
            parameters.append(f"{const}{ctype} *gt_{name}_array")
            bindings.append(f"    {const}{ctype} &{name} = gt_{name}_array[i];")
        else:
            parameters.append(f"{const}{ctype} {name}")
    return "\n".join([
        f'#line 1 "{kernel.name}"',
        f"{head}__global__ void gt_body_{index}({', '.join(parameters)}) {{",
        "  for (gt_index i = gt_thread(); i < gt_size; i += gt_threads()) {",
        *bindings,
        f"    {kernel.body};",
        "  }",
        "}",
    ])
