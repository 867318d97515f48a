"""Gamma, beta and Dirichlet draws, and their implicit gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import gtensor as gt
import gtensor.random
from gtensor.engine.handle.namespaces import raw

from .test_samplers import COUNT, drawn, fits

torch = pytest.importorskip("torch")

CONCENTRATIONS = [1e-3, 0.3, 1.0, 4.0, 700.0, 1e8]


@pytest.mark.parametrize("a", CONCENTRATIONS)
def test_gamma_draws_have_their_distribution(a: float) -> None:
    logarithm = drawn("gamma_draw", a, log=True)
    if a == 1e-3:  # most of the draws are 0 in float64
        few = logarithm < -30
        u = np.where(few, np.exp(a * logarithm - special.gammaln(a + 1)),
                     special.gammainc(a, np.exp(logarithm)))
    else:
        u = special.gammainc(a, np.exp(logarithm))
    fits(u)
    x = drawn("gamma_draw", a, log=False)
    np.testing.assert_allclose(x, np.exp(logarithm), rtol=1e-13, atol=1e-307)


def test_the_slope_is_that_of_the_distribution_function() -> None:
    """d x / d a = -(d F / d a) / (d F / d x), at quantiles from 1e-6 to 1 - 1e-6."""
    a = np.array([0.02, 0.4, 0.99, 1.0, 1.7, 3.9, 4.1, 25.0, 400.0])[:, None]
    q = np.array([1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6])
    x = np.where(q < 0.5, special.gammaincinv(a, q), special.gammainccinv(a, 1 - q))
    a, x = np.broadcast_arrays(a, x)
    a, x = a[x > 1e-300], x[x > 1e-300]
    h = 1e-4 * a
    upper = x > a  # of the smaller side, by differences of fourth order
    tails = [np.where(upper, special.gammaincc(b, x), -special.gammainc(b, x))
             for b in (a - 2 * h, a - h, a + h, a + 2 * h)]
    change = (tails[0] - tails[3] + 8 * (tails[2] - tails[1])) / (12 * h)
    wanted = change / np.exp((a - 1) * np.log(x) - x - special.gammaln(a)) / x
    found = raw["cpu"].gamma_slope(a, np.log(x))
    np.testing.assert_allclose(found, wanted, rtol=1e-8)
    single = raw["cpu"].gamma_slope(a.astype(np.float32), np.log(x).astype(np.float32))
    np.testing.assert_allclose(single, wanted, rtol=1e-5)


@pytest.mark.parametrize("a", CONCENTRATIONS[1:])
def test_gradients_are_pytorchs(a: float) -> None:
    """Whose own are right to a thousandth."""
    given = gt.full((50,), a, dtype=gt.float64, requires_grad=True)
    scale = gt.tensor(2.0, dtype=gt.float64, requires_grad=True)
    x = gt.random.gamma(given, scale, generator=gt.random.key(3))
    x.sum().backward()
    draws = torch.tensor(x.numpy() / 2)
    wanted = 2 * torch._standard_gamma_grad(torch.tensor(given.numpy()), draws)
    np.testing.assert_allclose(given.grad.numpy(), wanted.numpy(), rtol=3e-3)
    np.testing.assert_allclose(scale.grad.item(), draws.sum().item(), rtol=1e-12)
    moved = gt.jvp(lambda c: gt.random.log_gamma(c, generator=gt.random.key(3)), (given.detach(),),
                   (gt.ones(50, dtype=gt.float64),))[1]
    np.testing.assert_allclose(moved.numpy() * x.numpy(), given.grad.numpy(), rtol=1e-10)
    with pytest.raises(gt.GradientError, match="gamma_slope.*has no derivative"):
        gt.grad(gt.grad(lambda c: gt.random.gamma(c).sum()))(given.detach()[0])


def test_means_of_beta_and_dirichlet_draws_have_the_gradients_of_their_means() -> None:
    a, b = (gt.tensor(v, dtype=gt.float64, requires_grad=True) for v in (0.6, 2.5))
    x = gt.random.beta(a, b, 40_000, generator=gt.random.key(0))
    fits(stats.beta(0.6, 2.5).cdf(x.numpy()[:COUNT]))
    x.mean().backward()
    np.testing.assert_allclose([a.grad.item(), b.grad.item()],
                               [2.5 / 3.1**2, -0.6 / 3.1**2], rtol=0.05)
    alpha = gt.tensor([0.5, 1.5, 3.0], dtype=gt.float64, requires_grad=True)
    shares = gt.random.dirichlet(alpha, 40_000, generator=gt.random.key(1))
    np.testing.assert_allclose(shares.sum(axis=-1).numpy(), 1, rtol=1e-12)
    for k, c in enumerate(alpha.tolist()):
        fits(stats.beta(c, 5 - c).cdf(shares.numpy()[:COUNT, k]))
    shares[:, 0].mean().backward()
    np.testing.assert_allclose(alpha.grad.numpy(), [4.5 / 25, -0.5 / 25, -0.5 / 25], atol=4e-3)


def test_concentrations_at_their_edges() -> None:
    r = gt.random
    with r.seeded(0):
        assert r.gamma(gt.tensor([0.0, np.inf])).tolist() == [2.0**-126, np.inf]
        assert r.log_gamma(0.0).item() == -np.inf
        assert r.gamma(1e300, dtype=gt.float64).item() == pytest.approx(1e300)
        tiny = gt.full((500,), 1e-3, requires_grad=True)
        x = r.gamma(tiny)
        assert (x.detach() > 0).all() and r.gamma(2.0, 0.0, 3).tolist() == [0.0] * 3
        for y in (x, r.beta(tiny, tiny), r.dirichlet(tiny)):
            tiny.grad = None
            gt.log(y).sum().backward()
            assert (y.detach() > 0).all() and gt.isfinite(tiny.grad).all()
        shares = r.beta(tiny.detach(), tiny.detach()).numpy()
        assert shares.min() > 0 and shares.max() < 1 and 0.4 < (shares > 0.5).mean() < 0.6
        for shape in ((0, 2), (), (3, 1)):
            for dtype in (gt.float64, gt.float32, gt.float16, gt.bfloat16):
                c = gt.ones(shape, dtype=dtype)
                for draw in (r.gamma, r.log_gamma, lambda c: r.beta(c, 2.0)):
                    assert draw(c).shape == shape and draw(c).dtype == dtype
        assert r.dirichlet(gt.ones((4, 3)), (2, 5)).shape == (2, 5, 4, 3)
        assert r.dirichlet([1, 2], dtype=gt.float64).dtype == gt.float64
    assert np.isnan(drawn("gamma_draw", -1.0, log=False)).all()  # as on a GPU
    assert np.isnan(drawn("gamma_draw", np.nan, log=True)).all()


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda r: r.gamma(-1.0), "gamma was given -1.0 as its a; wanted 0 or more"),
    (lambda r: r.gamma(1.0, gt.tensor([1.0, -2.0])), "gamma was given -2.0 as its scale"),
    (lambda r: r.log_gamma(np.nan), "log_gamma was given nan as its a"),
    (lambda r: r.beta(1.0, 0.0), "beta was given 0.0 as its b; wanted a number above 0"),
    (lambda r: r.dirichlet(3.0), r"dirichlet was given an alpha of shape \(\); wanted \(..., n\)"),
    (lambda r: r.dirichlet(gt.ones(2), device="cpu"), "dirichlet was given a device and a tens"),
    (lambda r: r.dirichlet([1.0, 0.0]), "dirichlet was given 0.0 as its alpha"),
])
def test_mistakes_get_one_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call(gt.random)
