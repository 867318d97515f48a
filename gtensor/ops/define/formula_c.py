"""The C text of formulas: kernels over contiguous arrays of one dtype, compiled with the library.

The text of a primitive is CUDA's; F is the dtype. The graph is the one that NumPy's path computes,
lowered for the dtype, so errors are those of that path. What depends on parameters alone is
computed in Python's numbers, and given to the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.ops.define.formula import in_order
from gtensor.ops.define.formula_cuda import Writer
from gtensor.ops.define.formula_numpy import compiled_name
from gtensor.ops.define.lowering import lowered, uniform_operands
from gtensor.ops.define.primitives import PRIMITIVES

if TYPE_CHECKING:
    from gtensor.ops.define.formula import Formula, Key, Node
    from gtensor.ops.define.updates import Update

DTYPES: dict[str, np.dtype] = {"float": np.dtype(np.float32), "double": np.dtype(np.float64)}

# of kernels/cpu/functions.h
_FUNCTIONS = ("exp", "exp_raised", "madd", "tanh", "log", "log1p", "select", "maximum", "minimum")
_LIBRARY = ("fabs", "sqrt", "copysign", "floor")  # of C's own, with vector instructions
_KNOWN = {"exp", "tanh", "log", "log1p", "sqrt", "copysign", "floor", "abs", "add", "subtract",
          "multiply", "divide", "negative", "square", "reciprocal", "maximum", "minimum", "where",
          "greater", "less", "greater_equal", "less_equal", "equal", "not_equal", "logical_and",
          "logical_or", "logical_not", "isfinite", "sign"}
_SLOW = {"exp", "tanh", "log", "log1p"}
_SEEN = 1e-20  # in a sum with this the least value of exp_raised is rounded off
_CALL, _SUM = 9, 4  # ranks of `formula_cuda`
_LEAST = 3  # primitives: fewer are as quick one by one

_CHOICES: dict[str, tuple[Any, ...]] = {"approximate": ("none", "tanh")}
_OPTIONAL = ("weight", "positive")  # inputs of binary cross entropy that are often absent


class _Writer(Writer):
    """Without branches. Of sums only the steps of polynomials are contracted.

    Others could have the wrong sign: a * b - c * d is 0 where the products are equal.
    """

    texts = PRIMITIVES | {name: PRIMITIVES[name]._replace(cuda=text, rank=_CALL) for name, text in {
        "where": "select({0}, {1}, {2})", "maximum": "maximum({0}, {1})",
        "minimum": "minimum({0}, {1})", "logical_and": "({0} & {1})", "logical_or": "({0} | {1})",
        "sign": "select({0} > F(0), F(1), select({0} < F(0), F(-1), {0}))"}.items()}

    def _written(self, node: Node) -> tuple[str, int]:
        if node.op == "add" and node.args[1].op == "constant" and node.args[0] not in self.shared:
            made, constant = node.args
            if made.op == "multiply" and any(a.op in ("add", "constant") for a in made.args):
                return f"madd({', '.join(map(self.text, (*made.args, constant)))})", _CALL
            if made.op == "exp" and constant.args[0] >= _SEEN:
                return f"{self.text(constant)} + exp_raised({self.text(made.args[0])})", _SUM
        return super()._written(node)


def kernels(
    formulas: Iterable[Formula], updates: Iterable[Update], kind: str
) -> Iterator[tuple[str, str]]:
    """Names and texts of the kernels of a C type, where one pays."""
    dtype = DTYPES[kind]
    for formula in sorted(formulas, key=lambda f: (f.name, f.inputs)):
        for static, absent in _variants(formula):
            root, = lowered(formula.graphs(static, absent), dtype)
            if is_worth(root, dtype):
                inputs = [n for i, n in enumerate(formula.inputs) if i not in absent]
                name = compiled_name(formula.name, (root,), dtype)
                yield name, kernel(name, (root,), inputs, ("result",), kind)
    for update in updates if kind == "float" else ():
        made = update.formula
        for states, flags in _VARIANTS[made.name]:
            inputs = [*made.inputs[:2 + states]]
            outputs = (inputs[0], *inputs[2:])
            absent = tuple(range(2 + states, len(made.inputs)))
            roots = lowered(made.graphs((*flags.items(),), absent), dtype)
            name = compiled_name(made.name, roots, dtype)
            yield name, kernel(name, roots, inputs, outputs, kind)


_NO: dict[str, Any] = {"maximize": False, "deferred": False}
_VARIANTS: dict[str, list[tuple[int, dict[str, Any]]]] = {  # numbers of states, and flags
    "sgd": [(states, {**_NO, "first": first, "nesterov": nesterov, **decay})
            for states, first, nesterov in ((0, False, False), (0, True, False), (1, True, False),
                                            (1, False, False), (1, False, True))
            for decay in ({}, {"weight_decay": None})],
    "adam": [(2, {**_NO, "decoupled": decoupled, **decay})
             for decoupled in (False, True) for decay in ({}, {"weight_decay": None})],
    "lion": [(1, {}), (1, {"weight_decay": None})],
    "rmsprop": [(1, {**_NO, **decay}) for decay in ({}, {"weight_decay": None})],
    "adagrad": [(1, {**_NO, **decay}) for decay in ({}, {"weight_decay": None})],
}


def _variants(formula: Formula) -> Iterator[tuple[Key, tuple[int, ...]]]:
    choices = [[(n, v) for v in _CHOICES[n]] for n in formula.params if n in _CHOICES]
    some = tuple(i for i, n in enumerate(formula.inputs) if n in _OPTIONAL)
    for static in product(*choices):
        yield static, ()
        if some and formula.name.startswith("bce"):
            yield static, some


def is_worth(root: Node, dtype: np.dtype) -> bool:
    """Whether the text has what C has, and NumPy's path takes several calls.

    Of float64, which fewer programs compute in, only what takes longest: the compiler takes time.
    """
    steps = [n.op for n in in_order(root) if n.children and not n.uniform]
    return len(steps) >= _LEAST and {*steps} <= _KNOWN and (
        dtype == np.float32 or not _SLOW.isdisjoint(steps))


def kernel(name: str, roots: tuple[Node, ...], arrays: Sequence[str], outputs: Sequence[str],
           kind: str) -> str:
    """The function: its items are elements; its arrays have these names, and an output that is not
    among them follows."""
    writer = _Writer(roots, kind, hosted=True)
    writer.hosted = {n: f"s{i}" for i, n in enumerate(uniform_operands(*roots))}
    values = [writer.text(root) for root in roots]
    places = [*arrays, *[n for n in outputs if n not in arrays]]
    used = {n.args[0] for n in in_order(*roots) if n.op == "input"}
    return "\n".join([
        f"KERNEL static void {name}(const Call *call, int64_t begin, int64_t end) {{",
        *[f"    {'' if n in outputs else 'const '}{kind} *{n}_at = "
          f"({'' if n in outputs else 'const '}{kind} *)call->arrays[{k}];"
          for k, n in enumerate(places)],
        *[f"    const {kind} {n} = F(call->numbers[{k}]);"
          for k, n in enumerate(writer.hosted.values())],
        "    EACH_ALONE",
        "    for (int64_t i = begin; i < end; i++) {",
        *[f"        const {kind} {n} = {n}_at[i];" for n in arrays if n in used],
        *[f"        {line}" for line in writer.lines],
        *[f"        const {kind} {n}_next = {v};" for n, v in zip(outputs, values, strict=True)],
        *[f"        {n}_at[i] = {n}_next;" for n in outputs], "    }", "}", ""])


def file_text(formulas: Iterable[Formula], updates: Iterable[Update], kind: str) -> str:
    """The text of a C type's file."""
    made = dict(kernels(formulas, updates, kind))
    suffix = "f" if kind == "float" else ""
    return "\n".join([
        f"// Formulas of {kind}. Written by tests/formulas_in_c.py.", "",
        '#include "../../../../kernels/cpu/functions.h"', "",
        f"#define F(x) (({kind})(x))",
        *[f"#define {n} {n}_{kind}" for n in _FUNCTIONS],
        *([f"#define {n} {n}{suffix}" for n in _LIBRARY] if suffix else []), "",
        *made.values(),
        f"const Entry formulas_{kind}[] = {{",
        *[f'    {{"{name}", {name}}},' for name in made], "    {NULL, NULL},", "};", ""])

