"""Elementwise calls as graphs of formulas, and several of them as one graph.

A piece is lowered alone, as its path does it, and put together with others without simplifying
anything: so each element goes through the same functions of NumPy in the same order as before, and
has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gtensor.engine.tape.op import Op, registry
from gtensor.execution.steps.listing import Listing, is_floating, reads
from gtensor.execution.steps.recorder import Call, Constant, Value
from gtensor.ops.define.formula import (
    Formula,
    FormulaError,
    Node,
    Trace,
    in_order,
    static_of,
)
from gtensor.ops.define.formula_numpy import is_compiled
from gtensor.ops.define.lowering import lowered
from gtensor.ops.define.primitives import PRIMITIVES

_UFUNCS = {function: name for name, p in PRIMITIVES.items()
           if isinstance(function := getattr(np, p.numpy or name, None), np.ufunc)}
# NumPy squares where all exponents are one 2 in memory, so bits depend on how they lie.
_LAYOUT_TELLS = {"power"}
# Primitives whose CUDA text has the bits of CuPy's kernel; that of maximum, minimum and sign has
# others for NaN and zeros.
_CUPY = {"add", "subtract", "multiply", "divide", "negative", "abs", "square", "sqrt", "exp",
         "log", "log1p", "expm1", "sin", "cos", "tanh", "where", "greater", "greater_equal",
         "less", "less_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_not"}
# Ops with a kernel of their own that selects, as the formula does.
_SAME_ON_CUDA = {"maximum_grad", "minimum_grad"}
_EXACT = 2**53  # integers up to it are floats


class Piece(NamedTuple):
    """An elementwise call: its value as a graph over its arguments, which broadcast to its shape.
    """

    root: Node
    inputs: dict[str, Value | Constant]
    dtype: np.dtype | None  # that it is computed in; None for conditions alone
    quiet: bool  # whether its path has NumPy warn, as NumPy does by default


class _Unchanged(Trace):
    """A namespace in which nothing is simplified."""

    def call(self, op: str, *given: Any) -> Node:
        return self._node(op, tuple([a if isinstance(a, Node) else self._constant(op, a)
                                     for a in given]))


class _Array(Node):
    """An argument within a trace: rules may ask for its dtype."""

    __slots__ = ("dtype",)

    def __init__(self, trace: Trace, name: str, dtype: np.dtype | None, kind: str) -> None:
        super().__init__(trace, "input", (name,))
        self.dtype = dtype
        self.boolean = kind == "condition"


class _Unknown(Exception):
    """A call is not a piece."""


def piece_of(call: Any, listing: Listing) -> Piece | None:
    """An elementwise call as a graph; None for any other call."""
    if not isinstance(call, Call) or call.host or call.several or len(call.made) != 1 or (
            call.device is None):
        return None
    (made,) = call.made
    if made is None or not listing.contiguous(made) or 0 in listing.values[made].shape:
        return None
    result = listing.values[made]
    params = {key: x for key, x in call.params.items() if key not in ("out", "formula")}
    try:
        inputs = _Inputs(call.args, listing)
        root = _root(call, inputs, params)
        if root is None:
            return None
    except (_Unknown, FormulaError):
        return None
    dtype = inputs.dtype
    if dtype is None and not root.boolean:
        return None
    if (result.dtype != (np.dtype(bool) if root.boolean else dtype)
            or result.shape != np.broadcast_shapes(result.shape, *inputs.shapes)):
        return None
    return Piece(root, inputs.named, dtype, not _formula_of(call))


class _Inputs:
    """The arguments of a call: their facts, and names for those that are arrays."""

    def __init__(self, args: Iterable[Any], listing: Listing) -> None:
        self.args = [*args]
        self.named: dict[str, Value | Constant] = {}
        self.shapes: list[tuple[int, ...]] = []
        self.dtype: np.dtype | None = None
        self.kinds: list[str] = []  # of each: "array", "condition", "number" or "absent"
        for i, a in enumerate(self.args):
            if a is None:
                self.kinds.append("absent")
                continue
            if type(a) in (bool, int, float):
                if abs(a) > _EXACT and type(a) is int or a != a or abs(a) == np.inf:
                    raise _Unknown
                self.kinds.append("number")
                continue
            if isinstance(a, Value):
                facts = listing.values[a.number]
                dtype, shape = facts.dtype, facts.shape
            elif isinstance(a, Constant):
                dtype, shape = a.array.dtype, ()
            else:
                raise _Unknown
            if dtype == np.bool_:
                self.kinds.append("condition")
            elif is_floating(dtype) and (self.dtype is None or self.dtype == dtype):
                self.dtype = dtype
                self.kinds.append("array")
            else:
                raise _Unknown
            self.named[f"x{i}"] = a
            self.shapes.append(shape)
        if not self.shapes:
            raise _Unknown

    def leaves(self, trace: Trace) -> list[Any]:
        """The arguments within a trace."""
        return [_Array(trace, f"x{i}", self.dtype, self.kinds[i]) if f"x{i}" in self.named else a
                for i, a in enumerate(self.args)]


def _root(call: Call, inputs: _Inputs, params: dict[str, Any]) -> Node | None:
    on_cuda = call.device is not None and call.device.type == "cuda"
    if on_cuda:
        name = call.name if call.name in _CUPY and _op_of(call) is not None else None
    else:
        name = _name_on_the_cpu(call)
    trace = _Unchanged()
    if name is not None:
        if params or not _takes(name, inputs) or on_cuda and not any(
                isinstance(a, Value) for a in inputs.args):
            raise _Unknown
        return trace.call(name, *inputs.leaves(trace))
    if "condition" in inputs.kinds or on_cuda and any(
            isinstance(a, Constant) for a in inputs.args):
        raise _Unknown  # a formula takes numbers, and a kernel no arrays of the host
    op = _op_of(call)
    if op is not None and call.name == "equal_number":
        return trace.where(trace.equal(*inputs.leaves(trace)), 1.0, 0.0)
    if op is not None and call.name == "abs_grad" and on_cuda and len(inputs.kinds) == 2:
        g, x = inputs.leaves(trace)  # as its kernel: 0 where x is NaN
        return g * (trace.where(x > 0, 1.0, 0.0) - trace.where(x < 0, 1.0, 0.0))
    formula = _formula_of(call)
    if formula is not None:
        return _of_formula(formula, inputs, params, on_cuda)
    path = call.function if op is None else op.cpu
    plain = getattr(path, "plain", None)
    if isinstance(plain, partial) and plain.args == (np,) and not plain.keywords:
        if on_cuda and call.name not in _SAME_ON_CUDA:
            return None
        made = plain.func(trace, *inputs.leaves(trace), **_numbers(params))
        return made if isinstance(made, Node) else None  # NumPy's functions one by one
    return None


def _name_on_the_cpu(call: Call) -> str | None:
    """The primitive that a call is, one of NumPy's functions or `where`."""
    if call.name == "where" and call.function is registry["where"].cpu:
        return "where"
    plain = getattr(call.function, "plain", call.function)
    if not isinstance(plain, np.ufunc):
        return None
    found = _UFUNCS.get(plain)
    if found is None or found in _LAYOUT_TELLS:
        raise _Unknown
    return found


