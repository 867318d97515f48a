"""Kernels on the CPU: compiled by g++ with sanitizers, run in a child.

They see what the host device gives them (gtensor/hostcuda/fibers/device.h), and run on its fibers.
`HostMachine(executable)` is one child for one CUDA text; `HostExecutor` runs the case table
(kernel_cases.py) on machines for all kernel files, under several schedules that must agree bit for
bit. `RaceExecutor` (kernel_races.py) runs tiny cases under ThreadSanitizer.

A kernel's text is compiled as it is, but for the declaration of dynamic shared memory, which
becomes a pointer (gtensor/hostcuda/kernels/text.py). Elementwise one-liners become a loop.

Covered: threadIdx and its like in three dimensions; static and dynamic __shared__ memory, its exact
bounds; __syncthreads and its or, and, count; __syncwarp, __shfl_*_sync, __ballot_sync, __any_sync,
__all_sync, __activemask (all lanes that have not ended); atomics of the types that CUDA has them
for; __threadfence before a ticket; float4 and the other vector types, their alignment; half and
bfloat16 conversions and operators; __ldg and its like as plain loads; the math functions of C;
tensor cores and copies without registers by the C++ forms of mma.cuh (__HOSTCUDA__). Faults: an
access outside an array, misaligned, or racing; a divergent barrier; a shuffle or vote that a living
lane of its mask does not come to, or that reads a lane that takes no part; a copy that nobody waits
for; a launch of over 100 s.

Not covered: inline PTX itself, wgmma, TMA, cooperative groups, clusters, a block that waits for
another one, textures, half atomics and half intrinsics (__hfma2, hexp). A fence in the wrong place
or of too small a scope. Rounding of CUDA's own math functions, -ftz=true and fused multiply-adds:
the host rounds as C++ does. Shared memory read before it is written (dynamic shared memory starts
as NaN, static keeps what was there). Performance.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from cases_multi_tensor import CUT, KERNELS, SIZE, blocks, case_name, cases_text
from kernel_cases import raced_dtype
from kernel_machine import HostMachine, KernelFault
from kernel_text import element_name, elementwise_text, is_array
from kernel_toolchain import FIBERS, Build, Toolchain

from gtensor.backend import kernels
from gtensor.backend.kernels import Elementwise
from gtensor.backend.multi_tensor import MultiTensor
from gtensor.hostcuda.kernels.text import host_text

__all__ = ["FIBERS", "SCHEDULES", "HostExecutor", "HostMachine", "KernelFault", "Toolchain",
           "bodies_text", "file_text", "launch_all_schedules", "machine_text", "write_back"]

SCHEDULES = (0, 1, 20, 21)
"""Blocks and threads first to last, last to first, and in two random orders."""


def file_text(file: str, text: str | None = None, build: Build = FIBERS) -> str:
    """A kernel file for a machine: its text (or a changed one), and its kernels registered.

    ThreadSanitizer gets the kernels for one dtype only: dtypes do not differ in their barriers.
    """
    dtypes = kernels.dtypes(file) if build is FIBERS else (raced_dtype(kernels.dtypes(file)),)
    names = [f"{function}<{kernels.C_TYPES[dtype]}>" for function in kernels.functions(file)
             for dtype in dtypes]
    return machine_text(text or kernels.source(file), names, build)


def bodies_text(bodies: list[Elementwise]) -> str:
    """Elementwise kernels for the machine of fibers."""
    names = [element_name(index, body, dtype) for index, body in enumerate(bodies)
             for dtype in kernels.C_TYPES]
    text = '#include "elementwise_half.h"\n' + elementwise_text(bodies)
    return machine_text(text, list(dict.fromkeys(names)))


def multi_text(build: Build = FIBERS) -> str:
    """The kernels over many tensors of the case table."""
    ctypes = kernels.C_TYPES.values() if build is FIBERS else ("float",)
    return machine_text(kernels.inline_includes(cases_text(KERNELS), "multi_tensor"),
                        [case_name(kernel, ctype) for kernel in KERNELS for ctype in ctypes], build)


def machine_text(text: str, names: list[str], build: Build = FIBERS) -> str:
    """A CUDA text for a machine, with the kernels of these name expressions registered.

    The toolchain includes server.h before it.
    """
    text = host_text(text)
    parts = []
    for copy in range(build.copies):
        parts += [f"namespace gt_copy_{copy} {{", '#line 1 "text"', text, '#line 1 "registrations"']
        parts += [f"HOSTCUDA_SERVE({index}, {copy}, {name});" for index, name in enumerate(names)]
        parts += ["}", ""]
    return "\n".join(parts)


class HostExecutor:
    """Runs cases on the host: every launch under all `SCHEDULES`, which must agree bit for bit."""

    def __init__(self, toolchain: Toolchain, bodies: list[Elementwise]) -> None:
        self.bodies = bodies
        texts = [*[file_text(file) for file in kernels.files()], bodies_text(bodies), multi_text()]
        toolchain.machine()
        with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 4)) as pool:
            machines = [HostMachine(path) for path in pool.map(toolchain.executable, texts)]
        self.machines = dict(zip(kernels.files(), machines[:-2], strict=True))
        self.body_machine, self.multi_machine = machines[-2:]

    def close(self) -> None:
        for machine in (*self.machines.values(), self.body_machine, self.multi_machine):
            machine.close()

    def raw(
        self, file: str, function: str, dtype: Any, grid: tuple[int, ...], block: tuple[int, ...],
        args: list[Any], shared_mem: int = 0,
    ) -> None:
        """Launch a raw kernel; the arrays among `args` are updated in place."""
        name = f"{function}<{kernels.c_type(dtype)}>"
        launch_all_schedules(self.machines[file], name, grid, block, args, shared_mem)

    def elementwise(
        self, kernel: Elementwise, dtype: Any, inputs: list[Any], outputs: list[np.ndarray]
    ) -> None:
        """Launch an elementwise kernel over dense arrays, updating `outputs` in place."""
        name = element_name(self.bodies.index(kernel), kernel, np.dtype(dtype).name)
        args: list[Any] = [outputs[0].size, *map(_number, inputs), *outputs]
        assert all(isinstance(value, np.ndarray) == is_array(parameter)
                   for value, parameter in zip(inputs, kernel.inputs, strict=True))
        grid, _ = kernels.flat_launch(outputs[0].size)
        launch_all_schedules(self.body_machine, name, grid, (kernels.BLOCK,), args)


    def multi(
        self, kernel: MultiTensor, dtype: Any, arrays: list[np.ndarray], numbers: np.ndarray,
        steps: np.ndarray, skip: np.ndarray, more: tuple[np.ndarray, ...]
    ) -> None:
        """Launch a kernel over the tensors of a case, updating its arrays in place."""
        name = case_name(kernel, kernels.c_type(dtype))
        args = [*arrays, SIZE, CUT, numbers, steps, skip, *more]
        launch_all_schedules(self.multi_machine, name, (blocks(),), (kernels.BLOCK,), args)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def launch_all_schedules(
    machine: HostMachine, name: str, grid: tuple[int, ...], block: tuple[int, ...],
    args: list[Any], shared_mem: int = 0,
) -> None:
    """Launch under every schedule, compare the results, and write them to the arrays of `args`."""
    if 0 in grid:
        return  # as kernels.Launcher does
    runs = [machine.launch(name, grid, block, args, schedule, shared_mem) for schedule in SCHEDULES]
    for schedule, run in zip(SCHEDULES[1:], runs[1:], strict=True):
        for at, (one, other) in enumerate(zip(runs[0], run, strict=True)):
            assert one.tobytes() == other.tobytes(), (
                f"{name}: array argument {at} differs between schedules 0 and {schedule}; wanted "
                "equal bits (a missing barrier? a sum in the order of atomics?)"
            )
    write_back(args, runs[0])


def write_back(args: list[Any], results: list[np.ndarray]) -> None:
    """Write a launch's results to the arrays of its arguments."""
    distinct = {id(value): value for value in args if isinstance(value, np.ndarray)}
    for array, result in zip(distinct.values(), results, strict=True):
        array[...] = result
