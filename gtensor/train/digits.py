"""The digits recipe: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, a small conv net."""

from __future__ import annotations

import numpy as np

from gtensor import nn
from gtensor.train.errors import require
from gtensor.train.trainer import NORMS, Data, Options

TITLE = "handwritten digits, 8 x 8 pixels (scikit-learn)"
DEFAULTS = Options(epochs=12, batch_size=64, lr=4e-3, weight_decay=1e-2)


def data() -> Data:
    """1,437 training and 360 held-out images (N, 1, 8, 8) in [0, 1]: stratified, seed 0."""
    require("sklearn", "scikit-learn")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return Data(*parts)


def model(norm: str = DEFAULTS.norm) -> nn.Module:
    """Two conv blocks of 32 and 64 channels, pooled between and behind, and a linear layer."""
    activated_norm = NORMS[norm]
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), activated_norm(32),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), activated_norm(64),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1, bias=False), activated_norm(64),
        nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 2 * 2, 10),
    )
