"""Elements along one axis by index (PyTorch's gather), and the adjoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Draw, Sample, normal
from gtensor.ops.arrange.index_keys import refuse_places
from gtensor.ops.arrange.scatter import added
from gtensor.ops.arrange.shape import axis_index, first_tangent, resized
from gtensor.ops.define.arguments import given_axis, takes_arrays
from gtensor.ops.define.batching import trailing
from gtensor.ops.define.cpu_tiles import SMALL
from gtensor.ops.define.path_builders import placed, settled
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Operand
    from gtensor.engine.walk.typing import Step

__all__ = ["take_along_axis"]


def _key(device: Device, indices: Array, shape: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    """The key of the elements, of an array of `shape`, at `indices` along an axis."""
    xp, ndim = device.xp, len(shape)
    return tuple(indices if i == axis else xp.arange(n).reshape(-1, *(1,) * (-i - 1))
                 for i, n in zip(range(-ndim, 0), shape, strict=True))


def _take_along(
    device: Device, x: Array, indices: Array, *, axis: int, out: Array | None = None
) -> Array:
    if out is None and axis == -1 and device.type == "cpu" and indices.size >= SMALL and (
            indices.shape[:-1] == x.shape[:-1] and indices.dtype.char in "lq"
            and x.flags.c_contiguous and indices.view(np.uint64).max() < x.shape[-1]):
        return _taken_flat(device, x, indices)  # none is negative: it would be large
    key = _key(device, indices, x.shape, axis)
    refuse_places(device, key, x.shape)
    return settled(x[key], out)


def _taken_flat(device: Device, x: Array, indices: Array) -> Array:
    """Along the last axis, by places in all of x: NumPy adds up no key for each element then."""
    columns, width = x.shape[-1], indices.shape[-1]
    out = device.empty(indices.shape, x.dtype, "take_along_axis")
    flat, each, taken = x.reshape(-1), indices.reshape(-1, width), out.reshape(-1, width)
    step = max(1, settings.tile_elements // width)
    for start in range(0, len(each), step):
        part = each[start:start + step]
        places = part + np.arange(start * columns, (start + len(part)) * columns, columns)[:, None]
        # with "raise" NumPy would buffer `out`
        np.take(flat, places, out=taken[start:start + step], mode="clip")
    return out


def _scatter_along(
    device: Device, g: Array, indices: Array, *, axis: int, shape: tuple[int, ...],
    out: Array | None = None, beta: float = 0.0
) -> Array:
    key = _key(device, indices, shape, axis)
    return added(device, g, key, shape, "scatter_along_axis", out, beta)


def _take_along_backward(ns: Namespace, step: Step, g: Array) -> None:
    buffer, beta = step.into(0)
    step.give(0, ns.scatter_along_axis(
        g, *step.saved, axis=step.params["axis"], shape=step.shape(0), out=buffer, beta=beta))


def _torch_take(torch: Any, x: Any, indices: Any, axis: int) -> Any:
    return torch.take_along_dim(x, indices % x.shape[axis], axis)


_SHAPES = (((7,), (4,), -1), ((3, 5), (3, 9), -1), ((3, 5), (2, 5), -2),
           ((2, 1, 3), (1, 4, 6), -1), ((3, 4), (0, 4), -2))


def _places(size: int) -> Draw:
    """Indices from either end."""
    return lambda rng, shape: rng.integers(-size, size, shape)


def _selected(shape: tuple[int, ...], indices: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The shape of the elements taken."""
    return np.broadcast_shapes(resized(shape, axis, 1), indices)


scatter_along_op = op(
    "scatter_along_axis", flops=0, **placed(_scatter_along), complex=True,
    saves={"g": "indices"},
    backward=lambda ns, step, u: step.give(0, ns.take_along_axis(
        u, *step.saved, axis=step.params["axis"])),
    tangent=first_tangent("scatter_along_axis"), batch=trailing,
    samples=[Sample((_selected(s, i, a), i), (normal, _places(s[a])), {"axis": a, "shape": s})
             for s, i, a in _SHAPES],
    doc="Zeros of `shape` with g added at indices along an axis: the adjoint of take_along_axis. "
        "Half types are summed in a float32 copy of the output. On a GPU repeated indices are "
        "summed by atomics, or with GTENSOR_REPEATABLE=1 in one order.",
)

take_along_op = op(
    "take_along_axis", flops=0, **placed(_take_along), complex=True, saves={"x": "indices"},
    backward=_take_along_backward, tangent=first_tangent("take_along_axis"), batch=trailing,
    samples=[Sample((s, i), (normal, _places(s[a])), {"axis": a}) for s, i, a in _SHAPES],
    reference=_torch_take,
    doc="The elements of x at indices along an axis: a copy.",
)


@takes_arrays
def take_along_axis(
    x: Tensor, indices: Operand, /, axis: int = -1, *, dim: int | None = None
) -> Tensor:
    """The elements of x at integer `indices` along `axis`; negative ones count from the end.

    x and indices have as many axes, which broadcast except along `axis`. PyTorch's
    `gather(x, axis, indices)` for shapes that agree in the other axes. Raises ValueError for shapes
    that do not fit, TypeError for the indices' dtype, IndexError for one out of range.

    On a GPU the range is not checked, since that would wait, and such an index selects any element;
    GTENSOR_DEBUG=1 checks it.

    On a GPU the gradient sums up repeated indices by atomics; GTENSOR_REPEATABLE=1 makes its bits
    repeat.
    """
    if dim is not None:
        axis = given_axis("take_along_axis", axis, dim, -1)
    place = axis_index(axis, x.ndim, "take_along_axis")
    where = indices if isinstance(indices, Tensor) else asarray(indices, device=x.device)
    if where.dtype.kind not in "iu":
        raise TypeError(f"take_along_axis with indices of dtype {where.dtype}; wanted integers")
    if where.ndim != x.ndim or any(
            n != m and 1 not in (n, m)
            for i, (n, m) in enumerate(zip(x.shape, where.shape, strict=False)) if i != place):
        raise ValueError(f"take_along_axis of a tensor of shape {x.shape} with indices of shape "
                         f"{where.shape}; wanted as many axes, broadcasting but for axis {place}")
    if not x.shape[place] and where.size:  # a GPU would not check it
        raise IndexError(f"take_along_axis of a tensor of shape {x.shape} with indices of shape "
                         f"{where.shape}: any index of axis {place} with size 0 is out of bounds")
    try:
        return take_along_op(x, where, axis=place - x.ndim)
    except IndexError as error:
        raise IndexError(f"take_along_axis of a tensor of shape {x.shape} with indices of shape "
                         f"{where.shape}: {error}") from None
