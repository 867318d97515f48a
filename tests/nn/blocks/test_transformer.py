"""TransformerBlock: PyTorch's equations and state dict, step by step as at once, derivatives."""

from __future__ import annotations

import operator
import threading
from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn
from gtensor.nn.blocks import KVCache, RotaryPositions, TransformerBlock
from gtensor.testing import gradcheck

WIDTH, HEADS = 12, 2
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 1},
    "gpt2": {"activation": "gelu_tanh", "norm": "layer", "rotary": False, "bias": True},
    "relu": {"activation": "relu", "hidden": 20},
}


def random(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def made(kind: str, dtype: Any = np.float64) -> TransformerBlock:
    gt.manual_seed(3)
    return TransformerBlock(WIDTH, HEADS, **KINDS[kind], dtype=dtype)


def test_it_loads_pytorchs_layer_and_is_equal():
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, 20, dropout=0.0, activation="gelu", batch_first=True, norm_first=True,
    ).double()
    mine = TransformerBlock(WIDTH, HEADS, hidden=20, activation="gelu", norm="layer", rotary=False,
                            bias=True, dtype=np.float64)
    mine.load_state_dict(theirs.state_dict())
    x = random(3, 5, WIDTH)
    a, b = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    y, z = mine(a), theirs(b, src_mask=mask, is_causal=True)
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-9, atol=1e-10)
    (y * y).sum().backward()
    (z * z).sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-8, atol=1e-9)
    wanted = dict(theirs.named_parameters())
    for name, parameter in mine.named_parameters():
        np.testing.assert_allclose(parameter.grad.numpy(), wanted[name].grad.numpy(), rtol=1e-7,
                                   atol=1e-9)


