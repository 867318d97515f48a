"""What the tests of the runtime's stand-in share: they go through CuPy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from gtensor.hostcuda import children

SEEDS = range(20)


def outside() -> dict[str, str]:
    """The environment of a program that installs hostcuda itself."""
    return {name: value for name, value in os.environ.items() if name != children.VARIABLE}


def streams(cupy: Any, count: int) -> list[Any]:
    """Streams that do not wait for the default one."""
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(count)]


@contextlib.contextmanager
def refused(cupy: Any, status: int) -> Iterator[Any]:
    """Within, a CUDA function answers that status."""
    errors = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError
    with pytest.raises(errors) as error:
        yield error
    assert error.value.status == status, error.value
