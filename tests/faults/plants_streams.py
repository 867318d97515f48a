"""Mutations of the order between streams, found where the host device runs work in random order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from gtensor.backend import cublas, cuda, cuda_graphs, cuda_guards, layouts, ordering
from gtensor.backend.cuda import CudaDevice
from gtensor.backend.cuda_graphs import Capture
from gtensor.backend.cuda_streams import CudaStream
from gtensor.backend.ordering import Ordering
from gtensor.engine.walk.slots import RawStep
from gtensor.execution.streams import Event
from gtensor.memory.arena import streams
from gtensor.memory.arena.arena import Arena
from gtensor.memory.arena.graphs import GraphPool
from gtensor.memory.arena.streams import Streams
from gtensor.memory.plan.planned import Planned
from gtensor.ops.define.updates import Update

Context = AbstractContextManager[Any]


def _nothing(*_: Any) -> None:
    """Replaces a part of the ordering."""


def _wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Context:
    """`owner` with a method replaced by wrap(the right one)."""
    return patch.object(owner, name, wrap(getattr(owner, name)))


# -- backend/ordering.py ---------------------------------------------------------------------------


def reader_does_not_wait() -> Context:
    """an op does not wait for another stream that wrote its input"""
    def read(order: Ordering, reader: Any, block: Any) -> None:
        order._note(block, reader.id)
    return patch.object(Ordering, "read", read)


def writer_forgets_readers() -> Context:
    """an in-place op waits for the writer, but not for the readers"""
    def wrap(right: Any) -> Any:
        def write(order: Ordering, writer: Any, *blocks: Any) -> None:
            for block in blocks:
                block.readers = set()
            right(order, writer, *blocks)
        return write
    return _wrapped(Ordering, "write", wrap)


def write_not_remembered() -> Context:
    """after an in-place op the block still counts as written by the stream that made it"""
    return patch.object(ordering, "_written_by", _nothing)


def event_of_an_earlier_write() -> Context:
    """a reader waits for the event behind an earlier write"""
    def wrap(right: Any) -> Any:
        def wait(order: Ordering, waiter: Any, producer: int, number: int) -> int:
            return right(order, waiter, producer, number or 1)
        return wait
    return _wrapped(Ordering, "_wait", wrap)


def producer_waits_for_the_reader() -> Context:
    """the producer waits for its reader"""
    def wrap(right: Any) -> Any:
        def wait(order: Ordering, waiter: Any, producer: int, number: int) -> int:
            other = order._stream_of(producer)
            return right(order, waiter, producer, number) if other is None else right(
                order, other, waiter.id, 0)
        return wait
    return _wrapped(Ordering, "_wait", wrap)


def ended_stream_forgotten() -> Context:
    """a reader does not wait for the work of an ended stream"""
    def forget(order: Ordering, stream: int, last: Any) -> None:
        order._latest.pop(stream, None)
    return patch.object(Ordering, "forget", forget)


def unknown_memory_unordered() -> Context:
    """an op on another library's memory does not wait for other streams"""
    return patch.object(Ordering, "behind_all", _nothing)


# -- streams and copies ----------------------------------------------------------------------------


def wait_on_the_current_stream() -> Context:
    """`wait` of a stream makes the current stream wait instead"""
    def wrap(right: Any) -> Any:
        return lambda stream, event: right(stream._book.current(), event)
    return _wrapped(CudaStream, "wait", wrap)


def event_on_the_current_stream() -> Context:
    """`record` of a stream records an event on the current stream instead"""
    def wrap(right: Any) -> Any:
        return lambda stream: right(stream._book.current())
    return _wrapped(CudaStream, "record", wrap)


