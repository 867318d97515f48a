"""Denoiser: EDM's factors and loss by their formulas, the sampler's order, what it repeats."""

from __future__ import annotations

import numpy as np
import pytest

import gtensor as gt
from gtensor import optim
from gtensor.models import Denoiser, DenoiserConfig
from gtensor.models.denoiser import heun, noise_levels, preconditioning

SMALL = DenoiserConfig(size=4, width=8, heads=2, layers=2, classes=3, sigma_data=0.7)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def model(rng) -> Denoiser:
    """In float64, with weights that are nowhere 0."""
    made = Denoiser(SMALL, dtype="float64")
    with gt.no_grad():
        for parameter in made.parameters():
            parameter[...] = gt.asarray(0.3 * rng.standard_normal(parameter.shape))
    return made


def images(rng, count=6) -> tuple[gt.Tensor, gt.Tensor]:
    return (gt.tensor(rng.standard_normal((count, 1, 4, 4))),
            gt.tensor(np.arange(count) % 3))


def test_the_factors_are_edms():
    """Table 1 of the paper; with them input and target of the network have variance 1."""
    data, sigma = 0.7, np.geomspace(1e-3, 80, 9)
    found = preconditioning(gt.tensor(sigma), data)
    c_skip, c_out = data**2 / (sigma**2 + data**2), sigma * data / np.sqrt(sigma**2 + data**2)
    c_in = 1 / np.sqrt(sigma**2 + data**2)
    for mine, wanted in zip(found, (c_skip, c_out, c_in, np.log(sigma) / 4), strict=True):
        np.testing.assert_allclose(mine.numpy(), wanted, rtol=1e-14)
    np.testing.assert_allclose(c_in**2 * (data**2 + sigma**2), 1)
    np.testing.assert_allclose(((1 - c_skip)**2 * data**2 + c_skip**2 * sigma**2) / c_out**2, 1)


def test_the_loss_is_edms(model, rng):
    x, labels = images(rng)
    gt.manual_seed(3)
    found = model.denoising_loss(x, labels).item()
    gt.manual_seed(3)
    log_sigma = gt.random.normal((6,), mean=SMALL.noise_mean, std=SMALL.noise_std, dtype="float64")
    sigma = np.exp(log_sigma.numpy())
    noise = gt.random.normal(x.shape, dtype="float64").numpy() * sigma.reshape(-1, 1, 1, 1)
    denoised = model(gt.tensor(x.numpy() + noise), gt.tensor(sigma), labels).numpy()
    weight = (sigma**2 + 0.7**2) / (sigma * 0.7)**2
    errors = weight.reshape(-1, 1, 1, 1) * (denoised - x.numpy())**2
    np.testing.assert_allclose(found, errors.mean(), rtol=1e-12)


def test_patches_are_squares_of_the_image(model, rng):
    x, _ = images(rng)
    patches = model._patches(x)
    assert patches[1, 2].tolist() == x[1, 0, 2:4, 0:2].flatten().tolist()
    assert model._images(patches).tolist() == x.tolist()


def test_heun_is_of_the_second_order():
    """On normal data, whose denoiser and way are known; down to a level above 0."""
    mean, std = 0.3, 0.7

    def denoise(x, sigma):
        return (std**2 * x + sigma**2 * mean) / (std**2 + sigma**2)

    errors = []
    for steps in (17, 33, 65):
        levels = noise_levels(steps, 0.02, 80.0, 7.0)[:-1]
        *_, x = heun(denoise, gt.tensor([80.0, -40.0, 1.0], dtype="float64"), levels)
        shrunk = np.sqrt((std**2 + 0.02**2) / (std**2 + 80.0**2))
        errors.append(np.abs(x.numpy() - (mean + (np.array([80, -40, 1]) - mean) * shrunk)).max())
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert errors[-1] < 2e-3 and (np.abs(orders - 2) < 0.2).all(), orders


def test_noise_levels():
    levels = noise_levels(18, 0.002, 80.0, 7.0)
    assert len(levels) == 19 and levels[-1] == 0 and levels == sorted(levels, reverse=True)
    np.testing.assert_allclose((levels[0], levels[-2]), (80.0, 0.002))
    np.testing.assert_allclose(np.diff(np.power(levels[:-1], 1 / 7), 2), 0, atol=1e-12)
    assert noise_levels(1, 0.002, 80.0, 7.0) == pytest.approx([80.0, 0.0])


def test_samples_repeat_and_record_nothing(model):
    gt.manual_seed(5)
    first = model.sample(4, 6)
    gt.manual_seed(5)
    *_, before, last = way = [x.tolist() for x in model.sampled(4, 6)]
    assert len(way) == 7 and last == first.tolist() and before != last
    assert first.shape == (4, 1, 4, 4) and not first.requires_grad
    assert model.sample(4, 6).tolist() != first.tolist()
    gt.manual_seed(5)
    turned = model.sample(4, 6, gt.tensor([2, 1, 2, 0]))  # where None means 0, 1, 2, 0
    same = [a == b for a, b in zip(turned.tolist(), first.tolist(), strict=True)]
    assert same[0] is False and same[2] is True


def test_it_learns_to_denoise(rng):
    """Two images, one for each class: the sampler gives back the one of the class."""
    gt.manual_seed(0)
    config = DenoiserConfig(size=4, width=16, heads=2, layers=1, classes=2, sigma_data=1.0)
    model = Denoiser(config)
    two = gt.tensor(np.stack([np.ones((1, 4, 4)), -np.ones((1, 4, 4))]).astype(np.float32))
    labels = gt.arange(32) % 2
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model.denoising_loss(two[labels], labels).backward()
        optimizer.step()
    means = model.sample(8).mean(axis=(1, 2, 3)).numpy()
    np.testing.assert_allclose(means, np.tile([1, -1], 4), atol=0.2)


@pytest.mark.gpu
def test_a_gpu_learns_and_draws_as_the_cpu_does(rng):
    found = []
    x, labels = (each.numpy() for each in images(rng, 3))
    for device in ("cpu", "cuda"):
        with gt.device(device):
            gt.manual_seed(0)
            model = Denoiser(SMALL, dtype="float64")
            optimizer = optim.AdamW(model.parameters(), 1e-2)
            model.denoising_loss(gt.tensor(x), gt.tensor(labels)).backward()
            optimizer.step()
            found.append([*(p.grad.numpy() for p in model.parameters()),
                          model.sample(2, 2).numpy()])
    for here, there in zip(*found, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: DenoiserConfig(size=8, patch=3), "size=8, channels=1, patch=3"),
    (lambda: DenoiserConfig(classes=-1), "classes=-1"),
    (lambda: DenoiserConfig(sigma_min=2.0, sigma_max=1.0), "sigma_min=2.0, sigma_max=1.0"),
    (lambda: Denoiser(SMALL)(gt.zeros((2, 1, 8, 8)), gt.ones(2), gt.arange(2)), r"\(2, 1, 8, 8\)"),
    (lambda: Denoiser(SMALL)(gt.zeros((2, 1, 4, 4)), gt.ones(1), gt.arange(2)), r"sigma of shape"),
    (lambda: Denoiser(SMALL).denoising_loss(gt.zeros((2, 1, 4, 4))), "3 classes was given no lab"),
    (lambda: Denoiser(SMALL).sample(0), "count=0"),
    (lambda: Denoiser(SMALL).sample(2, 0), "steps=0"),
])
def test_bad_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
