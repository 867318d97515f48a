"""Programs on several streams. Each answers values that are the same on the CPU and on CUDA.

A program is a function of a device and of a source of random numbers, from which it takes what it
does where. Nothing in it waits for the device before its values are read at its end, except what
the program is about.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np

import gtensor as gt
from gtensor import hostcuda
from gtensor.backend.ordering import Ordering
from gtensor.distributed import Communicator
from gtensor.distributed.alone import Alone
from gtensor.memory.arena.arena import Arena
from gtensor.memory.arena.graphs import GraphPool
from gtensor.memory.arena.streams import Streams
from gtensor.optim import SGD, Adam, Lion

Values = list[np.ndarray]
Program = Callable[[str, random.Random], Values]

SIZES = 16, 64, 256


def values_of(tensors: Any) -> Values:
    """What tensors hold, read on the current stream."""
    return [tensor.numpy().copy() for tensor in tensors]


def elsewhere(xp: Any) -> AbstractContextManager[Any]:
    """Arrays that are made within are no memory of the arena's."""
    if xp is np:
        return nullcontext()
    return xp.cuda.using_allocator(xp.cuda.MemoryPool().malloc)


class Replayed:
    """Work that is done over and over: a graph on CUDA, the same calls again on the CPU.

    `results` are the tensors of the last replay.
    """

    def __init__(self, device: str, work: Callable[[], list[Any]], like: Replayed | None = None):
        self._work = work
        self.graph = None
        self.results: list[Any] = []
        if device != "cpu":
            self.graph = gt.Graph(device, pool=None if like is None else like.graph.pool)
            with self.graph.capture():
                self.results = work()

    def replay(self) -> None:
        if self.graph is None:
            self.results = self._work()
        else:
            self.graph.replay()


def memory(device: str, rng: random.Random) -> Values:
    """Arrays come and go on streams that come and go; one stream's bytes may serve another."""
    streams = [gt.stream(device) for _ in range(3)]
    live, seen = [gt.full((64,), 1.0, device=device)], []
    for turn in range(40):
        with rng.choice(streams):
            kind = rng.random()
            if kind < 0.3:
                live.append(gt.full((rng.choice(SIZES),), float(turn), device=device))
            elif kind < 0.7:
                live.append(rng.choice(live) * 0.5 + float(turn))
            else:
                seen.append(rng.choice(live) + 1.0)
        if len(live) > 4:
            del live[rng.randrange(len(live))]
        if rng.random() < 0.1:
            streams[rng.randrange(3)] = gt.stream(device)
    return values_of([*seen, *live])


def endings(device: str, rng: random.Random) -> Values:
    """Streams go while their work is queued; their bytes serve others, who read their results."""
    seen, kept = [], gt.ones(64, device=device)
    for turn in range(8):
        side = gt.stream(device)
        with side:
            kept = kept * 0.5 + float(turn)
            for _ in range(rng.randrange(1, 4)):
                gt.full((rng.choice(SIZES),), -1.0, device=device)
        del side
        with gt.stream(device):
            seen.append(gt.full((rng.choice(SIZES),), float(turn), device=device))
            if rng.random() < 0.5:
                seen.append(kept + 1.0)
    return values_of([*seen, kept])


def foreign(device: str, rng: random.Random) -> Values:
    """Kernels that gtensor does not see, on its memory: the program notes them, by CuPy's means."""
    xp, on = gt.device(device).xp, gt.device(device)
    streams = [gt.stream(device) for _ in range(3)]
    seen = []
    for turn in range(8):
        own, other = rng.sample(streams, 2)
        with own:
            x = xp.full(256, turn, np.float32)
        gt.Event(device).record(own).wait(other)
        with other:
            y = x * 2
            y += 1
        gt.memory.record_stream(x, other)
        del x
        with own:
            xp.full(256, -1, np.float32)
        seen.append(y)
    return [on.to_numpy(each).copy() for each in seen]


