"""Every kernel under ThreadSanitizer, in tiny launches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from kernel_cases import DTYPES, Case, raced_dtype
from kernel_host import Toolchain
from kernel_races import RaceExecutor, every_kernel, launches, tiny_cases

TINY = tiny_cases()
MOST_THREADS = 6000  # OS threads that one case starts, one after the other


@pytest.fixture(scope="module")
def races(toolchain: Toolchain) -> Iterator[RaceExecutor]:
    executor = RaceExecutor(toolchain)
    yield executor
    executor.close()


@pytest.mark.parametrize("case", [  # by TF32, and of the largest heads, barriers are others' text
    pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (
        "tf32" in case.name or "largest-heads" in case.name or case.name.endswith("with-a-tail")))
    for case in TINY])
def test_kernel_has_no_race(case: Case, races: RaceExecutor, rng: np.random.Generator) -> None:
    case.check(races, DTYPES[raced_dtype(case.dtypes)], rng)


def test_the_tiny_cases_are_tiny_and_launch_every_kernel() -> None:
    found = {case.name: launches(case) for case in TINY}
    for name, launched in found.items():
        assert sum(launch.threads for launch in launched) <= MOST_THREADS, name
    assert {launch.kernel for launched in found.values() for launch in launched} == every_kernel()