def _op_of(call: Call) -> Op | None:
    """The op whose path a call runs; on a GPU, where a device puts functions around paths, the one
    of that name."""
    op = registry.get(call.name)
    if op is None or call.op not in (None, op):
        return None
    if call.device is not None and call.device.type == "cuda":
        return op
    return op if call.function is op.cpu else None


def _takes(name: str, inputs: _Inputs) -> bool:
    """Whether a primitive takes these kinds of arguments."""
    primitive, kinds = PRIMITIVES[name], inputs.kinds
    return len(kinds) == primitive.arity and "absent" not in kinds and all(
        kind == "condition" if primitive.takes_boolean(k) else kind != "condition"
        for k, kind in enumerate(kinds))


def _formula_of(call: Call) -> Formula | None:
    if call.name == "formula":
        formula = call.params.get("formula")
    else:
        op = _op_of(call)
        path = call.function if op is None else op.cpu
        formula = getattr(path, "made", None)
    return formula if isinstance(formula, Formula) else None


def _of_formula(
    formula: Formula, inputs: _Inputs, params: dict[str, Any], on_cuda: bool
) -> Node:
    """The graph that a formula's path runs, over the names of the call's arguments."""
    if formula.wide or len(inputs.args) != len(formula.inputs):
        raise _Unknown
    params = _numbers(params)
    static = static_of(params)
    at = {kind: tuple([i for i, k in enumerate(inputs.kinds) if k == kind])
          for kind in ("absent", "number")}
    if on_cuda and at["number"]:
        raise _Unknown  # its kernel takes them as arrays of one number
    roots = formula.graphs(static, at["absent"], at["number"])
    if len(roots) != 1 or inputs.dtype is None:
        raise _Unknown
    (root,) = roots if on_cuda else lowered(roots, inputs.dtype)
    if not on_cuda and is_compiled(
            formula.name, (root,), inputs.dtype, max(map(prod, inputs.shapes))):
        raise _Unknown  # a kernel has other bits
    known: dict[str, Any] = params | {formula.inputs[i]: inputs.args[i] for i in at["number"]}
    trace = _Unchanged()

    def leaf(node: Node) -> Node:
        if node.op == "param":  # a number here: what depends on numbers alone is computed once
            return trace.leaf("constant", float(known[node.args[0]]))
        return trace.leaf("input", f"x{formula.inputs.index(node.args[0])}")

    return copied((root,), trace, leaf)[0]


