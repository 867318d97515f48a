"""DataLoader: batches of a dataset, shuffled by seed, made ahead by threads, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from threading import TIMEOUT_MAX
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

import numpy as np

from gtensor.backend import Device, get_device
from gtensor.creation.generators import Generator, drawing_from
from gtensor.data.collate import default_collate, emptied, to_device
from gtensor.data.datasets import draw_seed, shuffled
from gtensor.data.workers import WorkerTimeout, made_ahead
from gtensor.ops.define.arguments import refuse_unsupported
from gtensor.system import ranges
from gtensor.system.bus import BatchEvent, bus, tell
from gtensor.system.documents import UNLOADED, Facts, is_number, told

_FACTS = ("seed", "epoch", "batch", "batch_size", "items", "shuffle", "drop_last")  # of a state
_FLAGS = ("shuffle", "drop_last")
_END = object()
if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    B = DefaultTypeVar("B", default=Any)  # a batch
else:
    B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)


class Gathers(Protocol[B_co]):
    """A dataset that makes a whole batch at once."""

    def __len__(self) -> int: ...

    def gather(self, indices: np.ndarray, /) -> B_co: ...


class DataLoader(Generic[B]):
    """Iterating over it is one pass over the dataset (an epoch), batch by batch.

    Args:
        dataset: items by number (`__len__` and `__getitem__`; `gather(indices)` makes a whole batch
            at once, as ArrayDataset's does), or any iterable of items that can be begun again.
        batch_size: items of a batch; the last one may be smaller.
        shuffle: another order in every epoch, which follows from seed and epoch alone.
        sampler: item numbers in the order to be used, iterated once an epoch, instead of `shuffle`;
            its `set_epoch(epoch)`, if it has one, is called before.
        num_workers: threads that make batches ahead of their use; 0 makes each when it is needed.
            Threads help if the time is spent in reading memory-mapped files and in NumPy, which
            release the GIL.
        collate_fn: makes a batch from a list of items; by default `gather`, else `default_collate`.
        drop_last: leave out a last batch that is smaller.
        seed: of the shuffle; by default drawn once from `generator`, or else from the generator of
            `gtensor.manual_seed`.
        device: of the batches' tensors; by default the default device.
        prefetch_factor: batches that wait at most, per worker; 2 by default.
        timeout: seconds after which a batch that workers have not made is a RuntimeError; 0 waits
            for ever.
        shard: (rank, size): of each batch only this rank's part, contiguous, of as many items as
            the others' or one more. It has no items where the batch has fewer than ranks. Order,
            length and state are those of the whole batches, so they do not depend on the number of
            ranks; all ranks need the same seed.
        generator: from which the seed is drawn.
        pin_memory, pin_memory_device, persistent_workers, multiprocessing_context: PyTorch's, which
            change nothing: the loader itself copies batches to the device, and its workers are
            threads of this process, begun with each pass.
        batch_sampler, worker_init_fn, in_order: PyTorch's, which must be None, None and True.

    `state_dict()` has the number of batches that this pass has returned, not those made ahead. A
    loader that loads it continues with the remaining ones; an iterable is iterated again up to
    there, so it must repeat itself, and so must a sampler.

    Leaving the loop waits up to 5 seconds for the items that workers are at; Ctrl-C while it waits
    for a batch does not. An item that takes longer is finished beside what follows.

    After a `break` the pass is over: the next loop is a new epoch from its first batch. Until it
    begins, `state_dict()` still has the position of the break, and a loader that loads that (this
    one, too) continues with the remaining batches.

    Raises ValueError or TypeError for invalid options. The loop raises an exception of the dataset
    with a note that names the item or the batch.
    """

    @overload
    def __init__(
        self, dataset: Gathers[B], batch_size: int = 1, shuffle: bool = False,
        sampler: Iterable[int] | None = None, *, num_workers: int = 0, collate_fn: None = None,
        drop_last: bool = False, seed: int | None = None, device: Device | str | None = None,
        prefetch_factor: int = 2, timeout: float = 0, shard: tuple[int, int] = (0, 1),
    ) -> None: ...

    @overload
    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False,
        sampler: Iterable[int] | None = None, *, num_workers: int = 0,
        collate_fn: Callable[[list[Any]], B] | None = None, drop_last: bool = False,
        seed: int | None = None, device: Device | str | None = None, prefetch_factor: int = 2,
        timeout: float = 0, shard: tuple[int, int] = (0, 1),
    ) -> None: ...

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool | None = False,
        sampler: Iterable[int] | None = None, *, num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None, drop_last: bool = False,
        seed: int | None = None, device: Device | str | None = None,
        prefetch_factor: int | None = None, timeout: float = 0, shard: tuple[int, int] = (0, 1),
        generator: Generator | None = None, pin_memory: bool = False, pin_memory_device: str = "",
        persistent_workers: bool = False, multiprocessing_context: object = None,
        batch_sampler: None = None, worker_init_fn: None = None, in_order: bool = True,
    ) -> None:
        if batch_sampler is not None:
            raise ValueError("DataLoader was given a batch_sampler; wanted batch_size and a sampler"
                             " of item numbers in their order")
        if worker_init_fn is not None:
            raise ValueError("DataLoader was given worker_init_fn; wanted None: its workers are "
                             "threads of this process, whose state is set before the loop")
        refuse_unsupported(True, "DataLoader", in_order=in_order)
        prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        for name, value, least in (("batch_size", batch_size, 1), ("num_workers", num_workers, 0),
                                   ("prefetch_factor", prefetch_factor, 1),
                                   ("seed", 0 if seed is None else seed, 0)):
            if type(value) is not int or value < least:  # bool is refused
                raise ValueError(f"{name}={value!r} given; wanted an integer of {least} or more")
        if not is_number(timeout) or not 0 <= timeout <= TIMEOUT_MAX:
            raise ValueError(
                f"timeout={timeout!r} given; wanted seconds, from 0 to {TIMEOUT_MAX:.0f}")
        if timeout and not num_workers:
            raise ValueError(f"timeout={timeout} given with num_workers=0, whose batches are made "
                             "by the loop itself; wanted workers, or timeout=0")
        if (not isinstance(shard, (tuple, list)) or [type(n) for n in shard] != [int, int]
                or not 0 <= shard[0] < shard[1]):
            raise ValueError(f"shard={shard!r} given; wanted (rank, size) with a rank from 0 to "
                             "size - 1")
        self._numbered = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not self._numbered and not hasattr(dataset, "__iter__"):
            raise TypeError(f"DataLoader was given {type(dataset).__name__}; wanted a dataset with "
                            "__len__ and __getitem__, or an iterable")
        if not self._numbered and (shuffle or sampler is not None):
            raise ValueError("shuffle or a sampler given for an iterable, whose order is its own; "
                             "wanted a dataset with __len__ and __getitem__")
        if shuffle and sampler is not None:
            raise ValueError("shuffle and a sampler given; wanted one of them")
        sources: list[tuple[str, Any]] = [("sampler", sampler)]
        if not self._numbered:
            sources.append(("dataset", dataset))
        for what, source in sources:
            if hasattr(source, "__next__") and iter(source) is source:
                raise TypeError(f"DataLoader was given a {type(source).__name__} as its {what}, "
                                "which is used up after one epoch; wanted an object whose __iter__ "
                                "begins anew, such as a list or an IterableDataset")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = bool(shuffle)
        self.sampler = sampler
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.drop_last = bool(drop_last)
        with drawing_from(generator):
            self.seed = draw_seed() if shuffle and seed is None else seed or 0
        self.device = None if device is None else get_device(device)
        self.prefetch_factor = prefetch_factor
        self.timeout = timeout
        self.shard = tuple(shard)
        self._gathers = self._numbered and collate_fn is None and hasattr(dataset, "gather")
        self._epoch = self._batch = 0
        self._fresh = True  # the next pass begins (or resumes) at this epoch and batch
        self._pass = 0  # the number of the latest pass

    def __len__(self) -> int:
        """Batches of an epoch; TypeError for an iterable without a length."""
        items = self._items()
        if items is None:
            raise TypeError(f"a DataLoader over {type(self.dataset).__name__} has no length, since "
                            "that has none")
        return items // self.batch_size if self.drop_last else -(-items // self.batch_size)

    def _items(self) -> int | None:
        counted: Any = self.dataset if self.sampler is None else self.sampler
        return len(counted) if hasattr(counted, "__len__") else None

    def __repr__(self) -> str:
        return (f"DataLoader({type(self.dataset).__name__} of {self._items()} items, "
                f"batch_size={self.batch_size}, shuffle={self.shuffle}, "
                f"sampler={self.sampler!r}, num_workers={self.num_workers}, "
                f"drop_last={self.drop_last}, seed={self.seed}; epoch {self._epoch}, "
                f"batch {self._batch})")

    # -- a pass -----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[B]:
        if not self._fresh:
            self._epoch, self._batch = self._epoch + 1, 0
        self._fresh = False
        self._pass += 1
        return self._batches(self._pass)

    def _batches(self, this_pass: int) -> Iterator[B]:
        jobs, ahead = self._jobs(), self.num_workers * self.prefetch_factor
        # not map(): a StopIteration of the dataset would end the epoch silently
        made = made_ahead(jobs, self._made, self.num_workers, ahead, self.timeout or None) if (
            ahead) else (self._made(job) for job in jobs)
        with closing(made):
            while True:
                start = perf_counter()
                with ranges.range("batch", self._batch, "data"):
                    try:
                        batch: Any = next(made, _END)
                    except WorkerTimeout as error:
                        error.add_note(f"in batch {self._batch} of epoch {self._epoch}")
                        raise
                    if batch is not _END:
                        batch = to_device(batch, get_device(self.device))
                if batch is _END:
                    break
                if this_pass != self._pass:
                    raise RuntimeError("this pass over the DataLoader was left for a newer one, or "
                                       "a state was loaded since; iterate over the newer pass")
                self._batch += 1
                if bus.batches:
                    tell(bus.batches, BatchEvent(self, self._epoch, self._batch - 1,
                                                 perf_counter() - start))
                yield batch
        if this_pass == self._pass:
            self._epoch, self._batch, self._fresh = self._epoch + 1, 0, True

    def _jobs(self) -> Iterator[tuple[int, Any]]:
        """(number, items) of the batches from this place on: item numbers, or items."""
        number = self._batch
        size = self.batch_size
        if self._numbered and self.sampler is None:
            order = self.order(self._epoch)
            for start in range(number * size, len(order), size):
                if start + size <= len(order) or not self.drop_last:
                    yield start // size, order[start:start + size]
            return
        source = self.dataset if self.sampler is None else self.sampler
        if hasattr(source, "set_epoch"):
            source.set_epoch(self._epoch)
        items = islice(source, number * size, None)
        while chosen := list(islice(items, size)):
            if len(chosen) == size or not self.drop_last:
                yield number, chosen if self.sampler is None else np.asarray(chosen, np.int64)
            number += 1

    def order(self, epoch: int) -> np.ndarray:
        """The item numbers of an epoch in their order, where no sampler gives them."""
        items = len(self.dataset)
        return shuffled(items, self.seed, epoch) if self.shuffle else np.arange(items)

    def batch_of(self, indices: np.ndarray) -> B:
        """The batch of the items of these numbers, beside any pass."""
        return to_device(self._collated(np.asarray(indices, np.int64)), get_device(self.device))

    def _collated(self, chosen: Any) -> Any:
        """The shard's part of a batch of these items."""
        rank, size = self.shard
        part = chosen[len(chosen) * rank // size:len(chosen) * (rank + 1) // size]
        if self._gathers:
            return self.dataset.gather(part)
        known = part if len(part) else chosen[:1]  # of which an empty batch has shapes and dtypes
        items = [self._item(int(i)) for i in known] if self._numbered else known
        batch = (self.collate_fn or default_collate)(items)
        return batch if len(part) else emptied(batch)

    def _made(self, job: tuple[int, Any]) -> Any:
        number, chosen = job
        try:
            return self._collated(chosen)
        except Exception as error:
            which = f", of the items {_listed(chosen)}" if self._numbered else ""
            error.add_note(f"in batch {number} of epoch {self._epoch}{which}")
            raise

    def _item(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            error.add_note(f"in item {index} of {type(self.dataset).__name__}")
            raise

    # -- taking up again --------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch, from its first batch."""
        self._move(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """The loader's position as JSON: the epoch, and the number of batches returned in it."""
        return {"seed": self.seed, "epoch": self._epoch, "batch": self._batch,
                "batch_size": self.batch_size, "items": self._items(),
                "shuffle": bool(self.shuffle), "drop_last": bool(self.drop_last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass be the rest of the one that `state_dict()` was taken in.

        Raises ValueError, with nothing changed, for an incomplete state, and for one with another
        number of items, batch size, `shuffle` or `drop_last`, which has other batches.
        """
        facts = Facts("the loader's state given", state, UNLOADED)
        missing = [name for name in _FACTS if name not in facts]
        if missing:
            raise ValueError(f"a loader's state without {', '.join(missing)} given; wanted what "
                             "state_dict() returned; nothing was loaded")
        own = self.state_dict()
        for name in ("batch_size", "items", "shuffle", "drop_last"):
            given = state[name]
            if name in _FLAGS and isinstance(given, (int, np.bool_)):
                given = bool(given)
            if type(given) is not type(own[name]) or given != own[name]:
                raise ValueError(f"a loader's state with {name} {told(given)} given; this "
                                 f"loader has {own[name]}; nothing was loaded")
        if type(state["seed"]) is not int or state["seed"] < 0:
            raise ValueError(f"a loader's state with seed {told(state['seed'])} given; wanted an "
                             "integer of 0 or more; nothing was loaded")
        self._move(state["epoch"], state["batch"])
        self.seed = state["seed"]

    def _move(self, epoch: int, batch: int) -> None:
        if any(type(n) is not int or n < 0 for n in (epoch, batch)):
            raise ValueError(f"epoch {told(epoch)} and batch {told(batch)} given; wanted integers "
                             "of 0 or more; nothing was changed")
        if self._items() is not None and batch > len(self):
            raise ValueError(f"batch {told(batch)} given; wanted at most {len(self)}, the batches "
                             "of an epoch; nothing was changed")
        self._epoch, self._batch, self._fresh = epoch, batch, True
        self._pass += 1


def _listed(numbers: np.ndarray) -> str:
    """The numbers as text, the first eight of them."""
    return ", ".join(map(str, numbers[:8])) + ", ..." * (len(numbers) > 8)
