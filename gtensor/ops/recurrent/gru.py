"""A layer of a GRU in one direction over a whole sequence: one op, one record.

    r, z = sigmoid(x_t @ w_ih.T + b_ih + h @ w_hh.T + b_hh)
    q = h @ w_hh.T + b_hh of the third part
    n = tanh(x_t @ w_ih.T + b_ih + r * q)
    h = (1 - z) * n + z * h

The gates of a step are n, r, z, q: the inputs are one product into the first three, and each step's
states one product into the last three. So the parts of w_ih, r, z, n in PyTorch's order, are rolled
by one. A pointwise kernel overwrites a step's gates with their activations; they are saved.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.backend import host
from gtensor.backend.kernels import flat_launch, raw
from gtensor.engine.handle.namespaces import raw as paths
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.flops import of_gru
from gtensor.ops.define.path_builders import on_gpu, settled
from gtensor.ops.linalg.matrix_products import swapped
from gtensor.ops.recurrent import sequences
from gtensor.ops.recurrent.sequences import (
    Places,
    affine,
    affine_tangent,
    at,
    columns,
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
    weight_gradient,
    widened,
)

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values
    from gtensor.ops.define.batching import Inputs, Mapped

_AXES = (0, 0, 2, 2, 1, 1)  # of the parameters: x h0 w_ih w_hh b_ih b_hh


def _write_inputs(
    device: Any, x: Array, w_ih: Array, b_ih: Array | None, b_hh: Array | None, gates: Array
) -> None:
    """What all steps add their products to."""
    width, ns = w_ih.shape[-2] // 3, paths[device.type]
    bias = None
    if b_ih is not None and b_hh is not None:
        bias = ns.roll(b_ih, shifts=(width,))
        if bias.shape != b_hh.shape:  # some have leading axes: one for each example
            shape = np.broadcast_shapes(bias.shape, b_hh.shape)
            bias = device.copy(device.xp.broadcast_to(bias, shape))
        bias[columns(width, 3 * width)] += b_hh[columns(0, 2 * width)]
    sequences.write_inputs(device, x, ns.roll(w_ih, shifts=(width, 0)), bias,
                           gates[columns(0, 3 * width)])
    rest = gates[columns(3 * width, 4 * width)]
    if b_hh is None:
        rest[...] = 0
    else:
        last = b_hh[columns(2 * width, 3 * width)]
        rest[...] = last if last.ndim == 1 else last[..., None, None, :]


# -- CPU -------------------------------------------------------------------------------------------
# sigmoid(x) = (tanh(x / 2) + 1) / 2.


def _forward_cpu(
    x: Array, h0: Array, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None, *,
    reverse: bool, out: Array | None = None,
) -> tuple[Array, Array]:
    """The states (..., T + 1, N, H) and the gates n, r, z, q: (..., T, N, 4 H)."""
    dtype, work = x.dtype, computed_in(x.dtype)
    if work != dtype:
        given: Any = widened((x, h0, w_ih, w_hh, b_ih, b_hh), work)
        y, gates = _forward_cpu(*given, reverse=reverse)
        return narrowed(y, dtype, out), narrowed(gates, dtype)
    (*lead, steps, n, _), width = x.shape, w_hh.shape[-1]
    places = Places(steps, reverse)
    y = sequences.contiguous(out, (*lead, steps + 1, n, width), dtype, _empty)
    gates = _empty((*lead, steps, n, 4 * width), dtype)
    _write_inputs(host(), x, w_ih, b_ih, b_hh, gates)
    y[at(places.first)] = h0
    _steps_cpu(in_time(gates), in_time(y), w_hh.swapaxes(-1, -2), places)
    return (y if out is None or y is out else settled(y, out)), gates


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return host().empty(shape, dtype, "gru")


def _steps_cpu(gates: np.ndarray, y: np.ndarray, weight: np.ndarray, places: Places) -> None:
    """All steps; the arrays have the time axis first."""
    *shape, width = y.shape[1:]
    scratch = host().workspace(y[0].size * 3, y.dtype, 1)
    product = scratch(0, (*shape, 3 * width))
    for t in places.order:
        before, h, gate = y[places.before(t)], y[places.after(t)], gates[t]
        np.matmul(before, weight, out=product)
        gate[..., width:] += product
        both = gate[..., width:3 * width]
        both *= 0.5
        np.tanh(both, out=both)
        both *= 0.5
        both += 0.5
        n, r, z, q = (gate[..., k * width:(k + 1) * width] for k in range(4))
        n += np.multiply(r, q, out=h)
        np.tanh(n, out=n)
        np.subtract(before, n, out=h)
        h *= z
        h += n


def _grad_cpu(
    g: Array, w_hh: Array, gates: Array, y: Array, *, reverse: bool
) -> tuple[Array, Array]:
    """The gradients of what the gates n, r, z, q take (..., T, N, 4 H), and of h0."""
    dtype, work = g.dtype, computed_in(g.dtype)
    if work != dtype:
        given: Any = widened((g, w_hh, gates, y), work)
        d, dh = _grad_cpu(*given, reverse=reverse)
        return narrowed(d, dtype), dh
    places = Places(gates.shape[-3], reverse)
    d = _empty(gates.shape, work)
    dh = _empty((*gates.shape[:-3], *y.shape[-2:]), work)
    dh[...] = 0
    _steps_back_cpu((in_time(g), in_time(gates), in_time(y), in_time(d)), dh, w_hh, places)
    dh += g[at(places.first)]
    return d, dh


def _steps_back_cpu(
    arrays: tuple[np.ndarray, ...], dh: np.ndarray, weight: np.ndarray, places: Places
) -> None:
    g, gates, y, changes = arrays
    scratch, width = host().workspace(dh.size, dh.dtype, 1), dh.shape[-1]
    product = scratch(0, dh.shape)
    for t in reversed(places.order):
        gate, d = gates[t], changes[t]
        n, r, z, q = (gate[..., k * width:(k + 1) * width] for k in range(4))
        dn, dr, dz, dq = (d[..., k * width:(k + 1) * width] for k in range(4))
        dh += g[places.after(t)]
        np.multiply(n, n, out=dn)
        np.subtract(1, dn, out=dn)
        slopes = d[..., width:3 * width]
        np.subtract(1, gate[..., width:3 * width], out=slopes)
        dn *= dh
        dn *= dz  # 1 - z
        slopes *= gate[..., width:3 * width]
        dr *= q
        dr *= dn
        np.multiply(dn, r, out=dq)
        dz *= dh
        dz *= np.subtract(y[places.before(t)], n, out=product)
        dh *= z
        dh += np.matmul(d[..., width:], weight, out=product)


# -- GPU -------------------------------------------------------------------------------------------

_CELL = raw("gru_cell.cu", "gru_cell_forward")
_CELL_BACK = raw("gru_cell.cu", "gru_cell_backward")


def _forward_gpu(
    device: Any, x: Array, h0: Array, w_ih: Array, w_hh: Array, b_ih: Array | None,
    b_hh: Array | None, *, reverse: bool, out: Array | None = None,
) -> tuple[Array, Array]:
    """As _forward_cpu; two launches a step."""
    (*lead, steps, n, _), width, dtype = x.shape, w_hh.shape[-1], x.dtype
    places = Places(steps, reverse)
    y = sequences.contiguous(out, (*lead, steps + 1, n, width), dtype, device.xp.empty)
    gates = device.xp.empty((*lead, steps, n, 4 * width), dtype)
    _write_inputs(device, x, w_ih, b_ih, b_hh, gates)
    weight = w_hh.swapaxes(-1, -2)
    y[at(places.first)] = h0
    size, sums = y[at(0)].size, gates[columns(width, 4 * width)]
    grid, block = flat_launch(size)
    cell = _CELL[dtype]
    for t in places.order:
        device.matmul(y[at(places.before(t))], weight, sums[at(t)], 1.0)
        cell(grid, block, (gates, y, size, steps, n, width, t, int(reverse)))
    return (y if out is None or y is out else settled(y, out)), gates


def _grad_gpu(
    device: Any, g: Array, w_hh: Array, gates: Array, y: Array, *, reverse: bool
) -> tuple[Array, Array]:
    """As _grad_cpu; two launches a step."""
    (*lead, steps, n, _), width, dtype = gates.shape, w_hh.shape[-1], g.dtype
    places = Places(steps, reverse)
    g, gates, y = dense(g, dtype), dense(gates, dtype), dense(y, dtype)
    d = device.xp.empty(gates.shape, dtype)
    dh = device.xp.empty((*lead, n, width), computed_in(dtype))
    states = d[columns(width, 4 * width)]
    grid, block = flat_launch(dh.size)
    cell, first = _CELL_BACK[dtype], 1
    for t in reversed(places.order):
        cell(grid, block, (g, gates, y, d, dh, dh.size, steps, n, width, t, int(reverse), first))
        device.matmul(states[at(t)], w_hh, dh, 1.0)
        first = 0
    dh += g[at(places.first)]
    return d, dh


# -- the same in ops -------------------------------------------------------------------------------


class _Cell(NamedTuple):
    """One step: the state before it, its gates and what it makes."""

    step: int
    h: Any
    n: Any
    r: Any
    z: Any
    q: Any
    made: Any


def _unrolled(primals: Any, reverse: bool) -> list[_Cell]:
    x, h, w_ih, w_hh, b_ih, b_hh = primals
    ns, found = recorded, []
    inputs = affine(ns, x, w_ih, b_ih, 3)
    for t in Places(x.shape[-3], reverse).order:
        own = parts(ns, state(ns, inputs, t), 3)
        r, z, q = parts(ns, affine(ns, h, w_hh, b_hh, 2), 3)
        r, z = ns.sigmoid(own[0] + r), ns.sigmoid(own[1] + z)
        n = ns.tanh(own[2] + r * q)
        found.append(_Cell(t, h, n, r, z, q, n + z * (h - n)))
        h = found[-1].made
    return found


def _laid_out(first: Any, made: list[Any], reverse: bool) -> Any:
    """The output of the layer from its states in the order of the steps."""
    states = [first, *made]
    return joined(states[::-1] if reverse else states)


def _composed(*inputs: Any, reverse: bool) -> Tensor:
    return _laid_out(inputs[1], [cell.made for cell in _unrolled(inputs, reverse)], reverse)


def _grad_recorded(g: Tensor, inputs: Any, reverse: bool) -> tuple[Any, Any]:
    """What gru_grad gives, as a function of the layer's inputs."""
    ns, w_hh = recorded, inputs[3]
    steps, width = inputs[0].shape[-3], w_hh.shape[-1]
    places = Places(steps, reverse)
    changes: list[Any] = [None] * steps
    dh = None
    for cell in reversed(_unrolled(inputs, reverse)):
        dh = total(ns, state(ns, g, places.after(cell.step)), dh)
        dn = dh * (1 - cell.z) * (1 - cell.n * cell.n)
        d = [dn, dn * cell.q * cell.r * (1 - cell.r),
             dh * (cell.h - cell.n) * cell.z * (1 - cell.z), dn * cell.r]
        change = ns.concat(*d, axis=-1, sizes=(width,) * 4)
        through = ns.slice(change, key=columns(width, 4 * width))
        dh = dh * cell.z + affine(ns, through, swapped(ns, w_hh), None, 2)
        changes[cell.step] = change
    return joined(changes), total(ns, dh, state(ns, g, places.first))


