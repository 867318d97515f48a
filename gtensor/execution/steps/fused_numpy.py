"""Composed elementwise calls as one function on the CPU: straight calls of NumPy's functions.

They work in a few buffers that one array of a tile's size has room for. Small arrays are one tile,
and buffers are kept from replay to replay: what costs there is the number of calls and of new
arrays. Large arrays go through in tiles that stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from gtensor.backend import host
from gtensor.execution.steps.pieces import Composed
from gtensor.execution.steps.recorder import Constant
from gtensor.execution.steps.totals import SMALL, RunningSum, Total
from gtensor.ops.define.cpu_tiles import cut, sign_into
from gtensor.ops.define.formula_numpy import _NAMES, Text
from gtensor.ops.define.path_builders import tiles
from gtensor.system.written_code import written

CACHED = 1 << 20  # bytes of the tiles of all arrays that stay in the cache together
_LEAST = 2048  # elements of a tile
_KEPT = 1 << 20  # bytes of buffers that one call keeps


class Tile(NamedTuple):
    """The function of one tile, `f(*arrays, *outputs, *buffers, *masks, *filled)`."""

    function: Callable[..., None]
    floats: int  # buffers
    masks: int
    filled: list[np.ndarray]  # the numbers of which it is given arrays of a tile's size


def tile_of(
    made: Composed, arrays: Sequence[str], outputs: Sequence[str], dtype: np.dtype, name: str
) -> Tile:
    """A graph as a function of one tile."""
    text, scope, lines = _body(made, outputs, dtype)
    filled = _filled(text)
    buffers = [*[f"b{i}" for i in range(text.made["b"])],
               *[f"m{i}" for i in range(text.made["m"])], *filled]
    function = written(_text([*arrays, *outputs, *buffers], [*lines, "return None"]), scope,
                       "fused", name)
    return Tile(function, text.made["b"], text.made["m"],
                [scope[number] for number in filled.values()])


def _body(
    made: Composed, outputs: Sequence[str], dtype: np.dtype
) -> tuple[Text, dict[str, Any], list[str]]:
    text = Text(made.roots, tuple(outputs))
    scope: dict[str, Any] = {**_NAMES, "sign": sign_into, "dtype": dtype}
    scope |= {name: given.array for name, given in made.inputs.items()
              if isinstance(given, Constant)}
    _compute_numbers(text, scope)
    if made.quiet or text.quiet:
        return text, scope, text.lines
    return text, scope, ["with errstate(all='ignore'):", *[f"    {line}" for line in text.lines]]


def fused_function(
    made: Composed, shape: tuple[int, ...], dtype: np.dtype, arrays: Sequence[str],
    layouts: Sequence[tuple[tuple[int, ...], bool]], name: str, totals: Sequence[Total] = (),
) -> Callable[..., Any]:
    """`f(*arrays)` of the graph's inputs named `arrays`; it returns an array, or a tuple of them.

    `layouts` are their shapes, and whether they lie densely. In place of the last roots it returns
    their `totals`, of large arrays.
    """
    types = [np.dtype(bool) if root.boolean else dtype for root in made.roots]
    if math.prod(shape) * dtype.itemsize > SMALL:
        return _in_tiles(made, shape, dtype, types, arrays, layouts, name, totals)
    outputs = [f"o{k}" for k in range(len(types))]
    text, scope, lines = _body(made, outputs, dtype)
    if text.made["b"] * math.prod(shape) * dtype.itemsize > _KEPT:
        return _in_tiles(made, shape, dtype, types, arrays, layouts, name)
    scope |= {f"b{i}": np.empty(shape, dtype) for i in range(text.made["b"])}
    scope |= {f"m{i}": np.empty(shape, np.bool_) for i in range(text.made["m"])}
    scope |= {name: np.full(shape, scope[number], dtype)
              for name, number in _filled(text).items()}
    scope |= {f"t{k}": t for k, t in enumerate(types)} | {"shape": shape}
    body = [*[f"{out} = empty(shape, t{k})" for k, out in enumerate(outputs)], *lines,
            f"return {', '.join(outputs)}"]
    return written(_text(arrays, body), scope, "fused", name)


def _text(arguments: Sequence[str], body: Sequence[str]) -> str:
    return f"def fused({', '.join(arguments)}):\n" + "".join(f"    {line}\n" for line in body)


def _compute_numbers(text: Text, scope: dict[str, Any]) -> None:
    """Put what is the same for all elements into the scope: as its path computes it."""
    values: dict[str, Any] = {}
    for line in text.numbers.lines(text.scalars):
        exec(line, scope, values)
    for node, name in text.scalars.items():  # 0-d arrays, which NumPy reads faster than scalars
        number = node.args[0] if node.op == "constant" else values[text.numbers.name(node)]
        scope[name] = np.array(number, scope["dtype"])


def _filled(text: Text) -> dict[str, str]:
    """The names of arrays that hold one number, and that number's."""
    return {name: text.scalars[node] for node, name in text.filled.items()}


def _in_tiles(
    made: Composed, shape: tuple[int, ...], dtype: np.dtype, types: list[np.dtype],
    arrays: Sequence[str], layouts: Sequence[tuple[tuple[int, ...], bool]], name: str,
    totals: Sequence[Total] = (),
) -> Callable[..., Any]:
    size = math.prod(shape)
    tile = tile_of(made, arrays, [f"o{k}" for k in range(len(types))], dtype, name)
    full = [given == shape for given, _ in layouts]
    step = CACHED // dtype.itemsize // max(1, tile.floats + len(types) + sum(full))
    step = max(_LEAST, 1 << step.bit_length() - 1)
    flat = all(dense if whole else math.prod(given) == 1
               for (given, dense), whole in zip(layouts, full, strict=True))
    keys: list[Any] = ([slice(i, i + step) for i in range(0, size, step)] if flat else
                       [(*key, ...) for key in tiles(shape, step)])
    model = np.broadcast_to(np.empty((), np.int8), (size,) if flat else shape)
    shapes = [model[key].shape for key in keys]
    most = max(map(math.prod, shapes))
    numbers = [np.full(most, number, dtype) for number in tile.filled]
    moving = [i for i, whole in enumerate(full) if whole or not flat]
    single = [i for i, (given, _) in enumerate(layouts) if given and i not in moving]
    several, kept = len(types) > 1, types[:len(types) - len(totals)]

    def fused(*given: Any) -> Any:
        found = [host().empty(shape, t, name) for t in kept]
        sums = [RunningSum(size, dtype, most) for _ in totals]
        scratch = host().empty((tile.floats, most), dtype, "workspace")
        marks = np.empty((tile.masks, most), np.bool_)
        parts, views = [*given], [*given]
        for i in single:
            parts[i] = given[i].reshape(())
        for i in moving:
            views[i] = given[i].reshape(-1) if flat else np.broadcast_to(given[i], shape)
        places = [out.reshape(-1) if flat else out for out in found]
        last: tuple[int, ...] | None = None
        rows: list[Any] = []
        for key, part in zip(keys, shapes, strict=True):
            if part != last:
                last, count = part, math.prod(part)
                rows = [*cut(scratch, count, part), *cut(marks, count, part),
                        *[a[:count].reshape(part) for a in numbers]]
            for i in moving:
                parts[i] = views[i][key]
            tile.function(*parts, *map(itemgetter(key), places),
                          *[total.place(part) for total in sums], *rows)
        found += [x.total(t.shape, t.divisor) for x, t in zip(sums, totals, strict=True)]
        return tuple(found) if several else found[0]

    return fused