def interchange(device: str, rng: random.Random) -> Values:
    """Arrays are exchanged with another library, whose memory gtensor does not track."""
    xp, streams = gt.device(device).xp, [gt.stream(device) for _ in range(3)]
    seen, kept = [], []
    for turn in range(6):
        with rng.choice(streams):
            x = gt.full((64,), float(turn), device=device) * 2.0
        with rng.choice(streams):
            seen.append(gt.asarray(xp.from_dlpack(x) + 1, device=device))
        with rng.choice(streams), elsewhere(xp):
            kept.append(gt.asarray(xp.full(64, turn, np.float32), device=device))
            for _ in range(3):
                with rng.choice(streams):
                    kept[-1] += 1.0
        with rng.choice(streams):
            seen.append(kept[-1] * seen[-1])
        del x
    return values_of([*seen, *kept])


def exchange(device: str, rng: random.Random) -> Values:
    """Streams read what others wrote, and write in place what others read, through views too."""
    streams = [gt.stream(device) for _ in range(3)]
    x, other = gt.zeros(64, device=device), gt.ones(64, device=device)
    seen = []
    for turn in range(16):
        with rng.choice(streams):
            kind = rng.random()
            if kind < 0.3:
                x += 1.0
            elif kind < 0.4:
                x[8:40] = other[8:40]
            elif kind < 0.6:
                other = other * 0.5 + x
            elif kind < 0.7:
                other[:32] = float(turn)
            else:
                seen.append(x * 1.0 - other)
    return values_of([x, other, *seen])


def backward(device: str, rng: random.Random) -> Values:
    """A forward pass on several streams; gradients are computed on others, and add up."""
    streams = [gt.stream(device) for _ in range(3)]

    def somewhere(function: Callable[[], Any]) -> Any:
        with rng.choice(streams):
            return function()

    leaves = [somewhere(lambda k=k: gt.full((4, 4), 0.25 * (k + 1), device=device))
              for k in range(2)]
    for leaf in leaves:
        leaf.requires_grad_()
    losses = []
    for _ in range(2):
        values = list(leaves)
        for _ in range(rng.randrange(3, 9)):
            x, y = rng.choice(values), rng.choice(values)
            values.append(somewhere(rng.choice([
                lambda x=x, y=y: x * y, lambda x=x, y=y: x - y, lambda x=x: gt.tanh(x),
                lambda x=x: gt.sin(x * 2.0), lambda x=x, y=y: x[0:1] + y,
                lambda x=x, y=y: gt.tanh(x.reshape((16,)).sum()) * y])))
        # one gradient is lent to both sums, each of which multiplies it on a stream of its own
        lent = [somewhere(lambda leaf=leaf: leaf * 3.0) for leaf in leaves]
        loss = somewhere(lambda values=values, lent=lent: (
            values[-1] * values[-2] + (lent[0] + lent[1]) * 1.5).sum())
        somewhere(loss.backward)
        losses.append(loss.detach())
    return values_of([*losses, *(leaf.grad for leaf in leaves)])


def graphs(device: str, rng: random.Random) -> Values:
    """Graphs of one pool are replayed beside other work, which writes their inputs and reads their
    results; then they go, and their bytes serve others."""
    *streams, reader = (gt.stream(device) for _ in range(5))
    for stream in (*streams, reader):  # none has to wait for another to have its memory
        with stream:
            gt.empty(4 << 20, device=device)
    with gt.no_grad():
        x, state = gt.zeros(64, device=device), gt.zeros(64, device=device)

        def chain() -> list[Any]:
            return [gt.tanh(x * 0.5 + 1.0), *(x * 3.0 for _ in range(10))]

        def count() -> list[Any]:
            state.__iadd__(x)
            return [(state * 2.0 + x) * 0.25 - 1.0]

        first = Replayed(device, chain)
        pair = [first, Replayed(device, count, like=first)]
        seen = []
        for turn in range(10):
            with rng.choice(streams):
                x += float(turn % 3) - 1.5
            for each in rng.sample(pair, 2):
                with rng.choice(streams):
                    each.replay()
            with rng.choice(streams):
                seen += [each.results[0] * 1.0 for each in pair]
            with reader:  # a result is freed while it is read, and written by the next replay
                late = gt.ones(64, device=device)
                for _ in range(8):
                    late = late * 0.5
                seen.append(first.results.pop() * 1.0 + late)
            with rng.choice(streams):
                x -= 1.0
                first.replay()
            with rng.choice(streams):
                gt.full((64,), -1.0, device=device)
        with rng.choice(streams):
            pair[1].replay()
        last = pair[1].results[0]
        del first, pair, each
        with gt.stream(device):
            seen += [gt.full((64,), float(k), device=device) for k in range(6)]
        return values_of([x, state, last, *seen])


