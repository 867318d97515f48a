"""Fixtures of the kernel tests."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_host import HostExecutor, Toolchain


@pytest.fixture(scope="session")
def toolchain(request: pytest.FixtureRequest) -> Toolchain:
    """g++ and the folder of what it built, kept between runs in pytest's cache."""
    cache = request.config.cache
    assert cache is not None
    return Toolchain(cache.mkdir("gtensor-kernels"))


@pytest.fixture(scope="session")
def host(toolchain: Toolchain) -> Iterator[HostExecutor]:
    """All kernels on the CPU."""
    from cases_elementwise import BODIES

    executor = HostExecutor(toolchain, BODIES)
    yield executor
    executor.close()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of this test's own, the same in every run."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
