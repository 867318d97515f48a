"""Batch norm over several replicas: statistics are exchanged forward, sums backward.

Every replica normalizes its part of the batch by the statistics of the whole. Exchanged are a mean,
a variance and a count per channel forward, and two sums per channel backward. A communicator
provides one function for that: `gather(array)` returns all replicas' arrays stacked along a new
first axis, the same on all of them. The gradients of weight and bias stay local, as those of all
other parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

Gather: TypeAlias = "Callable[[Array], Array]"


class Replicas:
    """One call of a synchronized batch norm, from its forward to its backward."""

    def __init__(self, gather: Gather) -> None:
        self.gather = gather
        self.count = 0  # of samples per channel over all replicas, once the statistics are known

    def statistics(self, mean: Array, var: Array, count: int) -> tuple[Array, Array]:
        """Mean and biased variance of the whole batch, from arrays of this replica's."""
        counts = np.full_like(mean, count, np.int64, shape=(1,))  # on the device of the mean
        total_mean, total_var, total = reduce_statistics(
            self.gather(mean), self.gather(var), self.gather(counts)[:, 0])
        self.count = int(total)
        return total_mean, total_var

    def sums(self, local: Array) -> tuple[Array, int]:
        """The sums of all replicas, and the count of their samples per channel."""
        return self.gather(local).sum(axis=0), self.count


def reduce_statistics(means: Array, variances: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Mean and biased variance (C) of all replicas' samples, and their count.

    Args:
        means, variances: (R, C), biased; finite also where a replica has no samples.
        counts: (R), samples per channel of each replica.

    Source: Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983.
    """
    count = counts.sum()
    share = (counts / count.clip(1)).astype("float64").reshape(-1, 1)
    center = means.astype("float64")
    mean = (share * center).sum(axis=0)
    var = (share * (variances + (center - mean) ** 2)).sum(axis=0)
    return mean.astype(means.dtype), var.astype(variances.dtype), count
