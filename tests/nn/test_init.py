"""Initial values: PyTorch's distributions, from gtensor's generator, in place."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn

INIT = nn.init


def bounds(values):
    return float(values.min()), float(values.max())


@pytest.mark.parametrize("make,fan_in", [
    (lambda: nn.Linear(150, 400), 150), (lambda: nn.Conv2d(24, 100, 5, groups=2), 300)])
def test_layers_start_as_pytorchs_do(make, fan_in):
    layer = make()
    bound = 1 / math.sqrt(fan_in)
    for parameter in (layer.weight, layer.bias):
        low, high = bounds(parameter.numpy())
        assert -bound <= low < -0.95 * bound and 0.95 * bound < high <= bound
    assert layer.weight.numpy().var() == pytest.approx(bound**2 / 3, rel=0.05)


@pytest.mark.parametrize("name,options", [
    ("kaiming_uniform_", {}), ("kaiming_uniform_", {"a": 0.5, "mode": "fan_out"}),
    ("kaiming_normal_", {"nonlinearity": "relu"}), ("xavier_uniform_", {"gain": 2.0}),
    ("xavier_normal_", {}), ("uniform_", {"a": -2.0, "b": 1.0}),
    ("normal_", {"mean": 3.0, "std": 0.5})])
def test_distributions_are_pytorchs(name, options):
    torch.manual_seed(0)
    shape = (200, 60, 3, 2)
    mine = getattr(INIT, name)(gt.empty(shape), **options).numpy()
    other = getattr(torch.nn.init, name)(torch.empty(shape), **options).numpy()
    assert mine.mean() == pytest.approx(other.mean(), abs=0.02 * float(other.std()))
    assert mine.std() == pytest.approx(float(other.std()), rel=0.02)
    if "normal" not in name:
        np.testing.assert_allclose(bounds(mine), bounds(other), rtol=2e-3)
    else:  # a uniform with the same deviation would end at 1.73 deviations
        assert np.abs(mine - mine.mean()).max() > 3 * mine.std()


def test_values_follow_from_the_seed_alone():
    def drawn(seed):
        gt.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Embedding(5, 2))

    first, again, other = drawn(3), drawn(3), drawn(4)
    assert first[0].weight.tolist() == again[0].weight.tolist()
    assert first[1].weight.tolist() == again[1].weight.tolist()
    assert first[0].bias.tolist() != other[0].bias.tolist()


def test_norms_start_as_the_identity():
    for norm in (nn.LayerNorm(4), nn.BatchNorm2d(4), nn.ABN(4)):
        assert norm.weight.tolist() == [1] * 4 and norm.bias.tolist() == [0] * 4
    assert norm.running_mean.tolist() == [0] * 4 and norm.running_var.tolist() == [1] * 4


@pytest.mark.parametrize("nonlinearity,param", [
    ("linear", None), ("relu", None), ("tanh", None), ("leaky_relu", 0.3), ("leaky_relu", None),
    ("sigmoid", None), ("conv2d", None)])
def test_gains_are_pytorchs(nonlinearity, param):
    theirs = torch.nn.init.calculate_gain(nonlinearity, param)
    assert INIT.calculate_gain(nonlinearity, param) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("call,message", [
    (lambda: INIT.calculate_gain("softsign"), "'softsign' given; wanted one of 'conv1d'"),
    (lambda: INIT.kaiming_uniform_(gt.empty((2, 2)), mode="fan"), "mode 'fan'"),
    (lambda: INIT.xavier_normal_(gt.empty(3)), r"shape \(3,\).*at least 2")])
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_trunc_normal_stays_inside_and_is_normal_there():
    gt.manual_seed(0)
    x = INIT.trunc_normal_(gt.empty((200, 300)), 0.5, 2.0, -1.0, 3.0).numpy()
    assert x.min() >= -1 and x.max() <= 3
    theirs = torch.nn.init.trunc_normal_(torch.empty(200, 300), 0.5, 2.0, -1.0, 3.0).numpy()
    assert abs(x.mean() - theirs.mean()) < 0.03 and abs(x.std() - theirs.std()) < 0.03
    assert INIT.trunc_normal_(gt.empty(3), 0.0, 0.0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 3), (2, 3, 2)])
def test_orthogonal_rows_or_columns(shape):
    gt.manual_seed(1)
    x = INIT.orthogonal_(gt.empty(shape, gt.float64), gain=3.0).numpy().reshape(shape[0], -1)
    product = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
    np.testing.assert_allclose(product, 9 * np.eye(len(product)), atol=1e-12)


def test_eye_and_gains():
    assert INIT.eye_(gt.empty((2, 3))).tolist() == [[1, 0, 0], [0, 1, 0]]
    for name in ("linear", "conv1d", "conv_transpose2d", "tanh", "relu", "selu", "leaky_relu"):
        assert INIT.calculate_gain(name) == torch.nn.init.calculate_gain(name)


@pytest.mark.parametrize("call,message", [
    (lambda: INIT.eye_(gt.empty(3)), r"eye_ was given a tensor of shape \(3,\); wanted a matrix"),
    (lambda: INIT.orthogonal_(gt.empty(3)), "wanted at least 2 dimensions"),
    (lambda: INIT.trunc_normal_(gt.empty(3), a=2.0, b=2.0), "wanted a < b around the mean"),
    (lambda: INIT.trunc_normal_(gt.empty(3), mean=90.0), "wanted a < b around the mean"),
])
def test_impossible_values_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", ["normal_", "uniform_", "trunc_normal_", "orthogonal_",
                                  "kaiming_normal_", "kaiming_uniform_", "xavier_normal_",
                                  "xavier_uniform_"])
def test_a_generator_gives_the_values(name):
    draw = getattr(nn.init, name)
    values = [draw(gt.zeros(4, 3), generator=gt.Generator().manual_seed(n)).tolist()
              for n in (1, 1, 2)]
    assert values[0] == values[1] != values[2]
