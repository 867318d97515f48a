"""Captured training steps of whole networks are those of the uncaptured ones, bit for bit."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

import gtensor as gt
from execution.networks import NETWORKS, batches

FEW, MANY = 7, 50


@pytest.mark.parametrize("steps", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__name__)
def test_training_is_the_same_bit_for_bit(make, steps):
    found = []
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    for captured in (False, True):
        gt.random.manual_seed(3)
        training = make("cpu")
        step = gt.capture(training.step) if captured else training.step
        losses = []
        for batch in islice(batches(make, "cpu", seed), steps):
            losses.append(step(*batch).item())
            training.between()
        if captured:
            assert len(step.programs) == 1, step.report()
        found.append((losses, [p.numpy().tobytes() for p in training.net.state_dict().values()],
                      gt.random.get_state()))
    assert found[0] == found[1], f"seed {seed}"
