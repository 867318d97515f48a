"""Faults planted into libhostcuda's text: a test of the runtime must fail with each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gtensor.hostcuda import build

pytestmark = [pytest.mark.host_cuda, pytest.mark.slow]
HERE = Path(__file__).parent
TESTS = [*sorted(HERE.glob("test_runtime_[!f]*.py")), HERE / "test_counters.py",
         HERE / "test_nccl.py"]
LONGEST = 180  # seconds; compiling takes most of them, a deadlock all


@dataclass(frozen=True)
class Fault:
    """In a file, one text in place of another; the test that sees it, by failing or for ever."""

    file: str
    right: str
    wrong: str
    test: str
    deadlock: bool = False


FAULTS = {
    "a stream's items do not wait for each other": Fault(
        "queue.cpp", "    add(stream.tail);\n", "", "random_programs"),
    "the default stream does not wait for blocking ones": Fault(
        "queue.cpp", "if (other->blocking()) add(other->tail);", "(void)other;", "random_programs"),
    "blocking streams do not wait for the default one": Fault(
        "queue.cpp", "        add(device.legacy.tail);\n", "", "random_programs"),
    "a wait for an event waits for nothing": Fault(
        "streams.cpp", "    dependencies.push_back(event.last);\n", "", "a_missing_wait"),
    "the work of a destroyed stream is forgotten": Fault(
        "queue.cpp", "if (blocking) add(orphan);", "(void)blocking;", "a_destroyed_streams_work"),
    "pageable memory is read late": Fault(
        "copies.cpp", "way.from == Place::pageable && !finish", "false", "pageable_memory"),
    "pinned memory is read early": Fault(
        "copies.cpp", "if (way.from == Place::pageable && !finish)", "if (!finish)",
        "pageable_memory"),
    "a thread waits with Python's lock": Fault(
        "queue.cpp", "python.held() ? python.release() : nullptr", "nullptr",
        "a_thread_with_pythons_lock", deadlock=True),
    "work that frees waits for itself": Fault(
        "memory.cpp", "if (running_here(held)) {", "if (false) {", "work_in_python_may_free",
        deadlock=True),
    "a graph forgets the order of its nodes": Fault(
        "graphs.cpp", "            step.dependencies.push_back(each->index);\n", "",
        "a_graph_runs_in_the_order"),
    "a capture takes work that was not joined": Fault(
        "graphs.cpp", "if (!depends(node, capture.origin->frontier, seen)) return false;",
        "(void)node;", "has_to_be_joined"),
    "an unsafe call within a capture is let through": Fault(
        "graphs.cpp", "if (!forbids) continue;", "if (forbids || !forbids) continue;",
        "cudamalloc_within"),
    "other threads' captures count in every mode": Fault(
        "graphs.cpp", "capture->mode == cudaStreamCaptureModeGlobal\n", "true\n",
        "cudamalloc_in_another_thread"),
    "two captures merge": Fault(
        "streams.cpp", "if (stream.capture && stream.capture != event.capture) {", "if (false) {",
        "do_not_merge"),
    "memory of a pool is there before it is allocated": Fault(
        "memory.cpp", "    made->pool = &pool;\n", "    made->pool = &pool;\n    commit(*made);\n",
        "has_not_allocated_yet"),
    "a page behind two addresses is two pages": Fault(
        "physical.cpp", "PROT_NONE, MAP_SHARED | MAP_FIXED", "PROT_NONE, MAP_PRIVATE | MAP_FIXED",
        "one_page"),
    "the card's memory has no end": Fault(
        "memory.cpp", "if (device && (rounded", "if (false && (rounded", "no_more_memory"),
    "fresh memory is zero": Fault(
        "memory.cpp", "memset(page, PATTERN, PATTERN_BYTES);", "memset(page, 0, PATTERN_BYTES);",
        "full_of_nan"),
    "allocations begin where a page begins": Fault(
        "memory.cpp", "span + PAGE + pages - rounded;", "span + PAGE;", "a_fault_names"),
    "an error does not stay": Fault(
        "queue.cpp", "if (outcome.error && !item.device->error) {", "if (false) {",
        "a_fault_names"),
    "dry programs run": Fault(
        "queue.cpp", "work && all.dry && work->kind != HOSTCUDA_OTHER", "false", "a_dry_run"),
    "bytes are not counted": Fault(
        "queue.cpp", "    tally.bytes += bytes;\n", "    (void)bytes;\n", "by_direction"),
    "a copy that waits is no synchronization": Fault(
        "copies.cpp", "if (finish && !error) count", "if (false) count", "by_direction"),
    "a copy counts the other way round": Fault(
        "copies.cpp", '"device to device" : "host to device"',
        '"host to device" : "device to device"', "by_direction"),
    "a capture counts as a launch": Fault(
        "queue.cpp", "    if (stream.capture) return add_node",
        "    if (stream.capture) count(work->kind, work->name, work->bytes);\n"
        "    if (stream.capture) return add_node", "a_graph_counts"),
    "an event behind the device is behind the default stream": Fault(
        "streams.cpp", "for (Stream *stream : device.streams) last.push_back(stream->tail);", "",
        "behind_a_whole_device"),
    "a library looks where its arguments begin, not where they end": Fault(
        "memory.cpp", "done += found->base + found->bytes - from;", "done = bytes;", "may_touch"),
    "a peer's memory is everybody's": Fault(
        "memory.cpp", "if (there.device == &reader) return true;",
        "if (there.device) return true;", "may_touch"),
    "a host function calls CUDA": Fault(
        "state.h", "if (thread().host_function) return", "if (false) return",
        "host_function_may_not"),
    "all faults of kernels are one": Fault(
        "modules.cpp", "return Outcome{error, fault};", "return Outcome{error ? 700 : 0, fault};",
        "stays_as_the_error"),
    "what is written beside an allocation is seen by none": Fault(
        "memory.cpp", "if (!device.error) {\n            char", "if (false) {\n            char",
        "beside_an_allocation"),
    "work that is not ready is an error": Fault(
        "state.h", "error != cudaSuccess && error != cudaErrorNotReady", "error != cudaSuccess",
        "not_ready"),
    "a collective does not wait for the other ranks": Fault(
        "nccl.cpp", "return rank.posted >= it.number;", "return rank.posted >= 0;",
        "values_of_every_type"),
    "a rank's contribution is overwritten before all have read it": Fault(
        "nccl.cpp", "return rank.finished >= posted;", "return rank.finished >= 0 * posted;",
        "two_processes"),
    "collectives of one communicator on two streams have no order": Fault(
        "nccl.cpp", "return fresh || !cudaStreamWaitEvent(stream, *event, 0);",
        "return fresh || event;", "order_of_their_streams"),
    "a device stands still while its process waits for something else": Fault(
        "nccl.cpp", "hostcuda_drive(is_level, &comm);", "(void)0;", "two_processes"),
    "an abort ends nothing": Fault(
        "nccl.cpp", "return it.comm->aborted\n           || all_of", "return all_of",
        "a_question_does_not_wait", deadlock=True),
    "ranks that call different collectives are not told": Fault(
        "nccl.cpp", "if (other == call) continue;", "if (rank >= 0 || other == call) continue;",
        "different_collectives"),
    "memory of the host is taken for the device's": Fault(
        "nccl.cpp", "|| !found.devicePointer) return false;", ") return true;",
        "an_argument_that_nccl_refuses"),
    "the end of a rank is not told": Fault(
        "nccl.cpp", "        look_at_peers(comm);\n", "", "two_processes"),
    "a lost device goes on": Fault(
        "devices.cpp", "device.error = error;", "(void)error;", "every_later_call"),
    "the context of a lost device is whole": Fault(
        "driver.cpp", "return CUresult(thread().context->error);", "return CUDA_SUCCESS;",
        "every_later_call"),
    "a forked child uses CUDA": Fault(
        "queue.cpp", "runtime().forked = true;", "(void)device;", "forked_child"),
}


def outcome(native: Path, cache: Path, test: str) -> str:
    """What became of tests of the runtime, with libhostcuda made from that folder.

    "failed" is that a test of that name did, "passed" that all did and "deadlock" that none came to
    an end; all else is what pytest printed.
    """
    environment = os.environ | {
        "MUTATED": str(native), "GTENSOR_HOSTCUDA_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(
            [str(HERE.parent), str(HERE.parents[1])])}
    environment.pop("GTENSOR_HOSTCUDA", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "hostcuda.mutated", "-x", "--host-cuda",
               "-k", test, "-p", "no:cacheprovider", "-rf",
               *map(str, TESTS)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[1],
                               env=environment, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return "deadlock"
    failed = [line for line in ended.stdout.splitlines() if line.startswith("FAILED ")]
    if ended.returncode == 1 and any(test in line.split(" - ")[0] for line in failed):
        return "failed"
    if ended.returncode == 0:
        return "passed"
    return f"{ended.returncode}\n{ended.stdout}{ended.stderr}"


@pytest.fixture
def native(tmp_path):
    """A copy of the text to change, and a cache in which all of it is compiled already."""
    copy, cache = tmp_path / "native", tmp_path / "cache"
    shutil.copytree(build._NATIVE, copy)
    (cache / "native").mkdir(parents=True)
    for path in build.cache().iterdir():
        if path.name != "native":
            (cache / path.name).symlink_to(path)
    for path in (build.cache() / "native").glob("*.o"):
        (cache / "native" / path.name).symlink_to(path)
    return copy


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_seen(name, native):
    fault = FAULTS[name]
    path = native / fault.file
    text = path.read_text()
    assert text.count(fault.right) == 1
    path.write_text(text.replace(fault.right, fault.wrong))
    seen = outcome(native, native.parent / "cache", fault.test)
    assert seen == "failed" or (seen == "deadlock" and fault.deadlock), seen


def test_the_text_as_it_is_passes(native):
    assert outcome(native, native.parent / "cache", "random_programs or one_page") == "passed"
