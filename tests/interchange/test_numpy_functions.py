"""NumPy's functions name gtensor's; the operators of its arrays with tensors are the tensor's."""

from __future__ import annotations

import operator
import re

import numpy as np
import pytest

import gtensor as gt

OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.matmul, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
    operator.ge]
OF_INTEGERS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.imatmul]


@pytest.mark.parametrize("compute", OPERATORS + OF_INTEGERS)
def test_an_operator_with_an_array_on_either_side_gives_a_tensor(compute):
    dtype = "int64" if compute in OF_INTEGERS else "float64"
    a, b = np.array([[5, 2], [3, 4]], dtype), np.array([[3, 2], [1, 6]], dtype)
    x, y = gt.asarray(a), gt.asarray(b)
    for found in (compute(a, y), compute(x, b)):
        assert isinstance(found, gt.Tensor)
        np.testing.assert_array_equal(found.numpy(), compute(a, b))


@pytest.mark.parametrize("compute", [f for f in OPERATORS if f is not operator.matmul])
def test_a_number_of_numpy_takes_the_tensors_dtype_on_either_side(compute):
    x = gt.tensor([1.0, 2.0, 3.0])
    for number in (np.float64(2), np.int64(2)):
        for found, wanted in ((compute(number, x), compute(2, x)),
                              (compute(x, number), compute(x, 2))):
            assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist()


def test_an_operator_with_an_array_on_its_left_carries_the_gradient():
    x = gt.ones(2, requires_grad=True)
    (np.array([2.0, 3.0], np.float32) * x).sum().backward()
    assert x.grad.tolist() == [2, 3]


@pytest.mark.parametrize("write", IN_PLACE)
def test_an_array_is_not_written_with_a_tensor_by_an_operator(write):
    a = np.full((2, 2), 4.0)
    with pytest.raises(TypeError, match=r"was given a Tensor to write into .* wanted x\.numpy\(\)"):
        write(a, gt.ones((2, 2)))
    assert (a == 4.0).all()
    a[:] = gt.ones((2, 2))  # an assignment reads the tensor as np.asarray does
    assert (a == 1.0).all()


@pytest.mark.parametrize(("call", "ours"), [
    (np.exp, "exp"), (np.sum, "sum"), (lambda x: np.concatenate([x]), "concat"),
    (lambda x: np.power(x, 2), "pow"), (lambda x: np.add(x, 1), "add"),
    (np.cumsum, "cumulative_sum"),
    (np.rint, "round"), (np.transpose, "transpose"), (lambda x: np.where([True], x, 0), "where"),
    (lambda x: np.maximum(np.ones(1), x), "maximum"), (np.linalg.inv, "linalg.inv"),
    (np.linalg.norm, "linalg.norm"), (np.fft.rfft, "fft.rfft"), (np.trace, "trace")])
def test_a_function_of_numpy_names_gtensors(call, ours):
    with pytest.raises(TypeError, match=rf"was given a Tensor; use gt\.{ours}, or give it x\.nump"):
        call(gt.ones(1))


@pytest.mark.parametrize("call", [np.unwrap, np.add.reduce, np.cbrt])
def test_a_function_that_gtensor_lacks_wants_an_array(call):
    with pytest.raises(TypeError, match=r"was given a Tensor; wanted NumPy arrays, such as x\.num"):
        call(gt.ones(3))


def test_every_name_that_is_named_exists():
    from gtensor.engine.handle.numpy_calls import _READERS, _refuse

    assert all(hasattr(np, name) for name in _READERS)
    names = [*dir(np), *(f"{room}.{name}" for room in ("linalg", "fft")
                         for name in dir(getattr(np, room)))]
    named = 0
    for name in names:
        with pytest.raises(TypeError) as caught:
            _refuse(name)
        for ours in re.findall(r"use gt\.([\w.]+),", str(caught.value)):
            operator.attrgetter(ours)(gt)  # an AttributeError would name it
            named += 1
    assert named > 150


def test_what_only_reads_takes_tensors(tmp_path):
    x = gt.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert np.shape(x) == (2, 2) and np.ndim(x) == 2 and np.size(x) == 4
    assert np.allclose(x, x.numpy()) and np.array_equal(x, x.tolist())
    np.testing.assert_allclose(x, x.numpy())
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", first=x)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x.numpy())
    for array in (np.asarray(x), np.array(list(x)), np.atleast_2d(x)):
        assert type(array) is np.ndarray and array.tolist() == x.tolist()
    with pytest.raises(gt.GradientError, match="detach"):
        np.allclose(gt.ones(1, requires_grad=True), 1)


@pytest.mark.gpu
@pytest.mark.parametrize("compute", OPERATORS)
def test_an_operator_with_an_array_of_cupys_on_either_side_gives_a_tensor(compute):
    import cupy

    a, b = np.array([[5.0, 2.0], [3.0, 4.0]]), np.array([[3.0, 2.0], [1.0, 6.0]])
    x = gt.asarray(a, device="cuda")
    for found, wanted in ((compute(cupy.asarray(b), x), compute(b, a)),
                          (compute(x, cupy.asarray(b)), compute(a, b))):
        assert isinstance(found, gt.Tensor) and found.device is x.device
        np.testing.assert_array_equal(found.numpy(), wanted)
