"""Scattering: PyTorch's values and gradients, JAX's `x.at`, and on CUDA bits that repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from against_torch import compare

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.ops.arrange import scatter as kernels

_INDEX = np.array([[0, 3, 1], [0, 2, 1]])
_MASK = np.array([[True, False, True], [True, True, False], [False, False, True],
                  [True, True, True]])
Call = Callable[..., Any]


def _both(array: np.ndarray, like: Any) -> Any:
    return torch.tensor(array) if isinstance(like, torch.Tensor) else gt.tensor(array)


def _by_index(name: str, dim: int, *more: Any, **options: Any) -> Call:
    """The method of either library, by an index that is shorter than x."""
    index = _INDEX if dim == 0 else _INDEX % 3
    return lambda x, s: getattr(x, name)(dim, _both(index, x), s, *more, **options)


CALLS: dict[str, tuple[Call, tuple[tuple[int, ...], ...]]] = {  # of the methods; shapes
    **{f"scatter_add, dim {dim}": (_by_index("scatter_add", dim), ((4, 3), (2, 3)))
       for dim in (0, 1)},
    **{f"{reduce}, {kept}": (_by_index("scatter_reduce", 0, reduce, include_self=kept),
                             ((4, 3), (2, 3)))
       for reduce in ("sum", "mean", "amax", "amin") for kept in (True, False)},
    "scatter": (lambda x, s: x.scatter(0, _both(np.array([[2, 0, 1], [0, 3, 2]]), x), s),
                ((4, 3), (2, 3))),
    "index_add": (lambda x, s: x.index_add(1, _both(np.array([2, 0, 2]), x), s, alpha=3),
                  ((4, 3), (4, 3))),
    "masked_scatter": (lambda x, s: x.masked_scatter(_both(_MASK, x), s), ((4, 3), (3, 5))),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_pytorch(name: str, rng: np.random.Generator) -> None:
    call, shapes = CALLS[name]
    second = not name.startswith(("am", "masked"))  # of which PyTorch's has no second order
    compare(call, call, [rng.standard_normal(s) for s in shapes], second=second, tolerance=1e-9,
            layouts=("contiguous", "transposed"))


def test_values_beyond_the_index_are_not_read(rng: np.random.Generator) -> None:
    """Of which PyTorch's has no gradient."""
    x, src = rng.standard_normal((4, 3)), rng.standard_normal((3, 4))
    given = gt.tensor(src, requires_grad=True)
    found = gt.scatter_add(x, 0, _INDEX, given)
    wanted = torch.tensor(x).scatter_add(0, torch.tensor(_INDEX), torch.tensor(src))
    assert np.allclose(found.detach().numpy(), wanted.numpy())
    found.sum().backward()
    assert given.grad.tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]]


KEYS: dict[str, Any] = {
    "rows, repeated": ([0, 2, 2, -1],), "an axis": (slice(None), np.array([[0, 4], [4, 4]])),
    "pairs": ([0, 0, 1], [1, 1, 2]), "around a slice": ([0, 2, 2], slice(1, None), [1, 0, 0]),
    "a slice": (slice(1, None, 2),), "a number": (2, ..., 1), "a mask": (np.arange(3) > 0,),
}


@pytest.mark.parametrize("name", KEYS)
def test_places_are_those_of_numpys_at(name: str, rng: np.random.Generator) -> None:
    key, x = KEYS[name], rng.standard_normal((3, 5, 4))
    t = gt.tensor(x, requires_grad=True)
    v = rng.standard_normal(x[key].shape[-1:])
    for method, function in (("add", np.add), ("max", np.maximum), ("min", np.minimum)):
        wanted = x.copy()
        function.at(wanted, key, v)
        found = getattr(t.at[key], method)(v)
        assert np.allclose(found.detach().numpy(), wanted, rtol=1e-14)
        gt.testing.gradcheck(
            lambda a, b, m=method: getattr(a.at[key], m)(b), [t, gt.tensor(v, requires_grad=True)])
    wanted = x.copy()
    wanted[key] = 7.0
    assert np.array_equal(t.at[key].set(7).detach().numpy(), wanted)
    assert np.array_equal(t.at[key].get().detach().numpy(), x[key])
    assert np.array_equal(t.detach().numpy(), x)


