"""How much a rank's gradient counts: by its number of examples.

The weight is applied where the gradient enters the module, and not to the gradients of parameters:
batch norms add up the ranks' gradients within the walk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.distributed.alone import Alone
from gtensor.distributed.communicator import Communicator, exchanged
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor, wrap, zeros
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.define.batching import Inputs, Mapped
from gtensor.ops.define.path_builders import placed, settled

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step


class Weight:
    """The number of a rank's examples over the mean number of all ranks, which is on its way."""

    def __init__(self, comm: Communicator, examples: int, device: Device) -> None:
        self.examples = examples
        self.size = comm.size
        counts = np.array([examples], np.float64)
        self._on_device = comm.backend == "nccl"
        self._work = comm.all_reduce(
            device.from_numpy(counts) if self._on_device else counts, async_op=True)

    def factor(self, device: Device, dtype: np.dtype) -> Array:
        """It, as an array of one number on a device; over NCCL the host does not read it."""
        factor = self.examples * self.size / self._work.wait()[0]
        return factor.astype(dtype) if self._on_device else device.fill(
            device.empty((), dtype, "gradient"), float(factor))


def _path(device: Device, x: Array, *, weight: Weight, out: Array | None = None) -> Array:
    return settled(x[...], out)


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    """g times the weight; zeros without examples, whatever g is."""
    weight = step.params["weight"]
    device = step.record.device
    if not weight.examples:
        zero = zeros(device, (), g.dtype)
        step.give(0, ns.broadcast_to(zero if ns is recorded else zero._array, shape=g.shape))
        return
    factor = exchanged(Weight.factor, weight, device, g.dtype)
    step.give(0, ns.multiply(g, wrap(factor, device) if ns is recorded else factor,
                             out=step.reuse(g)))


def _examples(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of several examples at once."""
    return run(*inputs, **params)


weigh_gradient = op(
    "weigh_gradient", inputs="x", **placed(_path), view=True, complex=True, backward=_backward,
    tangent=lambda ns, primals, tangents, out, params: tangents[0], batch=_examples,
    samples=[Sample((shape,), normal, {"weight": Weight(Communicator(Alone()), 3, host())})
             for shape in ((3,), (0, 2), ())],
    reference=lambda torch, x, weight: x * 1,
    doc="x; its gradient counts by the examples of this rank.",
)


def weighed(value: Any, weight: Weight) -> Any:
    """The tensors in what a module returned (also in tuples, lists and dicts), weighed."""
    if isinstance(value, Tensor):
        return weigh_gradient(value, weight=weight) if value.requires_grad else value
    if isinstance(value, dict):
        return type(value)((name, weighed(each, weight)) for name, each in value.items())
    if isinstance(value, (tuple, list)):
        made = [weighed(each, weight) for each in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value
