"""GPT: PyTorch's equations under GPT-2's names, tokens one by one, and text without allocations."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

import gtensor as gt
from gtensor.checkpoint import CheckpointMismatch
from gtensor.models import GPT, GPTConfig, generate
from gtensor.settings import settings

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 11, 9, 8, 2, 2
SMALL = GPTConfig(VOCABULARY, LAYERS, WIDTH, HEADS, length=LENGTH)


def gpt2_weights(prefix: str = "", head: bool = False) -> dict[str, np.ndarray]:
    """Random weights under the names of the published checkpoints, linear ones transposed."""
    rng = np.random.default_rng(0)
    shapes = {"wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (LENGTH, WIDTH),
              "ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
    for i in range(LAYERS):
        for name, columns, rows in (
                ("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH),
                ("mlp.c_fc", WIDTH, 4 * WIDTH), ("mlp.c_proj", 4 * WIDTH, WIDTH)):
            shapes |= {f"h.{i}.{name}.weight": (columns, rows), f"h.{i}.{name}.bias": (rows,)}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{name}.weight": (WIDTH,), f"h.{i}.{name}.bias": (WIDTH,)}
        shapes[f"h.{i}.attn.bias"] = (1, 1, LENGTH, LENGTH)  # the mask, which is no weight
    found = {prefix + name: rng.standard_normal(shape) / 2 for name, shape in shapes.items()}
    if head:
        found["lm_head.weight"] = rng.standard_normal((VOCABULARY, WIDTH))
    return found


def gpt2(weights: dict[str, np.ndarray], tokens: np.ndarray, prefix: str = "") -> np.ndarray:
    """GPT-2's equations in PyTorch."""
    w = {name.removeprefix(prefix): torch.tensor(value) for name, value in weights.items()}
    given = torch.tensor(tokens)
    n, length = given.shape
    x = w["wte.weight"][given] + w["wpe.weight"][:length]
    for i in range(LAYERS):
        part = {name.removeprefix(f"h.{i}."): value for name, value in w.items()}

        def conv1d(x: Any, name: str, part: dict[str, Any] = part) -> Any:
            return x @ part[f"{name}.weight"] + part[f"{name}.bias"]

        def norm(x: Any, name: str, part: dict[str, Any] = part) -> Any:
            return F.layer_norm(x, (WIDTH,), part[f"{name}.weight"], part[f"{name}.bias"], 1e-5)

        q, k, v = conv1d(norm(x, "ln_1"), "attn.c_attn").reshape(
            n, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + conv1d(y.transpose(1, 2).reshape(n, length, WIDTH), "attn.c_proj")
        hidden = F.gelu(conv1d(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh")
        x = x + conv1d(hidden, "mlp.c_proj")
    x = F.layer_norm(x, (WIDTH,), w["ln_f.weight"], w["ln_f.bias"], 1e-5)
    return (x @ w.get("lm_head.weight", w["wte.weight"]).T).numpy()


@pytest.mark.parametrize("prefix,head", [("", False), ("transformer.", True)])
def test_gpt2s_checkpoints_are_loaded(tmp_path: Path, prefix: str, head: bool):
    weights = gpt2_weights(prefix, head)
    save_file(weights, tmp_path / "model.safetensors")
    model = GPT.from_gpt2(tmp_path / "model.safetensors", heads=HEADS).to(gt.float64)
    assert model.config.tied is not head and model.config.length == LENGTH
    model.load_state_dict({name: value.to(gt.float64) for name, value
                           in model.state_dict().items()})
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (3, LENGTH))
    np.testing.assert_allclose(model(gt.tensor(tokens)).numpy(), gpt2(weights, tokens, prefix),
                               rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lost", ["wpe.weight", "h.1.mlp.c_proj.bias"])
def test_a_missing_weight_is_named(tmp_path: Path, lost: str):
    weights = gpt2_weights()
    del weights[lost]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointMismatch, match=f"has no {lost}; wanted a checkpoint of GPT-2"):
        GPT.from_gpt2(tmp_path / "model.safetensors", heads=HEADS)


@pytest.mark.parametrize("change,message", [
    (lambda w: w.pop("h.0.ln_1.weight"), "has no h.0.ln_1.weight"),
    (lambda w: [w.pop(n) for n in [*w] if n.startswith("h.0.mlp.c_p")], "has no h.0.mlp.c_proj"),
    (lambda w: w.update({"wte.weight": w["wpe.weight"][0]}), "wanted matrices"),
    (lambda w: w.update({"wpe.weight": np.ones((LENGTH, WIDTH), np.int32)}), "dtype int32; wanted"),
])
def test_a_damaged_file_is_refused(tmp_path: Path, change: Any, message: str):
    weights = gpt2_weights()
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointMismatch, match=message):
        GPT.from_gpt2(tmp_path / "model.safetensors", heads=HEADS)
    save_file(gpt2_weights(), tmp_path / "whole.safetensors")
    with pytest.raises(CheckpointMismatch, match="wanted the number of heads, too"):
        GPT.from_gpt2(tmp_path / "whole.safetensors")


@pytest.mark.parametrize("change,message", [
    ({"h.1000000000.ln_1.weight": (1,)}, "has no h.2.attn.c_attn.weight"),
    ({"h.1" + "0" * 5000 + ".ln_1.weight": (1,)}, "has no h.2.attn.c_attn.weight"),
    ({"h.x": (1,)}, "has no h.2.attn.c_attn.weight"),
    ({"wte.weight": (0, 10**9)}, r"has wpe.weight of shape \(9, 8\); wanted \(9, 1000000000\)"),
    ({"wpe.weight": (10**12, 0)}, r"has wpe.weight of shape \(1000000000000, 0\); wanted"),
])
def test_no_model_of_other_sizes_than_the_tensors_is_made(
    tmp_path: Path, change: dict[str, tuple[int, ...]], message: str
):
    weights = gpt2_weights() | {name: np.zeros(shape) for name, shape in change.items()}
    save_file(weights, tmp_path / "model.safetensors")
    with patch.object(GPT, "__init__", side_effect=AssertionError), pytest.raises(
            CheckpointMismatch, match=message):
        GPT.from_gpt2(tmp_path / "model.safetensors", heads=HEADS)


def test_an_error_in_a_block_leaves_the_state_as_it_was():
    gt.manual_seed(0)
    model = GPT(SMALL).eval()
    tokens = gt.tensor(np.array([[1, 2, 3, 4]]))
    state, other = model.initial_state(1), model.initial_state(1)
    model.read(tokens, state), model.read(tokens, other)
    hook = model.blocks[1].linear1.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.read(tokens[:, :2], state)
    hook.remove()
    assert [cache.length for cache in state] == [4, 4]
    assert np.array_equal(model.step(tokens[:, 0], state).numpy(),
                          model.step(tokens[:, 0], other).numpy())
    with pytest.raises(ValueError, match=r"a state of 1 caches of \[5\] positions; wanted 2"):
        model.read(tokens, state[:1])
    with pytest.raises(ValueError, match="a cache of 2 heads was given to attention with kv_hea"):
        GPT(GPTConfig(VOCABULARY, LAYERS, WIDTH, HEADS, 1)).read(tokens, model.initial_state(1))


def test_equal_scores_are_drawn_from_as_many_as_asked():
    class Level:
        """A model to which all tokens are as likely."""

        limit = None

        def parameters(self) -> Any:
            return iter([gt.zeros(1)])

        def initial_state(self, batch: int) -> None:
            return None

        def step(self, tokens: gt.Tensor, state: None) -> gt.Tensor:
            return gt.zeros((1, 10))

    assert len({next(generate(Level(), [1], 1, 1.0, 2, seed)) for seed in range(40)}) == 2
    assert all(0 <= next(generate(Level(), [1], 1, 1e-320, None, s)) < 10 for s in range(5))


def test_reading_tokens_in_parts_is_reading_them_at_once():
    gt.manual_seed(0)
    model = GPT(SMALL).eval()
    tokens = gt.tensor(np.random.default_rng(1).integers(0, VOCABULARY, (2, 7)))
    wanted = model(tokens).numpy()
    state = model.initial_state(2)
    np.testing.assert_allclose(model.read(tokens[:, :4], state).numpy(), wanted[:, 3], atol=1e-5)
    for i in range(4, 7):
        np.testing.assert_allclose(model.step(tokens[:, i], state).numpy(), wanted[:, i], atol=1e-5)


def test_a_context_is_learned_by_all_blocks_and_read_by_steps():
    gt.manual_seed(0)
    model = GPT(GPTConfig(VOCABULARY, LAYERS, WIDTH, HEADS, length=LENGTH, context=True))
    tokens = gt.tensor(np.random.default_rng(1).integers(0, VOCABULARY, (2, 5)))
    optimizer = gt.optim.SGD(model.parameters(), lr=10.0)
    for _ in range(3):
        optimizer.zero_grad()
        (model(tokens) * model(tokens)).mean().backward()
        optimizer.step()
    strengths = [p for name, p in model.named_parameters() if name.endswith("strength")]
    assert len(strengths) == 1 and strengths[0].item() != 0
    wanted, state = model.eval()(tokens).numpy(), model.initial_state(2)
    for i in range(5):
        np.testing.assert_allclose(model.step(tokens[:, i], state).numpy(), wanted[:, i], atol=1e-5)
    restored = GPT(model.config).eval()
    restored.load_state_dict(model.state_dict())
    assert np.array_equal(restored(tokens).numpy(), wanted)


def test_a_checkpoint_has_the_context_or_has_none(tmp_path: Path):
    config = GPTConfig(VOCABULARY, LAYERS, WIDTH, HEADS, length=LENGTH, context=True)
    fresh, used = GPT(config), GPT(config)
    used(gt.tensor(np.array([[1, 2, 3]])))
    for name, model in (("fresh", fresh), ("used", used)):
        gt.checkpoint.save(tmp_path / name, model=model)
    other = GPT(config)
    for name, model in (("used", used), ("fresh", fresh)):
        gt.checkpoint.load(tmp_path / name, model=other)
        found, wanted = other.state_dict(), model.state_dict()
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[n].numpy(), wanted[n].numpy()) for n in wanted)


