"""The NumPy path of a formula: text for one tile, over a few buffers of a tile's size.

A formula's graph is first lowered for the dtype that it is computed in. Then each primitive is one
call with `out=`. A buffer is free again after the last call that reads it, so most calls work in
place; only the last one writes the output, which may therefore be one of the inputs. Several
outputs each overwrite one input: from the last call that reads it on, its memory is one more buffer
(see `updates`). Large contiguous arrays are given to a kernel in C, if there is one (`formula_c`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import lru_cache, partial
from operator import itemgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy import ndarray

from gtensor.backend import compiled, host
from gtensor.ops.define.cpu_tiles import (
    computed_in,
    cut,
    flat_tiles,
    masked,
    select_into,
    tile_size,
    tiles,
    whole_tiles,
)
from gtensor.ops.define.formula import (
    Formula,
    FormulaError,
    Key,
    Node,
    in_order,
    is_number,
    plain_numbers,
    static_of,
)
from gtensor.ops.define.lowering import lowered, uniform_operands
from gtensor.ops.define.primitives import PRIMITIVES
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path, Scalar

# -- text ------------------------------------------------------------------------------------------

_FILLED = ("maximum", "minimum", "copysign")  # of an array and a number these are slow
_COMPARE = ("maximum", "minimum", "sign")
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "power": "**"}
_QUIET = {"add", "subtract", "multiply", "negative", "abs", "where", "maximum", "minimum", "sin",
          "cos", "sign"}


class Numbers:
    """The statements that compute, in Python's numbers, what is the same for all elements."""

    def __init__(self) -> None:
        self.names: dict[Node, str] = {}

    def name(self, node: Node) -> str:
        if node.op in ("constant", "param"):
            return repr(node.args[0]) if node.op == "constant" else node.args[0]
        return self.names.setdefault(node, f"u{len(self.names)}")

    def lines(self, nodes: Iterable[Node]) -> list[str]:
        return [f"{self.name(n)} = {self._arithmetic(n)}" for n in in_order(*nodes) if n.children]

    def _arithmetic(self, node: Node) -> str:
        operands = [self.name(a) for a in node.args]
        call = f"float({PRIMITIVES[node.op].numpy or node.op}({', '.join(operands)}))"
        if node.op in _SIGNS:
            return f" {_SIGNS[node.op]} ".join(operands)
        if node.op == "divide":  # NumPy's calls take ten times as long
            return f"{' / '.join(operands)} if {operands[1]} else {call}"
        return f"root({operands[0]}) if {operands[0]} >= 0 else nan" if node.op == "sqrt" else call


