"""Networks written as public ones are give PyTorch's losses and gradients: `public_idioms`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt

TEXT = Path(__file__).with_name("public_idioms.py").read_text()
IMPORTS = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
"""
OURS = """\
import gtensor as torch
import gtensor.nn as nn
import gtensor.nn.functional as F
"""


def networks(text: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "public_idioms"}
    exec(compile(text, "public_idioms.py", "exec", dont_inherit=True), scope)
    return {network.__name__: network for network in scope["NETWORKS"]}


THEIRS = networks(TEXT)
MINE = networks(TEXT.replace(IMPORTS, OURS))


@pytest.mark.parametrize("name", THEIRS)
def test_loss_and_gradients_are_pytorchs(name: str) -> None:
    """In float64, from PyTorch's initial values; the buffers, too."""
    torch.manual_seed(0)
    theirs, mine = THEIRS[name]().double(), MINE[name]().double()
    mine.load_state_dict({
        key: gt.tensor(value.detach().numpy()) for key, value in theirs.state_dict().items()})
    given = THEIRS[name].inputs(np.random.default_rng(0))
    expected, found = theirs.loss(*map(torch.tensor, given)), mine.loss(*map(gt.tensor, given))
    expected.backward()
    found.backward()
    np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-6)
    for (key, p), (other, q) in zip(
            mine.named_parameters(), theirs.named_parameters(), strict=True):
        assert key == other
        scale = float(q.grad.abs().max()) + 1e-9
        np.testing.assert_allclose(p.grad.numpy() / scale, q.grad.numpy() / scale, atol=1e-6)
    for (key, b), (_, c) in zip(mine.named_buffers(), theirs.named_buffers(), strict=True):
        np.testing.assert_allclose(b.numpy(), c.numpy(), rtol=1e-6, atol=1e-9, err_msg=key)
