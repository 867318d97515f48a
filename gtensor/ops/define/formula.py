"""Elementwise formulas as data: an expression graph traced from a Python function, once.

    def softplus(ns, x, *, factor):
        z = factor * x
        return (ns.maximum(z, 0) + ns.log1p(ns.exp(-ns.abs(z)))) / factor

A formula is written over array API names. Called with a `Trace` for `ns`, and with `Node`s for the
inputs and the numeric parameters, it leaves its graph, from which follow the NumPy path
(`formula_numpy`), the CUDA text (`formula_cuda`) and the partial derivatives (`derivative`).
Parameters of other types (strings, booleans, None) are part of the trace: there is one graph for
each of their values. A formula must not branch in Python on a value, only on such parameters.

Simplifications keep values up to rounding: factors that are the same for all elements are combined
first (c * x * d is x * (c * d)), and x + 0.0 is x, which keeps -0.0.

Formulas are functions, so that a chain of formulas is a formula: `outer(ns, inner(ns, x))` is one
graph, and one kernel.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gtensor.engine.tape.arguments import arguments_of
from gtensor.ops.define.primitives import PRIMITIVES, by_smooth

if TYPE_CHECKING:
    from gtensor.backend.typing import Params, Path

Key = tuple[tuple[str, Any], ...]  # the names and values of parameters that are not numbers
_NUMBERS = (bool, int, float)
_LEAVES = ("input", "param", "constant")
_COMMUTE = ("add", "multiply")


class Node:
    """One value of a formula: a leaf, or a primitive of other values. Equal values are one node."""

    __slots__ = ("args", "boolean", "op", "trace", "uniform")
    __array_ufunc__ = None  # NumPy's numbers leave the arithmetic to the node

    def __init__(self, trace: Trace, op: str, args: tuple[Any, ...]) -> None:
        self.trace = trace
        self.op = op
        self.args = args  # nodes; of a leaf its name, or its value
        leaf = op in _LEAVES
        self.boolean = not leaf and PRIMITIVES[op].boolean
        # whether it is the same for all elements
        self.uniform = op != "input" if leaf else all(a.uniform for a in args)

    @property
    def children(self) -> tuple[Node, ...]:
        return () if self.op in _LEAVES else self.args

    def __bool__(self) -> bool:
        raise FormulaError(f"branches in Python on the value {self}; wanted ns.where")

    if TYPE_CHECKING:  # made below

        def __add__(self, other: Any) -> Node: ...
        def __radd__(self, other: Any) -> Node: ...
        def __sub__(self, other: Any) -> Node: ...
        def __rsub__(self, other: Any) -> Node: ...
        def __mul__(self, other: Any) -> Node: ...
        def __rmul__(self, other: Any) -> Node: ...
        def __truediv__(self, other: Any) -> Node: ...
        def __rtruediv__(self, other: Any) -> Node: ...
        def __neg__(self) -> Node: ...

    __hash__ = object.__hash__  # nodes are compared by `is`; `==` is part of the formula

    def __pos__(self) -> Node:
        return self

    def __pow__(self, other: Any) -> Node:
        if other == 0.5:
            return self.trace.call("sqrt", self)
        if type(other) is not int or not 1 <= other <= _MOST_FACTORS:
            raise FormulaError(f"raises {self} to the power {other!r}; wanted 0.5, or an integer "
                               f"from 1 to {_MOST_FACTORS}")
        return self if other == 1 else self * self ** (other - 1)

    def __getattr__(self, name: str) -> Any:
        raise FormulaError(f"reads {name!r} of the value {self}; a formula knows values only")

    def __repr__(self) -> str:
        if self.op in _LEAVES:
            return str(self.args[0])
        return f"{self.op}({', '.join(map(str, self.args))})"


_MOST_FACTORS = 8


def _operator(name: str, function: str, reflected: bool = False) -> None:
    """Give `Node` the operator that calls a primitive."""

    def apply(self: Node, *other: Any) -> Node:
        return self.trace.call(function, *((*other, self) if reflected else (self, *other)))

    setattr(Node, f"__{'r' if reflected else ''}{name}__", apply)


def _no_operator(name: str) -> None:
    def refuse(self: Node, *other: Any) -> NoReturn:
        raise FormulaError(f"uses the operator {name} on {self}; wanted functions of ns")

    setattr(Node, f"__{name}__", refuse)


for _name, _function in {"add": "add", "sub": "subtract", "mul": "multiply",
                         "truediv": "divide"}.items():
    _operator(_name, _function)
    _operator(_name, _function, reflected=True)
for _name, _function in {
        "neg": "negative", "abs": "abs", "eq": "equal", "ne": "not_equal", "gt": "greater",
        "ge": "greater_equal", "lt": "less", "le": "less_equal", "and": "logical_and",
        "or": "logical_or", "invert": "logical_not"}.items():
    _operator(_name, _function)
for _name in ("rpow", "mod", "rmod", "floordiv", "rfloordiv", "matmul", "rmatmul", "xor", "lshift",
              "rshift", "float", "int", "index", "len", "iter", "contains"):
    _no_operator(_name)


class FormulaError(TypeError):
    """What is wrong with a formula; `Formula` adds the op's name."""


