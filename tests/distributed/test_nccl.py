"""NCCL on host devices: processes without MPI, ranks that end or do not fit, and what a call costs.

What two GPUs can run, too, is in `test_nccl_gpus.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from distributed.on_gpus import SITE
from distributed.ranks import ROOT, free_port, in_threads, past_first
from gtensor import hostcuda
from gtensor.backend import DeviceError, nccl
from gtensor.distributed import CollectiveTimeout, Communicator, DistributedError
from gtensor.distributed.alone import Alone

pytestmark = pytest.mark.host_cuda

PROGRAM = """
import json, os, signal, sys, time
import gtensor as gt
from gtensor import distributed

found = []
try:
    comm = distributed.init(timeout=float(os.environ.get("SECONDS", 20)))
    found += [comm.backend, comm.rank, comm.size]
    x = gt.full((3,), 1.0 + comm.rank)
    comm.all_reduce(x)
    found += [x.numpy().tolist(), comm.all_gather_object(comm.rank)]
    pair = comm.split(0, -comm.rank)
    found += [pair.rank, pair.all_gather(gt.full((1,), float(comm.rank))).wait().numpy().tolist()]
    if sys.argv[1:] == ["killed"]:
        for _ in range(64):  # calls that are compared end with the connection
            comm.barrier()
        if comm.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(x)
        begun = time.monotonic()
        x.numpy()
except Exception as error:
    found += [type(error).__name__, str(error)]
    if "begun" in globals():
        found.append(time.monotonic() - begun)
print(json.dumps(found))
"""


def ranks(*environments: dict[str, str], argument: str = "") -> list[Any]:
    """What the program prints in processes that torchrun's variables connect."""
    port = str(free_port())
    path = os.pathsep.join(map(str, [SITE, ROOT]))
    started = [subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *filter(None, [argument])], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "RANK": str(rank),
             "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(environments)),
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **each})
        for rank, each in enumerate(environments)]
    found = []
    for process in started:
        out, errors = process.communicate(timeout=600)
        assert process.returncode in (0, -signal.SIGKILL), errors
        found.append(json.loads(out) if out else None)
    return found


def test_processes_that_variables_connect():
    assert ranks({}, {}) == [
        ["nccl", rank, 2, [3.0] * 3, [0, 1], 1 - rank, [[1.0], [0.0]]] for rank in (0, 1)]


def test_a_killed_rank_is_told_before_the_deadline():
    found = ranks({}, {}, argument="killed")[0]
    name, text, seconds = found[-3:]
    assert (name, seconds < 5) == ("DistributedError", True), found
    assert re.match(r"rank 0 of 2: all_reduce of shape \(3,\) and dtype float32 \(.*:\d+\) failed: "
                    "NCCL_ERROR_REMOTE_ERROR", text)


def test_ranks_that_were_told_different_sizes():
    for found in ranks({}, {"WORLD_SIZE": "3"}):
        assert found == ["DistributedError", "rank 1 was told of 3 ranks and rank 0 of 2"]


def test_a_rank_that_is_not_started():
    found, = ranks({"WORLD_SIZE": "2", "SECONDS": "0.5"})
    assert found == ["CollectiveTimeout",
                     "rank 0 of 2: not all ranks were connected within 0.5 s"]


# -- in this process -------------------------------------------------------------------------------


@pytest.fixture
def comm() -> Any:
    from gtensor.distributed.nccl import Nccl

    engine = Nccl(gt.device("cuda"), Alone(), 20.0)
    yield Communicator(engine, 20.0)
    engine.close()


def test_every_rank_hears_why_one_cannot(comm):
    from gtensor.distributed.nccl import Nccl

    def join(each: Communicator) -> str:
        device = gt.device("cpu" if each.rank else "cuda")
        with pytest.raises(DistributedError) as error:
            Nccl(device, each._engine, 5.0)
        return str(error.value)

    assert set(in_threads(2, join)) == {
        "NCCL cannot connect 2 ranks; rank 1: NCCL was to use cpu; wanted a CUDA device"}


def test_every_rank_hears_that_two_have_one_gpu():
    from gtensor.distributed.nccl import Nccl

    def join(each: Communicator) -> str:
        with pytest.raises(DistributedError) as error:
            Nccl(gt.device("cuda:0"), each._engine, 5.0)
        return str(error.value)

    text, = set(in_threads(2, join))
    assert re.match(r"NCCL cannot connect 2 ranks; ranks 0 and 1 have the same GPU \(.*, PCI 0000:",
                    text)


def test_nccl_is_not_installed():
    from cupy.cuda import nccl as module

    nccl._nccl.cache_clear()
    try:
        with patch.object(module, "available", False):
            assert not nccl.available()
            with pytest.raises(DeviceError, match=r"pip install .*\[nccl\]'?, or nccl12"):
                nccl.unique_id()
    finally:
        nccl._nccl.cache_clear()


def test_a_refused_call_names_collective_array_and_status(comm):
    x = gt.ones((2, 3), device="cuda")
    comm._engine._comm.abort()
    with pytest.raises(DeviceError, match=r"ncclAllReduce of float32 \(2, 3\) on cuda:0 answered "
                                          r"status 4 \(NCCL_ERROR_INVALID_ARGUMENT"):
        comm.all_reduce(x)


def test_arrays_of_another_device(comm):
    if gt.cuda_device_count() < 2:
        pytest.skip("another device is wanted")
    with pytest.raises(ValueError, match="an array on cuda:1; wanted one on cuda:0"):
        comm.all_reduce(gt.ones(3, device="cuda:1"))


def test_a_collective_is_one_launch_and_the_host_waits_for_nothing(comm):
    x = gt.ones((64,), device="cuda") * 2.0
    gather = comm.all_gather(x).wait()
    hostcuda.reset_counters()
    comm.all_reduce(x)
    comm.all_gather(x, gather)
    found = hostcuda.counters()
    assert found.library == {"ncclAllReduce": 1, "ncclAllGather": 1}
    assert (found.launches, found.copies, found.allocations, found.synchronizations) == (
        2, {}, 0, 0)
    np.testing.assert_array_equal(gather.numpy(), np.full((1, 64), 2.0))


def test_the_deadline_of_one_communicator_only():
    """Rank 1 is another thread, whose device does not call: one communicator of two is lost."""
    if gt.cuda_device_count() < 2:
        pytest.skip("two ranks need two host devices")
    from gtensor.distributed.nccl import Nccl

    def wait(each: Communicator) -> tuple[str, bool]:
        device = gt.device(f"cuda:{each.rank}")
        lost, other = (Communicator(Nccl(device, control._engine, 20.0), seconds)
                       for control, seconds in ((each, 0.3), (each.duplicate(), 20.0)))
        past_first(lost)
        x, text, ended = gt.ones(4, device=device), "", True
        if each.rank == 0:
            try:
                with gt.stream(device):
                    lost.all_reduce(gt.ones(4, device=device))
                for _ in range(400):
                    time.sleep(0.01)
            except CollectiveTimeout as error:
                text = str(error)
            until = time.monotonic() + 4
            while not (ended := lost._engine._last.done()) and time.monotonic() < until:
                time.sleep(0.01)
        other.all_reduce(x)
        assert x.numpy().tolist() == [2.0] * 4
        for one in (lost, other):
            one._engine._comm._comm.abort()
        return text, ended

    text, ended = in_threads(2, wait)[0]
    assert "rank 0 of 2: all_reduce of shape (4,)" in text
    assert ended
