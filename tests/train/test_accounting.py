"""The account of a training step: what a trainer keeps between two steps is all in it."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import settings
from gtensor.train import diffusion, digits, text
from gtensor.train.accounting import account
from gtensor.train.recipe import Recipe


def recipe_of(name: str) -> Recipe[Any]:
    """A recipe with little data."""
    small = {"epochs": 1, "batch_size": 4}
    if name == "text":
        options = text.TextOptions().changed(layers=1, width=16, heads=2, length=16, **small)
        return text.Text(options, b"the cat sat on the mat. " * 40)
    pictures, numbers = np.zeros((8, 1, 8, 8), np.float32), np.arange(8)
    part = digits.Data(pictures, pictures, numbers, numbers)
    if name == "digits":
        return digits.Digits(digits.DigitsOptions().changed(**small), part)
    return diffusion.Diffusion(diffusion.DiffusionOptions().changed(
        layers=1, width=16, heads=2, **small), part)


@pytest.mark.parametrize("name", ["digits", "text", "diffusion"])
def test_workspaces_and_averages_are_in_the_account(name: str) -> None:
    with settings.override(arena_min_bytes=0):
        gc.collect()
        others = gt.memory.stats("cpu").allocated
        trainer = recipe_of(name).trainer()
        for _ in range(2):
            trainer.step(*trainer.first_batch())
        trainer.optimizer.zero_grad()
        gc.collect()
        kept = gt.memory.stats("cpu").allocated - others
        books = account(trainer)
    assert books.totals[0] == kept and not books.most("earlier")
