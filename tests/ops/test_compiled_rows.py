"""Softmax, layer, RMS, group and batch norm by kernels in C: as NumPy's paths, which others test.

Values and gradients are compared with NumPy's path of float64, on rows of whole vectors, of a few
numbers more, and of less than one; special values and warnings with NumPy's path of the same dtype.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import compiled
from gtensor.engine.tape.op import registry
from gtensor.nn import functional as F
from gtensor.ops.define import rows
from gtensor.settings import settings

pytestmark = pytest.mark.skipif(
    compiled.kernel("rows_softmax_f") is None, reason="kernels in C were not built")

Case = Callable[[Any, np.random.Generator, int], Iterator[Any]]
SIZES = (1, 7, 16, 33, 300)  # of rows and planes


def path(name: str, *arrays: Any, **params: Any) -> Any:
    return registry[name].cpu(*arrays, **params)


def draw(rng: np.random.Generator, *shape: int, far: float = 0.0) -> np.ndarray:
    return rng.standard_normal(shape) + far


def of_softmax(name: str) -> Case:
    def case(typed: Any, rng: np.random.Generator, size: int) -> Iterator[Any]:
        x, g = typed(draw(rng, 5, 3, size) * 8), typed(draw(rng, 5, 3, size))
        y = path(name, x, axis=-1)
        yield y
        yield path(f"{name}_grad", g, typed(y), axis=-1)
    return case


def of_rows(name: str, parameters: int) -> Case:
    def case(typed: Any, rng: np.random.Generator, size: int) -> Iterator[Any]:
        x, g = typed(draw(rng, 11, 2, size, far=2)), typed(draw(rng, 11, 2, size))
        given = [typed(draw(rng, size)) for _ in range(parameters)]
        options = {"dims": 1, "eps": 1e-1}  # of a row of one number, too
        y, *kept = path(name, x, *given, **options)
        yield y
        yield from kept
        bare = path(name, x, *[None] * parameters, **options)[0]
        needs = (True, True, parameters > 1)
        yield from path(f"{name}_grads", g, x, given[0], *kept, needs=needs, **options)
        yield path(f"{name}_dx", g, x, None, *kept, out=bare, beta=1.0, **options)
    return case


def of_groups(typed: Any, rng: np.random.Generator, size: int) -> Iterator[Any]:
    x, g = typed(draw(rng, 3, 6, size, far=2)), typed(draw(rng, 3, 6, size))
    weight, bias = typed(draw(rng, 6)), typed(draw(rng, 6))
    options = {"groups": 3, "eps": 1e-1}
    y, *kept = path("group_norm", x, weight, bias, **options)
    yield y
    yield from kept
    yield path("group_norm_sums", g, x, *kept, **options)
    yield from path("group_norm_grads", g, x, weight, *kept, needs=(True,) * 3, **options)
    yield path("group_norm_grads", g, x, None, *kept, needs=(True, False, False), out=g,
               **options)[0]


def of_batches(activation: str, training: bool) -> Case:
    def case(typed: Any, rng: np.random.Generator, size: int) -> Iterator[Any]:
        x, g = typed(draw(rng, 4, 3, size, far=2)), typed(draw(rng, 4, 3, size))
        weight, bias = typed(draw(rng, 3)), typed(draw(rng, 3))
        given = (None, None) if training else (typed(draw(rng, 3)), typed(abs(draw(rng, 3))))
        options = {"training": training, "eps": 1e-1, "activation": activation, "parameter": 0.3}
        y, *kept = path("batch_norm", x, weight, bias, *given, **options)
        yield y
        yield from kept
        sums = path("batch_norm_sums", g, x, weight, bias, *kept, **options)
        yield sums
        yield path("batch_norm_dx", g, x, weight, bias, *kept, sums, **options)
        if training:
            yield from path("batch_norm_grads", g, x, weight, bias, *kept, **options)
        if activation != "relu":
            yield from path("inplace_abn_grad", g, y, abs(weight), None, *kept, absolute=True,
                            **options)
            yield path("inplace_abn", x, None, bias, *given, out=x, **options)[0]
    return case


def of_running_sums(typed: Any, rng: np.random.Generator, size: int) -> Iterator[Any]:
    x = typed(draw(rng, 2, 7, size))
    for reverse in (False, True):
        yield path("cumulative_sum", x, axis=-1, reverse=reverse)
    yield path("cumulative_sum", x, axis=-1, out=x)


def of_tables(typed: Any, rng: np.random.Generator, size: int) -> Iterator[Any]:
    """Rows of several indices, of none, and of the one that has no gradient."""
    g, indices = typed(draw(rng, 4, 5, size)), rng.integers(0, 12, (4, 5))
    for padding, beta in ((None, 0.0), (3, 0.0), (int(indices[0, 0]), 1.0)):
        table = typed(draw(rng, 12, size))
        yield path("embedding_grad", g, indices, rows=12, padding_idx=padding, out=table,
                   beta=beta)


def of_attention(typed: Any, rng: np.random.Generator, size: int) -> Iterator[Any]:
    """Whole matrices, and blocks of a few rows and columns; a query that sees no key."""
    small = max(40, size * size // 20)
    for tile, causal, dropout, masked in (
            (None, False, 0.0, False), (None, True, 0.0, False), (None, True, 0.4, False),
            (small, True, 0.0, False), (small, True, 0.4, False), (small, False, 0.0, True)):
        keys = size + 2 * (tile is not None)
        q, g = typed(draw(rng, 2, size, 4)), typed(draw(rng, 2, size, 3))
        k, v = typed(draw(rng, 2, keys, 4)), typed(draw(rng, 2, keys, 3))
        mask = rng.random((size, keys)) < 0.7 if masked else None
        if mask is not None:
            mask[size // 2] = False
        options = {"scale": 0.6, "is_causal": causal, "dropout_p": dropout, "seed": 7}
        with settings.override(tile_elements=tile or settings.tile_elements):
            kept = path("attention", q, k, v, mask, **options)
            yield from kept
            yield from path("attention_grad", g, q, k, v, mask, *kept,
                            wanted=(True, True, True, False), **options)


CASES: dict[str, Case] = {
    "attention": of_attention, "cumulative_sum": of_running_sums,
    "embedding": of_tables,
    "softmax": of_softmax("softmax"), "log_softmax": of_softmax("log_softmax"),
    "layer_norm": of_rows("layer_norm", 2), "rms_norm": of_rows("rms_norm", 1),
    "group_norm": of_groups,
    **{f"batch_norm {name} {training}": of_batches(name, training)
       for name in ("identity", "relu", "leaky_relu") for training in (True, False)}}


def found(case: str, dtype: str, size: int, kernels: int) -> list[np.ndarray]:
    """The results of a case, from the same numbers whatever the dtype."""
    with settings.override(compiled=kernels):
        return [np.array(a) for a in CASES[case](
            lambda a: a.astype("f4").astype(dtype), np.random.default_rng(size), size)
            if a is not None]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_have_the_values_of_numpy(case: str, dtype: str) -> None:
    loose = 40 * float(np.finfo(dtype).eps)
    for size in SIZES:
        ours, wanted = found(case, dtype, size, 2), found(case, "f8", size, 0)
        assert len(ours) == len(wanted)
        for a, b in zip(ours, wanted, strict=True):
            assert a.dtype == dtype
            # sums of up to 300 numbers of size 1
            np.testing.assert_allclose(a, b, rtol=loose, atol=loose * np.abs(b).max(initial=1))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_special_values_are_those_of_numpy(dtype: str) -> None:
    special = np.array([np.nan, np.inf, -np.inf, -200, 200, 0, -0.0, 30], dtype)
    x = np.random.default_rng(0).standard_normal((9, 40)).astype(dtype)
    x[:8, 17] = special
    x[8] = -np.inf
    for name in ("softmax", "log_softmax"):
        results = []
        for kernels in (0, 2):
            with settings.override(compiled=kernels), warnings.catch_warnings():
                warnings.simplefilter("error")  # neither warns
                y = path(name, x, axis=-1)
                with np.errstate(all="ignore"):
                    results.append((y, path(f"{name}_grad", y[::-1].copy(), y, axis=-1)))
        for a, b in zip(*results, strict=True):
            np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
            np.testing.assert_allclose(a, b, rtol=200 * np.finfo(dtype).eps,
                                       atol=np.finfo(dtype).eps)


@pytest.mark.parametrize("name", ["layer_norm", "batch_norm"])
def test_flags_warn_as_those_of_numpy(name: str) -> None:
    """A NaN is no news, an overflow is one; over x, where it would be lost, it is not."""
    x = gt.tensor(np.random.default_rng(0).standard_normal((4, 3, 50)), dtype="float32")
    x[1, 1, 7] = np.nan
    apply = {"layer_norm": lambda x: F.layer_norm(x, 50),
             "batch_norm": lambda x: F.batch_norm(x, None, None, training=True)}[name]
    apply(x)
    x[1, 1, 7] = 3e38
    for kernels in (0, 1):
        with settings.override(compiled=kernels), pytest.warns(RuntimeWarning, match="overflow"):
            apply(x)
        with settings.override(compiled=kernels), np.errstate(over="ignore"):
            apply(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.inplace_abn(x * 1)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_equal_numbers_have_no_variance(dtype: str) -> None:
    """And numbers far from 0 lose only what their own rounding took."""
    for size in (3, 16, 777):
        for value in (0.1, -12345.678, 1e10):
            x = np.full((2, 4, size), value, dtype)
            with settings.override(compiled=2):
                assert not path("layer_norm", x, None, None, dims=1, eps=1e-30)[0].any()
                assert not path("group_norm", x, None, None, groups=2, eps=1e-30)[0].any()
                y, mean, var = path(
                    "batch_norm", x, None, None, None, None, training=True, eps=1e-30,
                    activation="identity", parameter=0.0)
            assert not y.any() and not var.any() and (mean == x[0, :, 0]).all()


def test_arrays_that_kernels_do_not_read_are_left_to_numpy() -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)).astype("f4")
    half, back, crossed, swapped = x.astype("f2"), x[::-1], x.T, x.astype(">f4")
    with settings.override(compiled=2):
        for a in (half, back, crossed, swapped):
            np.testing.assert_allclose(
                path("softmax", a, axis=-1), path("softmax", np.array(a, "f8"), axis=-1),
                rtol=2e-3 if a is half else 1e-5)
        np.testing.assert_allclose(
            path("softmax", x, axis=-2), path("softmax", x.T.copy(), axis=-1).T, rtol=1e-5)


def test_kernels_serve_from_where_they_are_quicker() -> None:
    """Each edge from both sides; profiling/ladder_users.py shows what it is worth."""
    f4, many = np.dtype("f4"), 100_000
    with settings.override(compiled=1):
        assert rows.fits(many, rows._COLUMNS, f4) and not rows.fits(many, rows._COLUMNS - 1, f4)
        assert rows.fits(rows._FEW, 1, f4) and not rows.fits(rows._FEW + 1, 1, f4)
        assert not rows.fits(0, 50, f4) and not rows.fits(many, 50, np.dtype("f2"))
    with settings.override(compiled=0):
        assert not rows.fits(many, 50, f4)


def test_no_bit_depends_on_the_number_of_threads() -> None:
    """Of arrays that two threads share: each has a quarter of a megabyte at least."""
    def results(threads: int) -> list[np.ndarray]:
        rng, before = np.random.default_rng(0), gt.get_num_threads()
        x, g = (draw(rng, 8, 37, 1000).astype("f4") for _ in range(2))
        weight = draw(rng, 1000).astype("f4")
        gt.set_num_threads(threads)
        try:
            y, *kept = path("layer_norm", x, weight, None, dims=1, eps=1e-5)
            options = {"training": True, "eps": 1e-5, "activation": "relu", "parameter": 0.0}
            z, *moments = path("batch_norm", x, None, None, None, None, **options)
            return [path("softmax", x, axis=-1), path("cumulative_sum", x, axis=-1), y, z,
                    *path("layer_norm_grads", g, x, weight, *kept, dims=1, eps=1e-5,
                          needs=(True,) * 3),
                    *path("batch_norm_grads", g, x, None, None, *moments, **options)]
        finally:
            gt.set_num_threads(before)

    assert all(map(np.array_equal, results(1), results(2)))
