"""Ops that are formulas: from one function follow both paths, the gradients and their gradients."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.cuda import cupy
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.tape.arguments import arguments_of
from gtensor.engine.tape.op import Op, op, registry
from gtensor.ops.define.batching import broadcasting
from gtensor.ops.define.formula import Formula, Key, derivative, partial_of, static_of, times
from gtensor.ops.define.formula_numpy import numpy_path
from gtensor.ops.define.path_builders import tiled
from gtensor.ops.define.pointwise import Partial, analytic, partial, pointwise

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path, Scalar
    from gtensor.engine.handle.tensor import Tensor

# -- a formula in any namespace --------------------------------------------------------------------
# `ns.formula(*inputs, formula=f, **params)`: raw arrays in one pass, Tensors as one record. The
# derivatives of a record are formulas again, so where a formula selects, they do, in every order.


def _cuda_path(formula: Formula) -> Path:
    """The GPU path, made at its first use: programs on the CPU load no emitter of CUDA text."""
    @cache
    def made() -> Path:
        from gtensor.ops.define.formula_cuda import cuda_path

        return cuda_path(formula)

    def path(*arrays: Any, **params: Any) -> Array:
        return made()(*arrays, **params)

    path.kernel_of = lambda *given: made().kernel_of(*given)  # type: ignore[attr-defined]  # tests
    return path


@cache
def _paths(formula: Formula) -> tuple[Path, Path]:
    return numpy_path(formula), _cuda_path(formula)


def _on_the_cpu(*arrays: Any, formula: Formula, **params: Any) -> Array:
    return _paths(formula)[0](*arrays, **params)


def _on_cuda(*arrays: Any, formula: Formula, **params: Any) -> Array:
    return _paths(formula)[1](*arrays, **params)


def _as_record(*inputs: Any, formula: Formula, out: Any = None, **params: Any) -> Tensor:
    absent = tuple([i for i, x in enumerate(inputs) if x is None])
    return _op_of(formula, static_of(params), absent)(*inputs, **params)


_on_the_cpu.batch = _on_cuda.batch = broadcasting  # type: ignore[attr-defined]
raw["cpu"].formula = _on_the_cpu
raw["cuda"].formula = _on_cuda
recorded.formula = _as_record


@cache
def _op_of(formula: Formula, static: Key, absent: tuple[int, ...]) -> Op:
    """The op of a formula, outside of the registry; it saves what its derivatives need."""
    rules = analytic(*[_rule(formula, i, static, absent) for i in range(len(formula.inputs))])
    backward, tangent, saves = rules.derivative(formula.inputs)
    cpu, gpu = _paths(formula)
    made = Op(formula.name, inputs=" ".join(formula.inputs), cpu=cpu, gpu=gpu, backward=backward,
              tangent=tangent, saves=saves, samples=None, owns=True, complex=formula.analytic,
              batch=broadcasting)
    rules.bind(made)
    return made


def _rule(formula: Formula, i: int, static: Key, absent: tuple[int, ...]) -> Partial | None:
    product = None if i in absent else partial_of(formula, i, static, absent)
    return None if product is None else partial(
        " ".join(product.inputs[1:]), lambda ns, g, *given, out, **params: ns.formula(
            g, *given, formula=product, out=out, **params))


# -- ops of one formula ----------------------------------------------------------------------------


def fused(name: str, formula: Path | Formula, *, gpu: Path | None = None, by_ops: bool = False,
          **more: Any) -> Op:
    """Register an op that is `formula(ns, *inputs, **params)` in one pass over memory.

    If an input requires a gradient, the formula itself is recorded: its derivatives follow from it,
    in every order. Backward rules use such ops, so second order needs no second set of rules.

    Args:
        by_ops: record it op by op: it may save less (a condition is smaller than its numbers). Only
            where no branch that is not taken can be infinite.
        gpu: its GPU path, if what it does depends on dtypes or values. Then NumPy evaluates it as
            it stands, tile by tile, and it is recorded op by op.
    """
    if gpu is not None:
        return op(name, inputs=" ".join(arguments_of(formula).inputs[1:]),
                  cpu=tiled(name, formula), gpu=_one_dtype(gpu), backward=None, tangent=None,
                  composed=lambda *inputs, **params: formula(recorded, *inputs, **params),
                  batch=broadcasting, **more)
    made = formula if isinstance(formula, Formula) else Formula(name, formula)
    made.name = name  # of its kernel, too
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if not made.params and not caller.startswith("gtensor."):
        made.graph()  # which raises FormulaError for what is no formula

    def composed(*inputs: Tensor | Array, **params: Any) -> Tensor:
        if by_ops:
            return made(recorded, *inputs, **params)
        return recorded.formula(*inputs, formula=made, **params)

    return op(name, **paths(made), backward=None, tangent=None, composed=composed,
              batch=broadcasting, **more)


def together(name: str, last: tuple[str, str], first: tuple[str, str]) -> None:
    """Give CUDA's raw namespace one kernel of two gradients, for the `together` of `pointwise`.

    Args:
        last, first: of the last input's gradient and of the first one's: the name of an op that is
            a formula, and its inputs among "g a b", the function's gradient and its inputs.
    """
    def values(ns: Any, g: Any, a: Any, b: Any) -> tuple[Any, ...]:
        given = {"g": g, "a": a, "b": b}
        return tuple([registry[of].cpu.made(ns, *[given[x] for x in order.split()])  # type: ignore
                      for of, order in (last, first)])

    kernel = _cuda_path(Formula(name, values))

    def path(g: Array, a: Array, b: Array, *, out: Any = None) -> tuple[Array, Array]:
        if out is not None and not isinstance(out, tuple):
            out = out, cupy().empty(g.shape, g.dtype)
        found: tuple[Array, Array] = kernel(g, a, b, out=out)
        return found

    setattr(raw["cuda"], name, path)


def paths(formula: Formula) -> dict[str, Any]:
    """The inputs and the two paths of an op that is a formula, for `op`."""
    cpu, gpu = _paths(formula)
    return {"inputs": " ".join(formula.inputs), "cpu": cpu, "gpu": gpu}


def formula_of(
    name: str, formula: Path, *, slope: Path | None = None, of: str = "x", gradient: Any = None,
    asks: bool = False, **more: Any,
) -> Op:
    """Register the op of a formula of one input, and `<name>_grad`, its gradient in one pass.

    Args:
        formula: `formula(ns, x, **params)`.
        slope: `slope(ns, x, **params)`, its derivative, where that which follows from the formula
            loses digits or is slower.
        of: what the derivative is written in, and the op saves: "x", its input, or "out".
        gradient: of the op `<name>_grad`: samples, reference and doc.
        asks: whether small outputs are asked of the device, too, and so seen in recordings.
        more: of the op.
    """
    made = Formula(name, formula)
    grad = f"{name}_grad"
    product = (derivative(made, made.inputs[0], of == "out") if slope is None
               else times(grad, Formula(grad, slope)))
    made.asks = product.asks = asks
    doc = f"The gradient of {'y = ' if of == 'out' else ''}{name}(x)."
    fused(grad, product, **{"doc": doc, **gradient})
    return op(name, **paths(made), backward=pointwise(partial(of, grad)), **more)



def _one_dtype(gpu: Path) -> Path:
    """The path with arrays of different dtypes promoted first: a kernel has one type."""

    def path(*arrays: Any, **params: Any) -> Array:  # arrays and numbers
        dtypes = {a.dtype for a in arrays if hasattr(a, "dtype")}
        if len(dtypes) > 1:
            common = np.result_type(*dtypes)
            arrays = tuple(a.astype(common) if hasattr(a, "dtype") else a for a in arrays)
        return gpu(*arrays, **params)

    return path


def kernel_path(kernel: Path, *params: str) -> Path:
    """The GPU path that is a kernel taking the arrays, then these parameters, then the output."""

    def path(*arrays: Array | Scalar, out: Array | None = None, **given: Any) -> Array:
        return kernel(*arrays, *[given[name] for name in params], out=out)

    return path
