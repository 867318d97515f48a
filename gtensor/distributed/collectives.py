"""Collectives as ops with gradients. A result belongs to all ranks, and so does its gradient.

The loss is the sum of all ranks' losses. So the gradient of a sum over the ranks is the sum of the
ranks' gradients, and gathering and scattering are each other's adjoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtensor.distributed.alone import Alone
from gtensor.distributed.communicator import Communicator
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.shape import first_tangent
from gtensor.ops.define.arguments import want_tensors
from gtensor.ops.define.batching import Inputs, Mapped
from gtensor.ops.define.path_builders import placed

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step

_ONE = {"comm": Communicator(Alone())}


def _sum_path(device: Device, x: Array, *, comm: Communicator, out: Array | None = None) -> Array:
    if out is None:
        out = device.empty(x.shape, x.dtype, "all_reduce")
    if out is not x:
        out[...] = x
    comm.all_reduce(out)
    return out


def _gather_path(
    device: Device, x: Array, *, comm: Communicator, out: Array | None = None
) -> Array:
    return comm.all_gather(x, out).wait()


def _scatter_path(
    device: Device, x: Array, *, comm: Communicator, out: Array | None = None
) -> Array:
    return comm.reduce_scatter(x, out).wait()


def _sum_backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, ns.all_reduce(g, out=step.reuse(g), **step.params))


def _gather_backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, ns.reduce_scatter(g, **step.params))


def _scatter_backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, ns.all_gather(g, **step.params))


def _examples(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of several examples at once: one exchange of all of them."""
    return run(*inputs, **params)


def _gather_examples(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """The same; the ranks' axis stands behind that of the examples."""
    return _exchanged(ns, run(*inputs, **params))


def _scatter_examples(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    return run(_exchanged(ns, inputs[0]), **params)


def _exchanged(ns: Namespace, x: Any) -> Any:
    """The first two axes exchanged."""
    return ns.permute_dims(x, axes=(1 - x.ndim, -x.ndim, *range(2 - x.ndim, 0)))


sum_op = op(
    "all_reduce", inputs="x", **placed(_sum_path), backward=_sum_backward,
    tangent=first_tangent("all_reduce"), batch=_examples,
    samples=[Sample((shape,), normal, _ONE) for shape in ((3,), (2, 3), (), (0, 2))],
    reference=lambda torch, x, comm: x * 1,
    doc="The sum of all ranks' x, on all of them.",
)
gather_op = op(
    "all_gather", inputs="x", **placed(_gather_path), backward=_gather_backward,
    tangent=first_tangent("all_gather"), batch=_gather_examples,
    samples=[Sample((shape,), normal, _ONE) for shape in ((3,), (2, 3), (), (0, 2))],
    reference=lambda torch, x, comm: x[None] * 1,
    doc="All ranks' x, stacked along a new first axis.",
)
scatter_op = op(
    "reduce_scatter", inputs="x", **placed(_scatter_path), backward=_scatter_backward,
    tangent=first_tangent("reduce_scatter"), batch=_scatter_examples,
    samples=[Sample((shape,), normal, _ONE) for shape in ((1, 3), (1, 2, 3), (1,), (1, 0))],
    reference=lambda torch, x, comm: x[0] * 1,
    doc="The sum of all ranks' x (size, ...): to each rank the part of its number.",
)


# -- public functions ------------------------------------------------------------------------------


def all_reduce(x: Tensor, comm: Communicator) -> Tensor:
    """The sum of all ranks' x (...), on all of them, recorded. Its gradient is summed in turn.

    All ranks call it, and the backward pass, too. `Communicator.all_reduce` writes x itself.
    """
    want_tensors("all_reduce", x=x)
    return sum_op(x, comm=comm)


def all_gather(x: Tensor, comm: Communicator) -> Tensor:
    """All ranks' x (*shape), stacked: (size, *shape), recorded. Its adjoint is `reduce_scatter`."""
    want_tensors("all_gather", x=x)
    return gather_op(x, comm=comm)


def reduce_scatter(x: Tensor, comm: Communicator) -> Tensor:
    """The sum of all ranks' x (size, *shape), to each the part of its number (*shape), recorded.

    Its adjoint is `all_gather`. Raises ValueError for another first length.
    """
    want_tensors("reduce_scatter", x=x)
    return scatter_op(x, comm=comm)
