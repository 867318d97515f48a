"""The CUDA text of a formula: of an elementwise kernel, an update, or a device function.

Values are of type F: the arrays' type T, or float where T is half. What several others need, or a
text names twice, is a constant of its own; parameters are doubles, and what depends on them alone
is computed in double.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.kernels import BLOCK, Elementwise, elementwise
from gtensor.backend.multi_tensor import MultiTensor
from gtensor.ops.define.formula import (
    Formula,
    Key,
    Node,
    in_order,
    plain_numbers,
    static_of,
    without_special,
)
from gtensor.ops.define.primitives import PRIMITIVES

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path, Scalar

_ATOM = 9  # ranks: how tight a text binds; the arguments of an operator bind tighter than it
_SIDES = {"subtract": (4, 5), "divide": (5, 6), "add": (4, 5), "multiply": (5, 6),
          "negative": (7,), "sigmoid": (7,), "where": (2, 1, 1)}


class Writer:
    texts = PRIMITIVES

    def __init__(self, roots: tuple[Node, ...], number: str, hosted: bool = False) -> None:
        self.number = number  # the type of values
        # what depends on parameters alone is computed before, under these names, if not None
        self.hosted: dict[Node, str] | None = {} if hosted else None
        used = Counter(a for n in in_order(*roots) for a in n.children)
        used.update(roots)
        self.shared = {n for n, count in used.items() if count > 1}
        for n in in_order(*roots):
            if n.children:
                text = self.texts[n.op].cuda
                self.shared |= {a for k, a in enumerate(n.args) if text.count(f"{{{k}}}") > 1}
        self.names: dict[Node, str] = {}
        self.lines: list[str] = []

    def text(self, node: Node, rank: int = 0) -> str:
        """The expression, in parentheses if it binds less tightly than `rank`."""
        if node in self.names:
            return self.names[node]
        made, binds = self._written(node)
        if node in self.shared and node.children and not node.uniform:
            self.names[node] = name = f"t{len(self.names)}"
            self.lines.append(
                f"const {'bool' if node.boolean else self.number} {name} = {made};")
            return name
        return made if binds >= rank else f"({made})"

    def _written(self, node: Node) -> tuple[str, int]:
        if node.op == "input":
            return node.args[0], _ATOM
        if node.uniform and node.op != "constant" and self.hosted is not None:
            return f"F({self.hosted.setdefault(node, f's{len(self.hosted)}')})", _ATOM
        if node.uniform:
            return f"F({self.double(node)})", _ATOM
        primitive = self.texts[node.op]
        if primitive.rank == _ATOM:  # a call: its arguments stand between commas
            sides: tuple[int, ...] = (0,) * primitive.arity
            if not primitive.cuda.endswith(")") or primitive.cuda.startswith("("):
                sides = (_ATOM,) * primitive.arity
        else:
            sides = _SIDES.get(node.op, (primitive.rank + 1,) * primitive.arity)
        operands = [self.text(a, side) for a, side in zip(node.args, sides, strict=True)]
        return primitive.cuda.format(*operands), primitive.rank

    def double(self, node: Node) -> str:
        """What is the same for all elements, in double."""
        if node.op == "constant":
            return _literal(node.args[0])
        if node.op == "param":
            return node.args[0]
        text = PRIMITIVES[node.op].cuda.replace("F(", "double(")
        return f"({text.format(*[self.double(a) for a in node.args])})"


def _literal(value: float) -> str:
    if math.isfinite(value):
        return repr(int(value)) if value == int(value) and abs(value) < 1e9 and (
            math.copysign(1, value) > 0 or value) else repr(value)
    return "nan(\"\")" if math.isnan(value) else f"{'-' if value < 0 else ''}gt_infinity<double>()"


def statements(root: Node, number: str = "F") -> tuple[list[str], str]:
    """The constants that come first, and the expression of the value."""
    writer = Writer((root,), number)
    value = writer.text(root)
    return writer.lines, value


def kernel(
    name: str, roots: tuple[Node, ...], inputs: Iterable[str], params: Iterable[str],
    analytic: bool, conditions: Container[str] = (), wide: bool = False,
) -> Elementwise:
    """The elementwise kernel of a graph over arrays of one type T; an output for each root.

    A `wide` one computes in double.

    Inputs among the `conditions` are of bool, as are roots that are conditions. Nothing is
    contracted: the same primitives have the same bits in one kernel and in several.
    """
    roots = without_special(roots)
    writer = Writer(roots, "F")
    values = [writer.text(root) for root in roots]
    outputs = ["result", *[f"result{k}" for k in range(1, len(roots))]]
    names = list(inputs)
    numbers = [n for n in names if n not in conditions]
    declared = [f"bool {n}" if n in conditions else f"T {n}_given" for n in names]
    declared += [f"float64 {p}" for p in params]
    loaded = ", ".join(f"{n} = static_cast<F>({n}_given)" for n in numbers)
    kind = "double" if wide else "gt_number<T>" if analytic else "gt_float<T>"
    made = ", ".join(f"{'bool' if root.boolean else 'T'} {out}"
                     for out, root in zip(outputs, roots, strict=True))
    assigned = "; ".join(f"{out} = {v if root.boolean else f'T({v})'}"
                         for out, v, root in zip(outputs, values, roots, strict=True))
    body = " ".join([f"typedef {kind} F;", f"const F {loaded};", *writer.lines, assigned])
    return elementwise(", ".join(declared), made, body, "number.cuh", f"gt_{name}", contract=False)


def update_kernel(
    name: str, roots: tuple[Node, ...], outputs: tuple[str, ...], inputs: tuple[str, ...],
    numbers: tuple[str, ...], counted: bool = False,
) -> MultiTensor:
    """The kernel of a graph whose values overwrite the outputs, over many tensors in one launch.

    Each array has a type of its own; values are of the first output's compute type F. A tensor's
    `numbers` come from its row of the table. The first thread of a block computes, in double, what
    depends on them alone. `step` is the number of the launch, which the kernel counts if `counted`.
    """
    writer = Writer(roots, "F", hosted=True)
    values = [writer.text(root) for root in roots]
    hosted = writer.hosted or {}
    letters = dict(zip((outputs[0], *inputs, *outputs[1:]), "PGSUV", strict=False))
    used = {n.args[0] for n in in_order(*roots) if n.op in ("input", "param")}
    shared = [f"    const double {n} = gt_option(table, tensor, {k});"
              for k, n in enumerate(numbers) if n in used]
    if "step" in used:
        shared.append("    const double step = static_cast<double>(*table.steps[tensor] + 1);")
    if "most" in used:
        shared.append(f"    const double most = gt_largest<{[*letters.values()][-1]}>();")
    shared += [f"    shared[{k}] = F({writer.double(n)});" for k, n in enumerate(hosted)]
    loaded = ", ".join(f"{n} = gt_up({n}_given)" for n in letters if n in used)
    taken = [f"{letters[n]} &{n}_given" if n in outputs else f"const {letters[n]} {n}_given"
             for n in letters]
    body = [f"const F {loaded};", *writer.lines,
            *[f"const F {n}_next = {v};" for n, v in zip(outputs, values, strict=True)],
            *[f"{n}_given = gt_down<{letters[n]}>(gt_float<{letters[n]}>({n}_next));"
              for n in outputs]]
    types = ", ".join(letters.values())
    each = [*letters.items()]
    text = "\n".join([
        f"template <{', '.join(f'typename {x}' for _, x in each)}, int tensors, int rows>",
        f"__global__ void __launch_bounds__({BLOCK})",
        f"gt_{name}(const gt_table<{len(letters)}, {max(1, len(numbers))}, tensors, rows> table)",
        "{",
        "  typedef gt_float<P> F;",
        "  if (gt_skips(table)) return;",
        "  const int tensor = gt_tensor_of_block(table);",
        *([f"  __shared__ F shared[{len(hosted)}];", "  if (threadIdx.x == 0) {", *shared, "  }",
           "  __syncthreads();", *[f"  const F {n} = shared[{k}];"
                                   for k, n in enumerate(hosted.values())]] if hosted else []),
        *[f"  {x} *{n}_at = static_cast<{x} *>(table.at[{k}][tensor]);"
          for k, (n, x) in enumerate(each)],
        f"  auto update = [&]({', '.join(taken)}) {{", *[f"    {line}" for line in body], "  };",
        f"  constexpr int W = 16 / gt_widest<{types}>();",
        "  const gt_range range = gt_range_of_block(table, tensor);",
        "  gt_index done = range.begin;",
        f"  if ({' && '.join(f'gt_aligned<W>({n}_at)' for n in letters)}) {{",
        "    done += (range.end - range.begin) / W * W;",
        f"    for (gt_index i = range.begin + threadIdx.x * W; i < done; i += {BLOCK} * W) {{",
        *[f"      gt_few<{x}, W> {n}_few; {n}_few.read({n}_at + i);" for n, x in each],
        "      for (int w = 0; w < W; ++w) "
        f"update({', '.join(f'{n}_few.values[w]' for n in letters)});",
        *[f"      {n}_few.write({n}_at + i);" for n in outputs],
        "    }", "  }",
        f"  for (gt_index i = done + threadIdx.x; i < range.end; i += {BLOCK})",
        f"    update({', '.join(f'{n}_at[i]' for n in letters)});",
        *(["  gt_count_steps(table);"] if counted else []), "}"])
    return MultiTensor(name, text, "".join(letters.values()), len(letters), len(numbers))


def device_function(name: str, formula: Formula, static: Key = ()) -> str:
    """`gt_<name>` of a formula: it takes type T and returns gt_float<T>; parameters come last."""
    lines, value = statements(formula.graph(static))
    params = [p for p in formula.params if p not in dict(static)]
    taken = [f"T {n}_given" for n in formula.inputs] + [f"gt_float<T> {p}" for p in params]
    return "\n".join([
        "template <typename T>", f"__device__ inline gt_float<T> gt_{name}({', '.join(taken)}) {{",
        "  typedef gt_float<T> F;", *[f"  const F {n} = gt_up({n}_given);" for n in formula.inputs],
        *[f"  {line}" for line in lines], f"  return {value};", "}"])


def cuda_path(formula: Formula) -> Path:
    """The GPU path of a formula: one kernel for each graph, made at its first use.

    Of a formula that returns a tuple it returns, and `out` is, one of arrays.
    """
    kernels: dict[Any, Elementwise] = {}

    def kernel_of(static: Key, absent: tuple[int, ...]) -> Elementwise:
        found = kernels.get((static, absent))
        if found is None:
            variant = "".join(f"_{v}" for _, v in static if isinstance(v, str) and v != "none")
            found = kernels[static, absent] = kernel(
                formula.name + variant, formula.graphs(static, absent),
                [n for i, n in enumerate(formula.inputs) if i not in absent],
                [p for p in formula.params if p not in dict(static)], formula.analytic,
                wide=formula.wide)
        return found

    def path(*arrays: Array | Scalar | None, out: Any = None, **params: Any) -> Any:
        params = plain_numbers(formula.name, params)
        static = static_of(params)
        found = kernel_of(static, tuple([i for i, a in enumerate(arrays) if a is None]))
        given: list[Any] = [a for a in arrays if a is not None]
        dtypes = {a.dtype for a in given if hasattr(a, "dtype")}
        if any(dtype.kind == "c" for dtype in dtypes) and not formula.analytic:
            raise TypeError(f"{formula.name} was given complex values; wanted real ones")
        if len(dtypes) > 1:  # a kernel has one type
            common = np.result_type(*dtypes)
            given = [a.astype(common) if hasattr(a, "dtype") else a for a in given]
        return found(*given, out=out, **params)

    path.kernel_of = kernel_of  # type: ignore[attr-defined]  # for tests, which compile them all
    return path
