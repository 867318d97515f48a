"""What the tests on host devices share: CuPy, and the session's mode put back after each."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from gtensor import hostcuda


@pytest.fixture(autouse=True)
def _as_before(request) -> Iterator[None]:
    """A test sets its own mode and may end in an error that stays."""
    yield
    if request.node.get_closest_marker("host_cuda"):
        gc.collect()
        hostcuda.forgive()
        given = request.config.option
        hostcuda.configure(given.host_cuda, given.host_cuda_seed)


@pytest.fixture
def cupy():
    import cupy

    return cupy


@pytest.fixture
def runtime(cupy):
    return cupy.cuda.runtime
