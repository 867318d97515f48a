"""Dropout in one pass with what stands before it: the values and gradients of the two ops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gtensor as gt
import gtensor.nn.functional as F
from gtensor import nn
from gtensor.engine.handle.errors import LevelError
from gtensor.ops.activations.dropout import activated_dropout, residual_dropout

CHAINS: dict[str, tuple[Callable, Callable]] = {
    "relu": (lambda x, p: activated_dropout(x, "relu", p), lambda x, p: F.dropout(F.relu(x), p)),
    "gelu": (lambda x, p: activated_dropout(x, "gelu", p), lambda x, p: F.dropout(F.gelu(x), p)),
    "sum": (lambda x, p: residual_dropout(x, x.tanh(), p), lambda x, p: x + F.dropout(x.tanh(), p)),
}


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("chain", CHAINS)
def test_it_is_the_two_ops(chain: str, dtype: str, p: float, rng: np.random.Generator) -> None:
    """Of equal seeds, also where they are infinite or NaN, and of strided inputs."""
    values = rng.standard_normal((70, 6)).astype(dtype)
    values[0, :4] = np.inf, -np.inf, np.nan, 0
    found = []
    for function in CHAINS[chain]:
        gt.manual_seed(3)
        x = gt.tensor(values, device="cpu").requires_grad_()
        y = function(x[:, ::2], p)
        y.sum().backward()
        found.append((y.detach().numpy(), x.grad.numpy()))
    tolerance = 1e-6 if dtype == "float32" else 2e-3
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one[1:], other[1:], rtol=tolerance, atol=tolerance)
    assert np.array_equal(np.isnan(found[0][0]), np.isnan(found[1][0]))


def test_relu_keeps_its_output_alone() -> None:
    x = gt.ones((4,), requires_grad=True)
    y = activated_dropout(x, "relu", 0.5)
    assert y._node is not None
    assert [a is y._array for a in y._node.saved if a is not None] == [True]


@pytest.mark.parametrize("chain", CHAINS)
def test_under_vmap_its_randomness_decides(chain: str) -> None:
    x = gt.ones((3, 400))
    function = CHAINS[chain][0]
    with pytest.raises(LevelError, match="random"):
        gt.func.vmap(lambda row: function(row, 0.5))(x)
    for randomness, alike in (("same", True), ("different", False)):
        y = gt.func.vmap(lambda row: function(row, 0.5), randomness=randomness)(x).numpy()
        assert np.array_equal(y[0], y[1]) == alike


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_layer_is_the_same_with_parts_of_its_own(
    activation: str, norm_first: bool, rng: np.random.Generator
) -> None:
    """Parts with hooks are called; without them sums, activation and dropout are single ops."""
    gt.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.3, activation, batch_first=True,
                                       norm_first=norm_first)
    values = rng.standard_normal((2, 5, 8)).astype(np.float32)
    parts = layer.self_attn, layer.dropout, layer.dropout1, layer.dropout2, layer.linear2
    for dropped in (True, False):
        found: list[list[np.ndarray]] = []
        layer.train(dropped)
        for hooked in (False, True):
            called: list[nn.Module] = []
            hooks = [part.register_forward_hook(
                lambda module, given, y, called=called: called.append(module))
                for part in parts] if hooked else []
            layer.zero_grad()
            gt.manual_seed(4)
            x = gt.tensor(values).requires_grad_()
            y = layer(x)
            (y * y).sum().backward()
            assert set(called) == set(parts[:len(hooks)])
            found.append([y.detach().numpy(), x.grad.numpy(),
                          *(p.grad.numpy() for p in layer.parameters())])
            for hook in hooks:
                hook.remove()
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("stream", ["float32", "bfloat16", "float16", "int64"])
@pytest.mark.parametrize("branch", ["float32", "bfloat16", "float16"])
def test_a_sum_of_two_dtypes_has_that_of_add(branch: str, stream: str, device: str) -> None:
    x = gt.full((4, 5), 3, device=device).astype(stream)
    h = gt.full((4, 5), 0.5, device=device).astype(branch)
    found = residual_dropout(x, h, 0.3)
    assert found.dtype == (x + h).dtype
    kept = np.abs(found.numpy().astype(np.float64) - (3 + 0.5 / 0.7)) < 0.02  # or rounded before
    assert np.all(kept | (found.numpy() == 3))
