"""Sums and extremes at indices that may repeat, for scattering and the adjoints of gathering."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.kernels import Elementwise, elementwise
from gtensor.engine.tape.op import op
from gtensor.ops.arrange.example_keys import set_batch
from gtensor.ops.arrange.index_keys import (
    Key,
    Selection,
    filled,
    is_basic,
    refuse_places,
    rows_of,
    sample,
    unique,
)
from gtensor.ops.arrange.shape import moved_axes
from gtensor.ops.define.batching import batch_size, spread
from gtensor.ops.define.cpu_tiles import computed_in, whole_tiles
from gtensor.ops.define.path_builders import placed
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values
    from gtensor.ops.define.batching import Inputs, Mapped

_FEW = 8  # elements per place from which it pays to look whether any place repeats
_SMALL = 1024  # elements up to which NumPy's general way is the quickest


def added(
    device: Device, g: Array, key: Key, shape: tuple[int, ...], label: str, out: Array | None,
    beta: float
) -> Array:
    """Zeros (or `out`, if beta) with g added at `key`. Half types are added up in float32."""
    if out is None:
        out, beta = device.empty(shape, g.dtype, label), 0.0
    if not beta:
        out[...] = 0
    work = computed_in(g.dtype)
    total = out if g.dtype == work else device.copy(out, work, "workspace")
    g = g.astype(work, copy=False)
    if device.type == "cpu" and total.flags.c_contiguous:
        _combine_at("add", total, key, g, not beta)
    elif device.type == "cpu" or not settings.repeatable:
        device.xp.add.at(total, key, g)
    else:
        combine_in_order(device, "add", total, key, g)
    if total is not out:
        out[...] = total
    return out


def extremes(device: Device, function: str, out: Array, key: Key, value: Array) -> None:
    """Write to `out` the "maximum" or "minimum" of it and the values at `key`, NaN if one is."""
    if device.type != "cpu":
        combine_in_order(device, function, out, key, value)
        return
    shape = Selection(key, out.shape).shape
    value = np.broadcast_to(np.asarray(value, out.dtype), shape)
    with np.errstate(invalid="ignore"):  # by which NumPy warns of NaN here alone
        if out.flags.c_contiguous:
            _combine_at(function, out, key, value, False)
        else:
            getattr(np, function).at(out, key, value)


# -- on the CPU ------------------------------------------------------------------------------------


def _combine_at(name: str, out: np.ndarray, key: Key, g: np.ndarray, zeros: bool) -> None:
    """`name` of NumPy's `.at(out, key, g)`; what is added to `zeros` may be written."""
    function = getattr(np, name)
    rows = rows_of(out, key)
    if rows is not None:
        flat, positions = rows
        flat[positions] = g if zeros else function(flat[positions], g)
        return
    if out.ndim == 1 or g.size <= _SMALL:
        function.at(out, key, g)
        return
    selected = Selection(key, out.shape)
    target, source, behind = _arranged(selected, out, g)
    arrays = (p for p in key if not is_basic(p))
    if unique(arrays) or not _repeats(selected, target, prod(behind)):
        places = tuple(selected.indices)
        target[places] = source if zeros else function(target[places], source)
        return
    indices = [_before(np.asarray(i), len(behind)) for i in selected.indices]
    indices += [_before(np.arange(n), len(behind) - k - 1) for k, n in enumerate(behind)]
    start = (_address(target) - _address(out)) // out.itemsize
    _combine_flat(function, out.reshape(-1), source, indices, target, start)


def _arranged(
    selected: Selection, out: Array, g: Array
) -> tuple[Array, Array, tuple[int, ...]]:
    """The part of `out` that the key's slices select, and g, each with the indexed axes first.

    Also the shape of g behind those.
    """
    lead = len(selected.lead)
    source = g.transpose(moved_axes(
        tuple(range(selected.place, selected.place + lead)), tuple(range(lead)), g.ndim))
    view = out[selected.view]
    target = view.transpose(moved_axes(selected.axes, range(len(selected.axes)), view.ndim))
    return target, source, source.shape[lead:]


def _repeats(selected: Selection, target: np.ndarray, elements: int) -> bool:
    """Whether an index repeats; with few elements per index it is assumed."""
    if elements < _FEW:
        return True
    seen = np.zeros(target.shape[:len(selected.axes)], np.bool_)
    seen[tuple(selected.indices)] = True
    return int(np.count_nonzero(seen)) < prod(selected.lead)