def test_places_are_written_within_transforms(rng: np.random.Generator) -> None:
    """Where x[key] = value is refused; each example with an index of its own."""
    x, v = (gt.tensor(rng.standard_normal(s)) for s in ((3, 6), (3, 2)))
    i = gt.tensor(rng.integers(0, 6, (3, 2)))
    for method in ("add", "set", "max"):
        found = gt.vmap(lambda a, k, b, m=method: getattr(a.at[k], m)(b))(x, i, v)
        assert all(np.allclose(found[n].numpy(), getattr(x[n].at[i[n]], method)(v[n]).numpy())
                   for n in range(3))


def test_a_mean_counts_and_sums_beyond_its_dtype() -> None:
    for dtype, value in (("float16", 100), ("uint8", 5), ("int8", -3)):
        values, places = gt.full(1000, value, dtype=dtype), gt.zeros(1000, dtype="int64")
        found = gt.scatter_reduce(gt.zeros(1, dtype=dtype), 0, places, values, "mean",
                                  include_self=False)
        assert found.tolist() == [value] and str(found.dtype) == dtype



def test_equal_extremes_share_the_gradient_and_nan_stays() -> None:
    ours = gt.tensor([1.0, 2.0, 0.0], requires_grad=True)
    theirs = torch.tensor([1.0, 2.0, 0.0], requires_grad=True)
    s, k = [2.0, 2.0, 5.0, 1.0], [1, 1, 2, 0]
    gt.scatter_reduce(ours, 0, k, gt.tensor(s), "amax").sum().backward()
    theirs.scatter_reduce(0, torch.tensor(k), torch.tensor(s), "amax").sum().backward()
    assert ours.grad.tolist() == theirs.grad.tolist() == [0.5, 1 / 3, 0.0] or np.allclose(
        ours.grad.numpy(), theirs.grad.numpy())
    assert np.isnan(gt.segment_max(gt.tensor([1.0, np.nan]), [0, 0])[0].item())


def test_segments_and_counts(rng: np.random.Generator) -> None:
    data, ids = rng.standard_normal((9, 2)), np.array([4, 0, 0, 2, 4, 4, 2, 0, 2])
    t = gt.tensor(data)
    for function, reduced, empty in (
            (gt.segment_sum, np.sum, 0.0), (gt.segment_max, np.max, -np.inf),
            (gt.segment_min, np.min, np.inf)):
        found = function(t, ids, 6).numpy()
        for k in range(6):
            rows = data[ids == k]
            assert np.allclose(found[k], reduced(rows, axis=0) if rows.size else empty)
    assert gt.segment_sum(t, ids).shape == (5, 2)
    assert gt.segment_max(gt.tensor([3, 4]), [1, 1]).tolist() == [np.iinfo(np.int64).min, 4]
    w = gt.tensor(data[:, 0], requires_grad=True)
    counted = gt.bincount(gt.tensor(ids), w, minlength=7)
    assert np.allclose(counted.detach().numpy(), np.bincount(ids, data[:, 0], 7))
    counted[2].backward()
    assert np.array_equal(w.grad.numpy(), ids == 2)
    for ours, theirs in zip(gt.unique(gt.tensor(ids), return_index=True, return_counts=True),
                            np.unique(ids, return_index=True, return_counts=True), strict=True):
        assert np.array_equal(ours.numpy(), theirs)


def test_put_along_axis_is_numpys(rng: np.random.Generator) -> None:
    x, v = rng.standard_normal((3, 5)), rng.standard_normal((3, 1))
    for i, axis in ((rng.permuted(np.tile(np.arange(5), (3, 1)), axis=1)[:, :2], 1),
                    (np.array([[2]]), -1)):
        wanted = x.copy()
        np.put_along_axis(wanted, i, v, axis)
        t, values = (gt.tensor(a, requires_grad=True) for a in (x, v))
        assert np.array_equal(gt.put_along_axis(t, i, values, axis=axis).detach().numpy(), wanted)
        gt.testing.gradcheck(lambda a, b, i=i, n=axis: gt.put_along_axis(a, i, b, n), [t, values])