class Text:
    """The statements of one tile: where each value lies, and how many buffers they need.

    The first roots are the values of `outputs`, arrays or inputs that they overwrite. Further ones
    are `watched`: they are computed first, and if one overflows, nothing is written.
    """

    def __init__(self, roots: tuple[Node, ...], outputs: tuple[str, ...] = ("out",)) -> None:
        self.roots = dict(zip(outputs, roots, strict=False))
        self.results = {*self.roots.values()}
        watched = roots[len(outputs):]
        order = [*in_order(*watched, *self.roots.values())]
        self.steps = [n for n in order if n.children and not n.uniform]
        self.watched = len([n for n in in_order(*watched) if n.children and not n.uniform])
        self.last = {a: i for i, n in enumerate(self.steps) for a in n.args}
        made = {n: i for i, n in enumerate(self.steps)}
        self.ends = {made[n]: name for name, n in reversed(self.roots.items())
                     if n in made}  # the step that makes an output
        self.read = {n.args[0]: self.last.get(n, -1) for n in order if n.op == "input"}
        self.places: dict[Node, str] = {}  # the buffer of each value
        self.free: dict[str, list[str]] = {"b": [], "m": []}
        self.lent: dict[str, Node] = {}  # outputs that hold another value for now
        self.made = {"b": 0, "m": 0}
        self.scalars: dict[Node, str] = {}
        self.selected: set[Node] = set()  # the numbers that are 0-d arrays: NumPy reads them faster
        self.filled: dict[Node, str] = {}  # arrays of a tile's size that hold one number
        self.numbers = Numbers()  # what is computed once
        self.lines = [self._line(i, n) for i, n in enumerate(self.steps)]
        self.lines += [f"copyto({name}, {self._operand(self._copied(name, n))})"
                       for name, n in self.roots.items() if self.places.get(n) != name
                       and not (n.op == "input" and n.args[0] == name)]

    @property
    def quiet(self) -> bool:
        """Whether no primitive sets NumPy's flags on the way to a right result."""
        return all(n.op in _QUIET or n.boolean for n in self.steps)

    def _copied(self, name: str, root: Node) -> Node:
        if root.op == "input" and root.args[0] in self.roots:
            raise FormulaError(f"returns its input {root} as {name}; wanted a value that is not "
                               "overwritten")
        return root

    def _line(self, i: int, node: Node) -> str:
        if node.op == "where":
            return self._selection(i, node)
        operands = [self._operand(a, node.op in _FILLED) for a in node.args]
        self._release(i, *node.args)
        place = self._place(i, node)
        named = "out=" if node.op in ("maximum", "minimum") else ""  # NumPy wants it for these
        return f"{PRIMITIVES[node.op].numpy or node.op}({', '.join(operands)}, {named}{place})"

    def _selection(self, i: int, node: Node) -> str:
        condition, x1, x2 = node.args
        mask = self._operand(condition)
        spare = (condition in self.places and self.last[condition] == i
                 and condition not in self.results)
        for kept, dropped, keep in ((x1, x2, True), (x2, x1, False)):
            if is_number(dropped, 0) and math.copysign(1, dropped.args[0]) > 0:
                operand = self._operand(kept, array=True)
                self._release(i, *node.args)
                place = self._place(i, node)
                return f"masked({operand}, {mask}, {place}, {keep}, {spare})"
        a, b = (self._operand(x, array=True) for x in (x1, x2))
        self._release(i, condition, *([] if x1 is x2 else [x1]))
        work = self._buffer("b")  # that of x1, if no later step reads x1
        self._release(i, x2)
        place = self.places[node] = self._output(i, node) or work
        if place != work:  # an output may be an input: it cannot be worked in
            self.free["b"].append(work)
        return f"select_into({place}, {mask}, {a}, {b}, {work}, {spare})"

    def _operand(self, node: Node, full: bool = False, array: bool = False) -> str:
        """What stands for a value; a number is of the dtype, or 0-d `array`, or a full one."""
        if node.op == "input":
            return node.args[0]
        if not node.uniform:
            return self.places[node]
        if array or "out" not in self.roots:  # updates: their numbers serve many calls
            self.selected.add(node)
        scalar = self.scalars.setdefault(node, f"s{len(self.scalars)}")
        return self.filled.setdefault(node, scalar.replace("s", "f")) if full else scalar

    def _release(self, i: int, *values: Node) -> None:
        """Free the buffers of those values that step i is the last to read."""
        for a in dict.fromkeys(values):
            place = self.places.get(a)
            if place is None or self.last[a] != i or a in self.results:
                continue
            if place in self.roots:
                del self.lent[place]
            else:
                self.free["m" if a.boolean else "b"].append(place)

    def _place(self, i: int, node: Node) -> str:
        place = self.places[node] = self._output(i, node) or self._buffer(
            "m" if node.boolean else "b")
        return place

    def _output(self, i: int, node: Node) -> str | None:
        """The output that the value is written to: its own, or one that is made no earlier than
        the value is last read. None while an input there is to be read, or watched values are."""
        for end, name in self.ends.items():
            mine = end == i
            if self.watched <= i <= end and self.read.get(name, -1) <= i and (mine or (
                    name in self.read and name not in self.lent and not node.boolean
                    and node not in self.results and self.last[node] <= end)):
                if not mine:
                    self.lent[name] = node
                return name
        return None

    def _buffer(self, kind: str) -> str:
        if self.free[kind]:
            return self.free[kind].pop()
        self.made[kind] += 1
        return f"{kind}{self.made[kind] - 1}"


