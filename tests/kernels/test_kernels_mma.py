"""kernels/mma.cuh on the CPU: what each function gives every lane, by the PTX manual's figures.

Layouts are written here as the manual has them ("Matrix Fragments for mma.m16n8k16 with
floating-point type", "... for mma.m16n8k8", "ldmatrix"), and not as the header does.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_cases import DTYPES
from kernel_host import HostMachine, Toolchain, launch_all_schedules, machine_text
from kernel_mma import FUNCTIONS, NAMES, PRODUCT, DeviceMachine, check_product, inlined
from kernel_toolchain import FIBERS, THREADS

from gtensor.backend import kernels

BUILDS = {"fibers": FIBERS, "threads": THREADS}
Machines = dict[str, Any]
Host = dict[tuple[str, str], HostMachine]
NAN = 0xffffffff
LANES = np.arange(32)
GROUP, IN_GROUP = LANES >> 2, LANES % 4  # groupID, threadID_in_group


def a_place(i: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of a<i> of m16n8k16, in each lane."""
    row = GROUP if i < 2 or 4 <= i < 6 else GROUP + 8
    column = IN_GROUP * 2 + (i & 1)
    return row, column if i < 4 else column + 8


def b_place(i: int) -> tuple[np.ndarray, np.ndarray]:
    row = IN_GROUP * 2 + (i & 1)
    return (row if i < 2 else row + 8), GROUP


def sums_place(i: int) -> tuple[np.ndarray, np.ndarray]:
    """Of m16n8k16 and of m16n8k8."""
    return (GROUP if i < 2 else GROUP + 8), IN_GROUP * 2 + (i & 1)


def a_place_tf32(i: int) -> tuple[np.ndarray, np.ndarray]:
    return (GROUP if i in (0, 2) else GROUP + 8), (IN_GROUP if i < 2 else IN_GROUP + 4)


def b_place_tf32(i: int) -> tuple[np.ndarray, np.ndarray]:
    return (IN_GROUP if i == 0 else IN_GROUP + 4), GROUP


@pytest.fixture(scope="module")
def host(toolchain: Toolchain) -> Iterator[Host]:
    """A machine on the CPU for each text, and for the product one with threads."""
    keys = [(FUNCTIONS, "fibers"), (PRODUCT, "fibers"), (PRODUCT, "threads")]
    for build in BUILDS.values():
        toolchain.machine(build)

    def make(key: tuple[str, str]) -> HostMachine:
        text, build = inlined(key[0]), BUILDS[key[1]]
        return HostMachine(toolchain.executable(machine_text(text, NAMES[key[0]], build), build))

    with ThreadPoolExecutor(max_workers=2) as pool:
        made = dict(zip(keys, pool.map(make, keys), strict=True))
    yield made
    for machine in made.values():
        machine.close()


@pytest.fixture(scope="module", params=["host", pytest.param("device", marks=pytest.mark.gpu)])
def machines(request: pytest.FixtureRequest) -> Machines:
    """What runs each text."""
    if request.param == "device":
        return {text: DeviceMachine(text) for text in NAMES}
    made = request.getfixturevalue("host")
    return {text: made[text, "fibers"] for text in NAMES}


@pytest.fixture(params=["float16", "bfloat16"])
def half(request: pytest.FixtureRequest) -> np.dtype:
    return DTYPES[request.param]


def test_a_fragment_is_loaded(machines: Machines) -> None:
    """ldmatrix: lane l gets of matrix j the elements (l / 4, 2 * (l % 4)) and the next one."""
    matrices = np.arange(4 * 8 * 8, dtype=np.uint16).reshape(4, 8, 8)  # lane 8 * j + i: [j, i]
    results = [np.zeros((32, 4, 2), np.uint16) for _ in range(2)]
    launch_all_schedules(machines[FUNCTIONS], "loads", (1,), (32,), [matrices, *results])
    for lane in range(32):
        for j in range(4):
            row, column = lane // 4, 2 * (lane % 4)
            assert [*results[0][lane, j]] == [*matrices[j, row, column:column + 2]]
            assert [*results[1][lane, j]] == [*matrices[j].T[row, column:column + 2]]


def test_a_product_of_halves(half: np.dtype, machines: Machines, rng: np.random.Generator) -> None:
    """Small integers: every sum is exact, so that one element in a wrong place shows."""
    a, b = rng.integers(-8, 8, (16, 16)), rng.integers(-8, 8, (16, 8))
    c = rng.integers(-99, 99, (16, 8))
    _run_products(f"products<{kernels.c_type(half)}>", machines, half, a, b, c,
                  [a_place(i) for i in range(8)], [b_place(i) for i in range(4)])


@pytest.mark.parametrize("lane", [0, 5, 18, 31])
def test_every_element_of_a_lane_is_where_the_manual_says(
    lane: int, half: np.dtype, machines: Machines
) -> None:
    """One element of `a` is 1: the sums have its row, with the row of b that its column names."""
    b = np.arange(1, 129).reshape(16, 8)
    for i in range(8):
        a = np.zeros((16, 16), int)
        row, column = (at[lane] for at in a_place(i))
        a[row, column] = 1
        _run_products(f"products<{kernels.c_type(half)}>", machines, half, a, b,
                      np.zeros((16, 8), int), [a_place(n) for n in range(8)],
                      [b_place(n) for n in range(4)])


