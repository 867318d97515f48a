"""The stand-in for NCCL: values, its rules for arguments, the order of streams, captures, failing.

Two devices of one process are two ranks, as with `ncclCommInitAll`; programs of two processes are
at the end.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from gtensor import hostcuda

from .through import SEEDS, outside, refused, streams

pytestmark = pytest.mark.host_cuda
CUDA, INTERNAL, ARGUMENT, USAGE = 1, 3, 4, 5  # ncclResult_t
TYPES = {"INT8": "i1", "UINT8": "u1", "INT32": "i4", "UINT32": "u4", "INT64": "i8", "UINT64": "u8",
         "FLOAT16": "f2", "FLOAT32": "f4", "FLOAT64": "f8", "BFLOAT16": ml_dtypes.bfloat16}


@pytest.fixture
def nccl(cupy):
    from cupy.cuda import nccl

    return nccl


@pytest.fixture
def pair(cupy, nccl):
    """Two ranks, each on a device of its own. They are aborted: a test may leave one waiting."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("two ranks need two host devices")
    found = nccl.NcclCommunicator.initAll(2)
    yield found
    for comm in found:
        comm.abort()


@pytest.fixture
def alone(nccl):
    comm = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    yield comm
    comm.abort()


def on(cupy, values):
    """Rank r's values on device r."""
    made = []
    for rank, each in enumerate(values):
        with cupy.cuda.Device(rank):
            made.append(cupy.asarray(each))
            cupy.cuda.Device().synchronize()
    return made


def read(cupy, arrays):
    found = []
    for rank, array in enumerate(arrays):
        with cupy.cuda.Device(rank):
            cupy.cuda.Device().synchronize()
            found.append(array.get())
    return found