_NAMES: dict[str, Any] = {
    **{p.numpy or name: getattr(np, p.numpy or name) for name, p in PRIMITIVES.items()
       if hasattr(np, p.numpy or name)},
    "copyto": np.copyto, "select_into": select_into, "masked": masked, "empty": np.empty,
    "errstate": np.errstate, "inf": math.inf, "nan": math.nan, "float": float,
    "bool": np.bool_, "root": math.sqrt,
}


class Program:
    """The functions of one graph and one dtype, made from text (`source`).

    `whole(*arrays, shape, out=None, **params)` is for arrays of one tile and of the dtype, which
    broadcast to the shape; `out` is contiguous. `numbers(**params)` gives what
    `tile(*arrays, out, *numbers, *buffers)` takes besides buffers: filled ones first, then those of
    floats, then those of conditions.

    With `outputs`, which the values overwrite, there is no `whole` and no `out`; `tile` returns
    whether it wrote: not if a value overflowed that is watched.
    """

    def __init__(self, roots: tuple[Node, ...], dtype: np.dtype, formula: Formula,
                 absent: tuple[int, ...], numbers: tuple[int, ...],
                 outputs: tuple[str, ...] = ()) -> None:
        for name in (*formula.inputs, *formula.params):
            if name in _NAMES:
                raise FormulaError(f"the formula of op {formula.name!r} calls a value {name!r}, "
                                   "like a function; wanted another name")
        text = Text(lowered(roots, dtype), outputs or ("out",))
        uniform = [formula.inputs[i] for i in numbers]
        self.arrays = [n for i, n in enumerate(formula.inputs) if i not in (*absent, *numbers)]
        self.dtype = dtype
        roots = (*text.roots.values(),)
        self.kernel = None if numbers or text.watched else compiled.kernel(
            compiled_name(formula.name, roots, dtype))
        # Flags that NumPy's path does not warn of, or others raise: C's comparisons do for NaN.
        compares = any(n.boolean or n.op in _COMPARE for n in text.steps)
        self.compares = text.quiet and compares
        self.silent = compiled.ALL if not text.quiet else compiled.INVALID if compares else 0
        self.floats, self.conditions = text.made["b"], text.made["m"]
        self.source = _source(text, self.arrays, [*uniform, *formula.params])
        if self.kernel is not None:
            self.source += _constants(text, formula.params)
        self.spare_number: list[ndarray] = []
        self.spare: dict[tuple[int, ...], tuple[ndarray, ...]] = {}
        names: dict[str, Any] = {
            **_NAMES, "dtype": dtype, "scalar": dtype.type, "array": np.array,
            "spare": self.spare, "buffers": self.buffers}
        names |= {name: np.array(node.args[0], dtype) for node, name in text.scalars.items()
                  if node.op == "constant"}
        exec(compile(self.source, f"<formula {formula.name} {dtype}>", "exec"), names)
        self.whole, self.numbers, self.tile, self.constants = (
            names.get(n, _no_text) for n in ("whole", "numbers", "tile", "constants"))

    def number(self, arrays: tuple[Any, ...], params: Params) -> Any:
        """NumPy's scalar of 0-d arrays, as its functions return it."""
        out = self.spare_number.pop() if self.spare_number else np.empty((), self.dtype)
        value = self.whole(*arrays, (), out=out, **params)[()]
        self.spare_number[:] = [out]
        return value

    def buffers(self, shape: tuple[int, ...]) -> tuple[ndarray, ...]:
        """What `whole` works in besides the output; small ones are kept for the next call."""
        return (*[np.empty(shape, self.dtype) for _ in range(self.floats)],
                *[np.empty(shape, np.bool_) for _ in range(self.conditions)])


def _no_text(*given: Any, **named: Any) -> Any:
    raise TypeError("a program that overwrites its inputs has no `whole`")


