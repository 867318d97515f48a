"""The fft extension against NumPy (values) and PyTorch (gradients through complex values)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from against_torch import compare

import gtensor as gt
from gtensor import fft
from gtensor.testing import gradcheck

COMPLEX = {"fft", "ifft", "fftn", "ifftn"}  # take complex or real values
HALF = {"irfft", "irfftn", "hfft"}  # take half a spectrum
REAL = {"rfft", "rfftn", "ihfft"}  # take real values
NAMES = sorted(COMPLEX | HALF | REAL)
NORMS = ["backward", "ortho", "forward"]
LINES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((8,), {}), ((7,), {}), ((2, 5), {}), ((3, 4), {"axis": 0}), ((2, 3, 4), {"axis": 1}),
    ((6,), {"n": 4}), ((6,), {"n": 9}), ((5,), {"n": 8}), ((5, 2), {"n": 3, "axis": 0}),
    ((3,), {"n": 2}), ((2,), {"n": 1}), ((0, 4), {}), ((4, 3), {"n": 7, "axis": -2}),
]
PLANES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((4, 6), {}), ((3, 5), {}), ((2, 3, 4), {"axes": (0, 2)}), ((2, 3, 4), {"axes": (2, 0)}),
    ((4, 5), {"s": (3, 7)}), ((4, 5), {"s": (6, 4)}), ((2, 4, 5), {"s": (3, 3), "axes": (-1, 0)}),
    ((5,), {}), ((2, 3, 3), {"s": (2, 5), "axes": (1, 2)}), ((0, 3, 4), {"axes": (1, 2)}),
]


def cases(name: str) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    return PLANES if name.endswith("n") else LINES


def values(name: str, shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    x = np.random.standard_normal(shape)
    if name in REAL or dtype.startswith("float"):
        return x.astype(dtype.replace("complex128", "float64").replace("complex64", "float32"))
    return (x + 1j * np.random.standard_normal(shape)).astype(dtype)


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", NAMES)
def test_values_are_numpys(name: str, norm: str) -> None:
    for shape, options in cases(name):
        for dtype, tolerance in (("complex128", 1e-12), ("complex64", 1e-5), ("float32", 1e-5)):
            x = values(name, shape, dtype)
            given = getattr(fft, name)(gt.asarray(x), norm=norm, **options)
            if "s" in options and "axes" not in options:
                options = {**options, "axes": tuple(range(-len(options["s"]), 0))}
            wanted = getattr(np.fft, name)(x, norm=norm, **options)
            assert given.dtype == wanted.dtype and given.shape == wanted.shape
            scale = float(np.abs(wanted).max(initial=1.0))
            np.testing.assert_allclose(given.numpy(), wanted, atol=tolerance * scale)


def test_integers_and_half_types_are_transformed_in_float32() -> None:
    for x in (np.arange(5), np.arange(5, dtype=np.float16), np.arange(5, dtype=ml_dtypes.bfloat16),
              np.array([True, False, True])):
        given = fft.rfft(gt.asarray(x))
        assert given.dtype == np.complex64
        np.testing.assert_allclose(given.numpy(), np.fft.rfft(x.astype(np.float32)), rtol=1e-5)


def test_strided_input_is_left_alone() -> None:
    big = np.random.standard_normal((6, 8))
    before = big.copy()
    x = gt.asarray(big)[::2, ::-1]
    np.testing.assert_allclose(fft.fftn(x).numpy(), np.fft.fftn(big[::2, ::-1]), atol=1e-12)
    np.testing.assert_array_equal(big, before)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_and_shifts(n: int) -> None:
    for name in ("fftfreq", "rfftfreq"):
        given = getattr(fft, name)(n, d=0.5)
        assert given.dtype == np.float32
        np.testing.assert_allclose(given.numpy(), getattr(np.fft, name)(n, 0.5), rtol=1e-6)
        exact = getattr(fft, name)(n, d=3.0, dtype=gt.float64, device="cpu")
        np.testing.assert_allclose(exact.numpy(), getattr(np.fft, name)(n, 3.0), rtol=1e-14)
    x = np.random.standard_normal((n, 3, 4))
    for axes in (None, 0, (0, 2), [-1], (1,)):
        for name in ("fftshift", "ifftshift"):
            given = getattr(fft, name)(gt.asarray(x), axes=axes)
            np.testing.assert_array_equal(given.numpy(), getattr(np.fft, name)(x, axes))
    back = fft.ifftshift(fft.fftshift(gt.asarray(x)))
    np.testing.assert_array_equal(back.numpy(), x)


# -- gradients -------------------------------------------------------------------------------------


def loss_of(
    library: Any, name: str, options: dict[str, Any], weights: Any, x: Any, y: Any = None
) -> Any:
    """A real loss of the transform of real leaves, with another gradient for every element."""
    z = x if name in REAL else x + 1j * y
    found = getattr(library.fft, name)(z, **options)
    if name in HALF:
        return (found * found * weights).sum()
    return ((found.real * weights).sum() + (found.imag * found.real * weights).sum()
            + (found.abs() * weights * weights).sum())


@pytest.mark.thorough
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_pytorchs(name: str, norm: str) -> None:
    for shape, options in cases(name):
        if 0 in shape:  # which PyTorch refuses
            continue
        x, y = np.random.standard_normal((2, *shape))
        theirs_options = {{"axis": "dim", "axes": "dim"}.get(k, k): v for k, v in options.items()}
        result = getattr(torch.fft, name)(torch.tensor(x), **theirs_options)
        weights = np.random.standard_normal(tuple(result.shape))
        compare(partial(loss_of, gt, name, {**options, "norm": norm}, gt.asarray(weights)),
                partial(loss_of, torch, name, {**theirs_options, "norm": norm},
                        torch.tensor(weights)), [x] if name in REAL else [x, y])


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck_to_second_order(name: str) -> None:
    for shape, options in cases(name)[1:7:2]:
        x, y = (gt.asarray(a).requires_grad_() for a in np.random.standard_normal((2, *shape)))

        def smooth(x: Any, y: Any, name: str = name, options: dict[str, Any] = options) -> Any:
            z = x if name in REAL else x + 1j * y
            found = getattr(fft, name)(z, **options)
            if name in HALF:
                return found * found
            return found.real * found.imag, found.real * found.real

        inputs = [x] if name in REAL else [x, y]
        function: Callable[..., Any] = (lambda x: smooth(x, None)) if name in REAL else smooth
        gradcheck(function, inputs, order=2)


def test_the_second_derivative_of_power_is_the_norm_of_the_transform() -> None:
    """The loss |rfft(x)|^2 is quadratic; its Hessian, column by column, is PyTorch's."""
    for n in (6, 7):
        x = np.random.standard_normal(n)

        def loss(library: Any, x: Any) -> Any:
            return (library.fft.rfft(x).abs() ** 2).sum()

        leaf = gt.tensor(x, requires_grad=True)
        first, = gt.grad(loss(gt, leaf), [leaf], create_graph=True)
        assert first is not None
        columns = [gt.grad(first[i], [leaf], retain_graph=True)[0] for i in range(n)]
        given = np.stack([c.numpy() for c in columns])  # type: ignore[union-attr]
        wanted = torch.autograd.functional.hessian(lambda x: loss(torch, x), torch.tensor(x))
        np.testing.assert_allclose(given, wanted.numpy(), atol=1e-10)


