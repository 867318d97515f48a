"""Samplers by a key for each element: their distributions, edges of their parameters, mistakes.

Seeds are fixed, so that a share of draws that is unlikely is so in every run or in none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import gtensor as gt
import gtensor.random
from gtensor.engine.handle.namespaces import raw

COUNT = 20_000
RNG = np.random.default_rng(7)
KEYS = RNG.integers(-2**63, 2**63 - 1, COUNT, np.int64)
SPREAD = RNG.random(COUNT)


def drawn(name: str, *parameters: float, **params: Any) -> np.ndarray:
    full = [np.full(COUNT, p, np.float64) for p in parameters]
    found: np.ndarray = getattr(raw["cpu"], name)(*full, KEYS, **params)
    return found


def fits(u: np.ndarray) -> None:
    """Values of a distribution function are uniform; those of any other would not be by far."""
    assert stats.kstest(u, "uniform", method="asymp").pvalue > 1e-3


def fits_counts(x: np.ndarray, law: Any) -> None:
    """The same of counts, each spread over its share."""
    assert (x == np.floor(x)).all()
    fits(law.cdf(x - 1) + SPREAD * law.pmf(x))


@pytest.mark.parametrize("mean", [1e-3, 0.7, 9.9, 10.0, 40.0, 3e5, 1e12])
def test_poisson_counts_have_their_distribution(mean: float) -> None:
    fits_counts(drawn("poisson_draw", mean), stats.poisson(mean))


@pytest.mark.parametrize(("n", "p"), [
    (1, 0.5), (12, 0.3), (40, 0.9), (20, 0.5), (21, 0.5), (300, 0.2), (1000, 0.7), (1e9, 0.4),
    (1e15, 1e-14), (1e12, 0.9999999)])
def test_binomial_counts_have_their_distribution(n: float, p: float) -> None:
    fits_counts(drawn("binomial_draw", n, p), stats.binom(n, p))


@pytest.mark.parametrize(("low", "high"), [
    (-np.inf, np.inf), (-1, 1), (-2, 3), (0, np.inf), (0.4, 2.5), (3, np.inf), (30, np.inf),
    (8, 9), (-np.inf, -5), (-0.1, 0.2), (-10, -9.9), (-5, 0.3)])
def test_truncated_normal_values_have_their_distribution(low: float, high: float) -> None:
    x = drawn("truncated_draw", low, high)
    assert low <= x.min() and x.max() <= high
    fits(stats.truncnorm(low, high).cdf(x))


def test_location_families_have_their_distributions() -> None:
    with gt.random.seeded(3):
        for name, law in (("laplace", stats.laplace), ("gumbel", stats.gumbel_r)):
            x = getattr(gt.random, name)(2.0, 3.0, COUNT, dtype=gt.float64)
            fits(law(2.0, 3.0).cdf(x.numpy()))
        logits = gt.tensor([[0.0, 1.0, -np.inf], [5.0, 4.0, 5.5]])
        found = gt.random.categorical(logits, size=(COUNT, 2)).numpy()
    for row, wanted in zip(found.T, gt.nn.functional.softmax(logits, -1).numpy(), strict=True):
        shares = np.bincount(row, minlength=3) / COUNT
        np.testing.assert_allclose(shares, wanted, atol=0.015)
        assert shares[wanted == 0].sum() == 0


def test_parameters_at_their_edges() -> None:
    r = gt.random
    with r.seeded(0):
        assert r.poisson(gt.tensor([0.0, np.inf, 1e30])).tolist()[:2] == [0.0, np.inf]
        assert r.poisson(1e300, 3, dtype=gt.float64).tolist() == [1e300] * 3
        assert r.binomial(gt.tensor([0, 5, 5]), gt.tensor([0.4, 0.0, 1.0])).tolist() == [0, 0, 5]
        assert r.binomial(1e300, 0.5, dtype=gt.float64).item() == 5e299
        assert r.truncated_normal(2.0, 2.0, 3).tolist() == [2.0] * 3
        far = r.truncated_normal(gt.tensor([1e30, -np.inf]), gt.tensor([np.inf, -1e30]))
        np.testing.assert_allclose(far.numpy(), [1e30, -1e30], rtol=1e-6)
        for draw in (r.poisson, r.laplace, r.gumbel, lambda x: r.binomial(x, 0.5),
                     lambda x: r.truncated_normal(-x, x)):
            for shape in ((0, 2), (), (3, 1)):
                for dtype in (gt.float64, gt.float32, gt.float16):
                    found = draw(gt.ones(shape, dtype=dtype))
                    assert found.shape == shape and found.dtype == dtype
        assert r.poisson(gt.ones((3, 1)), (2, 3, 4)).shape == (2, 3, 4)
        assert r.categorical(gt.zeros((3, 0, 2)), axis=0).shape == (0, 2)
    for name, given in (("poisson_draw", [-1.0]), ("poisson_draw", [np.nan]),  # as on a GPU
                        ("binomial_draw", [-1.0, 0.5]), ("binomial_draw", [3.0, 1.5]),
                        ("binomial_draw", [np.inf, 0.5]), ("truncated_draw", [2.0, 1.0])):
        assert np.isnan(drawn(name, *given)).all()


def test_gradients_flow_to_location_and_scale() -> None:
    for draw in (gt.random.laplace, gt.random.gumbel):
        loc, scale = gt.tensor(1.0, requires_grad=True), gt.ones(3, requires_grad=True)
        with gt.random.seeded(4):
            noise = draw(size=3)
        with gt.random.seeded(4):
            draw(loc, scale).sum().backward()
        assert loc.grad.item() == 3
        np.testing.assert_allclose(scale.grad.numpy(), noise.numpy(), rtol=1e-6)
    assert not gt.random.poisson(gt.ones(3, requires_grad=True)).requires_grad


@pytest.mark.parametrize(("call", "kind", "sentence"), [
    (lambda r: r.laplace((3,)), TypeError, r"laplace was given \(3,\) as its loc; wanted a number"),
    (lambda r: r.gumbel(0.0, -1.0), ValueError, "given -1.0 as its scale; wanted 0 or more"),
    (lambda r: r.poisson(gt.tensor([1, -2])), ValueError, "given -2.0 as its lam"),
    (lambda r: r.poisson(np.nan), ValueError, "given nan as its lam"),
    (lambda r: r.poisson(gt.ones(3), (2,)), ValueError, r"size=\(2,\) for parameters of shapes"),
    (lambda r: r.poisson(gt.ones(3), dtype=gt.int32), TypeError, "dtype=int32; wanted a floating"),
    (lambda r: r.poisson(gt.ones(3), device="cpu"), ValueError, "a device and a tensor"),
    (lambda r: r.binomial(-1, 0.5), ValueError, "given -1.0 as its n; wanted whole numbers, 0 or"),
    (lambda r: r.binomial(2.5, 0.5), ValueError, "given 2.5 as its n; wanted whole numbers, 0 or"),
    (lambda r: r.binomial(3, gt.tensor([0.5, 1.5])), ValueError, "given 1.5 as its p; wanted 0 to"),
    (lambda r: r.binomial(gt.ones(2), gt.ones(3) / 2), ValueError, "of shapes .* broadcast"),
    (lambda r: r.truncated_normal(2.0, 1.0), ValueError, "given -1.0 as its upper - lower"),
    (lambda r: r.categorical(gt.tensor([0.0, np.nan])), ValueError, "nan as its logits"),
    (lambda r: r.categorical(gt.zeros((2, 0))), ValueError, "an axis of one class at least"),
    (lambda r: r.categorical(gt.zeros((2, 3)), size=(2, 4)), ValueError, r"ends with \(2,\)"),
    (lambda r: r.categorical(gt.tensor([1, 2])), TypeError, "dtype=int64; wanted a floating"),
])
def test_mistakes_get_one_sentence(
    call: Callable[[Any], Any], kind: type[Exception], sentence: str
) -> None:
    before = gt.random.get_state()
    with pytest.raises(kind, match=sentence):
        call(gt.random)
    assert gt.random.get_state() == before


@pytest.mark.gpu
def test_replays_on_a_gpu_draw_what_the_step_would() -> None:
    test_replays_of_a_captured_step_draw_what_the_step_would("cuda")


def test_replays_of_a_captured_step_draw_what_the_step_would(device: str = "cpu") -> None:
    """And from a key the same each time."""
    key = gt.random.key(5)

    def step(x: Any) -> Any:
        return (gt.random.poisson(x), gt.random.gumbel(x), gt.random.bernoulli(x / 100),
                gt.random.categorical(x), gt.random.multinomial(x, 2),
                gt.random.poisson(x, generator=key), gt.random.gamma(x), gt.random.beta(x, x))

    x, captured, found, wanted = gt.full((40,), 30.0, device=device), gt.capture(step), [], []
    for call, into in ((captured, found), (step, wanted)):
        gt.manual_seed(1)
        into += [[y.tolist() for y in call(x)] for _ in range(4)]
    assert found == wanted
    assert all(len({str(drawn[k]) for drawn in found}) == (1 if k == 5 else 4) for k in range(8))
