"""Losses as modules: PyTorch's values, arguments and state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn

RNG = np.random.default_rng(5)
SCORES = RNG.standard_normal((6, 3))
CLASSES = np.array([0, 2, 1, 1, 0, -100])
SHARES = RNG.uniform(0.05, 0.95, (6, 3))
ROWS = RNG.dirichlet(np.ones(3), 6)
WEIGHT = np.array([0.5, 2.0, 1.5])

CASES = [
    ("CrossEntropyLoss", {}, SCORES, CLASSES),
    ("CrossEntropyLoss", {"weight": WEIGHT, "label_smoothing": 0.2, "ignore_index": 1}, SCORES,
     np.abs(CLASSES) % 3),
    ("CrossEntropyLoss", {"weight": WEIGHT}, SCORES, ROWS),
    ("NLLLoss", {"weight": WEIGHT}, SCORES, CLASSES),
    ("BCELoss", {"weight": WEIGHT}, SHARES, ROWS),
    ("BCEWithLogitsLoss", {"weight": WEIGHT, "pos_weight": WEIGHT[::-1].copy()}, SCORES, SHARES),
    ("MSELoss", {}, SCORES, SHARES),
    ("L1Loss", {}, SCORES, SHARES),
    ("HuberLoss", {"delta": 0.4}, SCORES, SHARES),
    ("SmoothL1Loss", {"beta": 0.3}, SCORES, SHARES),
    ("KLDivLoss", {}, SCORES, ROWS),
    ("KLDivLoss", {"log_target": True}, SCORES, np.log(ROWS)),
]


def made(module, tensor, name, options):
    return getattr(module, name)(**{
        key: tensor(value) if isinstance(value, np.ndarray) else value
        for key, value in options.items()})


@pytest.mark.filterwarnings("ignore:reduction. .mean. divides")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
@pytest.mark.parametrize(("name", "options", "inputs", "target"), CASES)
def test_a_loss_is_pytorchs(name, options, inputs, target, reduction):
    if reduction == "batchmean" and name != "KLDivLoss":
        pair = torch.tensor(inputs), torch.tensor(target)
        with pytest.raises(ValueError):
            made(torch.nn, torch.tensor, name, {**options, "reduction": reduction})(*pair)
        with pytest.raises(ValueError, match="reduction='batchmean'; wanted one of"):
            made(nn, gt.tensor, name, {**options, "reduction": reduction})(
                gt.tensor(inputs), gt.tensor(target))
        return
    options = {**options, "reduction": reduction}
    x, z = gt.tensor(inputs, requires_grad=True), torch.tensor(inputs, requires_grad=True)
    mine = made(nn, gt.tensor, name, options)(x, gt.tensor(target))
    theirs = made(torch.nn, torch.tensor, name, options)(z, torch.tensor(target))
    np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-12, atol=1e-14)
    mine.sum().backward()
    theirs.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), z.grad.numpy(), rtol=1e-10, atol=1e-14)


def test_weights_are_state_that_moves_with_the_module():
    criterion = nn.CrossEntropyLoss(gt.tensor(WEIGHT)).to(gt.float32)
    assert list(criterion.state_dict()) == ["weight"] and criterion.weight.dtype == gt.float32
    assert list(nn.MSELoss().state_dict()) == []
    assert repr(nn.HuberLoss()) == "HuberLoss(reduction='mean')"
