"""What the tests on host devices share: CuPy, and the session's mode after each of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from gtensor import hostcuda
from gtensor.hostcuda.install import present


@pytest.fixture(autouse=True)
def _as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked `host_cuda` choose modes and make errors that stay; neither outlives them."""
    if not request.node.get_closest_marker("host_cuda"):
        yield
        return
    before = present()
    del before["devices"]
    yield
    gc.collect()
    hostcuda.forgive()
    hostcuda.configure(**before)


@pytest.fixture
def cupy() -> Any:
    import cupy

    return cupy


@pytest.fixture
def runtime(cupy: Any) -> Any:
    return cupy.cuda.runtime
