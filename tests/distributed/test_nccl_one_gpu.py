"""NCCL with one rank, which one GPU can run: in every dtype, on streams, and within graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gtensor as gt
from distributed import on_gpus
from gtensor.backend import nccl
from gtensor.distributed import Communicator
from gtensor.distributed.alone import Alone

pytestmark = pytest.mark.gpu


@pytest.fixture
def comm() -> Iterator[Communicator]:
    if not nccl.available():
        pytest.skip("NCCL is not installed: pip install 'gtensor[nccl]'")
    from gtensor.distributed.nccl import Nccl

    assert nccl.version() >= (2, 18, 1)
    engine = Nccl(gt.device("cuda"), Alone(), 60.0)
    yield Communicator(engine, 60.0)
    engine.close()


def test_collectives(comm):
    assert on_gpus.collectives(comm) == "checked"


def test_a_captured_collective(comm):
    assert on_gpus.captured(comm) == [3.0, 3.0, 5.0, 5.0, 7.0, 7.0]


def test_order_of_streams_and_reuse_of_memory(comm):
    wanted = [value for turn in range(12) for value in (turn + 3.0, (turn + 3.0) / 2)]
    assert on_gpus.order(comm) == wanted
