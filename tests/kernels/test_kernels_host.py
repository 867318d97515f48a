"""Every kernel on the CPU under AddressSanitizer and UBSan, compared with PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import Case, all_cases, parameters
from kernel_host import HostExecutor
from kernel_races import every_kernel, launches


@pytest.mark.parametrize(("case", "dtype"), parameters())
def test_kernel_on_the_host(
    case: Case, dtype: np.dtype, host: HostExecutor, rng: np.random.Generator
) -> None:
    case.check(host, dtype, rng)


def test_the_table_launches_every_kernel() -> None:
    assert {launch.kernel for case in all_cases() for launch in launches(case)} == every_kernel()
