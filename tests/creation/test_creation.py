"""Making tensors: the array API's functions, NumPy's values, errors in one sentence."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import gtensor as gt


@pytest.mark.parametrize("data, dtype", [
    (1.5, "float32"), (2, "int64"), (True, "bool"), (1j, "complex64"), ([1, 2.5], "float32"),
    ([], "float32"), ([[1, 2], [3, 4]], "int64"), (np.float64(1), "float64"),
    (np.arange(3, dtype="int8"), "int8"), ([gt.tensor(1.0), 2], "float32"),
    ((1, (2j)), "complex64"), (2**63, "uint64"),
])
def test_dtypes_of_data(data, dtype):
    for make in (gt.tensor, gt.asarray):
        assert make(data).dtype == dtype


@pytest.mark.parametrize("value, dtype", [
    (1.0, "float32"), (3, "int64"), (True, "bool"), (1 + 2j, "complex64"),
    (np.float64(2), "float64"), (np.int8(2), "int8"),
])
def test_dtypes_of_a_fill_value(value, dtype):
    filled = gt.full((2, 3), value)
    assert filled.dtype == dtype and filled.shape == (2, 3)
    assert (filled.numpy() == value).all()


def test_a_fill_value_may_be_a_tensor():
    assert gt.full(2, gt.tensor(7, dtype="int16")).dtype == gt.int16
    assert gt.full_like(gt.ones((2, 1)), gt.tensor(7)).tolist() == [[7.0], [7.0]]


def test_large_integers_are_exact():
    assert gt.full(1, 2**62 + 1).item() == 2**62 + 1
    assert gt.full(1, 2**63 + 1, dtype=gt.uint64).item() == 2**63 + 1
    assert gt.arange(2**62, 2**62 + 2).tolist() == [2**62, 2**62 + 1]


@pytest.mark.parametrize("call", [
    lambda xp: xp.arange(5), lambda xp: xp.arange(2, 9, 3), lambda xp: xp.arange(3, -3, -2),
    lambda xp: xp.arange(5, dtype="int8"), lambda xp: xp.arange(4, 2),
    lambda xp: xp.eye(3), lambda xp: xp.eye(2, 4, k=1), lambda xp: xp.eye(3, k=-2, dtype="int64"),
    lambda xp: xp.linspace(0, 1, 5), lambda xp: xp.linspace(0, 1, 5, endpoint=False),
    lambda xp: xp.linspace(2, -1, 0), lambda xp: xp.linspace(0, 1j, 3),
    lambda xp: xp.linspace(0, 10, 5, dtype="int64"),
])
def test_counted_values_are_numpys(call):
    found, wanted = call(gt), call(np)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)
    assert found.dtype == {"float64": "float32", "complex128": "complex64"}.get(
        wanted.dtype.name, wanted.dtype)


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("sizes", [(), (3,), (2, 3), (2, 0, 4), (2, 3, 4, 1)])
def test_meshgrid_is_numpys(indexing, sizes):
    arrays = [np.random.default_rng().standard_normal(n) for n in sizes]
    found = gt.meshgrid(*map(gt.asarray, arrays), indexing=indexing)
    wanted = np.meshgrid(*arrays, indexing=indexing)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)


def test_meshgrid_carries_gradients():
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    a, b = gt.meshgrid(x, gt.tensor([3.0, 4.0, 5.0]))
    (a * b).sum().backward()
    assert x.grad.tolist() == [12.0, 12.0]


@pytest.mark.parametrize("call, error, message", [
    (lambda: gt.tensor("text"), TypeError, "a tensor was given str of dtype <U4; wanted numbers"),
    (lambda: gt.tensor([[1], [1, 2]]), ValueError, "lists of different lengths"),
    (lambda: gt.empty((2, -1)), ValueError, r"shape \(2, -1\) given; wanted sizes of 0 or more"),
    (lambda: gt.arange(1, 2, 0), ValueError, "step 0"),
    (lambda: gt.linspace(0, 1, -1), ValueError, "linspace of -1 values; wanted 0 or more"),
    (lambda: gt.meshgrid(gt.ones(2), indexing="yx"), ValueError, "indexing='yx'"),
    (lambda: gt.meshgrid(gt.ones((2, 2))), ValueError, r"shapes \[\(2, 2\)\]"),
    (lambda: gt.meshgrid(gt.ones(2), gt.arange(2)), ValueError, "wanted 1-d ones of one dtype"),
    (lambda: gt.ones(2, dtype="int64", requires_grad=True), TypeError, "int64; gradients need"),
])
def test_bad_input_is_one_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_linspace_between_tensors_carries_gradients():
    start = gt.tensor(1.0, dtype=gt.float64, requires_grad=True)
    values = gt.linspace(start, 3.0, 5)
    assert values.dtype == gt.float64
    np.testing.assert_allclose(values.detach().numpy(), np.linspace(1, 3, 5))
    values.sum().backward()
    np.testing.assert_allclose(start.grad.item(), 2.5)
    assert gt.linspace(0, gt.tensor(4), 5).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("call", [
    lambda s: gt.asarray([s, s]), lambda s: gt.tensor([[1.0], [s]]), lambda s: gt.full(2, s),
    lambda s: gt.full_like(s, s), lambda s: gt.arange(s),
])
def test_a_gradient_is_not_cut_by_making_a_tensor_of_values(call):
    with pytest.raises(gt.GradientError, match=r"would be lost; stack\(\) or concat\(\)"):
        call(gt.tensor(2.0, requires_grad=True))
    call(gt.tensor(2.0))


@pytest.mark.parametrize("create", [gt.empty, gt.zeros, gt.ones])
def test_sizes_may_be_arguments_of_their_own_and_a_dtype_the_second(create: Any) -> None:
    assert create(2, np.int64(3), dtype=gt.int8).shape == (2, 3)
    assert create(2, 0).dtype == gt.float32
    assert create((2, 3), gt.int8).dtype == create(4, "int8", "cpu").dtype == gt.int8
    assert create(shape=(2,)).shape == (2,)


@pytest.mark.parametrize("call, message", [
    (lambda: gt.zeros((2.5,)), r"shape \(2.5,\) given; wanted a whole number, or a tuple"),
    (lambda: gt.zeros((2, 3), 4), r"shape \(\(2, 3\), 4\) given; wanted a whole number"),
    (lambda: gt.ones(2, 3, gt.float32), r"shape \(2, 3, .*\) given; wanted a whole number"),
    (lambda: gt.empty(2, "int8", None, False, 1), "4 arguments given after the shape 2; wanted at"),
    (lambda: gt.ones(2).to("gpu"), "to.. was given 'gpu'; wanted a device such as 'cpu'"),
    (lambda: gt.grad(lambda a: a.sum(), argnum=(0, 1)), "grad.. of a function was given argnum;"),
    (lambda: gt.ones(1, requires_grad=True).register_hook(3), "a hook was given as int"),
])
def test_a_slip_is_answered_with_what_is_wanted(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_a_loss_can_be_printed_with_a_format():
    assert f"{gt.tensor(1.23456):.3f} {gt.tensor(7):d}" == "1.235 7"
    assert f"{gt.ones(2)}" == "tensor([1., 1.])"
    with pytest.raises(ValueError, match="format"):
        f"{gt.ones(2):.3f}"


def test_methods_have_the_text_of_their_functions():
    assert gt.Tensor.sum.__doc__ == gt.sum.__doc__ and "over `axis`" in gt.Tensor.sum.__doc__


def test_linspace_between_tensors_is_that_between_numbers():
    for start, stop, dtype in ((0, 10, gt.int64), (0.0, 1.0, gt.float32), (-3e38, 3e38, None)):
        found = gt.linspace(gt.tensor(start), gt.tensor(stop), 5, dtype=dtype)
        wanted = gt.linspace(start, stop, 5, dtype=dtype)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match=r"ends of shapes \[\(2,\)\]; wanted numbers or 0-d"):
        gt.linspace(gt.ones(2), 3.0, 4)


def test_arange_of_numpy_floats_is_float32():
    assert gt.arange(np.float32(0), np.float32(1), np.float32(0.5)).dtype == gt.float32
    assert gt.arange(np.int8(3)).dtype == gt.int64


@pytest.mark.parametrize("call", [
    lambda s: gt.exp([s, s]), lambda s: gt.add(gt.zeros(2), [s, s]), lambda s: np.asarray(s),
    lambda s: gt.where(gt.tensor([True, False]), [s, s], 0.0),
    lambda s: gt.zeros(2).__setitem__(slice(None), [s, s]), lambda s: np.array([s, s]),
])
def test_no_way_to_values_cuts_a_gradient_silently(call):
    with pytest.raises(gt.GradientError, match=r"would be lost"):
        call(gt.tensor(2.0, requires_grad=True))
    call(gt.tensor(2.0))


def test_a_number_beside_bfloat16_and_a_condition():
    x = gt.tensor([1.0, 2.0, 3.0], dtype=gt.bfloat16)
    found = gt.where(gt.tensor([True, False, True]), x, 2.5)
    assert found.dtype == gt.bfloat16 and found.astype(gt.float32).tolist() == [1, 2.5, 3]


def test_a_copy_keeps_the_gradient():
    x = gt.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    other = copy.deepcopy(x)
    assert other.grad.tolist() == [3, 3] and other.grad is not x.grad
    parameter = gt.nn.Parameter(gt.ones(2))
    (parameter * 3).sum().backward()
    assert copy.deepcopy(parameter).grad.tolist() == [3, 3]


def test_numbers_alone_have_the_default_dtypes():
    assert gt.multiply(1j, 1j).dtype == gt.complex64 and gt.add(1.0, 2).dtype == gt.float32
    assert gt.clip(2, gt.tensor(0), gt.tensor(1)).item() == 1


_NO_NUMBERS = [np.array([1, 2, 3], object), np.zeros(3, [("a", object)]),
               np.zeros(3, [("a", "f4")]),
               np.array(["a", "b", "c"]), np.array([b"a", b"b", b"c"]), np.zeros(3, "V4"),
               np.array([1, 2, 3], "M8[s]"), np.array([1, 2, 3], "m8[s]"),
               np.array(["a", "b", "c"], np.dtypes.StringDType()), [object()] * 3]
_MASKED = np.ma.array([1.0, 2.0, 0.0], mask=[False, True, False])
_DOORS = {  # by which an array enters
    "tensor": gt.tensor, "asarray": gt.asarray, "from_dlpack": gt.from_dlpack,
    "full": lambda v: gt.full((3,), v),
    "an op": lambda v: gt.ones(3) + v, "an op on it": lambda v: gt.tanh(v),
    "where": lambda v: gt.where(gt.ones(3) > 0, v, 1.0),
    "in place": lambda v: gt.ones(3).__iadd__(v),
    "a value to set": lambda v: gt.ones(3).__setitem__(slice(None), v),
    "an index": lambda v: gt.ones(3)[v],
    "a batch": lambda v: gt.data.default_collate([v, v]),
    "a data set": gt.data.ArrayDataset,
}


@pytest.mark.parametrize("door", _DOORS)
def test_only_numbers_enter_and_no_mask_is_dropped(door):
    for given in (*_NO_NUMBERS, _MASKED, [_MASKED, _MASKED]):
        if isinstance(given, list) and door in ("from_dlpack", "an index", "a data set", "a batch"):
            continue  # no arrays there, or shown whole
        with pytest.raises((TypeError, IndexError), match="wanted") as error:
            _DOORS[door](given)
        assert "\n" not in str(error.value)
        if "mask" in str(given):
            assert "mask" in str(error.value)


@pytest.mark.parametrize("value,bits", [
    (10**400, 1329), ([2**64], 65), ([-2**63 - 1], 64), ([[0.5, 2**70]], 71)],
    ids=["of 401 digits", "above", "below", "among floats"])
def test_integers_that_no_dtype_holds_are_named(value, bits):
    for make, reader in ((gt.tensor, "a tensor"), (gt.asarray, "a tensor"), (gt.tanh, "tanh")):
        with pytest.raises(TypeError, match=f"^{reader} was given an integer of {bits} bits, too "):
            make(value)
    assert gt.tensor([2**64 - 1]).dtype == gt.uint64 and gt.tensor(-2**63).dtype == gt.int64


@pytest.mark.parametrize("door,reader", [
    ("tensor", "a tensor"), ("full", "full"), ("an op", "add"), ("an op on it", "tanh"),
    ("in place", "in-place add"), ("an index", "an index")])
def test_a_masked_array_is_refused_by_the_name_of_what_read_it(door, reader):
    for given in (_MASKED, [_MASKED, _MASKED]):
        with pytest.raises((TypeError, IndexError), match=f"{reader} was given a masked array"):
            _DOORS[door](given)


def test_masks_are_refused_where_they_would_be_written(tmp_path):
    with pytest.raises(TypeError, match="'w' was given a masked array"):
        gt.checkpoint.save_file({"w": _MASKED}, tmp_path / "a.safetensors")
    with pytest.raises(TypeError, match="repeat was given a masked array"):
        gt.repeat(gt.ones(3), np.ma.array([1, 2, 1], mask=[0, 1, 0]))
    with pytest.raises(TypeError, match="masked array"):
        gt.nn.Linear(3, 1).load_state_dict({"weight": _MASKED.reshape(1, 3), "bias": np.ones(1)})


_CHILD = """
import inspect, numpy as np, gtensor as gt
gt.settings.arena_min_bytes = 0
dirt = [gt.ones((n,)) + 1.0 for n in (3, 9, 100, 10_000)]  # bytes that are no pointers
del dirt
x, kinds = gt.ones((3, 3)), [object, "O", [("a", "O")], [("a", "f4")], str, "S3", "M8[s]", "m8[s]",
                             "V4", np.dtypes.StringDType(), ("f4", (3,)), "no dtype"]
