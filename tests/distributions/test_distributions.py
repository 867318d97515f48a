"""Densities, entropies, moments and divergences are PyTorch's, values and gradients; draws fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import gtensor as gt
import gtensor.distributions as ours

from .cases import CASES, Arguments

torch = pytest.importorskip("torch")
theirs = torch.distributions


def _ours(name: str, given: Arguments) -> tuple[Any, list[Any]]:
    leaves = {k: gt.tensor(v, requires_grad=True) for k, v in given.items()}
    return getattr(ours, name)(**leaves), [*leaves.values()]


def _theirs(name: str, given: Arguments) -> tuple[Any, list[Any]]:
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in given.items()}
    return getattr(theirs, name)(**leaves), [*leaves.values()]


def same(found: Any, wanted: Any, leaves: list[Any], others: list[Any]) -> None:
    """Values and gradients by uneven weights; PyTorch's None is 0."""
    assert found.shape == tuple(wanted.shape)
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), 1e-9, 1e-9)
    if not wanted.requires_grad:
        return
    weights = np.cos(np.arange(math.prod(found.shape))).reshape(found.shape)
    for x in leaves:
        x.grad = None
    (found * gt.tensor(weights)).sum().backward(retain_graph=True)
    grads = torch.autograd.grad((wanted * torch.tensor(weights)).sum(), others,
                                retain_graph=True, allow_unused=True)
    for x, g in zip(leaves, grads, strict=True):
        expected = np.zeros(x.shape) if g is None else g.numpy()
        actual = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
        if _is_triangle(x.detach().numpy()):  # beyond it PyTorch's gradients mean nothing
            actual, expected = np.tril(actual), np.tril(expected)
        np.testing.assert_allclose(actual, expected, 1e-8, 1e-8)


def _is_triangle(x: np.ndarray) -> bool:
    return x.ndim > 1 and x.shape[-1] == x.shape[-2] and not np.triu(x, 1).any()


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_pytorchs(case: str) -> None:
    name, make = CASES[case]
    given = make()
    (p, leaves), (q, others) = _ours(name, given), _theirs(name, given)
    assert p.batch_shape == tuple(q.batch_shape) and p.event_shape == tuple(q.event_shape)
    assert p.has_rsample == q.has_rsample
    value = q.sample((5,)).numpy()
    same(p.log_prob(gt.tensor(value)), q.log_prob(torch.tensor(value)), leaves, others)
    for label in ("mean", "variance", "stddev", "mode"):
        if hasattr(type(p), label) and name != "Categorical":
            same(getattr(p, label), getattr(q, label), leaves, others)
    same(p.entropy(), q.entropy(), leaves, others)
    for label in ("probs", "logits", "covariance_matrix", "precision_matrix", "scale_tril"):
        if hasattr(type(p), label):
            same(getattr(p, label), getattr(q, label), leaves, others)
    if hasattr(type(p), "cdf"):
        same(p.cdf(gt.tensor(value)), q.cdf(torch.tensor(value)), leaves, others)
    other = make()
    (p2, more), (q2, still) = _ours(name, other), _theirs(name, other)
    same(ours.kl_divergence(p, p2), theirs.kl_divergence(q, q2), leaves + more, others + still)


@pytest.mark.parametrize("case", CASES)
def test_samples_have_their_shapes_moments_and_generators(case: str) -> None:
    name, make = CASES[case]
    p, leaves = _ours(name, make())
    key = gt.random.key(2)
    draws = p.sample((4000,), generator=key)
    assert draws.shape == (4000, *p.batch_shape, *p.event_shape) and not draws.requires_grad
    assert p.sample(generator=key).shape == (*p.batch_shape, *p.event_shape)
    assert p.sample((0, 2)).shape[:2] == (0, 2)
    if name == "Categorical":
        shares = gt.nn.functional.one_hot(draws, p.probs.shape[-1]).numpy().mean(axis=0)
        np.testing.assert_allclose(shares, p.probs.detach().numpy(), atol=0.05)
        return
    mean, deviation = p.mean.detach().numpy(), p.stddev.detach().numpy()
    assert (abs(draws.numpy().mean(axis=0) - mean) < 5 * deviation / math.sqrt(4000)).all()
    np.testing.assert_allclose(draws.numpy().std(axis=0), deviation, rtol=0.15, atol=0.02)
    if p.has_rsample:
        moved = p.rsample((4000,), generator=key)
        np.testing.assert_array_equal(moved.detach().numpy(), draws.numpy())
        moved.sum().backward()
        assert all(x.grad is not None for x in leaves)
    else:
        with pytest.raises(NotImplementedError, match=f"values of {name} have no gradient"):
            p.rsample()


TRANSFORMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "log normal": lambda d, base, x: d.TransformedDistribution(base, d.ExpTransform()),
    "logistic": lambda d, base, x: d.TransformedDistribution(
        base, [d.AffineTransform(x, 2.0), d.SigmoidTransform()]),
    "squashed": lambda d, base, x: d.TransformedDistribution(
        base, [d.ComposeTransform([d.AffineTransform(x, 0.3), d.TanhTransform()])]),
    "inverse": lambda d, base, x: d.TransformedDistribution(
        d.Uniform(x * 0, x * 0 + 1.0), [d.SigmoidTransform().inv, d.AffineTransform(x, -2.0)]),
    "of an independent one": lambda d, base, x: d.TransformedDistribution(
        d.Independent(base, 1), [d.TanhTransform(), d.AffineTransform(x, 2.0, event_dim=1)]),
    "of events": lambda d, base, x: d.TransformedDistribution(
        base, d.AffineTransform(x, 2.0, event_dim=1)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformed_distributions_are_pytorchs(name: str) -> None:
    rng = np.random.default_rng(3)
    given = {"loc": rng.standard_normal((2, 3)), "scale": rng.uniform(0.5, 1.5, 3)}
    shift = rng.standard_normal(3)
    (base, leaves), (wanted_base, others) = _ours("Normal", given), _theirs("Normal", given)
    x, y = gt.tensor(shift, requires_grad=True), torch.tensor(shift, requires_grad=True)
    p, q = TRANSFORMS[name](ours, base, x), TRANSFORMS[name](theirs, wanted_base, y)
    assert p.batch_shape == tuple(q.batch_shape) and p.event_shape == tuple(q.event_shape)
    value = q.sample((4,)).numpy()
    same(p.log_prob(gt.tensor(value)), q.log_prob(torch.tensor(value)), [*leaves, x], [*others, y])
    key = gt.random.key(0)
    np.testing.assert_array_equal(p.sample((3,), generator=key).numpy(),
                                  p.rsample((3,), generator=key).detach().numpy())
    for one in p.transforms:
        z = base.sample() if name != "inverse" else gt.full((2, 3), 0.3, dtype=gt.float64)
        np.testing.assert_allclose(one.inv(one(z)).detach().numpy(), z.numpy(), rtol=1e-9)
        there = one.log_abs_det_jacobian(z, one(z)) + one.inv.log_abs_det_jacobian(one(z), z)
        np.testing.assert_allclose(there.detach().numpy(), 0, atol=1e-12)


def test_draws_of_a_transformed_distribution_fit() -> None:
    p = ours.TransformedDistribution(ours.Normal(0.0, 1.0),
                                     [ours.AffineTransform(1.0, 0.5), ours.ExpTransform()])
    x = p.sample((20_000,), generator=gt.random.key(0)).numpy()
    assert stats.kstest(x, stats.lognorm(0.5, scale=math.e).cdf, method="asymp").pvalue > 1e-3


def test_independent_adds_up_and_divergences_follow() -> None:
    loc, scale = np.random.default_rng(0).uniform(0.5, 2, (2, 4, 3))
    for count in (0, 1, 2):
        p, q = (d.Independent(d.Normal(t(loc), t(scale)), count)
                for d, t in ((ours, gt.tensor), (theirs, torch.tensor)))
        r, s = (d.Independent(d.Normal(t(scale), t(loc)), count)
                for d, t in ((ours, gt.tensor), (theirs, torch.tensor)))
        for found, wanted in (
            (p.log_prob(gt.tensor(scale)), q.log_prob(torch.tensor(scale))),
            (p.entropy(), q.entropy()), (p.mean, q.mean), (p.variance, q.variance),
            (ours.kl_divergence(p, r), theirs.kl_divergence(q, s)),
        ):
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-9)
        tanh = ours.TanhTransform()
        moved = [ours.TransformedDistribution(x, tanh) for x in (p, r)]
        np.testing.assert_allclose(ours.kl_divergence(*moved).numpy(),
                                   theirs.kl_divergence(q, s).numpy(), rtol=1e-9)


