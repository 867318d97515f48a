"""What each rank of `test_nccl_gpus.py` does: on its own CUDA device, with NCCL."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gtensor as gt
from distributed.ranks import ROOT, past_first, run_ranks
from gtensor.backend import nccl
from gtensor.distributed import (
    CollectiveTimeout,
    Communicator,
    DataParallel,
    DistributedError,
    ZeroOptimizer,
    convert_sync,
)
from gtensor.hostcuda.children import VARIABLE

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8",
          "uint16", "complex64", "complex128")
SITE = ROOT / "gtensor" / "hostcuda" / "site"


def run(function: Any, *args: Any) -> list[Any]:
    """The function in two processes; on host devices where this process has them."""
    if not nccl.available():
        pytest.skip("NCCL is not installed: pip install 'gtensor[nccl]'")
    path = [ROOT, ROOT / "tests"]
    if VARIABLE in os.environ:
        path = [SITE, *path]
    return run_ranks(2, function, *args, RANKS_BACKEND="nccl",
                     PYTHONPATH=os.pathsep.join(map(str, path)))


def values(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    found = np.random.default_rng(rank).integers(0, 5, shape)
    return found.astype(getattr(ml_dtypes, dtype, dtype))


def collectives(comm: Communicator) -> str:
    """Every collective in every dtype, on arrays, strided ones, Tensors and arrays of the host."""
    device, rank, size = gt.default_device(), comm.rank, comm.size
    assert (comm.backend, device.index) == ("nccl", rank)
    for dtype in DTYPES:
        every = [values(r, (3, 4), dtype) for r in range(size)]
        parts = [values(r + 9, (size, 3), dtype) for r in range(size)]
        total, own = sum(every[1:], every[0]), sum(parts[1:], parts[0])[rank]
        for make in (device.from_numpy, np.array, lambda x: gt.tensor(x)):
            for async_op in (False, True):
                _check(comm, make, async_op, every, total)
                found = comm.reduce_scatter(make(parts[rank]), async_op=async_op).wait()
                _equal(found, own)
        if np.dtype(total.dtype).kind == "f":
            _equal(comm.all_reduce(device.from_numpy(every[rank]), "mean").wait(),
                   (total.astype("f8") / size).astype(total.dtype))
        if np.dtype(total.dtype).kind in "iuf":
            _equal(comm.all_reduce(device.from_numpy(every[rank]), "max").wait(),
                   np.maximum.reduce(every))
    empty = device.empty((0, 3), np.float32)
    assert comm.all_reduce(empty).wait() is empty
    assert comm.all_gather(empty).wait().shape == (size, 0, 3)
    return "checked"


def _check(comm: Communicator, make: Any, async_op: bool, every: list[np.ndarray],
           total: np.ndarray) -> None:
    rank = comm.rank
    a = make(every[rank])
    assert comm.all_reduce(a, async_op=async_op).wait() is a
    _equal(a, total)
    _equal(comm.all_gather(make(every[rank]), async_op=async_op).wait(), np.stack(every))
    wide = make(np.stack([every[rank]] * 2, -1))
    if isinstance(wide, gt.Tensor):
        return
    comm.broadcast(wide[..., 1], comm.size - 1, async_op).wait()
    _equal(wide[..., 1], every[-1])
    _equal(wide[..., 0], every[rank])


def _equal(found: Any, wanted: np.ndarray) -> None:
    raw = found._array if isinstance(found, gt.Tensor) else found
    host = raw if isinstance(raw, np.ndarray) else gt.default_device().to_numpy(raw)
    assert host.dtype == wanted.dtype
    np.testing.assert_array_equal(host, wanted)


def order(comm: Communicator) -> list[float]:
    """Tensors are made, reduced, read and dropped on streams that nothing else orders; other
    tensors take their memory. Two communicators are used in different orders by the ranks."""
    other, streams = comm.duplicate(), [gt.stream() for _ in range(3)]
    seen = []
    for turn in range(12):
        with streams[turn % 3]:
            x = gt.full((4096,), float(turn))
            for _ in range(3):
                x = x + 1.0
            y = x * 0.5
        with streams[(turn + 1) % 3]:
            started = [lambda x=x: comm.all_reduce(x, async_op=True),
                       lambda y=y: other.all_gather(y, async_op=True)]
            works = {k: started[k]() for k in ((0, 1) if comm.rank else (1, 0))}
        del x, y, started
        with streams[(turn + 2) % 3]:
            gt.full((4096,), -1.0)
            seen += [works[0].wait() * 1.0, works[1].wait()[0] * 1.0]
    return [float(x.mean().item()) for x in seen]


def captured(comm: Communicator) -> list[float]:
    """A collective within a graph, between ops of it, and beside collectives outside."""
    x, graph = gt.full((8,), float(comm.rank)), gt.Graph()
    comm.all_reduce(gt.ones(8))  # connects the ranks
    with gt.no_grad(), graph.capture():
        y = x * 2.0
        comm.all_reduce(y)
        z = y + 1.0
    found = []
    for _ in range(3):
        x += 1.0
        graph.replay()
        outside = comm.all_reduce(z * 1.0).wait()
        found += [float(z[0].item()), float(outside[0].item())]
    work = comm.all_reduce(x, async_op=True)
    try:
        with gt.Graph().capture():
            work.wait()
    except RuntimeError as error:
        assert "before the capture" in str(error)
    try:
        with gt.Graph().capture():
            comm.all_reduce(np.ones(2))
    except ValueError as error:
        assert "array of the host within a capture" in str(error)
    work.wait()
    return found


def late(comm: Communicator, tried: str) -> list[Any]:
    """Rank 1 does not call what rank 0 does, which waits for the device, or for the result."""
    past_first(comm)
    comm.timeout = 0.5
    x = gt.ones((5, 2))
    comm.all_reduce(x)
    x.sum().item()
    begun = time.monotonic()
    if comm.rank:
        time.sleep(2)
        return []
    try:
        if tried == "item":
            comm.all_reduce(x)
            x.sum().item()
        elif tried == "later":
            work = comm.all_reduce(x, async_op=True)
            while time.monotonic() < begun + 20:
                time.sleep(0.01)
            work.wait()
        else:
            comm.all_reduce(np.ones((5, 2)))
    except CollectiveTimeout as error:
        seconds, text = time.monotonic() - begun, str(error)
    try:
        comm.all_reduce(x)
    except DistributedError as error:
        assert text in str(error)
    return [seconds, text]


def _network(kind: str) -> Any:
    if kind == "convolution":
        return gt.nn.Sequential(gt.nn.Conv2d(2, 4, 3, padding=1), gt.nn.InPlaceABN(4),
                                gt.nn.Conv2d(4, 3, 3), gt.nn.BatchNorm2d(3), gt.nn.Flatten(),
                                gt.nn.Linear(12, 3))
    return gt.nn.Sequential(gt.nn.Linear(32, 16), gt.nn.Tanh(), gt.nn.Linear(16, 3))


def trained(comm: Communicator | None, kind: str, captured: bool = False) -> list[float]:
    """Losses of a network on the ranks' uneven parts of a batch, or on all of it.

    The convolutions have synchronized norms, "zero" an optimizer with divided states.
    """
    gt.manual_seed(0)
    rng = np.random.default_rng(1)
    model = _network(kind).to("float64")
    x, y = rng.standard_normal((10, 2, 4, 4)), rng.standard_normal((10, 3))
    if kind != "convolution":
        x = x.reshape(10, 32)
    make, parameters = gt.optim.Adam, list(model.parameters())
    optimizer = make(parameters, lr=0.01) if comm is None or kind != "zero" else None
    if comm is not None:
        model = DataParallel(convert_sync(model, comm), comm, bucket_cap_mb=0.001)
        optimizer = optimizer or ZeroOptimizer(parameters, make, comm, lr=0.01)
        own = slice(0, 7) if comm.rank == 0 else slice(7, 10)
        x, y = x[own], y[own]

    def step(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = gt.capture(step) if captured else step
    losses = []
    for i in range(10):
        if captured and i == 6 and comm is not None and comm.rank:
            run.clear()  # this rank records anew while the other one replays
        loss = run(gt.tensor(x), gt.tensor(y))
        total = gt.tensor([loss.item() * len(x), len(x)], dtype="float64")
        if comm is not None:
            comm.all_reduce(total)
        losses.append(float((total[0] / total[1]).item()))
    assert not captured or len(run.programs) == 1
    return losses


def nothing(comm: Communicator) -> list[Any]:
    """Texts, other groups, and NCCL is imported by `init` only."""
    rank = comm.rank
    assert "gtensor.distributed.nccl" in sys.modules and Path(__file__).exists()
    assert comm.all_gather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    comm.barrier()
    swapped = comm.split(0, -rank)
    alone = comm.split(rank)
    assert (swapped.rank, swapped.size, alone.rank, alone.size) == (1 - rank, 2, 0, 1)
    x = swapped.all_gather(gt.full((1,), float(rank))).wait()
    y = alone.all_reduce(gt.full((1,), float(rank))).wait()
    return [x.numpy().tolist(), y.numpy().tolist()]