WRONG: dict[str, tuple[Call, type[Exception], str]] = {
    "another number of axes": (lambda x: gt.scatter_add(x, 0, [0], gt.ones(1)), ValueError,
                               r"scatter_add along dim 0 of shape \(3, 2\) by an index of shape "
                               r"\(1,\) and values of shape \(1,\); wanted as many axes"),
    "an index of floats": (lambda x: gt.scatter(x, 0, [[0.0, 1.0]], 1.0), TypeError,
                           "scatter was given an index of dtype float32; wanted integers"),
    "an index too large": (lambda x: gt.scatter(x, 0, [[0, 3]], 1.0), IndexError, "3 is out of"),
    "a source of another dtype": (lambda x: gt.index_add(
        gt.zeros((3, 2), "int64"), 0, [0], gt.ones((1, 2))), TypeError,
        "index_add with a value of dtype float32 into dtype int64"),
    "a source of another shape": (lambda x: gt.index_add(x, 0, [0], gt.ones((2, 2))), ValueError,
                                  r"a source of shape \(2, 2\); wanted a 1-d index"),
    "an unknown reduction": (lambda x: gt.scatter_reduce(x, 0, [[0, 1]], x, "prod"), ValueError,
                             "reduce='prod'; wanted 'sum', 'mean', 'amax' or 'amin'"),
    "too few elements": (lambda x: gt.masked_scatter(x, gt.ones(2, "bool"), gt.ones(3)),
                         ValueError, "a source of 3 elements for 6 places"),
    "a segment out of range": (lambda x: gt.segment_sum(x, [0, 1, 2], 2), IndexError, "2"),
    "ids of another length": (lambda x: gt.segment_max(x, [0, 1]), ValueError,
                              r"segment_ids of shape \(2,\); wanted data"),
    "extremes of complex numbers": (lambda x: gt.segment_max(x + 1j, [0, 1, 1]), TypeError,
                                    "complex64; wanted real numbers"),
    "a value that does not fit": (lambda x: x.at[[0, 1]].add(gt.ones(3)), ValueError,
                                  r"x.at\[key\].add with a value of shape \(3,\) where the key"),
    "a key out of range": (lambda x: x.at[[0, 5]].set(1.0), IndexError, "index 5 is out of"),
    "weights of another shape": (lambda x: gt.bincount([0, 1], gt.ones(3)), ValueError,
                                 r"with weights of shape \(3,\); wanted one shape"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_named(name: str) -> None:
    call, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        call(gt.zeros((3, 2)))


# -- on CUDA ---------------------------------------------------------------------------------------


def in_order(places: np.ndarray, values: np.ndarray, rows: int) -> np.ndarray:
    """The sums in the order that the kernels promise: of sorted places, pieces by windows."""
    out = np.zeros((rows, *values.shape[1:]), values.dtype)
    order = np.argsort(places, kind="stable")
    window = kernels._WINDOW
    for place in np.unique(places):
        at = np.flatnonzero(places[order] == place)
        pieces = []
        for number in np.unique(at // window):
            total = np.zeros_like(values[0])
            for k in order[at[at // window == number]]:
                total = total + values[k]
            pieces.append(total)
        for piece in pieces[1:]:
            pieces[0] = pieces[0] + piece
        out[place] += pieces[0]
    return out


@pytest.mark.gpu
def test_sums_repeat_bit_for_bit(rng: np.random.Generator) -> None:
    """In an order that depends on places alone: two runs would agree by chance on a host device."""
    places = np.where(rng.random(1500) < 0.6, 3, rng.integers(0, 9, 1500))
    values = rng.standard_normal((1500, 3)).astype("f") * np.exp(rng.normal(0, 4, (1500, 1)))
    values = values.astype("f")
    wanted = in_order(places, values, 9)
    x, i, v = (gt.tensor(a, device="cuda") for a in (np.zeros((9, 3), "f"), places, values))
    with gt.settings.override(repeatable=1):
        assert gt.segment_sum(v, i, 9).numpy().tobytes() == wanted.tobytes()
        found = gt.scatter_add(x, 0, gt.broadcast_to(i[:, None], v.shape), v)
        assert np.allclose(found.numpy(), wanted, rtol=1e-3)
        w = x.detach().requires_grad_()
        F.embedding(i, w).backward(v)
        assert w.grad.numpy().tobytes() == wanted.tobytes()
    extreme = np.zeros((9, 3), "f")
    np.maximum.at(extreme, places, values)
    assert np.array_equal(x.at[i].max(v).numpy(), extreme)


@pytest.mark.gpu
def test_a_capture_refuses_sums_in_one_order() -> None:
    x, i = gt.zeros(3, device="cuda"), gt.tensor([0, 0], device="cuda")
    with gt.settings.override(repeatable=1), gt.stream("cuda"):
        graph = gt.Graph()
        with (pytest.raises(RuntimeError, match="in one order is due in the capture of a graph"),
              graph.capture()):
            x.at[i].add(1.0)
