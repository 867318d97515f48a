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
SIGNS = np.where(RNG.uniform(size=(6, 3)) < 0.5, -1.0, 1.0)
COUNTS = RNG.poisson(2.0, (6, 3)).astype(float)
OTHERS = RNG.standard_normal((2, 6, 3))

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
    ("HingeEmbeddingLoss", {"margin": 0.5}, SCORES, SIGNS),
    ("SoftMarginLoss", {}, 20 * SCORES, SIGNS),
    ("PoissonNLLLoss", {}, SCORES, COUNTS),
    ("PoissonNLLLoss", {"full": True}, SCORES, COUNTS),
    ("PoissonNLLLoss", {"log_input": False, "eps": 0.1}, SHARES, COUNTS),
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


OF_THREE = [
    ("TripletMarginLoss", {}, [SCORES, *OTHERS]),
    ("TripletMarginLoss", {"margin": 0.5, "p": 1.0, "swap": True, "eps": 0.1}, [SCORES, *OTHERS]),
    ("TripletMarginLoss", {}, [SCORES, OTHERS[0], OTHERS[1, :1]]),
    ("MarginRankingLoss", {"margin": 0.3}, [SCORES, OTHERS[0], SIGNS]),
    ("CosineEmbeddingLoss", {"margin": -0.2}, [SCORES, OTHERS[0], SIGNS[:, 0]]),
    ("CosineEmbeddingLoss", {}, [SCORES[0], OTHERS[0, 0], SIGNS[0, 0]]),
    ("GaussianNLLLoss", {"full": True, "eps": 0.5}, [SCORES, OTHERS[0], SHARES]),
    ("GaussianNLLLoss", {}, [SCORES, OTHERS[0], SHARES[:, :1]]),
    ("GaussianNLLLoss", {}, [SCORES, OTHERS[0], SHARES[:, 0]]),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("name", "options", "arrays"), OF_THREE)
def test_a_loss_of_three_is_pytorchs(name, options, arrays, reduction):
    options = {**options, "reduction": reduction}
    ours = [gt.tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    mine, other = getattr(nn, name)(**options)(*ours), getattr(torch.nn, name)(**options)(*theirs)
    np.testing.assert_allclose(mine.numpy(), other.detach().numpy(), rtol=1e-12, atol=1e-14)
    mine.sum().backward()
    other.sum().backward()
    for x, z in zip(ours, theirs, strict=True):
        if z.grad is not None:
            np.testing.assert_allclose(x.grad.numpy(), z.grad.numpy(), rtol=1e-10, atol=1e-14)
    with pytest.raises(ValueError, match="reduction='batchmean'; wanted one of"):
        getattr(nn, name)(reduction="batchmean")(*ours)


def test_targets_of_one_and_minus_one_may_be_integers():
    signs = gt.tensor([1, -1, 1, 1, -1, 1])
    loss = nn.CosineEmbeddingLoss()(gt.tensor(SCORES), gt.tensor(OTHERS[0]), signs)
    assert loss.dtype == gt.float64
    assert nn.HingeEmbeddingLoss()(gt.tensor(SCORES[:, 0]), signs).dtype == gt.float64
    assert nn.GaussianNLLLoss()(gt.tensor(SCORES), gt.tensor(OTHERS[0]), 1.0).item() > 0


@pytest.mark.parametrize("call,sentence", [
    (lambda x: nn.TripletMarginLoss(margin=0)(x, x, x), "margin=0; wanted a number above 0"),
    (lambda x: nn.CosineEmbeddingLoss()(x, x, x), "wanted \\(N, D\\), \\(N, D\\) and \\(N\\)"),
    (lambda x: nn.GaussianNLLLoss()(x, x, x[0]), "given a var of shape \\(3,\\) for an input of"),
    (lambda x: nn.GaussianNLLLoss(eps=0)(x, x, x), "eps=0; wanted a number above 0"),
])
def test_what_a_composed_loss_refuses(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(gt.tensor(SCORES))


@pytest.mark.parametrize("name,options", [
    ("CosineSimilarity", {}), ("CosineSimilarity", {"dim": 0, "eps": 0.1}),
    ("PairwiseDistance", {}), ("PairwiseDistance", {"p": 1.0, "eps": 0.1, "keepdim": True})])
def test_distances_are_pytorchs(name, options):
    mine, other = getattr(nn, name)(**options), getattr(torch.nn, name)(**options)
    for a, b in ((SCORES, OTHERS[0]), (SCORES, OTHERS[0, :1])):
        np.testing.assert_allclose(mine(gt.tensor(a), gt.tensor(b)).numpy(),
                                   other(torch.tensor(a), torch.tensor(b)).numpy(), rtol=1e-12)
