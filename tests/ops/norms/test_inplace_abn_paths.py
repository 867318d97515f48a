"""The CPU paths of in-place activated batch norm: values, hard numbers, memory, replicas."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gtensor as gt
from gtensor.ops.activations.inverses import INVERSES
from gtensor.ops.norms import inplace_abn as paths
from gtensor.ops.norms import replicas
from gtensor.ops.norms.batch_norm_paths import statistics_cpu
from gtensor.testing.compare import close

from .inplace_abn_problem import (
    CASES,
    DTYPES,
    EPS,
    SATURATING,
    Case,
    Problem,
    bits,
    channels_last,
    reversed_,
    strided,
)

# -- values and gradients --------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_pytorch(case: Case, dtype: Any, training: bool, rng: np.random.Generator) -> None:
    Problem(rng, case, dtype=dtype, training=training).check_all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("tile", [32768, 11, 1])
@pytest.mark.parametrize("layout", [np.copy, strided, channels_last, reversed_])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 5), (3, 4, 3, 2), (4, 1, 3), (1, 2, 7)])
def test_shapes_and_layouts(
    shape: Any, layout: Any, tile: int, training: bool, rng: np.random.Generator
) -> None:
    dtype = DTYPES[(len(shape) + tile) % 4]
    case = CASES[(shape[0] + tile) % len(CASES)]
    with gt.settings.override(tile_elements=tile):
        Problem(rng, case, shape, dtype, training).check_all(layout)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", [CASES[1], CASES[0]], ids=str)
@pytest.mark.parametrize("missing", [("weight",), ("bias",), ("weight", "bias")])
def test_without_weight_or_bias(
    missing: Any, case: Case, training: bool, rng: np.random.Generator
) -> None:
    nothing: dict[str, Any] = dict.fromkeys(missing)
    Problem(rng, case, training=training, **nothing).check_all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (2, 3, 0), (2, 0, 3)])
def test_empty(shape: Any, dtype: Any, rng: np.random.Generator) -> None:
    for case in CASES:
        p = Problem(rng, case, shape, dtype, training=False)
        p.training = True
        z, mean, var = p.forward(p.x)
        dx, sums = p.grad(p.g, z, mean, var)
        assert z.shape == dx.shape == shape and z.dtype == dx.dtype == dtype
        assert not sums.any() and sums.shape == (2, shape[1])
        assert paths.input_cpu(z, p.weight, p.bias, mean, var, **p.options).shape == shape


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_gradients_that_are_broadcast_or_shared_are_only_read(
    case: Case, dtype: Any, training: bool, rng: np.random.Generator
) -> None:
    shape = (4, 3, 2, 5)
    for g in (np.broadcast_to(rng.standard_normal(()), shape),
              np.broadcast_to(rng.standard_normal((4, 3, 1, 1)), shape),
              rng.standard_normal(shape)):
        p = Problem(rng, case, shape, dtype, training, g=g)
        shared = np.broadcast_to(
            p.g[
                tuple(slice(None, n) if s else slice(1) for n,
                      s in zip(shape, g.strides, strict=True))
            ],
            shape,
        )
        before = shared.copy()
        z, mean, var = p.forward(p.x)
        dx, sums = p.grad(shared, z, mean, var)  # broadcast_to: writing would raise
        p.check(z, dx, sums)
        np.testing.assert_array_equal(bits(shared), bits(before))
        assert not np.shares_memory(dx, z)


# -- what inversion makes hard ---------------------------------------------------------------------


def open_range(case: Case) -> tuple[float, float]:
    name, p = case
    return {"elu": (-p, inf), "tanh": (-1, 1), "sigmoid": (0, 1), "softplus": (0, inf)}[name]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SATURATING, ids=str)
def test_bounds_are_the_first_numbers_inside(case: Case, dtype: Any) -> None:
    work = np.float64 if dtype == np.float64 else np.float32
    for bound, wanted, sign in zip(INVERSES[case[0]].inside(dtype, case[1]), open_range(case),
                                   (1, -1), strict=True):
        if abs(wanted) == inf:
            assert bound == wanted
            continue
        assert float(np.asarray(bound, dtype)) == bound, "not a number of the dtype"
        assert sign * bound > sign * wanted
        if wanted:
            outer = float(np.nextafter(np.asarray(bound, dtype), np.asarray(-sign * inf, dtype)))
            assert sign * outer <= max(sign * wanted, sign * float(work(wanted)))
        else:
            smallest = float(ml_dtypes.finfo(dtype).smallest_normal)
            assert smallest <= bound <= smallest * max(1, 1.01 / case[1])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SATURATING, ids=str)
def test_saturated_outputs_stay_inside_and_gradients_finite(
    case: Case, dtype: Any, training: bool, rng: np.random.Generator
) -> None:
    spread = np.where(rng.random((8, 2, 4)) < 0.5, -1.0, 1.0) * rng.uniform(0.5, 1, (8, 2, 4))
    p = Problem(rng, case, (8, 2, 4), dtype, training, x=spread, weight=np.array([200.0, 9000.0]),
                mean=np.zeros(2), var=np.ones(2))
    z, mean, var = p.forward(p.x)
    lowest, highest = open_range(case)
    values = z.astype(np.float64)
    assert (values > lowest).all() and (values < highest).all()
    if lowest > -inf:
        assert values.min() == INVERSES[case[0]].inside(dtype, case[1])[0]
    dx, sums = p.grad(p.g, z, mean, var)
    again = paths.input_cpu(z, p.weight, p.bias, mean, var, **p.options)
    for a in (dx, sums, again):
        assert np.isfinite(a.astype(np.float64)).all()


@pytest.mark.parametrize("name", ["elu", "tanh", "sigmoid", "softplus"])
def test_nan_stays_nan_and_its_neighbours_stay_inside(name: str) -> None:
    x = np.array([np.nan, -1e4, 1e4, 0.0], np.float32).reshape(4, 1)
    z = paths.forward_cpu(
        x,
        None,
        None,
        np.zeros(1, "f4"),
        np.ones(1, "f4"),
        training=False,
        eps=0.0,
        activation=name,
        parameter=1.0,
    )[0]
    lowest, highest = open_range((name, 1.0))
    assert np.isnan(z[0, 0]) and (z[1:] > lowest).all() and (z[1:] < highest).all()


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_constant_channels(case: Case, dtype: Any, rng: np.random.Generator) -> None:
    x = np.broadcast_to(np.array([0.0, 3.0, -100.1])[:, None], (6, 3, 5)).astype(dtype)
    p = Problem(rng, case, dtype=dtype, x=x)
    assert statistics_cpu(p.x)[1].max() < 1e-11 * (1e-8 if dtype == np.float64 else 1)
    p.check_all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_weight_of_zero_is_eps(case: Case, dtype: Any, rng: np.random.Generator) -> None:
    p = Problem(rng, case, dtype=dtype, weight=np.full(3, EPS))
    if dtype == np.float64:
        p.check_all()
    z, mean, var = p.forward(p.x)
    dx, sums = p.grad(p.g, z, mean, var)
    assert all(np.isfinite(a.astype(np.float64)).all() for a in (z, dx, sums))


@pytest.mark.parametrize("ratio", [1e3, 1e4])
def test_huge_means_with_tiny_variances(ratio: float, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((64, 3, 50)) + np.array([1, -1, 0.3])[:, None] * ratio).astype("f4")
    _, mean, var = paths.forward_cpu(x, None, None, None, None, training=True, eps=EPS,
                                     activation="leaky_relu", parameter=0.01)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var((0, 2)), rtol=1e-3)


def test_tanh_with_a_large_weight_is_within_its_conditioned_tolerance(
    rng: np.random.Generator,
) -> None:
    p = Problem(rng, ("tanh", 1.0), (50, 2, 9), np.float32, weight=np.full(2, 3.0))
    assert p.tolerance > 1e-2  # 1 / act'(y) is thousands: the docs call this ill-conditioned
    p.check_all()


# -- memory ----------------------------------------------------------------------------------------

LARGE = (16, 16, 64, 64)  # 4 MiB of float32
LIMIT = 65536 * 4 + 65536  # a tile of 64K elements; per-channel arrays and Python's own objects


def peak(function: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        function()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def in_place(case: Case, dtype: Any) -> Iterator[Callable[[], object]]:
    """Forward and both ways of backward of a large tensor, in place."""
    x = np.random.default_rng(1).standard_normal(LARGE).astype(dtype)
    per_channel = np.ones(LARGE[1], np.float32)
    arrays = (per_channel, per_channel)
    options = {"eps": EPS, "activation": case[0], "parameter": case[1]}
    g = x.copy()
    yield lambda: paths.forward_cpu(x, *arrays, None, None, training=True, out=x, **options)
    for training in (True, False):
        yield lambda training=training: paths.grad_cpu(g, x, *arrays, *arrays, training=training,
                                                       out=g, **options)
    yield lambda: paths.input_cpu(x, *arrays, *arrays, out=x, **options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, DTYPES[1]) for case in CASES]
    + [(case, dtype) for case in (CASES[1], CASES[3], CASES[-1]) for dtype in DTYPES[2:]],
)
def test_no_full_size_temporary(case: Case, dtype: Any) -> None:
    for step, function in enumerate(in_place(case, dtype)):
        assert peak(function) < LIMIT, step


def test_a_full_size_temporary_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    invert = INVERSES["leaky_relu"].invert
    wasteful = INVERSES["leaky_relu"]._replace(
        invert=lambda z, *rest: np.empty(LARGE, z.dtype) is None or invert(z, *rest))
    monkeypatch.setitem(paths.INVERSES, "leaky_relu", wasteful)
    _, *backward = in_place(("leaky_relu", 0.01), np.float32)
    assert all(peak(function) >= LIMIT for function in backward)


# -- replicas --------------------------------------------------------------------------------------


class Sync:
    """Adds what other replicas summed, and hands out the count of all."""

    def __init__(self, others: Any, count: int) -> None:
        self.others, self.count = others, count

    def sums(self, local: Any) -> tuple[Any, int]:
        return local + self.others, self.count


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("cut", [1, 5, 8])
def test_replicas_with_different_counts_are_one_batch(
    case: Case, cut: int, rng: np.random.Generator
) -> None:
    p = Problem(rng, case, (8, 3, 5))
    parts = [(p.x[:cut], p.g[:cut]), (p.x[cut:], p.g[cut:])]  # one may be empty
    local = np.stack([statistics_cpu(x) for x, _ in parts])
    mean, var, count = replicas.reduce_statistics(local[:, 0], local[:, 1],
                                                  np.array([len(x) * 5 for x, _ in parts]))
    assert count == 40
    close("statistics", np.stack([mean, var]), statistics_cpu(p.x), (0.0, 1e-13))
    p.mean, p.var, p.training = mean, var, False
    outputs = [p.forward(x)[0] for x, _ in parts]
    sums = [p.grad(g, z, mean, var)[1] for (_, g), z in zip(parts, outputs, strict=True)]
    p.training = True
    found = [
        p.grad(g, z, mean, var, sync=Sync(sums[1 - i], 40))
        for i, ((_, g), z) in enumerate(zip(parts, outputs, strict=True))
    ]
    for (_, returned), wanted in zip(found, sums, strict=True):
        close("local sums", returned, wanted, 0.0)
    p.check(np.concatenate(outputs), np.concatenate([dx for dx, _ in found]), sums[0] + sums[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_of_replicas_with_a_huge_mean(dtype: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((9, 2, 40)).astype(dtype) + dtype(1e4)
    parts = [x[:2], x[2:2], x[2:]]
    local = np.stack([statistics_cpu(part) for part in parts])
    mean, var, count = replicas.reduce_statistics(local[:, 0], local[:, 1],
                                                  np.array([80, 0, 280], np.int64))
    assert mean.dtype == var.dtype == dtype and count == 360
    np.testing.assert_allclose(mean, x.astype("f8").mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(var, x.astype("f8").var((0, 2)), rtol=1e-3)


def test_statistics_of_no_samples_at_all() -> None:
    nothing = np.zeros((2, 3))
    mean, var, count = replicas.reduce_statistics(nothing, nothing, np.zeros(2, np.int64))
    assert count == 0 and not mean.any() and not var.any()


# -- the comparison itself -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, np.float64) for case in CASES]
    # float32's tolerance for leaky_relu with slope 0.01 is larger than that error
    + [(case, np.float32) for case in CASES if case[0] != "leaky_relu"],
)
@pytest.mark.parametrize("rule", ["gradient", "invert"])
def test_an_error_of_a_twentieth_of_a_percent_is_caught(
    rule: str, case: Case, dtype: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    right = getattr(INVERSES[case[0]], rule)

    def wrong(*arguments: Any) -> Any:
        return right(*arguments) * np.asarray(1.0005, arguments[-1].dtype)

    p = Problem(rng, case, (40, 3, 5), dtype, weight=np.full(3, 0.2), bias=np.full(3, 0.1))
    p.check_all()
    monkeypatch.setitem(paths.INVERSES, case[0], INVERSES[case[0]]._replace(**{rule: wrong}))
    with pytest.raises(AssertionError):
        p.check_all()
