"""The loader: batches, shuffling by seed, workers, taking up again, errors, no thread left."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor.data import ArrayDataset, DataLoader, Dataset, IterableDataset, random_split
from gtensor.data import workers as pool

COUNT = 23
WORKERS = [0, 1, 3]


class Items(Dataset):
    """Items made one by one, the later ones of a batch faster, so that workers finish unordered."""

    def __init__(self, count=COUNT, broken=None, error=None):
        self.count, self.broken, self.error = count, broken, error

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.broken:
            raise self.error
        time.sleep(0.0005 * (index % 3))
        return index


class Stream(IterableDataset):
    """A stream that notes how far it was read."""

    def __init__(self, count=COUNT):
        self.count, self.read = count, 0

    def __iter__(self):
        for i in range(self.count):
            self.read = i + 1
            yield i


SOURCES = {"arrays": lambda: ArrayDataset(np.arange(COUNT)), "items": Items, "stream": Stream,
           "list": lambda: list(range(COUNT)), "range": lambda: range(COUNT)}


def numbers(batch):
    return (batch[0] if isinstance(batch, tuple) else batch).tolist()


def epoch(loader):
    return [numbers(batch) for batch in loader]


def loader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("gtensor-data")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not loader_threads()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_come_in_order_and_whole(source, workers, drop_last):
    loader = DataLoader(SOURCES[source](), 4, drop_last=drop_last, num_workers=workers)
    wanted = [list(range(i, min(i + 4, COUNT))) for i in range(0, COUNT, 4)]
    if drop_last:
        wanted.pop()
    for _ in range(2):
        assert epoch(loader) == wanted
    if source == "stream":
        with pytest.raises(TypeError, match="Stream has no length"):
            len(loader)
    else:
        assert len(loader) == len(wanted)


@pytest.mark.parametrize("count,size", [(0, 3), (1, 3), (3, 3), (4, 3)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_lengths_equal_pytorchs(count, size, drop_last):
    ours = DataLoader(ArrayDataset(np.arange(count)), size, drop_last=drop_last)
    theirs = torch.utils.data.DataLoader(range(count), size, drop_last=drop_last)
    assert len(ours) == len(theirs) == len(epoch(ours))


@pytest.mark.parametrize("workers", WORKERS)
def test_shuffling_follows_from_seed_and_epoch(workers):
    first, second, other = (
        DataLoader(ArrayDataset(np.arange(COUNT)), 4, shuffle=True, seed=s, num_workers=workers)
        for s in (5, 5, 6))
    epochs = [epoch(first) for _ in range(3)]
    assert epochs == [epoch(second) for _ in range(3)]
    assert all(sorted(sum(e, [])) == list(range(COUNT)) for e in epochs)
    assert len({json.dumps(e) for e in [*epochs, epoch(other)]}) == 4
    second.set_epoch(1)
    assert epoch(second) == epochs[1]


def test_the_default_seed_is_the_librarys():
    def made():
        gt.manual_seed(11)
        return epoch(DataLoader(range(COUNT), 4, shuffle=True))

    assert made() == made()


def test_batches_are_copies_on_the_device_asked_for():
    x = np.zeros((8, 2), "f")
    (batch,) = next(iter(DataLoader(ArrayDataset(x), 8, device="cpu")))
    batch[...] = 1
    assert x.sum() == 0 and batch.device is gt.device("cpu") and not batch.requires_grad


def test_collate_fn_takes_items():
    made = list(DataLoader(ArrayDataset(np.arange(4)), 2, collate_fn=lambda items: len(items)))
    assert made == [2, 2]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sampler_gives_the_order(workers):
    class Evens:
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter(range(2 * self.epoch, COUNT, 2))

    loader = DataLoader(Items(), 5, sampler=Evens(), num_workers=workers)
    assert [sum(epoch(loader), []) for _ in range(2)] == [list(range(0, COUNT, 2)),
                                                         list(range(2, COUNT, 2))]
    assert len(DataLoader(Items(), 5, sampler=[1, 2, 3])) == 1


def test_subsets_are_loaded():
    train, _ = random_split(ArrayDataset(np.arange(COUNT)), [20, 3], seed=0)
    assert sorted(sum(epoch(DataLoader(train, 6)), [])) == sorted(train.indices)


# -- taking up again -------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("stop", [0, 1, 4, 6])
def test_taken_up_midway_gives_exactly_the_remaining_batches(source, workers, stop):
    def made(seed=3):
        shuffle = {} if source == "stream" else {"shuffle": True, "seed": seed}
        return DataLoader(SOURCES[source](), 4, num_workers=workers, **shuffle)

    whole = made()
    epochs = [epoch(whole) for _ in range(3)]
    first = made()
    assert epoch(first) == epochs[0]
    seen, state = [], first.state_dict()
    for batch in first if stop else ():
        seen.append(numbers(batch))
        state = first.state_dict()  # the workers are ahead of it by now
        if len(seen) == stop:
            break
    assert seen == epochs[1][:stop]
    second = made(seed=99)
    second.load_state_dict(json.loads(json.dumps(state)))
    assert epoch(second) == epochs[1][stop:]
    assert epoch(second) == epochs[2]
    first.load_state_dict(state)  # into the loader itself as well
    assert epoch(first) == epochs[1][stop:]


def test_a_pass_left_midway_is_over():
    loader = DataLoader(range(COUNT), 4, shuffle=True, seed=0)
    fresh = DataLoader(range(COUNT), 4, shuffle=True, seed=0)
    epochs = [epoch(fresh) for _ in range(2)]
    assert numbers(next(iter(loader))) == epochs[0][0]
    assert epoch(loader) == epochs[1]


def test_the_state_after_a_break_goes_on_with_the_pass():
    loader = DataLoader(range(COUNT), 4, shuffle=True, seed=0)
    whole = epoch(DataLoader(range(COUNT), 4, shuffle=True, seed=0))
    assert numbers(next(iter(loader))) == whole[0]
    assert "epoch 0, batch 1" in repr(loader) and "range of 23 items" in repr(loader)
    loader.load_state_dict(loader.state_dict())
    assert epoch(loader) == whole[1:]


def test_an_older_pass_is_refused():
    loader = DataLoader(range(COUNT), 4)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    assert numbers(next(newer)) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="left for a newer one"):
        next(older)


@pytest.mark.parametrize("flag", [1, True, np.bool_(True), 0, False, np.bool_(False)])
def test_a_flag_is_compared_as_true_or_false(flag):
    loader = DataLoader(range(COUNT), 4, shuffle=flag, drop_last=flag, seed=1)
    other = DataLoader(range(COUNT), 4, shuffle=bool(flag), drop_last=bool(flag), seed=1)
    state = loader.state_dict()
    json.dumps(state)
    other.load_state_dict(state)
    loader.load_state_dict({**other.state_dict(), "shuffle": flag, "drop_last": flag})
    assert epoch(loader) == epoch(other)
    with pytest.raises(ValueError, match=f"shuffle {not flag} given; this loader has {bool(flag)}"):
        loader.load_state_dict({**state, "shuffle": not flag})


@pytest.mark.parametrize("change,message", [
    ({"shuffle": "yes"}, "shuffle 'yes' given"), ({"drop_last": None}, "drop_last None given"),
    ({"batch_size": 5}, "batch_size 5 given; this loader has 4"),
    ({"items": 7}, "items 7 given; this loader has 23"),
    ({"batch": -1}, "batch -1"), ({"epoch": "2"}, "epoch '2'"), ({"epoch": True}, "epoch True"),
    ({"batch": 7}, "batch 7 given; wanted at most 6"), ({"batch": False}, "batch False"),
    ({"seed": "x"}, "seed 'x'"), ({"seed": -1}, "seed -1"), ({"seed": True}, "seed True"),
    ({"shuffle": False}, "shuffle False given; this loader has True"),
    ({"drop_last": True}, "drop_last True given; this loader has False"),
])
def test_a_state_that_does_not_fit_changes_nothing(change, message):
    loader = DataLoader(range(COUNT), 4, shuffle=True, seed=1)
    next(iter(loader))
    before = loader.state_dict()
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict({**before, "seed": 8, **change})
    with pytest.raises(ValueError, match="without seed, batch, shuffle, drop_last"):
        loader.load_state_dict({"epoch": 1, "batch_size": 4, "items": COUNT})
    assert loader.state_dict() == before


# -- workers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_comes_out_in_its_place_and_names_the_item(workers):
    loader = DataLoader(Items(broken=13, error=KeyError("no such file")), 4, num_workers=workers)
    seen = []
    with pytest.raises(KeyError, match="no such file") as caught:
        for batch in loader:
            seen.append(numbers(batch))
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert caught.value.__notes__ == [
        "in item 13 of Items", "in batch 3 of epoch 0, of the items 12, 13, 14, 15"]
    assert not loader_threads()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stop_iteration_of_an_item_does_not_end_the_epoch(workers):
    loader = DataLoader(Items(broken=5, error=StopIteration()), 4, num_workers=workers)
    with pytest.raises(RuntimeError, match="StopIteration"):
        epoch(loader)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_of_a_stream_or_a_collate_function_comes_out(workers):
    class Torn(IterableDataset):
        def __iter__(self):
            yield from range(6)
            raise OSError("cut off")

    seen = []
    with pytest.raises(OSError, match="cut off"):
        for batch in DataLoader(Torn(), 4, num_workers=workers):
            seen.append(numbers(batch))
    assert seen == [[0, 1, 2, 3]]
    with pytest.raises(ZeroDivisionError) as caught:
        epoch(DataLoader(Stream(), 4, collate_fn=lambda items: 1 / 0, num_workers=workers))
    assert caught.value.__notes__ == ["in batch 0 of epoch 0"]


@pytest.mark.parametrize("leave", ["break", "raise", "close", "drop", "never"])
def test_threads_end_however_the_loop_is_left(leave):
    loader = DataLoader(Items(200), 2, num_workers=3)
    if leave == "break":
        for _ in loader:
            break
    elif leave == "raise":
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                assert len(loader_threads()) == 3
                raise ZeroDivisionError
    else:
        batches = iter(loader)
        if leave != "never":
            next(batches)
            assert len(loader_threads()) == 3
        if leave == "close":
            batches.close()
        del batches
    gc.collect()
    assert not loader_threads()


class Hanging(Items):
    """Its item 2 takes until it is released, or a minute; the main thread may be interrupted."""

    def __init__(self, interrupt=False):
        super().__init__()
        self.interrupt, self.released, self.ended = interrupt, threading.Event(), False

    def __getitem__(self, index):
        if index == 2:
            if self.interrupt:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            self.released.wait(60)
            self.ended = True
        return index


def interrupted(items, monkeypatch):
    loader = DataLoader(items, num_workers=2)
    items.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        epoch(loader)


def late(items, monkeypatch):
    with pytest.raises(RuntimeError, match=r"within timeout=0\.05 s; one hangs") as caught:
        epoch(DataLoader(items, num_workers=2, timeout=0.05))
    assert caught.value.__notes__[0].startswith("in batch ")


def left(items, monkeypatch):
    monkeypatch.setattr(pool, "PATIENCE", 0.01)
    for batch in DataLoader(items, num_workers=2):
        if numbers(batch) == [1]:
            break


@pytest.mark.thorough
@pytest.mark.parametrize("leave", [interrupted, late, left])
def test_a_worker_that_hangs_does_not_keep_the_loop_from_ending(leave, monkeypatch):
    items = Hanging()
    leave(items, monkeypatch)
    try:
        assert not items.ended
    finally:
        items.released.set()
        for thread in loader_threads():
            thread.join(60)


class Collecting(Items):
    """Items during which the garbage collector runs, in the worker that makes them."""

    def __getitem__(self, index):
        gc.collect()
        time.sleep(0.001)
        return index


class CollectingOrder:
    """A sampler during which it runs, in a worker that the others wait for."""

    def __iter__(self):
        for i in range(500):
            gc.collect()
            yield i


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("make", [
    lambda: DataLoader(Collecting(500), 2, num_workers=2),
    lambda: DataLoader(Items(500), 2, sampler=CollectingOrder(), num_workers=3,
                       prefetch_factor=100),
], ids=["item", "sampler"])
def test_threads_end_when_a_worker_collects_the_dropped_iterator(make):
    gc.collect()
    gc.disable()
    try:
        batches = iter(make())
        cycle = [batches]
        cycle.append(cycle)
        next(batches)
        del batches, cycle
        deadline = time.time() + 300
        while loader_threads() and time.time() < deadline:
            time.sleep(0.005)
        assert not loader_threads()
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer Pythons warn of forks
def test_a_pass_does_not_go_on_in_a_fork_but_a_new_one_does():
    loader = DataLoader(range(200), 2, num_workers=2)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if not child:
        signal.alarm(60)  # what hangs dies of it
        status = 1
        try:
            try:
                next(batches)
            except RuntimeError as error:
                status = 2 if "fork" not in str(error) or epoch(loader)[0] != [0, 1] else 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert numbers(next(batches)) == [2, 3]
    batches.close()


def test_the_queue_is_bounded():
    source = Stream(1000)
    batches = iter(DataLoader(source, 2, num_workers=2, prefetch_factor=3))
    next(batches)
    deadline = time.time() + 300
    while source.read < 14 and time.time() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert source.read == 2 + 2 * 2 * 3  # the batch taken, and six that wait
    batches.close()


def test_workers_run_beside_the_consumer():
    """Three at a time: an item is there once two others are made, too."""
    three = threading.Barrier(3, timeout=300)  # seconds; it raises if they come one by one

    class Together(Items):
        def __getitem__(self, index):
            three.wait()
            return index

    assert len(epoch(DataLoader(Together(12), 1, num_workers=3))) == 12


def test_two_loaders_at_once():
    loaders = [DataLoader(Items(), 4, num_workers=2) for _ in range(2)]
    pairs = [(numbers(a), numbers(b)) for a, b in zip(*loaders, strict=True)]
    assert all(a == b for a, b in pairs) and len(pairs) == 6


@pytest.mark.parametrize("make,message", [
    (lambda: DataLoader(range(3), 0), "batch_size=0"),
    (lambda: DataLoader(range(3), num_workers=-1), "num_workers=-1"),
    (lambda: DataLoader(range(3), prefetch_factor=0), "prefetch_factor=0"),
    (lambda: DataLoader(range(3), seed=-4), "seed=-4"),
    (lambda: DataLoader(range(3), seed=True), "seed=True"),
    (lambda: DataLoader(range(3), timeout=-1, num_workers=1), "timeout=-1 given; wanted seconds"),
    (lambda: DataLoader(range(3), timeout="5", num_workers=1), "timeout='5'; wanted a number"),
    (lambda: DataLoader(range(3), timeout=1e11, num_workers=1), r"timeout=100000000000\.0 given"),
    (lambda: DataLoader(range(3), timeout=5), "timeout=5 given with num_workers=0"),
    (lambda: DataLoader(3), "given int"),
    (lambda: DataLoader(i for i in range(3)), "a generator as its dataset, .* used up after one"),
    (lambda: DataLoader(range(3), sampler=iter([0, 1])), "a list_iterator as its sampler, .* used"),
    (lambda: DataLoader(Stream(), shuffle=True), "for an iterable"),
    (lambda: DataLoader(range(3), shuffle=True, sampler=[1]), "wanted one of them"),
    (lambda: DataLoader(range(3), device="gpu"), "'gpu'"),
])
def test_bad_arguments_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


# -- shards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("workers", [0, 2])
def test_shards_are_the_parts_of_the_whole_batches(source, size, workers):
    options = {"seed": 3, "num_workers": workers, "shuffle": source != "stream"}
    whole = epoch(DataLoader(SOURCES[source](), 4, **options))
    parts = [epoch(DataLoader(SOURCES[source](), 4, shard=(rank, size), **options))
             for rank in range(size)]
    for number, batch in enumerate(whole):
        each = [part[number] for part in parts]
        assert sum(each, []) == batch
        assert max(map(len, each)) - min(map(len, each)) <= 1
    assert all(len(part) == len(whole) for part in parts)


def test_an_empty_part_has_shapes_and_dtypes():
    items = [{"x": np.ones((2, 3), np.float32), "y": i, "name": str(i)} for i in range(5)]
    first, second = (next(iter(DataLoader(items, 1, shard=(rank, 2)))) for rank in range(2))
    assert first["x"].shape == (0, 2, 3) and first["x"].dtype == np.float32
    assert first["y"].shape == (0,) and first["name"] == [] and second["name"] == ["0"]
    with pytest.raises(TypeError, match="a batch with a int has a part without items"):
        list(DataLoader(items, 1, shard=(0, 2), collate_fn=len))


def test_a_state_is_that_of_any_number_of_ranks():
    loader = DataLoader(range(COUNT), 4, shuffle=True, seed=1, shard=(2, 4))
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    whole = epoch(DataLoader(range(COUNT), 4, shuffle=True, seed=1))
    found = []
    for rank in range(2):
        other = DataLoader(range(COUNT), 4, shuffle=True, seed=1, shard=(rank, 2))
        other.load_state_dict(state)
        found.append(epoch(other))
    assert [a + b for a, b in zip(*found, strict=True)] == whole[1:]


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0), (0, 1, 2)])
def test_a_shard_that_cannot_be_is_refused(shard):
    with pytest.raises(ValueError, match="wanted \\(rank, size\\) with a rank from 0"):
        DataLoader(range(3), shard=shard)


def test_arguments_of_pytorchs_loader_are_taken_or_answered():
    data = ArrayDataset(np.arange(COUNT))

    def order(**options):
        return [batch[0].tolist() for batch in DataLoader(data, 5, shuffle=True, **options)]

    plain = order(seed=3)
    assert order(seed=3, pin_memory=True, pin_memory_device="cuda", persistent_workers=True,
                 multiprocessing_context="fork", prefetch_factor=None, num_workers=2,
                 batch_sampler=None, worker_init_fn=None, in_order=True) == plain
    drawn = [order(generator=gt.random.Generator().manual_seed(n)) for n in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [b[0].tolist() for b in DataLoader(data, COUNT, shuffle=None)] == [list(range(COUNT))]
    for options, sentence in (
            ({"batch_sampler": [[0, 1]]}, "wanted batch_size and a sampler"),
            ({"worker_init_fn": print}, "worker_init_fn; wanted None: its workers are threads"),
            ({"in_order": False}, "in_order=False; wanted True")):
        with pytest.raises(ValueError, match=sentence):
            DataLoader(data, **options)
