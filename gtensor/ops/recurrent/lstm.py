"""A layer of an LSTM in one direction over a whole sequence: one op, one record.

    i, f, g, o = x_t @ w_ih.T + b_ih + h @ w_hh.T + b_hh, through sigmoid, sigmoid, tanh, sigmoid
    c = f * c + i * g
    h = o * tanh(c)

The inputs of all steps are one product, written into the array of the gates. A step is a product
that is added to its gates, and a pointwise kernel, which overwrites them with their activations.
Saved for the gradient are these and the cell states, in float32 for half types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.backend import host
from gtensor.backend.kernels import flat_launch, raw
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.flops import of_lstm
from gtensor.ops.define.path_builders import on_gpu, settled
from gtensor.ops.linalg.matrix_products import swapped
from gtensor.ops.recurrent import sequences
from gtensor.ops.recurrent.sequences import (
    Places,
    affine,
    affine_tangent,
    at,
    dense,
    filled,
    give_products,
    in_time,
    joined,
    narrowed,
    parts,
    state,
    times,
    total,
    widened,
)

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values
    from gtensor.ops.define.batching import Inputs, Mapped

_AXES = (0, 0, 0, 2, 2, 1, 1)  # of the parameters: x h0 c0 w_ih w_hh b_ih b_hh

# -- CPU -------------------------------------------------------------------------------------------
# sigmoid(x) = (tanh(x / 2) + 1) / 2: one tanh for all four gates. The halves before it are in the
# weights, which are copied once.


def _rows(width: int, dtype: np.dtype, sigmoid: float, tanh: float) -> np.ndarray:
    """A number for the gates of each kind, as a row."""
    row = np.full(4 * width, sigmoid, dtype)
    row[2 * width:3 * width] = tanh
    return row


def _forward_cpu(
    x: Array, h0: Array, c0: Array, w_ih: Array, w_hh: Array, b_ih: Array | None,
    b_hh: Array | None, *, reverse: bool, out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The states (..., T + 2, N, H), gates (..., T, N, 4 H) and cell states (..., T + 1, N, H)."""
    dtype, work = x.dtype, computed_in(x.dtype)
    if work != dtype:
        given: Any = widened((x, h0, c0, w_ih, w_hh, b_ih, b_hh), work)
        y, gates, cells = _forward_cpu(*given, reverse=reverse)
        return narrowed(y, dtype, out), narrowed(gates, dtype), cells
    (*lead, steps, n, _), width = x.shape, w_hh.shape[-1]
    places = Places(steps, reverse)
    y = sequences.contiguous(out, (*lead, steps + 2, n, width), dtype, _empty)
    gates = _empty((*lead, steps, n, 4 * width), dtype)
    cells = _empty((*lead, steps + 1, n, width), dtype)
    scale = _rows(width, dtype, 0.5, 1.0)
    bias = None if b_ih is None or b_hh is None else (b_ih + b_hh) * scale
    inputs, states = (np.multiply(w, scale[:, None], out=_empty(w.shape, dtype))
                      for w in (w_ih, w_hh))
    sequences.write_inputs(host(), x, inputs, bias, gates)
    y[at(places.first)], cells[at(places.first)] = h0, c0
    if gates.size:
        _steps_cpu(in_time(gates), in_time(y), in_time(cells), states.swapaxes(-1, -2), places)
    y[at(-1)] = cells[at(places.last)]
    return (y if out is None or y is out else settled(y, out)), gates, cells


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return host().empty(shape, dtype, "lstm")


def _steps_cpu(
    gates: np.ndarray, y: np.ndarray, cells: np.ndarray, weight: np.ndarray, places: Places
) -> None:
    """All steps; the arrays have the time axis first."""
    shape, width = gates.shape[1:], y.shape[-1]
    scratch = host().workspace(gates[0].size, gates.dtype, 3)
    product, (scale, shift) = scratch(0, shape), (scratch(i, shape[-2:]) for i in (1, 2))
    scale[...], shift[...] = _rows(width, y.dtype, 0.5, 1.0), _rows(width, y.dtype, 0.5, 0.0)
    for t in places.order:
        before, after, gate = places.before(t), places.after(t), gates[t]
        np.matmul(y[before], weight, out=product)
        gate += product
        np.tanh(gate, out=gate)
        gate *= scale
        gate += shift
        i, f, g, o = (gate[..., k * width:(k + 1) * width] for k in range(4))
        c, h = cells[after], y[after]
        np.multiply(f, cells[before], out=c)
        c += np.multiply(i, g, out=h)
        np.tanh(c, out=h)
        h *= o


