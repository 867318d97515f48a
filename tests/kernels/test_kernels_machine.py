"""What the host machines give a kernel, compared with NumPy: warps, votes, atomics, shared memory.

The texts (kernel_samples.py) are compiled by NVRTC too, so they are CUDA and no dialect of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from kernel_host import SCHEDULES, HostMachine, Toolchain, machine_text
from kernel_nvrtc import Compiler
from kernel_samples import ATOMICS, KERNELS, VECTORS, WARPS
from kernel_toolchain import FIBERS, THREADS

BUILDS = {"fibers": FIBERS, "threads": THREADS}
Machines = dict[tuple[str, str], HostMachine]


@pytest.fixture(scope="module")
def machines(toolchain: Toolchain) -> Iterator[Machines]:
    """A machine of each build for each text."""
    for build in BUILDS.values():
        toolchain.machine(build)

    def make(key: tuple[str, str]) -> HostMachine:
        text, build = key[0], BUILDS[key[1]]
        return HostMachine(
            toolchain.executable(machine_text(text, KERNELS[text], build), build)
        )

    keys = [(text, build) for text in KERNELS for build in BUILDS]
    with ThreadPoolExecutor(max_workers=2) as pool:
        made = dict(zip(keys, pool.map(make, keys), strict=True))
    yield made
    for machine in made.values():
        machine.close()


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("architecture", [75, 120])
@pytest.mark.parametrize("text", KERNELS, ids=["warps", "atomics", "vectors"])
def test_the_samples_are_cuda(text: str, architecture: int, compiler: Compiler) -> None:
    assert compiler.text(text, KERNELS[text], architecture).warnings == []


@pytest.mark.parametrize("width", [32, 8, 1])
@pytest.mark.parametrize("by", [0, 1, 5, 31])
@pytest.mark.parametrize(("ctype", "dtype"), [
    ("int", "i4"), ("unsigned", "u4"), ("long long", "i8"), ("float", "f4"), ("double", "f8"),
])
def test_shuffles(
    ctype: str, dtype: str, by: int, width: int, machines: Machines, rng: np.random.Generator
) -> None:
    size = 2 * 64
    x = rng.integers(0, 1 << 31, size).astype(dtype)
    lane, warp = np.arange(size) % 32, np.arange(size) // 32 * 32
    first, place = lane // width * width, lane % width
    target = lane ^ by
    wanted = np.stack([
        x[warp + first + by % width],
        x[warp + np.where(place >= by, lane - by, lane)],
        x[warp + np.where(place + by < width, lane + by, lane)],
        x[warp + np.where(target < first + width, target, lane)],
    ])
    machine = machines[WARPS, "fibers"]
    for schedule in SCHEDULES:
        _, y = machine.launch(
            f"shuffles<{ctype}>", (2,), (64,), [x, np.zeros_like(wanted), by, width], schedule
        )
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_parts_of_a_warp_shuffle_on_their_own(
    schedule: int, build: str, machines: Machines, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 100, 32).astype(np.int32)
    machine = machines[WARPS, build]
    _, y = machine.launch("halves_of_warps", (1,), (32,), [x, np.full_like(x, -1)], schedule)
    np.testing.assert_array_equal(y, [x[3]] * 16 + [x[20]] * 15 + [-1])


@pytest.mark.parametrize("likely", [0.0, 0.1, 0.98, 1.0])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_votes(
    schedule: int, likely: float, build: str, machines: Machines, rng: np.random.Generator
) -> None:
    x = (rng.random((3, 64)) < likely).astype(np.int32) * rng.integers(1, 99, (3, 64), np.int32)
    machine = machines[WARPS, build]
    y = np.zeros((3, 64, 8), np.uint32)
    _, y = machine.launch("votes", (3,), (64,), [x, y], schedule)
    true = x > 0
    warps = true.reshape(3, 2, 32)
    ballot = (warps * (1 << np.arange(32))).sum(axis=2)
    for at, wanted in enumerate((ballot, warps.any(axis=2), warps.all(axis=2))):
        np.testing.assert_array_equal(y[..., at], np.repeat(wanted, 32, axis=1))
    for at, found in enumerate((true.any(axis=1), true.all(axis=1), true.sum(axis=1)), start=3):
        np.testing.assert_array_equal(y[..., at], np.repeat(found[:, None], 64, axis=1))
    assert (y[..., 6] == 32).all()
    np.testing.assert_array_equal(y[..., 7], np.where(x == 0, 0, np.log2((x & -x) | (x == 0)) + 1))


def test_a_warp_barrier_orders_shared_memory(
    build: str, machines: Machines, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 99, 64).astype(np.int32)
    for schedule in SCHEDULES:
        machine = machines[WARPS, build]
        _, y = machine.launch("neighbours", (1,), (64,), [x, np.zeros_like(x)], schedule)
        lanes = np.arange(64)
        np.testing.assert_array_equal(y, x[lanes ^ 1] + x[lanes ^ 2])


@pytest.mark.parametrize(("ctype", "dtype"), [
    ("int", "i4"), ("unsigned", "u4"), ("unsigned long long", "u8"), ("float", "f4"),
    ("double", "f8"),
])
def test_atomic_sums(
    ctype: str, dtype: str, build: str, machines: Machines, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 1000, 200).astype(dtype)  # exact in every order
    machine = machines[ATOMICS, build]
    for schedule in SCHEDULES:
        _, y = machine.launch(
            f"sums<{ctype}>", (3,), (16,), [x, np.ones(7, dtype), 200, 7], schedule
        )
        wanted = [1 + x[cell::7].sum(dtype=dtype) for cell in range(7)]
        np.testing.assert_array_equal(y, np.array(wanted, dtype))


def test_atomics_of_integers(build: str, machines: Machines, rng: np.random.Generator) -> None:
    x = rng.integers(-1000, 1000, 100).astype(np.int32)
    machine = machines[ATOMICS, build]
    for schedule in SCHEDULES:
        y, z = np.zeros(4, np.int32), np.array([0, 0, 0, 255, 0, 0], np.uint32)
        _, y, z = machine.launch("integers", (2,), (20,), [x, y, z, 100], schedule)
        assert y.tolist() == [max(0, x.max()), min(0, x.min()), -x.sum(), 5]
        exclusive = np.bitwise_xor.reduce(x.view(np.uint32))
        assert z.tolist() == [100 % 7, -100 % 7, 127, 128, exclusive, 200]


@pytest.mark.parametrize("schedule", [*SCHEDULES, 22, 23])
def test_the_last_block_adds_up(
    schedule: int, build: str, machines: Machines, rng: np.random.Generator
) -> None:
    x = rng.integers(-9, 9, 500).astype(np.float32)
    sums, ticket, y = np.zeros(4, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    _, sums, ticket, y = machines[ATOMICS, build].launch(
        "last_block_sum", (4,), (64,), [x, sums, ticket, y, 500], schedule, shared_mem=8
    )
    assert y[0] == x.sum() == sums.sum() and ticket[0] == 0


def test_schedules_order_blocks(machines: Machines) -> None:
    """`arrivals` has each block take a ticket."""
    def arrivals(schedule: int) -> list[int]:
        y, ticket = np.zeros(12, np.uint32), np.zeros(1, np.uint32)
        machine = machines[ATOMICS, "fibers"]
        return machine.launch("arrivals", (3, 4), (1,), [y, ticket], schedule)[0].tolist()

    assert arrivals(0) == [*range(12)] and arrivals(1) == [*range(12)][::-1]
    assert sorted(arrivals(20)) == sorted(arrivals(21)) == [*range(12)]
    assert len({tuple(arrivals(schedule)) for schedule in SCHEDULES}) == len(SCHEDULES)


def test_vectors(build: str, machines: Machines, rng: np.random.Generator) -> None:
    machine = machines[VECTORS, build]
    x = rng.standard_normal(400).astype(np.float32)
    _, y = machine.launch("scale", (2,), (32,), [x, np.zeros_like(x), 0.5, 400])
    np.testing.assert_array_equal(y, x * np.float32(0.5))
    numbers = rng.integers(0, 1 << 32, 64, dtype=np.uint32)
    _, packed = machine.launch("pack", (1,), (16,), [numbers, np.zeros_like(numbers)])
    np.testing.assert_array_equal(packed, numbers)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_dynamic_shared_memory(
    schedule: int, build: str, machines: Machines, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((5, 33))
    _, y = machines[VECTORS, build].launch(
        "reversed", (5,), (33,), [x, np.zeros_like(x)], schedule, shared_mem=33 * 8
    )
    np.testing.assert_array_equal(y, x[:, ::-1])


def _script(path: Path, text: str) -> HostMachine:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return HostMachine(path)


def test_a_sanitizer_may_want_no_address_space_randomization(tmp_path: Path) -> None:
    """As ThreadSanitizer where vm.mmap_rnd_bits is large: bit 18 of the personality says off."""
    machine = _script(tmp_path / "one.exe", """
    case $(cat /proc/self/personality) in *4????) ;; *) exit 66;; esac
    echo ready; read name; read head; echo ok
    """)
    assert machine.launch("any", (1,), (1,), []) == []
    machine.close()


def test_a_sanitizer_that_cannot_run_is_said(tmp_path: Path) -> None:
    machine = _script(tmp_path / "one.exe", "echo FATAL: unexpected memory mapping >&2; exit 66")
    with pytest.raises(RuntimeError, match=r"mmap_rnd_bits=28(.|\n)*unexpected memory mapping"):
        machine.launch("any", (1,), (1,), [])


def test_a_declaration_that_cannot_be_read_is_said() -> None:
    with pytest.raises(ValueError, match="wanted `extern __shared__"):
        machine_text("extern __shared__ float cells[],\n others[];", [])