class Trace:
    """The namespace that a formula is traced in: its functions make nodes, each once."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Any, ...], Node] = {}

    def __getattr__(self, name: str) -> Callable[..., Node]:
        if name not in PRIMITIVES:
            raise FormulaError(f"calls ns.{name}; wanted one of {', '.join(sorted(PRIMITIVES))}")
        return lambda *args: self.call(name, *args)

    def leaf(self, op: str, value: Any) -> Node:
        # 1 and 1.0 are one constant, 0.0 and -0.0 are two
        return self._node(op, (float(value) if op == "constant" else value,), repr(value))

    def _node(self, op: str, args: tuple[Any, ...], key: Any = None) -> Node:
        found = self._nodes.get((op, key or args))
        if found is None:
            found = self._nodes[op, key or args] = Node(self, op, args)
        return found

    def call(self, op: str, *given: Any) -> Node:
        """The primitive of these nodes and numbers, simplified."""
        primitive = PRIMITIVES[op]
        args = tuple([a if isinstance(a, Node) else self._constant(op, a) for a in given])
        if len(args) != primitive.arity:
            raise FormulaError(f"calls ns.{op} with {len(args)} values; wanted {primitive.arity}")
        for k, a in enumerate(args):
            if a.boolean is not primitive.takes_boolean(k):
                raise FormulaError(f"calls ns.{op} with {a}; wanted "
                                   f"{'a condition' if primitive.takes_boolean(k) else 'numbers'}")
        if all(a.op == "constant" for a in args) and primitive.number is not None:
            return self.leaf("constant", primitive.number(*[a.args[0] for a in args]))
        if op in _COMMUTE and args[0].uniform and not args[1].uniform:
            args = args[::-1]
        found = self._simplified(op, args)
        return self._node(op, args) if found is None else found

    def _constant(self, op: str, value: Any) -> Node:
        if type(value) not in _NUMBERS and not hasattr(value, "__float__"):
            raise FormulaError(f"calls ns.{op} with {value!r}; wanted numbers or its inputs")
        return self.leaf("constant", float(value))

    def _simplified(self, op: str, args: tuple[Node, ...]) -> Node | None:
        """The same value by fewer or cheaper primitives, where there is one."""
        a, b = args[0], args[-1]
        if op == "negative":
            if a.op == "negative":
                return a.args[0]
            if a.op == "subtract":
                return a.args[1] - a.args[0]
            if a.op == "multiply" and a.args[1].uniform:
                return a.args[0] * -a.args[1]
        elif op == "add":
            if is_number(b, 0):
                return a
            if b.op == "negative":
                return a - b.args[0]
            if a.op == "negative":
                return b - a.args[0]
        elif op == "subtract":
            if is_number(b, 0):
                return a
            if b.op == "negative":
                return a + b.args[0]
        elif op == "multiply":
            return _scaled(a, b)
        elif op == "divide":
            if is_number(b, 1):
                return a
            if b.op == "constant" and b.args[0] in _EXACT_RECIPROCALS:
                return a * (1 / b.args[0])
        elif op == "where":
            return _selection(a, args[1], b)
        return None


_EXACT_RECIPROCALS = (0.25, 0.5, 2.0, 4.0)


def _selection(condition: Node, x1: Node, x2: Node) -> Node | None:
    """Without what a condition excludes that was tested before."""
    if x1.op == "where" and x1.args[0] is condition:
        return condition.trace.call("where", condition, x1.args[1], x2)
    if x2.op == "where" and x2.args[0] is condition:
        return condition.trace.call("where", condition, x1, x2.args[2])
    return x1 if x1 is x2 else None


def _scaled(a: Node, b: Node) -> Node | None:
    if is_number(a, 1):
        return b
    if is_number(b, 1):
        return a
    if is_number(b, -1):
        return -a
    if b.uniform and a.op == "multiply" and a.args[1].uniform:
        return a.args[0] * (a.args[1] * b)
    if b.uniform and a.op == "negative":
        return a.args[0] * -b
    for one, other in ((a, b), (b, a)):
        if one.op == "divide" and is_number(one.args[0], 1) and not one.uniform:
            return other / one.args[1]
    return None


def is_number(node: Node, value: float) -> bool:
    """Whether the node is this constant."""
    return node.op == "constant" and node.args[0] == value


def in_order(*roots: Node) -> Iterator[Node]:
    """The nodes that values are made of, each once and after those that it needs."""
    done: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if node in done:
            continue
        if ready:
            done.add(node)
            yield node
        else:
            stack.append((node, True))
            stack += [(child, False) for child in reversed(node.children)]


_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": operator.truediv, "negative": operator.neg}


def evaluate(root: Node, ns: Any, leaves: dict[str, Any]) -> Any:
    """The value of a graph in any namespace, given its inputs and parameters by name."""
    return evaluate_all((root,), ns, leaves)[0]


def evaluate_all(roots: tuple[Node, ...], ns: Any, leaves: dict[str, Any]) -> list[Any]:
    """The values of a graph with several roots; what they share is evaluated once."""
    steps = list(in_order(*roots))
    last = {a: i for i, n in enumerate(steps) for a in n.children} | dict.fromkeys(
        roots, len(steps))
    values: dict[Node, Any] = {}
    for i, node in enumerate(steps):
        if node.op in _LEAVES:
            values[node] = node.args[0] if node.op == "constant" else leaves[node.args[0]]
            continue
        function = _OPERATORS.get(node.op) or getattr(ns, node.op)
        values[node] = function(*[values[a] for a in node.args])
        for a in dict.fromkeys(node.args):
            if last[a] == i:
                del values[a]  # which frees its memory, unless the caller holds it
    return [values[root] for root in roots]


# -- special functions -----------------------------------------------------------------------------


def special_rule(op: str) -> Callable[..., Any] | None:
    """The formula of a primitive that is made of others; None for one that is not."""
    if PRIMITIVES[op].cuda:
        return None
    from gtensor.ops.define.special_functions import LOWERED  # which most programs do not need

    return LOWERED[op]


class _Plain(Trace):
    """The namespace in which special functions become their formulas."""

    def call(self, op: str, *given: Any) -> Node:
        rule = special_rule(op)
        made = super().call(op, *given) if rule is None else rule(self, *given)
        return made if isinstance(made, Node) else self.leaf("constant", made)


def without_special(roots: tuple[Node, ...]) -> tuple[Node, ...]:
    """The graph with the formulas of its special functions."""
    if all(n.op in _LEAVES or PRIMITIVES[n.op].cuda for n in in_order(*roots)):
        return roots
    trace = _Plain()
    made = evaluate_all(roots, trace, {n.args[0]: trace.leaf(n.op, n.args[0])
                                       for n in in_order(*roots) if n.op in ("input", "param")})
    return tuple([m if isinstance(m, Node) else trace.leaf("constant", m) for m in made])


# -- derivatives -----------------------------------------------------------------------------------


def slope(root: Node, leaf: Node) -> Node:
    """The derivative of a graph with respect to one of its leaves, in the same trace."""
    trace = root.trace
    zero = trace.leaf("constant", 0.0)
    found: dict[Node, Node] = {}
    for node in in_order(root):
        if node is leaf:
            found[node] = trace.leaf("constant", 1.0)
            continue
        total = zero
        for k, arg in enumerate(node.children):
            if not is_number(found[arg], 0):
                total = _sum(total, _along(node, k, found[arg]))
        found[node] = total
    return found[root]


def _along(node: Node, k: int, change: Node) -> Node:
    """The change of a value when its argument number k changes by `change`.

    It selects: where the argument changes on one branch only, so does the value. Times a mask,
    which is 0 or 1, it would be NaN where the derivative of the branch not taken is infinite.
    """
    rule = PRIMITIVES[node.op].rules[k]
    if rule is None:
        return node.trace.leaf("constant", 0.0)
    if rule is by_smooth:
        from gtensor.ops.define.special_functions import SMOOTH

        smooth = slope(SMOOTH[node.op](node.trace, *node.args), node.args[k])
        return linear(change, lambda d: d * smooth)
    return linear(change, lambda d: rule(node.trace, d, node, *node.args))


def linear(change: Node, rule: Callable[[Node], Node]) -> Node:
    """A linear function of `change`, of each branch if `change` selects 0 or 1."""
    if is_number(change, 0):
        return change
    if change.op == "where" and _selects_a_number(change):
        condition, x1, x2 = change.args
        return change.trace.call("where", condition, linear(x1, rule), linear(x2, rule))
    return rule(change)


def _selects_a_number(node: Node) -> bool:
    return node.op == "where" and any(
        is_number(x, 0) or is_number(x, 1) or _selects_a_number(x) for x in node.args[1:])


def _sum(a: Node, b: Node) -> Node:
    """a + b, of each branch if both select by one condition."""
    if a.op == b.op == "where" and a.args[0] is b.args[0]:
        return a.trace.call("where", a.args[0], *map(_sum, a.args[1:], b.args[1:]))
    return b if is_number(a, 0) else a + b


# -- formulas --------------------------------------------------------------------------------------


class Formula:
    """A formula and its graphs, one for each value of the parameters that are not numbers.

    Call it as its function, in any namespace. `inputs` and `params` are the names that it takes.
    An `analytic` one has its derivatives of complex values, too. A `wide` one computes in float64
    and rounds the value, as do its derivatives.
    """

    def __init__(
        self, name: str, function: Path, analytic: bool = False, wide: bool = False
    ) -> None:
        self.analytic = analytic
        self.wide = wide
        self.asks = False  # whether small outputs are asked of the device, too
        self.name = name
        self.function = function
        takes = arguments_of(function)
        self.inputs = takes.inputs[1:]  # without ns
        self.params = takes.params
        self._graphs: dict[tuple[Any, ...], tuple[Node, ...]] = {}

    def __call__(self, ns: Any, *inputs: Any, **params: Any) -> Any:
        return self.function(ns, *inputs, **params)

    def __repr__(self) -> str:
        return f"<formula {self.name}>"

    @property
    def operations(self) -> int:
        """Primitives per element; 1 if parameters that are not numbers select among graphs."""
        try:
            roots = self.graphs()
        except (FormulaError, TypeError, ValueError):
            return 1
        return sum(node.op not in _LEAVES for node in in_order(*roots))

    def graph(self, static: Key = (), absent: tuple[int, ...] = (),
              numbers: tuple[int, ...] = ()) -> Node:
        """The graph for these parameters that are not numbers, without the inputs numbered `absent`
        (they are None) and with the inputs `numbers` the same for all elements."""
        return self.graphs(static, absent, numbers)[0]

    def graphs(self, static: Key = (), absent: tuple[int, ...] = (),
               numbers: tuple[int, ...] = ()) -> tuple[Node, ...]:
        """The same of all values of a formula that returns a tuple."""
        key = static, absent, numbers
        found = self._graphs.get(key)
        if found is None:
            found = self._graphs[key] = self._traced(Trace(), dict(static), absent, numbers)
        return found

    def _traced(self, trace: Trace, static: dict[str, Any], absent: tuple[int, ...],
                numbers: tuple[int, ...]) -> tuple[Node, ...]:
        inputs = [None if i in absent else trace.leaf("param" if i in numbers else "input", n)
                  for i, n in enumerate(self.inputs)]
        params = {n: static[n] if n in static else trace.leaf("param", n) for n in self.params}
        try:
            made = self.function(trace, *inputs, **params)
            return tuple([value if isinstance(value, Node) else
                          trace.leaf("constant", float(value))
                          for value in (made if isinstance(made, tuple) else (made,))])
        except FormulaError as error:
            raise FormulaError(f"the formula of op {self.name!r} {error}") from None


def static_of(params: Params) -> Key:
    """The parameters that select a graph: all but numbers."""
    return tuple([item for item in params.items() if not _is_numeric(item[1])])


def _is_numeric(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def plain_numbers(name: str, params: Params) -> Params:
    """The parameters with NumPy's numbers as Python's; raises TypeError for an array among them."""
    for key, value in params.items():
        if isinstance(value, np.ndarray) or hasattr(value, "__cuda_array_interface__"):
            raise TypeError(f"{name} was given an array as its parameter {key!r}; wanted a number "
                            "(arrays are inputs)")
    return {k: v.item() if isinstance(v, np.number) else v for k, v in params.items()}


def derivative(formula: Formula, of: str, out: bool = False) -> Formula:
    """g times the derivative of a formula with respect to the input `of`: (ns, g, *inputs).

    With `out` the derivative is a function of the formula's value y, which comes in place of the
    inputs: (ns, g, y). A FormulaError at its first use says so if it is not.
    """

    def change(static: Key, absent: tuple[int, ...]) -> Node:
        root = formula.graph(static, absent)
        found = slope(root, root.trace.leaf("input", of))
        return _of_output(found, root) if out else found

    return _times(f"{formula.name}_grad", change, ("y",) if out else formula.inputs, formula)


def times(name: str, factor: Formula) -> Formula:
    """g times a formula: (ns, g, *inputs). Where it selects 0 or 1, it selects 0 or g."""
    return _times(name, factor.graph, factor.inputs, factor)


def _times(name: str, graph: Callable[..., Node], inputs: tuple[str, ...], of: Formula) -> Formula:
    g = _unused("g", inputs)

    def function(ns: Any, *given: Any, **params: Any) -> Any:
        static = static_of({n: v for n, v in params.items() if not isinstance(v, Node)})
        root = graph(static, tuple([i for i, x in enumerate(given[1:]) if x is None]))
        return evaluate(_product(root, g), ns, dict(zip((g, *inputs), given, strict=True)) | params)

    return _with_signature(name, function, (g, *inputs), of)


def partial_of(formula: Formula, i: int, static: Key, absent: tuple[int, ...]) -> Formula | None:
    """g times the derivative by input number i, of g and the inputs that it needs; None if it is 0.

    `static` and `absent` select the formula's graph.
    """
    root = formula.graph(static, absent)
    change = slope(root, root.trace.leaf("input", formula.inputs[i]))
    if is_number(change, 0):
        return None
    g = _unused("g", formula.inputs)
    product = _product(change, g)
    used = {n.args[0] for n in in_order(product) if n.op == "input"}
    inputs = (g, *[n for n in formula.inputs if n in used])

    def function(ns: Any, *given: Any, **params: Any) -> Any:
        return evaluate(product, ns, dict(zip(inputs, given, strict=True)) | params)

    return _with_signature(f"{formula.name}_d{i}", function, inputs, formula)


def _product(change: Node, g: str) -> Node:
    """g times a derivative: where that selects 0 or 1, 0 or g is selected."""
    trace = change.trace
    return linear(change, lambda d: trace.call("multiply", trace.leaf("input", g), d))


def _unused(name: str, names: tuple[str, ...]) -> str:
    while name in names:
        name += name[0]
    return name


def _with_signature(name: str, function: Any, inputs: tuple[str, ...], of: Formula) -> Formula:
    function.__signature__ = _signature(("ns", *inputs), of.params)
    return Formula(name, function, of.analytic, of.wide)


def _signature(inputs: tuple[str, ...], params: tuple[str, ...]) -> inspect.Signature:
    kind = inspect.Parameter
    return inspect.Signature([*[kind(n, kind.POSITIONAL_OR_KEYWORD) for n in inputs],
                              *[kind(n, kind.KEYWORD_ONLY) for n in params]])


def _of_output(node: Node, root: Node) -> Node:
    """The graph with the value `root` as the leaf "y"."""
    trace = root.trace
    values: dict[Node, Node] = {}
    for n in in_order(node):
        values[n] = trace.leaf("input", "y") if n is root else (
            trace.call(n.op, *[values[a] for a in n.args]) if n.children else n)
    made = values[node]
    left = sorted({n.args[0] for n in in_order(made) if n.op == "input"} - {"y"})
    if left:
        raise FormulaError(f"has no derivative from its output alone: it needs {', '.join(left)}")
    return made
