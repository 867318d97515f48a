"""Broken kernels with warps, atomics, fences, vectors and dynamic shared memory are caught.

Not detectable: a fence in the wrong place, a __threadfence_block where __threadfence is wanted (a
ticket without any __threadfence is a race for ThreadSanitizer), and a block that waits for another
one is no more than a launch that takes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kernel_plants
import numpy as np
import pytest
from kernel_host import HostMachine, KernelFault, Toolchain, machine_text
from kernel_plants import Plant
from kernel_samples import ATOMICS, VECTORS, WARPS
from kernel_toolchain import FIBERS, THREADS, Build

X = np.arange(128, dtype=np.float32)
NUMBERS = np.arange(128, dtype=np.int32)
TICKET = np.zeros(1, np.uint32)


def _launch(name: str, block: int, args: list[Any], grid: int = 1, shared_mem: int = 0) -> Any:
    def run(machine: HostMachine) -> None:
        machine.launch(name, (grid,), (block,), args, 20, shared_mem)

    return run


def _replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


SHUFFLES = _launch("shuffles<float>", 32, [X, np.zeros(512, np.float32), 1, 32])
HALVES = _launch("halves_of_warps", 32, [NUMBERS, NUMBERS.copy()])
NEIGHBOURS = _launch("neighbours", 64, [NUMBERS, NUMBERS.copy()])
SUMS = _launch("sums<float>", 16, [X, np.zeros(3, np.float32), 128, 3], 2)
LAST_BLOCK = _launch("last_block_sum", 64, [X, X[:4].copy(), TICKET, X[:1].copy(), 128], 4, 8)
SCALE = _launch("scale", 16, [X, X.copy(), 0.5, 128])
VOTES = _launch("votes", 32, [NUMBERS, np.zeros(256, np.uint32)])

RACE = "ThreadSanitizer: data race"
Fault = tuple[str, str, Callable[[HostMachine], None], Build, str]
FAULTS: dict[str, Fault] = {
    "a shuffle in divergent code": (
        WARPS, "shuffles<float>", SHUFFLES, FIBERS,
        r"divergent shuffle or vote: thread \d+ waits in __shfl_\w+ at .*, and thread \d+ "),
    "a shuffle in divergent code, with threads": (WARPS, "shuffles<float>", SHUFFLES, THREADS,
                                                  "divergent shuffle or vote: thread"),
    "a shuffle that some lanes take for a barrier": (
        WARPS, "votes", VOTES, FIBERS,
        r"divergent shuffle or vote: .*__ballot_sync.* waits in __syncthreads at "),
    "masks that differ": (
        WARPS, "halves_of_warps", HALVES, FIBERS,
        "divergent shuffle or vote: .* for lanes 0000ffff, and thread .* for lanes 0001ffff"),
    "a shuffle from a lane outside the mask": (
        WARPS, "halves_of_warps", HALVES, FIBERS,
        r"__shfl_sync at text:\d+: lane \d+ reads lane 20, which takes no part"),
    "a shuffle from a lane that has ended": (WARPS, "halves_of_warps", HALVES, FIBERS,
                                             "reads lane 31, which takes no part"),
    "a lane outside its own mask": (WARPS, "halves_of_warps", HALVES, FIBERS,
                                    r"lane \d+ is not in its own mask ffff0000"),
    "a shuffle of half a warp that is not there": (
        WARPS, "shuffles<float>",
        _launch("shuffles<float>", 16, [X, np.zeros(512, np.float32), 16, 32]), FIBERS,
        r"lane \d+ reads lane \d+, which takes no part"),
    "no warp barrier": (WARPS, "neighbours", NEIGHBOURS, THREADS, RACE),
    "a plain add in place of an atomic": (ATOMICS, "sums<float>", SUMS, THREADS, RACE),
    "no fence before the ticket": (ATOMICS, "last_block_sum", LAST_BLOCK, THREADS, RACE),
    "no barrier before the cells are read": (ATOMICS, "last_block_sum", LAST_BLOCK, THREADS, RACE),
    "dynamic shared memory one element too small": (
        ATOMICS, "last_block_sum",
        _launch("last_block_sum", 64, [X, X[:4].copy(), TICKET, X[:1].copy(), 128], 4, 4), FIBERS,
        "heap-buffer-overflow"),
    "more dynamic shared memory than a GPU has": (
        ATOMICS, "last_block_sum",
        _launch("last_block_sum", 64, [X, X, TICKET, X, 128], 4, 1 << 20), FIBERS,
        "1048576 bytes of dynamic shared memory"),
    "misaligned float4": (VECTORS, "scale", SCALE, FIBERS,
                          "misaligned address .* for type 'const struct float4'"),
    "a float4 past the end": (VECTORS, "scale",
                              _launch("scale", 16, [X[:126], X[:126].copy(), 0.5, 126]), FIBERS,
                              "heap-buffer-overflow"),
    "misaligned atomic": (ATOMICS, "sums<float>", SUMS, FIBERS,
                          "misaligned address .* of an atomic of 4 bytes"),
    "an atomic past the end": (ATOMICS, "sums<float>", SUMS, FIBERS, "heap-buffer-overflow"),
}
CHANGES: dict[str, tuple[str, str]] = {
    "a shuffle in divergent code": (
        "y[at] = __shfl_sync(", "if (threadIdx.x != 5) y[at] = __shfl_sync("),
    "a shuffle in divergent code, with threads": (
        "y[at] = __shfl_sync(", "if (threadIdx.x != 5) y[at] = __shfl_sync("),
    "a shuffle that some lanes take for a barrier": (
        "mine[0] =", "if (threadIdx.x == 7) __syncthreads(); else mine[0] ="),
    "masks that differ": ("0x0000ffff", "thread < 8 ? 0x0000ffff : 0x0001ffff"),
    "a shuffle from a lane outside the mask": ("mine, 3)", "mine, 20)"),
    "a shuffle from a lane that has ended": ("mine, 20)", "mine, 31)"),
    "a lane outside its own mask": ("0x0000ffff", "0xffff0000"),
    "no warp barrier": ("__syncwarp();", ""),
    "a plain add in place of an atomic": ("atomicAdd(y + i % cells, x[i])", "y[i % cells] += x[i]"),
    "no fence before the ticket": ("__threadfence();", ""),
    "no barrier before the cells are read": ("__syncthreads();\n  if (thread == 0) {",
                                             "if (thread == 0) {"),
    "misaligned float4": ("(x + i)", "(x + i + (i < 100))"),
    "misaligned atomic": (
        "atomicAdd(y + i % cells,",
        "atomicAdd(reinterpret_cast<T *>(reinterpret_cast<char *>(y + i % cells) + 2),"),
    "an atomic past the end": ("y + i % cells", "y + i % cells + 1"),
}


def _plant(name: str) -> Plant:
    text, kernel, _, build, _ = FAULTS[name]
    return Plant(text, _replaced(text, *CHANGES.get(name, ("", ""))), (kernel,), build)


@pytest.fixture(scope="module")
def machines(toolchain: Toolchain) -> Iterator[dict[str, HostMachine]]:
    """The machine of each fault."""
    with kernel_plants.machines(toolchain, {name: _plant(name) for name in FAULTS}) as made:
        yield made


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str, machines: dict[str, HostMachine]) -> None:
    *_, run, _, caught_by = FAULTS[name]
    with pytest.raises(KernelFault, match=caught_by):
        run(machines[name])


def test_a_launch_without_end_is_ended(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GT_HOST_SECONDS", "1")
    text = """
    __global__ void waits(const int *x) { while (*static_cast<const volatile int *>(x) == 0) {} }
    """
    machine = HostMachine(toolchain.executable(machine_text(text, ["waits"])))
    with pytest.raises(KernelFault, match="a launch takes too long: .* a wait for another block"):
        machine.launch("waits", (1,), (1,), [TICKET])


def test_every_change_is_of_a_fault() -> None:
    assert CHANGES.keys() <= FAULTS.keys()
