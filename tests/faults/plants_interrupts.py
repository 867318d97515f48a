"""Mutations for interrupts, forks and finalizers; see `plants.py`."""

from __future__ import annotations

import sys
import threading
from typing import Any
from unittest.mock import patch

from gtensor.engine.handle import context
from gtensor.engine.run import take_over
from gtensor.engine.walk import walk
from gtensor.engine.walk.slots import RawStep
from gtensor.memory.arena import arena, segments
from gtensor.memory.arena.chunks import Chunk
from gtensor.ops.norms import batch_norm
from gtensor.ops.updates import optimizers
from gtensor.system import fork_safety
from gtensor.system.interrupts import undivided

from .plants import Context


def free_enters_python() -> Context:
    """a block's free is a Python function that appends its chunk to the queue"""
    return patch.object(arena, "MethodType", lambda free, chunk: lambda: free(chunk))


def new_segment_given_once() -> Context:
    """the call that makes a new segment free is not repeated after an interrupt"""
    right = segments.give_all

    def give_all(chunks: list[Chunk]) -> None:
        if sys.exc_info()[0] is None:
            right(chunks)
    return patch.object(segments, "give_all", give_all)


def lock_unknown_to_forks() -> Context:
    """a fork does not wait for the lock of claims"""
    right = fork_safety._known.there
    return patch.object(fork_safety._known, "there", lambda: [
        lock for lock in right() if lock is not walk._claims])


def claims_not_reentrant() -> Context:
    """the lock of claims is not reentrant"""
    return patch.object(walk, "_claims", threading.Lock())


def walk_undone_once() -> Context:
    """the end of a walk that an interrupt cut short is not made up for"""
    right = RawStep.undo

    def undo(step: RawStep) -> None:
        if sys.exc_info()[0] is None:
            right(step)
    return patch.object(RawStep, "undo", undo)


def input_taken_behind_the_write() -> Context:
    """a call stands between an op's write over its input and the store that takes it"""
    class Left(tuple[Any, ...]):
        def __bool__(self) -> bool:
            return True
    right = take_over._left
    return patch.object(take_over, "_left", lambda x, op: Left(right(x, op)))


def statistics_counted_behind_the_write() -> Context:
    """running statistics count as written when batch norm's op has ended"""
    right = batch_norm.count_write

    def act(*given: Any, **options: Any) -> Any:
        late: list[Any] = []
        with patch.object(batch_norm, "count_write", late.append):
            result = batch_norm_act(*given, **options)
        for buffer in late:
            right(buffer)
        return result
    batch_norm_act = batch_norm.batch_norm_act
    return patch.object(batch_norm, "batch_norm_act", act)


def step_interrupted_between_writes() -> Context:
    """SIGINT's handler is called between the writes of an optimizer's step"""
    return patch.object(undivided, "__enter__", lambda block: None)


def memory_asked_for_between_writes() -> Context:
    """Adam asks for the buffers of its tensors when it writes them, dtype by dtype"""
    return patch.object(optimizers.adam, "asks", None)


def mode_set_when_made() -> Context:
    """no_grad() changes the mode when it is made, not when its block is entered"""
    right = context.no_grad.__init__

    def init(block: context.no_grad) -> None:
        right(block)
        block._before = context.grad_enabled()
        context.record_ops(False)

    def leave(block: context.no_grad, *exception: object) -> None:
        context.record_ops(block._before)
    return patch.multiple(
        context.no_grad, __init__=init, __enter__=lambda block: None, __exit__=leave)