def _source(text: Text, arrays: list[str], params: list[str]) -> str:
    buffers = [f"b{i}" for i in range(text.made["b"])]
    masks = [f"m{i}" for i in range(text.made["m"])]
    filled = {name: text.scalars[node] for node, name in text.filled.items()}
    scalars = [f"{name} = " + (f"array({text.numbers.name(node)}, dtype)" if node in text.selected
                               else f"scalar({text.numbers.name(node)})")
               for node, name in text.scalars.items() if node.op != "constant"]
    numbers = [*text.numbers.lines(text.scalars), *scalars]
    names = [line.split(" = ")[0] for line in scalars]
    keywords = f"{', *' if params else ''}{''.join(f', {p}' for p in params)}"
    rest = [*buffers, *masks]
    rows = ["rows = spare.pop(shape, None) or buffers(shape)", f"{', '.join(rest)}, = rows"]
    whole = [
        f"def whole({', '.join([*arrays, 'shape'])}{keywords}, out=None):",
        *numbers, *[f"{name} = {number}" for name, number in filled.items()],
        *(rows if rest else ()),
        "if out is None: out = empty(shape, dtype)", *_guarded(text),
        *(("if len(spare) > 15: spare.clear()", "if out.size <= 1024: spare[shape] = rows")
          if rest else ()), "return out"]
    start = [f"def numbers({keywords[2:]}):", *numbers,
             f"return ({''.join(f'{n}, ' for n in names)}), "
             f"({''.join(f'{number}, ' for number in filled.values())})"]
    given = [*arrays, *(["out"] if "out" in text.roots else ())]
    tile = [f"def tile({', '.join([*given, *names, *filled, *buffers, *masks])}):",
            *_guarded(text), "return True"]
    return "".join(f"{line}\n" if line.startswith("def ") else f" {line}\n"
                   for line in (*(whole if "out" in text.roots else ()), *start, *tile))


def _constants(text: Text, params: tuple[str, ...]) -> str:
    """The function of what a kernel takes as numbers."""
    nodes = uniform_operands(*text.roots.values())
    numbers = Numbers()
    lines = numbers.lines(nodes)
    given = f"*, {', '.join(params)}" if params else ""
    values = "".join(f"{numbers.name(n)}, " for n in nodes)
    return "".join([f"def constants({given}):\n", *[f" {line}\n" for line in lines],
                    f" return ({values})\n"])


def compiled_name(name: str, roots: tuple[Node, ...], dtype: np.dtype) -> str:
    """The name of the kernel in C of a lowered graph, whether there is one or not.

    It has a checksum of the graph, as another formula may have the same name.
    """
    from binascii import crc32

    places: dict[Node, int] = {}
    checksum = 0
    for node in in_order(*roots):
        places[node] = len(places)
        # leaves are the names of inputs and parameters, and numbers
        known = [f"{places[a]}" for a in node.children] or [repr(a) for a in node.args]
        checksum = crc32(f"{node.op} {' '.join(known)};".encode(), checksum)
    checksum = crc32(f"{[places[root] for root in roots]}".encode(), checksum)
    return f"{name}_{checksum:08x}_{dtype.char}"


def is_compiled(name: str, roots: tuple[Node, ...], dtype: np.dtype, size: int) -> bool:
    """Whether the path of a lowered graph calls a kernel for so many elements."""
    return bool(settings.compiled) and (
        size > min(_WORTH, settings.tile_elements) or settings.compiled == 2) and (
        compiled.kernel(compiled_name(name, roots, dtype)) is not None)


def _guarded(text: Text) -> list[str]:
    if text.watched:
        first, rest = text.lines[:text.watched], text.lines[text.watched:]
        return ["try:", " with errstate(over='raise'):", *[f"  {line}" for line in first],
                "except FloatingPointError: return False", *rest]
    if text.quiet:
        return text.lines
    return ["with errstate(all='ignore'):", *[f" {line}" for line in text.lines]]


# -- the path --------------------------------------------------------------------------------------

_WORTH = 2048  # elements from which on a call of a kernel takes less time than several of NumPy's
_COMPUTED = (np.dtype(np.float32), np.dtype(np.float64))

plain = SimpleNamespace(
    sigmoid=lambda x: 1 / (1 + np.exp(-x)),
    **{name: getattr(np, p.numpy or name) for name, p in PRIMITIVES.items()
       if hasattr(np, p.numpy or name)})
"""NumPy's functions by the names of primitives, for dtypes that no program computes in."""


