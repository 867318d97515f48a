"""Running statistics and their count: no launch of their own on a GPU, values as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.hostcuda import counters, reset_counters
from gtensor.nn import functional as F
from gtensor.testing.compare import close

NORMS = [nn.BatchNorm2d, nn.ABN, nn.InPlaceABN]
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def inputs(dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [(rng.standard_normal((4, 5, 3, 3)) + i).astype(gt.empty(0, dtype=dtype).dtype)
            for i in range(3)]


@pytest.mark.parametrize("norm", NORMS)
def test_every_batch_increases_the_versions(norm: type[nn.BatchNorm2d]) -> None:
    layer = norm(5)
    buffers = [getattr(layer, name) for name in BUFFERS]
    layer(gt.tensor(inputs()[0]) * 1)
    before = [buffer._storage.version for buffer in buffers]
    layer(gt.tensor(inputs()[1]) * 1)
    assert [b._storage.version for b in buffers] == [v + 1 for v in before]
    assert [b._version for b in buffers] == [v + 1 for v in before]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_gpu_moves_them_as_the_cpu_does(norm: type[nn.BatchNorm2d], dtype: str) -> None:
    here, there = norm(5, dtype=dtype), norm(5, dtype=dtype, device="cuda")
    for x in inputs(dtype):
        here(gt.tensor(x) * 1)
        there(gt.tensor(x, device="cuda") * 1)
    for name in BUFFERS:
        wanted, given = getattr(here, name), getattr(there, name)
        close(name, given.numpy(), wanted.numpy(), 2e-2 if "16" in dtype else 1e-5)
    assert there.num_batches_tracked.item() == 3


@pytest.mark.gpu
@pytest.mark.parametrize("given", [(0,), (1,), (2,), (0, 2), (0, 1)])
def test_each_of_them_may_be_missing(given: tuple[int, ...]) -> None:
    moved = []
    for device in ("cpu", "cuda"):
        buffers = [gt.zeros(5, device=device), gt.ones(5, device=device),
                   gt.zeros((), "int64", device=device)]
        mean, var, count = (b if i in given else None for i, b in enumerate(buffers))
        F.batch_norm(gt.tensor(inputs()[0], device=device), mean, var, training=True,
                     num_batches_tracked=count)
        moved.append([b.numpy() for b in buffers])
    for wanted, found in zip(*moved, strict=True):
        close("a buffer", found, wanted, 1e-5)


@pytest.mark.gpu
def test_a_replay_moves_them_again() -> None:
    layer, x = nn.InPlaceABN(5, device="cuda"), gt.tensor(inputs()[0], device="cuda")
    for _ in range(2):
        layer(x * 1)
    graph = gt.Graph("cuda")
    with graph.capture():
        layer(x * 1)
    for _ in range(3):
        graph.replay()
    eager = nn.InPlaceABN(5, device="cuda")
    for _ in range(5):
        eager(x * 1)
    assert layer.num_batches_tracked.item() == 5
    for name in BUFFERS:
        close(name, getattr(layer, name).numpy(), getattr(eager, name).numpy(), 1e-6)


@pytest.mark.gpu
def test_they_may_have_another_dtype_or_layout() -> None:
    moved = []
    for device in ("cpu", "cuda"):
        mean = gt.zeros(5, "float64", device=device)
        var = gt.ones((5, 2), device=device)[:, 0]
        F.batch_norm(gt.tensor(inputs()[0], device=device), mean, var, training=True)
        moved.append((mean, var))
    for wanted, found in zip(*moved, strict=True):
        close("a buffer", found.numpy(), wanted.numpy(), 1e-5)


@pytest.mark.gpu
@pytest.mark.host_cuda
@pytest.mark.parametrize(("norm", "size", "names"), [
    (nn.BatchNorm2d, 3, ["forward_on_chip"]), (nn.InPlaceABN, 3, ["forward_on_chip"]),
    (nn.BatchNorm2d, 200, ["forward", "statistics"]),
    (nn.InPlaceABN, 200, ["forward", "statistics"])])
def test_a_norm_launches_nothing_else(
    norm: type[nn.BatchNorm2d], size: int, names: list[str]
) -> None:
    layer, x = norm(5, device="cuda"), gt.ones((4, 5, size, size), device="cuda")
    layer(x * 1)
    y = x * 1
    reset_counters()
    layer(y)
    assert sorted(counters().kernels) == [f"bn_act_{name}<float>" for name in names]
    assert counters().launches == len(names) and not counters().memsets


@pytest.mark.parametrize("count", [gt.zeros((), "int32"), gt.zeros(1, "int64")])
def test_a_count_that_does_not_fit_is_refused(count: gt.Tensor) -> None:
    mean, var = gt.zeros(5), gt.ones(5)
    with pytest.raises(ValueError, match="num_batches_tracked of shape .* wanted one int64"):
        F.batch_norm(gt.tensor(inputs()[0]), mean, var, training=True, num_batches_tracked=count)
    assert mean.tolist() == [0] * 5
