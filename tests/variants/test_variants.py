"""Every public function on the inputs of `checks`; and the checks find what is wrong.

    quick     one sample of each function, a few variants, drawn by the function's name
    thorough  every sample and variant
    slow      other numbers, and each input alone in another layout and dtype
    gpu       every sample and variant, compared with the CPU
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.testing.cases import LAYOUTS
from gtensor.testing.compare import CheckError

from .calls import (
    METHODS_WITHOUT,
    WITHOUT,
    Call,
    calls,
    public_functions,
    public_methods,
    without,
)
from .checks import DTYPES, VARIANTS, check, drawn, leading_inputs, mixed, rows_of, run

NAMES = sorted(calls())
FEW = 4

# (function, variant) -> the fault. One that is mended fails a test until it is taken off.
KNOWN: dict[tuple[str, str], str] = {}
KNOWN_ON_CPU = {("from_dlpack", "bfloat16"): "NumPy exports no bfloat16"}
# Functions of which no input of a sample may have examples along a leading axis.
NO_LEADING_AXES = {
    "Tensor.T", "Tensor.__bool__", "Tensor.__complex__", "Tensor.__float__", "Tensor.__index__",
    "Tensor.__int__", "Tensor.__iter__", "Tensor.item", "Tensor.permute_dims", "Tensor.reshape",
    "Tensor.tolist", "allclose", "argwhere", "bincount", "broadcast_to", "convolve", "corrcoef",
    "correlate", "cov", "diag", "gradient", "histogram", "histogram of weights", "histogramdd",
    "index_add", "linalg.outer", "masked_scatter", "meshgrid", "nanquantile", "nonzero",
    "percentile", "permute_dims", "put_along_axis", "quantile", "renorm", "repeat of counts",
    "reshape", "scatter", "scatter_add", "scatter_reduce", "segment_max", "segment_min",
    "segment_sum", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "vstack",
    *(f"ndimage.{name}" for name in (
        "affine_transform", "gaussian_filter", "map_coordinates", "spline_filter", "zoom")),
    *(f"nn.functional.{name}" for name in (
        "abn", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool1d",
        "avg_pool2d", "batch_norm", "batch_norm_act", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "channel_shuffle", "conv1d", "conv2d",
        "conv_transpose1d", "conv_transpose2d", "cosine_embedding_loss", "cross_entropy",
        "cross_entropy of probabilities", "dropout1d", "dropout2d", "dropout3d", "fold",
        "gaussian_nll_loss", "group_norm", "group_norm with weights", "gumbel_softmax",
        "hinge_embedding_loss", "inplace_abn", "instance_norm", "interpolate", "kl_div",
        "margin_ranking_loss", "max_pool1d", "max_pool2d", "nll_loss", "soft_margin_loss")),
}

# Of these, the functions with rows along the first axis that do not depend on each other.
ROWS = {
    "linalg.outer", "meshgrid", "put_along_axis", "scatter", "scatter_add",
    *(f"nn.functional.{name}" for name in (
        "abn", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool1d",
        "avg_pool2d", "batch_norm", "channel_shuffle", "conv1d", "conv2d", "conv_transpose1d",
        "conv_transpose2d", "cosine_embedding_loss", "cross_entropy", "fold", "group_norm",
        "group_norm with weights", "instance_norm", "interpolate", "max_pool1d", "max_pool2d",
        "nll_loss")),
}


def seed_of(name: str) -> int:
    return zlib.crc32(name.encode())


def known(name: str, variant: str | None, device: str = "cpu") -> bool:
    return (name, variant) in KNOWN or (device == "cpu" and (name, variant) in KNOWN_ON_CPU)


def every_variant(name: str, given: list[Call], device: str = "cpu") -> None:
    """Raise for the first case that fails, or for a known fault that none shows."""
    for variant in VARIANTS:
        if not known(name, variant, device):
            for call in given:
                check(call, variant, seed_of(name), device)
        else:
            with pytest.raises(CheckError):
                for call in given:
                    check(call, variant, seed_of(name), device)


@pytest.mark.parametrize("name", NAMES)
def test_a_few_variants(name: str) -> None:
    rng = np.random.default_rng(seed_of(name))
    given = calls()[name]
    call = given[rng.integers(len(given))]
    for variant in rng.permutation(list(VARIANTS))[:FEW]:
        if not known(name, str(variant)):
            check(call, str(variant), seed_of(name))


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_every_variant(name: str) -> None:
    every_variant(name, calls()[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_other_numbers_and_every_mixture(name: str) -> None:
    for call in calls()[name]:
        for seed in range(3):
            for variant in VARIANTS:
                if not known(name, variant):
                    check(call, variant, seed)
        for layout in LAYOUTS:
            for dtype in (None, *DTYPES):
                if not known(name, dtype):
                    mixed(call, layout, dtype, seed_of(name))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_on_a_gpu(name: str) -> None:
    every_variant(name, calls()[name], "cuda")


# -- what is called --------------------------------------------------------------------------------


def test_every_public_function_is_called_or_says_why_not() -> None:
    called = {name for name, given in calls().items() if given}
    functions, methods = set(public_functions()), public_methods()
    missing = functions - called - without(WITHOUT)
    assert not missing, f"these have no call in variants/calls.py: {sorted(missing)}"
    own = {name.removeprefix("Tensor.") for name in called if name.startswith("Tensor.")}
    left = methods - own - without(METHODS_WITHOUT)
    assert not left, f"these methods have no call in variants/calls.py: {sorted(left)}"
    assert not without(WITHOUT) & called, "a function that is called has a reason why not"
    assert without(WITHOUT) <= functions, "a reason for a name that is not public"


def test_a_new_function_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gt.fft, "__all__", [*gt.fft.__all__, "dct"])
    monkeypatch.setattr(gt.fft, "dct", lambda x: x, raising=False)
    with pytest.raises(AssertionError, match=r"no call in .*: \['fft.dct'\]"):
        test_every_public_function_is_called_or_says_why_not()


def test_every_plain_call_gives_values() -> None:
    for given in calls().values():
        for call in given:
            found = run(call, drawn(call, 0), 0)
            assert found.error is None and found.values, f"{call}: {found.error!r}"


@pytest.mark.thorough
def test_which_functions_have_leading_axes() -> None:
    found = {name for name, given in calls().items()
             if not any(leading_inputs(call, seed_of(name)) for call in given)}
    assert found == NO_LEADING_AXES
    assert {name for name in found
            if any(rows_of(call, seed_of(name)) for call in calls()[name])} == ROWS


# -- the checks find what is wrong -----------------------------------------------------------------


def _contiguous(x: gt.Tensor) -> bool:
    return bool(x.array.flags.c_contiguous)


def _in_memory_order(x: gt.Tensor) -> gt.Tensor:
    y = gt.exp(x)
    return y if _contiguous(x) else gt.reshape(y.mT, y.shape)


def _gradient_in_memory_order(x: gt.Tensor) -> gt.Tensor:
    return gt.exp(x) if _contiguous(x) else gt.exp(x) + 1e-6 * (x - x.detach())


def _drops_an_axis(x: gt.Tensor) -> gt.Tensor:
    return gt.exp(x)[0] if x.ndim == 3 and x.shape[0] == 1 else gt.exp(x)


def _refuses(kind: type[Exception], words: str) -> Callable[..., Any]:
    def function(x: gt.Tensor) -> gt.Tensor:
        if x.size == 0:
            raise kind(words)
        return gt.exp(x)

    return function


def _writes(x: gt.Tensor) -> gt.Tensor:
    y = gt.exp(x)
    x.array[...] = 0
    return y


FAULTS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "strides": (_in_memory_order, "transposed", "result 0, element .* differ"),
    "strides of a gradient": (_gradient_in_memory_order, "negative strides", "gradient of input 0"),
    "an input is written": (_writes, "offset", "input 0 was written"),
    "a value where no gradient is due": (
        lambda x: gt.exp(x) + (0 if gt.is_grad_enabled() else 1), "strided", "without a gradient"),
    "stride 0": (lambda x: gt.exp(x) if 0 not in x.array.strides else gt.exp(x) + 1, "stride 0",
                 "result 0, element"),
    "a leading axis of 1": (_drops_an_axis, "leading axes", r"leading axes \(1,\)"),
    "a wide result": (lambda x: gt.astype(gt.exp(x), gt.float64), "float16", "results of dtype"),
    "a coarse result": (lambda x: gt.exp(x) * (1.2 if x.dtype == gt.bfloat16 else 1), "bfloat16",
                        "result 0, element"),
    "an error in half": (lambda x: gt.exp(x) if x.dtype.itemsize > 2 else gt.linalg.inv(x),
                         "float16", "raised LinAlgError"),
    "the dtype of no elements": (
        lambda x: gt.exp(x) if x.size else gt.zeros(x.shape, dtype=gt.float64), "empty",
        "in float16 has results of dtype"),
    "the shape of no elements": (
        lambda x: gt.exp(x) if x.size else gt.zeros((0,), dtype=x.dtype), "empty",
        "has a result of shape"),
    "a division by no elements": (_refuses(ZeroDivisionError, "wanted"), "empty",
                                  "raised ZeroDivisionError"),
    "an error of linear algebra": (_refuses(np.linalg.LinAlgError, "wanted"), "empty",
                                   "raised LinAlgError"),
    "NumPy's words": (_refuses(ValueError, "zero-size array to reduction operation"), "empty",
                      "says what is wanted"),
    "an axis for 0-d": (lambda x: gt.reshape(gt.exp(x), (1,)) if not x.ndim else gt.exp(x), "0-d",
                        r"wanted \[0\] axes"),
    "the value of 0-d": (lambda x: gt.exp(x) if x.ndim else gt.exp(x) * 2, "0-d", "result 0"),
    "NumPy's words for shapes": (lambda x, *y: gt.asarray(x.numpy() + y[0].numpy()), "other sizes",
                                 "says what is wanted"),
    "no elements": (lambda x: gt.sum(x, axis=-1) + (1 if not x.size else 0), "empty",
                    "element .* differ"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    function, variant, message = FAULTS[fault]
    name, ndim = ("add", 1) if variant == "other sizes" else ("exp", 2)
    call = next(c for c in calls()[name] if len(c.sample.shapes[0] or ()) == ndim)
    call = replace(call, function=function)
    with pytest.raises(CheckError, match=message):
        check(call, variant, 1)


def test_a_fault_of_one_row_is_found() -> None:
    call = calls()["nn.functional.avg_pool1d"][0]

    def wrong(x: gt.Tensor, **params: Any) -> gt.Tensor:
        return call.function(x, **params) * (1.01 if len(x) == 1 else 1)

    with pytest.raises(CheckError, match="with 1 rows: result 0"):
        check(replace(call, function=wrong), "leading axes", 1)


def test_a_gradient_over_broadcast_axes_that_is_not_summed_is_found() -> None:
    def wrong(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        extra = 1e-3 * (x - x.detach()) if x.ndim > 2 and x.shape[0] < y.shape[0] else 0
        return x + y + extra

    call = calls()["nn.functional.l1_loss"][0]
    with pytest.raises(CheckError, match="gradient of input 0"):
        check(replace(call, function=lambda x, y, **params: wrong(x, y)), "leading axes", 1)


def test_a_mended_fault_must_leave_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, ("exp", "empty"), "a fault that is no longer there")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        every_variant("exp", calls()["exp"])
