"""pytest --host-cuda[=eager|deferred]: the tests that need a GPU run on a host device."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest

from gtensor.hostcuda.children import inherit, settings
from gtensor.hostcuda.install import configure, install, installed, present

_MODES = ("eager", "deferred")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hostcuda", "CUDA without a GPU")
    group.addoption("--host-cuda", nargs="?", const="eager", metavar="{eager,deferred}",
                    help="run on host devices: each operation at once, or deferred and shuffled")
    group.addoption("--host-cuda-devices", type=int, default=2, help="how many there are")
    group.addoption("--host-cuda-seed", type=int, help="of the deferred order, 0 if not given")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    given = early_config.known_args_namespace
    if given.host_cuda is None:
        return
    if given.host_cuda not in _MODES:
        # argparse takes the word behind --host-cuda for its value, be it a path.
        args[:] = ["--host-cuda=eager" if word == "--host-cuda" else word for word in args]
        again = parser.parse_known_args(args, namespace=copy.copy(early_config.option))
        given.host_cuda, given.file_or_dir = again.host_cuda, again.file_or_dir
    if given.host_cuda not in _MODES:
        raise pytest.UsageError(f"--host-cuda is eager or deferred, got {given.host_cuda!r}")
    asked: dict[str, Any] = {"mode": given.host_cuda}
    if given.host_cuda_seed is not None:
        asked["seed"] = given.host_cuda_seed
    if not installed():
        install(**(settings() or {"devices": given.host_cuda_devices, **asked}))
    found = present()
    fixed = {name: found.pop(name) for name in ("devices", "compiler")}
    configure(**(found | asked))
    inherit(os.environ, {**fixed, **found, **asked})


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not installed():
        return []
    found = present()
    return [f"hostcuda: {found['devices']} host devices, {found['mode']}, seed {found['seed']}"
            + (", dry" if found["dry"] else "")
            + (", NVRTC" if found["compiler"] == "nvrtc" else "")]