# -- rules -----------------------------------------------------------------------------------------


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    """Through all steps, then a product for each weight and for the input."""
    *inputs, y, gates = step.saved
    x, _, w_ih, w_hh, _, _ = inputs
    reverse, width = step.params["reverse"], w_hh.shape[-1]
    d: Any
    if ns is recorded:
        d, dh = _grad_recorded(g, inputs, reverse)  # type: ignore[arg-type]
    else:
        d, dh = ns.gru_grad(g, w_hh, gates, y, reverse=reverse)
    before = ns.slice(y, key=at(Places(x.shape[-3], reverse).read))
    give_products(ns, step, ns.slice(d, key=columns(width, 4 * width)), before, (3, 5))
    own = ns.slice(d, key=columns(0, 3 * width))  # n, r, z
    if step.needs(4):
        first = -len(own.shape) if len(step.shape(4)) == 1 else -3
        step.give(4, ns.roll(ns.sum(own, axis=tuple(range(first, -1))), shifts=(-width,)))
    if step.needs(2):
        find = partial(weight_gradient, ns) if len(step.shape(2)) > 2 else ns.linear_grad_weight
        step.give(2, ns.roll(find(own, x), shifts=(-width, 0)))
    if step.needs(1):
        step.give(1, dh)
    if step.needs(0):
        buffer, beta = step.into(0)
        rolled = ns.roll(w_ih, shifts=(width, 0))
        step.give(0, affine(ns, own, swapped(ns, rolled), None, 3, buffer, beta))


