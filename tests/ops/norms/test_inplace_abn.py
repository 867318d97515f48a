"""In-place activated batch norm: what it computes, takes over and refuses.

First through the tape, then its CPU paths alone: values, hard numbers, memory, replicas.
"""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import gtensor as gt
import gtensor.nn.functional as F
from gtensor import nn
from gtensor.engine.handle.errors import ConsumedError
from gtensor.ops.activations.inverses import INVERSES
from gtensor.ops.norms import inplace_abn as paths
from gtensor.ops.norms import replicas
from gtensor.ops.norms.batch_norm_paths import statistics_cpu
from gtensor.testing.compare import close

from .inplace_abn_problem import (
    CASES,
    DTYPES,
    EPS,
    SATURATING,
    Case,
    Problem,
    bits,
    channels_last,
    reversed_,
    strided,
)

SHAPES = ((5, 3), (2, 3, 7), (2, 3, 3, 2))
THEIRS: dict[str, Callable[[Any], Any]] = {
    "leaky_relu": lambda y: TF.leaky_relu(y, 0.1), "elu": lambda y: TF.elu(y, 0.1),
    "identity": lambda y: y, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "softplus": lambda y: TF.softplus(y, 0.1), "relu": torch.relu, "gelu": TF.gelu,
    "gelu_tanh": lambda y: TF.gelu(y, approximate="tanh"), "silu": TF.silu,
}
RECIPES = ("relu", "gelu", "gelu_tanh", "silu")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


class Layer:
    """The arrays of one layer, and its gradients by PyTorch: x -> x + 1 -> norm -> z * z -> sum."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], activation: str) -> None:
        self.activation = activation
        c = shape[1]
        self.arrays = [rng.standard_normal(shape), rng.standard_normal(c), rng.standard_normal(c)]
        self.running = [rng.standard_normal(c), rng.uniform(0.5, 2, c)]
        self.g = rng.standard_normal(shape)

    def ours(self, training: bool, function: Any = F.inplace_abn, **more: Any) -> list[Any]:
        x, weight, bias = (gt.tensor(a).requires_grad_() for a in self.arrays)
        mean, var = (gt.tensor(a) for a in self.running)
        z = function(x + 1, weight, bias, mean, var, training, activation=self.activation,
                     activation_param=0.1, **more)
        loss = (z * z * gt.asarray(self.g)).sum()
        loss.backward()
        return [loss.detach(), x.grad, weight.grad, bias.grad, mean, var]

    def theirs(self, training: bool) -> list[Any]:
        x, weight, bias = (torch.tensor(a, requires_grad=True) for a in self.arrays)
        mean, var = (torch.tensor(a) for a in self.running)
        y = TF.batch_norm(x + 1, mean, var, weight.abs() + 1e-5, bias, training)
        z = THEIRS[self.activation](y)
        loss = (z * z * torch.tensor(self.g)).sum()
        loss.backward()
        return [loss.detach(), x.grad, weight.grad, bias.grad, mean, var]


def agree(ours: list[Any], theirs: list[Any]) -> None:
    for name, a, b in zip(("loss", "x", "weight", "bias", "mean", "var"), ours, theirs,
                          strict=True):
        close(name, a, b, 1e-8)


@pytest.mark.parametrize("training", (True, False))
@pytest.mark.parametrize("activation", THEIRS)
def test_values_gradients_and_averages_are_pytorchs(
    rng: np.random.Generator, activation: str, training: bool
) -> None:
    for shape in SHAPES:
        layer = Layer(rng, shape, activation)
        theirs = layer.theirs(training)
        agree(layer.ours(training), theirs)
        agree(layer.ours(training, F.abn), theirs)


@pytest.mark.parametrize("activation", ("leaky_relu", "relu"))
@pytest.mark.parametrize("missing", range(1, 5))
def test_parameters_and_averages_may_be_left_out(
    rng: np.random.Generator, activation: str, missing: int
) -> None:
    inputs: list[Any] = [gt.tensor(rng.standard_normal((4, 3, 2))) + 1.0]
    inputs += [gt.tensor(rng.uniform(0.5, 1, 3)) for _ in range(4)]
    inputs[missing] = None
    wanted = F.abn(*inputs, activation=activation).numpy()
    np.testing.assert_allclose(F.inplace_abn(*inputs, activation=activation).numpy(), wanted)


# -- what it takes over ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ("recorded", "no_grad", "evaluation"))
@pytest.mark.parametrize("activation", THEIRS)
def test_the_input_is_consumed_in_every_mode(
    rng: np.random.Generator, activation: str, mode: str
) -> None:
    leaf = gt.tensor(rng.standard_normal((4, 3, 5))).requires_grad_(mode == "recorded")
    running = gt.zeros(3, dtype="float64"), gt.ones(3, dtype="float64")
    x = leaf + 1
    memory = x._array
    z = F.inplace_abn(x, None, None, *running, mode != "evaluation", activation=activation)
    kept = activation in RECIPES and mode == "recorded"
    assert (z._array is memory) is not kept
    with pytest.raises(ConsumedError, match=r"test_inplace_abn\.py:\d+: z = F\.inplace_abn"):
        z + x


def test_a_layer_in_place_works_under_a_name_that_is_used_again() -> None:
    norm = nn.InPlaceABN(3)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), norm, nn.Conv2d(3, 3, 3), norm)
    before = gt.memory.copies("cpu").get("inplace_abn", (0, 0))
    net(gt.random.normal((2, 2, 8, 8))).sum().backward()
    assert gt.memory.copies("cpu").get("inplace_abn", (0, 0)) == before
    assert all(p.grad is not None for p in net.parameters())


def test_a_residual_is_loud_and_not_wrong() -> None:
    norm = nn.InPlaceABN(3)
    x = gt.random.normal((4, 3)) * 2
    with pytest.raises(ConsumedError, match=r"clone\(\).*ABN for InPlaceABN"):
        norm(x) + x


def test_two_norms_in_a_row_copy_once() -> None:
    """The first norm's output is what its record saved, so the second may not write over it."""
    x = gt.random.normal((4, 3), requires_grad=True)
    before = gt.memory.copies("cpu").get("inplace_abn", (0, 0))[0]
    z = F.inplace_abn(F.inplace_abn(x * 1))
    assert gt.memory.copies("cpu")["inplace_abn"][0] == before + 1
    z.sum().backward()
    (again,) = gt.grad(F.abn(F.abn(x * 1)).sum(), [x])
    np.testing.assert_allclose(x.grad.numpy(), again.numpy(), atol=1e-6)


