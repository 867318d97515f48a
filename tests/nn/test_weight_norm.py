"""Norms of parameters that are kept, and weight normalization, as PyTorch computes them."""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn, optim
from gtensor.nn import parameter
from gtensor.nn.utils import clip_grad_norm_, remove_weight_norm, weight_norm
from gtensor.ops.updates import clipping
from gtensor.testing import gradcheck
from gtensor.testing.compare import close

DEVICES = pytest.mark.parametrize("device", [
    "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def network(device: str = "cpu") -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).to(device)


def exact(model: Any) -> float:
    values = [model] if isinstance(model, gt.Tensor) else model.parameters()
    return float(np.sqrt(sum((v.detach().to("cpu").numpy().astype(float) ** 2).sum()
                             for v in values)))


# -- norms that are kept ---------------------------------------------------------------------------


def _step(model: nn.Module) -> None:
    optimizer = optim.AdamW(model.parameters(), 0.1)
    model(gt.ones((2, 4), device=next(model.parameters()).device)).sum().backward()
    optimizer.step()


def _write(model: nn.Module) -> None:
    with gt.no_grad():
        next(model.parameters())[0] = np.random.standard_normal()


def _through_a_view(model: nn.Module) -> None:
    with gt.no_grad():
        rows = next(model.parameters()).detach()[1:]
        rows *= 3


WRITES: dict[str, Callable[[nn.Module], Any]] = {
    "an optimizer": _step, "an assignment": _write, "a view": _through_a_view,
    "a load": lambda model: model.load_state_dict(
        {name: value * 2 for name, value in model.state_dict().items()}),
    "a move": lambda model: model.to("float64"),
    "an average": lambda model: optim.EMA(model).update(),
    "other memory": lambda model: next(model.parameters()).become(gt.random.normal((3, 4))),
    "another parameter": lambda model: setattr(
        next(model.children()), "weight", nn.Parameter(gt.random.normal((3, 4)))),
}


@DEVICES
@pytest.mark.parametrize("write", WRITES)
def test_a_norm_is_computed_once_for_what_is_not_written(write: str, device: str) -> None:
    model = network(device)
    first = next(model.parameters())
    for _ in range(2):
        one, whole = first.kept_norm(), model.weight_norm()
        assert first.kept_norm() is one and model.weight_norm() is whole
        assert not one.requires_grad and one.shape == whole.shape == ()
        close("one", one.item(), exact(first), 1e-6)
        close("whole", whole.item(), exact(model), 1e-6)
        before = exact(model)
        with gt.device(device):
            WRITES[write](model)
        first = next(model.parameters())
        assert exact(model) != before or write == "an average" or write == "a move"
        close("after", model.weight_norm().item(), exact(model), 1e-6)
        close("after", first.kept_norm().item(), exact(first), 1e-6)


def test_a_penalty_of_norms_has_a_gradient() -> None:
    x = nn.Parameter(gt.tensor([3.0, 4.0]))
    x.norm().backward()
    close("gradient", x.grad.numpy(), np.array([0.6, 0.8]), 1e-6)


def test_a_norm_that_is_written_is_computed_anew() -> None:
    x = nn.Parameter(gt.ones(4))
    x.kept_norm()[...] = 7.0
    assert x.kept_norm().item() == 2.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_norms_are_of_float32_or_wider(dtype: str) -> None:
    x = nn.Parameter(gt.full(4096, 4.0, dtype))
    assert x.kept_norm().dtype == ("float64" if dtype == "float64" else "float32")
    assert x.kept_norm().item() == 256.0


def test_without_parameters_the_norm_is_zero() -> None:
    assert nn.ReLU().weight_norm().item() == 0


def test_copies_and_pickles_have_norms_of_their_own() -> None:
    model = network()
    before = model.weight_norm()
    first = next(model.parameters())
    first.kept_norm()
    for copy in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copy.weight_norm() is not before
        with gt.no_grad():
            next(copy.parameters())[...] = 0
        assert next(copy.parameters()).kept_norm().item() == 0
        assert model.weight_norm() is before


def test_threads_read_the_norm_of_what_they_have_written() -> None:
    """Each thread owns a parameter of the module; the module's norm is read by all."""
    model = nn.ParameterList([nn.Parameter(gt.ones(64)) for _ in range(4)])
    wrong: list[object] = []

    def work(x: nn.Parameter) -> None:
        for number in range(1, 200):
            with gt.no_grad():
                x[...] = float(number)
            if x.kept_norm().item() != 8 * number or not model.weight_norm().item() > 0:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(x,)) for x in model.parameters()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert model.weight_norm().item() == 8 * 199 * 2


def test_a_captured_norm_is_not_kept() -> None:
    x = nn.Parameter(gt.ones(4))
    kept = x.kept_norm()
    with patch.object(type(gt.device("cpu")), "capturing", lambda device: True):
        assert x.kept_norm() is not kept
    assert x.kept_norm() is kept


# -- weight normalization --------------------------------------------------------------------------


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), lambda: torch.nn.Linear(4, 3), (5, 4)),
    "conv": (lambda: nn.Conv2d(2, 3, 3), lambda: torch.nn.Conv2d(2, 3, 3), (2, 2, 6, 5)),
}


