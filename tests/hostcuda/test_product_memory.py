"""Products on CUDA take the memory of their results and no other, by the arena's count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import hostcuda
from gtensor.backend import cublas
from gtensor.nn import functional as F

pytestmark = pytest.mark.host_cuda


@pytest.fixture(autouse=True)
def _on_cuda() -> Iterator[None]:
    with gt.device("cuda"):
        heads = gt.permute_dims(gt.ones((2, 3, 2, 4)), (0, 2, 1, 3))
        heads @ heads.mT  # makes the workspace of cuBLAS and the tables of addresses
        yield


def leaf(shape: tuple[int, ...], axes: tuple[int, ...] = (), dtype: Any = np.float32) -> gt.Tensor:
    """Of this shape, whose axes lie in memory in the order of `axes`."""
    axes = axes or tuple(range(len(shape)))
    values = np.random.default_rng(0).standard_normal([shape[i] for i in axes]).astype(dtype)
    order = tuple(int(i) for i in np.argsort(axes))
    return gt.permute_dims(gt.tensor(values), order).detach().requires_grad_()


FLAT, HEADS = (1, 0), (0, 2, 1, 3)
Placed = tuple[tuple[int, ...], ...]  # a shape, and the order of its axes if it is another
PRODUCTS: dict[str, tuple[Callable[..., gt.Tensor], tuple[Placed, ...]]] = {
    "linear": (F.linear, (((32, 64),), ((128, 64),), ((128,),))),
    "linear of three axes": (F.linear, (((4, 8, 64),), ((128, 64),), ((128,),))),
    "linear of a transpose": (F.linear, (((32, 64), FLAT), ((128, 64), FLAT), ((128,),))),
    "linear of heads": (F.linear, (((2, 8, 4, 64), HEADS), ((128, 64),), ((128,),))),
    "matmul": (gt.matmul, (((32, 64),), ((64, 128),))),
    "matmul of transposes": (gt.matmul, (((32, 64), FLAT), ((64, 128), FLAT))),
    "a batch": (gt.matmul, (((4, 32, 64),), ((4, 64, 16),))),
    "a batch of transposes": (gt.matmul, (((4, 32, 64), (0, 2, 1)), ((4, 64, 16), (0, 2, 1)))),
    "heads": (gt.matmul, (((2, 4, 16, 32), HEADS), ((2, 4, 32, 32), (0, 3, 1, 2)))),
    "a broadcast factor": (gt.matmul, (((2, 4, 16, 32),), ((4, 32, 16),))),
    "two broadcast factors": (gt.matmul, (((2, 1, 16, 32),), ((4, 32, 16),))),
    "a factor read twice": (lambda a, b, c: gt.concat([a @ b, a @ c]),
                            (((128, 128),), ((128, 32),), ((128, 32),))),
}


def taken(function: Callable[[], Any]) -> tuple[Any, int]:
    """What a call gives, and the bytes of the arena at its peak."""
    gt.memory.reset_peak("cuda")
    before = gt.memory.stats("cuda").allocated
    result = function()
    return result, gt.memory.stats("cuda").peak_allocated - before


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["float16", "float32"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_takes_its_results(name: str, dtype: Any) -> None:
    function, places = PRODUCTS[name]
    spare = 4096  # tables of addresses, small gradients
    for _ in range(2):
        inputs = [leaf(*place, dtype=dtype) for place in places]
        y, forward = taken(lambda inputs=inputs: function(*inputs))
        assert forward <= y.nbytes * (1 + (name == "a factor read twice")) + spare
        g = gt.ones(y.shape, dtype=dtype)
        _, backward = taken(lambda y=y, g=g: y.backward(g))
        wide = 2 * max(x.nbytes for x in inputs) if dtype is np.float16 else 0  # sums of products
        assert backward <= sum(x.nbytes for x in inputs) + wide + spare


def test_attention_takes_its_results_and_one_product_of_its_own() -> None:
    """Beside them: blocks of weights, and g times the output, whose sums the gradient needs."""
    q, k, v = (leaf((4, 2, 16, 256), HEADS) for _ in range(3))
    blocks = 8 * 4 * 2 * 16 * 16 * 4  # bytes of eight times all weights
    for _ in range(2):
        y, forward = taken(lambda: F.scaled_dot_product_attention(q, k, v))
        g = gt.ones(y.shape)
        _, backward = taken(lambda y=y, g=g: y.backward(g))
        assert forward <= y.nbytes + blocks < 2 * y.nbytes
        assert backward <= (3 + 1) * y.nbytes + blocks < 5 * y.nbytes
        q.grad = k.grad = v.grad = None


@pytest.mark.parametrize(("left", "right", "most"), [
    ((4, 8), (64, 8, 5), 27), ((64, 4, 8), (1, 8, 5), 4), ((64, 1, 4, 8), (3, 8, 5), 37)])
def test_a_broadcast_factor_takes_few_launches(
    left: tuple[int, ...], right: tuple[int, ...], most: int
) -> None:
    """However large the batch is; parts of it are an eighth of the memory of all products."""
    hostcuda.configure("eager", dry=True)
    for factor in (1, 8):
        shapes = [tuple(factor * n if n == 64 else n for n in shape) for shape in (left, right)]
        a, b = (leaf(shape) for shape in shapes)
        g = gt.ones((a @ b).shape)
        hostcuda.reset_counters()
        (a @ b).backward(g)
        assert hostcuda.counters().launches <= most


def test_a_copy_for_a_transpose_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cublas.Products.matmul

    def copying(self: Any, a: Any, b: Any, *more: Any, **options: Any) -> Any:
        return real(self, a.copy(), b, *more, **options)

    monkeypatch.setattr(cublas.Products, "matmul", copying)
    with pytest.raises(AssertionError):
        test_a_product_takes_its_results("a batch of transposes", np.float32)
