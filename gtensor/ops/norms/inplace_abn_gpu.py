"""The GPU paths of in-place activated batch norm: see inplace_abn.py for what they compute.

One launch for the statistics and one for z, one for the sums and one for dx; one for both where a
channel fits into the shared memory of a block. An array in neither layout (channels first, channels
last) or in another one than z, such as a broadcast gradient, is copied once.
"""

from __future__ import annotations

from typing import Any

from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import NULL, raw
from gtensor.ops.build.cpu_tiles import computed_in
from gtensor.ops.norms.batch_norm_gpu import Channels, activated, normalize, pair

_REDUCE = pair("reduce")
_BACKWARD = pair("backward")
_BACKWARD_ON_CHIP = raw("bn_act.cu", "bn_act_backward_on_chip")
_INPUT = pair("input")


def forward_gpu(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, sync: Any = None, out: Any = None,
) -> Any:
    """As forward_cpu."""
    return normalize(x, weight, bias, mean, var, True, eps, activation, parameter, out)


def grad_gpu(
    g: Any, z: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, sync: Any = None, out: Any = None,
) -> Any:
    """As grad_cpu."""
    c = Channels(z)
    sums = cupy().empty((2, z.shape[1]), computed_in(z.dtype))
    arrays = (c.dense(g), c.dense(z), *c.per_channel(mean, var, weight, bias), sums)
    options, (dx, direct) = activated(eps, activation, parameter), c.target(out)
    shared = c.on_chip(2) if sync is None else 0
    if shared:
        c.launch_on_chip(_BACKWARD_ON_CHIP, shared, *arrays, dx, *c.sizes, *options, int(training))
    else:
        c.launch(_REDUCE, *arrays, *c.workspace(2), *c.sizes, *options)
        total, count = (sums, c.count) if sync is None else sync.sums(sums)
        means = c.per_channel(total)[0] if training else NULL
        c.launch(_BACKWARD, *arrays[:-1], means, dx, *c.sizes, *options, float(count))
    return c.result(dx, out, direct), sums


def input_gpu(
    z: Any, weight: Any, bias: Any, mean: Any, var: Any, *, eps: float, activation: str,
    parameter: float, out: Any = None,
) -> Any:
    """As input_cpu."""
    c = Channels(z)
    x, direct = c.target(out)
    c.launch(_INPUT, c.dense(z), *c.per_channel(mean, var, weight, bias), x, *c.sizes,
             *activated(eps, activation, parameter))
    return c.result(x, out, direct)