def test_probabilities_of_0_and_1() -> None:
    sure, likely = ours.Bernoulli(gt.tensor([0.0, 1.0])), ours.Bernoulli(gt.tensor([0.3, 0.6]))
    assert sure.sample((50,)).tolist() == [[0.0, 1.0]] * 50
    wanted, other = theirs.Bernoulli(torch.tensor([0.0, 1.0])), theirs.Bernoulli(
        torch.tensor([0.3, 0.6]))
    for p, q, r, s in ((sure, likely, wanted, other), (likely, sure, other, wanted),
                       (sure, sure, wanted, wanted)):
        np.testing.assert_allclose(ours.kl_divergence(p, q).numpy(),
                                   theirs.kl_divergence(r, s).numpy(), rtol=1e-5, atol=1e-6)
    weights = [0.0, 2.0, 6.0]
    few, one = ours.Categorical(gt.tensor(weights)), theirs.Categorical(torch.tensor(weights))
    assert set(few.sample((200,)).tolist()) == {1, 2} and few.mode.item() == 2
    np.testing.assert_allclose(few.entropy().item(), one.entropy().item(), rtol=1e-6)
    even, plain = ours.Categorical(gt.ones(3)), theirs.Categorical(torch.ones(3))
    assert ours.kl_divergence(even, few).item() == math.inf
    np.testing.assert_allclose(ours.kl_divergence(few, even).item(),
                               theirs.kl_divergence(one, plain).item(), rtol=1e-6)
    masked = ours.Categorical(logits=gt.tensor([0.0, -math.inf]))
    assert masked.entropy().item() == 0 and masked.log_prob(gt.tensor(0)).item() == 0


def test_scales_whose_squares_leave_the_dtype() -> None:
    tiny, one = ours.Normal(0.0, gt.tensor(1e-25)), ours.Normal(0.0, gt.tensor(1.0))
    assert ours.kl_divergence(tiny, one).item() == pytest.approx(25 * math.log(10) - 0.5, rel=1e-6)
    for made in (ours.Normal, ours.Laplace):
        assert made(0.0, gt.tensor(1e25)).stddev.item() == pytest.approx(
            1e25 * (1 if made is ours.Normal else math.sqrt(2)), rel=1e-6)
    assert one.cdf(gt.tensor(-6.0)).item() == pytest.approx(9.8659e-10, rel=1e-4)


def test_tiny_concentrations() -> None:
    """Draws lie within the support as the dtype has it, so that their densities are finite."""
    tiny = gt.full((400,), 1e-3)
    several = gt.full((400, 3), 1e-3)
    for p in (ours.Gamma(tiny, 2.0), ours.Beta(tiny, tiny), ours.Dirichlet(several)):
        x = p.sample(generator=gt.random.key(1))
        assert gt.isfinite(p.log_prob(x)).all() and gt.isfinite(p.entropy()).all()
        assert (x > 0).all() and gt.isfinite(ours.kl_divergence(p, p)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("case", [
    "Gamma", "Categorical of probs", "MultivariateNormal of a factor"])
def test_a_gpu_has_the_draws_and_densities_of_the_cpu(case: str) -> None:
    name, make = CASES[case]
    given, key, found = make(), gt.random.key(4), []
    for place in ("cpu", "cuda"):
        p = getattr(ours, name)(**{k: gt.tensor(v, device=place) for k, v in given.items()})
        x = p.sample((6,), generator=key)
        assert x.device.type == place
        found.append([y.numpy() for y in (x, p.log_prob(x), p.entropy())])
    for on_cpu, on_gpu in zip(*found, strict=True):
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-9)
    unchecked = getattr(ours, name)(**{k: gt.tensor(-v, device="cuda") for k, v in given.items()})
    assert unchecked.batch_shape == p.batch_shape  # nothing was waited for
    if name == "Gamma":
        with pytest.raises(ValueError, match="Gamma was given concentration"):
            ours.Gamma(-gt.ones(3, device="cuda"), 1.0, validate_args=True)


MATRIX = gt.tensor([[2.0, 1.0], [1.0, 2.0]])


