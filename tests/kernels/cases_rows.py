"""Cases of the kernels over rows: softmax.cu, cross_entropy.cu, layer_norm.cu (also RMS norm),
group_norm.cu, sum_rows.cu."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kernel_cases import Case, assert_close, assert_equal, compute, exact, normal, unwritten

from gtensor.backend.kernels import NULL

# Rows that are whole packs or not, that fit into their threads' registers or not.
SHAPES = [(3, 5), (1, 1), (2, 256), (2, 257), (4, 1000), (7, 33), (0, 4)]


def _name(kind: str, shape: tuple[int, ...], *more: str) -> str:
    return "-".join([kind, "x".join(map(str, shape)), *more])


def _softmax(
    kind: str, shape: tuple[int, int], block: tuple[int, int] = (32, 2), in_place: bool = False
) -> Case:
    reference = torch.softmax if kind == "softmax" else torch.log_softmax

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        rows, columns = shape
        grid = (min(-(-rows // block[1]), 3),)  # some blocks have several turns
        x = normal(rng, shape, dtype, 3.0)
        leaf = exact(x).requires_grad_()
        wanted = reference(leaf, -1)
        y = x if in_place else unwritten(shape, dtype)
        executor.raw("softmax.cu", f"{kind}_forward", dtype, grid, block, [x, y, rows, columns])
        assert_close(y, wanted, dtype)

        g = normal(rng, shape, dtype)
        wanted.backward(exact(g))
        dx = g if in_place else unwritten(shape, dtype)
        executor.raw("softmax.cu", f"{kind}_backward", dtype, grid, block,
                     [g, y, dx, rows, columns, rows])
        # y was rounded; sums over a row of it carry that along.
        assert_close(dx, leaf.grad, dtype, factor=8.0)
        if not in_place:
            twice = unwritten((2, *shape), dtype)  # the second rows of g belong to the same y
            executor.raw("softmax.cu", f"{kind}_backward", dtype, grid, block,
                         [np.stack([g, -g]), y, twice, 2 * rows, columns, rows])
            assert_equal(twice, exact(np.stack([dx, -dx])))

    return Case(_name(kind, shape, *(["inplace"] if in_place else [])), check)


def _softmax_special(kind: str) -> Case:
    reference = torch.softmax if kind == "softmax" else torch.log_softmax

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        x = normal(rng, (6, 300), dtype)
        x[0] = -np.inf
        x[1, :8] = -np.inf  # the first ones of some threads
        x[2, 299] = np.inf
        x[3, 100] = np.nan
        x[4] *= 200
        y = unwritten(x.shape, dtype)
        executor.raw("softmax.cu", f"{kind}_forward", dtype, (6,), (64, 1), [x, y, 6, 300])
        assert_close(y, reference(exact(x), -1), dtype)

    return Case(f"{kind}-special", check)


def _cross_entropy(
    shape: tuple[int, int], reduction: str, ignored: str = "some",
    block: tuple[int, int] = (32, 2), shift: float = 0.0, smoothing: float = 0.0,
    weighted: bool = False,
) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        rows, classes = shape
        statistics = compute(dtype)
        heavy: Any = rng.uniform(0.2, 2.0, classes).astype(statistics) if weighted else NULL
        logits = normal(rng, shape, dtype, 2.0)
        if shift:
            logits += dtype.type(min(shift, 60_000.0) if dtype == np.float16 else shift)
        targets = rng.integers(0, classes, rows)
        if ignored == "all":
            targets[:] = -100
        elif rows > 1:
            targets[rows // 2] = -100
        leaf = exact(logits).requires_grad_()
        wanted = F.cross_entropy(
            leaf, torch.from_numpy(targets), exact(heavy) if weighted else None,
            reduction=reduction, label_smoothing=smoothing)

        loss, largest, total = (unwritten(rows, statistics) for _ in range(3))
        file, grid = "cross_entropy.cu", (min(-(-rows // block[1]), 3),)
        executor.raw(file, "cross_entropy_forward", dtype, grid, block,
                     [logits, targets, heavy, loss, largest, total, rows, classes, -100, smoothing])
        result: np.ndarray = loss
        count: Any = NULL
        if reduction != "none":
            result, counted = unwritten((), statistics), unwritten((), statistics)
            mean = int(reduction == "mean")
            executor.raw(file, "cross_entropy_reduce", dtype, (1,), (256,),
                         [loss, targets, heavy, result, counted, rows, classes, -100, mean])
            count = counted if mean else NULL
            again = [unwritten(a.shape, a.dtype) for a in (loss, largest, total, result, counted)]
            executor.raw(file, "cross_entropy_few_rows", dtype, (1,), (32, 2),
                         [logits, targets, heavy, *again, rows, classes, -100, mean, smoothing])
            assert_close(again[3], wanted, statistics)
            for given, one in zip(again, (loss, largest, total, result, counted), strict=True):
                assert_close(given, exact(one), statistics)
        assert_close(result, wanted, statistics)

        g = normal(rng, wanted.shape, dtype)
        wanted.backward(exact(g))
        executor.raw(file, "cross_entropy_backward", dtype, grid, block,
                     [logits, targets, heavy, np.array(heavy.sum()) if weighted else NULL, largest,
                      total, g.astype(statistics), count, logits, rows, classes, -100,
                      int(reduction == "none"), smoothing])  # over the logits
        if ignored == "all":
            assert not logits.any()  # PyTorch's backward of a NaN mean is 0 too
        assert_close(logits, leaf.grad, dtype)

    more = [f"shift{shift:g}"] if shift else []
    more += [f"smoothing{smoothing:g}"] * bool(smoothing) + ["weighted"] * weighted
    return Case(_name("cross_entropy", shape, reduction, f"ignore-{ignored}", *more), check)


def _cross_entropy_special(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    """A target outside the classes gives NaN in its row alone, and reads nothing outside.

    Logits of -infinity are probabilities of 0: where a thread's first ones are, where all of a
    thread's are, and where all of a row's are, which is NaN.
    """
    logits, targets = normal(rng, (6, 300), dtype), np.array([1, 300, -3, 5, 6, 7])
    logits[3, :4], logits[4, 8:], logits[5] = -np.inf, -np.inf, -np.inf
    statistics, launch = compute(dtype), ((2,), (64, 2))
    loss, largest, total = (unwritten(6, statistics) for _ in range(3))
    executor.raw("cross_entropy.cu", "cross_entropy_forward", dtype, *launch,
                 [logits, targets, NULL, loss, largest, total, 6, 300, -100, 0.0])
    assert np.isnan(loss).tolist() == [False, True, True, False, False, True]
    inside = torch.from_numpy(targets[[0, 3, 4]])
    wanted = F.cross_entropy(exact(logits[[0, 3, 4]]), inside, reduction="none")
    assert_close(loss[[0, 3, 4]], wanted, statistics)
    g, dlogits = normal(rng, 6, statistics), unwritten((6, 300), dtype)
    executor.raw("cross_entropy.cu", "cross_entropy_backward", dtype, *launch,
                 [logits, targets, NULL, NULL, largest, total, g, NULL, dlogits, 6, 300, -100, 1,
                  0.0])
    assert np.isnan(dlogits.astype(np.float64)).all(axis=1).tolist() == [
        False, True, True, False, False, True]
    assert np.isfinite(dlogits[[0, 3, 4]].astype(np.float64)).all()


def _layer_norm(
    shape: tuple[int, int], affine: bool = True, in_place: bool = False,
    block: tuple[int, int] = (32, 2), centred: bool = True, on_chip: bool = True,
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
        grid = (min(-(-rows // block[1]), 3),)  # some blocks have several turns
        executor.raw(file, "layer_norm_forward", dtype, grid, block,
                     [x, weight, bias, y, mean, rstd, rows, columns, 1e-5])
        assert_close(y, wanted, dtype, factor=4.0)
        if centred:
            assert_close(mean, exact(x).mean(-1), statistics)
        for low in ("float16", "bfloat16"):
            narrow = unwritten(shape, np.dtype(low))
            executor.raw(file, f"layer_norm_forward_{low}", dtype, grid, block,
                         [x, weight, bias, narrow, mean, rstd, rows, columns, 1e-5])
            assert_close(narrow, wanted, np.dtype(low), factor=4.0)

        g = normal(rng, shape, dtype)
        wanted.backward(exact(g))
        plain = [weight, mean, rstd]
        dx = unwritten(shape, dtype)
        executor.raw(file, "layer_norm_backward", dtype, grid, block,
                     [g, x, *plain, dx, NULL, rows, columns, rows, 0, 0])
        assert_close(dx, leaf.grad, dtype, factor=8.0)
        twice = unwritten((2, *shape), dtype)  # the second rows of g belong to the same x
        executor.raw(file, "layer_norm_backward", dtype, grid, block,
                     [np.stack([g, -g]), x, *plain, twice, NULL, 2 * rows, columns, rows, 0, 0])
        assert_equal(twice, exact(np.stack([dx, -dx])))
        more = np.array(dx)
        executor.raw(file, "layer_norm_backward", dtype, grid, block,
                     [g, x, *plain, more, NULL, rows, columns, rows, 0, 1])
        assert_close(more, 2 * exact(dx), dtype)
        if not affine:
            return
        blocks, numbers = max(1, *grid), 2 if on_chip else 4
        partials = unwritten((blocks, numbers, columns), statistics)
        again: Any = g if in_place else NULL
        chip = 4 * columns * statistics.itemsize if on_chip else 0
        executor.raw(file, "layer_norm_backward", dtype, (blocks,), block,
                     [g, x, *plain, again, partials, rows, columns, rows, int(on_chip), 0],
                     chip)
        if in_place:
            assert_equal(g, exact(dx))
        dweight, dbias = unwritten(columns, dtype), unwritten(columns, dtype)
        for outputs in ([dweight, NULL], [NULL, dbias]):
            executor.raw(file, "layer_norm_parameters", dtype, (-(-columns // 32), 2), (32, 8),
                         [partials, *outputs, blocks, columns, numbers])
        assert_close(dweight, leaves[0].grad, dtype, factor=4.0)
        assert_close(dbias, leaves[1].grad, dtype, factor=4.0)

    more = ["affine" if affine else "plain", *(["inplace"] if in_place else []),
            *([] if on_chip else ["offchip"])]
    return Case(_name("layer_norm" if centred else "rms_norm", shape, *more), check)


def _group_norm(
    shape: tuple[int, int, int], groups: int, affine: bool = True, in_place: bool = False,
    block: tuple[int, int] = (32, 2),
) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        (images, channels, plane), file, statistics = shape, "group_norm.cu", compute(dtype)
        rows, sizes = images * groups, [groups, channels // groups, plane]
        x = (normal(rng, shape, dtype, 1.5) + np.asarray(2).astype(dtype)).astype(dtype)
        weight, bias = (normal(rng, channels, dtype) if affine else NULL for _ in range(2))
        leaves = [exact(a).requires_grad_() if affine else None for a in (weight, bias)]
        leaf = exact(x).requires_grad_()
        wanted = F.group_norm(leaf, groups, *leaves, eps=1e-5)
        y, mean, var = unwritten(shape, dtype), *(
            unwritten((images, groups), statistics) for _ in range(2))
        executor.raw(file, "group_norm_forward", dtype, (min(-(-rows // block[1]), 3),), block,
                     [x, weight, bias, y, mean, var, rows, *sizes, 1e-5])
        assert_close(y, wanted, dtype, factor=4.0)
        values = exact(x).reshape(images, groups, channels // groups * plane)
        average = values.mean(-1, keepdim=True)
        assert_close(mean, average[..., 0], statistics)
        assert_close(var, (values - average).square().mean(-1), statistics)

        g = normal(rng, shape, dtype)
        wanted.backward(exact(g))
        dx, launch = unwritten(shape, dtype), ((min(rows, 3),), block)
        executor.raw(file, "group_norm_backward", dtype, *launch,
                     [g, x, weight, mean, var, dx, NULL, rows, *sizes, 1e-5])
        assert_close(dx, leaf.grad, dtype, factor=8.0)
        if not affine:
            return
        partials, again = unwritten((images, 2, channels), statistics), g if in_place else NULL
        executor.raw(file, "group_norm_backward", dtype, *launch,
                     [g, x, weight, mean, var, again, partials, rows, *sizes, 1e-5])
        if in_place:
            assert_equal(g, exact(dx))
        dweight, dbias = unwritten(channels, dtype), unwritten(channels, dtype)
        executor.raw("layer_norm.cu", "layer_norm_parameters", dtype, (-(-channels // 32), 2),
                     (32, 8), [partials, dweight, dbias, images, channels, 2])
        assert_close(dweight, leaves[0].grad, dtype, factor=4.0)
        assert_close(dbias, leaves[1].grad, dtype, factor=4.0)

    return Case("-".join(["group_norm", "x".join(map(str, shape)), str(groups),
                          "affine" if affine else "plain", *(["inplace"] if in_place else [])]),
                check)


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
    *(_softmax(kind, shape, (64, 2) if shape[1] > 256 else (32, 2))
      for kind in ("softmax", "log_softmax") for shape in SHAPES),
    *(_softmax(kind, (3, 600), in_place=True) for kind in ("softmax", "log_softmax")),
    _softmax_special("softmax"), _softmax_special("log_softmax"),
    _sum_rows((5, 3), 4), _sum_rows((40, 33), 32, block=256), _sum_rows((1, 1), 1, block=32),
    _sum_rows((0, 3), 4), _sum_rows((300, 7), 8, parts=3), _sum_rows((37, 70), 32, parts=5),
    _sum_rows((2, 5), 8, parts=4),
    _cross_entropy((5, 10), "mean"), _cross_entropy((3, 300), "sum"),
    _cross_entropy((4, 7), "none"), _cross_entropy((1, 1), "mean"),
    _cross_entropy((3, 4), "mean", ignored="all"), _cross_entropy((0, 3), "sum"),
    _cross_entropy((300, 2), "mean"), _cross_entropy((3, 600), "sum", block=(64, 1)),
    _cross_entropy((5, 10), "mean", shift=1e7), _cross_entropy((9, 16), "none"),
    _cross_entropy((5, 24), "mean", weighted=True), _cross_entropy((300, 3), "sum", weighted=True),
    _cross_entropy((4, 1000), "mean", smoothing=0.3), _cross_entropy((5, 9), "none", smoothing=1.0),
    _cross_entropy((3, 600), "mean", shift=1e4, smoothing=0.1, weighted=True, block=(64, 1)),
    _cross_entropy((7, 33), "none", smoothing=0.2, weighted=True),
    Case("cross_entropy-special", _cross_entropy_special),
    # one plane for a row of threads or several, planes of whole packs or not, of one element, and
    # longer than the registers
    _group_norm((2, 6, 16), 3), _group_norm((3, 8, 9), 2), _group_norm((2, 6, 5), 6, affine=False),
    _group_norm((4, 12, 1), 3), _group_norm((1, 4, 300), 1, in_place=True),
    _group_norm((2, 5, 24), 1, block=(64, 2)), _group_norm((0, 4, 8), 2),
    _layer_norm((4, 10)), _layer_norm((3, 300), in_place=True, block=(64, 2)),
    _layer_norm((2, 7), affine=False), _layer_norm((19, 65), in_place=True), _layer_norm((0, 5)),
    _layer_norm((9, 64), in_place=True), _layer_norm((5, 40), on_chip=False),
    _layer_norm((3, 600), in_place=True),  # a row longer than its registers, in packs
    _layer_norm((4, 10), centred=False), _layer_norm((19, 65), in_place=True, centred=False),
    _layer_norm((3, 300), affine=False, block=(32, 1), centred=False),
]