def test_a_real_leaf_gets_a_real_gradient_in_its_own_dtype() -> None:
    x = gt.tensor(np.random.standard_normal(6).astype(np.float32), requires_grad=True)
    loss = fft.fft(x).real.sum() + fft.fftshift(fft.rfft(x)).imag.sum()
    loss.backward()
    assert x.grad is not None and x.grad.dtype == np.float32
    theirs = torch.tensor(x.detach().numpy(), requires_grad=True)
    (torch.fft.fft(theirs).real.sum() + torch.fft.rfft(theirs).imag.sum()).backward()
    assert theirs.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), atol=1e-5)


# -- what is refused -------------------------------------------------------------------------------

WRONG: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    r"fft over \(0,\) points": (ValueError, lambda: fft.fft(gt.ones(3), n=0)),
    r"rfft over \(0,\) points": (ValueError, lambda: fft.rfft(gt.ones((2, 0)))),
    "irfft to 0 points along axis 0": (ValueError, lambda: fft.irfft(gt.ones(1))),
    "norm='none'; wanted 'backward'": (ValueError, lambda: fft.ifft(gt.ones(3), norm="none")),
    "fft along axis 1 of a tensor of 1": (ValueError, lambda: fft.fft(gt.ones(3), axis=1)),
    "wanted different axes": (ValueError, lambda: fft.fftn(gt.ones((2, 3)), axes=(0, 0))),
    "one size for each": (ValueError, lambda: fft.fftn(gt.ones((2, 3)), s=(2,), axes=(0, 1))),
    "ifftn was given axes=0; wanted a seq": (TypeError, lambda: fft.ifftn(gt.ones(3), axes=0)),
    "irfftn was given s=4; wanted a seq": (TypeError, lambda: fft.irfftn(gt.ones(3), s=4)),
    "wanted real values": (TypeError, lambda: fft.rfft(gt.ones(3) * 1j)),
    "fftfreq of 0 bins": (ValueError, lambda: fft.fftfreq(0)),
    "wanted a real floating one": (TypeError, lambda: fft.rfftfreq(3, dtype=gt.int64)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message: str) -> None:
    error, call = WRONG[message]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_frequencies_of_many_bins_are_rounded_once(name: str, dtype: str) -> None:
    given = getattr(fft, name)(200_001, d=0.5, dtype=dtype).numpy()
    wanted = getattr(np.fft, name)(200_001, d=0.5).astype(dtype)
    np.testing.assert_array_equal(given, wanted, strict=True)


