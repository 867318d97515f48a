"""The checker is checked: deliberately broken kernels must be caught on the host.

Each fault is one change of a kernel's text; its test names what has to notice it: AddressSanitizer,
UBSan, the machine itself, or the comparison of values and of thread schedules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from kernel_host import (
    HostMachine,
    KernelFault,
    Toolchain,
    file_text,
    launch_all_schedules,
)

from gtensor.backend import kernels

ROWS, COLUMNS = 3, 37


def _softmax(machine: HostMachine) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    y = np.full_like(x, 77)
    launch_all_schedules(
        machine, "softmax_forward<float>", (ROWS,), (16,), [x, y, ROWS, COLUMNS]
    )
    exponentials = np.exp(x.astype(np.float64))
    wanted = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


def _weight_gradient(machine: HostMachine) -> None:
    rng = np.random.default_rng(6)
    g, x = rng.standard_normal((2, 20, 40)).astype(np.float32)
    mean, rstd = x.mean(axis=1), 1 / x.std(axis=1)
    dweight, dbias = np.full((2, 40), 77, np.float32)
    launch_all_schedules(
        machine, "layer_norm_backward_weight<float>", (1,), (32, 8),
        [g, x, mean, rstd, dweight, dbias, 20, 40, 0],
    )
    np.testing.assert_allclose(dweight, (g * (x - mean[:, None]) * rstd[:, None]).sum(0), rtol=1e-4)
    np.testing.assert_allclose(dbias, g.sum(axis=0), rtol=1e-4, atol=1e-5)


def _replaced(file: str, old: str, new: str, which: int = 0) -> str:
    """The file's text with one occurrence of `old` replaced."""
    text = kernels.source(file)
    at = [match.start() for match in re.finditer(re.escape(old), text)][which]
    return text[:at] + new + text[at + len(old):]


def _only_float(file: str, text: str, function: str) -> str:
    """For the machine, with a single instance of a single kernel: these compile in a second."""
    head = file_text(file, text).split('#line 1 "registrations"\n')[0]
    return head + f"GT_HOST_REGISTER(0, {function}<float>);\n"


SOFTMAX, LAYER_NORM = "softmax.cu", "layer_norm.cu"
BARRIER = "__syncthreads();"
Run = Callable[[HostMachine], None]

FAULTS: dict[str, tuple[str, str, str, Run, Any]] = {
    "read one past the row": (
        SOFTMAX, _replaced(SOFTMAX, "column < columns", "column <= columns"), "softmax_forward",
        _softmax, "heap-buffer-overflow",
    ),
    "write one past the row": (
        SOFTMAX, _replaced(SOFTMAX, "y[at] =", "y[at + 1] ="), "softmax_forward", _softmax,
        "heap-buffer-overflow",
    ),
    "write one before the array": (
        SOFTMAX, _replaced(SOFTMAX, "y[at] =", "y[at - 1] ="), "softmax_forward", _softmax,
        "heap-buffer-overflow",
    ),
    "past the end of a shared array": (
        SOFTMAX, _replaced(SOFTMAX, "cells[GT_BLOCK]", "cells[15]"), "softmax_forward", _softmax,
        "insufficient space|global-buffer-overflow",
    ),
    "past the end of a shared row": (
        LAYER_NORM, _replaced(LAYER_NORM, "bias_cells[8][33]", "bias_cells[8][31]"),
        "layer_norm_backward_weight", _weight_gradient, "out of bounds",
    ),
    "index arithmetic in 32 bits": (
        SOFTMAX,
        _replaced(SOFTMAX, "const gt_index at = row * columns + column;",
                  "const gt_index at = int(row) * 2147483647 * int(columns) + int(column);"),
        "softmax_forward", _softmax, "signed integer overflow",
    ),
    "misaligned vector load": (
        SOFTMAX,
        _replaced(SOFTMAX, "y[at] = gt_down<T>(exp(gt_up(x[at]) - maximum) / sum);",
                  "y[at] = gt_down<T>(exp(reinterpret_cast<const float4 *>(x + at)->x - maximum)"
                  " / sum);"),
        "softmax_forward", _softmax, "misaligned address",
    ),
    "no barrier after the cells are written": (
        SOFTMAX, _replaced(SOFTMAX, BARRIER, "", 0), "softmax_forward", _softmax, AssertionError,
    ),
    "no barrier inside the tree": (
        SOFTMAX, _replaced(SOFTMAX, BARRIER, "", 1), "softmax_forward", _softmax, AssertionError,
    ),
    "no barrier before the cells are reused": (
        SOFTMAX, _replaced(SOFTMAX, BARRIER, "", 2), "softmax_forward", _softmax, AssertionError,
    ),
    "no barrier between lanes": (
        LAYER_NORM, _replaced(LAYER_NORM, BARRIER, "", 3), "layer_norm_backward_weight",
        _weight_gradient, AssertionError,
    ),
    "no barrier between column groups": (
        LAYER_NORM, _replaced(LAYER_NORM, BARRIER, "", 4), "layer_norm_backward_weight",
        _weight_gradient, AssertionError,
    ),
    "divergent barrier": (
        SOFTMAX, _replaced(SOFTMAX, BARRIER, "if (thread != 3) __syncthreads();", 0),
        "softmax_forward", _softmax, "divergent barrier",
    ),
    "barrier not reached by all": (
        SOFTMAX,
        _replaced(SOFTMAX, "F maximum, sum;", "F maximum, sum; if (threadIdx.x > 9) return;"),
        "softmax_forward", _softmax, "divergent barrier: .* have ended",
    ),
    "a result that is 0.05 % wrong": (
        SOFTMAX, _replaced(SOFTMAX, "- maximum) / sum)", "- maximum) / sum * F(1.0005))"),
        "softmax_forward", _softmax, AssertionError,
    ),
    "a skipped element": (
        SOFTMAX, _replaced(SOFTMAX, "y[at] =", "if (column != 36) y[at] ="), "softmax_forward",
        _softmax, AssertionError,
    ),
}


