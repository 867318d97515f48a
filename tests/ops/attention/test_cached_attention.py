"""Attention with a cache: few queries to many keys in two launches, the values of whole attention.

The device is a GPU, or a host device (docs/testing.md). tests/kernels has the kernels alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.ops.attention import cached

DTYPES = ("float16", "bfloat16", "float32", "float64")
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-12}


def attended(
    packed: np.ndarray, keys: np.ndarray, values: np.ndarray, start: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The result in float64, and what the caches hold then."""
    batch, length, _, features = packed.shape
    kv_heads = keys.shape[1]
    heads = packed.shape[2] - 2 * kv_heads
    for cache, first in ((keys, heads), (values, heads + kv_heads)):
        cache[:, :, start:start + length] = packed[:, :, first:first + kv_heads].swapaxes(1, 2)
    stop = start + length
    k, v = (np.repeat(cache[:, :, :stop], heads // kv_heads, axis=1) for cache in (keys, values))
    scores = packed[:, :, :heads].swapaxes(1, 2) @ k.swapaxes(-1, -2) / features**0.5
    scores[..., np.arange(stop) > np.arange(start, stop)[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = weights / weights.sum(-1, keepdims=True) @ v
    return mixed.swapaxes(1, 2).reshape(batch, length, heads * features), keys, values


def given(
    rng: np.random.Generator, dtype: str, batch: int, kv_heads: int, group: int, length: int,
    start: int, features: int, device: str = "cuda",
) -> tuple[list[gt.Tensor], list[np.ndarray]]:
    """Queries, keys and values of new positions, and caches; their values in float64."""
    shapes = ((batch, length, (group + 2) * kv_heads, features),
              *[(batch, kv_heads, start + length + 5, features)] * 2)
    made = [gt.tensor(rng.standard_normal(shape), dtype=getattr(gt, dtype), device=device)
            for shape in shapes]
    return made, [x.numpy().astype(np.float64) for x in made]


def at(position: int, in_memory: bool = False) -> gt.Tensor:
    """The first new position, as the op is given it."""
    return gt.tensor(position, dtype=gt.int64, device="cuda" if in_memory else "cpu")


SHAPES = [  # batch, heads of keys, queries of each, new positions, positions before, features
    (2, 3, 1, 1, 0, 16), (2, 2, 3, 1, 200, 40), (1, 2, 1, 1, 700, 128), (1, 1, 2, 4, 100, 256),
    (2, 2, 1, 1, 90, 33),
    (1, 2, 4, 20, 30, 16), (1, 1, 1, 1, 20, 264),  # more queries, larger heads: other paths
    (2, 1, 2, 0, 5, 8), (0, 2, 2, 1, 5, 8),
]


@pytest.mark.gpu
@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_cache_gives_what_whole_attention_gives(
    shape: tuple[int, ...], dtype: str, in_memory: bool, rng: np.random.Generator
) -> None:
    """Also where the first position is on the device, as in a captured step."""
    ours, exact = given(rng, dtype, *shape)
    y = cached.cached_attention(*ours, at(shape[4], in_memory))
    for found, wanted in zip((y, *ours[1:]), attended(*exact, shape[4]), strict=True):
        np.testing.assert_allclose(found.numpy().astype(np.float64), wanted,
                                   rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.gpu
def test_caches_that_are_views(rng: np.random.Generator) -> None:
    """They take the paths of attention."""
    ours, exact = given(rng, "float32", 2, 2, 2, 1, 40, 16)
    wide = [gt.tensor(np.repeat(x, 2, axis=-1), dtype=gt.float32, device="cuda")
            for x in exact[1:]]
    y = cached.cached_attention(ours[0], *(x[..., ::2] for x in wide), at(40))
    np.testing.assert_allclose(y.numpy(), attended(*exact, 40)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_new_position_does_not_see_those_behind_it(dtype: str, rng: np.random.Generator) -> None:
    """What is not finite shows from its own position on."""
    ours, _ = given(rng, dtype, 1, 1, 1, 3, 70, 16)
    ours[0][0, 2, 0, 0] = float("nan")
    y = cached.cached_attention(*ours, at(70)).numpy().astype(np.float64)
    assert np.isfinite(y[0, :2]).all() and np.isnan(y[0, 2]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_runs_are_equal_bit_for_bit(dtype: str, rng: np.random.Generator) -> None:
    _, exact = given(rng, dtype, 1, 2, 2, 1, 500, 64)

    def run() -> bytes:
        ours = [gt.tensor(x, dtype=getattr(gt, dtype), device="cuda") for x in exact]
        return cached.cached_attention(*ours, at(500)).numpy().tobytes()

    first = run()
    assert all(run() == first for _ in range(4))


@pytest.mark.host_cuda
@pytest.mark.parametrize(("dtype", "ctype"), [
    ("bfloat16", "__nv_bfloat16"), ("float16", "__half"), ("float32", "float")])
@pytest.mark.parametrize("length", [1, 4])
def test_few_queries_are_two_launches(
    length: int, dtype: str, ctype: str, rng: np.random.Generator
) -> None:
    """After one that turns and stores what is new; a copy is the result."""
    from gtensor import hostcuda

    ours, _ = given(rng, dtype, 2, 2, 2, length, 300, 64)
    position = at(300)
    hostcuda.reset_counters()
    cached.cached_attention(*ours, position)
    gt.device("cuda").synchronize()
    found: dict[str, Any] = dict(hostcuda.counters().kernels)
    assert {name: count for name, count in found.items() if "copy" not in name} == {
        f"attention_cached_{part}<{ctype}>": 1 for part in ("64", "combine", "store")}
    assert sum(found.values()) == 3 and not hostcuda.counters().library


def test_a_plan_splits_keys_over_blocks() -> None:
    """As many blocks as fill a GPU, if each has enough of a full cache."""
    long = cached.plan((1, 1, 36, 64), (1, 12, 9000, 64), True, 2)
    assert long.grid == (12, 44, 1)
    assert long.space["most"] == 44 and long.rows == 12 and long.parts == 12 * 44 * 66
    assert cached.plan((1, 1, 36, 64), (1, 12, 60, 64), True, 2).grid == (12, 1, 1)
    assert cached.plan((512, 1, 36, 64), (512, 12, 9000, 64), True, 2).grid == (512 * 12, 1, 1)
    groups = cached.plan((1, 2, 10, 64), (1, 1, 9000, 64), True, 2)
    assert groups.size and groups.grid[2] == 4  # 16 queries share a head of keys
    assert not cached.plan((1, 3, 10, 64), (1, 1, 9000, 64), True, 2).size