@DEVICES
@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("name", LAYERS)
def test_values_gradients_and_states_are_pytorchs(name: str, dim: int | None, device: str) -> None:
    ours, theirs, shape = LAYERS[name]
    layer, reference = ours().to("float64").to(device), theirs().double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises its newer function
        reference = torch.nn.utils.weight_norm(reference, dim=dim)
    layer = weight_norm(layer, dim=dim)
    with torch.no_grad():
        for values in reference.parameters():
            values.copy_(torch.randn_like(values))
    layer.load_state_dict(reference.state_dict())
    assert {k: v.shape for k, v in layer.state_dict().items()} == {
        k: tuple(v.shape) for k, v in reference.state_dict().items()}
    for _ in range(2):
        x = np.random.standard_normal(shape)
        y, wanted = layer(gt.tensor(x, device=device)), reference(torch.from_numpy(x))
        close("y", y.detach().to("cpu").numpy(), wanted.detach().numpy(), 1e-12)
        (y ** 2).sum().backward()
        (wanted ** 2).sum().backward()
        for key, values in reference.named_parameters():
            found = layer.get_parameter(key)
            close(key, found.grad.to("cpu").numpy(), values.grad.numpy(), 1e-12)
            with torch.no_grad():
                values -= 0.01 * values.grad
            with gt.no_grad():
                found -= 0.01 * found.grad
            values.grad = found.grad = None


def test_the_weight_is_kept_without_gradients_and_recorded_with_them() -> None:
    layer = weight_norm(nn.Linear(4, 3))
    with gt.no_grad():
        layer(gt.ones((1, 4)))
        kept = layer.weight
        layer(gt.ones((1, 4)))
        assert layer.weight is kept
        layer.weight_g[...] = 2.0
        layer(gt.ones((1, 4)))
        assert layer.weight is not kept
        close("rows", np.linalg.norm(layer.weight.numpy(), axis=1), np.full(3, 2.0), 1e-6)
    layer(gt.ones((1, 4)))
    assert layer.weight.requires_grad


def test_norms_are_kept_while_a_layer_is_called_again() -> None:
    layer = weight_norm(nn.Linear(4, 3), dim=None)
    with patch.object(parameter, "total_norm", wraps=clipping.total_norm) as counted:
        with gt.no_grad():
            layer.weight_v *= 2
        y = layer(layer(gt.ones((1, 4)))[:, :1] * gt.ones((1, 4)))
        y.sum().backward()
    assert counted.call_count == 1


def test_derivatives_of_both_orders_and_transforms_are_right() -> None:
    layer = weight_norm(nn.Linear(4, 3, dtype="float64"))
    x = gt.tensor(np.random.standard_normal((2, 4)))

    def output(g: gt.Tensor, v: gt.Tensor) -> gt.Tensor:
        state = {"weight_g": g, "weight_v": v, "bias": layer.bias.detach()}
        return (gt.functional_call(layer, state, x) ** 2).sum()

    parts = [p.detach().clone().requires_grad_() for p in (layer.weight_g, layer.weight_v)]
    gradcheck(output, parts, order=2)
    g, v = (p.detach() for p in parts)
    many = gt.stack([v, 2 * v, -v])
    close("vmap", gt.vmap(output, (None, 0))(g, many).numpy(),
          np.array([output(g, each).item() for each in many]), 1e-12)
    slope = gt.jvp(output, (g, v), (g, v * 0))[1].item()
    close("jvp", slope, (output(1.0005 * g, v) - output(0.9995 * g, v)).item() / 1e-3, 1e-5)


def test_removing_it_gives_the_weight_back() -> None:
    layer = nn.Linear(4, 3)
    before, names = layer.weight.numpy().copy(), [n for n, _ in layer.named_parameters()]
    weight_norm(layer)
    assert [n for n, _ in layer.named_parameters()] == ["bias", "weight_g", "weight_v"]
    copy = deepcopy(layer)
    remove_weight_norm(layer)
    close("weight", layer.weight.numpy(), before, 1e-6)
    assert sorted(names) == sorted(n for n, _ in layer.named_parameters())
    assert isinstance(layer.weight, nn.Parameter) and layer.weight.requires_grad
    assert not layer._forward_pre_hooks and copy._forward_pre_hooks
    layer(gt.ones((1, 4))).sum().backward()
    assert layer.weight.grad is not None
    clip_grad_norm_(layer.parameters(), 1.0)


def test_frozen_weights_stay_frozen() -> None:
    layer = nn.Linear(4, 3).requires_grad_(False)
    weight_norm(layer)
    assert not any(p.requires_grad for p in layer.parameters())
    remove_weight_norm(layer)
    assert not any(p.requires_grad for p in layer.parameters())


def test_what_does_not_fit_is_refused_before_anything_is_changed() -> None:
    layer = nn.Linear(4, 3)
    for call, wanted in (
        (lambda: weight_norm(layer, "kernel"), "'kernel' of Linear, which has no parameter"),
        (lambda: weight_norm(layer, dim=2), r"dim=2 for 'weight' of shape \(3, 4\)"),
        (lambda: weight_norm(layer, dim=-1), "counted from 0, or None"),
        (lambda: remove_weight_norm(layer), "to which weight_norm was not applied"),
        (lambda: weight_norm(nn.Linear(2, 2, bias=False), "bias"), "no parameter"),
    ):
        with pytest.raises(ValueError, match=wanted):
            call()
    weight_norm(layer)
    with pytest.raises(ValueError, match="has its norm apart already"):
        weight_norm(layer)
    assert sorted(layer.state_dict()) == ["bias", "weight_g", "weight_v"]