def test_the_gradient_is_written_over_dz(rng: np.random.Generator) -> None:
    """The last holder of dz gives its memory to dx; a hook or retain_grad holds dz."""
    g = rng.standard_normal((4, 3))
    for held in (False, True):
        leaf = gt.tensor(rng.standard_normal((4, 3))).requires_grad_()
        x = leaf + 1
        z = F.inplace_abn(x)
        if held:
            z.retain_grad()
        (z * gt.asarray(g)).sum().backward()
        if held:
            np.testing.assert_array_equal(z.grad.numpy(), g)
        (wanted,) = gt.grad((F.abn(leaf + 1) * gt.asarray(g)).sum(), [leaf])
        np.testing.assert_allclose(leaf.grad.numpy(), wanted.numpy(), atol=1e-12)


def test_a_broadcast_gradient_of_z_is_right(rng: np.random.Generator) -> None:
    leaf = gt.tensor(rng.standard_normal((4, 3, 2))).requires_grad_()
    F.inplace_abn(leaf + 1, activation="tanh").sum().backward()  # dz is one number, stride 0
    (wanted,) = gt.grad(F.abn(leaf + 1, activation="tanh").sum(), [leaf])
    np.testing.assert_allclose(leaf.grad.numpy(), wanted.numpy(), atol=1e-9)


@pytest.mark.parametrize("activation", ("tanh", "silu"))
def test_second_order_is_that_of_the_op_out_of_place(
    rng: np.random.Generator, activation: str
) -> None:
    x, w = rng.standard_normal((6, 3)), rng.uniform(0.5, 1, 3)

    def penalty(function: Any) -> list[np.ndarray]:
        leaf, weight = gt.tensor(x).requires_grad_(), gt.tensor(w).requires_grad_()
        z = function(leaf * leaf, weight, activation=activation)
        (g,) = gt.grad((z * z).sum(), [leaf], create_graph=True)
        (g * g).sum().backward()
        return [g.detach().numpy(), leaf.grad.numpy(), weight.grad.numpy()]

    for ours, wanted in zip(penalty(F.inplace_abn), penalty(F.abn), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-7, atol=1e-8)