def numpy_path(formula: Formula, dtype: np.dtype | None = None, label: str = "") -> Path:
    """The CPU path of a formula; temporaries are as large as a tile, never as the output.

    `out` may be one of the inputs. Half precision is computed in float32. `dtype` fixes the
    output's dtype where it is not that of the inputs. Integers and complex numbers are evaluated
    function by function.
    """
    programs: dict[Any, Program] = {}
    name = label or formula.name

    def made(kind: np.dtype, static: Key, absent: tuple[int, ...] = (),
             numbers: tuple[int, ...] = ()) -> Program:
        key = (kind, static, absent, numbers) if absent or numbers else (kind, static)
        if key not in programs:
            one = np.dtype(kind.char)  # an unpickled dtype is another object, and results have it
            programs[key] = Program(formula.graphs(static, absent, numbers), one, formula, absent,
                                    numbers)
        return programs[key]

    def path(*arrays: Array | Scalar | None, out: Array | None = None, **params: Any) -> Array:
        static: Key = ()
        for item in params.items():  # the usual types without a call
            given = type(item[1])
            if given is str or given is bool or item[1] is None:
                static += (item,)
            elif given is not float and given is not int:
                params = plain_numbers(name, params)
                static = static_of(params)
                break
        if formula.wide:
            return _general(formula, made, name, dtype, static, arrays, out, params)
        shape = kind = None
        for a in arrays:
            if type(a) is not ndarray or (kind is not None and (
                    a.dtype is not kind or a.shape != shape)):
                break
            kind, shape, size = a.dtype, a.shape, a.size
        else:
            if kind in _COMPUTED and (dtype is None or dtype == kind) and (
                    out is None or (out.dtype is kind and out.flags.c_contiguous)):
                program = programs.get((kind, static)) or made(kind, static)
                if size > settings.tile_elements or program.kernel is not None and (
                        size > _WORTH or settings.compiled == 2):
                    return _large(program, name, arrays, out, params)
                if out is None and formula.asks:
                    out = host().empty(shape or (), kind, name)
                if shape or out is not None:
                    return program.whole(*arrays, shape, out=out, **params)
                return program.number(arrays, params)
        return _general(formula, made, name, dtype, static, arrays, out, params)

    path.made = formula  # type: ignore[attr-defined]
    path.formula = formula.function  # type: ignore[attr-defined]  # whose arguments it takes
    path.plain = partial(formula, plain)  # type: ignore[attr-defined]
    return path


def _general(
    formula: Formula, made: Callable[..., Program], name: str, dtype: np.dtype | None, static: Key,
    given: tuple[Any, ...], out: Array | None, params: Params,
) -> Array:
    """Any arrays: broadcast, strided, of different dtypes, large, half; numbers among them."""
    arrays = [np.asarray(a) if isinstance(a, np.generic) else a for a in given]
    strong = [a for a in arrays if isinstance(a, ndarray)]
    result = dtype or np.result_type(*[a.dtype for a in strong])
    shape = np.broadcast(*strong).shape
    work = computed_in(np.result_type(result, *[a.dtype for a in strong]))
    if formula.wide and work == np.float32:
        work = np.dtype(np.float64)
    if work.kind != "f" or work.itemsize > 8:
        return _plainly(formula, name, result, arrays, shape, out, params)
    absent = tuple([i for i, a in enumerate(arrays) if a is None])
    numbers = tuple([i for i, a in enumerate(arrays)
                     if a is not None and not isinstance(a, ndarray)])
    program = made(work, static, absent, numbers)
    given_numbers: Params = {
        formula.inputs[i]: int(x) if isinstance(x := arrays[i], bool) else x for i in numbers}
    if result == work and math.prod(shape) <= settings.tile_elements and (
            all(a.dtype == work for a in strong)) and (
            out is None or (out.dtype == work and out.flags.c_contiguous)):
        if not shape and out is None:
            return program.number(tuple(strong), {**given_numbers, **params})
        return program.whole(*strong, shape, **given_numbers, **params, out=out)
    views = [a if a.shape == shape else np.broadcast_to(a, shape) for a in strong]
    fresh = out is None
    if out is None:
        out = host().empty(shape, result, name)
    with np.errstate(over="ignore") if formula.wide else nullcontext():  # as it is rounded
        _in_tiles(program, views, out, fresh, {**given_numbers, **params})
    return out