asked, wrong = 0, []
for place in (gt, gt.random, gt.fft, gt.linalg, gt.nn.functional):
    for name in sorted(getattr(place, "__all__", None) or dir(place)):
        function = getattr(place, name, None)
        if inspect.isclass(function) or not callable(function):
            continue
        try:
            wanted = inspect.signature(function).parameters
        except ValueError:
            continue
        ways = [lambda k, a: function(*a, dtype=k)] if "dtype" in wanted else []
        if name in ("astype", "finfo", "iinfo", "result_type"):
            ways = [lambda k, a: function(k)] if name != "astype" else [lambda k, a: function(x, k)]
        for way in ways:
            asked += 1
            for arguments in ((x,), (3,), ((2, 3),), (x, 0), (0, 5), (0.0, 1.0, 3), (0, 5, (3,))):
                for kind in kinds:
                    try:
                        wrong.append((name, kind, way(kind, arguments)))
                    except (TypeError, ValueError, AttributeError) as error:
                        pass
for kind in kinds:
    for way in (lambda: x.astype(kind), lambda: x.to(kind), lambda: gt.nn.Linear(2, 2, dtype=kind),
                lambda: gt.memory.Workspace().get("a", (3,), kind)):
        try:
            wrong.append((kind, way()))
        except TypeError as error:
            assert "wanted" in str(error), error
