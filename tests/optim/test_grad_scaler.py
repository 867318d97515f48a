"""GradScaler against PyTorch's, on the CPU and on CUDA; what it refuses; its state."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor.ops.updates import loss_scale

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
SHAPES = [(5, 3), (), (9000,), (0,)]
BAD = {1: np.inf, 4: np.nan, 5: -np.inf}  # by step


class Pair:
    """Parameters, optimizers and scalers of both libraries."""

    def __init__(self, device, dtype=np.float32, **options):
        rng = np.random.default_rng(1)
        values = [np.asarray(rng.standard_normal(shape)).astype(dtype) for shape in SHAPES]
        self.ours = [gt.tensor(v, device=device, requires_grad=True) for v in values]
        self.theirs = [torch.tensor(v, requires_grad=True) for v in values]
        self.optimizer = gt.optim.AdamW(self.ours, 0.1)
        self.other = torch.optim.AdamW(self.theirs, 0.1)
        self.scaler = gt.optim.GradScaler(**options)
        self.reference = torch.amp.GradScaler("cpu", **options)

    def backward(self, factor):
        for tensors, scaler in ((self.ours, self.scaler), (self.theirs, self.reference)):
            for p in tensors:
                p.grad = None
            scaler.scale(sum((p * p).sum() for p in tensors) * factor).backward()

    def step(self, number, clip):
        self.backward(BAD.get(number, 1.0))
        for scaler, optimizer, parameters, utils in (
                (self.scaler, self.optimizer, self.ours, gt.nn.utils),
                (self.reference, self.other, self.theirs, torch.nn.utils)):
            if clip:
                scaler.unscale_(optimizer)
                utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()

    def compare(self):
        assert self.scaler.state_dict() == self.reference.state_dict()
        for p, q in zip(self.ours, self.theirs, strict=True):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)
        steps = {entry["step"] for entry in self.optimizer.state_dict()["state"].values()}
        wanted = {int(entry["step"]) for entry in self.other.state_dict()["state"].values()}
        assert steps == wanted


@DEVICES
@pytest.mark.parametrize("clip", [False, True])
def test_steps_and_scales_equal_pytorchs(device, clip):
    pair = Pair(device, init_scale=1024.0, growth_interval=2, growth_factor=4.0)
    for number in range(9):
        pair.step(number, clip)
        pair.compare()


def test_planted_fault_a_step_with_an_infinite_gradient_is_seen(monkeypatch):
    right = loss_scale.unscale.cpu

    def unnoticed(*arrays, out, work):
        right(*arrays, out=out, work=work)
        out[-1][...] = 0
        return out

    pair = Pair("cpu", init_scale=1024.0)
    monkeypatch.setattr(loss_scale.unscale, "cpu", unnoticed)
    with np.errstate(invalid="ignore"):
        pair.step(1, False)
    with pytest.raises(AssertionError):
        pair.compare()


@DEVICES
@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16, gt.float64])
def test_gradients_of_other_types_are_divided(device, dtype):
    p = gt.zeros(20, dtype, device=device, requires_grad=True)
    p.grad = gt.full(20, 8.0, dtype, device=device)
    scaler, optimizer = gt.optim.GradScaler(init_scale=16.0), gt.optim.SGD([p], 1.0)
    scaler.unscale_(optimizer)
    assert set(p.grad.astype(gt.float64).tolist()) == {0.5}
    scaler.step(optimizer)
    assert set(p.astype(gt.float64).tolist()) == {-0.5}


@DEVICES
def test_two_optimizers_have_one_scale(device):
    def pair():
        p = gt.ones(3, device=device, requires_grad=True)
        return p, gt.optim.SGD([p], 0.5)

    (v, first), (w, second) = pair(), pair()
    scaler = gt.optim.GradScaler(init_scale=8.0)
    for bad in (False, True):
        v.grad = gt.full(3, np.inf if bad else 8.0, device=device)
        w.grad = gt.full(3, 8.0, device=device)
        scaler.step(first)
        scaler.step(second)
        scaler.update()
    assert scaler.get_scale() == 4.0
    assert v.tolist() == [0.5] * 3 and w.tolist() == [0.0] * 3


@DEVICES
def test_its_state_continues(device):
    pair, other = (Pair(device, init_scale=64.0, growth_interval=3) for _ in range(2))
    for number in range(3):
        pair.step(number, False)
    other.scaler.load_state_dict(pair.reference.state_dict())
    assert other.scaler.state_dict() == pair.scaler.state_dict()
    other.scaler.scale(gt.ones((), device=device))
    other.scaler.load_state_dict({**pair.scaler.state_dict(), "scale": 2.0})
    assert other.scaler.get_scale() == 2.0
    before = other.scaler.state_dict()
    for change in ({"scale": -1.0}, {"growth_factor": 0.5}, {"_growth_tracker": -1}):
        with pytest.raises(ValueError, match=r"scale|growth"):
            other.scaler.load_state_dict({**before, **change})
        assert other.scaler.state_dict() == before


def test_one_that_is_not_enabled_does_nothing():
    scaler = gt.optim.GradScaler(enabled=False)
    loss = gt.ones((), requires_grad=True)
    optimizer = gt.optim.SGD([loss], 0.5)
    assert scaler.scale(loss) is loss and scaler.get_scale() == 1.0
    assert scaler.state_dict() == {} and not scaler.is_enabled()
    loss.grad = gt.full((), np.inf)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert loss.item() == -np.inf


def test_a_set_scale():
    scaler = gt.optim.GradScaler()
    scaler.scale(gt.ones((), device="cpu"))
    scaler.update(4.0)
    assert scaler.get_scale() == 4.0
    with pytest.raises(ValueError, match="scale of -1"):
        scaler.update(-1.0)


def test_calls_in_a_wrong_order_are_refused():
    p = gt.ones(3, device="cpu", requires_grad=True)
    optimizer, scaler = gt.optim.SGD([p], 0.5), gt.optim.GradScaler()
    with pytest.raises(RuntimeError, match="without a step"):
        scaler.update()
    with pytest.raises(RuntimeError, match="without gradients"):
        scaler.step(optimizer)
    p.grad = gt.ones(3, device="cpu")
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) .* after unscale_\(\)"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="closure"):
        scaler.step(optimizer, lambda: None)
    scaler.step(optimizer)
    for again in (scaler.step, scaler.unscale_):
        with pytest.raises(RuntimeError, match=r"after step\(\)"):
            again(optimizer)
    with pytest.raises(TypeError, match="str was to be scaled"):
        scaler.scale("loss")


@pytest.mark.parametrize("options", [
    {"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"growth_interval": 0}, {"init_scale": 0.0},
    {"init_scale": float("inf")}])
def test_bad_arguments_are_named(options):
    with pytest.raises(ValueError, match=next(iter(options)).removeprefix("init_")):
        gt.optim.GradScaler(**options)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_scale_never_falls_to_zero(device):
    """From 0 it would never grow, and all further steps would be left out."""
    w = gt.tensor([1.0], device=device, requires_grad=True)
    optimizer = gt.optim.SGD([w], lr=0.1)
    scaler = gt.optim.GradScaler(init_scale=2.0**-124, growth_interval=1)
    for gradient in [np.inf] * 5:
        w.grad = gt.tensor([gradient], device=device)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == np.finfo(np.float32).tiny and w.item() == 1
    w.grad = gt.tensor([2.0**-126], device=device)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2 * np.finfo(np.float32).tiny
    np.testing.assert_allclose(w.item(), 0.9)


BOUND = (2 - 2.0**-24) * 2.0**127  # halfway from float32's largest number to the next power of 2


@pytest.mark.parametrize("scale", [1e-50, 2.0**-150, BOUND, 1e39, 10**400, -1.0, np.nan])
def test_a_scale_that_float32_does_not_hold_is_refused(scale):
    with pytest.raises(ValueError, match="a loss scale"):
        gt.optim.GradScaler(init_scale=scale)


@pytest.mark.parametrize("scale", [
    3.4028235e38, np.nextafter(BOUND, 0), np.float32(3.4028235e38), np.float16(65504), 2**64,
    0.6 * 2**-149, np.nextafter(2.0**-150, 1)])
def test_a_scale_that_float32_holds_after_rounding_is_taken(scale):
    scaler = gt.optim.GradScaler(init_scale=scale)
    assert scaler.scale(gt.ones((), device="cpu")).item() == np.float32(scale)
    scaler.update(scale)
    assert scaler.get_scale() == np.float32(scale)


def test_it_is_pickled_and_a_failed_step_may_be_repeated(monkeypatch):
    w = gt.tensor([1.0], device="cpu", requires_grad=True)
    optimizer, scaler = gt.optim.SGD([w], lr=0.5), gt.optim.GradScaler(init_scale=4.0)
    w.grad = gt.tensor([4.0], device="cpu")
    with monkeypatch.context() as patched:
        patched.setattr(optimizer, "_check_members", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            scaler.step(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert w.item() == 0.5
    assert pickle.loads(pickle.dumps(scaler)).state_dict() == scaler.state_dict()
