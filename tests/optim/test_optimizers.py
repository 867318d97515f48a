"""Optimizers against PyTorch, step by step; what they refuse; that they write in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import settings

CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.02, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.02, "betas": (0.7, 0.95), "eps": 1e-3}),
    ("Adam", {"lr": 0.02}),
    ("Adam", {"lr": 0.02, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.02, "amsgrad": True, "weight_decay": 0.1, "betas": (0.5, 0.6)}),
    ("AdamW", {"lr": 0.02, "amsgrad": True, "maximize": True}),
    ("Adam", {"lr": 0.02, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
]


def _pairs(dtype=np.float64):
    rng = np.random.default_rng()
    values = [rng.standard_normal(shape).astype(dtype) for shape in ((7, 5), (5,), (), (0, 3))]
    ours = [gt.tensor(v, requires_grad=True) for v in values]
    theirs = [torch.tensor(v, requires_grad=True) for v in values]
    return rng, ours, theirs


@pytest.mark.parametrize("name,options", CASES)
@pytest.mark.parametrize("tile", [4, 65536])
def test_twenty_steps_equal_pytorch(name, options, tile):
    rng, ours, theirs = _pairs()
    mine = getattr(gt.optim, name)(ours, **options)
    other = getattr(torch.optim, name)(theirs, **options)
    with settings.override(tile_elements=tile):
        for step in range(20):
            for p, q in zip(ours, theirs, strict=True):
                g = rng.standard_normal(p.shape)
                p.grad, q.grad = gt.tensor(g), torch.tensor(g)
            if step == 10:
                mine.lr = 0.03
                for group in other.param_groups:
                    group["lr"] = 0.03
            mine.step()
            other.step()
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tile", [4, 65536])
def test_lion_follows_its_formulas(tile):
    rng, ours, _ = _pairs()
    values = [p.detach().numpy().copy() for p in ours]
    means = [np.zeros_like(v) for v in values]
    optimizer = gt.optim.Lion(ours, lr=0.03, betas=(0.8, 0.95), weight_decay=0.2)
    with settings.override(tile_elements=tile):
        for _ in range(20):
            for k, p in enumerate(ours):
                g = np.asarray(rng.standard_normal(p.shape))
                p.grad = gt.tensor(g)
                values[k] = values[k] * (1 - 0.03 * 0.2)
                values[k] = values[k] - 0.03 * np.sign(0.8 * means[k] + (1 - 0.8) * g)
                means[k] = 0.95 * means[k] + (1 - 0.95) * g
            optimizer.step()
    for k, p in enumerate(ours):
        np.testing.assert_allclose(p.numpy(), values[k], rtol=1e-12, atol=1e-12)
        mean = optimizer.state_dict()["state"][k]["exp_avg"]
        np.testing.assert_allclose(mean.numpy(), means[k], rtol=1e-12, atol=1e-12)


def test_a_closure_makes_the_gradients_and_its_loss_is_returned():
    _, ours, theirs = _pairs()
    mine, other = gt.optim.SGD(ours, lr=0.1), torch.optim.SGD(theirs, lr=0.1)

    def closure_of(optimizer, tensors):
        def closure():
            optimizer.zero_grad()
            loss = sum((p * p).sum() for p in tensors)
            loss.backward()
            return loss
        return closure

    for _ in range(3):
        with gt.no_grad():  # gradients are enabled within the closure
            loss = mine.step(closure_of(mine, ours))
        wanted = other.step(closure=closure_of(other, theirs))
        np.testing.assert_allclose(loss.item(), wanted.item(), rtol=1e-12)
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-12)
    assert mine.step() is None and mine.step(None) is None


def test_a_group_is_added_between_steps():
    rng, ours, theirs = _pairs()
    mine = gt.optim.AdamW(ours[:2], lr=0.1)
    other = torch.optim.AdamW(theirs[:2], lr=0.1)
    for step in range(6):
        if step == 3:
            mine.add_param_group({"params": ours[2:], "lr": 0.5, "betas": (0.5, 0.9)})
            other.add_param_group({"params": theirs[2:], "lr": 0.5, "betas": (0.5, 0.9)})
        for p, q in zip(ours, theirs, strict=True):
            g = rng.standard_normal(p.shape)
            p.grad, q.grad = gt.tensor(g), torch.tensor(g)
        mine.step()
        other.step()
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-12)
    assert [entry["step"] for entry in mine.state_dict()["state"].values()] == [6, 6, 3, 3]


def test_a_group_that_does_not_fit_is_not_added():
    _, ours, _ = _pairs()
    optimizer = gt.optim.SGD(ours[:2], lr=0.1)
    for group, message in [({"params": ours[1:]}, "twice"), ({"lr": 1.0}, "without 'params'"),
                           ({"params": ours[2], "lr": -1.0}, "lr=-1.0")]:
        with pytest.raises((ValueError, TypeError), match=message):
            optimizer.add_param_group(group)
        assert len(optimizer.param_groups) == len(optimizer.state_dict()["param_groups"]) == 1


def test_groups_have_options_of_their_own():
    _, ours, theirs = _pairs()
    mine = gt.optim.SGD([{"params": ours[:1], "lr": 0.5}, {"params": ours[1:]}], lr=0.1)
    other = torch.optim.SGD([{"params": theirs[:1], "lr": 0.5}, {"params": theirs[1:]}], lr=0.1)
    for p, q in zip(ours, theirs, strict=True):
        p.grad, q.grad = gt.ones_like(p), torch.ones_like(q)
    mine.step()
    other.step()
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-12)


def test_updates_are_in_place_and_counted():
    w = gt.ones(3, requires_grad=True)
    address = w._array.ctypes.data
    y = w * w
    w.grad = gt.ones(3)
    gt.optim.SGD([w], lr=1.0).step()
    assert w._array.ctypes.data == address and w.tolist() == [0, 0, 0]
    with pytest.raises(gt.GradientError, match="multiply"):
        y.sum().backward()


def test_a_large_update_makes_no_full_temporary():
    import tracemalloc

    w = gt.zeros(1 << 20, requires_grad=True)
    w.grad = gt.ones(1 << 20)
    optimizer = gt.optim.AdamW([w])
    gt.memory.reset_peak()
    before = gt.memory.stats().allocated
    tracemalloc.start()
    optimizer.step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    scratch = gt.memory.stats().peak_allocated - before
    assert scratch <= 3 * 4 * settings.tile_elements < w.nbytes  # tiles of float32
    assert peak < 4 * 4 * settings.tile_elements


def test_half_precision_is_updated_in_float32():
    w = gt.full(4, 1.0, gt.bfloat16).requires_grad_()
    w.grad = gt.full(4, 1.0, gt.bfloat16)
    gt.optim.SGD([w], lr=0.5).step()
    assert w.dtype == gt.bfloat16 and w.astype(gt.float32).tolist() == [0.5] * 4


def test_a_gradient_that_does_not_fit_changes_nothing():
    v, w = gt.ones(2, requires_grad=True), gt.ones(3, requires_grad=True)
    v.grad = gt.ones(2)
    w._node.grad = gt.ones(4)  # past the setter, which refuses it
    optimizer = gt.optim.SGD([v, w], lr=1.0)
    with pytest.raises(ValueError, match=r"shape \(4,\).*shape \(3,\)"):
        optimizer.step()
    assert v.tolist() == [1, 1]


@pytest.mark.parametrize("make,message", [
    (lambda w: gt.optim.SGD([]), "no parameters"),
    (lambda w: gt.optim.SGD([w, w]), "twice"),
    (lambda w: gt.optim.SGD([w.detach()]), "requires no gradient"),
    (lambda w: gt.optim.SGD([w], lr=-1.0), "lr=-1.0"),
    (lambda w: gt.optim.SGD([w], nesterov=True), "nesterov"),
    (lambda w: gt.optim.AdamW([w], betas=(1.0, 0.9)), "betas"),
    (lambda w: gt.optim.Lion([w], betas=(0.9, 1.0)), "betas"),
    (lambda w: gt.optim.AdamW([{"params": [w], "speed": 1}]), "speed"),
    (lambda w: gt.optim.SGD(None), "SGD was given None; wanted parameters"),
    (lambda w: gt.optim.SGD([{"params": [w]}, w]), "a Tensor among the groups; wanted"),
    (lambda w: gt.optim.SGD([w], lr="0.1"), "lr='0.1' given; wanted a number of 0 or more"),
    (lambda w: gt.optim.SGD([w], weight_decay=float("nan")), "weight_decay=nan given; wanted"),
    (lambda w: gt.optim.SGD([w], momentum=0.9, dampening=None), "dampening=None given; wanted"),
    (lambda w: gt.optim.Adam([w], betas=0.9), "betas=0.9 given; wanted two numbers"),
    (lambda w: gt.optim.Adam([w], betas=("a", 0.9)), "betas=.*wanted two numbers"),
    (lambda w: gt.optim.Adam([w], eps=None), "eps=None given; wanted"),
])
def test_bad_arguments_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(gt.ones(3, requires_grad=True))


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_pytorchs_arguments_for_how_a_step_runs_change_nothing(kind):
    """Scripts pass them by PyTorch's names, and read the options of groups."""
    how = {"foreach": False, "fused": True}
    if kind != "SGD":
        how["capturable"] = True
    w = gt.tensor([1.0], requires_grad=True)
    made = getattr(gt.optim, kind)([w], lr=0.1, weight_decay=0.1, differentiable=False, **how)
    plain = getattr(gt.optim, kind)([w], lr=0.1, weight_decay=0.1)
    assert made.defaults == plain.defaults
    with pytest.raises(ValueError, match=f"{kind} was given differentiable=True; wanted False"):
        getattr(gt.optim, kind)([w], differentiable=True)
    with pytest.raises(TypeError, match=rf"{kind} was given the arguments \['forech'\]"):
        getattr(gt.optim, kind)([w], forech=True)