def test_a_greedy_continuation_is_the_likeliest_token_each_time():
    gt.manual_seed(1)
    model = GPT(SMALL).eval()
    made = list(generate(model, [3, 1], 5, temperature=0))
    known = [3, 1]
    for token in made:
        assert token == model(gt.tensor(np.array([known]))).numpy()[0, -1].argmax()
        known.append(token)
    assert len(list(generate(model, [1], 3 * LENGTH, seed=1))) == 3 * LENGTH  # beyond its limit
    assert list(generate(model, [1], 20, seed=1)) == list(generate(model, [1], 20, seed=1))
    likeliest = set(np.argsort(model(gt.tensor(np.array([[3, 1]]))).numpy()[0, -1])[-2:].tolist())
    assert {next(generate(model, [3, 1], 1, 5.0, 2, seed)) for seed in range(20)} == likeliest


@pytest.mark.parametrize("capture", [False, True])
def test_a_token_takes_no_memory_from_the_arena(capture: bool):
    gt.manual_seed(0)
    with settings.override(arena_min_bytes=0):
        model = GPT(GPTConfig(VOCABULARY, LAYERS, WIDTH, HEADS, length=64)).eval()
        counts = []
        for _ in generate(model, [1, 2, 3], 60, capture=capture):
            stats = gt.memory.stats()
            counts.append(stats.hits + stats.misses)
    more = np.diff(counts)
    grown = [i for i, n in enumerate(more, 5) if n]  # tokens in the state at each growth
    assert len(grown) <= 8 + 2 * capture and not any(more[35:])