def _tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    dx, dh, dw_ih, dw_hh, db_ih, db_hh = tangents
    x, h0, w_ih, w_hh, b_ih, _ = primals
    inputs = affine_tangent(ns, (x, w_ih, b_ih), (dx, dw_ih, db_ih), 3)
    first, made = dh, []
    for cell in _unrolled(primals, params["reverse"]):
        change = affine_tangent(ns, (cell.h, w_hh, None), (dh, dw_hh, db_hh), 2)
        own, through = ([None] * 3 if a is None else parts(ns, a, 3) for a in (
            None if inputs is None else state(ns, inputs, cell.step), change))
        dr = times(total(ns, own[0], through[0]), cell.r * (1 - cell.r))
        dz = times(total(ns, own[1], through[1]), cell.z * (1 - cell.z))
        dn = times(total(ns, own[2], times(dr, cell.q), times(through[2], cell.r)),
                   1 - cell.n * cell.n)
        dh = total(ns, times(dn, 1 - cell.z), times(dz, cell.h - cell.n), times(dh, cell.z))
        made.append(dh)
    first, *made = filled([first, *made], h0)
    return _laid_out(first, made, params["reverse"])


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


def _reference(torch: Any, x: Any, h0: Any, *parameters: Any, reverse: bool) -> Any:
    return sequences.pytorchs(torch._VF.gru, torch, x, (h0,), parameters, reverse)


