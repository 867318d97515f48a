"""Workspaces of blocks: nothing is allocated at inference, and no result lives in one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor.memory import serving
from gtensor.models import GPT, GPTConfig
from gtensor.nn.blocks import TransformerBlock
from gtensor.settings import settings


@pytest.fixture(autouse=True)
def _all_from_the_arena() -> Iterator[None]:
    with settings.override(arena_min_bytes=0):
        yield


def requests() -> int:
    stats = gt.memory.stats()
    return stats.hits + stats.misses


def block(dropout: float = 0.0) -> TransformerBlock:
    gt.manual_seed(0)
    return TransformerBlock(16, 2, dropout=dropout)


def x(length: int, seed: int = 0) -> gt.Tensor:
    return gt.tensor(np.random.default_rng(seed).standard_normal((1, length, 16), np.float32))


def test_a_warm_block_allocates_its_result_and_nothing_else():
    one, given = block(), x(5)
    with gt.no_grad():
        one(given)
        before = requests()
        one(given)
        assert requests() == before + 1
    usage = one.memory_usage()
    assert {"norm output", "mixing", "residual", "feed-forward"} <= usage.keys()
    assert all(u.in_use == 0 and u.capacity for u in usage.values())
    rows, item = 5, 4  # each named value but the result, and what the ops keep for backward
    assert one.bytes_saved > rows * item * sum(one.widths().values())


def test_training_keeps_there_what_backward_does_not_save():
    """What dropout reads, and nothing without it: the sums are part of the products."""
    for dropout, kept in ((0.1, {"mixing output", "feed-forward output"}), (0.0, set())):
        one, given = block(dropout), x(5).requires_grad_()
        for _ in range(3):
            one(given).sum().backward()
        assert one.memory_usage().keys() == kept
        assert kept <= one.widths().keys()


def test_growing_sequences_reallocate_a_logarithm_of_times():
    one = block()
    with gt.no_grad():
        for length in range(1, 65):
            one(x(length))
    names = len(one.workspace.on(gt.device("cpu"))._slots)
    assert one.workspace.allocations <= 7 * names  # 1, 2, 4, ..., 64 positions


def test_a_value_that_is_kept_is_not_written_again():
    one, kept = block(), []
    one.linear1.register_forward_hook(lambda module, args, y: kept.append(y))
    with gt.no_grad():
        for seed in range(3):
            one(x(5, seed))
    values = [y.numpy().copy() for y in kept]
    assert not np.array_equal(values[0], values[1])
    with gt.no_grad():
        one(x(5, 9))
    for y, value in zip(kept, values, strict=False):
        assert np.array_equal(y.numpy(), value)


def test_a_workspace_that_ignores_living_arrays_is_found():
    """The test above fails for one that hands out a slot whose array is alive."""
    def careless(self: serving.Slot) -> list[int]:
        return [0, 0]

    class Careless(serving.Slot):
        __slots__ = ()
        idle = property(careless, lambda self, value: None)

    with (patch("gtensor.memory.workspace.Slot", Careless),
          pytest.raises(AssertionError)):
        test_a_value_that_is_kept_is_not_written_again()


def test_ensure_capacity_makes_room_ahead_and_release_gives_it_back():
    one = block()
    one.ensure_capacity(1, 33, 16)
    assert all(u.capacity >= 33 * 16 * 4 for u in one.memory_usage().values())
    made = one.workspace.allocations
    assert made
    with pytest.raises(ValueError, match="width=8 was asked of a block; wanted"):
        one.ensure_capacity(1, 33, 8)
    with gt.no_grad():
        result = one(x(33))
    held = gt.memory.stats().allocated
    value = result.numpy().copy()
    one.release_workspace()
    assert gt.memory.stats().allocated < held and not one.memory_usage()
    with gt.no_grad():
        again = one(x(33))
    assert np.array_equal(again.numpy(), value) and np.array_equal(result.numpy(), value)


def test_a_model_makes_room_for_its_blocks_and_its_stream():
    gt.manual_seed(0)
    model = GPT(GPTConfig(layers=3, width=16, heads=2))
    model.ensure_capacity(2, 33, 16)
    found = model.memory_usage()
    assert {"stream 0", "stream 1", "residual", "feed-forward"} <= found.keys()
    assert found["stream 1"].capacity >= 2 * 33 * 16 * 4
    assert found == model.blocks[2].memory_usage()  # one workspace for all


def test_copies_of_a_block_have_workspaces_of_their_own():
    one = block()
    with gt.no_grad():
        one(x(4))
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert not other.memory_usage()
        assert np.array_equal(other(x(4)).numpy(), one(x(4)).numpy())


def test_an_error_within_leaves_the_arena_as_it_was():
    one = block()
    resource = gt.device("cpu").resource
    with pytest.raises(ZeroDivisionError), one.places(gt.device("cpu")) as place, place("a"):
        assert gt.device("cpu").resource is not resource
        raise ZeroDivisionError
    assert gt.device("cpu").resource is resource
    with gt.memory.use_arena(False), gt.no_grad():
        one(x(3))
    assert not one.memory_usage()


def test_a_limit_is_kept():
    with gt.memory.Workspace("cpu", limit=1 << 12) as workspace, workspace.serving():
        given = gt.ones(1000)
        with workspace.named("a"):
            small = given * 2.0
        with pytest.raises(gt.memory.OutOfMemoryError, match="buffer 'b' wants"), \
                workspace.named("b"):
            given + 1.0
        assert workspace.memory_usage().buffers["a"].in_use == small.nbytes
