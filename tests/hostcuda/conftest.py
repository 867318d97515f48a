"""What the tests on host devices share: CuPy, and the session's mode after each of them."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

import gtensor as gt
from gtensor import hostcuda
from gtensor.backend import devices
from gtensor.hostcuda.install import present

from .through import outside


@pytest.fixture(autouse=True)
def _as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked `host_cuda` choose modes and make errors that stay; neither outlives them.

    The others call the libraries alone, whose arguments lie in the host's memory.
    """
    if not request.node.get_closest_marker("host_cuda"):
        from gtensor.hostcuda.libraries.calls import runtime

        with patch.multiple(runtime, native=None, failures=[]):
            yield
        return
    before = present()
    del before["devices"], before["compiler"]
    yield
    _forget_constants()
    gc.collect()
    hostcuda.forgive()
    hostcuda.configure(**before)


def _forget_constants() -> None:
    """What devices keep for later runs: in a dry run it was not written."""
    for device in devices.cuda_devices.values():
        device.products._tables.clear()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The errors of the device that a library's work has made. They do not stay."""
    from gtensor.hostcuda.libraries.calls import runtime

    found: list[int] = []
    monkeypatch.setattr(runtime, "fail", lambda sentence, error=719: found.append(error))
    return found


@pytest.fixture
def dry_cuda() -> Iterator[None]:
    """The default device is a host device that counts its work and computes nothing."""
    hostcuda.configure("eager", dry=True)
    before = gt.default_device()
    gt.set_default_device("cuda")
    yield
    gt.set_default_device(before)


@pytest.fixture
def cupy() -> Any:
    import cupy

    return cupy


@pytest.fixture
def runtime(cupy: Any) -> Any:
    return cupy.cuda.runtime


@pytest.fixture
def child() -> Callable[..., str]:
    """Runs a program that installs hostcuda itself; its output. It may crash or hang."""
    def run(code: str, **environment: str) -> str:
        ran = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], text=True,
                             capture_output=True, timeout=900, env=outside() | environment)
        assert ran.returncode == 0, (ran.returncode, ran.stdout, ran.stderr)
        return ran.stdout

    return run
