"""Functions that move, join and repeat elements, against NumPy; views where memory allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gtensor as gt


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng().standard_normal(shape)


def same(given: gt.Tensor, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert given.shape == wanted.shape and given.dtype == wanted.dtype
    np.testing.assert_array_equal(given.detach().numpy(), wanted)


CALLS: list[tuple[str, tuple[int, ...], Callable[[Any, Any], Any]]] = [
    ("expand_dims", (2, 3), lambda xp, x: xp.expand_dims(x, axis=1)),
    ("expand_dims, last", (2, 3), lambda xp, x: xp.expand_dims(x, axis=-1)),
    ("expand_dims, several", (2, 3), lambda xp, x: xp.expand_dims(x, axis=(0, -2))),
    ("squeeze", (1, 3, 1), lambda xp, x: xp.squeeze(x, axis=2)),
    ("squeeze, several", (1, 3, 1), lambda xp, x: xp.squeeze(x, axis=(0, -1))),
    ("permute_dims", (2, 3, 4), lambda xp, x: xp.permute_dims(x, (2, 0, 1))),
    ("permute_dims, negative", (2, 3, 4), lambda xp, x: xp.permute_dims(x, (-1, 0, -2))),
    ("moveaxis", (2, 3, 4), lambda xp, x: xp.moveaxis(x, 0, -1)),
    ("moveaxis, several", (2, 3, 4, 5), lambda xp, x: xp.moveaxis(x, (0, -1), (2, 0))),
    ("moveaxis, crossed", (2, 3, 4), lambda xp, x: xp.moveaxis(x, [2, 0], [0, 1])),
    ("matrix_transpose", (2, 3, 4), lambda xp, x: xp.matrix_transpose(x)),
    ("reshape", (2, 6), lambda xp, x: xp.reshape(x, (3, -1))),
    ("reshape, empty", (0, 6), lambda xp, x: xp.reshape(x, (3, 0, 2))),
    ("reshape, transposed", (4, 6), lambda xp, x: xp.reshape(x.T, (3, 8))),
    ("broadcast_to", (3, 1), lambda xp, x: xp.broadcast_to(x, (2, 3, 4))),
    ("broadcast_to, empty", (3, 1), lambda xp, x: xp.broadcast_to(x, (0, 3, 4))),
    ("flip", (2, 3), lambda xp, x: xp.flip(x)),
    ("flip, axis", (2, 3, 4), lambda xp, x: xp.flip(x, axis=-2)),
    ("flip, axes", (2, 3, 4), lambda xp, x: xp.flip(x, axis=(0, 2))),
    ("flip, 0-d", (), lambda xp, x: xp.flip(x)),
    ("roll", (3, 4), lambda xp, x: xp.roll(x, 2)),
    ("roll, far", (3, 4), lambda xp, x: xp.roll(x, -30)),
    ("roll, axis", (3, 4), lambda xp, x: xp.roll(x, -1, axis=1)),
    ("roll, axes", (3, 4, 2), lambda xp, x: xp.roll(x, (1, 7), axis=(0, -2))),
    ("roll, an axis twice", (3, 4), lambda xp, x: xp.roll(x, (1, 2), axis=(1, 1))),
    ("roll, one shift", (3, 4), lambda xp, x: xp.roll(x, 1, axis=(0, 1))),
    ("roll, empty", (0, 4), lambda xp, x: xp.roll(x, 1, axis=0)),
    ("roll, 0-d", (), lambda xp, x: xp.roll(x, 1)),
    ("tile", (2, 3), lambda xp, x: xp.tile(x, (2, 2))),
    ("tile, more axes", (2, 3), lambda xp, x: xp.tile(x, (4, 1, 2))),
    ("tile, fewer axes", (2, 3), lambda xp, x: xp.tile(x, (3,))),
    ("tile, none", (2, 3), lambda xp, x: xp.tile(x, ())),
    ("tile, to nothing", (2, 3), lambda xp, x: xp.tile(x, (0, 2))),
    ("tile, 0-d", (), lambda xp, x: xp.tile(x, (2, 2))),
    ("repeat", (2, 3), lambda xp, x: xp.repeat(x, 3)),
    ("repeat, axis", (2, 3, 2), lambda xp, x: xp.repeat(x, 2, axis=1)),
    ("repeat, to nothing", (2, 3), lambda xp, x: xp.repeat(x, 0, axis=-1)),
    ("repeat, counts", (2, 3), lambda xp, x: xp.repeat(x, xp.asarray([2, 0, 3]), axis=1)),
    ("repeat, flat counts", (2, 2), lambda xp, x: xp.repeat(x, xp.asarray([0, 1, 2, 1]))),
    ("repeat, one count", (2, 3), lambda xp, x: xp.repeat(x, xp.asarray([2]), axis=0)),
    ("tril", (4, 6), lambda xp, x: xp.tril(x, k=1)),
    ("tril, batch", (2, 5, 3), lambda xp, x: xp.tril(x, k=-2)),
    ("triu", (4, 6), lambda xp, x: xp.triu(x)),
    ("triu, batch", (2, 0, 3), lambda xp, x: xp.triu(x, k=-1)),
    ("concat", (2, 3), lambda xp, x: xp.concat([x, x[:1], x])),
    ("concat, axis", (2, 3), lambda xp, x: xp.concat((x, x[:, :0], x[:, 1:]), axis=-1)),
    ("concat, flat", (2, 3), lambda xp, x: xp.concat([x, x[0], x[0, 0]], axis=None)),
    ("stack", (2, 3), lambda xp, x: xp.stack([x, x])),
    ("stack, axis", (2, 3), lambda xp, x: xp.stack([x, xp.flip(x), x], axis=-1)),
    ("stack, 0-d", (), lambda xp, x: xp.stack([x, x])),
]


@pytest.mark.parametrize("shape, call", [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_values_and_gradients(shape: tuple[int, ...], call: Callable[[Any, Any], Any]) -> None:
    """NumPy's values; all ops are linear, so <y(v), u> = <v, gradient(u)> shows the gradient."""
    array, v = values(*shape), values(*shape)
    x = gt.tensor(array, requires_grad=True)
    y = call(gt, x)
    same(y, call(np, array))
    u = values(*y.shape)
    y.backward(gt.tensor(u))
    assert x.grad is not None
    np.testing.assert_allclose((call(np, v) * u).sum(), (x.grad.numpy() * v).sum(), rtol=1e-10,
                               atol=1e-12)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("shape, call", [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_every_dtype(shape: tuple[int, ...], call: Callable[[Any, Any], Any], dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape) % 5).astype(kind)
    if dtype == "complex64":
        array = array * (1 + 1j)
    same(call(gt, gt.tensor(array)), call(np, array))


VIEWS = ("expand_dims", "squeeze", "permute_dims", "moveaxis", "matrix_transpose", "flip")


@pytest.mark.parametrize("name, shape, call", [c for c in CALLS if c[0].split(",")[0] in VIEWS],
                         ids=lambda v: v if isinstance(v, str) else "")
def test_views(name: str, shape: tuple[int, ...], call: Callable[[Any, Any], Any]) -> None:
    x = gt.tensor(values(*shape))
    y = call(gt, x)
    assert np.shares_memory(x._array, y._array) and y._storage is x._storage
    strided = gt.tensor(values(*(2 * n for n in shape)))[(slice(None, None, 2),) * len(shape)]
    if "squeeze" not in name:
        assert np.shares_memory(strided._array, call(gt, strided)._array)


@pytest.mark.parametrize("call", [
    lambda x: gt.roll(x, 1), lambda x: gt.roll(x, 0, axis=0), lambda x: gt.tile(x, (1, 1)),
    lambda x: gt.repeat(x, 1, axis=0), lambda x: gt.tril(x, k=9), lambda x: gt.concat([x]),
    lambda x: gt.stack([x]), lambda x: gt.astype(x, x.dtype), lambda x: gt.take(x, [0, 1], axis=0),
    lambda x: gt.reshape(x, x.shape, copy=True)])
def test_copies(call: Callable[[gt.Tensor], gt.Tensor]) -> None:
    x = gt.tensor(values(2, 3))
    assert not np.shares_memory(x._array, call(x)._array)


# -- reshape's copy --------------------------------------------------------------------------------


def test_reshape_copies_by_its_copy_argument() -> None:
    x = gt.tensor(values(4, 6))
    assert np.shares_memory(gt.reshape(x, (24,), copy=False)._array, x._array)
    assert np.shares_memory(gt.reshape(x, (24,))._array, x._array)
    assert np.shares_memory(gt.reshape(x[:, ::2], (2, 2, 3), copy=False)._array, x._array)
    same(gt.reshape(x.T, (24,)), x.numpy().T.reshape(24))
    with pytest.raises(ValueError, match=r"shape \(6, 4\) to \(24,\) with copy=False"):
        gt.reshape(x.T, (24,), copy=False)
    same(gt.reshape(x, (8, -1), copy=True), x.numpy().reshape(8, 3))


# -- astype ----------------------------------------------------------------------------------------


def test_astype_copies_unless_copy_is_false() -> None:
    x = gt.tensor(values(3))
    assert gt.astype(x, gt.float64, copy=False) is x
    same(gt.astype(x, gt.float32), x.numpy().astype(np.float32))
    same(gt.astype(x, gt.float32, copy=False, device="cpu"), x.numpy().astype(np.float32))


def test_astype_between_kinds() -> None:
    x = gt.tensor([1.5, 0.0, -2.5], requires_grad=True)
    for dtype in ("int32", "bool"):
        assert not gt.astype(x, dtype).requires_grad
        same(gt.astype(x, dtype), x.detach().numpy().astype(dtype))
    z = gt.astype(x, gt.complex64)
    z.backward(gt.tensor(np.array([1 + 2j, 3j, -4], np.complex64)))
    assert x.grad is not None and x.grad.numpy().tolist() == [1.0, 0.0, -4.0]
    for dtype in ("float32", "int64", "bool"):
        with pytest.raises(TypeError, match=f"complex64 to {dtype} would drop the imaginary part"):
            gt.astype(z.detach(), dtype)
    assert gt.astype(z, gt.complex128).dtype == gt.complex128


# -- joining and splitting -------------------------------------------------------------------------


def test_concat_promotes_and_each_gradient_has_its_own_dtype() -> None:
    a = gt.tensor([1.0, 2.0], requires_grad=True)
    b = gt.tensor(np.array([3.0]), requires_grad=True)
    c = gt.tensor([4], dtype=gt.int16)
    y = gt.concat([a, b, c])
    assert y.dtype == gt.float64
    (y * gt.tensor(np.array([1.0, 2.0, 3.0, 4.0]))).sum().backward()
    assert a.grad is not None and b.grad is not None
    same(a.grad, np.array([1, 2], np.float32))
    same(b.grad, np.array([3.0]))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unstack(axis: int) -> None:
    x = gt.tensor(values(2, 3, 4), requires_grad=True)
    parts = gt.unstack(x, axis=axis)
    assert isinstance(parts, tuple)
    for part, wanted in zip(parts, np.moveaxis(x.detach().numpy(), axis, 0), strict=True):
        same(part, wanted)
        assert np.shares_memory(part._array, x._array)
    gt.stack([parts[1], parts[0] * 2.0]).sum().backward()
    grad = np.zeros((2, 3, 4))
    np.moveaxis(grad, axis, 0)[:2] = np.array([2.0, 1.0])[:, None, None]
    assert x.grad is not None
    same(x.grad, grad)


def test_broadcast_arrays() -> None:
    xs = [gt.tensor(values(*s), requires_grad=True) for s in ((3, 1), (4,), ())]
    found = gt.broadcast_arrays(*xs)
    for x, y in zip(xs, found, strict=True):
        same(y, np.broadcast_to(x.detach().numpy(), (3, 4)))
        assert np.shares_memory(x._array, y._array)
    (found[0] + found[1] * 2 + found[2]).sum().backward()
    assert [x.grad.numpy().ravel()[0] for x in xs if x.grad is not None] == [4.0, 6.0, 12.0]
    assert gt.broadcast_arrays() == []


@pytest.mark.parametrize("shape", [(200, 70), (70, 200), (3, 65, 64)])
@pytest.mark.parametrize("k", [-300, -65, -3, 0, 1, 64, 300])
def test_triangles_of_many_blocks_and_of_what_is_not_finite(
    shape: tuple[int, ...], k: int
) -> None:
    array = values(*shape)
    array[..., ::7, ::5] = np.nan
    array[..., 1::7, 1::5] = np.inf
    same(gt.tril(gt.tensor(array), k=k), np.tril(array, k))
    same(gt.triu(gt.tensor(array), k=k), np.triu(array, k))


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call, error, said", [
    (lambda x: gt.expand_dims(x, axis=3), IndexError, "expand_dims along axis 3 of a tensor of 3"),
    (lambda x: gt.expand_dims(x, axis=-4), ValueError, "wanted -3 to 2"),
    (lambda x: gt.squeeze(x, axis=0), ValueError, r"squeeze of axis 0 .*\(2, 3\); wanted axes of"),
    (lambda x: gt.squeeze(x, axis=2), ValueError, "squeeze along axis 2"),
    (lambda x: gt.permute_dims(x, (0,)), ValueError, r"axes \(0,\) .*each axis once"),
    (lambda x: gt.permute_dims(x, (0, 0)), ValueError, "at most once"),
    (lambda x: gt.moveaxis(x, (0, 1), 0), ValueError, "as many destinations"),
    (lambda x: gt.moveaxis(x, 2, 0), ValueError, "moveaxis along axis 2"),
    (lambda x: gt.reshape(x, (4, 2)), ValueError, r"\(2, 3\) \(6 elements\) to \(4, 2\)"),
    (lambda x: gt.reshape(x, (-1, -1)), ValueError, "at most one -1"),
    (lambda x: gt.reshape(x, (1.5, 4)), TypeError, "wanted an integer"),
    (lambda x: gt.broadcast_to(x, (3, 2)), ValueError, r"\(2, 3\) to \(3, 2\)"),
    (lambda x: gt.broadcast_arrays(x, x.T), ValueError, r"shapes \(2, 3\) and \(3, 2\)"),
    (lambda x: gt.flip(x, axis=2), ValueError, "flip along axis 2"),
    (lambda x: gt.flip(x, axis=(0, -2)), ValueError, "at most once"),
    (lambda x: gt.roll(x, (1, 2)), ValueError, "without axes"),
    (lambda x: gt.roll(x, (1, 2), axis=0), ValueError, "2 shifts along 1 axes"),
    (lambda x: gt.roll(x, 1.5), TypeError, "wanted an integer"),
    (lambda x: gt.roll(x), TypeError, "shift=None and shifts=None; wanted one"),
    (lambda x: gt.roll(x, 1, shifts=2), TypeError, "shift=1 and shifts=2; wanted one"),
    (lambda x: gt.roll(x, 1, 0, dims=0), TypeError, "axis=0 and dims=0, two words"),
    (lambda x: gt.flip(x, 0, dims=0), TypeError, "axis=0 and dims=0, two words"),
    (lambda x: gt.tile(x, (-1,)), ValueError, "0 or more"),
    (lambda x: gt.repeat(x, -1), ValueError, "repeats of -1"),
    (lambda x: gt.repeat(x, gt.tensor([1, 2]), axis=1), ValueError, r"shape \(2,\) along an axis"),
    (lambda x: gt.repeat(x, 1.5), TypeError, "dtype float64; wanted integers"),
    (lambda x: gt.tril(x[0]), ValueError, r"tril of a tensor of shape \(3,\)"),
    (lambda x: gt.triu(x, k=0.5), TypeError, "k=0.5; wanted an integer"),
    (lambda x: gt.matrix_transpose(x[0]), ValueError, "two axes or more"),
    (lambda x: gt.concat([]), ValueError, "concat of no tensors"),
    (lambda x: gt.concat([x, x.T]), ValueError, r"shapes \(2, 3\) and \(3, 2\)"),
    (lambda x: gt.concat([x, x[0]]), ValueError, r"shapes \(2, 3\) and \(3,\)"),
    (lambda x: gt.concat([x, None]), TypeError, r"concat \(arrays\[1\]\) was given NoneType"),
    (lambda x: gt.concat([x], axis=2), ValueError, "concat along axis 2"),
    (lambda x: gt.stack([x, x.T]), ValueError, r"stack of shapes \(2, 3\) and \(3, 2\)"),
    (lambda x: gt.stack([x], axis=3), ValueError, "stack along axis 3"),
    (lambda x: gt.unstack(x[0, 0]), ValueError, "unstack along axis 0 of a tensor of 0 dimensions"),
])
def test_refusals(call: Callable[[gt.Tensor], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call(gt.tensor(values(2, 3)))