def counting_graphs(device: str, rng: random.Random) -> Values:
    """Graphs of one pool that leave nothing but what they add to tensors from before."""
    streams = [gt.stream(device) for _ in range(3)]
    with gt.no_grad():
        x = gt.ones(64, device=device)
        sums = [gt.zeros(64, device=device) for _ in range(3)]
        made: list[Replayed] = []
        for k, total in enumerate(sums):
            def add(k: int = k, total: Any = total) -> list[Any]:
                total.__iadd__(gt.tanh(x * float(k) + 0.5) * 2.0 - 1.0)
                return []
            made.append(Replayed(device, add, like=made[0] if made else None))
        for _ in range(10):
            with rng.choice(streams):
                rng.choice(made).replay()
        del made
        with gt.stream(device):
            after = [gt.full((64,), float(k), device=device) for k in range(6)]
        return values_of([*sums, *after])


def graphs_in_turn(device: str, rng: random.Random) -> Values:
    """Each graph is captured when the one before has gone, whose memory it has."""
    gt.memory.empty_cache(device)
    streams = [gt.stream(device) for _ in range(3)]
    seen = [gt.zeros(64, device=device) for _ in range(12)]
    with gt.no_grad():
        x = gt.ones(64, device=device)
        for turn in range(6):
            def chain(turn: int = turn) -> list[Any]:
                y = gt.tanh(x * float(turn) + 0.5) * 2.0 - float(turn)
                seen[turn].__iadd__(y)
                return [y]

            with rng.choice(streams):
                graph = Replayed(device, chain)
            with rng.choice(streams):
                graph.replay()
            y = graph.results.pop()
            if turn % 2:
                with rng.choice(streams):
                    seen[turn + 6] += y
            del graph, y
        return values_of(seen)


def loading(device: str, rng: random.Random) -> Values:
    """Batches of a loader, and a page-locked buffer that is filled again at once."""
    xp, streams = gt.device(device).xp, [gt.stream(device) for _ in range(3)]
    items = np.arange(24 * 8, dtype=np.float32).reshape(24, 8) / 10
    loader = gt.data.DataLoader(gt.data.ArrayDataset(items), batch_size=6, shuffle=True, seed=3,
                                device=device)
    host = np.empty((6, 8), np.float32)
    if device != "cpu":
        host = np.frombuffer(xp.cuda.alloc_pinned_memory(host.nbytes), np.float32,
                             host.size).reshape(host.shape)
    seen, batches = [], iter(loader)
    for turn in range(4):
        with rng.choice(streams):
            batch, = next(batches)
            batch = batch * 2.0 - 1.0
        host[:] = items[turn:turn + 6]
        with rng.choice(streams):
            noise = gt.tensor(host, device=device)
            host[:] = -100
            noise = noise * 0.5 + 0.25
        with rng.choice(streams):
            seen.append(batch + noise)
        if rng.random() < 0.5:
            with rng.choice(streams):
                seen.append(gt.tensor(seen[-1].to("cpu").numpy(), device=device) * 2.0)
        del batch, noise
    return values_of(seen)