def test_state_dict_round_trip_continues_equally():
    rng = np.random.default_rng()
    first, second = (gt.ones(5, requires_grad=True) for _ in range(2))
    a, b = gt.optim.AdamW([first], lr=0.1), gt.optim.AdamW([second], lr=0.3)
    g = gt.tensor(rng.standard_normal(5).astype("f"))
    first.grad = g
    a.step()
    with gt.no_grad():
        second[...] = first
    b.load_state_dict(a.state_dict())
    assert b.lr == 0.1
    for p, optimizer in ((first, a), (second, b)):
        p.grad = g
        optimizer.step()
    assert first.tolist() == second.tolist()


def test_state_of_another_model_is_refused():
    a, b = (gt.ones(n, requires_grad=True) for n in (5, 4))
    first, second = gt.optim.AdamW([a]), gt.optim.AdamW([b])
    a.grad = gt.ones(5)
    first.step()
    with pytest.raises(ValueError, match=r"\(5,\).*\(4,\)"):
        second.load_state_dict(first.state_dict())


def test_zero_grad_drops_or_zeroes():
    w = gt.ones(2, requires_grad=True)
    optimizer = gt.optim.SGD([w])
    w.grad = gt.ones(2)
    optimizer.zero_grad(set_to_none=False)
    assert w.grad.tolist() == [0, 0]
    optimizer.zero_grad()
    assert w.grad is None


