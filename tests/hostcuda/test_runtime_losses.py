"""A device that a test loses on purpose: `fail` is as a fault of a kernel, in every mode."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

import gtensor as gt
from gtensor import hostcuda

from .through import refused

pytestmark = pytest.mark.host_cuda
MODES = [("eager", False), ("deferred", False), ("eager", True), ("deferred", True)]


@pytest.mark.parametrize(("mode", "dry"), MODES)
@pytest.mark.parametrize("code", [700, 702, 710, 716, 719])
def test_every_later_call_answers_the_error(
    cupy: Any, runtime: Any, mode: str, dry: bool, code: int
) -> None:
    hostcuda.configure(mode, dry=dry)
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    x = cupy.zeros(8)
    assert driver.cuCtxSynchronize() == driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    hostcuda.fail(code, "a test has lost it")
    with refused(cupy, code) as error:
        runtime.deviceSynchronize()
    assert str(error.value).endswith(": a test has lost it")
    for call in (lambda: runtime.malloc(64), lambda: x + 1, lambda: x.get()):
        with refused(cupy, code):
            call()
    assert driver.cuCtxSynchronize() == driver.cuCtxGetCurrent(ctypes.byref(context)) == code
    hostcuda.forgive()
    assert driver.cuCtxSynchronize() == driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    runtime.deviceSynchronize()
    assert float(cupy.ones(8).sum()) == (0 if dry else 8)


def test_the_first_error_stays(cupy: Any, runtime: Any) -> None:
    hostcuda.configure("eager")
    hostcuda.fail(719, "the first")
    hostcuda.fail(700, "the second")
    with refused(cupy, 719) as error:
        runtime.deviceSynchronize()
    assert str(error.value).endswith(": the first")


def test_other_devices_go_on(cupy: Any, runtime: Any) -> None:
    hostcuda.configure("eager")
    with cupy.cuda.Device(1):
        hostcuda.fail()
        with refused(cupy, 700):
            runtime.deviceSynchronize()
    assert float(cupy.ones(8).sum()) == 8


def test_queued_work_does_not_run(cupy: Any, runtime: Any) -> None:
    """As after a fault: of what the device had not done, nothing is done."""
    hostcuda.configure("deferred")
    host = cupy.cuda.alloc_pinned_memory(8)
    view = memoryview(host).cast("B")
    view[0] = 7
    x, stream = cupy.zeros(8, "u1"), cupy.cuda.Stream(non_blocking=True)
    runtime.deviceSynchronize()
    runtime.memcpyAsync(host.ptr, x.data.ptr, 1, runtime.memcpyDeviceToHost, stream.ptr)
    hostcuda.fail()
    with refused(cupy, 700):
        runtime.deviceSynchronize()
    hostcuda.forgive()
    assert view[0] == 7


def test_gtensor_reports_it(cupy: Any) -> None:
    hostcuda.configure("eager")
    x = gt.ones(4, device="cuda")
    hostcuda.fail(702, "the launch took too long")
    with pytest.raises(Exception, match="the launch took too long"):
        (x + 1.0).numpy()


@pytest.mark.parametrize("code", [0, 1, 701, 720, -1])
def test_an_error_that_does_not_stay_is_none_to_choose(code: int) -> None:
    with pytest.raises(ValueError, match=rf"^code is one of 700, 702, 710, 716, 719, got {code}$"):
        hostcuda.fail(code)
