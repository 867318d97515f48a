"""The moving average of weights: against PyTorch's AveragedModel, swapped in, saved, refused."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gtensor as gt
from gtensor import nn, settings
from gtensor.optim import EMA


def models():
    """The same small network in both libraries, with running statistics."""
    mine = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    mine[0].register_buffer("running", gt.zeros(3))
    mine[0].register_buffer("count", gt.zeros((), gt.int64))
    other = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    other[0].register_buffer("running", torch.zeros(3))
    other[0].register_buffer("count", torch.zeros((), dtype=torch.int64))
    mine.to(gt.float64)
    other.to(torch.float64)
    return mine, other


def draw(mine, other, seed):
    """New equal weights for both."""
    rng = np.random.default_rng(seed)
    for (name, p), (other_name, q) in zip(
            mine.state_dict().items(), other.state_dict().items(), strict=True):
        assert name == other_name
        values = rng.standard_normal(p.shape)
        if "count" in name:
            values = np.asarray(seed)
        p[...] = values.astype(p.dtype)
        q.copy_(torch.as_tensor(values))


@pytest.mark.parametrize("tile", [4, 65536])
@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("use_buffers", [False, True])
def test_averages_equal_pytorchs(decay, use_buffers, tile):
    mine, other = models()
    ema = EMA(mine, decay, use_buffers=use_buffers)
    theirs = AveragedModel(other, multi_avg_fn=get_ema_multi_avg_fn(decay),
                           use_buffers=use_buffers)
    with settings.override(tile_elements=tile):
        for seed in range(6):
            draw(mine, other, seed)
            ema.update()
            theirs.update_parameters(other)
    state, wanted = ema.state_dict(), theirs.state_dict()
    assert state.keys() == wanted.keys() and state["n_averaged"].item() == 6
    for name, value in wanted.items():
        if "count" not in name:  # PyTorch averages a counter and cuts it off
            np.testing.assert_allclose(state[name].numpy(), value.numpy(), rtol=1e-12, atol=1e-14)
    assert state["module.0.count"].item() == 5


def test_warm_up_drops_the_first_weights():
    w = nn.Linear(1, 1, bias=False).to(gt.float64)
    ema, seen = EMA(w, 0.5, warmup=True), []
    for value in (0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        with gt.no_grad():
            w.weight[...] = value
        ema.update()
        seen.append(1 - ema.state_dict()["module.weight"].item())
    kept = [b / a for a, b in zip(seen, seen[1:], strict=False)]
    wanted = [min(0.5, (1 + n) / (10 + n)) for n in range(1, 10)]
    np.testing.assert_allclose(kept, wanted, rtol=1e-10)


def weights(module):
    return [p.detach().numpy().copy() for p in module.state_dict().values()]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_swapped_shows_the_averages_and_restores_the_weights_exactly():
    mine, other = models()
    ema = EMA(mine, 0.5)
    for seed in range(3):
        draw(mine, other, seed)
        ema.update()
    own, addresses = weights(mine), [p._array.ctypes.data for p in mine.parameters()]
    averages = {k: v.numpy().copy() for k, v in ema.state_dict().items()}
    with ema.swapped():
        for name, p in mine.named_parameters():
            assert np.array_equal(p.detach().numpy(), averages[f"module.{name}"])
        with pytest.raises(RuntimeError, match="update.. within swapped"):
            ema.update()
        with pytest.raises(RuntimeError, match="swapped.. within swapped"), ema.swapped():
            pass
    assert same(weights(mine), own)
    with pytest.raises(ZeroDivisionError), ema.swapped():
        raise ZeroDivisionError
    assert same(weights(mine), own)
    assert addresses == [p._array.ctypes.data for p in mine.parameters()]
    assert all(np.array_equal(v.numpy(), averages[k]) for k, v in ema.state_dict().items())
    assert [p.requires_grad for p in mine.parameters()] == [True] * 4


def test_a_failure_while_swapping_in_restores_the_weights(monkeypatch):
    mine, other = models()
    ema = EMA(mine, 0.5)
    draw(mine, other, 1)
    own, calls = weights(mine), []
    original = gt.Tensor.__setitem__

    def failing(self, key, value):
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        original(self, key, value)

    monkeypatch.setattr(gt.Tensor, "__setitem__", failing)
    with pytest.raises(MemoryError), ema.swapped():
        pass
    assert same(weights(mine), own)


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16])
def test_half_types_are_averaged_in_float32(dtype):
    w = nn.Linear(8, 8).to(dtype)
    ema = EMA(w, 0.999)
    with gt.no_grad():
        w.weight[...] = 0.0
    ema.update()
    with gt.no_grad():
        w.weight[...] = 1.0
    for _ in range(10):
        ema.update()
    average = ema.state_dict()["module.weight"]
    assert average.dtype == gt.float32  # ten steps that a half type would have lost
    np.testing.assert_allclose(average.numpy(), 1 - 0.999**10, rtol=1e-5)
    with ema.swapped():
        assert w.weight.dtype == dtype
        assert w.weight.detach().astype(gt.float32).numpy().max() == pytest.approx(0.01, rel=2e-2)
    assert set(w.weight.detach().astype(gt.float32).numpy().ravel()) == {1.0}


def test_an_update_allocates_no_more_than_a_tile():
    module = nn.Linear(1024, 1024, bias=False)
    ema = EMA(module)
    ema.update()
    gt.memory.reset_peak()
    before = gt.memory.stats().allocated
    tracemalloc.start()
    ema.update()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert gt.memory.stats().peak_allocated == before
    assert peak < 2 * 4 * settings.tile_elements < module.weight.nbytes


def test_state_round_trip_and_from_pytorch():
    mine, other = models()
    ema = EMA(mine, 0.7)
    theirs = AveragedModel(other, multi_avg_fn=get_ema_multi_avg_fn(0.7))
    for seed in range(4):
        draw(mine, other, seed)
        ema.update()
        theirs.update_parameters(other)
    saved = {k: v.numpy().copy() for k, v in ema.state_dict().items()}
    for state in (saved, {k: v.numpy() for k, v in theirs.state_dict().items()}):
        fresh = EMA(mine, 0.7)
        fresh.load_state_dict(state)
        assert fresh.n_averaged == 4
        for name, value in fresh.state_dict().items():
            np.testing.assert_allclose(value.numpy(), saved[name], rtol=1e-12)


class Tied(nn.Module):
    """One weight under two names, a buffer that is saved and one that is not."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("running", gt.zeros(3))
        self.register_buffer("scratch", gt.zeros(3), persistent=False)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_a_tied_weight_is_saved_as_its_average_under_each_name(use_buffers):
    module = Tied()
    ema = EMA(module, 0.9, use_buffers=use_buffers)
    for value in (0.0, 100.0):
        with gt.no_grad():
            module.a.weight[...] = module.running[...] = value
        ema.update()
    state = ema.state_dict()
    assert list(state) == ["n_averaged", *(f"module.{name}" for name in module.state_dict())]
    assert "module.scratch" not in state and len(state) == 4
    for name in ("module.a.weight", "module.b.weight"):
        np.testing.assert_allclose(state[name].numpy(), 10.0, rtol=1e-5)
    np.testing.assert_allclose(state["module.running"].numpy(), 10.0 if use_buffers else 100.0,
                               rtol=1e-5)
    fresh = EMA(Tied(), 0.9, use_buffers=use_buffers)
    fresh.load_state_dict(state)
    np.testing.assert_allclose(fresh.state_dict()["module.b.weight"].numpy(), 10.0, rtol=1e-5)


