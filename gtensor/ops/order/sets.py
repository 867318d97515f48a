"""Sets: the distinct elements of a tensor. Shapes depend on values, so they wait for a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, below, normal
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import sized_by_values
from gtensor.ops.define.cpu_tiles import sortable
from gtensor.ops.define.path_builders import placed, settled
from gtensor.ops.define.pointwise import zero_tangent

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array

__all__ = ["unique_all", "unique_counts", "unique_inverse", "unique_values"]


class UniqueAll(NamedTuple):
    """The distinct elements, where each occurs first, every element's place among them, counts."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The distinct elements, and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The distinct elements, and for every element its place among them."""

    values: Tensor
    inverse_indices: Tensor


def _unique(device: Device, x: Array, **returned: bool) -> Any:
    return device.xp.unique(sortable(x.reshape(-1)), equal_nan=False, **returned)


def _table(device: Device, x: Array, out: Array | None = None) -> Array:
    """Indices, counts and inverse indices behind one another: an op has one output."""
    _, indices, inverse, counts = _unique(
        device, x, return_index=True, return_inverse=True, return_counts=True)
    if out is None:
        out = device.empty((2 * indices.size + x.size,), np.int64, "unique")
    for part, start in ((indices, 0), (counts, indices.size), (inverse, 2 * indices.size)):
        out[start:start + part.size] = part.reshape(-1)
    return out


def _values(
    device: Device, x: Array, indices: Array | None = None, out: Array | None = None
) -> Array:
    if indices is not None:
        return settled(x.reshape(-1)[indices], out)
    return settled(_unique(device, x).astype(x.dtype, copy=False), out)


def _torch_table(torch: Any, x: Any) -> Any:
    values, inverse, counts = torch.unique(x.flatten(), return_inverse=True, return_counts=True)
    first = torch.full(values.shape, x.numel()).scatter_reduce(
        0, inverse, torch.arange(x.numel()), "amin")
    return torch.cat([first, counts, inverse])


unique_table = op(
    "unique_table", flops=0, **placed(_table), backward=None, tangent=zero_tangent,
    batch=sized_by_values("unique_table"),
    samples=[Sample((s,), below(3)) for s in ((7,), (3, 5), (2, 0), ())], reference=_torch_table,
    doc="Of the distinct elements in ascending order: the places of their first occurrence, their "
        "counts, then every element's place among them; one int64 vector.",
)

_unique_values = op(
    "unique_values", flops=0, **placed(_values), backward=None, tangent=None,
    batch=sized_by_values("unique_values"),
    samples=[Sample((s, None), draw) for draw in (below(3), normal)
             for s in ((7,), (3, 5), (2, 0), ())],
    reference=lambda torch, x, indices: torch.unique(x.flatten()),
    doc="The distinct elements in ascending order; those at `indices`, if they are known.",
)


def _found(x: Tensor) -> UniqueAll:
    table = unique_table(x)
    count = (table.size - x.size) // 2
    indices = table[:count]
    return UniqueAll(_unique_values(x, indices), indices, table[2 * count:].reshape(x.shape),
                     table[count:2 * count])


@takes_arrays
def unique_all(x: Tensor, /) -> UniqueAll:
    """The distinct elements of x in ascending order: (values, indices, inverse_indices, counts).

    `indices` are of the first occurrence in the flattened x; `values[inverse_indices]` is x. Every
    NaN is distinct. Has no derivative: a gradient through the values is refused.
    """
    return _found(x)


@takes_arrays
def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The distinct elements of x in ascending order and how often each occurs: (values, counts).

    Every NaN is distinct. Has no derivative: a gradient through the values is refused.
    """
    found = _found(x)
    return UniqueCounts(found.values, found.counts)


@takes_arrays
def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The distinct elements of x in ascending order, and x by them: (values, inverse_indices).

    `values[inverse_indices]` is x. Every NaN is distinct. Has no derivative: a gradient through the
    values is refused.
    """
    found = _found(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """The distinct elements of x in ascending order, 1-d. Every NaN is distinct.

    Has no derivative: a gradient through it is refused.
    """
    return _unique_values(x, None)
