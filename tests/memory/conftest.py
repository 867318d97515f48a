"""Fixtures of the tests of memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def cheap_collections() -> Iterator[None]:
    """Every out-of-memory collects garbage; keep it from walking through pytest's objects."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
