"""NCCL between two processes, each on a GPU of its own, or on host devices (docs/testing.md)."""

from __future__ import annotations

import pytest

from distributed import on_gpus

pytestmark = pytest.mark.multi_gpu


def test_collectives():
    assert on_gpus.run(on_gpus.collectives) == ["checked"] * 2


def test_order_of_streams_and_reuse_of_memory():
    wanted = []
    for turn in range(12):
        wanted += [2 * (turn + 3.0), (turn + 3.0) / 2]
    assert on_gpus.run(on_gpus.order) == [wanted] * 2


def test_a_captured_collective():
    wanted = []
    for turn in (1, 2, 3):  # x is 1, 2, 3 and 2, 3, 4
        wanted += [4.0 * turn + 3, 8.0 * turn + 6]
    assert on_gpus.run(on_gpus.captured) == [wanted] * 2


@pytest.mark.parametrize("tried", ["item", "later", "host"])
def test_a_rank_that_does_not_call(tried):
    seconds, text = on_gpus.run(on_gpus.late, tried)[0]
    assert 0.5 <= seconds <= 1.5
    for part in ("rank 0 of 2: all_reduce of shape (5, 2)", "on_gpus.py:", "within 0.5 s"):
        assert part in text


@pytest.mark.parametrize("kind", ["plain", "convolution", "zero"])
def test_losses_are_those_of_the_joint_batch(kind):
    """Uneven parts; float64 to 1e-12. Captured bit for bit: a rank records anew meanwhile."""
    alone = on_gpus.trained(None, kind)
    found = on_gpus.run(on_gpus.trained, kind)
    for losses in found:
        assert losses == pytest.approx(alone, rel=1e-12, abs=0)
    assert on_gpus.run(on_gpus.trained, kind, True) == found


def test_texts_and_other_groups():
    assert on_gpus.run(on_gpus.nothing) == [
        [[[1.0], [0.0]], [0.0]], [[[1.0], [0.0]], [1.0]]]