assert asked > 25 and not wrong, (asked, wrong)
"""


def test_no_public_function_makes_a_tensor_of_objects():
    """In a child: dirty bytes taken for pointers end the process."""
    done = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True,
                          timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_a_negative_zero_keeps_its_sign_on_cuda(dtype):
    zero = -0.0 if dtype != "complex64" else complex(0.0, -0.0)
    mask = gt.asarray([[True, False], [False, True]])
    rows = gt.asarray([0, 1])
    written = [gt.ones((2, 2), dtype=dtype) for _ in range(4)]
    for x, key in zip(written, (..., mask, rows, (slice(None), 1)), strict=True):
        x[key] = zero
    x = gt.ones((2, 2), dtype=dtype)
    x[0] = gt.asarray(zero, dtype=dtype)
    padded = gt.nn.functional.pad(gt.ones(2, dtype=dtype), (1, 0), value=zero)
    for given in (gt.full((3,), zero, dtype=dtype), gt.asarray(zero, dtype=dtype), *written, x,
                  padded, gt.positive(zero)):
        values = given.numpy()
        part = (values.imag if values.dtype.kind == "c" else values).astype(float)
        assert (np.signbit(part) == (values == 0)).all() and (values == 0).any()


def test_pinned_memory_is_asked_for_without_effect():
    for made in (gt.tensor([0.0, 0.0], pin_memory=True), gt.full(2, 0.0, pin_memory=True),
                 gt.zeros(2, pin_memory=True), gt.ones(2, pin_memory=True) - 1.0):
        assert made.tolist() == [0.0, 0.0]
    assert gt.empty((2, 3), pin_memory=True).shape == (2, 3)


def test_sizes_may_be_arguments_of_their_own():
    """As PyTorch's; after a shape in one argument come dtype, device and requires_grad."""
    for made in (gt.empty, gt.zeros, gt.ones):
        assert made(2, 3).shape == made((2, 3)).shape == made([2, 3], "int8").shape == (2, 3)
        assert made(2, 3, dtype=gt.int64).dtype == made(2, gt.int64).dtype == gt.int64
        assert made(4, gt.float64, "cpu", True).requires_grad
        assert made(2, np.int64(1), 0, requires_grad=True).shape == (2, 1, 0)


def test_arguments_of_pytorch_by_name():
    x = gt.ones(2)
    for like in (gt.empty_like, gt.zeros_like, gt.ones_like):
        assert like(x, requires_grad=True).requires_grad
    assert gt.linspace(0, 1, steps=3).tolist() == gt.linspace(0, 1, 3).tolist()
    with pytest.raises(TypeError, match="linspace was given num=None and steps=None; wanted one"):
        gt.linspace(0, 1)