def _grad_cpu(
    g: Array, w_hh: Array, gates: Array, cells: Array, *, reverse: bool
) -> tuple[Array, Array, Array]:
    """The gradients of what the gates' activations take (..., T, N, 4 H), of h0 and of c0."""
    dtype, work = g.dtype, computed_in(g.dtype)
    if work != dtype:
        given: Any = widened((g, w_hh, gates, cells), work)
        d, dh, dc = _grad_cpu(*given, reverse=reverse)
        return narrowed(d, dtype), dh, dc
    places, width = Places(gates.shape[-3], reverse), w_hh.shape[-1]
    d = _empty(gates.shape, work)
    dh, dc = (_empty((*gates.shape[:-3], gates.shape[-2], width), work) for _ in range(2))
    dh[...], dc[...] = 0, g[at(-1)]
    _steps_back_cpu((in_time(g), in_time(gates), in_time(cells), in_time(d)), dh, dc, w_hh, places)
    dh += g[at(places.first)]
    return d, dh, dc


def _steps_back_cpu(
    arrays: tuple[np.ndarray, ...], dh: np.ndarray, dc: np.ndarray, weight: np.ndarray,
    places: Places,
) -> None:
    g, gates, cells, changes = arrays
    width = dh.shape[-1]
    scratch = host().workspace(dh.size, dh.dtype, 2)
    curve, slope = scratch(0, dh.shape), scratch(1, dh.shape)
    sigmoids = slice(0, 2 * width), slice(3 * width, 4 * width)
    for t in reversed(places.order):
        before, after, gate, d = places.before(t), places.after(t), gates[t], changes[t]
        i, f, c, o = (gate[..., k * width:(k + 1) * width] for k in range(4))
        dh += g[after]
        np.tanh(cells[after], out=curve)
        np.multiply(curve, curve, out=slope)
        np.subtract(1, slope, out=slope)
        slope *= o
        slope *= dh
        dc += slope
        np.multiply(gate, gate, out=d)
        for part in sigmoids:
            np.subtract(gate[..., part], d[..., part], out=d[..., part])
        di, df, dg, do = (d[..., k * width:(k + 1) * width] for k in range(4))
        np.subtract(1, dg, out=dg)
        whole = d.reshape(*d.shape[:-1], 4, width)[..., :3, :]
        whole *= dc[..., None, :]
        do *= dh
        for change, factor in ((di, c), (df, cells[before]), (dg, i), (do, curve)):
            change *= factor
        dc *= f
        np.matmul(d, weight, out=dh)


# -- GPU -------------------------------------------------------------------------------------------

_CELL = raw("lstm_cell.cu", "lstm_cell_forward")
_CELL_BACK = raw("lstm_cell.cu", "lstm_cell_backward")


