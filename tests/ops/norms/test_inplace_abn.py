"""In-place activated batch norm through the tape: what it computes, takes over and refuses."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from together import in_threads

import gtensor as gt
import gtensor.nn.functional as F
from gtensor import nn
from gtensor.engine.errors import ConsumedError
from gtensor.ops.norms import inplace_abn as module
from gtensor.testing.compare import close

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


# -- replicas --------------------------------------------------------------------------------------


class Exchange:
    """A gather among threads, one per replica."""

    def __init__(self, replicas: int) -> None:
        self.places: list[Any] = [None] * replicas
        self.barrier = threading.Barrier(replicas, timeout=30)

    def of(self, place: int) -> Callable[[Any], Any]:
        def gather(array: Any) -> Any:
            self.places[place] = array
            self.barrier.wait()
            stacked = np.stack(self.places)
            self.barrier.wait()
            return stacked

        return gather


@pytest.mark.parametrize("activation", ("leaky_relu", "relu"))
def test_two_replicas_are_one_large_batch(rng: np.random.Generator, activation: str) -> None:
    x, g = rng.standard_normal((2, 7, 3, 4))
    weight, bias = rng.standard_normal((2, 3))

    def run(part: slice, gather: Any) -> list[np.ndarray]:
        leaf = gt.tensor(x[part]).requires_grad_()
        w, b = gt.tensor(weight).requires_grad_(), gt.tensor(bias).requires_grad_()
        mean, var = gt.zeros(3, dtype="float64"), gt.ones(3, dtype="float64")
        z = F.inplace_abn(leaf + 1, w, b, mean, var, activation=activation, gather=gather)
        (z * gt.asarray(g[part])).sum().backward()
        return [t.numpy() for t in (z.detach(), leaf.grad, w.grad, b.grad, mean, var)]

    exchange, found = Exchange(2), [None, None]

    parts = (slice(0, 2), slice(2, 7))

    def replica(i: int) -> None:
        found[i] = run(parts[i], exchange.of(i))

    in_threads(replica, range(2))
    (z, dx, dw, db, mean, var), whole = zip(*found, strict=True), run(slice(None), None)
    np.testing.assert_allclose(np.concatenate(z), whole[0], atol=1e-12)
    np.testing.assert_allclose(np.concatenate(dx), whole[1], atol=1e-12)
    np.testing.assert_allclose(sum(dw), whole[2], atol=1e-11)
    np.testing.assert_allclose(sum(db), whole[3], atol=1e-11)
    for i in range(2):
        np.testing.assert_allclose(mean[i], whole[4], atol=1e-12)
        np.testing.assert_allclose(var[i], whole[5], atol=1e-12)


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
    ({"bias": np.zeros(3)}, "bias of type ndarray"), ({"momentum": None}, "momentum=None"),
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


def test_create_graph_over_replicas_is_refused() -> None:
    leaf = gt.ones((4, 3)).requires_grad_()
    z = F.inplace_abn(leaf + 1, gather=lambda a: a[None])
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
    right = module.grad_cpu

    def wrong(*arrays: Any, **options: Any) -> Any:
        dx, sums = right(*arrays, **options)
        dx *= 1.0005
        return dx, sums

    from gtensor.engine.namespaces import raw

    monkeypatch.setattr(raw["cpu"], "inplace_abn_grad", wrong)
    layer = Layer(rng, (5, 3), "tanh")
    with pytest.raises(AssertionError):
        agree(layer.ours(True), layer.theirs(True))
