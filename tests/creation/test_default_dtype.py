"""`gt.set_default_dtype`: what Python floats become, against PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt

DTYPES = ["float16", "bfloat16", "float32", "float64"]
# One text for both libraries; `i` are integers, `c` booleans.
MADE = [
    "lib.tensor([1.5, 2])", "lib.full((2,), 1.5)", "lib.full((2,), 3)", "lib.zeros(2)",
    "lib.ones(2)", "lib.empty(2)", "lib.eye(2)", "lib.arange(0.0, 2.0)", "lib.arange(3)",
    "lib.linspace(0, 1, 3)", "lib.fft.fftfreq(3)", "lib.zeros_like(i)",
    "lib.nn.Linear(2, 3).weight", "lib.nn.BatchNorm1d(3).running_var",
    "lib.nn.Embedding(2, 3).weight",
    "lib.nn.LayerNorm(3).weight", "lib.nn.LSTM(2, 3).weight_hh_l0", "lib.nn.Conv2d(1, 1, 2).bias",
]
PROMOTED = [
    "i + 1.5", "1.5 - i", "i * 0.5", "c * 0.5", "i / 2", "i / i", "i // 0.5", "i % 0.5", "i ** 0.5",
    "2.0 ** i", "i + 1", "c + 1", "lib.where(c, i, 0.5)", "lib.where(c, 0.5, 1.5)",
    "lib.where(c, i, 1)", "lib.clip(i, 0.5, 1.5)", "lib.clip(i, 0, 1.5)", "lib.sqrt(i)",
    "lib.exp(c)", "lib.ones(2) * 2", "lib.ones(2) + i[0].item()", "i < 1.5", "i == 1.5", "+i",
]


@pytest.fixture(params=DTYPES)
def default(request: pytest.FixtureRequest) -> Iterator[str]:
    """A default dtype of both libraries, within the test."""
    gt.set_default_dtype(request.param)
    torch.set_default_dtype(getattr(torch, request.param))
    yield request.param
    gt.set_default_dtype("float32")
    torch.set_default_dtype(torch.float32)


def computed(text: str, device: str) -> list[Any]:
    """The text's value by gtensor on the device, and by PyTorch."""
    return [eval(text, {"lib": lib, "i": lib.tensor([1, 2], device=place),
                        "c": lib.tensor([True, False], device=place)})
            for lib, place in ((gt, device), (torch, "cpu"))]


@pytest.mark.parametrize("text", MADE + PROMOTED)
def test_dtypes_are_pytorchs(default, text):
    ours, theirs = computed(text, "cpu")
    assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
    if text in PROMOTED:
        np.testing.assert_allclose(ours.astype("float64").tolist(), theirs.double().tolist(),
                                   rtol=1e-2 if ours.dtype.itemsize == 2 else 1e-6)


def test_what_pytorch_names_otherwise_has_the_default_dtype_too(default):
    i = gt.tensor([1, 2])
    for made in (gt.random.normal((2,)), gt.random.uniform((2,)), gt.maximum(i, 0.5), i.mean(),
                 gt.logspace(0, 1, 3), gt.quantile(i, 0.5), gt.median(i), gt.cov(i), gt.corrcoef(i),
                 np.float64(0.5) * i, gt.data.default_collate([0.5, 1.5])):
        assert made.dtype == gt.get_default_dtype() == default
    assert gt.result_type(gt.int64, 1.5) == gt.result_type(0.5) == default
    assert gt.result_type(gt.int64, gt.uint64) == gt.float64  # NumPy's: no number is among them


def test_complex_numbers_have_parts_of_the_default_dtype_or_float32(default):
    wanted = "complex128" if default == "float64" else "complex64"
    i = gt.tensor([1, 2])
    for made in (gt.tensor(1j), i + 1j, gt.full(2, 1j), gt.linspace(0, 1j, 2), gt.ones(2) * 1j):
        assert made.dtype == gt.result_type(gt.int64, 1j) == wanted


def test_the_namespace_tells_it_and_values_are_printed_without_it(default):
    found = gt.__array_namespace_info__().default_dtypes()
    assert found["real floating"] == default and found["integral"] == gt.int64
    assert "dtype" not in repr(gt.ones(2))
    other = "float32" if default == "float64" else "float64"
    assert f"dtype={other}" in repr(gt.ones(2, dtype=other))


def test_arrays_and_dtypes_that_are_given_stay(default):
    assert gt.asarray(np.ones(2, np.float32)).dtype == gt.float32
    assert gt.ones(2, dtype="float64").dtype == gt.float64
    assert (gt.ones(2, dtype="float64") * 0.5).dtype == gt.float64


def test_a_network_trains_in_it(default):
    net = gt.nn.Sequential(gt.nn.Linear(2, 4), gt.nn.GELU(), gt.nn.LayerNorm(4), gt.nn.Linear(4, 1))
    optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
    x = gt.random.normal((8, 2))
    losses = []
    for _ in range(5):
        loss = ((net(x) - 1.0) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert loss.dtype == default and losses[-1] < losses[0]
    assert {p.grad.dtype for p in net.parameters()} == {gt.get_default_dtype()}


@pytest.mark.parametrize("dtype", ["int64", "complex64", "bool", ">f8", None])
def test_another_dtype_is_refused(dtype):
    with pytest.raises(TypeError, match=f"set_default_dtype was given {dtype}; wanted float16, bf"):
        gt.set_default_dtype(dtype)
    assert gt.get_default_dtype() == gt.float32


def test_comparisons_of_large_integers_with_a_float_are_exact():
    """Where PyTorch rounds them to float32."""
    large = gt.tensor([2**24 + 1])
    assert not (large == 2.0**24).item() and (torch.tensor([2**24 + 1]) == 2.0**24).item()


def test_integers_beside_a_float_are_promoted_within_vmap():
    rows = gt.arange(6).reshape(2, 3)
    assert gt.vmap(lambda row: row * 0.5)(rows).dtype == gt.float32


def test_a_write_of_a_float_into_integers_names_the_default_dtype():
    with pytest.raises(TypeError, match="into dtype int64: the result has dtype float32"):
        x = gt.arange(3)
        x += 0.5


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
@pytest.mark.parametrize("key", ["1", "...", "lib.tensor([0, 2], device=d)", "x > 20"])
def test_a_float_is_written_into_integers_without_its_fraction(key, dtype, device):
    """The integers beside it are not promoted: a copy of them would take the write."""
    found = []
    for lib, d in ((gt, device), (torch, "cpu")):
        x = lib.tensor([10, 0, 30], dtype=getattr(lib, dtype), device=d)
        x[eval(key, {"lib": lib, "x": x, "d": d})] = 0.75 if dtype == "bool" else 7.75
        found.append(x.tolist())
    assert found[0] == found[1]


@pytest.mark.gpu
@pytest.mark.parametrize("text", PROMOTED)
def test_dtypes_are_pytorchs_on_a_gpu(default, text):
    ours, theirs = computed(text, "cuda")
    assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
