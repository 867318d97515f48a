"""Embedding: rows of a table by index, and its adjoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import device_of, host
from gtensor.backend.cuda import cupy
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, below, normal
from gtensor.ops.arrange.class_indices import check_range
from gtensor.ops.arrange.index_keys import ARRAY
from gtensor.ops.arrange.scatter import combine_in_order
from gtensor.ops.arrange.shape import first_tangent
from gtensor.ops.define import rows as table_rows
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import batch_size, numbers, spread
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.path_builders import placed
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values
    from gtensor.ops.define.batching import Inputs, Mapped

__all__: list[str] = []  # embedding is public in gtensor.nn.functional


def _gather(
    device: Device, weight: Array, indices: Array, *, padding_idx: int | None,
    out: Array | None = None
) -> Array:
    if out is None:
        shape = (*indices.shape, weight.shape[-1])
        out = device.empty(shape, weight.dtype, "embedding")
    if isinstance(weight, np.ndarray):
        np.take(weight, indices, axis=0, out=out, mode="clip")  # with "raise" NumPy buffers `out`
    else:
        weight.take(indices, axis=0, out=out)
    return out


def _scatter_cpu(
    g: Array, indices: Array, *, rows: int, padding_idx: int | None, out: Array | None = None,
    beta: float = 0.0
) -> Array:
    """Rows summed by index: by a kernel, or sorted and added up in runs, by tiles."""
    columns = g.shape[-1]
    if out is None:
        out = host().empty((rows, columns), g.dtype, "embedding_grad")
        beta = 0.0
    if table_rows.embedding_grad(g, indices, out, padding_idx, bool(beta)):
        return out
    if not beta:
        out[...] = 0
    places = indices.reshape(-1)
    order = np.argsort(places, kind="stable")
    if padding_idx is not None:
        order = order[places[order] != padding_idx]
    step = max(1, settings.tile_elements // max(1, columns))
    for start in range(0, order.size, step):
        picked = order[start:start + step]
        keys = places[picked]
        part = g[np.unravel_index(picked, indices.shape)] if indices.ndim else g[None]
        first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
        out[keys[first]] += np.add.reduceat(part, first, axis=0, dtype=computed_in(g.dtype)).astype(
            g.dtype, copy=False)
    return out


def _scatter_gpu(
    g: Array, indices: Array, *, rows: int, padding_idx: int | None, out: Array | None = None,
    beta: float = 0.0
) -> Array:
    xp, columns, work = cupy(), g.shape[-1], computed_in(g.dtype)
    total = out
    if total is None or total.dtype != work:  # atomics on half types are slow
        total = xp.zeros((rows, columns), work)
    elif not beta:
        total[...] = 0
    flat = g.reshape(indices.size, columns).astype(total.dtype, copy=False)  # columns may be 0
    if padding_idx is not None:
        flat = flat * (indices.reshape(-1, 1) != padding_idx)
    if settings.repeatable:
        combine_in_order(device_of(g), "add", total, (indices.reshape(-1),), flat)
    else:
        xp.add.at(total, indices.reshape(-1), flat)
    if out is None:
        return total.astype(g.dtype, copy=False)
    if total is not out:
        out[...] = out + total if beta else total
    return out


def _embedding_backward(ns: Namespace, step: Step, g: Array) -> None:
    buffer, beta = step.into(0)
    step.give(0, ns.embedding_grad(
        g, *step.saved, rows=step.shape(0)[-2], padding_idx=step.params["padding_idx"], out=buffer,
        beta=beta))


def _without_padding(ns: Namespace, rows: Array, indices: Array, padding_idx: int | None) -> Array:
    """Rows of the padding index replaced by zeros: it gets no gradient, so it passes none."""
    if padding_idx is None:
        return rows
    counts = ns.reshape(ns.not_equal(indices, padding_idx), shape=(*indices.shape, 1))
    return ns.multiply(rows, ns.astype(counts, dtype=rows.dtype))


def _embedding_grad_backward(ns: Namespace, step: Step, u: Array) -> None:
    (indices,), padding_idx = step.saved, step.params["padding_idx"]
    rows = ns.embedding(u, indices, padding_idx=padding_idx)
    step.give(0, _without_padding(ns, rows, indices, padding_idx))


def _embedding_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    rows = ns.embedding(tangents[0], primals[1], **params)
    return _without_padding(ns, rows, primals[1], params["padding_idx"])


# -- examples --------------------------------------------------------------------------------------


def _rows_batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    weight, indices = inputs
    if not mapped[0]:
        return run(weight, indices, **params)
    if not mapped[1]:
        return ns.gather(weight, indices, key=(slice(None), ARRAY))
    each = numbers(indices, weight.shape[0], indices.ndim - 1)
    return ns.gather(weight, each, indices, key=(ARRAY, ARRAY))


def _scatter_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Shared indices are sorted once, for rows as long as those of all examples together."""
    (g, indices), size = inputs, batch_size(inputs, mapped)
    g = spread(ns, g, mapped[0], size)
    rows, pad = params["rows"], params["padding_idx"]
    if not mapped[1]:
        *lead, columns = g.shape[1:]
        wide = ns.permute_dims(g, axes=(*range(1 - g.ndim, -1), -g.ndim, -1))
        total = run(ns.reshape(wide, shape=(*lead, size * columns)), indices, **params)
        return ns.permute_dims(ns.reshape(total, shape=(rows, size, columns)), axes=(-2, -3, -1))
    g = _without_padding(ns, g, indices, pad)
    each = ns.add(indices, ns.multiply(numbers(indices, size, indices.ndim - 1), rows))
    total = run(g, each, rows=size * rows, padding_idx=None)
    return ns.reshape(total, shape=(size, rows, g.shape[-1]))


