"""Batch norms that normalize by the joint batch of all ranks."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from gtensor.nn.module import Module
from gtensor.nn.normalization import BatchNorm2d

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.distributed.communicator import Communicator

M = TypeVar("M", bound=Module)


def convert_sync(module: M, comm: Communicator) -> M:
    """The module, whose batch norms from now on train on the joint batch of all ranks.

    Every `BatchNorm1d`, `BatchNorm2d`, `ABN` and `InPlaceABN` in it normalizes by the mean and the
    variance of all ranks' samples, and moves its running statistics by them. A rank may have fewer
    samples than the others, or none. Each layer exchanges one array in forward and one in backward,
    over `comm.duplicate()`: a communicator of its own, since statistics must not share an order of
    calls with buckets of gradients. So all ranks must run the same batch norms in the same order.
    A layer whose input needs no gradient exchanges nothing in backward, and evaluation mode nothing
    at all; checkpointed functions exchange in their first run only.

    Backward differentiates the sum of the ranks' losses, as the sum of their gradients does. Losses
    that are means over different numbers of examples must be weighed before `backward()`, as
    `DataParallel` does: weighing the gradients of parameters afterwards is too late, since batch
    norms have added up gradients of other ranks by then. The gradients of a norm's own weight and
    bias are those of this rank's samples, as other parameters' are.

    The module is changed in place: its parameters, buffers, hooks and mode stay. A second call with
    the same communicator converts what was added since. In a world of one nothing is changed.

    A module that was converted cannot be copied or pickled, since the copy would need a
    communicator of its own on every rank: TypeError. Copy before the conversion, or load its
    `state_dict()` into a new module.

    Args:
        module: on every rank with the same batch norms under the same names.
        comm: the ranks that share a batch. Every rank must call.

    Raises:
        TypeError: for what is no Module.
        ValueError: on every rank, if the ranks' batch norms differ, or one of them is synchronized
            over another communicator. Nothing is changed then.

    Source: Peng et al., "MegDet: a large mini-batch object detector", CVPR 2018.
    """
    if not isinstance(module, Module):
        raise TypeError(f"convert_sync was given {type(module).__name__}; wanted a Module")
    norms = {name: norm for name, norm in module.named_modules() if isinstance(norm, BatchNorm2d)}
    if comm.size == 1:
        return module
    gathers = {name: norm._gather for name, norm in norms.items() if norm._gather is not None}
    taken = [name for name, gather in gathers.items() if getattr(gather, "given", None) is not comm]
    _check_ranks(comm.all_gather_object({
        "norms": [[name, f"{type(norm).__name__}({norm.num_features})"]
                  for name, norm in norms.items()], "taken": taken}))
    if len(gathers) < len(norms):
        gather: Any = next(iter(gathers.values()), None) or _Gather(comm)
        for norm in norms.values():
            norm._gather = gather
    return module


class _Gather:
    """Stacks all ranks' arrays, over a communicator of its own."""

    def __init__(self, given: Communicator) -> None:
        self.given = given
        self.comm = given.duplicate()

    def __call__(self, array: Array) -> Array:
        return self.comm.all_gather(array).wait()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a module with batch norms that convert_sync had synchronized was to be "
                        "copied or pickled; wanted one without a communicator: copy it before the "
                        "conversion, or load its state_dict() into a new module")


def _check_ranks(facts: list[dict[str, Any]]) -> None:
    """Raise ValueError, the same on all ranks, unless all of them can be converted."""
    first = facts[0]["norms"]
    for rank, fact in enumerate(facts):
        for wanted, given in zip_longest(first, fact["norms"]):
            if wanted != given:
                raise ValueError(f"convert_sync was given {_said(given)} on rank {rank} and "
                                 f"{_said(wanted)} on rank 0; wanted the same on all ranks")
        if fact["taken"]:
            raise ValueError(f"convert_sync was given {fact['taken'][0]!r}, which rank {rank} "
                             "synchronizes over another communicator; wanted one that is not")


def _said(norm: list[str] | None) -> str:
    return "no further batch norm" if norm is None else f"{norm[1]} at {norm[0]!r}"
