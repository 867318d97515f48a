"""Public functions take what `gt.asarray` takes: NumPy's arrays, lists and numbers for Tensors.

Generated from the plain calls of `variants.calls`: with arrays in the place of all Tensors, or of
one of them, each gives what it gives with Tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from variants.calls import Call, calls

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.engine.tape.op import Op
from gtensor.system.foreign_names import ALIASES
from gtensor.system.late_imports import foreign
from gtensor.testing.compare import to_numpy

Given = Sequence[Any]
# The functions of these calls read Tensors themselves, or write the first one.
BY_HAND = {
    "from_dlpack", "linalg.cond", "nn.functional.batch_norm", "nn.functional.abn",
    *(f"nn.functional.{name}_" for name in (
        "celu", "elu", "hardtanh", "leaky_relu", "relu", "selu", "threshold"))}
READS = {"nn.functional.layer_norm": 1, "nn.functional.rms_norm": 1,
         "nn.functional.rotary_embedding": 0}  # which one
NAMES = sorted(name for name in calls() if not name.startswith("Tensor.") and name not in BY_HAND)


def listed(a: np.ndarray | None) -> Any:
    return None if a is None else a.tolist()


def tensors(values: Given) -> list[gt.Tensor | None]:
    return [None if v is None else gt.asarray(v) for v in values]


def given(call: Call) -> Iterator[tuple[Given, Given]]:
    """The same numbers as Tensors, and as arrays or lists in the place of all or one of them."""
    arrays = call.sample.arrays(np.random.default_rng(5))
    lists = [listed(a) for a in arrays]
    for values in (arrays, lists):
        like = tensors(values)
        if not call.writes and call.name not in READS:
            yield like, values
        for i in range(int(call.writes), len(arrays)):
            if READS.get(call.name) != i:
                yield like, [*like[:i], values[i], *like[i + 1:]]


def results(call: Call, inputs: Given) -> list[Any]:
    """The results, or the error as text."""
    if call.writes:
        inputs = [inputs[0].clone(), *inputs[1:]]

    def flat(found: Any) -> list[Any]:
        return [v for one in found for v in flat(one)] if isinstance(found, (tuple, list)) else [
            found]

    try:
        with np.errstate(all="ignore"):
            return flat(call.function(*inputs, **call.sample.params))
    except (TypeError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]


@pytest.mark.parametrize("name", NAMES)
def test_arrays_and_lists_are_taken_for_tensors(name: str) -> None:
    for call in calls()[name]:
        for like, values in given(call):
            wanted, found = results(call, like), results(call, values)
            assert [type(v) for v in found] == [type(v) for v in wanted], (str(call), found)
            for a, b in zip(found, wanted, strict=True):
                if isinstance(b, gt.Tensor):
                    assert a.dtype == b.dtype, str(call)
                    np.testing.assert_array_equal(to_numpy(a), to_numpy(b), str(call))
                else:
                    assert a == b, str(call)


X = gt.tensor([[1.0, -2.0], [0.5, 3.0]])


def test_a_number_has_the_dtype_of_the_tensor_beside_it() -> None:
    x = gt.asarray(np.array([1.0, 3.0]))
    for loss in (F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss, F.kl_div,
                 F.binary_cross_entropy_with_logits):
        for number in (1.0, 1, np.float32(1)):
            found, wanted = loss(x, number), loss(x, gt.ones_like(x))
            assert (found.dtype, float(found)) == (gt.float64, float(wanted)), loss
    half = gt.tensor([1.5], dtype=gt.bfloat16)
    assert gt.fmod(half, 1).dtype == gt.lerp(half, 2.0, 0.5).dtype == gt.bfloat16
    assert gt.fmod(7, 4).item() == 3


def test_floats_of_lists_have_the_default_dtype_and_numpys_their_own() -> None:
    assert gt.sum([1.0, 2.0]).dtype == gt.float32
    assert gt.sum(np.array([1.0, 2.0])).dtype == gt.float64
    assert gt.sum(3).dtype == gt.int64


def test_only_the_tensors_have_gradients_and_an_array_may_be_written_after() -> None:
    w, x = X.clone().requires_grad_(), np.ones((3, 2), np.float32)
    y = F.linear(x, w)
    x[:] = 7  # its values were saved for the gradient
    y.sum().backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), np.full((2, 2), 3))
    assert not F.softmax(x, -1).requires_grad


@pytest.mark.parametrize("call, words", [
    (lambda: gt.sum("ab"), r"sum \(x\) was given str of dtype <U2; wanted numbers"),
    (lambda: gt.sum(None), r"sum \(x\) was given NoneType"),
    (lambda: F.mse_loss(X, {}), r"mse_loss \(target\) was given dict"),
    (lambda: gt.sort([[1.0], [2.0, 3.0]]), r"sort \(x\) was given nested lists of different"),
    (lambda: gt.concat([X, "a"]), r"concat \(arrays\[1\]\) was given str"),
    (lambda: gt.concat(5), "concat was given arrays of type int; wanted a sequence of tensors"),
    (lambda: gt.flip(np.ma.masked_array([1.0], [True])), r"flip \(x\) was given a masked array"),
    (lambda: F.batch_norm(X, [0.0, 0.0], gt.ones(2), training=True),
     "batch_norm was given running_mean of type list; wanted a Tensor"),
])
def test_what_is_no_array_is_named_with_its_argument(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_every_composed_function_takes_arrays() -> None:
    """Those under foreign names, which have no plain call."""
    left = set()
    for room in ("gtensor", "gtensor.nn.functional"):
        for name in ALIASES[room]:
            function = foreign(room, name, room, list)
            if inspect.isfunction(function) and "composed" in function.__module__ and any(
                    p.annotation == "Tensor" for p in inspect.signature(function)
                    .parameters.values()) and not hasattr(function, "__wrapped__"):
                left.add(name)
    assert not left


@pytest.mark.host_cuda
def test_an_array_goes_to_the_device_of_the_tensors() -> None:
    x = gt.tensor([1.0, 2.0], device="cuda")
    assert F.mse_loss(x, np.zeros(2, np.float32)).device == x.device
    assert F.mse_loss([1.0, 2.0], x).item() == 0
    assert gt.take(x, [1]).device == x.device
    assert gt.sum(x.array).device == x.device
    assert F.mse_loss([1.0, 2.0], x.array).item() == 0
    with pytest.raises(gt.DeviceError):
        F.mse_loss(gt.ones(2, device="cpu"), x.array)


def test_the_call_that_converts_is_the_function_to_python() -> None:
    for function in (gt.sum, F.cross_entropy, gt.take_along_axis):
        assert not isinstance(function, Op)
        for _ in range(2):  # before and after its text is written
            assert inspect.signature(function) == inspect.signature(inspect.unwrap(function))
            with pytest.raises(TypeError, match=rf"{function.__name__}\(\)"):
                function(X, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
