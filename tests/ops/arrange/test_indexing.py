"""x[key], x[key] = v, take and take_along_axis: NumPy's values, shapes and refusals; gradients."""

from __future__ import annotations

import tracemalloc
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gtensor as gt
from gtensor.ops.arrange import scatter
from gtensor.ops.arrange.index_keys import Selection

EXAMPLES = settings(max_examples=60, deadline=None)
in_tiles = mock.patch.object(scatter, "_SMALL", 0)  # as for many elements


@st.composite
def keys(draw: Any, basic: bool = True) -> tuple[tuple[int, ...], Any]:
    """A shape and a key into it: basic, integer arrays, a mask, or a mixture of all."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    kinds = ["arrays", "mask", "mixed", "mixed", "mixed"] + ["basic"] * basic
    kind = draw(st.sampled_from(kinds))
    if kind == "basic":
        return shape, draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=6))
    if kind == "arrays":
        small = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4)
        some = draw(st.integers(1, len(shape)))
        lead = draw(small)
        return shape, tuple(draw(hnp.arrays(np.int64, lead, elements=st.integers(-n, n - 1)))
                            for n in shape[:some])
    if kind == "mask":
        axes = draw(st.integers(0, len(shape)))
        return shape, draw(hnp.arrays(np.bool_, shape[:axes]))
    return shape, draw(mixed(shape))


@st.composite
def mixed(draw: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Integers, slices, new axes, an ellipsis, masks and index arrays that broadcast."""
    count = draw(st.integers(1, 3))  # all index arrays broadcast to (k, count)
    parts: list[Any] = []
    used = False
    for n in shape:
        if draw(st.integers(0, 5)) == 0:
            parts.append(None)
        part = draw(st.sampled_from(["integer", "slice", "array", "column", "mask", "list"]))
        if part == "integer":
            parts.append(draw(st.integers(-n, n - 1)))
        elif part == "slice":
            parts.append(draw(st.slices(n)))
        elif part == "mask" and n >= count:
            places = draw(st.lists(st.integers(0, n - 1), min_size=count, max_size=count,
                                   unique=True))
            parts.append(np.isin(np.arange(n), places))
        else:
            lead = (draw(st.integers(1, 2)), 1) if part == "column" and not used else (count,)
            used = used or len(lead) == 2
            found = draw(hnp.arrays(np.int32, lead, elements=st.integers(-n, n - 1)))
            parts.append(found.tolist() if part == "list" else found)
    if draw(st.booleans()):
        cut = draw(st.integers(0, len(parts)))
        stop = draw(st.integers(cut, len(parts)))
        parts[cut:stop] = [...]
    return tuple(parts)


def values(shape: tuple[int, ...], start: float = 0.0) -> np.ndarray:
    return start + np.arange(float(np.prod(shape))).reshape(shape)


def on_tensors(key: Any) -> Any:
    """The key with its arrays as tensors."""
    parts = key if isinstance(key, tuple) else (key,)
    made = tuple(gt.asarray(p) if isinstance(p, np.ndarray) else p for p in parts)
    return made if isinstance(key, tuple) else made[0]


