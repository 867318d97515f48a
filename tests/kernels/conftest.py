"""Fixtures of the kernel tests."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import kernel_kept
import numpy as np
import pytest
from kernel_host import HostExecutor, Toolchain
from kernel_nvrtc import Compiler

from gtensor.backend import kernels

COMPILED = ("test_kernels_compile.py", "test_kernels_sass.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What NVRTC compiles is looked at last: it compiles in threads while the other tests run."""
    items.sort(key=lambda item: item.path.name in COMPILED)


@pytest.fixture(scope="session", autouse=True)
def compiling(request: pytest.FixtureRequest) -> None:
    """Sets the compiler to the kernel files of the selected tests."""
    for item in request.session.items:
        if getattr(item, "originalname", "") == "test_kernel_file_compiles":
            asked = item.callspec.params  # type: ignore[attr-defined]
            compiler: Compiler = request.getfixturevalue("compiler")
            ctype = kernels.C_TYPES[asked["dtype"]]
            compiler.later_kernel_file(asked["file"], (ctype,), asked["architecture"])


@pytest.fixture(scope="session")
def kept_in() -> Path:
    """The folder of what compilers made, before and now."""
    return kernel_kept.folder()


@pytest.fixture(scope="session")
def toolchain(kept_in: Path) -> Toolchain:
    """g++ and what it built."""
    return Toolchain(kept_in)


@pytest.fixture(scope="session")
def compiler(kept_in: Path) -> Iterator[Compiler]:
    """NVRTC and what it compiled."""
    compiler = Compiler(kept_in)
    yield compiler
    compiler.close()


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
