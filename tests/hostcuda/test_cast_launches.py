"""What `gt.autocast` launches on CUDA: parameters are cast together, their gradients not at all."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.backend import cublaslt
from gtensor.engine.run import casting
from gtensor.hostcuda import Counters, configure, counters, reset_counters

pytestmark = pytest.mark.host_cuda
TOGETHER = "gt_cast<__nv_bfloat16, float, 40, 8>"
ALONE = "cupy_copy__float32_bfloat16"


@pytest.fixture(autouse=True)
def _cuda() -> None:
    configure("eager")


def layers() -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(24, 24) for _ in range(3)]).to("cuda")


def launched(model: nn.Module, x: gt.Tensor) -> Counters:
    """Of a step under autocast, its update included."""
    reset_counters()
    with gt.autocast("bfloat16"):
        y = model(x)
    y.backward(gt.ones(y.shape, "bfloat16", "cuda"))
    found = counters()
    with gt.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
            parameter.grad = None
    return found


def test_parameters_are_cast_in_one_launch_from_the_second_step_on() -> None:
    model, x = layers(), gt.ones((4, 24), "bfloat16", "cuda")
    steps = [launched(model, x).kernels for _ in range(3)]
    assert [step.get(ALONE, 0) for step in steps] == [6, 0, 0]
    assert [step.get(TOGETHER, 0) for step in steps] == [0, 1, 1]
    assert all("cupy_copy__bfloat16_float32" not in step for step in steps)


def test_parameters_that_a_block_leaves_out_are_not_cast_in_the_next_one() -> None:
    model, x = layers(), gt.ones((4, 24), "bfloat16", "cuda")
    launched(model, x)
    with patch.object(casting, "write_all", wraps=casting.write_all) as written:
        for _ in range(3):
            launched(model[:1], x)
    assert [len(call.args[0][0].targets) for call in written.call_args_list] == [6, 2, 2]


def test_values_are_those_without_a_cache() -> None:
    """Also where the parameters are written within the block, and by other code."""
    gt.manual_seed(0)
    model = layers()
    x = gt.random.normal((4, 24), dtype="float32", device="cuda")

    def value(cached: bool) -> np.ndarray:
        with gt.autocast("bfloat16", cache_enabled=cached):
            return model(x).numpy().astype(np.float32)

    launched(model, x.to("bfloat16"))
    with gt.autocast("bfloat16"):
        for k in range(3):
            np.testing.assert_array_equal(value(True), value(False))
            with gt.no_grad():
                model[k].weight *= 2.0
            model[k].bias.array[...] = 3.0
    np.testing.assert_array_equal(value(True), value(False))


@pytest.mark.parametrize("served", [True, False])
def test_gradients_are_written_as_float32(served: bool) -> None:
    """By one product with its sums, or by two where cublasLt has no such epilogue."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype(gt.bfloat16) for shape in ((40, 24), (40, 16))]
    x, g = (gt.tensor(v, device="cuda") for v in values)
    layer = nn.Linear(24, 16).to("cuda")
    with gt.autocast("bfloat16"):
        y = layer(x)
    refused = nullcontext() if served else patch.object(cublaslt, "matmul", return_value=False)
    with refused:
        y.backward(g)
    exact = [v.astype(np.float64) for v in values]
    np.testing.assert_allclose(layer.weight.grad.numpy(), exact[1].T @ exact[0], atol=1e-5)
    np.testing.assert_allclose(layer.bias.grad.numpy(), exact[1].sum(0), atol=1e-5)


def test_steps_within_one_block_know_each_parameter_once() -> None:
    model, x = layers(), gt.ones((4, 24), "bfloat16", "cuda")
    with gt.autocast("bfloat16"):
        steps = [launched(model, x).kernels for _ in range(4)]
    assert [step.get(TOGETHER, 0) for step in steps] == [0, 1, 1, 1]
    leaf = model[0].weight._node
    assert leaf is not None and leaf.cast_beside is not None and len(leaf.cast_beside) == 6


def test_parameters_that_other_code_may_write_are_cast_by_themselves() -> None:
    """At each use, which none of the others' uses repeats."""
    model, x = layers(), gt.ones((4, 24), "bfloat16", "cuda")
    launched(model, x)
    arrays = [parameter.detach().array for parameter in model.parameters()]
    with patch.object(casting, "write_all", wraps=casting.write_all) as written:
        steps = [launched(model, x).kernels for _ in range(2)]
    assert [step[ALONE] for step in steps] == [6, 6] and not written.called
    del arrays
