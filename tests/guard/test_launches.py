"""The guard finds launches and copies more than are recorded, on a host device."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

import gtensor as gt
from gtensor import hostcuda
from gtensor.engine.tape.op import registry
from gtensor.hostcuda.install import present

from . import records
from .measure import measured_on_cuda

pytestmark = [pytest.mark.host_cuda, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    before = present()
    del before["devices"], before["compiler"]
    hostcuda.configure("eager")
    with gt.device("cuda"):
        yield
    hostcuda.configure(**before)


def _changes(name: str) -> list[str]:
    return records.launch_changes(name, measured_on_cuda(name))


def test_a_launch_more_is_found() -> None:
    path = registry["tanh"].gpu

    def twice(*arrays: object, **params: object) -> object:
        path(*arrays, **params)
        return path(*arrays, **params)

    with patch.object(registry["tanh"], "gpu", twice):
        lines = _changes("tanh")
    kernel = "cupy_tanh__float32_float32"
    assert f"tanh 0 float32, forward kernels {kernel}: 2, recorded 1" in lines
    assert "tanh 0 float32, forward blocks: 2, recorded 1" in lines


def test_a_copy_to_the_host_more_is_found() -> None:
    path = registry["tanh"].gpu

    def read(*arrays: object, **params: object) -> object:
        out = path(*arrays, **params)
        out.get()
        return out

    with patch.object(registry["tanh"], "gpu", read):
        lines = _changes("tanh")
    assert "tanh 0 float32, forward copies device to host: 1, recorded 0" in lines
    assert "tanh 0 float32, forward moved device to host: 28, recorded 0" in lines
    assert any("forward other synchronize" in line for line in lines)