@pytest.mark.parametrize(("call", "kind", "sentence"), [
    (lambda: ours.Normal(0.0, -1.0), ValueError, "Normal was given scale -1.0; wanted"),
    (lambda: ours.Normal(np.nan, 1.0), ValueError, "Normal was given loc nan; wanted numbers"),
    (lambda: ours.Normal("a", 1.0), TypeError, "given loc='a'; wanted a tensor"),
    (lambda: ours.Uniform(1.0, 0.0), ValueError, "given high - low -1.0; wanted numbers above 0"),
    (lambda: ours.Uniform(0.0, 1.0).log_prob(2.0), ValueError, "a value 2.0; .* from low to high"),
    (lambda: ours.Bernoulli(1.5), ValueError, "given probs 1.5; wanted numbers from 0 to 1"),
    (lambda: ours.Bernoulli(), ValueError, "given neither of probs and logits; wanted one"),
    (lambda: ours.Bernoulli(0.5, 0.5), ValueError, "given both of probs and logits"),
    (lambda: ours.Bernoulli(0.5).log_prob(0.5), ValueError, "given a value 0.5; wanted 0 or 1"),
    (lambda: ours.Categorical(gt.tensor([-1.0, 2.0])), ValueError, r"probs of shape \(2,\)"),
    (lambda: ours.Categorical(gt.tensor(1.0)), ValueError, r"wanted \(\.\.\., n\) of one class"),
    (lambda: ours.Categorical(gt.ones(3)).log_prob(3), ValueError, "whole numbers from 0 to 2"),
    (lambda: ours.Gamma(1.0, 0.0), ValueError, "Gamma was given rate 0.0; wanted numbers above 0"),
    (lambda: ours.Gamma(1.0, 1.0).log_prob(-1.0), ValueError, "a value -1.0; wanted numbers above"),
    (lambda: ours.Beta(1.0, 1.0).log_prob(1.5), ValueError, "a value 1.5; wanted numbers from 0"),
    (lambda: ours.Dirichlet(2.0), ValueError, r"of shape \(\); wanted \(\.\.\., n\) of one part"),
    (lambda: ours.Dirichlet([1.0, 1.0]).log_prob(gt.tensor([0.5, 0.6])), ValueError, "add up to 1"),
    (lambda: ours.MultivariateNormal(gt.zeros(2)), ValueError, "no matrix; wanted one of"),
    (lambda: ours.MultivariateNormal(gt.zeros(2), MATRIX, MATRIX), ValueError, "wanted one of"),
    (lambda: ours.MultivariateNormal(gt.zeros(3), MATRIX), ValueError, r"\(2, 2\); wanted \(\.\."),
    (lambda: ours.MultivariateNormal(gt.zeros(2), scale_tril=MATRIX), ValueError, "triangular"),
    (lambda: ours.MultivariateNormal(gt.zeros(2), MATRIX).log_prob(gt.zeros(3)), ValueError,
     r"a value of shape \(3,\); wanted \(\.\.\., 2\)"),
    (lambda: ours.Independent(ours.Normal(gt.zeros(3), 1.0), 2), ValueError, "wanted 0 to 1"),
    (lambda: ours.TransformedDistribution(ours.Normal(0.0, 1.0), [3]), TypeError, "transforms="),
    (lambda: ours.TransformedDistribution(ours.Normal(0.0, 1.0), ours.AffineTransform(
        0.0, 1.0, event_dim=1)), ValueError, "events of 1 axes"),
    (lambda: ours.kl_divergence(ours.Normal(0.0, 1.0), ours.Bernoulli(0.5)), NotImplementedError,
     "given Normal and Bernoulli, for which there is no formula"),
    (lambda: ours.register_kl(int, int), TypeError, "given int as its type_p; wanted"),
])
def test_mistakes_get_one_sentence(
    call: Callable[[], Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        call()


def test_checks_are_made_when_they_are_asked_for() -> None:
    assert ours.Normal(0.0, -1.0, validate_args=False).scale.item() == -1
    likely = ours.Bernoulli(0.5, validate_args=False)
    assert likely.log_prob(3.0).shape == ()
    step = gt.capture(lambda x: ours.Normal(x, x).log_prob(x) + ours.Normal(x, x).rsample())
    x, found = gt.ones(3), []
    for _ in range(4):
        found.append(step(x).tolist())
    assert len({str(values) for values in found}) == 4
    each = gt.vmap(lambda x: ours.Normal(x, 2 * x).log_prob(x))(gt.ones(3))
    np.testing.assert_allclose(each.numpy(), -math.log(2 * math.sqrt(2 * math.pi)), rtol=1e-6)


def test_divergences_are_of_the_nearest_classes() -> None:
    class Narrow(ours.Normal):
        pass

    @ours.register_kl(Narrow, ours.Normal)
    def _narrow(p: Any, q: Any) -> Any:
        return gt.tensor(-1.0)

    p, q = Narrow(0.0, 1.0), ours.Normal(0.0, 2.0)
    assert ours.kl_divergence(p, q).item() == ours.kl_divergence(p, p).item() == -1
    assert ours.kl_divergence(q, p).item() > 0
