"""Every kernel on the CPU under AddressSanitizer and UBSan, compared with PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import Case, all_cases, parameters
from kernel_host import HostExecutor, HostMachine, Toolchain, file_text
from kernel_races import every_kernel, launches

from gtensor.backend import kernels


@pytest.mark.parametrize(("case", "dtype"), parameters())
def test_kernel_on_the_host(
    case: Case, dtype: np.dtype, host: HostExecutor, rng: np.random.Generator
) -> None:
    case.check(host, dtype, rng)


def test_the_table_launches_every_kernel() -> None:
    assert {launch.kernel for case in all_cases() for launch in launches(case)} == every_kernel()


def test_columns_with_indices_of_64_bits(
    toolchain: Toolchain, host: HostExecutor, monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    """Those of images that no test could hold."""
    text = kernels.source("im2col.cu").replace("GT_MOST_INDICES (1 << 30)", "GT_MOST_INDICES 0")
    assert text != kernels.source("im2col.cu")
    machine = HostMachine(toolchain.executable(file_text("im2col.cu", text)))
    monkeypatch.setitem(host.machines, "im2col.cu", machine)
    for case in all_cases():
        if case.name.startswith("im2col"):
            case.check(host, np.dtype(np.float32), rng)
    machine.close()
