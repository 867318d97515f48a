"""N shadows on CUDA: as many launches as one, and the bytes of N."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.hostcuda import counters, reset_counters

pytestmark = [pytest.mark.host_cuda, pytest.mark.usefixtures("dry_cuda")]
N = 16
MOST = 1.1  # x the launches of one derivative


def launches(run: Callable[[], Any]) -> int:
    for _ in range(2):  # the first one compiles
        run()
    reset_counters()
    run()
    return counters().launches


def chain(x: gt.Tensor) -> gt.Tensor:
    y = x
    for _ in range(10):
        y = gt.sin(y * x) + 0.5
    return y


def mlp() -> Callable[[gt.Tensor], gt.Tensor]:
    weights = [gt.asarray(np.ones(shape, np.float32)) for shape in ((8, 8), (8,)) * 3]

    def run(x: gt.Tensor) -> gt.Tensor:
        for i in range(0, 6, 2):
            x = gt.tanh(gt.nn.functional.linear(x, *weights[i:i + 2]))
        return gt.nn.functional.softmax(gt.nn.functional.layer_norm(x, (8,)), -1).mean(-1)

    return run


def convolution() -> Callable[[gt.Tensor], gt.Tensor]:
    weight = gt.asarray(np.ones((3, 1, 3, 3), np.float32))

    def run(x: gt.Tensor) -> gt.Tensor:
        y = gt.nn.functional.conv2d(x.reshape(2, 1, 2, 2), weight, padding=1)  # two images
        return gt.nn.functional.max_pool2d(gt.nn.functional.relu(y), 2)

    return run


@pytest.mark.parametrize("make", [lambda: chain, mlp, convolution],
                         ids=["chain", "mlp", "convolution"])
def test_n_shadows_take_the_launches_of_one(make: Callable[[], Any]) -> None:
    function = make()
    x = gt.asarray(np.ones(8, np.float32))
    shadows = gt.ones((N, 8))
    one = launches(lambda: gt.func.jvp(function, (x,), (shadows[0],)))
    assert launches(lambda: gt.func.jvp_batched(function, (x,), (shadows,))) <= MOST * one
    value, pullback = gt.func.vjp(function, x)
    many = gt.ones((N, *value.shape))
    one = launches(lambda: pullback(many[0]))
    assert launches(lambda: pullback(many, batched=True)) <= MOST * one


def test_a_loop_over_shadows_takes_too_many() -> None:
    x, shadows = gt.asarray(np.ones(8, np.float32)), gt.ones((N, 8))
    one = launches(lambda: gt.func.jvp(chain, (x,), (shadows[0],)))
    assert launches(lambda: [gt.func.jvp(chain, (x,), (s,)) for s in shadows]) > MOST * one