def _forward_gpu(
    device: Any, x: Array, h0: Array, c0: Array, w_ih: Array, w_hh: Array, b_ih: Array | None,
    b_hh: Array | None, *, reverse: bool, out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """As _forward_cpu; two launches a step."""
    (*lead, steps, n, _), width, dtype = x.shape, w_hh.shape[-1], x.dtype
    places = Places(steps, reverse)
    y = sequences.contiguous(out, (*lead, steps + 2, n, width), dtype, device.xp.empty)
    gates = device.xp.empty((*lead, steps, n, 4 * width), dtype)
    cells = device.xp.empty((*lead, steps + 1, n, width), computed_in(dtype))
    bias = None if b_ih is None or b_hh is None else b_ih + b_hh
    sequences.write_inputs(device, x, w_ih, bias, gates)
    weight = w_hh.swapaxes(-1, -2)
    y[at(places.first)], cells[at(places.first)] = h0, c0
    grid, block = flat_launch(cells[at(0)].size)
    cell = _CELL[dtype]
    for t in places.order:
        device.matmul(y[at(places.before(t))], weight, gates[at(t)], 1.0)
        cell(grid, block, (gates, y, cells, cells[at(0)].size, steps, n, width, t, int(reverse)))
    y[at(-1)] = cells[at(places.last)]
    return (y if out is None or y is out else settled(y, out)), gates, cells


def _grad_gpu(
    device: Any, g: Array, w_hh: Array, gates: Array, cells: Array, *, reverse: bool
) -> tuple[Array, Array, Array]:
    """As _grad_cpu; two launches a step."""
    (*lead, steps, n, _), width, dtype = gates.shape, w_hh.shape[-1], g.dtype
    places, work = Places(steps, reverse), computed_in(dtype)
    g, gates, cells = dense(g, dtype), dense(gates, dtype), dense(cells, work)
    d = device.xp.empty(gates.shape, dtype)
    dh, dc = (device.xp.empty((*lead, n, width), work) for _ in range(2))
    dc[...] = g[at(-1)]
    grid, block = flat_launch(dh.size)
    cell, first = _CELL_BACK[dtype], 1
    for t in reversed(places.order):
        cell(grid, block, (g, gates, cells, d, dh, dc, dh.size, steps, n, width, t, int(reverse),
                           first))
        device.matmul(d[at(t)], w_hh, dh)
        first = 0
    dh += g[at(places.first)]
    return d, dh, dc


# -- the same in ops -------------------------------------------------------------------------------


class _Cell(NamedTuple):
    """One step: the states before it, the gates after their activations, and what it makes."""

    step: int
    h: Any
    c: Any
    gates: list[Any]
    cell: Any
    curve: Any  # tanh(cell)
    made: Any  # the hidden state


def _unrolled(primals: Any, reverse: bool) -> list[_Cell]:
    x, h, c, w_ih, w_hh, b_ih, b_hh = primals
    ns = recorded
    inputs = affine(ns, x, w_ih, None if b_ih is None else ns.add(b_ih, b_hh), 3)
    found = []
    for t in Places(x.shape[-3], reverse).order:
        i, f, g, o = parts(ns, state(ns, inputs, t) + affine(ns, h, w_hh, None, 2), 4)
        gates = [ns.sigmoid(i), ns.sigmoid(f), ns.tanh(g), ns.sigmoid(o)]
        cell = gates[1] * c + gates[0] * gates[2]
        curve = ns.tanh(cell)
        found.append(_Cell(t, h, c, gates, cell, curve, gates[3] * curve))
        h, c = found[-1].made, cell
    return found


def _laid_out(first: Any, made: list[Any], last: Any, reverse: bool) -> Any:
    """The output of the layer from its states in the order of the steps."""
    states = [first, *made]
    return joined([*(states[::-1] if reverse else states), last])


def _composed(*inputs: Any, reverse: bool) -> Tensor:
    cells = _unrolled(inputs, reverse)
    return _laid_out(inputs[1], [cell.made for cell in cells], cells[-1].cell, reverse)


def _slopes(gates: list[Any]) -> list[Any]:
    """The derivatives of the gates' activations."""
    return [1 - gate * gate if k == 2 else gate * (1 - gate) for k, gate in enumerate(gates)]


def _grad_recorded(g: Tensor, inputs: Any, reverse: bool) -> tuple[Any, Any, Any]:
    """What lstm_grad gives, as a function of the layer's inputs."""
    ns, w_hh = recorded, inputs[4]
    steps = inputs[0].shape[-3]
    places = Places(steps, reverse)
    changes: list[Any] = [None] * steps
    dh, dc = None, state(ns, g, -1)
    for cell in reversed(_unrolled(inputs, reverse)):
        dh = total(ns, state(ns, g, places.after(cell.step)), dh)
        i, f, c, o = cell.gates
        dc = dc + dh * o * (1 - cell.curve * cell.curve)
        terms = (dc * c, dc * cell.c, dc * i, dh * cell.curve)
        d = [term * slope for term, slope in zip(terms, _slopes(cell.gates), strict=True)]
        changes[cell.step] = ns.concat(*d, axis=-1, sizes=(w_hh.shape[-1],) * 4)
        dh, dc = affine(ns, changes[cell.step], swapped(ns, w_hh), None, 2), dc * f
    return joined(changes), total(ns, dh, state(ns, g, places.first)), dc


# -- rules -----------------------------------------------------------------------------------------


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    """Through all steps, then a product for each weight and for the input."""
    *inputs, y, gates, cells = step.saved
    x, _, _, w_ih, w_hh, _, _ = inputs
    reverse = step.params["reverse"]
    d: Any
    if ns is recorded:
        d, dh, dc = _grad_recorded(g, inputs, reverse)  # type: ignore[arg-type]
    else:
        d, dh, dc = ns.lstm_grad(g, w_hh, gates, cells, reverse=reverse)
    before = ns.slice(y, key=at(Places(x.shape[-3], reverse).read))
    give_products(ns, step, d, before, (4, 6))
    give_products(ns, step, d, x, (3, 5))
    for place, change in ((1, dh), (2, dc)):
        if step.needs(place):
            step.give(place, change)
    if step.needs(0):
        buffer, beta = step.into(0)
        step.give(0, affine(ns, d, swapped(ns, w_ih), None, 3, buffer, beta))


def _tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    dx, dh, dc, dw_ih, dw_hh, db_ih, db_hh = tangents
    x, h0, _, w_ih, w_hh, b_ih, _ = primals
    biased = dx, dw_ih, total(ns, db_ih, db_hh)
    inputs = affine_tangent(ns, (x, w_ih, b_ih), biased, 3)
    first, made = dh, []
    for cell in _unrolled(primals, params["reverse"]):
        own = None if inputs is None else state(ns, inputs, cell.step)
        change = total(ns, own, affine_tangent(
            ns, (cell.h, w_hh, None), (dh, dw_hh, None), 2))
        pieces = [None] * 4 if change is None else parts(ns, change, 4)
        di, df, dg, do = map(times, pieces, _slopes(cell.gates))
        i, f, g, o = cell.gates
        dc = total(ns, times(dc, f), times(df, cell.c), times(di, g), times(dg, i))
        dh = total(ns, times(do, cell.curve), times(dc, o * (1 - cell.curve * cell.curve)))
        made.append(dh)
    first, *made, last = filled([first, *made, dc], h0)
    return _laid_out(first, made, last, params["reverse"])


def _batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> tuple[Any, ...]:
    """The batch axis is one more in front."""
    made: tuple[Any, ...] = run(*sequences.spread_inputs(ns, inputs, mapped, _AXES), **params)
    return made


def _grad_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> tuple[Any, ...]:
    made: tuple[Any, ...] = run(
        *sequences.spread_inputs(ns, inputs, mapped, (0, 2, 0, 0)), **params)
    return made


# -- definitions -----------------------------------------------------------------------------------


def _reference(torch: Any, x: Any, h0: Any, c0: Any, *parameters: Any, reverse: bool) -> Any:
    return sequences.pytorchs(torch._VF.lstm, torch, x, (h0, c0), parameters, reverse)


lstm_grad = op(
    "lstm_grad", cpu=_grad_cpu, gpu=on_gpu(_grad_gpu), backward=None, tangent=None,
    batch=_grad_batch, samples=None,  # its inputs depend on each other: tested through lstm
    doc="The gradients of an LSTM layer's gates before their activations, of h0 and of c0.",
)

_NAMES = "x h0 c0 w_ih w_hh b_ih b_hh"

lstm_op = op(
    "lstm", flops=of_lstm,
    autocast="low", cpu=_forward_cpu, gpu=on_gpu(_forward_gpu), extras="gates cells",
    saves=dict.fromkeys(_NAMES.split(), f"{_NAMES} out gates cells"),
    backward=_backward, tangent=_tangent, composed=_composed, batch=_batch,
    samples=sequences.samples(4, 2), reference=_reference,
    doc="A layer of an LSTM over a sequence: h0, all hidden states and the last cell state along "
        "axis -3. Parameters: reverse (from the last step to the first).",
)


def lstm_layer(
    input: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None, reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs (T, N, H) of one layer of an LSTM, its last hidden and its last cell state.

    One record for all steps. On CUDA a step is two launches forward and two backward.

    Args:
        input: (T, N, I), T at least 1.
        h0, c0: (N, H).
        w_ih: (4 H, I), the gates i, f, g, o one after another.
        w_hh: (4 H, H).
        b_ih, b_hh: (4 H,), or both None.
        reverse: from the last step to the first; outputs stay in the order of the inputs.

    Raises TypeError for dtypes, ValueError for shapes that do not fit.

    Source: Hochreiter and Schmidhuber, "Long short-term memory", 1997; the forget gate is of Gers
    et al., 2000.
    """
    sequences.check_layer("lstm_layer", 4, input, {"h0": h0, "c0": c0}, w_ih, w_hh, b_ih, b_hh)
    y = lstm_op(input, h0, c0, w_ih, w_hh, b_ih, b_hh, reverse=reverse)
    places = Places(input.shape[0], reverse)
    return y[places.made], y[places.last], y[-1]
