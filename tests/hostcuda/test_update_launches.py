"""What the updates of an optimizer launch on CUDA: one kernel per dtype, with clipping four."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

import gtensor as gt
from gtensor import nn, optim
from gtensor.backend import multi_tensor
from gtensor.hostcuda import counters, reset_counters
from gtensor.train import digits

pytestmark = [pytest.mark.host_cuda, pytest.mark.usefixtures("dry_cuda")]


class PreNormLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); width 768, 12 parameters."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        n, length, width = x.shape
        split = self.qkv(self.norms[0](x)).reshape((n, length, 3, self.heads, -1))
        q, k, v = (split[:, :, i].permute_dims((0, 2, 1, 3)) for i in range(3))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.permute_dims((0, 2, 1, 3)).reshape((n, length, width)))
        return x + self.mlp(self.norms[1](x))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "digits": (digits.model, (2, 1, 8, 8)), "mlp": (mlp, (2, 512)),
    "layer": (PreNormLayer, (1, 3, 768))}
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.1), "momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "Adam": optim.Adam, "AdamW": optim.AdamW, "AMSGrad": lambda p: optim.Adam(p, amsgrad=True),
    "Lion": optim.Lion, "RMSprop": optim.RMSprop, "Adagrad": optim.Adagrad}


def launches(work: Callable[[], object]) -> int:
    """Kernels, library products and copies of the second call."""
    for _ in range(2):
        reset_counters()
        work()
    found = counters()
    assert not found.memsets and not found.other, "no memset, no synchronization"
    return found.launches


def trained(network: str) -> nn.Module:
    """A network with gradients."""
    make, shape = NETWORKS[network]
    model = make()
    model(gt.zeros(shape)).sum().backward()
    return model


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_update_is_one_launch(network, optimizer):
    model = trained(network)
    assert launches(OPTIMIZERS[optimizer](model.parameters()).step) == 1


def clipped(model: nn.Module, optimizer: optim.Optimizer, order: float = 2.0) -> Callable[[], None]:
    def step() -> None:
        optim.clip_grad_norm_(model.parameters(), 1.0, order)
        optimizer.step()

    return step


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("order", [2.0, 1.0, 3.0, float("inf")])
def test_with_clipping_it_is_four(network, order):
    model = trained(network)
    assert launches(clipped(model, optim.AdamW(model.parameters()), order)) == 4
    assert launches(lambda: optim.clip_grad_value_(model.parameters(), 1.0)) == 1


def test_groups_that_differ_in_numbers_share_the_launch():
    model = trained("layer")
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = optim.AdamW([{"params": decayed, "lr": 0.1},
                             {"params": others, "weight_decay": 0.0, "betas": (0.8, 0.9)}])
    assert launches(optimizer.step) == 1
    optimizer.lr = 0.05
    assert launches(optimizer.step) == 1
    optimizer.param_groups[1]["maximize"] = True
    assert launches(optimizer.step) == 2


def test_dtypes_have_a_launch_each():
    model = trained("mlp")
    half = trained("mlp").to(gt.float16)
    for p in half.parameters():
        p.grad = gt.zeros(p.shape, gt.float16)
    assert launches(optim.AdamW([*model.parameters(), *half.parameters()]).step) == 2


def test_a_scaler_adds_two_launches():
    model = trained("mlp")
    optimizer, scaler = optim.AdamW(model.parameters()), optim.GradScaler()
    loss = gt.zeros(())

    def step() -> None:
        scaler.scale(loss)
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    assert launches(step) == 1 + 1 + 3 + 1 + 1  # loss, gradients, clipping, update, scale


def test_a_scaled_step_in_float16_waits_for_nothing():
    """`launches` counts synchronizations, of which item() makes one; it refuses all."""
    model = mlp()
    optimizer, scaler = optim.AdamW(model.parameters()), optim.GradScaler()
    x, target = gt.zeros((2, 512)), gt.zeros(2, "int64")
    losses: list[gt.Tensor] = []

    def step() -> None:
        optimizer.zero_grad()
        with gt.autocast("float16"):
            losses.append(nn.functional.cross_entropy(model(x), target))
        scaler.scale(losses[-1]).backward()
        scaler.step(optimizer)
        scaler.update()

    def read() -> None:
        step()
        losses[-1].item()

    assert launches(step)
    assert losses[-1].dtype == gt.float32
    with pytest.raises(AssertionError, match="no synchronization"):
        launches(read)


def test_averages_are_one_launch():
    ema = optim.EMA(trained("layer"))
    assert launches(ema.update) == 1


def many(count: int) -> optim.Optimizer:
    parameters = [gt.zeros(3, requires_grad=True) for _ in range(count)]
    for p in parameters:
        p.grad = gt.zeros(3)
    return optim.AdamW(parameters)


def test_only_a_full_table_takes_another_launch():
    assert [launches(many(count).step) for count in (40, 384, 385)] == [1, 1, 2]
    with patch.object(multi_tensor, "_largest", lambda: multi_tensor.SMALL):  # before CUDA 12.1
        assert [launches(many(count).step) for count in (40, 41, 81)] == [1, 2, 3]


def test_planted_fault_a_launch_per_parameter_is_counted():
    def each(positions: Any, written: Any, launch: Any) -> None:
        for i in range(len(positions[0])):
            launch([[arrays[i]] for arrays in positions], [i])

    model = trained("mlp")
    with patch("gtensor.ops.define.updates.launch_apart", each):
        assert launches(optim.AdamW(model.parameters()).step) == 6
