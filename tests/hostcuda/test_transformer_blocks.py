"""GPT on a CUDA device: launches of a block and of a token, and the text job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.cli import main
from gtensor.hostcuda import counters, reset_counters
from gtensor.models import GPT, GPTConfig, generate
from gtensor.nn.blocks import TransformerBlock

pytestmark = pytest.mark.host_cuda
SMALL = GPTConfig(16, 2, 16, 2, length=32)


def launches(work: Callable[[], object]) -> int:
    """Kernels, library products and copies of the third call.

    Without tables of addresses, which are made anew where the arena gives other blocks.
    """
    for _ in range(3):
        reset_counters()
        work()
    found = counters()
    return found.launches - found.kernels.get("gt_addresses", 0)


@pytest.mark.usefixtures("dry_cuda")
def test_a_block_takes_so_many_launches():
    block = TransformerBlock(64, 4)
    x = gt.ones((2, 8, 64), requires_grad=True)

    def train() -> None:
        block.zero_grad()
        block(x).sum().backward()

    def infer() -> None:
        with gt.no_grad():
            block(x)

    state = block.initial_state(2, 64)

    def step() -> None:
        state.length = 9
        block.step(x[:, 0].detach(), state)

    assert [launches(work) for work in (infer, step, train)] == [9, 12, 30]


LAYERS = {  # launches forward and backward
    "TransformerBlock": (8, 17),
    "TransformerEncoderLayer": (9, 18),
}


@pytest.mark.usefixtures("dry_cuda")
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_of_gpt2_under_autocast_takes_so_many_launches(kind):
    """Casts of parameters are one, norms write halves, and no part of a projection is copied.

    The sums with the stream are part of the products before them.
    """
    layer = (TransformerBlock(64, 2, activation="gelu_tanh", norm="layer", rotary=False, bias=True)
             if kind == "TransformerBlock" else
             nn.TransformerEncoderLayer(64, 2, 256, 0.0, "gelu", batch_first=True, norm_first=True))
    x, mask = gt.ones((2, 128, 64), requires_grad=True), gt.zeros((128, 128), gt.bool)
    given = (x,) if kind == "TransformerBlock" else (x, mask, None, True)
    seed = gt.ones(x.shape)
    found = []
    for _ in range(3):
        layer.zero_grad()
        x.grad = None
        reset_counters()
        with gt.autocast("bfloat16"):
            y = layer(*given)
        forward = counters()
        reset_counters()
        y.backward(seed)
        backward = counters()
        found.append((forward.launches, backward.launches))
    assert found[1] == found[2] == LAYERS[kind]
    assert not backward.memsets and not forward.memsets


@pytest.mark.usefixtures("dry_cuda")
def test_a_token_takes_no_memory_from_the_arena():
    model = GPT(SMALL).eval()
    counts = []
    for _ in generate(model, [1, 2, 3], 28):
        stats = gt.memory.stats("cuda")
        counts.append(stats.hits + stats.misses)
    assert not any(np.diff(counts)[18:])


def test_it_reads_and_continues_as_on_the_cpu():
    gt.manual_seed(0)
    model = GPT(SMALL).eval()
    tokens = gt.tensor(np.random.default_rng(0).integers(0, 16, (2, 9)))
    wanted, made = model(tokens).numpy(), list(generate(model, [3, 1], 12, temperature=0))
    there = model.to("cuda")
    np.testing.assert_allclose(there(tokens.to("cuda")).numpy(), wanted, atol=1e-5)
    assert list(generate(there, [3, 1], 12, temperature=0)) == made


def test_the_text_job_trains_there(tmp_path: Path, capsys):
    (tmp_path / "book.txt").write_bytes(b"the cat sat on the mat. " * 20)
    losses = {}
    for place in ("cpu", "cuda"):
        assert main(["train", "text", "--data", str(tmp_path / "book.txt"), "--epochs", "1",
                     "--layers", "1", "--width", "16", "--heads", "2", "--length", "16",
                     "--batch-size", "8", "--quiet", "--device", place,
                     "--out", str(tmp_path / place)]) == 0
        _, row = (tmp_path / place / "metrics.csv").read_text().splitlines()
        losses[place] = [float(value) for value in row.split(",")]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-4)
    assert main(["sample", str(tmp_path / "cuda" / "checkpoint.safetensors"), "--prompt", "the",
                 "--count", "5", "--device", "cuda"]) == 0
    assert capsys.readouterr().out.startswith("the")