embedding_grad = op(
    "embedding_grad", flops=0, cpu=_scatter_cpu, gpu=_scatter_gpu, saves={"g": "indices"},
    backward=_embedding_grad_backward, tangent=first_tangent("embedding_grad"),
    batch=_scatter_batch,
    samples=[Sample(((*shape, 3), shape), (normal, below(4)), {"rows": 4, "padding_idx": pad})
             for shape, pad in (((5,), None), ((2, 3), 1), ((0,), None), ((), None))],
    doc="Rows of g (..., D) added up by index into (rows, D), but those of padding_idx. On a GPU "
        "by atomics, or with GTENSOR_REPEATABLE=1 in one order.",
)

embedding_op = op(
    "embedding", flops=0, **placed(_gather), saves={"weight": "indices"},
    backward=_embedding_backward, tangent=_embedding_tangent, batch=_rows_batch,
    samples=[Sample(((4, 3), shape), (normal, below(4)), {"padding_idx": None})
             for shape in ((5,), (2, 3), (0,), ())],
    reference=lambda torch, weight, indices, padding_idx: torch.nn.functional.embedding(
        indices.long(), weight, padding_idx),
    doc="Rows of weight (V, D) at indices (...): (..., D). The row padding_idx gets no gradient.",
)


@takes_arrays
def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of a table: indices (...) and weight (V, D) give (..., D).

    The row padding_idx (from 0, or from the end if negative) gets no gradient. Indices out of range
    raise ValueError. On a GPU the range is not checked, since that would wait, and such an index
    selects any row; GTENSOR_DEBUG=1 checks it.
    On a GPU the gradient sums up repeated indices by atomics; GTENSOR_REPEATABLE=1 makes its bits
    repeat.

    Raises TypeError for indices that are not integers.
    """
    if weight.ndim != 2:
        raise ValueError(f"embedding was given a weight of shape {weight.shape}; wanted (V, D)")
    if input.dtype.kind not in "iu":
        raise TypeError(f"embedding was given indices of dtype {input.dtype}; wanted integers")
    rows = weight.shape[0]
    check_range("embedding", "index", input, rows)
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise ValueError(f"embedding was given padding_idx={padding_idx} for {rows} rows; "
                             f"wanted {-rows} to {rows - 1}")
        padding_idx %= rows
    return embedding_op(weight, input, padding_idx=padding_idx)
