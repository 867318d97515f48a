"""The C text of formulas: kernels over contiguous arrays of one dtype, compiled with the library.

The text of a primitive is CUDA's; F is the dtype. The graph is the one that NumPy's path computes,
lowered for the dtype, so errors are those of that path. What depends on parameters alone is
computed in Python's numbers, and given to the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.ops.define.formula_cuda import Writer
from gtensor.ops.define.formula_numpy import Text, compiled_name
from gtensor.ops.define.lowering import lowered, uniform_operands

if TYPE_CHECKING:
    from gtensor.ops.define.formula import Formula, Key, Node

DTYPES: dict[str, np.dtype] = {"float": np.dtype(np.float32), "double": np.dtype(np.float64)}

_FUNCTIONS = ("exp", "tanh", "log", "log1p")  # of kernels/cpu/functions.h
_LIBRARY = ("fabs", "sqrt", "copysign", "floor")  # of C's own, with vector instructions
_KNOWN = {*_FUNCTIONS, "sqrt", "copysign", "floor", "abs", "add", "subtract", "multiply", "divide",
          "negative", "square", "reciprocal", "maximum", "minimum", "where", "greater", "less",
          "greater_equal", "less_equal", "equal", "not_equal", "logical_and", "logical_or",
          "logical_not", "isfinite", "sign"}
_LEAST = 3  # primitives: fewer are as quick one by one

_CHOICES: dict[str, tuple[Any, ...]] = {"approximate": ("none", "tanh")}
_OPTIONAL = ("weight", "positive")  # inputs of binary cross entropy that are often absent


def kernels(formulas: Iterable[Formula], kind: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the kernels of a C type."""
    dtype = DTYPES[kind]
    for formula in sorted(formulas, key=lambda f: (f.name, f.inputs)):
        for static, absent in _variants(formula):
            roots = lowered(formula.graphs(static, absent), dtype)
            if _is_worth(roots, formula):
                inputs = [n for i, n in enumerate(formula.inputs) if i not in absent]
                name = compiled_name(formula, static, absent, dtype)
                yield name, kernel(name, roots, inputs, kind)


def _variants(formula: Formula) -> Iterator[tuple[Key, tuple[int, ...]]]:
    choices = [[(n, v) for v in _CHOICES[n]] for n in formula.params if n in _CHOICES]
    some = tuple(i for i, n in enumerate(formula.inputs) if n in _OPTIONAL)
    for static in product(*choices):
        yield static, ()
        if some and formula.name.startswith("bce"):
            yield static, some


def _is_worth(roots: tuple[Node, ...], formula: Formula) -> bool:
    """Whether the text has what C has, and NumPy's path takes several calls.

    Where NumPy's path warns of an overflow, it stays.
    """
    text = Text(roots, tuple(f"out{k}" for k in range(len(roots))))
    return (len(text.steps) >= _LEAST and not text.quiet
            and {n.op for n in text.steps} <= _KNOWN)


def kernel(name: str, roots: tuple[Node, ...], inputs: list[str], kind: str) -> str:
    """The function: its arrays are the inputs, then the results; its items are elements."""
    writer = Writer(roots, kind, hosted=True)
    writer.hosted = {n: f"s{i}" for i, n in enumerate(uniform_operands(roots))}
    values = [writer.text(root) for root in roots]
    results = [f"result{k}" for k in range(len(roots))]
    return "\n".join([
        f"KERNEL static void {name}(const Call *call, int64_t begin, int64_t end) {{",
        *[f"    const {kind} *{n}_given = (const {kind} *)call->arrays[{k}];"
          for k, n in enumerate(inputs)],
        *[f"    {kind} *{n} = ({kind} *)call->arrays[{len(inputs) + k}];"
          for k, n in enumerate(results)],
        *[f"    const {kind} {n} = F(call->numbers[{k}]);"
          for k, n in enumerate(writer.hosted.values())],
        "    EACH_ALONE",
        "    for (int64_t i = begin; i < end; i++) {",
        *[f"        const {kind} {n} = {n}_given[i];" for n in inputs],
        *[f"        {line}" for line in writer.lines],
        *[f"        {n}[i] = {v};" for n, v in zip(results, values, strict=True)],
        "    }", "}", ""])


def file_text(formulas: Iterable[Formula], kind: str) -> str:
    """The text of a C type's file."""
    made = dict(kernels(formulas, kind))
    suffix = "f" if kind == "float" else ""
    return "\n".join([
        f"// Formulas of {kind}. Written by tests/formulas_in_c.py.", "",
        "#include <stdbool.h>", "",
        '#include "../../../../kernels/cpu/functions.h"', "",
        f"#define F(x) (({kind})(x))",
        *[f"#define {n} {n}_{kind}" for n in _FUNCTIONS],
        *([f"#define {n} {n}{suffix}" for n in _LIBRARY] if suffix else []), "",
        *made.values(),
        f"const Entry formulas_{kind}[] = {{",
        *[f'    {{"{name}", {name}}},' for name in made], "    {NULL, NULL},", "};", ""])