def test_a_product_of_tf32(machines: Machines, rng: np.random.Generator) -> None:
    a, b = rng.integers(-99, 99, (16, 8)), rng.integers(-99, 99, (8, 8))
    c = rng.integers(-99, 99, (16, 8))
    _run_products("products_tf32", machines, np.dtype(np.float32), a, b, c,
                  [a_place_tf32(i) for i in range(4)], [b_place_tf32(i) for i in range(2)])


def _run_products(
    name: str, machines: Machines, dtype: np.dtype, a: np.ndarray, b: np.ndarray, c: np.ndarray,
    a_places: list[tuple[np.ndarray, np.ndarray]], b_places: list[tuple[np.ndarray, np.ndarray]],
) -> None:
    places = [sums_place(i) for i in range(4)]
    factors = [np.stack([x[at] for at in of], axis=1).astype(dtype)
               for x, of in ((a, a_places), (b, b_places))]
    sums = np.stack([c[at] for at in places], axis=1).astype(np.float32)
    launch_all_schedules(machines[FUNCTIONS], name, (1,), (32,), [*factors, sums])
    wanted = a @ b + c
    np.testing.assert_array_equal(sums, np.stack([wanted[at] for at in places], axis=1))


def test_two_halves_share_a_register(
    half: np.dtype, machines: Machines, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((64, 2)).astype(np.float32)
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11], np.float32)
    x[:8] = [*zip(ties, -ties, strict=True), (np.inf, 0), (-0.0, -np.inf), (1e9, 1e-9), (np.nan, 1)]
    y = np.zeros((64, 2), half)
    launch_all_schedules(machines[FUNCTIONS], f"pairs<{kernels.c_type(half)}>", (2,),
                         (32,), [x, y])
    with np.errstate(over="ignore"):
        wanted = x.astype(half)
    np.testing.assert_array_equal(y.astype(np.float32), wanted.astype(np.float32))


def test_numbers(machines: Machines, rng: np.random.Generator) -> None:
    x = rng.uniform(-140, 100, 64).astype(np.float32)
    x[:6] = [0, -np.inf, np.inf, 1, -126, -127]
    x[6:10] = [1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-11 - 2.0**-23]
    rounded, powers = np.zeros(64, np.float32), np.zeros(64, np.float32)
    launch_all_schedules(machines[FUNCTIONS], "numbers", (2,), (32,),
                         [x, rounded, powers])
    mantissa, exponent = np.frexp(x.astype(np.float64))
    with np.errstate(invalid="ignore"):
        away = np.copysign(np.floor(np.abs(mantissa) * 2**11 + 0.5), mantissa)
    wanted = np.where(np.isfinite(x), np.ldexp(away, exponent - 11), x)
    np.testing.assert_array_equal(rounded, wanted)
    assert [*rounded[6:10]] == [1 + 2.0**-10, 1 + 4 * 2.0**-11, -1 - 2.0**-10, 1]
    exact = np.exp2(x.astype(np.float64))
    exact[exact < 2.0**-126] = 0
    np.testing.assert_allclose(powers, exact, rtol=2.0**-22)
    assert [*powers[:4]] == [1, 0, np.inf, 2] and powers[5] == 0


def test_a_copy_arrives_at_its_wait(host: Host, rng: np.random.Generator) -> None:
    """Until then its destination is NaN; what a copy does not read is zero."""
    x = rng.integers(0, 256, (3, 64, 16), dtype=np.uint8)
    counts = np.arange(64, dtype=np.int32) % 17
    seen = np.zeros((3, 3, 64, 16), np.uint8)
    launch_all_schedules(host[FUNCTIONS, "fibers"], "copies", (1,), (64,), [x, counts, seen])
    arrived = np.where(np.arange(16) < counts[:, None], x, 0)
    assert (seen[0] == 255).all() and np.isnan(seen[0].view(np.float32)).all()
    for dtype in (np.float16, ml_dtypes.bfloat16):
        assert np.isnan(seen[0].view(dtype).astype(np.float32)).all()
    assert np.array_equal(seen[1, 0], arrived[0]) and (seen[1, 1:] == 255).all()
    assert np.array_equal(seen[2], arrived)


def test_a_copy_outside_all_groups_does_not_arrive(host: Host) -> None:
    x, seen = np.arange(128, dtype=np.uint32), np.zeros((2, 128), np.uint32)
    launch_all_schedules(host[FUNCTIONS, "fibers"], "late_commit", (1,), (32,), [x, seen])
    assert (seen[0] == NAN).all() and np.array_equal(seen[1], x)


@pytest.mark.parametrize(("m", "n", "k"), [(32, 16, 32), (1, 8, 8), (70, 40, 104), (33, 24, 64)])
def test_a_product_in_stages(
    m: int, n: int, k: int, half: np.dtype, machines: Machines, rng: np.random.Generator
) -> None:
    check_product(machines[PRODUCT], half, m, n, k, rng)


def test_a_product_in_stages_has_no_race(
    half: np.dtype, host: Host, rng: np.random.Generator
) -> None:
    check_product(host[PRODUCT, "threads"], half, 33, 16, 72, rng)
