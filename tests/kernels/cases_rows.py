"""Cases of the kernels over rows: softmax.cu, cross_entropy.cu, layer_norm.cu (also RMS norm),
sum_rows.cu."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kernel_cases import Case, assert_close, assert_equal, compute, exact, normal, unwritten

from gtensor.backend.kernels import NULL, column_launch, flat_launch, row_launch

# Blocks are small where rows are: on the host, the time is in the barriers.
SHAPES = [(3, 5), (1, 1), (2, 256), (2, 257), (4, 1000), (7, 33), (0, 4)]


def _name(kind: str, shape: tuple[int, ...], *more: str) -> str:
    return "-".join([kind, "x".join(map(str, shape)), *more])


def _softmax(kind: str, shape: tuple[int, int], block: int = 256, in_place: bool = False) -> Case:
    reference = torch.softmax if kind == "softmax" else torch.log_softmax

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        rows, columns = shape
        grid = row_launch(rows)[0]
        x = normal(rng, shape, dtype, 3.0)
        leaf = exact(x).requires_grad_()
        wanted = reference(leaf, -1)
        y = x if in_place else unwritten(shape, dtype)
        executor.raw("softmax.cu", f"{kind}_forward", dtype, grid, (block,), [x, y, rows, columns])
        assert_close(y, wanted, dtype)

        g = normal(rng, shape, dtype)
        wanted.backward(exact(g))
        dx = g if in_place else unwritten(shape, dtype)
        executor.raw("softmax.cu", f"{kind}_backward", dtype, grid, (block,),
                     [g, y, dx, rows, columns, rows])
        # y was rounded; sums over a row of it carry that along.
        assert_close(dx, leaf.grad, dtype, factor=8.0)
        if not in_place:
            twice = unwritten((2, *shape), dtype)  # the second rows of g belong to the same y
            executor.raw("softmax.cu", f"{kind}_backward", dtype, row_launch(2 * rows)[0], (block,),
                         [np.stack([g, -g]), y, twice, 2 * rows, columns, rows])
            assert_equal(twice, exact(np.stack([dx, -dx])))

    more = [f"block{block}"] if block != 256 else []
    return Case(_name(kind, shape, *more, *(["inplace"] if in_place else [])), check)


def _softmax_special(kind: str) -> Case:
    reference = torch.softmax if kind == "softmax" else torch.log_softmax

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        x = normal(rng, (6, 300), dtype)
        x[0] = -np.inf
        x[1, 7] = -np.inf
        x[2, 299] = np.inf
        x[3, 100] = np.nan
        x[4] *= 200
        y = unwritten(x.shape, dtype)
        executor.raw("softmax.cu", f"{kind}_forward", dtype, *row_launch(6), [x, y, 6, 300])
        assert_close(y, reference(exact(x), -1), dtype)

    return Case(f"{kind}-special", check)


def _cross_entropy(
    shape: tuple[int, int], reduction: str, ignored: str = "some", block: int = 256,
    shift: float = 0.0,
) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        rows, classes = shape
        statistics = compute(dtype)
        logits = normal(rng, shape, dtype, 2.0)
        if shift:
            logits += dtype.type(min(shift, 60_000.0) if dtype == np.float16 else shift)
        targets = rng.integers(0, classes, rows)
        if ignored == "all":
            targets[:] = -100
        elif rows > 1:
            targets[rows // 2] = -100
        leaf = exact(logits).requires_grad_()
        wanted = F.cross_entropy(leaf, torch.from_numpy(targets), reduction=reduction)

        loss, largest, total = (unwritten(rows, statistics) for _ in range(3))
        file = "cross_entropy.cu"
        executor.raw(file, "cross_entropy_forward", dtype, row_launch(rows)[0], (block,),
                     [logits, targets, loss, largest, total, rows, classes, -100])
        result: np.ndarray = loss
        count: Any = NULL
        if reduction != "none":
            result, counted = unwritten((), dtype), unwritten((), statistics)
            mean = int(reduction == "mean")
            executor.raw(file, "cross_entropy_reduce", dtype, (1,), (256,),
                         [loss, targets, result, counted, rows, -100, mean])
            count = counted if mean else NULL
            again = [unwritten(a.shape, a.dtype) for a in (loss, largest, total, result, counted)]
            executor.raw(file, "cross_entropy_few_rows", dtype, (1,), (64,),
                         [logits, targets, *again, rows, classes, -100, mean])
            assert_equal(again[4], exact(counted))
            assert_close(again[3], wanted, dtype)
            for given, one in zip(again, (loss, largest, total), strict=False):
                assert_close(given, exact(one), statistics)
        assert_close(result, wanted, statistics if reduction == "none" else dtype)

        g = normal(rng, wanted.shape, dtype)
        wanted.backward(exact(g))
        executor.raw(file, "cross_entropy_backward", dtype, *flat_launch(rows * classes),
                     [logits, targets, largest, total, g.astype(statistics), count, logits, rows,
                      classes, -100, int(reduction == "none")])  # over the logits
        if ignored == "all":
            assert not logits.any()  # PyTorch's backward of a NaN mean is 0 too
        assert_close(logits, leaf.grad, dtype)

    more = [f"shift{shift:g}"] if shift else []
    return Case(_name("cross_entropy", shape, reduction, f"ignore-{ignored}", *more), check)


def _cross_entropy_bad_target(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    """A target outside the classes gives NaN in its row alone, and reads nothing outside."""
    logits, targets = normal(rng, (3, 4), dtype), np.array([1, 4, -3])
    statistics = compute(dtype)
    loss, largest, total = (unwritten(3, statistics) for _ in range(3))
    executor.raw("cross_entropy.cu", "cross_entropy_forward", dtype, *row_launch(3),
                 [logits, targets, loss, largest, total, 3, 4, -100])
    assert np.isnan(loss).tolist() == [False, True, True]
    g, dlogits = normal(rng, 3, statistics), unwritten((3, 4), dtype)
    executor.raw("cross_entropy.cu", "cross_entropy_backward", dtype, *flat_launch(12),
                 [logits, targets, largest, total, g, NULL, dlogits, 3, 4, -100, 1])
    assert np.isnan(dlogits.astype(np.float64)).all(axis=1).tolist() == [False, True, True]
    assert np.isfinite(dlogits[0].astype(np.float64)).all()


def _layer_norm(
    shape: tuple[int, int], affine: bool = True, in_place: bool = False, block: int = 64,
    centred: bool = True,
) -> Case:
    """Without centring it is RMS norm: the kernels are given no mean."""

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        rows, columns = shape
        file, statistics = "layer_norm.cu", compute(dtype)
        x = (normal(rng, shape, dtype, 1.5) + np.asarray(2).astype(dtype)).astype(dtype)
        weight: Any = normal(rng, columns, dtype) if affine else NULL
        bias: Any = normal(rng, columns, dtype) if affine else NULL
        leaves = [exact(a).requires_grad_() if affine else None for a in (weight, bias)] \
            if affine else [None, None]
        leaf = exact(x).requires_grad_()
        if centred:
            wanted = F.layer_norm(leaf, (columns,), leaves[0], leaves[1], eps=1e-5)
        else:
            wanted = F.rms_norm(leaf, (columns,), leaves[0], eps=1e-5)
            wanted = wanted if leaves[1] is None else wanted + leaves[1]
        y, rstd = unwritten(shape, dtype), unwritten(rows, statistics)
        mean: Any = unwritten(rows, statistics) if centred else NULL
        executor.raw(file, "layer_norm_forward", dtype, row_launch(rows)[0], (block,),
                     [x, weight, bias, y, mean, rstd, rows, columns, 1e-5])
        assert_close(y, wanted, dtype, factor=4.0)
        if centred:
            assert_close(mean, exact(x).mean(-1), statistics)

        g = normal(rng, shape, dtype)
        wanted.backward(exact(g))
        if affine:
            dweight, dbias = normal(rng, columns, dtype), unwritten(columns, dtype)
            before = exact(dweight)
            launch = column_launch(columns)
            executor.raw(file, "layer_norm_backward_weight", dtype, *launch,
                         [g, x, mean, rstd, dweight, NULL, rows, columns, 1])
            executor.raw(file, "layer_norm_backward_weight", dtype, *launch,
                         [g, x, mean, rstd, NULL, dbias, rows, columns, 0])
            assert_close(dweight, before + leaves[0].grad, dtype, factor=4.0)
            assert_close(dbias, leaves[1].grad, dtype, factor=4.0)
        dx = g if in_place else unwritten(shape, dtype)
        executor.raw(file, "layer_norm_backward", dtype, row_launch(rows)[0], (block,),
                     [g, x, weight, mean, rstd, dx, rows, columns, rows])
        assert_close(dx, leaf.grad, dtype, factor=8.0)
        if not in_place:
            twice = unwritten((2, *shape), dtype)  # the second rows of g belong to the same x
            executor.raw(file, "layer_norm_backward", dtype, row_launch(2 * rows)[0], (block,),
                         [np.stack([g, -g]), x, weight, mean, rstd, twice, 2 * rows, columns, rows])
            assert_equal(twice, exact(np.stack([dx, -dx])))

    more = ["affine" if affine else "plain", *(["inplace"] if in_place else [])]
    return Case(_name("layer_norm" if centred else "rms_norm", shape, *more), check)


def _sum_rows(shape: tuple[int, int], width: int, parts: int = 1, block: int = 64) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        (rows, columns), work = shape, compute(dtype)
        x, out = normal(rng, shape, dtype), unwritten(columns, dtype)
        grid = -(-columns // width), parts
        space: list[Any] = [NULL, NULL]
        if parts > 1:
            space = [unwritten((parts, columns), work), np.zeros(grid[0], np.uint32)]
        executor.raw("sum_rows.cu", "sum_rows", dtype, grid, (block,),
                     [x, out, *space, rows, columns, width])
        assert_close(out, exact(x).sum(0), dtype, factor=2.0)

    return Case(_name("sum_rows", shape, f"width{width}", f"parts{parts}"), check)


CASES = [
    *(_softmax(kind, shape, 256 if shape[1] > 256 else 32)
      for kind in ("softmax", "log_softmax") for shape in SHAPES),
    *(_softmax(kind, (3, 37), 13, in_place=True) for kind in ("softmax", "log_softmax")),
    _softmax_special("softmax"), _softmax_special("log_softmax"),
    _sum_rows((5, 3), 4), _sum_rows((40, 33), 32, block=256), _sum_rows((1, 1), 1, block=32),
    _sum_rows((0, 3), 4), _sum_rows((300, 7), 8, parts=3), _sum_rows((37, 70), 32, parts=5),
    _sum_rows((2, 5), 8, parts=4),
    _cross_entropy((5, 10), "mean"), _cross_entropy((3, 300), "sum"),
    _cross_entropy((4, 7), "none"), _cross_entropy((1, 1), "mean"),
    _cross_entropy((3, 4), "mean", ignored="all"), _cross_entropy((0, 3), "sum"),
    _cross_entropy((300, 2), "mean", block=3),
    _cross_entropy((5, 10), "mean", shift=1e7),
    Case("cross_entropy-bad-target", _cross_entropy_bad_target),
    _layer_norm((4, 10)), _layer_norm((3, 300), in_place=True, block=256),
    _layer_norm((2, 7), affine=False), _layer_norm((19, 65), in_place=True), _layer_norm((0, 5)),
    _layer_norm((4, 10), centred=False), _layer_norm((19, 65), in_place=True, centred=False),
    _layer_norm((3, 300), affine=False, block=256, centred=False),
]