def _before(index: np.ndarray, axes: int) -> np.ndarray:
    """With so many axes of size 1 behind."""
    return index.reshape((*index.shape, *(1,) * axes))


def _combine_flat(
    function: np.ufunc, flat: np.ndarray, g: np.ndarray, indices: list[np.ndarray],
    target: np.ndarray, start: int
) -> None:
    """function.at(target, indices, g), by places in `flat`, the memory of target from `start` on.

    In tiles: NumPy adds up fast along one axis only (at 1M elements 10 ms against 80).
    """
    parts = [(np.broadcast_to(i, g.shape), n if i.size and i.min() < 0 else 0,
              stride // flat.itemsize)
             for i, n, stride in zip(indices, target.shape, target.strides, strict=True)]
    for tile in whole_tiles(g.shape):
        places = np.full(g[tile].shape, start, np.intp)
        for index, size, stride in parts:
            at = index[tile].astype(np.intp, copy=False)
            places += (np.where(at < 0, at + size, at) if size else at) * stride
        function.at(flat, places.reshape(-1), g[tile].reshape(-1))


def _address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]


# -- on a GPU, in one order ------------------------------------------------------------------------
# The values are sorted by their place. A run of equal places is combined from left to right by one
# thread for each column, in pieces that end with every window of the sorted values; one thread then
# combines the pieces of a run. So the order depends on the places alone, and the bits repeat.

_WINDOW = 256
_COMBINED = {"add": "a + b", "maximum": "a > b || a != a ? a : b",
             "minimum": "a < b || a != a ? a : b"}


def _pieces(combined: str) -> Elementwise:
    return elementwise(
        "int64 place, raw T g, raw int64 order, raw int64 places, int64 count, int64 columns",
        "raw T out, raw T parts", f"""
        const long long at = i / columns, column = i % columns;
        const bool first = at == 0 || places[at - 1] != place;
        if (first || at % {_WINDOW} == 0) {{
          const long long window = at / {_WINDOW};
          const long long end = min((window + 1) * {_WINDOW}, static_cast<long long>(count));
          T a = g[order[at] * columns + column];
          long long next = at + 1;
          for (; next < end && places[next] == place; ++next) {{
            const T b = g[order[next] * columns + column];
            a = {combined};
          }}
          if (first && (next < end || next == count || places[next] != place)) {{
            const T b = out[place * columns + column];
            out[place * columns + column] = {combined};
          }} else {{
            parts[(2 * window + first) * columns + column] = a;
          }}
        }}""", name="gt_sorted_pieces")


def _runs(combined: str) -> Elementwise:
    return elementwise(
        "int64 place, raw T parts, raw int64 places, int64 count, int64 columns", "raw T out", f"""
        const long long window = i / columns, column = i % columns;
        long long next = (window + 1) * {_WINDOW};
        if (next < count && places[next] == place
            && (window == 0 || places[window * {_WINDOW} - 1] != place)) {{
          T a = parts[(2 * window + 1) * columns + column];
          for (; next < count && places[next] == place; next += {_WINDOW}) {{
            const T b = parts[2 * (next / {_WINDOW}) * columns + column];
            a = {combined};
          }}
          const T b = out[place * columns + column];
          out[place * columns + column] = {combined};
        }}""", name="gt_sorted_runs")


_KERNELS = {name: (_pieces(text), _runs(text)) for name, text in _COMBINED.items()}


