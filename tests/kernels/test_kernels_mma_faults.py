"""Broken uses of kernels/mma.cuh are caught on the CPU, each by the check meant for it.

A fault is one change of a sample's text (kernel_mma.py). Copies that nobody waits for are seen by
their NaN, or by the header's assertion at the thread's end; missing barriers by ThreadSanitizer,
and some by the values of a schedule (fibers seldom run a warp ahead of another one); fragments by
the values; addresses by the sanitizers; what CUDA leaves undefined by the header's assertions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import kernel_plants
import numpy as np
import pytest
from kernel_cases import DTYPES
from kernel_host import HostMachine, KernelFault, Toolchain
from kernel_mma import FUNCTIONS, PRODUCT, check_product, inlined
from kernel_plants import Plant
from kernel_toolchain import FIBERS, THREADS, Build

RACE = "ThreadSanitizer: data race"
NAN = "nan"  # the values differ, and where they do are NaN


@dataclass(frozen=True)
class Fault:
    """One change of a text, and what has to notice it."""

    old: str
    new: str
    caught_by: str | type[Exception]
    build: Build = FIBERS
    text: str = PRODUCT


PREFETCH = "if (inner + 32 < k) fetch(stage ^ 1, inner + 32);"
BARRIER = "__syncthreads();  // the tiles are there; the other ones are read no more"
FAULTS = {
    "a missing wait": Fault("copies.wait<0>();\n    __syncthreads", "__syncthreads",
                            "ends before it has waited"),
    "a wait that comes late": Fault(
        "copies.wait<0>();\n    __syncthreads();",
        "__syncthreads(); if (inner + 32 >= k) copies.wait<0>();", NAN),
    "a wait for all groups but one": Fault(
        "copies.wait<0>();\n    __syncthreads();",
        "copies.wait<1>(); __syncthreads(); if (inner + 32 >= k) copies.wait<0>();", NAN),
    "a missing commit": Fault("    copies.commit();\n", "", "ends before it has waited"),
    "a commit that comes late": Fault(
        "    copies.commit();\n", "    if (inner == 0 || inner + 32 >= k) copies.commit();\n", NAN),
    "a barrier before the wait": Fault(
        f"copies.wait<0>();\n    {BARRIER}", "__syncthreads();\n    copies.wait<0>();", RACE,
        THREADS),
    "a missing barrier": Fault(BARRIER, "", AssertionError),
    "a missing barrier, as a race": Fault(BARRIER, "", RACE, THREADS),
    "a prefetch into the stage in use": Fault("fetch(stage ^ 1, inner + 32)",
                                              "fetch(stage, inner + 32)", NAN),
    "a prefetch before the barrier": Fault(
        f"{BARRIER}\n    {PREFETCH}", f"{PREFETCH}\n    __syncthreads();", RACE, THREADS),
    "a fragment's row is another one": Fault("a_tile + lane % 16 * 32", "a_tile + lane % 8 * 32",
                                             AssertionError),
    "a fragment's columns are others": Fault("lane / 16 * 8);\n      gt_load_fragment_tr",
                                             "lane / 8 % 2 * 8);\n      gt_load_fragment_tr",
                                             AssertionError),
    "a transposed load where a plain one is needed": Fault(
        "gt_load_fragment(x", "gt_load_fragment_transposed(x", AssertionError),
    "a plain load where a transposed one is needed": Fault(
        "gt_load_fragment_transposed(y", "gt_load_fragment(y", AssertionError),
    "registers of another column": Fault("y[0], y[1]", "y[0], y[2]", AssertionError),
    "registers of b are exchanged": Fault("y[2], y[3]", "y[3], y[2]", AssertionError),
    "a row of the sums is another one": Fault("e / 2 * 8;\n", "e % 2 * 8;\n", AssertionError),
    "a tail that is copied whole": Fault("first_row + row < m && at < k", "first_row >= 0",
                                         "heap-buffer-overflow"),
    "a tail that is written": Fault("row < m && column", "column", "heap-buffer-overflow"),
    "a tail that is not zero": Fault("inner + row < k && at < n", "at < n && (inner + row) * n < "
                                     "k * n + n", "heap-buffer-overflow"),
    "a copy to a misaligned address": Fault("row * 32 + i % 4 * 8,", "row * 32 + i % 4 * 8 + 1,",
                                            "misaligned address"),
    "a copy from a misaligned address": Fault("(first_row + row) * k + at : 0",
                                              "(first_row + row) * k + at - (at > 8) : 0",
                                              "misaligned address"),
    "a misaligned row of a fragment": Fault("lane % 16 * 32 + step", "lane % 16 * 32 + 1 + step",
                                            "misaligned address"),
    "a product in divergent code": Fault(
        "gt_multiply<T>(sums[0]", "if (lane != 3) gt_multiply<T>(sums[0]",
        r"divergent shuffle or vote: .*exchange at mma\.cuh"),
    "a fragment that some lanes do not load": Fault(
        "gt_load_fragment(x", "if (lane < 24) gt_load_fragment(x",
        r"divergent shuffle or vote: .*exchange at mma\.cuh"),
    "half a warp loads a fragment": Fault(
        "unsigned registers[4];", "unsigned registers[4]; if (lane > 15) return;",
        "of the warp the lanes 0000ffff take part; wanted all of them", text=FUNCTIONS),
    "too many copies on the way": Fault("copies.commit();\n  };",
                                        "for (int n = 0; n < 64; ++n) copies.issue(a_tiles, a);\n"
                                        "  };", "more copies on the way than gt_copies has"),
    "a copy of more than 16 bytes": Fault("there ? 16 : 0);\n    }\n    copies",
                                          "there ? 32 : 0);\n    }\n    copies",
                                          "a copy reads 0 to 16 bytes"),
    "a factor that was not rounded to TF32": Fault(
        "factors[e] = gt_tf32(a[at * 4 + e])", "factors[e] = __float_as_uint(a[at * 4 + e])",
        "a factor that does not come from gt_tf32", text=FUNCTIONS),
    "halves in the wrong order": Fault("gt_two<T>(x[2 * at], x[2 * at + 1])",
                                       "gt_two<T>(x[2 * at + 1], x[2 * at])", AssertionError,
                                       text=FUNCTIONS),
    "no warp barrier before a fragment is loaded": Fault(
        "__syncwarp();", "", RACE, THREADS, FUNCTIONS),
}


def _functions(machine: HostMachine) -> None:
    """What of the sample of functions can be compared without the manual's figures."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((32, 2)).astype(np.float32)
    y = machine.launch("pairs<__half>", (1,), (32,), [x, np.zeros((32, 2), np.float16)])[1]
    np.testing.assert_array_equal(y, x.astype(np.float16))
    matrices = np.arange(256, dtype=np.uint16)
    loaded = [np.zeros((32, 4, 2), np.uint16) for _ in range(2)]
    for schedule in (0, 1):
        plain = machine.launch("loads", (1,), (32,), [matrices, *loaded], schedule)[1]
        np.testing.assert_array_equal(plain.transpose(1, 0, 2).ravel(), matrices)
    a, b = rng.standard_normal((32, 4)).astype(np.float32), np.zeros((32, 2), np.float32)
    machine.launch("products_tf32", (1,), (32,), [a, b, np.zeros((32, 4), np.float32)])


