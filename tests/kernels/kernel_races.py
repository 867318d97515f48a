"""Tiny launches under ThreadSanitizer: every CUDA thread an OS thread, two blocks at a time.

Random schedules find a missing barrier where it changes a value; ThreadSanitizer finds it wherever
nothing orders the two accesses, whatever they do.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import warnings
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from cases_multi_tensor import CUT, KERNELS, SIZE, blocks, case_name
from kernel_cases import DTYPES, Case, all_cases, raced_dtype
from kernel_host import HostMachine, file_text, multi_text, write_back
from kernel_toolchain import THREADS, Toolchain

from gtensor.backend import kernels
from gtensor.backend.multi_tensor import MultiTensor

MULTI = "multi_tensor"  # in the place of a file


@dataclass(frozen=True)
class Launched:
    """A launch that a case asked for."""

    kernel: tuple[str, str]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    elements: int

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        return self.blocks * math.prod(self.block)


class Recorder:
    """An executor that only notes what is launched."""

    def __init__(self) -> None:
        self.launched: list[Launched] = []

    def raw(
        self, file: str, function: str, dtype: Any, grid: tuple[int, ...], block: tuple[int, ...],
        args: list[Any], shared_mem: int = 0,
    ) -> None:
        sizes = [value.size for value in args if isinstance(value, np.ndarray)]
        self.launched.append(Launched((file, function), grid, block, max(sizes, default=0)))

    def elementwise(self, *rest: object) -> None:
        pass

    def multi(self, kernel: MultiTensor, *rest: object) -> None:
        self.launched.append(Launched(
            (MULTI, str(KERNELS.index(kernel))), (blocks(),), (kernels.BLOCK,), SIZE))


@functools.cache
def launches(case: Case) -> list[Launched]:
    """What a case launches; nothing is computed or compared."""
    recorder = Recorder()
    with contextlib.ExitStack() as stack:
        for module, compare in _comparing():
            stack.enter_context(mock.patch.object(module, compare, _passes))
        stack.enter_context(contextlib.suppress(AssertionError))
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        dtype = DTYPES[raced_dtype(case.dtypes)]
        case.check(recorder, dtype, np.random.default_rng(0))
    return recorder.launched


@functools.cache
def _comparing() -> list[tuple[Any, str]]:
    """Where cases look for their comparisons: modules and names."""
    return [(module, compare) for name, module in list(sys.modules.items())
            for compare in ("assert_close", "assert_equal")
            if name.startswith("cases_") and hasattr(module, compare)]


def _passes(*given: object, **options: object) -> None:
    """In the place of a comparison."""


def every_kernel() -> set[tuple[str, str]]:
    """The kernels of files, and those over many tensors by their numbers in the case table."""
    return {*[(file, name) for file in kernels.files() for name in kernels.functions(file)],
            *[(MULTI, str(number)) for number in range(len(KERNELS))]}


def tiny_cases() -> list[Case]:
    """Cases that launch every kernel, each with few threads: two blocks with work, if there are."""
    table = [(case, launches(case)) for case in all_cases()]
    best: dict[tuple[str, str], tuple[tuple[bool, bool, int], Case]] = {}
    for case, found in table:
        cost = sum(launch.threads for launch in found)
        for launch in found:
            rank = (launch.blocks < 2, launch.elements < 32, cost)
            if launch.kernel not in best or rank < best[launch.kernel][0]:
                best[launch.kernel] = (rank, case)
    return list({case.name: case for _, case in best.values()}.values())


class RaceExecutor:
    """Runs cases in one dtype under ThreadSanitizer."""

    def __init__(self, toolchain: Toolchain) -> None:
        self.toolchain = toolchain
        self.machines: dict[str, HostMachine] = {}

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()

    def raw(
        self, file: str, function: str, dtype: Any, grid: tuple[int, ...], block: tuple[int, ...],
        args: list[Any], shared_mem: int = 0,
    ) -> None:
        if 0 in grid:
            return
        if file not in self.machines:
            text = file_text(file, build=THREADS)
            self.machines[file] = HostMachine(self.toolchain.executable(text, THREADS))
        name = f"{function}<{kernels.c_type(dtype)}>"
        results = self.machines[file].launch(name, grid, block, args, shared_mem=shared_mem)
        write_back(args, results)

    def elementwise(self, *rest: object) -> None:
        """Its threads share nothing."""

    def multi(
        self, kernel: MultiTensor, dtype: Any, arrays: list[np.ndarray], numbers: np.ndarray,
        steps: np.ndarray, skip: np.ndarray, more: tuple[np.ndarray, ...]
    ) -> None:
        if MULTI not in self.machines:
            text = multi_text(THREADS)
            self.machines[MULTI] = HostMachine(self.toolchain.executable(text, THREADS))
        args = [*arrays, SIZE, CUT, numbers, steps, skip, *more]
        write_back(args, self.machines[MULTI].launch(
            case_name(kernel, "float"), (blocks(),), (kernels.BLOCK,), args))