def training(device: str, rng: random.Random) -> Values:
    """Steps of training; batches, passes, steps and the losses' sum have streams of their own."""
    gt.manual_seed(0)
    loading, passes, stepping, sums = (gt.stream(device) for _ in range(4))
    model = gt.nn.Sequential(gt.nn.Linear(4, 8, device="cpu"), gt.nn.Tanh(),
                             gt.nn.Linear(8, 2, device="cpu")).to(device)
    optimizer = rng.choice([lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.01),
                            lambda p: Lion(p, lr=0.01)])(list(model.parameters()))
    total = gt.zeros((), device=device)
    for turn in range(4):
        batch = np.arange(12, dtype=np.float32).reshape(3, 4) / 10 - turn / 4
        with loading:
            x = (gt.tensor(batch, device=device) * 2.0 - 1.0) / 2.0 + 0.5
        with passes if rng.random() < 0.8 else stepping:
            loss = (model(x) ** 2).mean()
            optimizer.zero_grad(set_to_none=rng.random() < 0.5)
            loss.backward()
        with stepping:
            optimizer.step()
        with sums:
            total += loss.detach()
        del loss
    return values_of([total, *(parameter.detach() for parameter in model.parameters())])


def collectives(device: str, rng: random.Random) -> Values:
    """A communicator gathers and sums arrays that other streams made, and that others read then."""
    xp, on = gt.device(device).xp, gt.device(device)
    engine: Any = Alone()
    if device != "cpu":
        from gtensor.distributed.nccl import Nccl  # here: it needs CuPy

        engine = Nccl(on, Alone(), 60.0)
    comm, streams = Communicator(engine, 60.0), [gt.stream(device) for _ in range(3)]
    seen = []
    for turn in range(8):
        own, other = rng.sample(streams, 2)
        with own:
            x = gt.full((256,), float(turn), device=device) * 0.5 + 1.0
            raw = xp.full(256, turn, np.float32)
            for _ in range(4):
                raw += 1
            work = comm.all_gather(x, async_op=True)
            summed = comm.all_reduce(raw, async_op=True)
            del x
        with rng.choice(streams):
            gt.full((256,), -1.0, device=device)
        with other:
            copy = xp.array(summed.wait())
            copy *= 2
            gt.memory.record_stream(raw, other)  # CuPy's kernel has read it
            seen += [gt.asarray(copy, device=device), work.wait()[0] * 1.0]
        del raw, summed, work
        with rng.choice(streams):
            gt.full((256,), -2.0, device=device)
    return values_of(seen)


def planned(device: str, rng: random.Random) -> Values:
    """Steps of a plan, whose blocks have places of their stream's: other streams use them too."""
    streams = [gt.stream(device) for _ in range(3)]
    where = [rng.randrange(3) for _ in range(12)]
    seen: list[Any] = []

    def step(start: float) -> None:
        live = [gt.full((64,), start, device=device)]
        for turn, number in enumerate(where):
            with streams[number]:
                live.append(live[turn % len(live)] * 0.5 + float(turn))
            if len(live) > 3:
                del live[0]
        with streams[where[0]]:
            seen.append(live[-1] + live[0])

    plan = None
    if device != "cpu":  # whose arena serves large arrays only
        with gt.memory.record(device) as recording:
            step(0.0)
        plan = recording.plan()
        seen.clear()
    for start in range(1, 6):
        with nullcontext() if plan is None else gt.memory.planned(plan, device):
            step(float(start))
        with rng.choice(streams):
            seen[-1] = seen[-1] * 2.0
    if plan is not None:
        plan.release()
    with rng.choice(streams):
        seen += [gt.full((64,), float(k), device=device) for k in range(4)]
    return values_of(seen)


