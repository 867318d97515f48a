"""pytest --host-cuda[=eager|deferred]: the tests that need a GPU run on a host device."""

from __future__ import annotations

import os

import pytest

from gtensor.hostcuda.children import inherit, settings
from gtensor.hostcuda.install import install, installed


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hostcuda", "CUDA without a GPU")
    group.addoption("--host-cuda", nargs="?", const="eager", choices=("eager", "deferred"),
                    help="run on host devices: each operation at once, or deferred and shuffled")
    group.addoption("--host-cuda-devices", type=int, default=2, help="how many there are")
    group.addoption("--host-cuda-seed", type=int, default=0, help="of the deferred order")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    given = early_config.known_args_namespace
    if given.host_cuda is None or installed() or settings() is not None:
        return
    wanted = {"mode": given.host_cuda, "devices": given.host_cuda_devices,
              "seed": given.host_cuda_seed}
    install(**wanted)
    inherit(os.environ, wanted)


def pytest_report_header(config: pytest.Config) -> list[str]:
    given = config.option
    return [] if given.host_cuda is None else [
        f"hostcuda: {given.host_cuda_devices} host devices, {given.host_cuda}, "
        f"seed {given.host_cuda_seed}"]