def status(nccl, call, *arguments):
    with pytest.raises(nccl.NcclError) as error:
        call(*arguments)
    return error.value.status


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_values_of_every_type_and_operation(cupy, nccl, pair, name):
    dtype, kind = np.dtype(TYPES[name]), getattr(nccl, "NCCL_" + name)
    rng = np.random.default_rng(0)
    given = [(rng.integers(0, 6, (2, 300)) / 4 * 4 ** (dtype.kind in "iu")).astype(dtype)
             for _ in range(2)]
    one, other = (x.astype("f8") for x in given)
    average = (one.astype(dtype) / 2 + other.astype(dtype) / 2 if dtype.kind not in "iu"
               else (one + other) // 2)
    wanted = {"SUM": one + other, "PROD": one * other, "MAX": np.maximum(one, other),
              "MIN": np.minimum(one, other), "AVG": average}
    for operation, expected in wanted.items():
        op = getattr(nccl, "NCCL_" + operation)
        x, parts = on(cupy, given), on(cupy, [np.zeros(300, dtype)] * 2)
        for comm, a, part in zip(pair, x, parts, strict=True):
            comm.reduceScatter(a.data.ptr, part.data.ptr, 300, kind, op, 0)
        for comm, a in zip(pair, x, strict=True):
            comm.allReduce(a.data.ptr, a.data.ptr, 600, kind, op, 0)
        expected = expected.astype(dtype)
        for rank, (whole, part) in enumerate(zip(read(cupy, x), read(cupy, parts), strict=True)):
            np.testing.assert_array_equal(whole, expected, operation)
            np.testing.assert_array_equal(part, expected[rank], operation)


def test_what_only_moves_bytes_and_what_only_the_root_gets(cupy, nccl, pair):
    given = [np.arange(5.0) + rank for rank in range(2)]
    x, both, total = on(cupy, given), on(cupy, [np.zeros(10)] * 2), on(cupy, [np.zeros(5)] * 2)
    double = nccl.NCCL_FLOAT64
    for comm, a, out in zip(pair, x, both, strict=True):
        comm.allGather(a.data.ptr, out.data.ptr, 40, nccl.NCCL_UINT8, 0)
    for comm, a, out in zip(pair, x, total, strict=True):
        comm.reduce(a.data.ptr, out.data.ptr, 5, double, nccl.NCCL_SUM, 1, 0)
    for comm, a in zip(pair, x, strict=True):
        comm.bcast(a.data.ptr, 5, double, 1, 0)
    for found in read(cupy, both):
        np.testing.assert_array_equal(found, np.concatenate(given))
    assert not read(cupy, total)[0].any()
    np.testing.assert_array_equal(read(cupy, total)[1], given[0] + given[1])
    np.testing.assert_array_equal(read(cupy, x), [given[1]] * 2)


def test_a_communicator_knows_its_place_and_can_be_used_by_one_rank(cupy, nccl, alone, pair):
    assert [(c.rank_id(), c.size(), c.device_id()) for c in pair] == [(0, 2, 0), (1, 2, 1)]
    x = cupy.arange(4.0)
    hostcuda.reset_counters()
    alone.allReduce(x.data.ptr, x.data.ptr, 4, nccl.NCCL_FLOAT64, nccl.NCCL_AVG, 0)
    assert x.get().tolist() == [0, 1, 2, 3]
    assert hostcuda.counters().library == {"ncclAllReduce": 1}


# -- rules -----------------------------------------------------------------------------------------

DOUBLE, SUM = 8, 0
REFUSED = {
    "a type that is none": (ARGUMENT, lambda c, x, s: c.allReduce(x, x, 4, 12, SUM, s)),
    "an operation that is none": (ARGUMENT, lambda c, x, s: c.allReduce(x, x, 4, DOUBLE, 5, s)),
    "a root that is no rank": (ARGUMENT, lambda c, x, s: c.bcast(x, 4, DOUBLE, 1, s)),
    "a root below 0": (ARGUMENT, lambda c, x, s: c.reduce(x, x, 4, DOUBLE, SUM, -1, s)),
    "memory of the host": (
        ARGUMENT, lambda c, x, s: c.allReduce(np.ones(4).ctypes.data, x, 4, DOUBLE, SUM, s)),
    "no memory": (ARGUMENT, lambda c, x, s: c.allGather(x, 0, 4, DOUBLE, s)),
    "sums of float8": (ARGUMENT, lambda c, x, s: c.allReduce(x, x, 4, 10, SUM, s)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_nccl_refuses(cupy, nccl, alone, name):
    wanted, call = REFUSED[name]
    x = cupy.arange(4.0)
    assert status(nccl, call, alone, x.data.ptr, 0) == wanted
    assert x.get().tolist() == [0, 1, 2, 3]


def test_memory_and_streams_of_another_device(cupy, nccl, pair):
    x, = on(cupy, [np.arange(4.0)])
    with cupy.cuda.Device(1):
        stream, = streams(cupy, 1)
    arguments = x.data.ptr, x.data.ptr, 4, DOUBLE, SUM
    assert status(nccl, pair[1].allReduce, *arguments, 0) == ARGUMENT
    assert status(nccl, pair[0].allReduce, *arguments, stream.ptr) == CUDA


def test_pinned_memory_serves_and_an_empty_call_is_none(cupy, nccl, alone):
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(32), np.float64, 4)
    pinned[:] = 3
    hostcuda.reset_counters()
    alone.allReduce(pinned.ctypes.data, pinned.ctypes.data, 0, DOUBLE, SUM, 0)
    assert not hostcuda.counters().library
    alone.allReduce(pinned.ctypes.data, pinned.ctypes.data, 4, DOUBLE, SUM, 0)
    cupy.cuda.Device().synchronize()
    assert pinned.tolist() == [3] * 4


def test_calls_after_the_end_and_groups_without_a_begin(cupy, nccl, alone):
    x = cupy.ones(2)
    alone.abort()
    assert status(nccl, alone.allReduce, x.data.ptr, x.data.ptr, 2, DOUBLE, SUM, 0) == ARGUMENT
    assert status(nccl, alone.check_async_error) == ARGUMENT
    assert status(nccl, nccl.groupEnd) == USAGE


def test_an_error_within_a_group_is_the_groups(cupy, nccl, pair):
    x, = on(cupy, [np.arange(4.0)])
    nccl.groupStart()
    assert status(nccl, pair[0].allReduce, x.data.ptr, x.data.ptr, 4, 99, SUM, 0) == ARGUMENT
    pair[0].allReduce(x.data.ptr, x.data.ptr, 4, DOUBLE, SUM, 0)
    assert status(nccl, nccl.groupEnd) == ARGUMENT
    assert x.get().tolist() == [0, 1, 2, 3]  # nothing of the group was launched


MEETINGS = {
    "a rank twice": (INTERNAL, [(2, 0, 0), (2, 0, 1)]),
    "two sizes": (INTERNAL, [(2, 0, 0), (3, 1, 1)]),
    "one device twice": (USAGE, [(2, 0, 0), (2, 1, 0)]),
    "a rank beyond the size": (ARGUMENT, [(2, 2, 0)]),
}


@pytest.mark.parametrize("name", MEETINGS)
def test_ranks_that_do_not_fit_together(cupy, nccl, name):
    wanted, ranks = MEETINGS[name]
    identity = nccl.get_unique_id()

    def meet():
        nccl.groupStart()
        try:
            for size, rank, device in ranks:
                with cupy.cuda.Device(device):
                    nccl.NcclCommunicator(size, identity, rank)
        finally:
            nccl.groupEnd()

    assert status(nccl, meet) == wanted


def test_ranks_that_call_different_collectives(cupy, nccl, pair):
    """It is undefined; the stand-in says so, by an error that stays."""
    x = on(cupy, [np.ones(4)] * 2)
    pair[0].allReduce(x[0].data.ptr, x[0].data.ptr, 4, DOUBLE, SUM, 0)
    with contextlib.suppress(nccl.NcclError):  # in eager mode the call itself answers it
        pair[1].bcast(x[1].data.ptr, 4, DOUBLE, 0, 0)
    with refused(cupy, 719) as error:
        cupy.cuda.Device().synchronize()
    assert ("rank 0 calls AllReduce of 4 float64 by sum and rank 1 Broadcast of 4 float64"
            in str(error.value))
    assert status(nccl, pair[0].check_async_error) == USAGE


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_collectives_run_in_the_order_of_their_streams_and_calls(cupy, nccl, pair, seed):
    """Two communicators are used in any order, on streams of their own. One is used on two streams,
    which nothing else orders: its collectives keep the order of the calls."""
    hostcuda.configure("deferred", seed)
    others = nccl.NcclCommunicator.initAll(2)
    x, y = on(cupy, [np.ones(8)] * 2), on(cupy, [np.full(8, 2.0)] * 2)
    rng = np.random.default_rng(seed)
    for rank in range(2):
        with cupy.cuda.Device(rank):
            one, other, third = streams(cupy, 3)

            def first(rank=rank, one=one, other=other):
                a = x[rank]
                with one:
                    a += rank
                for stream in (one, other, one):
                    pair[rank].allReduce(a.data.ptr, a.data.ptr, 8, DOUBLE, SUM, stream.ptr)
                with one:
                    a *= 0.5

            def second(rank=rank, third=third):
                a = y[rank]
                with third:
                    a *= 1 + rank
                others[rank].allReduce(a.data.ptr, a.data.ptr, 8, DOUBLE, SUM, third.ptr)
                with third:
                    a += 1

            for call in rng.permutation(np.array([first, second])):
                call()
    for found in read(cupy, x):
        np.testing.assert_array_equal(found, [6.0] * 8)  # (1 + 2) * 2 * 2 / 2
    for found in read(cupy, y):
        np.testing.assert_array_equal(found, [7.0] * 8)
    for comm in others:
        comm.destroy()


def test_a_question_does_not_wait_for_another_rank_and_other_streams_go_on(cupy, nccl, pair):
    x, = on(cupy, [np.ones(4)])
    waiting, free = streams(cupy, 2)
    pair[0].allReduce(x.data.ptr, x.data.ptr, 4, DOUBLE, SUM, waiting.ptr)
    with free:
        assert (cupy.arange(3) + 1).get(free).tolist() == [1, 2, 3]
    assert not waiting.done
    pair[0].abort()
    waiting.synchronize()


# -- captures --------------------------------------------------------------------------------------


def test_a_captured_collective_runs_at_each_launch(cupy, nccl, pair):
    x, graphs = on(cupy, [np.ones(4), np.full(4, 2.0)]), []
    hostcuda.reset_counters()
    for rank, (comm, a) in enumerate(zip(pair, x, strict=True)):
        with cupy.cuda.Device(rank):
            stream, side = streams(cupy, 2)
            stream.begin_capture()
            with stream:
                a += 1
            comm.allReduce(a.data.ptr, a.data.ptr, 4, DOUBLE, SUM, stream.ptr)
            side.wait_event(stream.record())
            comm.allReduce(a.data.ptr, a.data.ptr, 4, DOUBLE, nccl.NCCL_MAX, side.ptr)
            stream.wait_event(side.record())
            graphs.append((stream.end_capture(), stream))
    assert not hostcuda.counters().library
    for _ in range(3):
        for rank, (graph, stream) in enumerate(graphs):
            with cupy.cuda.Device(rank):
                graph.launch(stream)
    for found in read(cupy, x):  # 5, then twice one more, of two ranks
        np.testing.assert_array_equal(found, [26.0] * 4)
    assert hostcuda.counters().library == {"ncclAllReduce": 12}


def test_the_default_stream_takes_no_collective_while_a_blocking_stream_captures(
    cupy, nccl, alone
):
    x = cupy.ones(4)
    stream = cupy.cuda.Stream()
    stream.begin_capture()
    assert status(nccl, alone.allReduce, x.data.ptr, x.data.ptr, 4, DOUBLE, SUM, 0) == CUDA
    with refused(cupy, 901):
        stream.end_capture()
    alone.allReduce(x.data.ptr, x.data.ptr, 4, DOUBLE, SUM, stream.ptr)
    assert x.get(stream).tolist() == [1] * 4


# -- processes -------------------------------------------------------------------------------------

PROGRAM = """
import os, subprocess, sys, threading, time
if "MUTATED" in os.environ:  # test_runtime_faults.py
    import hostcuda.mutated
from gtensor import hostcuda
hostcuda.install(sys.argv[1])
import cupy
from cupy.cuda import nccl

rank = len(sys.argv) - 2
if not rank:
    identity = nccl.get_unique_id()
    other = subprocess.Popen([sys.executable, *sys.argv, identity.hex()], stdin=subprocess.PIPE)
else:
    identity = bytes.fromhex(sys.argv[2])
comm = nccl.NcclCommunicator(2, identity, rank)
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    x = cupy.arange(4.0) + rank
    y = cupy.zeros(8)
swapped = comm.commSplit(0, -rank)
single = comm.commSplit(rank, 0)
assert (swapped.rank_id(), swapped.size(), single.size()) == (1 - rank, 2, 1)
assert (comm.commSplit(-1 if rank else 0, 0) is None) == bool(rank)
comm.allReduce(x.data.ptr, x.data.ptr, 4, 8, 0, stream.ptr)
swapped.allGather(x.data.ptr, y.data.ptr, 4, 8, stream.ptr)
swapped.bcast(x.data.ptr, 4, 8, 0, stream.ptr)
if rank:  # its device goes on, whatever the process waits for
    assert sys.stdin.read(1)
assert y.get(stream).tolist() == [1, 3, 5, 7] * 2
if not rank:
    other.stdin.write(b"1")
    other.stdin.flush()
for _ in range(100):
    comm.allReduce(x.data.ptr, x.data.ptr, 4, 8, 0, stream.ptr)
assert x.get(stream).tolist() == [2**100 * value for value in (1, 3, 5, 7)]
if rank:
    os._exit(0)
other.wait()
comm.allReduce(x.data.ptr, x.data.ptr, 4, 8, 0, stream.ptr)
until = time.time() + 300
while time.time() < until:
    try:
        comm.check_async_error()
    except nccl.NcclError as error:
        print("status", error.status)
        break
    time.sleep(0.01)
threading.Timer(0.2, comm.abort).start()
stream.synchronize()
print("ended")
"""


@pytest.mark.parametrize("mode", ["eager", "deferred"])
def test_two_processes(tmp_path, mode):
    """One ends while the other waits for it, which is told, and aborts."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    ran = subprocess.run([sys.executable, str(path), mode], capture_output=True, text=True,
                         timeout=900, env=outside())
    assert (ran.returncode, ran.stdout) == (0, "status 6\nended\n"), ran.stderr
