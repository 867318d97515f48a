"""What the second call of an op leaves out: an array's device, devices' names, Python calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn, optim
from gtensor.backend import Device, device_of, get_device
from gtensor.engine.handle.context import no_grad
from gtensor.engine.tape.op import Op
from ops.every_op import OTHERS, names, runs

PACKAGE = os.path.dirname(gt.__file__) + os.sep
LOOKED_UP = {"device_of": device_of, "get_device": get_device, "Device.__str__": Device.__str__}
CODES = {function.__code__: name for name, function in LOOKED_UP.items()}


def calls(function: Callable[[], object]) -> list[CodeType]:
    """The code of every Python call within gtensor that a function makes, in order."""
    made: list[CodeType] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            made.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return made


def looked_up(function: Callable[[], object]) -> set[str]:
    """Which of `LOOKED_UP` the second call of a function runs."""
    function()
    return {CODES[code] for code in calls(function) if code in CODES}


def look_ups(device: Device, walks: bool) -> dict[str, set[str]]:
    """By op: what its samples look up, forward, and in its rule if it is walked."""
    found: dict[str, set[str]] = {}
    for name in names():
        if name in OTHERS:
            continue
        for run in runs(name):
            call = run.prepare(device)

            outputs: list[gt.Tensor] = []
            with np.errstate(all="ignore"):
                call(*run.inputs(device))
                codes = calls(partial(_kept, outputs, call, run.inputs(device)))
                y = outputs[0]
                if walks and y._node is not None and y.dtype.kind in "fV":
                    codes += calls(partial(y.backward, run.upstream(y)))
            if names_met := {CODES[code] for code in codes if code in CODES}:
                found.setdefault(name, set()).update(names_met)
    return found


def _kept(outputs: list[gt.Tensor], call: Callable[..., gt.Tensor], given: list) -> None:
    outputs.append(call(*given))


EXCHANGES = {"all_gather", "all_reduce", "reduce_scatter"}  # by a communicator, of any device


@pytest.mark.thorough
def test_no_op_asks_for_the_device_of_an_array_or_for_its_name():
    met = look_ups(get_device("cpu"), walks=True)
    assert {*met} <= EXCHANGES


@pytest.mark.gpu
@pytest.mark.slow
def test_no_op_on_a_gpu_makes_a_devices_name():
    met = look_ups(get_device("cuda"), walks=False)
    del met["to_device"]  # whose result lies elsewhere
    met = {name: asked for name, asked in met.items() if name not in EXCHANGES}
    assert met == {}


def test_planted_fault_a_path_that_asks_by_name_is_seen():
    def path(x, out=None):
        return x + len(str(device_of(x)))

    planted = Op("planted", cpu=path, gpu=path, backward=None, tangent=None, samples=None)
    assert looked_up(partial(planted, gt.ones((2,)))) == set(LOOKED_UP)


def product() -> Callable[[], object]:
    x, w = gt.ones((3, 4)), gt.tensor(np.ones((4, 5), np.float32), requires_grad=True)
    return lambda: x @ w


def adamw_step() -> Callable[[], object]:
    parameters = [nn.Parameter(np.ones((3, 4), np.float32)) for _ in range(2)]
    for parameter in parameters:
        with no_grad():
            parameter.grad = gt.ones((3, 4))
    return optim.AdamW(parameters).step


@pytest.mark.parametrize("make, most", [(product, 13), (adamw_step, 73)])
def test_python_calls_of_a_second_call(make, most):
    again = make()
    again()
    made = calls(again)
    assert len(made) <= most, [code.co_qualname for code in made]
