"""Batch norm over several replicas: statistics are exchanged forward, sums backward.

Every replica normalizes its part of the batch by the statistics of the joint batch. All that it
needs of the others is a function `gather(array)`, which returns all replicas' arrays stacked along
a new first axis, the same on all of them. There is one call per layer and direction: two numbers
per channel and the count of samples per channel travel in one float64 array, which holds counts to
2^53 exactly. All replicas add in the same order, so their results are equal bit for bit. The
gradients of weight and bias stay local, as those of all other parameters.

In backward the count travels again: so no number is kept from forward, and on CUDA none is read by
the host. An exception is a replica with fewer than two samples per channel, which reads the count
of all to refuse a joint batch that has no variance.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import elementwise
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.path_builders import settled
from gtensor.ops.norms import batching
from gtensor.ops.norms.batch_norm_paths import statistics_cpu, statistics_gpu

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.ops.norms.batch_norm_paths import Gather


def values_per_channel(shape: tuple[int, ...]) -> int:
    """Of an array (N, C, ...)."""
    return prod(shape) // max(1, shape[1])


def _check_count(parts: Array, count: int) -> None:
    """Raise, on every replica, if all of them have fewer than two samples per channel.

    Then each of them has fewer than two, so only those need to look.
    """
    if count < 2 and (total := int(parts[:, -1].sum())) < 2:
        raise ValueError(f"a batch norm over {len(parts)} replicas was given a joint batch with a "
                         f"count of {total} per channel in training; wanted 2 or more")


# -- CPU -------------------------------------------------------------------------------------------


def _exchanged_cpu(first: Array, second: Array, count: int, gather: Gather) -> Array:
    """Of all replicas, both arrays and the count: float64 (R, 2 * size + 1)."""
    packed = host().empty((2 * first.size + 1,), np.float64, "replicas")
    np.concatenate((first.reshape(-1), second.reshape(-1), (count,)), out=packed)
    return gather(packed)


def joint_statistics_cpu(x: Array, *, gather: Gather, out: Array | None = None) -> Array:
    """Mean, biased and unbiased variance of all replicas' samples, (3, C).

    Source: Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983.
    """
    count = values_per_channel(x.shape)
    own = statistics_cpu(x, host().empty((2, x.shape[1]), np.float64, "replicas"))
    parts = _exchanged_cpu(own[0], own[1], count, gather)
    _check_count(parts, count)
    counts, means, variances = parts[:, -1:], *np.split(parts[:, :-1], 2, axis=1)
    total = counts.sum()
    mean = (counts * means).sum(axis=0) / total
    squares = (counts * (variances + (means - mean) ** 2)).sum(axis=0)
    result = np.stack((mean, squares / total, squares / (total - 1)))
    return settled(result.astype(computed_in(x.dtype), copy=False), out)


def joint_means_cpu(first: Array, second: Array, *, count: int, gather: Gather) -> Array:
    """Both sums over all replicas, divided by the count of all: (2, *shape)."""
    parts = _exchanged_cpu(first, second, count, gather)
    means = parts[:, :-1].sum(axis=0) / parts[:, -1].sum()
    return means.reshape(2, *first.shape).astype(first.dtype, copy=False)


# -- GPU: one launch before the exchange, and one after it -----------------------------------------

_PACK = elementwise(
    "raw T first, raw T second, int64 size, float64 count", "float64 packed",
    "packed = i < size ? double(gt_up(T(first[i])))"
    " : i < 2 * size ? double(gt_up(T(second[i - size]))) : count;",
    "number.cuh", "gt_pack_replica")
_STATISTICS = elementwise(
    "raw float64 parts, int64 replicas, int64 size", "T mean, T var, T unbiased",
    """
    double total = 0, center = 0, squares = 0;
    const gt_index row = 2 * size + 1;
    for (gt_index r = 0; r < replicas; ++r) {
      total += parts[r * row + 2 * size];
      center += parts[r * row + 2 * size] * parts[r * row + i];
    }
    center /= total;
    for (gt_index r = 0; r < replicas; ++r) {
      const double apart = parts[r * row + i] - center;
      squares += parts[r * row + 2 * size] * (parts[r * row + size + i] + apart * apart);
    }
    mean = gt_down<T>(center);
    var = gt_down<T>(squares / total);
    unbiased = gt_down<T>(squares / (total - 1));
    """, "number.cuh", "gt_joint_statistics")
_MEANS = elementwise(
    "raw float64 parts, int64 replicas, int64 size", "T mean",
    """
    double total = 0, sum = 0;
    for (gt_index r = 0; r < replicas; ++r) {
      total += parts[r * (size + 1) + size];
      sum += parts[r * (size + 1) + i];
    }
    mean = gt_down<T>(sum / total);
    """, "number.cuh", "gt_joint_means")


def _exchanged_gpu(first: Array, second: Array, count: int, gather: Gather) -> Array:
    """As _exchanged_cpu."""
    packed = cupy().empty(2 * first.size + 1, "float64")
    _PACK(first, second, first.size, float(count), out=packed)
    return gather(packed)


def joint_statistics_gpu(x: Array, *, gather: Gather, out: Array | None = None) -> Array:
    """As joint_statistics_cpu."""
    count = values_per_channel(x.shape)
    own = statistics_gpu(x)
    parts = _exchanged_gpu(own[0], own[1], count, gather)
    _check_count(parts, count)
    result = cupy().empty((3, x.shape[1]), own.dtype)
    _STATISTICS(parts, len(parts), x.shape[1], out=tuple(result))
    return settled(result, out)


def joint_means_gpu(first: Array, second: Array, *, count: int, gather: Gather) -> Array:
    """As joint_means_cpu."""
    parts = _exchanged_gpu(first, second, count, gather)
    means = cupy().empty((2, *first.shape), first.dtype)
    _MEANS(parts, len(parts), means.size, out=means.reshape(-1))
    return means


# -- definitions -----------------------------------------------------------------------------------


def _rows(means: Path) -> Path:
    """The path of an op of sums (..., 2, C), from that of both rows."""

    def path(sums: Array, *, count: int, gather: Gather, out: Array | None = None) -> Array:
        found = means(sums[..., 0, :], sums[..., 1, :], count=count, gather=gather)
        return settled(found if sums.ndim == 2 else found.swapaxes(0, 1), out)

    return path


def _several(
    ns: Namespace, run: Path, inputs: tuple[Any, ...], mapped: tuple[bool, ...], params: Params
) -> Any:
    """Sums of several gradients are exchanged at once."""
    return run(*inputs, **params)


def _twins(array: Array) -> Array:
    """The gather of two replicas that have the same samples."""
    return array[None].repeat(2, 0)


def _twins_statistics(torch: Any, x: Any, *, gather: Gather) -> Any:
    rows = torch.cat([x, x]).transpose(0, 1).flatten(1)
    return torch.stack([rows.mean(1), rows.var(1, correction=0), rows.var(1)])


joint_statistics = op(
    "joint_statistics", cpu=joint_statistics_cpu, gpu=joint_statistics_gpu, backward=None,
    tangent=None, batch=batching.channels_statistics,
    samples=[Sample((shape,), params={"gather": _twins}) for shape in ((4, 3), (2, 3, 5))],
    reference=_twins_statistics,
    doc="Mean, biased and unbiased variance of each channel of all replicas' (N, C, ...), (3, C). "
        "Parameters: gather, which stacks all replicas' arrays along a new first axis.",
)

joint_means = op(
    "joint_means", cpu=_rows(joint_means_cpu), gpu=_rows(joint_means_gpu), backward=None,
    tangent=None, batch=_several,
    samples=[Sample(((2, 3),), params={"count": 4, "gather": _twins})],
    reference=lambda torch, sums, *, count, gather: sums / count,
    doc="Sums (2, C) of all replicas, divided by the count of all replicas' samples per channel. "
        "Parameters: count, of this replica's; gather, as for joint_statistics.",
)