def _run(fault: Fault, machine: HostMachine) -> None:
    if fault.text == PRODUCT:
        check_product(machine, DTYPES["float16"], 33, 16, 72, np.random.default_rng(4))
    else:
        _functions(machine)


NAMES = {PRODUCT: ("product<__half>",), FUNCTIONS: ("loads", "products_tf32", "pairs<__half>")}


def _plant(fault: Fault) -> Plant:
    assert fault.old in fault.text
    broken = fault.text.replace(fault.old, fault.new, 1)
    return Plant(inlined(fault.text), inlined(broken), NAMES[fault.text], fault.build)


@pytest.fixture(scope="module")
def machines(toolchain: Toolchain) -> Iterator[dict[Fault, HostMachine]]:
    """The machine of each fault, and of each text without one."""
    with kernel_plants.machines(toolchain, {
            fault: _plant(fault) for fault in (*FAULTS.values(), *UNBROKEN)}) as made:
        yield made


UNBROKEN = [Fault("", "", "", build, text) for text in (PRODUCT, FUNCTIONS)
            for build in (FIBERS, THREADS)]


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str, machines: dict[Fault, HostMachine]) -> None:
    fault = FAULTS[name]
    machine = machines[fault]
    if fault.caught_by == NAN:
        with pytest.raises(AssertionError, match="nan"):
            _run(fault, machine)
    elif isinstance(fault.caught_by, str):
        with pytest.raises(KernelFault, match=fault.caught_by):
            _run(fault, machine)
    else:
        with pytest.raises(fault.caught_by):
            _run(fault, machine)


@pytest.mark.parametrize("fault", UNBROKEN, ids=["product", "product, raced", "functions",
                                                 "functions, raced"])
def test_the_unbroken_text_passes(
    fault: Fault, machines: dict[Fault, HostMachine]
) -> None:
    _run(fault, machines[fault])