def test_a_recipe_with_an_overwritten_bias_raises(rng: np.random.Generator) -> None:
    leaf = gt.tensor(rng.standard_normal((4, 3))).requires_grad_()
    bias = gt.zeros(3, dtype="float64")
    z = F.inplace_abn(leaf + 1, None, bias, activation="relu")
    y = z * z
    bias += 1.0
    with pytest.raises(gt.GradientError, match="overwritten in place"):
        y.sum().backward()


def test_evaluation_does_not_see_later_averages(rng: np.random.Generator) -> None:
    """The averages of an evaluation step may move before its backward: it kept copies."""
    leaf = gt.tensor(rng.standard_normal((4, 3))).requires_grad_()
    mean, var = gt.zeros(3, dtype="float64"), gt.ones(3, dtype="float64")
    z = F.inplace_abn(leaf + 1, None, None, mean, var, training=False)
    var *= 4.0
    z.sum().backward()
    assert 0.9 < leaf.grad.numpy().max() <= 1.0  # 1 / sqrt(1 + eps), not a half of it


# -- what it refuses, before anything is written ---------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "slope 0": ({"activation_param": 0.0}, "activation_param=0.0 for leaky_relu"),
    "a negative slope": ({"activation_param": -0.1}, "wanted a positive number"),
    "a slope that is 0 as a float32": ({"activation_param": 1e-50}, "wanted a positive number"),
    "alpha 0": ({"activation": "elu", "activation_param": 0.0}, "activation_param=0.0 for elu"),
    "an infinite beta": ({"activation": "softplus", "activation_param": float("inf")}, "positive"),
    "an unknown activation": ({"activation": "cube"}, "activation='cube'; wanted one of"),
    "a weight of another length": ({"weight": gt.ones(4)}, r"weight of shape \(4,\)"),
    "a mean whose elements share memory": (
        {"running_mean": gt.broadcast_to(gt.zeros(1), (3,))}, "elements share memory"),
    "eps 0": ({"eps": 0.0}, "eps=0.0; wanted a positive number"),
    "no averages": ({"training": False}, "no running_mean or no running_var outside training"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_leave_the_input_whole(name: str) -> None:
    options, said = BAD[name]
    x = gt.ones((4, 3)) + 1
    with pytest.raises(ValueError, match=said) as error:
        F.inplace_abn(x, **options)
    assert str(error.value).startswith("inplace_abn was given")
    assert x.tolist() == [[2.0] * 3] * 4


@pytest.mark.parametrize("options,said", [
    ({"bias": np.zeros(3)}, "bias of dtype float64"), ({"momentum": None}, "momentum=None"),
    ({"running_var": gt.ones(3, dtype="int32")}, "running_var of dtype int32")])
def test_bad_types_leave_the_input_whole(options: dict[str, Any], said: str) -> None:
    x = gt.ones((4, 3)) + 1
    with pytest.raises(TypeError, match=said):
        F.inplace_abn(x, activation="relu", **options)
    assert x.tolist() == [[2.0] * 3] * 4


def test_an_overflow_does_not_stop_half_way(rng: np.random.Generator) -> None:
    x = gt.tensor(np.full((4, 3), 1e38, "float32")) * 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        z = F.inplace_abn(x, None, None, gt.zeros(3), gt.full((3,), 1e-5), training=False)
    assert np.isinf(z.numpy()).all()


def test_one_sample_per_channel_is_refused_in_training_only() -> None:
    x = gt.ones((1, 3)) + 1
    with pytest.raises(ValueError, match="more than one value per channel"):
        F.inplace_abn(x)
    F.inplace_abn(x, None, None, gt.zeros(3), gt.ones(3), training=False)


@pytest.mark.parametrize("function", (F.batch_norm, F.abn, F.inplace_abn))
def test_create_graph_over_replicas_is_refused(function: Any) -> None:
    leaf = gt.ones((4, 3)).requires_grad_()
    z = function(leaf + 1, None, None, training=True, gather=lambda a: a[None])
    with pytest.raises(gt.GradientError, match="synchronized over replicas"):
        gt.grad(z.sum(), [leaf], create_graph=True)


# -- modules ---------------------------------------------------------------------------------------


def trained_norm(rng: np.random.Generator, signs: list[float]) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(3, dtype=gt.float64)
    with gt.no_grad():
        norm.weight[...] = gt.asarray(np.array(signs) * rng.uniform(0.5, 1.0, 3))
        norm.bias[...] = gt.asarray(rng.standard_normal(3))
    for _ in range(3):
        norm(gt.asarray(rng.standard_normal((4, 3, 2, 2)) + 1))
    return norm


@pytest.mark.parametrize("to", (nn.ABN, nn.InPlaceABN))
@pytest.mark.parametrize("training", (True, False))
def test_a_batch_norm_is_converted_exactly(
    rng: np.random.Generator, to: Any, training: bool
) -> None:
    conv = nn.Conv2d(2, 3, 1, dtype=gt.float64)
    norm = trained_norm(rng, [1.0, -1.0, 1.0])
    x = gt.asarray(rng.standard_normal((4, 2, 5, 5)))
    wanted = F.leaky_relu(norm.eval()(conv(x)) if not training else norm(conv(x)))
    wanted = wanted.detach().numpy()
    made = to.from_batch_norm(norm, producer=conv).train(training)
    np.testing.assert_allclose(made(conv(x)).detach().numpy(), wanted, atol=1e-12)


def test_negative_weights_want_their_producer(rng: np.random.Generator) -> None:
    norm, other = trained_norm(rng, [1.0, -1.0, 1.0]), nn.Conv2d(2, 4, 1)
    before = other.weight.tolist()
    for producer in (None, other):
        with pytest.raises(ValueError, match=r"negative weights \(channels \[1\]\)"):
            nn.InPlaceABN.from_batch_norm(norm, producer=producer)
    assert other.weight.tolist() == before


def test_a_conversion_keeps_mode_dtype_and_what_is_frozen(rng: np.random.Generator) -> None:
    norm = trained_norm(rng, [1.0, 1.0, 1.0]).eval()
    norm.weight.requires_grad_(False)
    made = nn.InPlaceABN.from_batch_norm(norm)
    assert not made.training and not made.weight.requires_grad and made.bias.requires_grad
    plain = nn.BatchNorm2d(3, affine=False, dtype=gt.float64)
    assert nn.ABN.from_batch_norm(plain).running_mean.dtype == np.float64
    with pytest.raises(TypeError, match="wanted a BatchNorm1d or BatchNorm2d"):
        nn.ABN.from_batch_norm(made)
    with pytest.raises(ValueError, match="InPlaceABN was given activation='typo'"):
        nn.InPlaceABN(3, activation="typo")


def test_the_state_of_a_batch_norm_loads_as_it_is(rng: np.random.Generator) -> None:
    norm = trained_norm(rng, [1.0, 1.0, 1.0]).eval()
    made = nn.InPlaceABN(3, activation="identity", dtype=gt.float64)
    made.load_state_dict(norm.state_dict())
    x = gt.asarray(rng.standard_normal((4, 3, 2, 2)))
    np.testing.assert_allclose(made.eval()(x).detach().numpy(), norm(x).detach().numpy(),
                               rtol=1e-4, atol=1e-4)  # eps beside the weight
    assert made.num_batches_tracked.item() == 3


def test_a_wrong_rule_is_caught(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison with PyTorch sees 0.05 %."""
    right = paths.grad_cpu

    def wrong(*arrays: Any, **options: Any) -> Any:
        dx, *sums = right(*arrays, **options)
        dx *= 1.0005
        return dx, *sums

    from gtensor.engine.handle.namespaces import raw

    monkeypatch.setattr(raw["cpu"], "inplace_abn_grad", wrong)
    layer = Layer(rng, (5, 3), "tanh")
    with pytest.raises(AssertionError):
        agree(layer.ours(True), layer.theirs(True))


# -- values and gradients --------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_pytorch(case: Case, dtype: Any, training: bool, rng: np.random.Generator) -> None:
    Problem(rng, case, dtype=dtype, training=training).check_all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("tile", [32768, 11, 1])
@pytest.mark.parametrize("layout", [np.copy, strided, channels_last, reversed_])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 5), (3, 4, 3, 2), (4, 1, 3), (1, 2, 7)])
def test_shapes_and_layouts(
    shape: Any, layout: Any, tile: int, training: bool, rng: np.random.Generator
) -> None:
    dtype = DTYPES[(len(shape) + tile) % 4]
    case = CASES[(shape[0] + tile) % len(CASES)]
    with gt.settings.override(tile_elements=tile):
        Problem(rng, case, shape, dtype, training).check_all(layout)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", [CASES[1], CASES[0]], ids=str)
@pytest.mark.parametrize("missing", [("weight",), ("bias",), ("weight", "bias")])
def test_without_weight_or_bias(
    missing: Any, case: Case, training: bool, rng: np.random.Generator
) -> None:
    nothing: dict[str, Any] = dict.fromkeys(missing)
    Problem(rng, case, training=training, **nothing).check_all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (2, 3, 0), (2, 0, 3)])
def test_empty(shape: Any, dtype: Any, rng: np.random.Generator) -> None:
    for case in CASES:
        p = Problem(rng, case, shape, dtype, training=False)
        p.training = True
        z, mean, var = p.forward(p.x)
        dx, sums = p.grad(p.g, z, mean, var)
        assert z.shape == dx.shape == shape and z.dtype == dx.dtype == dtype
        assert not sums.any() and sums.shape == (2, shape[1])
        assert paths.input_cpu(z, p.weight, p.bias, mean, var, **p.options).shape == shape


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_gradients_that_are_broadcast_or_shared_are_only_read(
    case: Case, dtype: Any, training: bool, rng: np.random.Generator
) -> None:
    shape = (4, 3, 2, 5)
    for g in (np.broadcast_to(rng.standard_normal(()), shape),
              np.broadcast_to(rng.standard_normal((4, 3, 1, 1)), shape),
              rng.standard_normal(shape)):
        p = Problem(rng, case, shape, dtype, training, g=g)
        shared = np.broadcast_to(
            p.g[
                tuple(slice(None, n) if s else slice(1) for n,
                      s in zip(shape, g.strides, strict=True))
            ],
            shape,
        )
        before = shared.copy()
        z, mean, var = p.forward(p.x)
        dx, sums = p.grad(shared, z, mean, var)  # broadcast_to: writing would raise
        p.check(z, dx, sums)
        np.testing.assert_array_equal(bits(shared), bits(before))
        assert not np.shares_memory(dx, z)


# -- what inversion makes hard ---------------------------------------------------------------------


def open_range(case: Case) -> tuple[float, float]:
    name, p = case
    return {"elu": (-p, inf), "tanh": (-1, 1), "sigmoid": (0, 1), "softplus": (0, inf)}[name]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SATURATING, ids=str)
def test_bounds_are_the_first_numbers_inside(case: Case, dtype: Any) -> None:
    work = np.float64 if dtype == np.float64 else np.float32
    for bound, wanted, sign in zip(INVERSES[case[0]].inside(dtype, case[1]), open_range(case),
                                   (1, -1), strict=True):
        if abs(wanted) == inf:
            assert bound == wanted
            continue
        assert float(np.asarray(bound, dtype)) == bound, "not a number of the dtype"
        assert sign * bound > sign * wanted
        if wanted:
            outer = float(np.nextafter(np.asarray(bound, dtype), np.asarray(-sign * inf, dtype)))
            assert sign * outer <= max(sign * wanted, sign * float(work(wanted)))
        else:
            smallest = float(ml_dtypes.finfo(dtype).smallest_normal)
            assert smallest <= bound <= smallest * max(1, 1.01 / case[1])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SATURATING, ids=str)
def test_saturated_outputs_stay_inside_and_gradients_finite(
    case: Case, dtype: Any, training: bool, rng: np.random.Generator
) -> None:
    spread = np.where(rng.random((8, 2, 4)) < 0.5, -1.0, 1.0) * rng.uniform(0.5, 1, (8, 2, 4))
    p = Problem(rng, case, (8, 2, 4), dtype, training, x=spread, weight=np.array([200.0, 9000.0]),
                mean=np.zeros(2), var=np.ones(2))
    z, mean, var = p.forward(p.x)
    lowest, highest = open_range(case)
    values = z.astype(np.float64)
    assert (values > lowest).all() and (values < highest).all()
    if lowest > -inf:
        assert values.min() == INVERSES[case[0]].inside(dtype, case[1])[0]
    dx, sums = p.grad(p.g, z, mean, var)
    again = paths.input_cpu(z, p.weight, p.bias, mean, var, **p.options)
    for a in (dx, sums, again):
        assert np.isfinite(a.astype(np.float64)).all()


@pytest.mark.parametrize("name", ["elu", "tanh", "sigmoid", "softplus"])
def test_nan_stays_nan_and_its_neighbours_stay_inside(name: str) -> None:
    x = np.array([np.nan, -1e4, 1e4, 0.0], np.float32).reshape(4, 1)
    z = paths.forward_cpu(
        x,
        None,
        None,
        np.zeros(1, "f4"),
        np.ones(1, "f4"),
        training=False,
        eps=0.0,
        activation=name,
        parameter=1.0,
    )[0]
    lowest, highest = open_range((name, 1.0))
    assert np.isnan(z[0, 0]) and (z[1:] > lowest).all() and (z[1:] < highest).all()


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_constant_channels(case: Case, dtype: Any, rng: np.random.Generator) -> None:
    x = np.broadcast_to(np.array([0.0, 3.0, -100.1])[:, None], (6, 3, 5)).astype(dtype)
    p = Problem(rng, case, dtype=dtype, x=x)
    assert statistics_cpu(p.x)[1].max() < 1e-11 * (1e-8 if dtype == np.float64 else 1)
    p.check_all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_weight_of_zero_is_eps(case: Case, dtype: Any, rng: np.random.Generator) -> None:
    p = Problem(rng, case, dtype=dtype, weight=np.full(3, EPS))
    if dtype == np.float64:
        p.check_all()
    z, mean, var = p.forward(p.x)
    dx, sums = p.grad(p.g, z, mean, var)
    assert all(np.isfinite(a.astype(np.float64)).all() for a in (z, dx, sums))


@pytest.mark.parametrize("ratio", [1e3, 1e4])
def test_huge_means_with_tiny_variances(ratio: float, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((64, 3, 50)) + np.array([1, -1, 0.3])[:, None] * ratio).astype("f4")
    _, mean, var = paths.forward_cpu(x, None, None, None, None, training=True, eps=EPS,
                                     activation="leaky_relu", parameter=0.01)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var((0, 2)), rtol=1e-3)


def test_tanh_with_a_large_weight_is_within_its_conditioned_tolerance(
    rng: np.random.Generator,
) -> None:
    p = Problem(rng, ("tanh", 1.0), (50, 2, 9), np.float32, weight=np.full(2, 3.0))
    assert p.tolerance > 1e-2  # 1 / act'(y) is thousands: the docs call this ill-conditioned
    p.check_all()


# -- memory ----------------------------------------------------------------------------------------

LARGE = (16, 16, 64, 64)  # 4 MiB of float32
LIMIT = 65536 * 4 + 65536  # a tile of 64K elements; per-channel arrays and Python's own objects


def peak(function: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        function()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def in_place(case: Case, dtype: Any) -> Iterator[Callable[[], object]]:
    """Forward and both ways of backward of a large tensor, in place."""
    x = np.random.default_rng(1).standard_normal(LARGE).astype(dtype)
    per_channel = np.ones(LARGE[1], np.float32)
    arrays = (per_channel, per_channel)
    options = {"eps": EPS, "activation": case[0], "parameter": case[1]}
    g = x.copy()
    yield lambda: paths.forward_cpu(x, *arrays, None, None, training=True, out=x, **options)
    for training in (True, False):
        yield lambda training=training: paths.grad_cpu(g, x, *arrays, *arrays, training=training,
                                                       out=g, **options)
    yield lambda: paths.input_cpu(x, *arrays, *arrays, out=x, **options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, DTYPES[1]) for case in CASES]
    + [(case, dtype) for case in (CASES[1], CASES[3], CASES[-1]) for dtype in DTYPES[2:]],
)
def test_no_full_size_temporary(case: Case, dtype: Any) -> None:
    for step, function in enumerate(in_place(case, dtype)):
        assert peak(function) < LIMIT, step


def test_a_full_size_temporary_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    invert = INVERSES["leaky_relu"].invert
    wasteful = INVERSES["leaky_relu"]._replace(
        invert=lambda z, *rest: np.empty(LARGE, z.dtype) is None or invert(z, *rest))
    monkeypatch.setitem(paths.INVERSES, "leaky_relu", wasteful)
    monkeypatch.setattr(gt.settings, "compiled", 0)  # kernels in C do not use it
    _, *backward = in_place(("leaky_relu", 0.01), np.float32)
    assert all(peak(function) >= LIMIT for function in backward)


# -- replicas --------------------------------------------------------------------------------------


def among(*others: tuple[Any, int]) -> Callable[[Any], Any]:
    """The gather of a replica beside others, by their two numbers per channel and their counts."""
    return lambda own: np.stack([own, *(np.append(numbers, count) for numbers, count in others)])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("cut", [1, 5, 8])
def test_replicas_with_different_counts_are_one_batch(
    case: Case, cut: int, rng: np.random.Generator
) -> None:
    p = Problem(rng, case, (8, 3, 5))
    parts = [(p.x[:cut], p.g[:cut]), (p.x[cut:], p.g[cut:])]  # one may be empty
    counts = [len(x) * 5 for x, _ in parts]
    other = statistics_cpu(parts[1][0]), counts[1]
    mean, var, unbiased = replicas.joint_statistics_cpu(parts[0][0], gather=among(other))
    close("statistics", np.stack([mean, var]), statistics_cpu(p.x), (0.0, 1e-13))
    close("unbiased variance", unbiased, p.x.var((0, 2), ddof=1), (0.0, 1e-13))
    p.mean, p.var, p.training = mean, var, False
    outputs = [p.forward(x)[0] for x, _ in parts]
    sums = [p.grad(g, z, mean, var)[1] for (_, g), z in zip(parts, outputs, strict=True)]
    p.training = True
    found = [
        p.grad(g, z, mean, var, gather=among((sums[1 - i], counts[1 - i])))
        for i, ((_, g), z) in enumerate(zip(parts, outputs, strict=True))
    ]
    for (_, returned), wanted in zip(found, sums, strict=True):
        close("local sums", returned, wanted, 0.0)
    p.check(np.concatenate(outputs), np.concatenate([dx for dx, _ in found]), sums[0] + sums[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_of_replicas_with_a_huge_mean(dtype: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((9, 2, 40)).astype(dtype) + dtype(1e4)
    others = [(statistics_cpu(part), len(part) * 40) for part in (x[2:2], x[2:])]
    mean, var, _ = found = replicas.joint_statistics_cpu(x[:2], gather=among(*others))
    assert found.dtype == dtype
    np.testing.assert_allclose(mean, x.astype("f8").mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(var, x.astype("f8").var((0, 2)), rtol=1e-3)


def test_counts_are_exact_where_float32_has_no_odd_numbers() -> None:
    """2^24 + 1 samples on another replica: their count decides the mean of 0 and 2^24 + 2."""
    other = np.array([[2.0**24 + 2], [0.0]]), 2**24 + 1
    mean, _, _ = replicas.joint_statistics_cpu(np.zeros((1, 1)), gather=among(other))
    assert mean.tolist() == [2.0**24 + 1]


@pytest.mark.parametrize("count", (0, 1))
def test_fewer_than_two_values_on_all_replicas_are_refused(count: int) -> None:
    x = gt.ones((count, 3)) + 1
    with pytest.raises(ValueError, match=f"over 2 replicas .* a count of {count} per channel"):
        F.inplace_abn(x, gather=among((np.zeros((2, 3)), 0)))
    assert x.tolist() == [[2.0] * 3] * count


# -- the comparison itself -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, np.float64) for case in CASES]
    # float32's tolerance for leaky_relu with slope 0.01 is larger than that error
    + [(case, np.float32) for case in CASES if case[0] != "leaky_relu"],
)
@pytest.mark.parametrize("rule", ["gradient", "invert"])
def test_an_error_of_a_twentieth_of_a_percent_is_caught(
    rule: str, case: Case, dtype: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    right = getattr(INVERSES[case[0]], rule)

    def wrong(*arguments: Any) -> Any:
        return right(*arguments) * np.asarray(1.0005, arguments[-1].dtype)

    monkeypatch.setattr(gt.settings, "compiled", 0)  # kernels in C do not use it
    p = Problem(rng, case, (40, 3, 5), dtype, weight=np.full(3, 0.2), bias=np.full(3, 0.1))
    p.check_all()
    monkeypatch.setitem(paths.INVERSES, case[0], INVERSES[case[0]]._replace(**{rule: wrong}))
    with pytest.raises(AssertionError):
        p.check_all()