@pytest.mark.parametrize("name,options", [
    ("fft", {"dim": 0}), ("ifft", {"n": 3, "dim": 0, "norm": "ortho"}), ("rfft", {"norm": None}),
    ("irfft", {"dim": -2}), ("hfft", {"dim": 0}), ("ihfft", {"dim": 0}), ("fftn", {"dim": (0, 1)}),
    ("ifftn", {"dim": 1}), ("rfftn", {"s": (3,), "dim": 0}), ("irfftn", {"dim": (1, 0)}),
    ("fft2", {"dim": (1, 0), "norm": None}), ("ifft2", {}), ("rfft2", {"s": (2, 3)}),
    ("irfft2", {"dim": (0, 1)}), ("fftshift", {"dim": 0}), ("ifftshift", {"dim": (0, 1)})])
def test_pytorchs_name_of_an_axis_and_numpys_order_of_arguments(name, options):
    x = np.random.default_rng(0).standard_normal((4, 6))
    dim = options.get("dim", (-2, -1) if name[-1] == "2" else -1)
    key = "axis" if name.endswith("fft") else "axes"
    named = {**{k: v for k, v in options.items() if k != "dim"}, key: (
        (dim,) if key == "axes" and isinstance(dim, int) else dim)}
    found = getattr(gt.fft, name)(gt.tensor(x), **options).numpy()
    np.testing.assert_allclose(found, getattr(np.fft, name)(x, **named), atol=1e-12)
    if "shift" not in name:
        by_place = named.get("n", named.get("s")), named[key], named.get("norm")
        np.testing.assert_array_equal(
            getattr(gt.fft, name)(gt.tensor(x), *by_place).numpy(), found)


def test_two_names_of_an_axis_are_refused():
    x = gt.ones((2, 3))
    for call in (lambda: gt.fft.fft(x, axis=0, dim=1), lambda: gt.fft.fft2(x, axes=(1, 0), dim=0),
                 lambda: gt.fft.fftshift(x, 0, dim=1), lambda: gt.fft.ifftshift(x, 0, dim=1),
                 lambda: gt.linalg.norm(x, axis=0, dim=1),
                 lambda: gt.linalg.vector_norm(x, axis=0, dim=1)):
        with pytest.raises(TypeError, match="two words for one thing; wanted one of them"):
            call()
