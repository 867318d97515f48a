"""Gradients in buckets, each reduced over the ranks as soon as it is complete.

A bucket is one contiguous buffer of a dtype; a gradient is a view of it, written there by the
backward rules. So gradients and buckets together take the memory of the gradients. Buckets are
filled in the reverse order of the parameters, which is about that of the walk, and exchanged in
their order, which is the same on all ranks.

Source: Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.layouts import address
from gtensor.distributed.communicator import exchanged
from gtensor.distributed.errors import DistributedError
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.tape.execute import run_noted
from gtensor.memory.contract.adaptors import category
from gtensor.memory.trace.owners import Found, find_with
from gtensor.system import structure
from gtensor.system.bus import bus, here

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array
    from gtensor.distributed.communicator import Communicator
    from gtensor.distributed.work import Work
    from gtensor.engine.handle.node import Node

FIRST_BYTES = 1 << 20  # of the first bucket at most: it is complete early
LEAST = 8  # buckets, if the parameters allow, so that small networks overlap, too


class Bucket:
    """Gradients of one device and dtype, one behind the other.

    Behind them is a number for each, 1 if this rank's walk reaches the leaf or an earlier one has
    given it a gradient, else 0. So one exchange also tells which leaves are used at all.
    """

    def __init__(self, leaves: Sequence[Node]) -> None:
        self.leaves = leaves
        self.device: Device = leaves[0].device
        self.views: dict[Node, Array] = {}
        self.flat: Any = None
        self.missing: set[Node] = set()  # whose gradients are not complete in this walk
        self.work: Work | None = None
        self.renew()

    def renew(self) -> None:
        """New memory; gradients keep what they have of the old one."""
        sizes = [prod(leaf.shape) for leaf in self.leaves]
        with category("gradients"):
            self.flat = self.device.empty(
                (sum(sizes) + len(sizes),), self.leaves[0].dtype, "gradient bucket")
        self.used = self.flat[sum(sizes):]
        start = 0
        for leaf, size in zip(self.leaves, sizes, strict=True):
            self.views[leaf] = self.flat[start:start + size].reshape(leaf.shape)
            start += size

    def begin(self, reached: set[Node]) -> None:
        """A walk begins that reaches these leaves."""
        self.work = None
        self.missing = {*self.leaves} & reached
        self._set(self.used, 1)
        for number, leaf in enumerate(self.leaves):
            if leaf not in reached:
                self.fill(leaf)
                if leaf.grad is None:
                    self._set(self.used[number:number + 1], 0)

    def fill(self, leaf: Node) -> None:
        """Zeros for a leaf that a walk gives no gradient."""
        self._set(self.views[leaf], 0)
        self.missing.discard(leaf)

    def _set(self, array: Array, value: int) -> None:
        run_noted("fill", self.device, self.device.fill, array, value)

    def shared(self) -> list[Node]:
        """The leaves that some rank's walk has reached, once the bucket was exchanged."""
        told = self._told(self.used)
        if bus.listeners and here.recorder is not None:
            here.recorder.exchange(self._check_told, (self.used, told), {})
        return [leaf for leaf, share in zip(self.leaves, told, strict=True) if share]

    def _told(self, used: Array) -> list[bool]:
        return self.device.to_numpy(used).astype(np.float64).astype(bool).tolist()

    def _check_told(self, used: Array, told: list[bool]) -> None:
        """In a replay: the ranks must use what they used when it was recorded."""
        found = self._told(used)
        changed = [leaf.shape for leaf, now, then in zip(self.leaves, found, told, strict=True)
                   if now != then]
        if changed:
            raise DistributedError(
                f"a captured step found that other ranks use other parameters (one of shape "
                f"{changed[0]}) than when it was recorded; train without capture, or let all ranks "
                "use the same")


def _held(buckets: Sequence[Bucket]) -> Iterator[Found]:
    """Where buckets lie, for recordings of memory."""
    for bucket in buckets:
        if getattr(bucket, "flat", None) is not None:
            yield Found(address(bucket.flat), "gradients", "")


find_with(_held, Bucket)


