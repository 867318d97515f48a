"""Attention forward as one launch on tensor cores (kernels/attention.cu), where that kernel serves.

It serves halves on devices from sm_80 on, without a mask or dropout, with a positive scale, head
sizes up to 128 that are multiples of 8, any strides that are multiples of 16 bytes, and features
side by side. All other calls take the blocks of blocks.py.
"""

from __future__ import annotations

from functools import lru_cache
from math import e, log2, prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from gtensor.backend.kernels import raw
from gtensor.backend.layouts import Axis, merged

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array

_LEAD_AXES = 4  # `GT_LEAD_AXES` of the kernel's file
_QUERIES, _KEYS, _THREADS = 128, 64, 256  # of a tile, of a tile, of a block
_DTYPES = ("float16", "bfloat16")
_ARCHITECTURE = 80
_PACK = 8  # halves in 16 bytes
_MOST_ROWS, _MOST_BLOCKS = 1 << 30, 2**31 - 1
_KERNELS = {size: raw("attention.cu", f"attention_forward_{size}") for size in (64, 128)}
_AXIS = np.dtype([(name, np.int64) for name in ("length", "q", "k", "v", "out")])
_SPACE = np.dtype([("lead", _AXIS, (_LEAD_AXES,)), ("rows", _AXIS), *(
    (name, np.int64)
    for name in ("matrices", "keys", "features", "value_features", "causal"))])

At: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # shape, and strides in bytes


class Plan(NamedTuple):
    """How the kernel is launched."""

    size: int  # of heads, at most
    grid: tuple[int, ...]
    shared_bytes: int
    space: np.void  # gt_attention


@lru_cache(1024)
def plan(q: At, k: At, v: At, out: At, is_causal: bool) -> Plan | None:
    """The launch for arrays of halves, which begin at multiples of 16 bytes; None if there is none.

    Args:
        q: (..., L, E).
        k: (..., S, E).
        v: (..., S, E_v).
        out: (..., L, E_v), with all leading axes.
        is_causal: a query sees no keys behind its own position.
    """
    *lead, length, value_features = out[0]
    keys, features = k[0][-2:]
    size = next((size for size in _KERNELS if max(features, value_features) <= size), 0)
    if not (size and 0 < length <= _MOST_ROWS and 0 < keys <= _MOST_ROWS and features
            and value_features and features % _PACK == value_features % _PACK == 0 < prod(lead)):
        return None
    if any(x[1][-1] != 2 for x in (q, k, v, out)):
        return None
    steps = [_steps(x, len(lead) + 2) for x in (q, k, v, out)]
    axes = merged(Axis(n, tuple(step[i] for step in steps)) for i, n in enumerate(lead))
    blocks = prod(lead) * -(-length // _QUERIES)
    if len(axes) > _LEAD_AXES or blocks > _MOST_BLOCKS or any(
            n % _PACK for step in steps for n in step[:-1]):
        return None
    space: Any = np.zeros((), _SPACE)
    space["lead"] = [(axis.length, *axis.steps) for axis in reversed(axes)] + [
        (1, 0, 0, 0, 0)] * (_LEAD_AXES - len(axes))
    space["rows"] = (length, *(step[-2] for step in steps))
    for name, number in (("matrices", prod(lead)), ("keys", keys), ("features", features),
                         ("value_features", value_features), ("causal", is_causal)):
        space[name] = number
    return Plan(size, (blocks,), _shared_bytes(size), space[()])


def _shared_bytes(size: int) -> int:
    """A tile of queries, and two of keys and of values."""
    return (_QUERIES + 4 * _KEYS) * size * 2


def _steps(x: At, ndim: int) -> tuple[int, ...]:
    """Elements from one index to the next along `ndim` axes; 0 where the array repeats."""
    steps = [0 if n == 1 else stride // 2 for n, stride in zip(*x, strict=True)]
    return (0,) * (ndim - len(steps)) + tuple(steps)


def serves(device: Device, dtype: Any, scale: float) -> bool:
    """Whether attention of this dtype, without a mask and dropout, may be one launch."""
    return (device.architecture >= _ARCHITECTURE and dtype.name in _DTYPES
            and 0 < scale < np.inf)


def attend(
    device: Device, q: Array, k: Array, v: Array, out: Array, *, scale: float, is_causal: bool
) -> tuple[Array, Array] | None:
    """Write the output; what blocks.py keeps of each query, (..., L, 1): a number and a sum.

    The number is the logarithm of the sum of exponentials, relative to which the sum is 1. None,
    and nothing is written, where the kernel does not serve.
    """
    arrays: tuple[Any, ...] = (q, k, v, out)
    if any(x.dtype != q.dtype or x.data.ptr % 16 for x in arrays):
        return None
    launch = plan(*((x.shape, x.strides) for x in arrays), is_causal)
    if launch is None:
        return None
    logs, totals = device.empty((2, *out.shape[:-1], 1), np.float32, "attention")
    _KERNELS[launch.size][q.dtype](
        launch.grid, (_THREADS,), (*arrays, logs, totals, launch.space, scale * log2(e)),
        shared_mem=launch.shared_bytes)
    return logs, totals