def test_a_module_in_place_of_its_parameters_is_named():
    net = gt.nn.Sequential(gt.nn.Linear(3, 2))
    for given in (net, [{"params": net[0]}]):
        with pytest.raises(TypeError, match=r"AdamW was given the module .* net\.parameters\(\)"):
            gt.optim.AdamW(given)


def test_repr_lists_the_groups_as_pytorchs():
    values = [torch.nn.Parameter(torch.ones(n)) for n in (2, 3)]
    groups = [{"params": values[:1]}, {"params": values[1:], "lr": 0.5}]
    theirs = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    ours = gt.optim.SGD([{"params": [gt.ones(2, requires_grad=True)]},
                         {"params": [gt.ones(3, requires_grad=True)], "lr": 0.5}], 0.1, 0.9)
    told = repr(ours).replace(" (tensors: 1)", "").splitlines()
    foreign = ("differentiable", "foreach", "fused")
    wanted = [line for line in repr(theirs).splitlines()
              if not line.strip().startswith(foreign)]
    assert [line.replace(": 0.0", ": 0") for line in told] == wanted


@pytest.mark.parametrize("kind", [gt.optim.Adam, gt.optim.AdamW])
@pytest.mark.parametrize(("dtype", "huge"), [
    ("float32", 1e20), ("float32", 3e38), ("float64", 1e200), ("float16", 6e4)])
def test_a_gradient_whose_square_does_not_fit_does_not_stop_its_parameter(kind, dtype, huge):
    """PyTorch's parameter never moves again; ours steps as from any large gradient, and then on."""
    p = gt.tensor([1.0, 1.0, 1.0], dtype=dtype, requires_grad=True)
    optimizer = kind([p], lr=0.125, weight_decay=0.0, amsgrad=True)
    before = p.numpy().copy()
    for number, first in enumerate((huge, huge, -huge, 1.0)):
        p.grad = gt.tensor([first, 1.0, np.inf if number == 2 else 0.0], dtype=dtype)
        with np.errstate(invalid="ignore"):
            optimizer.step()
        after = p.numpy().copy()
        assert (np.abs(after - before)[:2] > 0.01).all() and (np.abs(after - before)[:2] < 4).all()
        before = after
    assert np.isfinite(optimizer.state_dict()["state"][0]["exp_avg_sq"].numpy()[:2]).all()
    assert np.isnan(after[2]), "an infinite gradient must show"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_mean_square_that_is_not_finite_when_handed_over_stays_so(device, dtype):
    """A state that was loaded is not mended in silence, on no device."""
    p = gt.tensor([1.0, 1.0, 1.0, 1.0], dtype=dtype, device=device, requires_grad=True)
    optimizer = gt.optim.Adam([p], lr=0.125)
    p.grad = gt.ones_like(p)
    optimizer.step()
    state = optimizer.state_dict()
    bad = gt.tensor([np.inf, np.nan, np.inf, 1.0], dtype=dtype, device=device)
    state["state"][0]["exp_avg_sq"] = bad
    optimizer.load_state_dict(state)
    p.grad = gt.tensor([1.0, 1.0, float(gt.finfo(dtype).max), 1.0], dtype=dtype, device=device)
    optimizer.step()
    after = optimizer.state_dict()["state"][0]
    given = after["exp_avg_sq"].numpy()
    np.testing.assert_array_equal(given[:3], [np.inf, np.nan, np.inf])
    assert np.isfinite(given[3])
