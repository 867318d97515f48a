"""The device functions of the activations, a header that is made from their formulas.

    gt_<name>(x)                      the activation
    gt_<name>_grad(g, x)              g times the derivative, from the INPUT x
    gt_<name>_grad_from_output(g, y)  the same from the OUTPUT y, where it fixes the derivative
    gt_<name>_inverse(y)              the input x from the output y, for y inside the open range

They take a storage type T and return gt_float<T>; then follow the parameters. `gt_activate` and its
like select one by its code (`kernels.ACTIVATIONS`), the same for all threads of a launch; they take
one parameter, and softplus has PyTorch's default threshold.
"""

from __future__ import annotations

from collections.abc import Iterator

from gtensor.backend import kernels
from gtensor.engine.tape.op import registry
from gtensor.ops.activations.activation import THRESHOLD
from gtensor.ops.activations.inverses import BY_OUTPUT, INVERSE_FORMULAS
from gtensor.ops.define.formula import Formula, Key, derivative, times
from gtensor.ops.define.formula_cuda import device_function

_KINDS = ("", "_grad", "_grad_from_output", "_inverse")


def formulas(name: str) -> dict[str, tuple[Formula, Key]]:
    """The formulas of an activation by the ending of their functions' names."""
    op, tanh, _ = name.partition("_tanh")
    static: Key = (("approximate", "tanh" if tanh else "none"),) if op == "gelu" else ()
    forward = _formula_of(op) if op != "tanh" else _TANH
    found = {"": (forward, static)}
    if op in ("gelu", "silu", "softplus"):  # their gradients take the input
        found["_grad"] = _formula_of(f"{op}_grad"), static
    elif op in _BY_INPUT:
        found["_grad"] = _BY_INPUT[op], static
    else:
        found["_grad"] = derivative(forward, "x"), static
    for ending, table in (("_grad_from_output", BY_OUTPUT), ("_inverse", INVERSE_FORMULAS)):
        if name in table:
            found[ending] = table[name], static
    return found


def _formula_of(op: str) -> Formula:
    return registry[op].cpu.made  # type: ignore[attr-defined]


_TANH = Formula("tanh", lambda ns, x: ns.tanh(x))
_BY_INPUT = {  # of sums of two selections, which are one here
    "leaky_relu": times("leaky_relu_by_input", Formula("leaky_relu_slope", lambda ns, x, *, slope: (
        ns.where(ns.greater(x, 0), 1, slope)))),
    "elu": times("elu_by_input", Formula("elu_slope", lambda ns, x, *, alpha: ns.where(
        ns.less_equal(x, 0), alpha * ns.exp(x), 1))),
}


def text() -> str:
    """All functions, in the order of their codes."""
    names = [name for name in kernels.ACTIVATIONS if name != "identity"]
    made = {name: formulas(name) for name in names}
    lines = ["// Made from formulas by gtensor/ops/activations/device_functions.py.",
             "#pragma once", '#include "number.cuh"', "", "enum gt_activation {"]
    lines += [f"  GT_{name.upper()} = {code}," for name, code in kernels.ACTIVATIONS.items()]
    lines.append("};")
    for name in names:
        lines += ["", *(device_function(f"{name}{ending}", *one)
                        for ending, one in made[name].items())]
    for ending in _KINDS:
        having = {name: found[ending][0] for name, found in made.items() if ending in found}
        lines += ["", *_selection(ending, having)]
    return "\n".join([*lines, ""])


def _selection(ending: str, made: dict[str, Formula]) -> Iterator[str]:
    """`gt_activate` with this ending: an activation that has none counts as identity."""
    values = ("x",) if ending == "" else ("y",) if ending == "_inverse" else (
        "g", "y" if ending == "_grad_from_output" else "x")
    yield "template <typename F>"
    yield (f"__device__ inline F gt_activate{ending}(gt_index activation, "
           f"{', '.join(f'F {v}' for v in values)}, F parameter) {{")
    yield "  switch (activation) {"
    for name, formula in made.items():
        numbers = [n for n in formula.params if n != "approximate"]
        given = [*values, *[f"F({THRESHOLD})" if n == "threshold" else "parameter"
                            for n in numbers]]
        yield f"    case GT_{name.upper()}: return gt_{name}{ending}({', '.join(given)});"
    yield f"    default: return {values[0]};"
    yield "  }"
    yield "}"