def threads(device: str, rng: random.Random) -> Values:
    """Two threads, each on streams of its own, read what both have."""
    shared = [gt.tanh(gt.full((64,), float(k), device=device) * 0.5 - 1.0) for k in range(4)]
    seeds = rng.random(), rng.random()
    seen: list[list[Any]] = [[], []]

    def work(me: int) -> None:
        own, streams = random.Random(seeds[me]), [gt.stream(device) for _ in range(2)]
        for turn in range(12):
            with own.choice(streams):
                if own.random() < 0.5:
                    seen[me].append(own.choice(shared) * float(turn))
                else:
                    seen[me].append(gt.full((64,), float(turn), device=device) + own.choice(shared))
            if own.random() < 0.3:
                seen[me][own.randrange(len(seen[me]))] = shared[me]

    workers = [threading.Thread(target=work, args=(me,)) for me in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return values_of([*shared, *seen[0], *seen[1]])


def captured_training(device: str, rng: random.Random) -> Values:
    """A step of training is captured whole, and replayed while other streams bring batches."""
    gt.manual_seed(0)
    loading, replaying, sums = (gt.stream(device) for _ in range(3))
    model = gt.nn.Sequential(gt.nn.Linear(4, 8, device="cpu"), gt.nn.Tanh(),
                             gt.nn.Linear(8, 2, device="cpu")).to(device)
    parameters = list(model.parameters())
    x, total = gt.zeros((3, 4), device=device), gt.zeros((), device=device)

    def step() -> list[Any]:
        loss = (model(x) ** 2).mean()
        for parameter, g in zip(parameters, gt.grad(loss, parameters), strict=True):
            with gt.no_grad():
                parameter -= 0.1 * g
        return [loss.detach()]

    graph = Replayed(device, step)
    for turn in range(5):
        with loading:
            x[...] = gt.tensor(np.arange(12, dtype=np.float32).reshape(3, 4) / 10 - turn / 4,
                               device=device) * 0.5
        with rng.choice((replaying, loading)):
            graph.replay()
        with sums:
            total += graph.results[0]
    return values_of([total, *(parameter.detach() for parameter in parameters)])


def captured_updates(device: str, rng: random.Random) -> Values:
    """Captured steps with dropout, clipping, a loss scale and AdamW get rates between replays."""
    gt.manual_seed(0)
    replaying, other, loading = (gt.stream(device) for _ in range(3))
    weight = gt.nn.Parameter(gt.full((64, 64), 0.5, device=device))
    optimizer = gt.optim.AdamW([weight], 0.1)
    scaler = gt.optim.GradScaler(init_scale=4.0, growth_interval=2)
    x, factor = gt.ones((16, 64), device=device), gt.ones((), device=device)

    def step() -> list[Any]:
        optimizer.zero_grad()
        loss = ((gt.nn.functional.dropout(x, 0.5) @ weight) ** 2).mean() * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        gt.optim.clip_grad_norm_([weight], 1.0)
        scaler.step(optimizer)
        scaler.update()
        return [loss.detach()]

    with replaying:
        step()
        graphs = Replayed(device, step), Replayed(device, step)
    for turn in range(6):
        with loading:
            x[...] = gt.tensor(np.full((16, 64), turn / 4 + 0.5, np.float32), device=device)
            factor[...] = float("inf") if turn == 2 else 1.0
        optimizer.lr = 0.1 / 3**turn
        with rng.choice((replaying, other)), np.errstate(invalid="ignore"):
            graphs[turn % 2].replay()
    steps = optimizer.state_dict()["state"].get(0, {"step": 0})["step"]
    return [np.asarray(steps), np.asarray(scaler.get_scale()), *values_of([weight.detach()])]


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (memory, endings, foreign, interchange, exchange, backward, graphs,
                    collectives, counting_graphs, graphs_in_turn, loading, planned, threads,
                    training, captured_training, captured_updates)}


def wrong(program: Program, seeds: Any) -> list[int]:
    """The seeds with which a program on CUDA, in an order of that seed, differs from the CPU."""
    found = []
    # An arena of its own: in one with free memory of other streams less is used twice.
    gt.memory.configure("cudamalloc", "cuda")
    for seed in seeds:
        before = hostcuda.configure("deferred", seed)
        try:
            got = program("cuda", random.Random(seed))
        finally:
            hostcuda.configure(**before)
        wanted = program("cpu", random.Random(seed))
        if not all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(
                got, wanted, strict=True)):
            found.append(seed)
    return found


def nothing(*_: Any) -> None:
    """Takes the place of a part of the ordering."""


@contextmanager
def unordered() -> Any:
    """gtensor orders no streams, and reuses memory at its free, also while other streams use it."""
    with (patch.multiple(Ordering, read=nothing, write=nothing, behind_all=nothing),
          patch.multiple(Streams, order=nothing, _wait=nothing),
          patch.object(Arena, "record_use", nothing),
          patch.object(GraphPool, "replaying", unreplayed)):
        yield


@contextmanager
def unreplayed(*_: Any) -> Any:
    yield