class Reducer:
    """The collector of a module's parameters: their gradients become the mean over the ranks."""

    def __init__(self, parameters: Mapping[str, Tensor], comm: Communicator, cap_bytes: int,
                 as_views: bool) -> None:
        self.comm = comm
        self.as_views = as_views
        self.exchanges = True  # else gradients stay on this rank
        self.called = False
        self.names: dict[Node, str] = {p._tracked_node("DataParallel"): name
                                       for name, p in parameters.items()}
        self.buckets = [Bucket(leaves) for leaves in divided([*self.names], cap_bytes)]
        self._bucket_of = {leaf: bucket for bucket in self.buckets for leaf in bucket.leaves}
        self._stored: dict[Node, Array] = {}  # the reduced gradients that leaves were given last
        self._launched = 0  # buckets, in this walk
        self._walking = False
        self._broken = False
        self._open = False  # from the beginning of an exchange to its end, also in a replay
        self._reached: set[Node] = set()  # of this walk
        structure.changed("a module's gradients are reduced over ranks")
        for leaf in self.names:
            leaf.collector = self

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        """Raise unless the module has the parameters with which it was wrapped."""
        if not self._walking:
            exchanged(self._check_whole)
        for name, parameter in parameters.items():
            if parameter.requires_grad and parameter._node not in self._bucket_of:
                raise DistributedError(f"parameter {name} was moved, converted or made trainable "
                                       "after DataParallel wrapped its module; wrap it afterwards")

    def _check_whole(self) -> None:
        if self._broken or self._open:
            raise DistributedError("backward() has raised on this rank while gradients were "
                                   "exchanged, so the ranks are not at one place any more; end "
                                   "the program, and go on from a checkpoint")

    # -- the walk ---------------------------------------------------------------------------------

    def begin(self, leaves: Iterable[Node]) -> None:
        if self._walking:
            raise GradientError("backward() reached a DataParallel module within another "
                                "backward() of it; wanted one after the other")
        if not self.called:
            raise GradientError("backward() reached parameters of a DataParallel module that was "
                                "not called; call the DataParallel object, not its module")
        self._walking = True
        if not self.exchanges:
            return
        self._reached = {leaf for leaf in leaves if leaf.collector is self}
        self._launched = 0
        exchanged(self._enter)
        for bucket in self.buckets:
            if any(map(self._is_reduced, bucket.leaves)):
                if bus.listeners and here.recorder is not None:
                    here.recorder.refuse(
                        "backward() adds to gradients that the ranks have exchanged; call "
                        "zero_grad() within the step, and all but its last backward() in no_sync()")
                bucket.renew()  # the old memory has gradients that this walk adds to
            bucket.begin(self._reached)
        self._launch()

    def place(self, leaf: Node) -> Array | None:
        return self._bucket_of[leaf].views[leaf] if self.exchanges and self.as_views else None

    def complete(self, leaf: Node, array: Array) -> None:
        if not self.exchanges:
            return
        bucket = self._bucket_of[leaf]
        if not self.as_views:
            with no_grad():
                wrap(bucket.views[leaf], leaf.device)[...] = wrap(array, leaf.device)
        bucket.missing.discard(leaf)
        self._launch()

    def finish(self) -> Mapping[Node, Tensor]:
        if not self.exchanges:
            self._walking = False
            return {}
        for bucket in self.buckets:
            for leaf in [*bucket.missing]:
                bucket.fill(leaf)
        self._launch()
        for bucket in self.buckets:
            assert bucket.work is not None
            bucket.work.wait()
        found = {leaf: self._final(leaf) for leaf in self._shared()}
        exchanged(self._leave, [*found], *found.values())
        self._walking = False
        return found

    def cancel(self) -> None:
        self._broken = self._broken or self.exchanges and self._walking
        self._walking = self._open = False

    def _enter(self) -> None:
        """Buckets are exchanged from now on."""
        self._open = True

    def _leave(self, leaves: Sequence[Node], *gradients: Any) -> None:
        """They were: these are the gradients of the leaves."""
        self._stored.update(zip(leaves, [getattr(g, "_array", g) for g in gradients], strict=True))
        self._open = False

    def _is_reduced(self, leaf: Node) -> bool:
        """Whether its `.grad` is that of an earlier exchange."""
        grad: Tensor | None = leaf.grad
        return grad is not None and grad._array is self._stored.get(leaf)

    # -- steps ------------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Exchange the buckets that are complete, in their order."""
        while self._launched < len(self.buckets):
            bucket = self.buckets[self._launched]
            if bucket.missing:
                return
            with no_grad():
                for leaf in bucket.leaves:
                    if leaf.grad is not None and not self._is_reduced(leaf):
                        view = wrap(bucket.views[leaf], leaf.device)
                        view += leaf.grad  # of walks within no_sync()
            bucket.work = self.comm.all_reduce(bucket.flat, "mean", async_op=True)
            self._launched += 1

    def _shared(self) -> Iterator[Node]:
        """The leaves that some rank's walk has reached, or that have a gradient.

        The host reads what the other ranks say only of leaves that this rank has not reached.
        """
        for bucket in self.buckets:
            known = {leaf for leaf in bucket.leaves
                     if leaf in self._reached or leaf.grad is not None}
            if len(known) < len(bucket.leaves):
                known.update(bucket.shared())
            yield from (leaf for leaf in bucket.leaves if leaf in known)

    def _final(self, leaf: Node) -> Tensor:
        """The reduced gradient, with that of earlier steps which were not dropped."""
        view = self._bucket_of[leaf].views[leaf]
        if not self.as_views:
            view = run_noted("gradient", leaf.device, leaf.device.copy, view, None, "gradient")
        found = wrap(view, leaf.device)
        if self._is_reduced(leaf):
            with no_grad():
                found += leaf.grad
        return found


def divided(leaves: Sequence[Node], cap_bytes: int) -> list[list[Node]]:
    """The leaves of each bucket, from the last leaf to the first.

    A bucket is closed once it has so many bytes, the first of each device and dtype before it has
    more than its limit.
    """
    cap = min(cap_bytes, sum(map(_bytes, leaves)) // LEAST)
    kinds: dict[Any, list[list[Node]]] = {}
    buckets: list[list[Node]] = []
    for leaf in reversed(leaves):
        mine = kinds.setdefault((leaf.device, leaf.dtype), [])
        filled = sum(map(_bytes, mine[-1])) if mine else 0
        first = min(FIRST_BYTES, cap // 2)
        over = filled + _bytes(leaf) > first if len(mine) == 1 else filled >= cap
        if not mine or over:
            mine.append([])
            buckets.append(mine[-1])
        mine[-1].append(leaf)
    return buckets


def _bytes(leaf: Node) -> int:
    return prod(leaf.shape) * leaf.dtype.itemsize
