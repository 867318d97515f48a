"""DataParallel: one module on several ranks, each with its part of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gtensor.distributed.buckets import Bucket, Reducer
from gtensor.distributed.communicator import exchanged
from gtensor.distributed.errors import DistributedError
from gtensor.distributed.weights import Weight, weighed
from gtensor.engine.handle.context import grad_enabled, no_grad
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn.module import Module

if TYPE_CHECKING:
    from gtensor.distributed.communicator import Communicator


class DataParallel(Module):
    """A module whose gradients are averaged over the ranks in each `backward()`.

    Every rank has a copy, which starts with the parameters and buffers of rank 0, and calls it with
    its part of the batch. Gradients are exchanged in buckets while the walk goes on; after it each
    rank's `.grad` is the mean over the ranks, bit for bit the same on all of them. It is that of
    the joint batch if the loss is a mean over examples: what the module returns passes on a rank's
    gradient times its number of examples over the ranks' mean number. That of an empty part is 0,
    also where its mean is NaN. Other terms of the loss, such as a penalty, count once.

    A parameter that only other ranks have used gets their gradient; one that none has used stays
    without. Without `zero_grad()` between steps, gradients add up, as without ranks. Every rank
    must make the same calls of the module and as many `backward()`. `gt.grad()` exchanges nothing.

    `state_dict()` and `load_state_dict()` are the module's own, so that a checkpoint does not
    depend on the number of ranks. Running statistics of batch norms are each rank's own, unless
    `convert_sync` was applied.

    Args:
        module: has at least one parameter that requires a gradient; moved and converted before.
        comm: of the ranks. The exchange has a communicator of its own.
        bucket_cap_mb: MiB of a bucket at most; a larger parameter has one for itself.
        gradient_as_bucket_view: gradients lie in their bucket, which saves a copy and as much
            memory; one that is kept after `zero_grad()` is overwritten by the next `backward()`.
            False: buckets are copies.
        examples: from the arguments of a call, the number of examples in it; by default the first
            length of the first Tensor among them.

    Raises DistributedError, on every rank, for parameters that differ between the ranks in name,
    shape or dtype, and for a module that is wrapped already.

    Raises TypeError for what is no Module, ValueError for one without parameters that require a
    gradient, and for buckets of 0 bytes, DistributedError for one that is wrapped already.
    """

    def __init__(
        self, module: Module, comm: Communicator, bucket_cap_mb: float = 25.0,
        gradient_as_bucket_view: bool = True, examples: Callable[..., int] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, Module):
            raise TypeError(f"DataParallel was given {type(module).__name__}; wanted a Module")
        if not bucket_cap_mb > 0:
            raise ValueError(f"bucket_cap_mb={bucket_cap_mb} given; wanted a positive number")
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError(f"DataParallel was given a {type(module).__name__} without parameters "
                             "that require a gradient; wanted at least one")
        for name, parameter in trained.items():
            if parameter._tracked_node("DataParallel").collector is not None:
                raise DistributedError(f"parameter {name} of {type(module).__name__} is in a "
                                       "DataParallel already; wanted a module that is not wrapped")
        check_equal(module, comm)
        self.module = module
        self.comm = comm.duplicate()
        with no_grad():
            values = [*module.parameters(), *module.buffers()]
            for work in [self.comm.broadcast(value, async_op=True) for value in values]:
                work.wait()
        self._reducer = Reducer(trained, self.comm, int(bucket_cap_mb * 2**20),
                                gradient_as_bucket_view)
        self._trained = trained
        self._examples = examples or first_length

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The module's, of this rank's part of the batch."""
        if grad_enabled():
            self._reducer.check(self._trained)
            self._reducer.called = True
            device = next(iter(self._trained.values())).device
            weight = exchanged(Weight, self.comm, self._examples(*inputs, **options), device)
            return weighed(self.module(*inputs, **options), weight)
        return self.module(*inputs, **options)

    @property
    def buckets(self) -> Sequence[Bucket]:
        """Of the gradients, in the order of their exchange."""
        return self._reducer.buckets

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the block, `backward()` exchanges nothing: gradients add up on their ranks.

        The next one outside exchanges their sum.
        """
        before = self._reducer.exchanges
        self._reducer.exchanges = False
        try:
            yield
        finally:
            self._reducer.exchanges = before

    def state_dict(self, *given: Any, **options: Any) -> Any:
        """The module's."""
        return self.module.state_dict(*given, **options)

    def load_state_dict(self, *given: Any, **options: Any) -> Any:
        """The module's."""
        return self.module.load_state_dict(*given, **options)


def first_length(*inputs: Any, **options: Any) -> int:
    """The first length of the first Tensor among the arguments of a call."""
    for value in (*inputs, *options.values()):
        if isinstance(value, Tensor) and value.ndim:
            return value.shape[0]
    raise TypeError("DataParallel was called without a Tensor that has axes, so the number of "
                    "examples is not known; give examples=, a function of the arguments")


def check_equal(module: Module, comm: Communicator) -> None:
    """Raise DistributedError on every rank unless all have the same parameters and buffers."""
    mine = {name: [list(value.shape), str(value.dtype), value.requires_grad]
            for name, value in (*module.named_parameters(), *module.named_buffers())}
    first, *others = comm.all_gather_object(mine)
    for rank, other in enumerate(others, 1):
        told = differing(first, other)
        if told is not None:
            raise DistributedError(f"rank {rank} has {told}; wanted the same module on all ranks")


def differing(first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """What of the other's parameters is not as the first's, in words; None if nothing is."""
    for name in [*first, *other]:
        if first.get(name) != other.get(name):
            if name not in other:
                return f"no parameter {name}, which rank 0 has"
            if name not in first:
                return f"a parameter {name}, which rank 0 has not"
            (shape, dtype, trained), (shape0, dtype0, trained0) = other[name], first[name]
            return (f"a parameter {name} of shape {tuple(shape)} and dtype {dtype}"
                    f"{'' if trained else ' without gradient'}; rank 0 has shape {tuple(shape0)} "
                    f"and dtype {dtype0}{'' if trained0 else ' without gradient'}")
    return None if [*first] == [*other] else "its parameters in another order than rank 0"