def _numbers(params: dict[str, Any]) -> dict[str, Any]:
    found = {key: x.item() if isinstance(x, np.number) else x for key, x in params.items()}
    for x in found.values():
        if not isinstance(x, (bool, int, float, str, type(None))):
            raise _Unknown
    return found


def copied(roots: Iterable[Node], trace: Trace, leaf: Callable[[Node], Node]) -> list[Node]:
    """Graphs within another trace, with other leaves in place of all but constants."""
    roots = [*roots]
    made: dict[Node, Node] = {}
    for node in in_order(*roots):
        if node.children:
            made[node] = trace._node(node.op, tuple([made[a] for a in node.args]))
        elif node.op == "constant":
            made[node] = trace.leaf("constant", node.args[0])
        else:
            made[node] = leaf(node)
    return [made[root] for root in roots]


class Composed(NamedTuple):
    """Pieces as one graph: a root for each value that leaves it."""

    roots: tuple[Node, ...]
    inputs: dict[str, Value | Constant]  # arrays by the names of the graph's inputs
    quiet: bool


def composed(
    pieces: Iterable[tuple[int, Piece]], outputs: Iterable[int], relaxed: bool = False
) -> Composed:
    """The graph of (value, piece), whose values are all used within or are outputs."""
    trace = Trace() if relaxed else _Unchanged()
    found: dict[int, Node] = {}
    names: dict[str, Value | Constant] = {}
    fixed: dict[Constant, str] = {}
    quiet = True

    def leaf_of(given: Value | Constant, boolean: bool, single: bool) -> Node:
        if isinstance(given, Constant) and (relaxed or single):
            return trace.leaf("constant", float(given.array))
        if isinstance(given, Constant):
            name = fixed.setdefault(given, f"c{len(fixed)}")
        elif given.number in found:
            return found[given.number]
        else:
            name = f"v{given.number}"
        names[name] = given
        made = trace.leaf("input", name)
        made.boolean = boolean
        return made

    for number, piece in pieces:
        quiet &= piece.quiet
        # One function of an array and a number; of numbers alone more would be computed in double.
        single = not any(a.children for a in piece.root.args) and any(
            isinstance(given, Value) for given in piece.inputs.values())

        def leaf(node: Node, inputs: Any = piece.inputs, single: bool = single) -> Node:
            return leaf_of(inputs[node.args[0]], node.boolean, single)

        (found[number],) = (_simplified if relaxed else copied)((piece.root,), trace, leaf)
    return Composed(tuple([found[n] for n in outputs]), names, quiet)


def _simplified(roots: Iterable[Node], trace: Trace, leaf: Callable[[Node], Node]) -> list[Node]:
    """`copied`, where numbers are folded."""
    made: dict[Node, Node] = {}
    for node in in_order(*roots):
        made[node] = (trace.call(node.op, *[made[a] for a in node.args]) if node.children
                      else trace.leaf("constant", node.args[0]) if node.op == "constant"
                      else leaf(node))
    return [made[root] for root in roots]


def one_number(call: Call) -> np.ndarray | None:
    """What an elementwise call makes of single numbers; None if it is given anything else."""
    if reads(call) or call.several or call.device is None or call.device.type != "cpu":
        return None
    given = [a.array if isinstance(a, Constant) else a for a in call.args]
    value = np.array(call.function(*given, **call.params))
    value.flags.writeable = False
    return None if value.shape else value
