"""Clipping by norm and by value against PyTorch; what it refuses; that it allocates nothing."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import settings
from gtensor.ops.updates import clipping
from gtensor.testing.compare import close

clip_norm, clip_value = gt.optim.clip_grad_norm_, gt.optim.clip_grad_value_
SHAPES = [(7, 5), (5,), (), (0, 3), (3, 4, 5)]


def pair(shapes=SHAPES, dtype=np.float64, scale=1.0):
    """Parameters of both libraries with equal gradients, and one that has none."""
    rng = np.random.default_rng()
    ours, theirs = [], []
    for shape in shapes:
        g = np.asarray(rng.standard_normal(shape) * scale, dtype)
        p, q = gt.tensor(g, requires_grad=True), torch.tensor(g, requires_grad=True)
        p.grad, q.grad = gt.tensor(g), torch.tensor(g)
        ours.append(p)
        theirs.append(q)
    return [*ours, gt.ones(3, requires_grad=True)], [*theirs, torch.ones(3, requires_grad=True)]


def compare(ours, theirs, rtol=1e-12):
    for p, q in zip(ours, theirs, strict=True):
        if q.grad is None:
            assert p.grad is None
            continue
        close("a gradient", p.grad, q.grad, (rtol, rtol))


@pytest.mark.parametrize("tile", [4, 65536])
@pytest.mark.parametrize("order", [2.0, 1, 3.5, float("inf"), "inf"])
@pytest.mark.parametrize("most", [0.0, 0.7, 1e6])
def test_norm_and_gradients_equal_pytorchs(order, most, tile):
    # PyTorch has no largest value of an empty gradient
    ours, theirs = pair([s for s in SHAPES if 0 not in s] if float(order) == np.inf else SHAPES)
    wanted = torch.nn.utils.clip_grad_norm_(theirs, most, order)
    with settings.override(tile_elements=tile):
        norm = clip_norm(ours, most, order)
    assert norm.shape == () and norm.dtype == gt.float64
    np.testing.assert_allclose(norm.item(), wanted.item(), rtol=1e-12)
    compare(ours, theirs)


@pytest.mark.parametrize("dtype,rtol", [(np.float32, 1e-5), (np.float16, 2e-3)])
def test_narrow_types(dtype, rtol):
    ours, theirs = pair(dtype=dtype)
    wanted = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    norm = clip_norm(iter(ours), 1.0)
    assert norm.dtype == gt.float32
    np.testing.assert_allclose(norm.item(), wanted.item(), rtol=rtol)
    compare(ours, theirs, rtol)


def test_bfloat16():
    w = gt.ones(1000, gt.bfloat16, requires_grad=True)
    w.grad = gt.full(1000, 3.0, gt.bfloat16)
    assert clip_norm(w, 1.0).item() == pytest.approx(3 * 1000**0.5, rel=1e-6)
    assert w.grad.dtype == gt.bfloat16
    np.testing.assert_allclose(w.grad.astype(gt.float64).numpy(), 1000**-0.5, rtol=2**-8)
    clip_value(w, 0.015625)
    assert set(w.grad.astype(gt.float32).tolist()) == {0.015625}


def test_squares_that_overflow_float32_do_not_make_the_norm_infinite():
    w = gt.ones(4, requires_grad=True)
    w.grad = gt.full(4, 1e30)
    assert clip_norm([w], 1.0).item() == pytest.approx(2e30, rel=1e-6)
    np.testing.assert_allclose(w.grad.numpy(), 0.5, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("order", [2.0, 3.0, float("inf")])
def test_a_norm_that_is_not_finite(bad, order):
    ours, theirs = pair([(7, 5), (5,)])
    for tensors in (ours, theirs):
        tensors[0].grad[2, 1] = bad
    before = [p.grad.numpy().copy() for p in ours[:-1]]
    with pytest.raises(ValueError, match=r"norm of order .* cannot be clipped"):
        clip_norm(ours, 1.0, order, error_if_nonfinite=True)
    assert all(np.array_equal(a, p.grad.numpy(), equal_nan=True)
               for a, p in zip(before, ours, strict=False))
    wanted = torch.nn.utils.clip_grad_norm_(theirs, 1.0, order)
    np.testing.assert_equal(clip_norm(ours, 1.0, order).item(), wanted.item())
    compare(ours, theirs)


def test_gradients_that_are_not_contiguous():
    rng = np.random.default_rng()
    g = rng.standard_normal((5, 7, 3))
    w = gt.ones((3, 7, 5), gt.float64, requires_grad=True)
    w.grad = gt.permute_dims(gt.tensor(g), (2, 1, 0))
    v = gt.ones((5, 3), gt.float64, requires_grad=True)
    wide = gt.tensor(rng.standard_normal((5, 6)))
    v.grad = wide[:, ::-2]
    norm = np.sqrt((w.grad.numpy()**2).sum() + (v.grad.numpy()**2).sum())
    wanted = [p.grad.numpy() / (norm + 1e-6) for p in (w, v)]
    with settings.override(tile_elements=4):
        assert clip_norm([w, v], 1.0).item() == pytest.approx(norm, rel=1e-12)
    for p, values in zip((w, v), wanted, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), values, rtol=1e-12)


@pytest.mark.parametrize("limit", [0.0, 0.3, 10.0])
def test_values_equal_pytorchs(limit):
    ours, theirs = pair()
    for tensors in (ours, theirs):
        tensors[0].grad[0, 0] = np.nan
        tensors[0].grad[0, 1] = -np.inf
    torch.nn.utils.clip_grad_value_(theirs, limit)
    assert clip_value(ours, limit) is None
    compare(ours, theirs)


def test_no_gradients_have_norm_zero():
    w = gt.ones(3, requires_grad=True)
    assert clip_norm([w], 1.0).item() == clip_norm([], 1.0).item() == 0
    clip_value([w, gt.ones(2)], 1.0)
    assert w.grad is None


@pytest.mark.parametrize("call,message", [
    (lambda w: clip_norm(w, -1.0), "max_norm=-1.0"),
    (lambda w: clip_norm(w, float("nan")), "max_norm=nan"),
    (lambda w: clip_norm(w, 1.0, 0), "norm_type=0"),
    (lambda w: clip_norm([w, 3], 1.0), "given parameters=.*3.; wanted tensors$"),
    (lambda w: clip_value(w, -0.5), "clip_value=-0.5"),
])
def test_bad_arguments_are_named_and_change_nothing(call, message):
    w = gt.ones(3, requires_grad=True)
    w.grad = gt.full(3, 5.0)
    with pytest.raises((ValueError, TypeError), match=message):
        call(w)
    assert w.grad.tolist() == [5, 5, 5]


def test_gradients_on_two_devices_are_refused(monkeypatch):
    """A second device by its name alone: nothing gets as far as asking it for anything."""
    v, w = pair([(3,), (4,)])[0][:2]
    elsewhere = type("Elsewhere", (), {"type": "cuda", "__str__": lambda self: "cuda:7"})()
    monkeypatch.setattr(w.grad, "_device", elsewhere)
    before = v.grad.tolist()
    with pytest.raises(gt.DeviceError, match="cpu and cuda:7"):
        clip_norm([v, w], 0.1)
    assert v.grad.tolist() == before


def test_nothing_larger_than_a_tile_is_allocated():
    w = gt.zeros(1 << 21, requires_grad=True)
    w.grad = gt.ones(1 << 21)
    clip_norm(w, 1.0)
    gt.memory.reset_peak()
    before = gt.memory.stats().allocated
    tracemalloc.start()
    for order in (2.0, 1.0, float("inf")):
        clip_norm(w, 1e-3, order)
    clip_value(w, 1e-9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert gt.memory.stats().peak_allocated == before
    assert peak < 4 * 4 * settings.tile_elements < w.nbytes


def test_a_small_norm_leaves_the_gradients_unread(monkeypatch):
    w = gt.zeros(4, requires_grad=True)
    w.grad = gt.ones(4)
    monkeypatch.setattr(clipping.scale, "cpu",
                        lambda *a, **k: pytest.fail("scaled by one"))
    assert clip_norm(w, 100.0).item() == 2


# -- CUDA ------------------------------------------------------------------------------------------

MANY = [(3, 5), (0, 3), (), (20000,), (7, 1), (8192,), *[(k,) for k in range(50)]]


def on_cuda(dtype, shapes=MANY):
    """Parameters with gradients on the device, some of them where 16 bytes are not aligned."""
    rng = np.random.default_rng(3)
    found = []
    for shape in shapes:
        p = gt.zeros(shape, dtype, device="cuda", requires_grad=True)
        values = np.asarray(rng.standard_normal(shape)).astype(p.dtype)
        p.grad = gt.tensor(values, device="cuda")
        if len(shape) == 1 and shape[0] % 2:
            p.grad = gt.tensor(np.concatenate([values[:1], values]), device="cuda")[1:]
        found.append(p)
    return found


def host_copies(parameters):
    found = []
    for p in parameters:
        q = gt.zeros(p.shape, p.dtype, device="cpu", requires_grad=True)
        q.grad = p.grad.to("cpu")
        found.append(q)
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16, gt.float32, gt.float64])
@pytest.mark.parametrize("order", [2.0, 1.0, 3.5, float("inf")])
def test_cuda_clips_as_the_cpu(dtype, order):
    ours = on_cuda(dtype)
    theirs = host_copies(ours)
    norms = [clip_norm(each, 0.7, order) for each in (ours, theirs)]
    assert norms[0].dtype == norms[1].dtype and norms[0].device.type == "cuda"
    rtol = {2: 1e-2, 4: 1e-5, 8: 1e-12}[ours[0].dtype.itemsize]
    np.testing.assert_allclose(norms[0].numpy(), norms[1].numpy(), rtol=rtol)
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.grad.numpy().astype(float), q.grad.numpy().astype(float),
                                   rtol=rtol)
    clip_value(ours, 0.0625)
    clip_value(theirs, 0.0625)
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.grad.numpy().astype(float), q.grad.numpy().astype(float),
                                   rtol=rtol)


@pytest.mark.gpu
def test_gradients_of_several_dtypes_have_one_norm():
    ours = [*on_cuda(gt.float16, [(0,), (300,)]), *on_cuda(gt.float32, [(9000,)]),
            *on_cuda(gt.float16, [(40,), (0,)])]
    theirs = host_copies(ours)
    norm = clip_norm(ours, 1.0)
    assert norm.dtype == gt.float32
    np.testing.assert_allclose(norm.numpy(), clip_norm(theirs, 1.0).numpy(), rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_cuda_scales_by_a_norm_that_is_not_finite_as_the_cpu(bad):
    ours = on_cuda(gt.float32, [(5,), (7, 3)])
    ours[1].grad[2, 1] = bad
    theirs = host_copies(ours)
    np.testing.assert_equal(clip_norm(ours, 1.0).numpy(), clip_norm(theirs, 1.0).numpy())
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_equal(p.grad.numpy(), q.grad.numpy())


@pytest.mark.gpu
def test_equal_dtypes_need_not_be_one_object():
    """As those of arrays that were unpickled."""
    own, other = np.dtype(np.float32), pickle.loads(pickle.dumps(np.dtype(np.float32)))
    other = np.ndarray.__new__(np.ndarray, (3,), other).dtype
    gradients = [gt.tensor(np.ones(4, np.float32), device="cuda")._array,
                 gt.device("cuda").xp.ndarray((4,), np.dtype("f4", align=False, copy=True))]
    gradients[1][...] = 2
    assert own == other and gradients[0].dtype == gradients[1].dtype
    assert gradients[0].dtype is not gradients[1].dtype
    norm, _ = clipping.norm.gpu(*gradients, order=2.0)
    assert float(norm) == pytest.approx(np.sqrt(20))


@pytest.mark.gpu
def test_views_of_one_memory_are_updated_one_after_another():
    """A parameter and a part of its transpose, with steps between elements."""
    results = []
    for device in ("cpu", "cuda"):
        whole = gt.ones((4, 2), device=device)
        views = [whole.mT.detach(), whole.mT[:, 1:3].detach()]
        for view in views:
            view.requires_grad_()
            view.grad = gt.ones(view.shape, device=device)
        gt.optim.SGD(views, lr=0.1).step()
        results.append(whole.numpy())
    np.testing.assert_allclose(*results)
    assert len(np.unique(np.round(results[0], 3))) == 2