gru_grad = op(
    "gru_grad", cpu=_grad_cpu, gpu=on_gpu(_grad_gpu), backward=None, tangent=None,
    batch=_grad_batch, samples=None,  # its inputs depend on each other: tested through gru
    doc="The gradients of a GRU layer's gates before their activations, and of h0.",
)

_NAMES = "x h0 w_ih w_hh b_ih b_hh"

gru_op = op(
    "gru", flops=of_gru, autocast="low", cpu=_forward_cpu, gpu=on_gpu(_forward_gpu), extras="gates",
    saves=dict.fromkeys(_NAMES.split(), f"{_NAMES} out gates"),
    backward=_backward, tangent=_tangent, composed=_composed, batch=_batch,
    samples=sequences.samples(3, 1), reference=_reference,
    doc="A layer of a GRU over a sequence: h0 and all hidden states along axis -3. Parameters: "
        "reverse (from the last step to the first).",
)


def gru_layer(
    input: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None, reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """The outputs (T, N, H) of one layer of a GRU, and its last hidden state.

    One record for all steps. On CUDA a step is two launches forward and two backward.

    Args:
        input: (T, N, I), T at least 1.
        h0: (N, H).
        w_ih: (3 H, I), the gates r, z, n one after another.
        w_hh: (3 H, H).
        b_ih, b_hh: (3 H,), or both None.
        reverse: from the last step to the first; outputs stay in the order of the inputs.

    Raises TypeError for dtypes, ValueError for shapes that do not fit.

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014, with the
    reset gate behind the product.
    """
    sequences.check_layer("gru_layer", 3, input, {"h0": h0}, w_ih, w_hh, b_ih, b_hh)
    y = gru_op(input, h0, w_ih, w_hh, b_ih, b_hh, reverse=reverse)
    places = Places(input.shape[0], reverse)
    return y[places.made], y[places.last]
