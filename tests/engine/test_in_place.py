"""In-place operators: values, gradients, version counters, and which handles stay usable."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtensor as gt

START = np.arange(1.0, 10.0).reshape(3, 3)


def leaf(values: np.ndarray = START) -> gt.Tensor:
    return gt.tensor(values, requires_grad=True)


# -- gradients, against PyTorch -------------------------------------------------------------------


def with_row(y, row):
    """y with its second row replaced, out of place."""
    return torch.cat([y[:1], row.reshape(1, 3), y[2:]])


def add(y, x):
    y += x
    return y


def multiply_by_itself(y, x):
    y *= y
    return y


def add_own_transpose(y, x):
    y += y.T
    return y


def subtract_own_part(y, x):
    y -= y[1]
    return y


def divide(y, x):
    y /= y + x
    return y


def power(y, x):
    y **= 2
    return y


def write_a_part(y, x):
    y[1] = x[0]
    return y


def add_to_a_part(y, x):
    y[1] += x[0]
    return y


def multiply_a_part_by_itself(y, x):
    y[1] *= y[1] * 0.5
    return y


def add_twice_to_a_part(y, x):
    y[1] += x[0]
    y[1] -= x[2] * x[1]
    return y * x


def several(y, x):
    y += x
    y *= 2.0
    y -= x * x
    y *= x
    return y


def write_into_a_constant(y, x):
    base = gt.zeros((3, 3), dtype=gt.float64)
    base[1] += x[0]
    base *= y
    return base


BODIES = [
    (add, lambda y, x: y + x),
    (multiply_by_itself, lambda y, x: y * y),
    (add_own_transpose, lambda y, x: y + y.T),
    (subtract_own_part, lambda y, x: y - y[1]),
    (divide, lambda y, x: y / (y + x)),
    (power, lambda y, x: y ** 2),
    (write_a_part, lambda y, x: with_row(y, x[0])),
    (add_to_a_part, lambda y, x: with_row(y, y[1] + x[0])),
    (multiply_a_part_by_itself, lambda y, x: with_row(y, y[1] * y[1] * 0.5)),
    (add_twice_to_a_part, lambda y, x: with_row(y, y[1] + x[0] - x[2] * x[1]) * x),
    (several, lambda y, x: ((y + x) * 2.0 - x * x) * x),
    (write_into_a_constant, lambda y, x: with_row(torch.zeros_like(y), x[0]) * y),
    (lambda y, x: y + y.T, lambda y, x: y + y.T),
]


@pytest.mark.parametrize("body, out_of_place", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_equal_those_out_of_place(body, out_of_place, create_graph):
    """Against PyTorch, which refuses some of these in place."""
    weight = np.linspace(-1.0, 2.0, 9).reshape(3, 3)
    x, reference = leaf(), torch.tensor(START, requires_grad=True)
    y, z = body(x * 2.0, x), out_of_place(reference * 2.0, reference)
    found = gt.grad((y * gt.tensor(weight)).sum(), [x], create_graph=create_graph)[0]
    (z * torch.tensor(weight)).sum().backward()
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(found.detach().numpy(), reference.grad.numpy(), rtol=1e-12,
                               atol=1e-14)
    assert np.array_equal(x.detach().numpy(), START)


@pytest.mark.parametrize("side", [5, 64, 100])
def test_own_transpose_in_place_by_tiles(side):
    """Tiles on both sides of the diagonal, and ones that are cut off at the border."""
    values = np.arange(float(side * side)).reshape(side, side)
    y = gt.tensor(values)
    with gt.settings.override(tile_elements=32 * 32):
        y += y.T
    np.testing.assert_array_equal(y.numpy(), values + values.T)
    z = gt.tensor(values)
    with gt.settings.override(tile_elements=32 * 32):
        z -= z.T
    np.testing.assert_array_equal(z.numpy(), values - values.T)
    mirrored = gt.tensor(values)
    with gt.settings.override(tile_elements=32 * 32):
        mirrored[::-1] = mirrored.T  # a tile of the value goes elsewhere than its mirror image
    np.testing.assert_array_equal(mirrored.numpy(), values.T[::-1])


@pytest.mark.parametrize("write, expected", [
    (lambda y: y[1:].__iadd__(y[:-1]), START[1:] + START[:-1]),
    (lambda y: y[:, ::-1].__iadd__(y), START[:, ::-1] + START),
    (lambda y: y[:2, :2].T.__iadd__(y[1:, 1:]), START[:2, :2].T + START[1:, 1:])],
    ids=["shifted", "mirrored", "crossed"])
def test_operands_that_overlap(write, expected):
    np.testing.assert_array_equal(write(gt.tensor(START)).numpy(), expected)


# -- the handle and the version -------------------------------------------------------------------


def test_the_handle_and_its_memory_stay():
    y = leaf() * 2.0
    handle, array = y, y._array
    y += 1.0
    y *= 2.0
    assert y is handle and y._array is array


def test_retain_grad_goes_with_the_handle():
    x = leaf()
    y = x * 2.0
    y.retain_grad()
    y *= 3.0
    y[1] += 1.0
    (y * y).sum().backward()
    np.testing.assert_array_equal(y.grad.numpy(), 2 * y.numpy())
    np.testing.assert_array_equal(x.grad.numpy(), 6 * y.grad.numpy())


def test_each_write_counts_once_and_views_share_the_count():
    y = gt.tensor(START)
    part, flat, same = y[0], y.reshape(9), y.detach()
    assert part._storage is y._storage is flat._storage is same._storage
    versions = []
    for write in (lambda: y.__iadd__(1.0), lambda: part.__imul__(2.0),
                  lambda: y.__setitem__(0, 1.0)):
        write()
        versions.append(y._storage.version)
    assert versions == [1, 2, 3]


def test_reading_does_not_count():
    y = gt.tensor(START)
    y.sum(), y + 1.0, y.T, y.numpy(), repr(y)
    assert y._storage.version == 0


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [
    lambda x: x.__iadd__(1.0), lambda x: x.__imul__(x), lambda x: x.__setitem__(0, 1.0),
    lambda x: x[0].__iadd__(1.0), lambda x: x.T.reshape((3, 3))[1:].__isub__(x[0])],
    ids=["itself", "by itself", "setitem", "a part", "a view of a view"])
def test_a_leaf_is_not_written_in_place(write):
    x = leaf()
    with pytest.raises(gt.GradientError, match=r"leaf that requires a gradient, or a view of one;"):
        write(x)
    assert np.array_equal(x.numpy(), START)
    with gt.no_grad():
        write(x)
    assert x.is_leaf and x.requires_grad and not np.array_equal(x.numpy(), START)


def test_a_leaf_is_not_written_in_place_when_another_on_its_memory_is_frozen():
    x = leaf()
    other = x.detach().requires_grad_()
    other.requires_grad = False
    with pytest.raises(gt.GradientError, match="in-place add on a leaf that requires a gradient"):
        x += x


def test_a_view_whose_history_was_overwritten_is_refused():
    """`part` is a view recorded before the write: its gradient would miss what the write did."""
    y = leaf() * 2.0
    part = y[0]
    y *= 3.0
    with pytest.raises(gt.GradientError, match=(
            r"multiply reads a tensor recorded by .*test_in_place\.py:\d+: part = y\[0\]\) whose "
            r"memory was overwritten")):
        part * 2.0
    assert (y[0] * 2.0).sum().requires_grad  # a view taken after the write


def test_the_base_of_a_view_that_was_written_is_refused():
    y = leaf() * 2.0
    part = y[0]
    part *= 3.0
    with pytest.raises(gt.GradientError, match=r"sum reads a tensor recorded by multiply .*overw"):
        y.sum()


def test_a_constant_view_of_memory_with_a_history_is_refused():
    base = gt.tensor(START)
    view = base[0]
    base += leaf()
    with pytest.raises(gt.GradientError, match="take the view again after the write"):
        view * 2.0
    x = leaf()
    (base[0] * x[0]).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy()[0], 2 * START[0])


def test_a_stale_handle_without_history_reads_the_new_values():
    base = gt.tensor(START)
    view = base[0]
    base += 1.0
    assert np.array_equal((view * 1.0).numpy(), START[0] + 1)


def test_a_broadcast_view_is_not_written():
    with pytest.raises(ValueError, match=r"broadcast view of shape \(2, 3\), whose elements share"):
        gt.broadcast_to(gt.zeros(3), (2, 3)).__iadd__(1.0)


def test_a_write_back_that_is_none_is_a_write():
    """`y[1] = v` after writes elsewhere: only what was written just before is taken over."""
    y = leaf() * 2.0
    first, second = y[0], y[1]
    first += 1.0
    with pytest.raises(gt.GradientError, match="set_item reads a tensor recorded by"):
        y[1] = second.detach()


def test_parts_of_a_leaf_are_written_under_no_grad():
    x = leaf()
    with gt.no_grad():
        x[1] += 10.0
        x[:, 0] *= 2.0
    expected = START.copy()
    expected[1] += 10.0
    expected[:, 0] *= 2.0
    assert np.array_equal(x.numpy(), expected)
    (x * x).sum().backward()
    assert np.array_equal(x.grad.numpy(), 2 * expected)


def test_a_copy_of_a_leaf_by_reshape_is_not_a_view_of_it():
    x = leaf()
    y = x.T.reshape(9)  # a copy: the transpose is not contiguous
    y += 1.0
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), np.ones((3, 3)))


@pytest.mark.parametrize("target, value, error, message", [
    (gt.zeros(3), gt.zeros((2, 3)), ValueError, r"shape \(2, 3\) into shape \(3,\)"),
    (gt.zeros(3, dtype=gt.int64), gt.zeros(3), TypeError, "float32 into dtype int64"),
])
def test_shape_and_dtype_must_fit(target, value, error, message):
    with pytest.raises(error, match=message):
        target += value
    assert target._storage.version == 0


def test_another_precision_is_cast_to_the_targets():
    x, y = leaf(), gt.ones((3, 3))
    y += x
    assert y.dtype == gt.float32
    y.sum().backward()
    assert x.grad.dtype == gt.float64 and np.array_equal(x.grad.numpy(), np.ones((3, 3)))


@pytest.mark.gpu
@pytest.mark.parametrize("target, other", [
    ("float32", "float64"), ("float32", "int64"), ("float16", "float32"), ("bfloat16", "float32"),
    ("int32", "int64"), ("int8", "uint8")])
@pytest.mark.parametrize("operator", ["add", "floordiv", "mod", "lshift", "rshift"])
def test_a_gpu_casts_to_the_targets_dtype_as_the_cpu_does(operator, target, other):
    def written(device):
        x = gt.tensor([7, 5, 3], dtype=target, device=device)
        try:
            getattr(x, f"__i{operator}__")(gt.tensor([2, 2, 1], dtype=other, device=device))
        except TypeError:  # floats have no bits to shift
            return TypeError
        return x.tolist()

    assert written("cuda") == written("cpu")


def test_an_in_place_write_of_what_a_record_saved_can_be_avoided_by_clone():
    x = leaf()
    y = gt.exp(x)
    z = y.clone()
    z += 1.0
    z.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.exp(START))


def test_dtypes_and_memory_that_cannot_take_the_result_are_refused_with_a_sentence():
    half = gt.ones(2, dtype=gt.bfloat16)
    with pytest.raises(TypeError, match="in-place add of dtype complex"):
        half += gt.tensor([1 + 2j, 3 - 1j])
    with pytest.raises(TypeError, match="value of dtype complex64 into dtype bfloat16"):
        half[:] = gt.tensor([1 + 2j, 3 - 1j])
    whole = gt.arange(3)
    with pytest.raises(TypeError, match=r"in-place divide .* into dtype int64"):
        whole /= 2
    row = gt.broadcast_to(gt.ones(3), (2, 3))[0]
    with pytest.raises(ValueError, match="in-place add on read-only memory"):
        row += 1.5
    half += 2
    assert half.tolist() == [3, 3]


_VIEWS = {  # what is written, and read, after y.retain_grad(); ours and PyTorch's
    "a part": lambda x, y: _times(y[0:2], 2),
    "reshaped": lambda x, y: _times(y.reshape((2, 3)), 2),
    "a view of a view": lambda x, y: _times(y.reshape((2, 3))[0], 2),
    "transposed": lambda x, y: _times(y.reshape((2, 3)).T[1:], 2),
    "twice": lambda x, y: _times(_times(y[0:2], 2), 3),
    "by zeros": lambda x, y: _times(y[1:4], 0),
    "with values that have a gradient": lambda x, y: _plus(y[1:3], x[0:2]),
    "an element of a part": lambda x, y: _element(y[0:4], x[5] * 3),
    "a part of a view": lambda x, y: _rows(y.reshape((2, 3))),
    "a part, in the tensor's own name": lambda x, y: _own_part(y),
}


def _times(v, factor):
    v *= factor
    return v


def _plus(v, other):
    v += other
    return v


def _element(v, value):
    v[1] = value
    return v


def _rows(v):
    v[0] *= 2
    return v


def _own_part(y):
    y[0:2] *= 2
    return y


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("saved", [None, "before", "after"])
@pytest.mark.parametrize("name", _VIEWS)
def test_a_kept_gradient_is_of_the_values_after_a_write_through_a_view(
        name, saved, create_graph, device):
    """As PyTorch's; what read the tensor before the write adds nothing to it.

    `saved`: whether an op saved the tensor, before or after retain_grad().
    """
    found = []
    for lib in (torch, gt):
        if lib is torch:
            x = torch.arange(1.0, 7.0, requires_grad=True)
        else:
            x = gt.arange(1.0, 7.0, dtype=gt.float32, device=device).requires_grad_()
        y = x * 1.5
        if saved == "before":
            lib.square(y)
        y.retain_grad()
        y.retain_grad()
        if saved == "after":
            lib.square(y)
        before = y + 0
        v = _VIEWS[name](x, y)
        ((v * v).sum() + 10 * before.sum()).backward(
            create_graph=create_graph and lib is gt)
        found.append([t.grad.detach().numpy() for t in (x, y)])
    np.testing.assert_array_equal(found[1][0], found[0][0])
    np.testing.assert_array_equal(found[1][1], found[0][1])


def test_a_copy_takes_no_kept_gradient_with_it():
    """A reshape that copies shares no memory, so the tensor is not written."""
    x = gt.tensor(np.ones((2, 3)), requires_grad=True)
    y = (x * 1.5).T
    y.retain_grad()
    v = y.reshape((6,))
    v *= 2
    (v.sum() + y.sum()).backward()
    np.testing.assert_array_equal(y.grad.numpy(), np.full((3, 2), 3.0))