def test_a_tiny_model_learns_to_copy():
    """The second half of a sequence repeats the first: only attention can use that."""
    gt.manual_seed(0)
    rng = np.random.default_rng(0)
    half, tokens = 4, 8
    model = GPT(GPTConfig(tokens, 2, 32, 4, length=2 * half))
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)

    def batch(n: int) -> gt.Tensor:
        first = rng.integers(0, tokens, (n, half))
        return gt.tensor(np.concatenate([first, first], axis=1))

    def predicted(sequences: gt.Tensor) -> gt.Tensor:
        return model(sequences[:, :-1])[:, half - 1:]

    for _ in range(100):
        sequences = batch(32)
        loss = gt.nn.functional.cross_entropy(
            predicted(sequences).reshape(-1, tokens), sequences[:, half:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    unseen = batch(64)
    right = predicted(unseen).argmax(axis=2) == unseen[:, half:]
    assert right.astype(gt.float32).mean().item() > 0.95


@pytest.mark.parametrize("call,kind,message", [
    (lambda m: m(gt.ones((1, 3))), TypeError, "tokens of float32; wanted a Tensor of integers"),
    (lambda m: m(gt.zeros(3, dtype=gt.int64)), ValueError, r"of shape \(3,\); wanted \(batch, T\)"),
    (lambda m: m(gt.zeros((1, LENGTH + 1), dtype=gt.int64)), ValueError,
     "positions 0 to 10; wanted at most 9"),
    (lambda m: generate(m, [], 3), ValueError, "an empty prompt"),
    (lambda m: generate(m, [1], 3, -1.0), ValueError, "temperature=-1.0 and top_k=None; wanted"),
])
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call(GPT(SMALL))