def test_a_state_that_does_not_fit_changes_nothing():
    mine, _ = models()
    ema = EMA(mine)
    ema.update()
    good = {k: v.numpy().copy() for k, v in ema.state_dict().items()}
    for state, message in [
        ({k: v for k, v in good.items() if k != "module.0.bias"}, "'0.bias' is missing"),
        ({k: v for k, v in good.items() if k != "n_averaged"}, "'n_averaged' is missing"),
        ({**good, "module.0.bias": np.ones(5)}, r"'0.bias' has shape \(5,\), wanted \(3,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            ema.load_state_dict(state)
        assert ema.n_averaged == 1
        assert all(np.array_equal(v.numpy(), good[k]) for k, v in ema.state_dict().items())


def test_a_module_that_changed_is_named():
    mine, _ = models()
    ema = EMA(mine)
    mine.to(gt.float32)
    with pytest.raises(ValueError, match="'0.weight' of Sequential is float32 on cpu, .* float64"):
        ema.update()
    mine.to(gt.float64)
    mine[0].weight = nn.Parameter(gt.ones((2, 2), gt.float64))
    with pytest.raises(ValueError, match=r"'0.weight' of Sequential is of shape \(2, 2\)"):
        ema.update()
    assert ema.n_averaged == 0


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"decay=1\.5"):
        EMA(nn.Linear(2, 2), 1.5)
    with pytest.raises(ValueError, match="Flatten has no parameters"):
        EMA(nn.Flatten())


def test_repr_shows_the_options():
    ema = EMA(nn.Linear(2, 2), 0.9, warmup=True)
    ema.update()
    assert repr(ema) == ("EMA(Linear, decay=0.9, use_buffers=False, warmup=True, n_averaged=1)")