def is_view_key(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return not any(isinstance(p, (np.ndarray, list)) for p in parts)


@given(keys())
@EXAMPLES
def test_what_a_key_selects_and_its_gradient(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    array = values(shape)
    x = gt.tensor(array, requires_grad=True)
    wanted = array[key]
    found = x[on_tensors(key)]
    assert found.shape == wanted.shape and np.array_equal(found.detach().numpy(), wanted)
    if is_view_key(key) and wanted.size:
        assert np.shares_memory(found._array, x._array)
    weight = values(wanted.shape, 1.0)
    with in_tiles:
        (found * gt.tensor(weight)).sum().backward()
    total = np.zeros(shape)
    np.add.at(total, key, weight)
    assert x.grad is not None and np.array_equal(x.grad.numpy(), total)


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@given(case=keys(), data=st.data())
@EXAMPLES
def test_what_a_key_writes_and_its_gradients(
    place: str, case: tuple[tuple[int, ...], Any], data: st.DataObject
) -> None:
    """Of repeated places the last write stays: it alone has a gradient."""
    shape, key = case
    array = values(shape)
    selected = array[key].shape
    value_shape = data.draw(st.sampled_from(
        [selected, (), selected[1:], tuple(1 for _ in selected)]))
    x = gt.tensor(array, requires_grad=True)
    v = gt.tensor(values(value_shape, 100.0), requires_grad=True)
    y = x * 1.0
    y[on_tensors(key)] = v
    wanted = array.copy()
    wanted[key] = v.detach().numpy()
    assert np.array_equal(y.detach().numpy(), wanted)
    weight = values(shape, 1.0)
    (y * gt.tensor(weight)).sum().backward()
    source = np.full(shape, -1)  # which element of the selection was written last at each place
    source[key] = np.arange(np.prod(selected, dtype=int)).reshape(selected)
    to_x = np.where(source < 0, weight, 0.0)
    to_selected = np.zeros(selected)
    to_selected.reshape(-1)[source[source >= 0]] = weight[source >= 0]
    lead = len(selected) - len(value_shape)
    to_v = to_selected.sum(axis=tuple(range(lead)))
    to_v = to_v.sum(axis=tuple(i for i, n in enumerate(value_shape) if n == 1), keepdims=True)
    assert x.grad is not None and np.array_equal(x.grad.numpy(), to_x)
    assert v.grad is not None and np.array_equal(v.grad.numpy(), to_v.reshape(value_shape))


@given(keys())
@example(((2,), None))
@EXAMPLES
def test_what_a_key_adds_in_place(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    array = values(shape)
    x, y = gt.tensor(array), array.copy()
    amount = values(array[key].shape, 0.5)
    x[on_tensors(key)] += gt.tensor(amount)
    y[key] += amount
    assert np.array_equal(x.numpy(), y)


@given(keys(basic=False))
@EXAMPLES
def test_the_shape_is_known_without_the_data(case: tuple[tuple[int, ...], Any]) -> None:
    shape, key = case
    parts = key if isinstance(key, tuple) else (key,)
    raw = tuple(np.asarray(p) if isinstance(p, list) else p for p in parts)
    assert Selection(raw, shape).shape == np.empty(shape)[key].shape


@pytest.mark.parametrize("key", [
    (slice(None), [0, 0], ..., [1, 1]), (slice(None), [0, 1], ..., 0, slice(None)), (0, ..., [1]),
    (None, [0, 1], None, [0, 1]), (..., [True, False, True, True, False]), True, False,
    (True, slice(1), [0, 1]), np.True_, (slice(None), np.False_), [], [[]], (), ..., None,
    np.int8(1), np.uint64(1), (np.array(1), 2), np.array([[1, 0]], np.uint8), [True, False]])
def test_particular_keys(key: Any) -> None:
    array = values((2, 3, 4, 5))
    x = gt.tensor(array, requires_grad=True)
    found = x[key]
    assert np.array_equal(found.detach().numpy(), array[key])
    found.sum().backward()
    wanted = np.zeros(array.shape)
    np.add.at(wanted, tuple(key) if isinstance(key, list) and not key else key, 1.0)
    assert x.grad is not None and np.array_equal(x.grad.numpy(), wanted if array[key].size else 0
                                                 * wanted)
    y = gt.tensor(array)
    y[key] = 7.0
    array[key] = 7.0
    assert np.array_equal(y.numpy(), array)


def test_a_tensor_of_one_integer_is_an_integer() -> None:
    x = gt.tensor(values((3, 4)))
    i = gt.tensor(2)
    assert x[i].shape == (4,) and np.shares_memory(x[i]._array, x._array)
    assert [10, 20, 30][i] == 30
    assert x[i, gt.tensor(-1)].item() == 11.0


@pytest.mark.parametrize("key, said", [
    (5, r"index \[5\] of a tensor of shape \(3, 4\): .*out of bounds"),
    ((0, 0, 0), r"index \[0, 0, 0\] of a tensor of shape \(3, 4\): too many"),
    (([0, 3],), r"index \[\[0, 3\]\].*out of bounds"),
    (np.array([0, -4]), r"index \[int64 array of shape \(2,\)\] .*index -4 is out of bounds"),
    ((slice(1, None), np.ones(3, bool)), r"index \[1:, bool array of shape \(3,\)\].*"),
    ((..., 0, ...), r"index \[\.\.\., 0, \.\.\.\] .*ellips"),
    (1.0, "dtype float64 given; wanted integers or booleans"),
    ("a", "wanted integers or booleans"),
    ([[0], [0, 1]], r"of a tensor of shape \(3, 4\)"),
    (([0, 1], [0, 1, 2]), "broadcast")])
def test_a_wrong_key_is_refused_before_anything_is_written(key: Any, said: str) -> None:
    x = gt.tensor(values((3, 4)))
    with pytest.raises(IndexError, match=said):
        x[key]
    for value in (1.0, gt.ones(2, dtype=gt.float64)):
        with pytest.raises(IndexError):
            x[key] = value
    assert np.array_equal(x.numpy(), values((3, 4))) and x._storage.version == 0


@pytest.mark.parametrize("key, value, error", [
    ([0, 1], np.ones((3, 4)), ValueError), (0, np.ones(3), ValueError),
    (np.eye(3, 4, dtype=bool), np.ones(2), ValueError), (0, np.ones((2, 4)), ValueError),
    (0, np.ones(4, complex), TypeError), ([0, 1], 1j, TypeError)])
def test_a_wrong_value_is_refused_before_anything_is_written(
    key: Any, value: Any, error: type[Exception]
) -> None:
    x = gt.tensor(values((3, 4)))
    with pytest.raises(error, match="value"):
        x[key] = value
    assert np.array_equal(x.numpy(), values((3, 4))) and x._storage.version == 0


@pytest.mark.parametrize("value", [[1.0, 2.0, 3.0, 4.0], np.arange(4.0), np.ones((1, 1, 4)), 3,
                                   np.float32(2.0), True])
def test_values_that_are_no_tensors(value: Any) -> None:
    x, wanted = gt.tensor(values((3, 4))), values((3, 4))
    x[1] = value
    wanted[1] = value
    assert np.array_equal(x.numpy(), wanted)


def test_leading_axes_of_size_one_are_dropped_from_a_value() -> None:
    v = gt.tensor(values((1, 1, 4)), requires_grad=True)
    y = gt.zeros((3, 4), dtype=gt.float64)
    y[1] = v
    y.sum().backward()
    assert v.grad is not None and np.array_equal(v.grad.numpy(), np.ones((1, 1, 4)))


def test_writing_at_indices_does_not_gather_what_is_there() -> None:
    """Only the shape of the selection is asked for: no copy of it is made."""
    x, rows = gt.zeros((200, 5000)), np.arange(150)
    x[rows] = 1.0
    tracemalloc.start()
    x[rows] = 2.0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes // 20
    assert x.numpy().sum() == 2.0 * 150 * 5000


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another use"])
@pytest.mark.parametrize("key", [
    (np.array([0, 2, 2, -1]),), (slice(None), np.array([1, 1, 0])), (np.array([[0, 1], [3, 0]]),),
    (np.arange(4) % 2 == 0,), (slice(None, None, -1), np.array([0, 0, 19])),
    (np.array([0, 0]), None, slice(1, 18, 3)), (np.array([3, 1]),)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex128"])
def test_gradients_add_up_in_every_dtype(key: Any, dtype: str, beside: bool) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    array = (np.arange(80).reshape(4, 20) % 7).astype(kind)
    leaf = gt.asarray(array if kind.kind != "c" else array.real.copy()).requires_grad_()
    x = leaf if kind.kind != "c" else leaf.astype(kind)
    weight = np.asarray(np.arange(array[key].size) % 5).reshape(array[key].shape).astype(kind)
    weight = weight * (1 + 2j) if kind.kind == "c" else weight
    total = np.zeros((4, 20), np.complex128)
    np.add.at(total, key, weight.astype(np.complex128))
    y = x[tuple(gt.asarray(k) if isinstance(k, np.ndarray) else k for k in key)]
    outputs, upstreams = [y], [gt.asarray(weight)]
    if beside:
        outputs.append(x * 1)
        upstreams.append(gt.asarray(array))
        total += array.astype(np.complex128)
    with in_tiles:
        grad = gt.grad(outputs, [leaf], upstreams)[0]
    assert grad.dtype == leaf.dtype
    assert np.array_equal(grad.numpy().astype(np.float64), total.real)


@pytest.mark.parametrize("shape", [(100_001,), (50, 300, 7)])
def test_gradients_of_many_tiles(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng()
    indices = rng.integers(-shape[0], shape[0], 70_001 if len(shape) == 1 else 90)
    x = gt.tensor(rng.integers(0, 9, shape).astype(float), requires_grad=True)
    y = x[gt.tensor(indices)]
    weight = rng.integers(0, 9, y.shape).astype(float)
    y.backward(gt.tensor(weight))
    wanted = np.zeros(shape)
    np.add.at(wanted, indices, weight)
    assert x.grad is not None and np.array_equal(x.grad.numpy(), wanted)


def test_an_index_written_after_use_does_not_change_the_gradient() -> None:
    x = gt.tensor(values((4,)), requires_grad=True)
    i = gt.tensor([0, 1])
    y = x[i]
    i[...] = 3
    y.sum().backward()
    assert x.grad is not None and np.array_equal(x.grad.numpy(), [1, 1, 0, 0])


def test_a_bound_written_after_use_does_not_change_the_gradient() -> None:
    x = gt.tensor(values((4,)), requires_grad=True)
    first, last = gt.tensor(1), np.array(3)
    y = x[first:last]
    first += 1
    last += 1
    y.sum().backward()
    assert x.grad is not None and np.array_equal(x.grad.numpy(), [0, 1, 1, 0])


# -- take, take_along_axis -------------------------------------------------------------------------


@pytest.mark.parametrize("shape, axis", [((5,), None), ((3, 4), 0), ((3, 4), -1), ((2, 3, 4), 1)])
@pytest.mark.parametrize("indices", [[0, 2, 1, 1], [[-1, 0], [1, 1]], 1, []])
def test_take(shape: tuple[int, ...], axis: int | None, indices: Any) -> None:
    array, index = values(shape), np.asarray(indices, np.int64)
    for form in (index, gt.tensor(index), indices):
        assert np.array_equal(gt.take(gt.tensor(array), form, axis=axis).numpy(),
                              np.take(array, index, axis=axis))


def test_take_refusals() -> None:
    x = gt.tensor(values((3, 4)))
    with pytest.raises(ValueError, match=r"take of a tensor of shape \(3, 4\) without an axis"):
        gt.take(x, [0])
    with pytest.raises(IndexError, match="out of bounds"):
        gt.take(x, [3], axis=0)
    with pytest.raises(ValueError, match="take along axis 2 of a tensor of 2 dimensions"):
        gt.take(x, [0], axis=2)
    with pytest.raises(IndexError, match="boolean"):
        gt.take(x, [True, False, True], axis=0)


@st.composite
def along(draw: Any) -> tuple[np.ndarray, np.ndarray, int]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    lead = [draw(st.sampled_from([n, 1])) for n in shape]
    lead[axis] = draw(st.integers(0, 5))
    limit = shape[axis]
    return (values(shape),
            draw(hnp.arrays(np.int64, tuple(lead), elements=st.integers(-limit, limit - 1))), axis)


@given(along())
@EXAMPLES
def test_take_along_axis_against_torch(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    array, indices, axis = case
    x = gt.tensor(array, requires_grad=True)
    t = torch.tensor(array, requires_grad=True)
    ours = gt.take_along_axis(x, gt.tensor(indices), axis=axis)
    theirs = torch.take_along_dim(t, torch.tensor(indices % array.shape[axis]), axis)
    assert np.array_equal(ours.detach().numpy(), theirs.detach().numpy())
    weight = values(ours.shape, 1.0)
    with in_tiles:
        ours.backward(gt.tensor(weight))
    theirs.backward(torch.tensor(weight))
    assert x.grad is not None and t.grad is not None
    assert np.array_equal(x.grad.numpy(), t.grad.numpy())


@pytest.mark.parametrize("indices, axis, error, said", [
    ([0, 1], 0, ValueError, r"shape \(3, 4\) with indices of shape \(2,\)"),
    ([[0], [1]], 1, ValueError, "broadcasting but for axis 1"),
    ([[0.5]], 1, TypeError, "dtype float32; wanted integers"),
    ([[4]], 1, IndexError, r"shape \(3, 4\) .*out of bounds"), ([[0]], 2, ValueError, "axis 2")])
def test_take_along_axis_refusals(
    indices: Any, axis: int, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        gt.take_along_axis(gt.tensor(values((3, 4))), gt.tensor(indices), axis=axis)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.int64, np.int8])
def test_what_a_lone_index_array_takes_is_in_the_arena(axis: int, dtype: Any) -> None:
    x = np.random.standard_normal((6, 5, 4))
    n = x.shape[axis]
    indices = np.random.randint(-n, n, (2, 7)).astype(dtype)
    t, key = gt.tensor(x), (slice(None),) * axis + (indices,)
    with gt.settings.override(arena_min_bytes=0):
        before = gt.memory.stats("cpu").allocated
        taken = t[key]
        assert gt.memory.stats("cpu").allocated - before >= taken.size * 8
        np.testing.assert_array_equal(taken.numpy(), x[key])
        np.testing.assert_array_equal(t[(*key, ...)].numpy(), x[key])
        backwards = gt.permute_dims(gt.tensor(np.ascontiguousarray(x.T)), (2, 1, 0))
        np.testing.assert_array_equal(backwards[key].numpy(), x[key])
        for wrong in (n, -n - 1):
            indices[1, 3] = wrong
            with pytest.raises(IndexError, match=rf"index {wrong} is out of bounds for axis {axis} "
                                                 f"with size {n}"):
                t[key]