def _large(
    program: Program, name: str, arrays: tuple[Any, ...], out: Array | None, params: Params
) -> Array:
    """Arrays of one shape and dtype that take several tiles."""
    fresh = out is None
    if out is None:
        out = host().empty(arrays[0].shape, program.dtype, name)
    _in_tiles(program, list(arrays), out, fresh, params)
    return out


def _in_tiles(
    program: Program, views: list[ndarray], out: Array, fresh: bool, params: Params
) -> None:
    """Evaluate into `out`: by a kernel in C, or tile by tile, where a fresh one is also worked in.

    No comprehensions: each would be a call per tile.
    """
    work = program.dtype
    widened = []
    flat = out.flags.c_contiguous
    for a in views:
        widened.append(a.dtype != work)
        flat = flat and a.flags.c_contiguous
    if flat:  # cut more quickly
        views, out = [a.reshape(-1) for a in views], out.reshape(-1)
    direct = out.dtype == work and out.flags.c_contiguous
    if (program.kernel is not None and settings.compiled and direct and flat
            and not any(widened) and _by_kernel(program, views, out, params)):
        return
    numbers = program.numbers(**params)
    shared = fresh and direct and program.floats > 0
    held = program.floats - shared
    count = held + sum(widened) + (not direct)
    size = tile_size(out.shape)
    scratch = host().empty((count, size), work, "workspace")
    marks = np.empty((program.conditions, size), np.bool_)
    full = numbers[1] and [full_tile(float(value), work, size) for value in numbers[1]]
    last: tuple[int, ...] | None = None
    for key in flat_tiles(out.size) if flat else whole_tiles(out.shape):
        place = out[key]
        if place.shape != last:
            last, n = place.shape, place.size
            buffers, masks = [*cut(scratch, n, last)], [*cut(marks, n, last)]
            filled = full and [a[:n].reshape(last) for a in full]
        spare = held
        parts = [*map(itemgetter(key), views)]
        if count > held:
            for i, wide in enumerate(widened):
                if wide:
                    np.copyto(buffers[spare], parts[i], casting="unsafe")
                    parts[i] = buffers[spare]
                    spare += 1
        target = place if direct else buffers[spare]
        program.tile(*parts, target, *numbers[0], *filled, *([place] if shared else ()),
                     *buffers[:held], *masks)
        if not direct:
            place[...] = target


def _by_kernel(program: Program, views: list[ndarray], out: Array, params: Params) -> bool:
    """Evaluate by the kernel in C; False if NumPy is to compute it once more, for its warnings.

    It is where numbers were compared: for NaN that raises the flag of invalid values in C.
    """
    flags = compiled.run(cast(int, program.kernel), (*views, out), (),
                         program.constants(**params), out.size, program.silent)
    return not (flags & compiled.INVALID and program.compares
                and not any(np.may_share_memory(a, out) for a in views))


@lru_cache(16)
def full_tile(value: float, dtype: np.dtype, size: int) -> ndarray:
    """A constant: of an array and a number NumPy's maximum takes three times as long."""
    return np.full(size, value, dtype)


def _plainly(
    formula: Formula, name: str, result: np.dtype, arrays: list[Any], shape: tuple[int, ...],
    out: Array | None, params: Params,
) -> Array:
    """Function by function, in tiles; one tile has the dtype that NumPy gives it."""
    missing = [n.op for n in in_order(formula.graph(static_of(params))) if n.children
               and not hasattr(plain, n.op)]
    if missing:
        raise TypeError(f"{name} was given values of dtype {result}; wanted real ones of floating "
                        f"point, for which it has {missing[0]}")
    if out is None and tile_size(shape) == math.prod(shape):
        return formula(plain, *arrays, **params)
    if out is None:
        out = host().empty(shape, result, name)
    views = [np.broadcast_to(a, shape) if isinstance(a, ndarray) else a for a in arrays]
    for tile in tiles(shape, settings.tile_elements):
        key = (*tile, ...)
        out[key] = formula(
            plain, *[v[key] if isinstance(v, ndarray) else v for v in views], **params)
    return out
