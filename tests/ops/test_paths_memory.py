"""What the ops allocate: promised buffers by the arena's count, hidden temporaries by tracemalloc.

Arrays are one *unit* large (1 MiB, sixteen tiles). Scratch of an op is counted by the arena, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from usage import PYTHON, TILE, TILE_ELEMENTS, UNIT, measure

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.ops.conv import paths

IMAGES = (4, 16, 64, 64)  # one unit
WORKSPACE = 4 * TILE


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(paths, "WORKSPACE_BYTES", WORKSPACE)
    with gt.settings.override(tile_elements=TILE_ELEMENTS, arena_min_bytes=4096), gt.device("cpu"):
        yield


def leaf(shape: tuple[int, ...], requires_grad: bool = True) -> gt.Tensor:
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return gt.tensor(values, device="cpu", requires_grad=requires_grad)


def ones(count: int) -> gt.Tensor:
    return gt.ones(count, device="cpu", requires_grad=True)


TARGET = gt.zeros(512, "int64", "cpu")
WEIGHT, BIAS = leaf((16, 16, 3, 3)), ones(16)
POINTWISE = leaf((16, 16, 1, 1))
MATRIX = leaf((512, 512))
TABLE = leaf((512, 512))
INDICES = gt.tensor(np.random.default_rng(0).integers(0, 512, 512), device="cpu")

# function, its input's shape, then units: of the output, of gradients and saves at the peak of
# backward; and bytes of scratch.
CASES: dict[str, tuple[Callable[[gt.Tensor], gt.Tensor], Any, float, float, int]] = {
    "relu": (F.relu, (512, 512), 1, 2, TILE),
    "leaky_relu": (F.leaky_relu, (512, 512), 1, 2, TILE),
    "gelu": (F.gelu, (512, 512), 1, 2, 6 * TILE),
    "softmax": (lambda x: F.softmax(x, 1), (512, 512), 1, 2, 2 * TILE),
    "softmax over the first axis": (lambda x: F.softmax(x, 0), (512, 512), 1, 2, 2 * TILE),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (512, 512), 1, 2, 2 * TILE),
    "cross_entropy": (lambda x: F.cross_entropy(x, TARGET), (512, 512), 0, 1, TILE),
    "cross_entropy, smoothed": (lambda x: F.cross_entropy(x, TARGET, label_smoothing=0.1),
                                (512, 512), 0, 1, TILE),
    "mse_loss": (lambda x: F.mse_loss(x, MATRIX.detach()), (512, 512), 0, 1, TILE),
    "linear": (lambda x: F.linear(x, MATRIX), (512, 512), 1, 3, 0),
    "conv2d": (lambda x: F.conv2d(x, WEIGHT, BIAS, padding=1), IMAGES, 1, 2, WORKSPACE),
    "conv2d with stride": (lambda x: F.conv2d(x, WEIGHT, BIAS, stride=2, padding=1), IMAGES, 0.25,
                           1.25, WORKSPACE),
    "conv2d 1x1": (lambda x: F.conv2d(x, POINTWISE), IMAGES, 1, 2, WORKSPACE),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), IMAGES, 0.5, 1.5, 0),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), IMAGES, 0.25, 1.25, 0),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, BIAS, BIAS, training=True), IMAGES, 1, 2,
                   3 * TILE),
    "batch_norm_act": (lambda x: F.batch_norm_act(x, None, None, BIAS, BIAS, training=True), IMAGES,
                       1, 2, 4 * TILE),
    "layer_norm": (lambda x: F.layer_norm(x, 512), (512, 512), 1, 2, 2 * TILE),
    "embedding": (lambda x: F.embedding(INDICES, x), (512, 512), 1, 2, 0),
    "dropout": (lambda x: F.dropout(x, 0.5, seed=1), (512, 512), 1, 2, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_forward(name: str) -> None:
    function, shape, output, _, scratch = CASES[name]
    x = leaf(shape, requires_grad=False)
    with gt.no_grad():
        function(x)  # kernels of other threads, caches
        peak, _, behind = measure(lambda: function(x))
    print(name, peak / UNIT, (peak - output * UNIT) / TILE, behind / TILE)
    assert peak <= output * UNIT + scratch + PYTHON
    assert behind < 8 * TILE + PYTHON


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name: str) -> None:
    function, shape, _, buffers, scratch = CASES[name]
    x = leaf(shape)
    g = gt.ones(function(x).shape, device="cpu")

    def step() -> None:
        x.grad = None
        function(x).backward(g)

    step()
    x.grad = None
    peak, _, behind = measure(step)
    print(name, peak / UNIT, (peak - buffers * UNIT) / TILE, behind / TILE)
    assert peak <= buffers * UNIT + scratch + PYTHON
    assert behind < 8 * TILE + PYTHON
