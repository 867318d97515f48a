"""Fixtures of the tests of neural-network ops."""

from __future__ import annotations

import zlib

import numpy as np
import pytest


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of this test's own, the same in every run."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
