"""ResNet: it learns, its norms work in place, and its state goes to a twin without that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gtensor as gt
from gtensor import optim
from gtensor.models import ResNet, ResNetConfig
from gtensor.nn import functional as F

CONFIG = ResNetConfig(channels=3, classes=4, widths=(8, 16), blocks=2)


@pytest.fixture
def batch() -> tuple[gt.Tensor, gt.Tensor]:
    """Images whose class is their brightest quarter."""
    rng = np.random.default_rng(0)
    x = 0.3 * rng.standard_normal((32, 3, 8, 8)).astype(np.float32)
    labels = rng.integers(0, 4, 32)
    for image, label in zip(x, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[:, 4 * row:4 * row + 4, 4 * column:4 * column + 4] += 1
    return gt.tensor(x), gt.tensor(labels)


def test_it_learns(batch):
    gt.manual_seed(0)
    model = ResNet(CONFIG)
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1 and losses[-1] < 0.1


def test_norms_in_place_copy_nothing_and_save_less(batch):
    """A block keeps three values of the four that it keeps with other norms."""
    saved = {}
    gradients = {}
    gt.manual_seed(0)
    state = ResNet(CONFIG).state_dict()
    for inplace in (True, False):
        model = ResNet(replace(CONFIG, inplace=inplace))
        model.load_state_dict(state)
        copies = gt.memory.copies()
        with gt.settings.override(arena_min_bytes=0):
            before = gt.memory.stats().allocated
            loss = F.cross_entropy(model(batch[0]), batch[1])
            saved[inplace] = gt.memory.stats().allocated - before
        assert gt.memory.copies() == copies
        loss.backward()
        gradients[inplace] = [p.grad.numpy() for p in model.parameters()]
    assert saved[True] < 0.75 * saved[False], saved
    for one, other in zip(*gradients.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_its_state_goes_to_a_file_and_back(batch, tmp_path):
    first, second = ResNet(CONFIG), ResNet(CONFIG)
    first(batch[0])  # moves the running statistics
    gt.checkpoint.save(tmp_path / "c", model=first)
    gt.checkpoint.load(tmp_path / "c", model=second)
    assert first.eval()(batch[0]).tolist() == second.eval()(batch[0]).tolist()


def test_stages_halve_the_image(batch):
    model = ResNet(CONFIG)
    assert model.stages(model.stem(batch[0])).shape == (32, 16, 4, 4)
    assert model(batch[0]).shape == (32, 4)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: ResNetConfig(widths=()), r"widths=\(\)"), (lambda: ResNetConfig(blocks=0), "blocks=0"),
    (lambda: ResNet(CONFIG)(gt.zeros((2, 1, 8, 8))), r"\(2, 1, 8, 8\); wanted \(N, 3, H, W\)"),
])
def test_bad_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
