"""Programs of gtensor in random orders that CUDA allows: none gives a wrong result.

With gtensor's ordering switched off most orders must, or the programs prove nothing. The faults
that they find one by one are in the table of faults (`tests/faults/plants_streams.py`).
"""

from __future__ import annotations

import pytest

import gtensor as gt

from .programs import PROGRAMS, unordered, wrong

pytestmark = pytest.mark.host_cuda
SEEDS = pytest.mark.parametrize("seeds", [
    pytest.param(range(4), id="few"),
    pytest.param(range(200), id="200", marks=pytest.mark.slow)])


@SEEDS
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_order_gives_a_wrong_result(name, seeds):
    assert wrong(PROGRAMS[name], seeds) == []


@SEEDS
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_gtensors_ordering_most_orders_do(name, seeds):
    with unordered():
        assert len(wrong(PROGRAMS[name], seeds)) >= 0.75 * len(seeds)


@SEEDS
def test_cupys_pool_reuses_what_another_stream_reads_and_the_arena_does_not(seeds):
    """github.com/cupy/cupy/issues/8068"""
    import cupy

    gt.device("cuda")  # takes CuPy's allocator over, which it cannot within the block
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
        assert len(wrong(PROGRAMS["foreign"], seeds)) >= 0.75 * len(seeds)
    assert wrong(PROGRAMS["foreign"], seeds) == []
