"""Every kernel on the CPU under AddressSanitizer and UBSan, compared with PyTorch in float64."""

from __future__ import annotations

import contextlib

import cases_convolution
import cases_elementwise
import cases_rows
import numpy as np
import pytest
from kernel_cases import DTYPES, Case, all_cases, parameters
from kernel_host import HostExecutor

from gtensor.backend import kernels


@pytest.mark.parametrize(("case", "dtype"), parameters())
def test_kernel_on_the_host(
    case: Case, dtype: np.dtype, host: HostExecutor, rng: np.random.Generator
) -> None:
    case.check(host, dtype, rng)


class Recorder:
    """An executor that only notes what is launched."""

    def __init__(self) -> None:
        self.launched: set[tuple[str, str]] = set()

    def raw(self, file: str, function: str, *rest: object) -> None:
        self.launched.add((file, function))

    def elementwise(self, *rest: object) -> None:
        pass


def test_the_table_launches_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    for module in (cases_convolution, cases_elementwise, cases_rows):
        for name in {"assert_close", "assert_equal"} & vars(module).keys():
            monkeypatch.setattr(module, name, lambda *args, **named: None)
    for case in all_cases():
        with contextlib.suppress(AssertionError):  # nothing was computed
            case.check(recorder, DTYPES["float32"], np.random.default_rng(0))
    wanted = {(file, name) for file in kernels.files() for name in kernels.functions(file)}
    assert recorder.launched == wanted