def _left_out_by(module: str) -> Callable[[Any], Any]:
    """A method that does nothing for calls from that module."""
    def wrap(right: Any) -> Any:
        def method(self: Any, *given: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"] != module:
                return right(self, *given)
            return None
        return method
    return wrap


def collective_before_its_arrays() -> Context:
    """a collective does not wait for other streams' work on its arrays"""
    return _wrapped(CudaDevice, "order", _left_out_by("gtensor.distributed.nccl"))


def collectives_result_not_waited_for() -> Context:
    """`Work.wait` does not make the current stream wait for a collective of NCCL"""
    return _wrapped(CudaStream, "wait", _left_out_by("gtensor.distributed.nccl"))


def deadline_not_raised() -> Context:
    """the thread that looks for deadlines raises nothing in the thread that waits"""
    return patch("gtensor.distributed.nccl.raise_in", _nothing)


def collective_not_aborted() -> Context:
    """a collective that missed its deadline goes on waiting"""
    return patch("gtensor.backend.nccl.NcclCommunicator.abort", _nothing)


def users_wait_on_the_current_stream() -> Context:
    """`gt.Event.wait` ignores the given stream"""
    return patch.object(Event, "_on", lambda event, stream: event._device.current_stream())


def copied_to_the_host_too_early() -> Context:
    """values are copied to the host without waiting for the stream that computes them"""
    return patch.object(CudaDevice, "to_numpy", lambda device, array: device.xp.asnumpy(array))


def exported_too_early() -> Context:
    """DLPack's consumer does not wait for the stream that wrote the array"""
    return patch.object(CudaDevice, "exported", _nothing)


def pinned_memory_read_late() -> Context:
    """a copy from page-locked memory returns before the memory has been read"""
    return patch.object(cuda, "is_pinned", lambda array: False)


def gradient_overwritten_unordered() -> Context:
    """a gradient is overwritten without waiting for another stream that reads it"""
    def wrap(right: Any) -> Any:
        def reuse(step: RawStep, g: Any) -> Any:
            direct, step.direct = step.direct, True
            try:
                return right(step, g)
            finally:
                step.direct = direct
        return reuse
    return _wrapped(RawStep, "reuse", wrap)


def written_out_unordered() -> Context:
    """a buffer that an op overwrites is ordered as read"""
    return patch.object(cuda_guards, "_WRITTEN", ())


# -- the arena -------------------------------------------------------------------------------------


def use_not_noted() -> Context:
    """the use of a block by another stream is not noted, so it is reused at its free"""
    return patch.object(Arena, "record_use", _nothing)


def free_without_event() -> Context:
    """a block that another stream uses returns to its list at its free, without an event"""
    def retire(orders: Streams, chunk: Any) -> bool:
        chunk.uses = None
        return False
    return patch.object(Streams, "retire", retire)


def event_taken_for_done() -> Context:
    """a freed block is reused as soon as its event is recorded"""
    return patch.object(streams, "_done", lambda event: True)


def claimed_without_wait() -> Context:
    """a stream claims memory that others still use, and does not wait for them"""
    return patch.object(Streams, "_wait", _nothing)


def taken_from_a_stream_unordered() -> Context:
    """a stream gets free memory of another one, and does not wait for its work"""
    return patch.object(Streams, "order", _nothing)


def inherited_without_wait() -> Context:
    """memory of an ended stream is reused before its work is done"""
    def wrap(right: Any) -> Any:
        return lambda orders, stream, last: right(orders, stream, None)
    return _wrapped(Streams, "forget", wrap)


def planned_use_not_noted() -> Context:
    """a planned place that another stream uses is reused at its free"""
    def record_use(resource: Planned, block: Any, stream: int) -> None:
        resource.upstream.record_use(block.node.region.reserved, stream)
    return patch.object(Planned, "record_use", record_use)


# -- graphs ----------------------------------------------------------------------------------------


def replay_before_its_inputs() -> Context:
    """a replay does not wait for the writers of its inputs"""
    def wrap(right: Any) -> Any:
        def launch(capture: Capture, stream: Any, outputs: Any) -> None:
            touched, capture.touched = capture.touched, cuda_graphs.Touched(capture.touched.replays)
            try:
                capture.touched.written = touched.written
                right(capture, stream, outputs)
            finally:
                capture.touched = touched
        return launch
    return _wrapped(Capture, "launch", wrap)


def replay_over_its_readers() -> Context:
    """a replay writes results that another stream still reads"""
    def wrap(right: Any) -> Any:
        return lambda capture, stream, outputs: right(capture, stream, ())
    return _wrapped(Capture, "launch", wrap)


def replay_writes_unordered() -> Context:
    """a replay that writes tensors from before the capture counts as reading them"""
    def wrap(right: Any) -> Any:
        def launch(capture: Capture, stream: Any, outputs: Any) -> None:
            touched, capture.touched = capture.touched, cuda_graphs.Touched(capture.touched.replays)
            try:
                capture.touched.read = touched.read | touched.written
                right(capture, stream, outputs)
            finally:
                capture.touched = touched
        return launch
    return _wrapped(Capture, "launch", wrap)


def numbers_copied_unordered() -> Context:
    """what a replay reads is copied to the device while an earlier replay may still read it"""
    def upload(device: CudaDevice, array: Any, values: Any) -> None:
        with device.cupy_device:
            array.set(np.asarray(values, array.dtype))
    return patch.object(CudaDevice, "upload", upload)


def replays_of_one_pool_at_once() -> Context:
    """graphs that share memory replay at the same time"""
    @contextmanager
    def replaying(pool: GraphPool, stream: Any) -> Any:
        yield
        pool._replays[pool.number] = stream.id, stream.record()
    return patch.object(GraphPool, "replaying", replaying)


def replay_over_freed_results() -> Context:
    """a replay writes results that were dropped while another stream still reads them"""
    return patch.object(Streams, "order_retired", _nothing)


def graph_memory_freed_too_early() -> Context:
    """the memory of a dropped graph is reused before its last replay is done"""
    return patch.object(GraphPool, "__del__", lambda pool: (
        pool._replays.clear(), pool.arena.forget_stream(pool.number)))


def graph_memory_captured_without_wait() -> Context:
    """a capture takes memory of dropped graphs without waiting for their work"""
    def wrap(right: Any) -> Any:
        return lambda orders, home, ended: right(
            orders, SimpleNamespace(wait=_nothing, record=home.record), ended)
    return _wrapped(Streams, "settle_ended", wrap)


def graph_memory_shared() -> Context:
    """a capture allocates from the pools of streams, and frees into them"""
    return patch.object(GraphPool, "capturing", lambda pool, *streams: nullcontext())


# -- calls of kernels and libraries ----------------------------------------------------------------


def kernel_arguments_swapped() -> Context:
    """the kernel of SGD gets the weight decay as its rate, and the rate as its decay"""
    def wrap(right: Any) -> Any:
        def numbers(update: Update, params: Any) -> Any:
            if update.formula.name != "sgd":
                return right(update, params)
            return right(update, {**params, "rate": params["weight_decay"],
                                  "weight_decay": params["rate"]})
        return numbers
    return _wrapped(Update, "numbers", wrap)


@contextmanager
def leading_dimension_of_another_layout() -> Iterator[None]:
    """a product gets the number of rows as its leading dimension, where that is larger"""
    def wrap(right: Any) -> Any:
        return lambda rows, columns, down, across: right(rows, columns, down, across) and max(
            rows, columns)
    layouts.plan.cache_clear()  # plans made without the fault
    try:
        with _wrapped(layouts, "_leading", wrap):
            yield
    finally:
        layouts.plan.cache_clear()


def product_on_another_stream() -> Context:
    """products are queued on the default stream, not on the current one"""
    def wrap(right: Any) -> Any:
        def use(handle: Any, stream: Any, workspace: Any) -> None:
            right(handle, stream, workspace)
            cublas.call("cublasSetStream_v2", handle.pointer, None)
        return use
    return _wrapped(cublas._Handle, "use", wrap)