@pytest.mark.parametrize("dtype,tolerance", [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_parts_are_the_whole_sequence(kind, dtype, tolerance):
    block = made(kind, dtype)
    x = gt.tensor(random(2, 7, WIDTH, dtype=dtype))
    wanted = block(x).numpy()
    state = block.initial_state(2, 7)
    steps = [block.step(x[:, i], state).numpy() for i in range(7)]
    np.testing.assert_allclose(np.stack(steps, 1), wanted, atol=tolerance)
    state = block.initial_state(2, 9)
    parts = [block(x[:, part], state).numpy() for part in (slice(3), slice(3, 4), slice(4, 7))]
    np.testing.assert_allclose(np.concatenate(parts, 1), wanted, atol=tolerance)
    assert state.length == 7


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_numeric_ones_and_those_of_a_checkpoint(kind):
    block = made(kind)
    x = gt.tensor(random(1, 3, WIDTH), requires_grad=True)
    gradcheck(lambda x, *_: block(x), [x, *block.parameters()])
    found = []
    for run in (block, lambda x: nn.utils.checkpoint(block, x)):
        x.grad = None
        block.zero_grad()
        y = run(x)
        (y * y).sum().backward()
        found.append([x.grad.numpy(), *(p.grad.numpy() for p in block.parameters())])
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(("parts", "seen_there", "tolerance"), [
    (("norm1", "norm2", "linear1"), [gt.float32, gt.float32, gt.bfloat16], 1e-5),
    (("self_attn.out_proj", "linear2"), [gt.bfloat16] * 2, 4e-2)])  # rounded, then added
@pytest.mark.parametrize("kind", KINDS)
def test_parts_with_hooks_are_what_the_block_does_at_once(kind, parts, seen_there, tolerance):
    """Under autocast, too, where a norm that only products read writes their dtype.

    What is added to the stream is then part of the product before it, in the stream's dtype.
    """
    block = made(kind, np.float32)
    values = gt.tensor(random(2, 5, WIDTH, dtype=np.float32))
    found = []
    for hooked in (False, True):
        seen: list[np.dtype] = []
        if hooked:
            for part in parts:
                operator.attrgetter(part)(block).register_forward_hook(
                    lambda module, args, y, seen=seen: seen.append(y.dtype))
        block.zero_grad()
        x = values.clone().requires_grad_()
        with gt.autocast("bfloat16"):
            y = block(x)
        (y * y).sum().backward()
        found.append([y.numpy(), x.grad.numpy(), *(p.grad.numpy() for p in block.parameters())])
        assert seen == seen_there[:len(parts) * hooked]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance,
                                   atol=tolerance / 10 * np.abs(other).max())


def test_groups_of_heads_share_keys_and_values():
    """With one head of keys repeated for each head of queries the result is the same."""
    grouped, plain = made("llama"), TransformerBlock(WIDTH, HEADS, dtype=np.float64)
    state = dict(grouped.state_dict())
    q, k, v = np.split(state["self_attn.in_proj_weight"].numpy(), [12, 18])
    state["self_attn.in_proj_weight"] = np.concatenate([q, k, k, v, v])
    plain.load_state_dict(state)
    x = gt.tensor(random(2, 4, WIDTH))
    np.testing.assert_allclose(grouped(x).numpy(), plain(x).numpy(), rtol=1e-12)


def test_rotary_positions_count_only_by_their_distance():
    positions = RotaryPositions(6, positions=2, dtype=np.float64)
    q, k = (gt.tensor(random(1, 6)[None].repeat(9, 1)) for _ in range(2))  # (1, 9, 6)

    def turned(x: gt.Tensor) -> np.ndarray:
        return nn.functional.rotary_embedding(
            x.reshape((1, 9, 1, 6)), *positions.tables(0, 9, x)).numpy()[0, :, 0]

    scores = turned(q) @ turned(k).T
    assert positions.table.shape[1] == 16  # grown to a power of two
    for distance in range(-8, 9):
        along = np.diagonal(scores, distance)
        np.testing.assert_allclose(along, along[0], rtol=1e-12)
    assert np.ptp(scores[0]) > 0.1


def test_rotary_in_place_takes_the_memory_of_a_value_that_nobody_reads():
    tables = RotaryPositions(4, dtype=np.float64).tables(0, 3, gt.zeros((), dtype=np.float64))
    base = gt.tensor(random(1, 3, 2, 4), requires_grad=True)
    wanted = nn.functional.rotary_embedding(base, *tables, heads=1).numpy()
    fresh = base * 1.0
    at = fresh.numpy().ctypes.data
    kept = base * 1.0
    view = kept.reshape((6, 4))
    assert nn.functional.rotary_embedding(
        base * 1.0, *tables, heads=1, inplace=True).numpy().tolist() == wanted.tolist()
    y = nn.functional.rotary_embedding(kept, *tables, heads=1, inplace=True)
    assert y.numpy().tolist() == wanted.tolist() and not np.shares_memory(y.numpy(), view.numpy())
    assert at  # an exported array is copied, too
    y.sum().backward()
    back = nn.functional.rotary_embedding(gt.ones_like(base), tables[0], -tables[1], heads=1)
    np.testing.assert_allclose(base.grad.numpy(), back.numpy(), rtol=1e-12)


@pytest.mark.parametrize("call,message", [
    (lambda: TransformerBlock(10, 3), "width=10, heads=3 and kv_heads=3 given; wanted"),
    (lambda: TransformerBlock(12, 4, 3), "heads=4 and kv_heads=3 given; wanted"),
    (lambda: TransformerBlock(6, 2), "features=3 given for rotary positions; wanted an even"),
    (lambda: TransformerBlock(8, 2, activation="mish"), "activation='mish' and norm='rms' given"),
    (lambda: TransformerBlock(8, 2)(gt.ones((1, 3, 4))), r"x of shape \(1, 3, 4\); wanted \(batch"),
    (lambda: nn.functional.rotary_embedding(gt.ones((3, 2, 4)), gt.ones((2, 2)), gt.ones((2, 2))),
     r"wanted tables of shape \(3, 2\) and float32"),
    (lambda: nn.functional.rotary_embedding(
        gt.ones((3, 2, 4)), gt.ones((3, 2)), gt.ones((3, 2)), heads=3), "heads=3 for 2 heads"),
    (lambda: nn.functional.swiglu(gt.ones(3)), "swiglu was given 3 elements along axis -1"),
])
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_full_cache_is_named_and_left_as_it_was():
    block = made("llama")
    state = block.initial_state(1, 3)
    block(gt.tensor(random(1, 2, WIDTH)), state)
    before = state.keys.numpy().copy()
    with pytest.raises(ValueError, match="cache of 3 positions was given positions 2 to 4"):
        block(gt.tensor(random(1, 2, WIDTH)), state)
    assert state.length == 2 and np.array_equal(state.keys.numpy()[:, :, :2], before[:, :, :2])
    assert isinstance(state, KVCache) and state.capacity == 3


def test_it_runs_within_transforms_and_on_an_empty_batch():
    block = made("llama")
    x = gt.tensor(random(3, 2, 4, WIDTH))
    np.testing.assert_allclose(gt.vmap(block)(x).numpy(), np.stack([block(e).numpy() for e in x]),
                               rtol=1e-12)
    assert block(gt.zeros((0, 4, WIDTH), dtype=np.float64)).shape == (0, 4, WIDTH)


def test_tables_of_threads_that_grow_them_belong_together():
    positions = RotaryPositions(4, positions=1)
    like, wrong = gt.zeros(()), []

    def ask(seed: int) -> None:
        for length in np.random.default_rng(seed).integers(1, 300, 60).tolist():
            tables = positions.tables(0, length, like)
            if not all(table.shape == (length, 2) for table in tables):
                wrong.append([table.shape for table in tables])

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
