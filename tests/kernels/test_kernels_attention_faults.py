"""Broken attention on tensor cores is caught on the CPU, each fault by the check meant for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases_attention import attention
from kernel_cases import DTYPES
from kernel_host import HostMachine, KernelFault, Toolchain, machine_text, write_back
from kernel_races import Recorder
from kernel_toolchain import FIBERS, THREADS, Build

from gtensor.backend import kernels

FILE, NAME = "attention.cu", "attention_forward_64<__half>"
TEXT = kernels.source(FILE)
RACE, OVERFLOW, NAN = "ThreadSanitizer: data race", "heap-buffer-overflow", "nan"
CASES = [
    attention("causal", (), 140, 150, 24, 40, causal=True),
    attention("tails", (1,), 20, 150, 40, 24, layout="side by side"),
    attention("heads", (2, 2), 5, 9, 24, 40, key_lead=(2, 1)),
]
RACED = [attention("raced", (), 20, 150, 8, causal=False)]


@dataclass(frozen=True)
class Fault:
    """One change of the text, and what has to notice it."""

    old: str
    new: str
    caught_by: str | type[Exception] = AssertionError
    build: Build = FIBERS


def _wait_before(barrier: str, new: str) -> tuple[str, str]:
    """The wait before a barrier, whose comment names it, replaced."""
    at = TEXT.index(f"__syncthreads();  // {barrier}")
    start = TEXT.rindex("copies.wait<1>();", 0, at)
    whole = TEXT[start:at + 30 + len(barrier)]
    return whole, whole.replace("copies.wait<1>();", new)


FIRST, VALUES_THERE, NEXT = "queries and keys", "the values are there", "the next keys"


def _barrier(which: str) -> str:
    return f"__syncthreads();  // {which}"


FAULTS = {
    "no wait for queries": Fault(*_wait_before(FIRST, ""), NAN),
    "no wait for values": Fault(*_wait_before(VALUES_THERE, ""), NAN),
    "no wait for the next keys": Fault(*_wait_before(NEXT, ""), NAN),
    "a wait for values that leaves two groups": Fault(
        *_wait_before(VALUES_THERE, "copies.wait<2>();"), NAN),
    "no commit of the next keys": Fault(
        "(stage ^ 1) * keys * D);\n      copies.commit();\n\n", "(stage ^ 1) * keys * D);\n", NAN),
    "no barrier before queries and keys are read": Fault(_barrier(FIRST), "//", RACE, THREADS),
    "no barrier before values are read": Fault(_barrier(VALUES_THERE), "//", RACE, THREADS),
    "no barrier before the next keys are read": Fault(_barrier(NEXT), "//", RACE, THREADS),
    "no warp barrier before rows are written": Fault("__syncwarp();", "", RACE, THREADS),
    "keys come into the stage in use": Fault("key_tiles + (stage ^ 1)", "key_tiles + stage", NAN),
    "values come into the stage in use": Fault("value_tiles + (stage ^ 1)", "value_tiles + stage",
                                               NAN),
    "values of another stage": Fault("value_tiles + stage * keys * D +",
                                     "value_tiles + (stage ^ 1) * keys * D +"),
    "a query's row is another one": Fault("(warp * 16 + lane % 16) * D",
                                          "(warp * 16 + lane % 8) * D"),
    "pieces of keys exchanged otherwise": Fault("lane % 8 ^ lane / 8 % 2", "lane % 8 ^ lane / 16"),
    "pieces of queries not exchanged": Fault("first % 8, piece", "0, piece"),
    "keys loaded transposed": Fault("gt_load_fragment(b", "gt_load_fragment_transposed(b"),
    "values loaded plain": Fault("gt_load_fragment_transposed(b", "gt_load_fragment(b"),
    "fragments of keys in another order": Fault("query[i], b[0], b[1]", "query[i], b[0], b[2]"),
    "weights in another order": Fault("scores[2 * i][2], scores[2 * i][3]",
                                      "scores[2 * i + 1][0], scores[2 * i + 1][1]"),
    "a causal edge one too early": Fault("row + half * 8 + 1)", "row + half * 8)"),
    "a causal edge one too late": Fault("row + half * 8 + 1)", "row + half * 8 + 2)"),
    "a tile at the edge that is not masked": Fault("origin + keys > first + warp * 16 + 1",
                                                   "origin + keys > first + warp * 16 + 49"),
    "keys skipped that are seen": Fault("min(key_count, first + queries)",
                                        "min(key_count, first + queries - 64)"),
    "keys behind the last one": Fault("origin + keys > key_count ||", ""),
    "rows behind the last one are read": Fault("inside && first + row < left",
                                                 "inside && first + row < left + 64", OVERFLOW),
    "features behind the last one are read": Fault("inside(piece * 8 < features)",
                                                   "inside(features > 0)", OVERFLOW),
    "rows behind the last one are written": Fault("row_at < query_count && ", "", OVERFLOW),
    "features behind the last one are written": Fault("&& piece * 8 < value_features", "",
                                                     OVERFLOW),
    "logarithms behind the last one": Fault("&& row + half * 8 < query_count", "", OVERFLOW),
    "sums that do not shrink": Fault("sums[n][2 * half] *= shrunk;", ""),
    "a total that does not shrink": Fault("fmaf(total[half], shrunk, sum)", "total[half] + sum"),
    "a total of one lane": Fault("sum += __shfl_xor_sync(0xffffffffu, sum, 2);", ""),
    "a largest score of one lane": Fault(
        "most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));", ""),
    "a shuffle that some lanes leave out": Fault(
        "most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));",
        "if (lane > 3) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));",
        "divergent shuffle or vote"),
    "all matrices of the first head": Fault("rest /= length;", "rest = 0;"),
    "values where the keys of a head lie": Fault("v += at * lead.v", "v += at * lead.k"),
    "logarithms of another base": Fault("0.693147180559945309f", "1.0f"),
}


class OneMachine:
    """An executor for the cases of one file; it runs one schedule."""

    def __init__(self, machine: HostMachine) -> None:
        self.machine = machine

    def raw(self, file: str, function: str, dtype: Any, grid: tuple[int, ...],
            block: tuple[int, ...], args: list[Any], shared_mem: int = 0) -> None:
        name = f"{function}<{kernels.c_type(dtype)}>"
        write_back(args, self.machine.launch(name, grid, block, args, 20, shared_mem))


def _run(fault: Fault, machine: HostMachine) -> None:
    for case in CASES if fault.build is FIBERS else RACED:
        case.check(OneMachine(machine), DTYPES["float16"], np.random.default_rng(5))


UNBROKEN = {"fibers": Fault("", ""), "threads": Fault("", "", build=THREADS)}


@pytest.fixture(scope="module")
def machines(toolchain: Toolchain) -> Iterator[Callable[[Fault], HostMachine]]:
    """The machine of each fault, and of the text without one."""
    for build in (FIBERS, THREADS):
        toolchain.machine(build)

    def make(fault: Fault) -> HostMachine:
        assert fault.old in TEXT, fault.old
        text = machine_text(TEXT.replace(fault.old, fault.new, 1), [NAME], fault.build)
        return HostMachine(toolchain.executable(text, fault.build))

    faults = [*FAULTS.values(), *UNBROKEN.values()]
    with ThreadPoolExecutor(max_workers=2) as pool:
        made = dict(zip(faults, pool.map(make, faults), strict=True))
    yield made.__getitem__
    for machine in made.values():
        machine.close()


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str, machines: Callable[[Fault], HostMachine]) -> None:
    fault = FAULTS[name]
    if fault.caught_by == NAN:
        with pytest.raises(AssertionError, match="nan"):
            _run(fault, machines(fault))
    elif isinstance(fault.caught_by, str):
        with pytest.raises(KernelFault, match=fault.caught_by):
            _run(fault, machines(fault))
    else:
        with pytest.raises(fault.caught_by):
            _run(fault, machines(fault))


@pytest.mark.parametrize("build", UNBROKEN)
def test_the_unbroken_kernel_passes(
    build: str, machines: Callable[[Fault], HostMachine]
) -> None:
    _run(UNBROKEN[build], machines(UNBROKEN[build]))


def test_the_cases_launch_the_kernel_that_is_broken() -> None:
    recorder = Recorder()
    for case in (*CASES, *RACED):
        with pytest.raises(AssertionError):  # nothing is computed
            case.check(recorder, DTYPES["float16"], np.random.default_rng(5))
    assert {launch.kernel for launch in recorder.launched} == {(FILE, NAME.split("<")[0])}