@pytest.fixture(scope="module")
def broken(toolchain: Toolchain) -> dict[str, HostMachine]:
    """A machine for each fault."""
    toolchain.machine()
    with ThreadPoolExecutor(max_workers=2) as pool:
        paths = pool.map(
            lambda fault: toolchain.executable(_only_float(*fault[:3])), FAULTS.values()
        )
        return {name: HostMachine(path) for name, path in zip(FAULTS, paths, strict=True)}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str, broken: dict[str, HostMachine]) -> None:
    *_, run, caught_by = FAULTS[name]
    machine = broken[name]
    if isinstance(caught_by, str):
        with pytest.raises(KernelFault, match=caught_by):
            run(machine)
    else:
        with pytest.raises(caught_by):
            run(machine)
    machine.close()


@pytest.mark.parametrize(("file", "function", "run"), [
    (SOFTMAX, "softmax_forward", _softmax),
    (LAYER_NORM, "layer_norm_backward_weight", _weight_gradient),
])
def test_the_unbroken_kernel_passes(
    file: str, function: str, run: Run, toolchain: Toolchain
) -> None:
    text = _only_float(file, kernels.source(file), function)
    machine = HostMachine(toolchain.executable(text))
    run(machine)
    machine.close()


def test_the_machine_recovers_after_a_fault(broken: dict[str, HostMachine]) -> None:
    """A fault ends the child; the next launch starts another one."""
    machine = broken["read one past the row"]
    for _ in range(2):
        with pytest.raises(KernelFault, match="heap-buffer-overflow"):
            _softmax(machine)
    machine.close()


def test_wrong_arguments_are_said(broken: dict[str, HostMachine]) -> None:
    machine = broken["a skipped element"]
    with pytest.raises(KernelFault, match="3 arguments for softmax_forward<float>; wanted 4"):
        machine.launch("softmax_forward<float>", (1,), (1,), [0, 0, 1])
    with pytest.raises(KernelFault, match="wants an array or 0"):
        machine.launch("softmax_forward<float>", (1,), (1,), [1.5, 0, 1, 1])
    with pytest.raises(KernelFault, match="no kernel softmin"):
        machine.launch("softmin", (1,), (1,), [])


def test_a_missing_compiler_is_said(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match=r"no g\+\+ on the PATH; .* apt-get install g\+\+"):
        Toolchain(toolchain.folder)