def combine_in_order(device: Device, function: str, out: Array, key: Key, g: Array) -> None:
    """Combine `out` and g at `key` by "add", "maximum" or "minimum", with the same bits each time.

    Raises RuntimeError within the capture of a graph, where CuPy cannot sort.
    """
    if device.capturing():
        raise RuntimeError("a sum or an extreme at indices in one order is due in the capture of a "
                           "graph, where CuPy cannot sort; wanted it outside of gt.Graph, or "
                           "gt.settings.repeatable = 0, by which sums are made by atomics")
    xp = device.xp
    selected = Selection(key, out.shape)
    g = xp.broadcast_to(xp.asarray(g, out.dtype), selected.shape)
    if not g.size:
        return
    target, source, behind = _arranged(selected, out, g)
    count, columns = prod(selected.lead), prod(behind)
    sizes = target.shape[:len(selected.axes)]
    places = xp.zeros(selected.lead, np.int64)
    for index, size in zip(selected.indices, sizes, strict=True):
        places = places * size + xp.asarray(index, np.int64) % size
    places = places.reshape(-1)
    order = xp.argsort(places)
    places = places[order]
    rows = target if target.flags.c_contiguous else xp.ascontiguousarray(target)
    values = xp.ascontiguousarray(source)
    windows = -(-count // _WINDOW)
    parts = xp.empty((2 * windows, columns), out.dtype)
    pieces, runs = _KERNELS[function]
    pieces(xp.broadcast_to(places[:, None], (count, columns)), values, order, places, count,
           columns, out=(rows, parts))
    if windows > 1:
        last = places[_WINDOW - 1::_WINDOW]  # of each window but one that is not full
        runs(xp.broadcast_to(last[:, None], (last.size, columns)), parts, places, count, columns,
             out=rows)
    if rows is not target:
        target[...] = rows.reshape(target.shape)


# -- extremes --------------------------------------------------------------------------------------


def _extreme_path(
    device: Device, x: Array, value: Array, *indices: Array, key: Key, function: str,
    out: Array | None = None
) -> Array:
    key = filled(key, indices)
    refuse_places(device, key, x.shape)
    if out is None:
        out = device.copy(x, label="extreme_at")
    elif out is not x:
        out[...] = x
    extremes(device, function, out, key, value)
    return out


def _shares(
    ns: Namespace, x: Any, value: Any, out: Any, indices: Any, key: Key, shape: tuple[int, ...],
    dtype: Any
) -> tuple[Any, Any, Any]:
    """Whether x is an extreme, whether each value is one, and how many are at each place."""
    stays = ns.equal(x, out)
    taken = ns.equal(value, ns.gather(out, *indices, key=key))
    count = ns.add(ns.astype(stays, dtype=dtype), ns.scatter_add(
        ns.astype(taken, dtype=dtype), *indices, key=key, shape=shape))
    return stays, taken, ns.maximum(count, 1)  # none where there is a NaN


def _extreme_backward(ns: Namespace, step: Step, g: Array) -> None:
    """Equal extremes share the gradient."""
    x, value, *indices, out = step.saved
    key = step.params["key"]
    stays, taken, count = _shares(ns, x, value, out, indices, key, g.shape, g.dtype)
    each = ns.divide(g, count)
    if step.needs(1):
        step.give(1, ns.where(taken, ns.gather(each, *indices, key=key), 0.0))
    if step.needs(0):
        step.give(0, ns.where(stays, each, 0.0))


def _extreme_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    x, value, *indices = primals
    key, total = params["key"], None
    stays, taken, count = _shares(ns, x, value, out, indices, key, x.shape, out.dtype)
    if tangents[0] is not None:
        total = ns.where(stays, tangents[0], 0.0)
    if tangents[1] is not None:
        part = ns.scatter_add(
            ns.where(taken, tangents[1], 0.0), *indices, key=key, shape=x.shape)
        total = part if total is None else ns.add(total, part)
    return ns.divide(total, count)


def _extreme_batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    def extreme(x: Any, value: Any, *indices: Any, key: Key) -> Any:
        return run(x, value, *indices, key=key, function=params["function"])

    (x, value, *indices), size = inputs, batch_size(inputs, mapped)
    x, value = spread(ns, x, mapped[0], size), spread(ns, value, mapped[1], size)
    return set_batch(ns, extreme, (x, value, *indices), (True, True, *mapped[2:]), params)


_EXTREMES = (((4, 3), (5, 3), (np.array([0, 2, 0, 3, 2]),)), ((3, 2), (0, 2), (np.zeros(0, int),)),
          ((2, 3, 3), (2, 3, 2), (slice(None), np.array([0, 0, 1]), slice(1, None))))

extreme_at = op(
    "extreme_at", flops=0, inputs="x value indices", variadic=True, **placed(_extreme_path),
    saves=dict.fromkeys(("x", "value"), "x value indices out"),
    backward=_extreme_backward, tangent=_extreme_tangent, batch=_extreme_batch,
    samples=[sample(shapes[:2], shapes[2], function=function) for shapes in _EXTREMES
             for function in ("maximum", "minimum")],
    doc="x with the `maximum` or `minimum` of it and of all values at each place of `key`. Equal "
        "ones share the gradient. On a GPU values are sorted by place, so the bits repeat.",
)
