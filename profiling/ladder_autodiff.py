"""N derivatives at once against N runs, and against `torch.func`: time and memory.

    python profiling/ladder_autodiff.py                   # all parts, one thread
    python profiling/ladder_autodiff.py --only chain      # 300 multiply-adds of 32 values
    python profiling/ladder_autodiff.py --only mlp        # an MLP of width 64
    python profiling/ladder_autodiff.py --only jacobian   # jacfwd, jacrev and the Hessian
    python profiling/ladder_autodiff.py --only wide       # 16 gradients of 65,536 values
    python profiling/ladder_autodiff.py --only memory     # bytes at the peak against N

The clock is the processor time of the one thread that works. A rung "N at once" computes what the
rung "N runs" does in a loop: forward derivatives by `jvp_batched` and by N times `jvp`, pullbacks
of one `vjp`, gradients per example by `per_example_grad` and by N times `grad`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from ladder import Ladder
from ladder_command import Figure, Options, Part, left_out, main
from workloads import values

import gtensor as gt

N = 16
CHAIN = 300
WIDTH = 64
ROWS = 8
WIDE = 65_536
# The time of N at once is at most 1 / these of N runs: forward, pullback, per example.
GAINS = {"chain": (9.0, 4.0, 4.0), "mlp": (3.3, 3.0, 5.0)}
EAGER_TARGET = 5.0  # one jvp, x the function itself
TORCH_TARGET = 1.0  # x torch.func
BUFFERS = 3  # of the size of all N gradients, that the wide walk may hold


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts, by name."""
    gt.set_default_device(options.device)
    yield "chain", lambda: programs(Chain(), options)
    yield "mlp", lambda: programs(Mlp(), options)
    yield "jacobian", lambda: jacobians(options)
    yield "wide", lambda: wide(options)
    yield "memory", lambda: peaks(options)


def stacked(results: list[Any]) -> Any:
    """What N runs gave, as what one gives for N."""
    if isinstance(results[0], (tuple, list)):
        return [stacked(list(parts)) for parts in zip(*results, strict=True)]
    return np.stack([values(result) for result in results])


class Chain:
    """300 multiply-adds of 32 values."""

    name = "chain"

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal(32).astype(np.float32)
        self.factor = rng.uniform(0.98, 1.02, 32).astype(np.float32)
        self.shadows = rng.standard_normal((N, 32)).astype(np.float32)
        self.batch = rng.standard_normal((N, 32)).astype(np.float32)

    def function(self, lib: Any, tensor: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """x -> the chain's end, in one library."""
        factor = tensor(self.factor)
        return lambda x: _multiply_adds(x, factor)

    def loss(self, lib: Any, tensor: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        """(parameters, example) -> a number."""
        return lambda factor, x: _multiply_adds(x, factor).sum()

    def parameters(self) -> Any:
        return self.factor


def _multiply_adds(x: Any, factor: Any) -> Any:
    for _ in range(CHAIN):
        x = x * factor + 0.5
    return x


class Mlp:
    """Three layers of width 64 with tanh, on 8 rows."""

    name = "mlp"

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
        self.shadows = rng.standard_normal((N, ROWS, WIDTH)).astype(np.float32)
        self.batch = rng.standard_normal((N, ROWS, WIDTH)).astype(np.float32)
        self.weights = [
            (rng.standard_normal(shape) / WIDTH**0.5).astype(np.float32)
            for shape in ((WIDTH, WIDTH), (WIDTH,)) * 3]

    def function(self, lib: Any, tensor: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """x -> the last layer, in one library."""
        weights = [tensor(w) for w in self.weights]
        return lambda x: _layers(lib, weights, x)

    def loss(self, lib: Any, tensor: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        """(parameters, rows) -> a number."""

        def loss(weights: Any, x: Any) -> Any:
            y = _layers(lib, weights, x)
            return (y * y).mean()

        return loss

    def parameters(self) -> Any:
        return self.weights


def _layers(lib: Any, weights: Any, x: Any) -> Any:
    linear = lib.nn.functional.linear
    for i in range(0, 6, 2):
        x = linear(x, weights[i], weights[i + 1])
        if i < 4:
            x = lib.tanh(x)
    return x


def programs(work: Any, options: Options) -> Iterator[Part]:
    """Forward derivatives, pullbacks and gradients per example: N at once against N runs."""
    ours = work.function(gt, gt.asarray)
    x, shadows = gt.asarray(work.x), gt.asarray(work.shadows)
    each = [gt.asarray(shadow) for shadow in work.shadows]
    forward, pullback, example = GAINS[work.name]

    def loop() -> list[Any]:
        return [gt.func.jvp(ours, (x,), (shadow,))[1] for shadow in each]

    ladder = _ladder(f"{work.name}: {N} forward derivatives", loop, options)
    ladder.rung("at once", lambda: gt.func.jvp_batched(ours, (x,), (shadows,))[1], result=values)
    ladder.rung(f"{N} runs", loop, result=stacked)
    ladder.target("at once", f"{N} runs", 1 / forward)
    ladder.rung("one", lambda: [gt.func.jvp(ours, (x,), (each[0],))[1]] * N, result=_first(loop))
    ladder.floor("the function", lambda: ours(x))
    ladder.target("one", "the function", EAGER_TARGET)
    _beside_torch(ladder, options, lambda func, torch: _torch_forward(func, torch, work))
    yield ladder

    pull = gt.func.vjp(ours, x)[1]

    def walks() -> list[Any]:
        return [pull(shadow)[0] for shadow in each]

    ladder = _ladder(f"{work.name}: {N} pullbacks", walks, options)
    ladder.rung("at once", lambda: pull(shadows, batched=True)[0], result=values)
    ladder.rung(f"{N} runs", walks, result=stacked)
    ladder.target("at once", f"{N} runs", 1 / pullback)
    _beside_torch(ladder, options, lambda func, torch: _torch_pullback(func, torch, work))
    yield ladder

    loss = work.loss(gt, gt.asarray)
    parameters = _tree(gt.asarray, work.parameters())
    gradient, batch = gt.func.grad(loss), gt.asarray(work.batch)
    rows = [gt.asarray(row) for row in work.batch]

    def examples() -> list[Any]:
        return [gradient(parameters, row) for row in rows]

    ladder = _ladder(f"{work.name}: gradients per example, {N}", examples, options)
    ladder.rung("at once", lambda: gt.func.per_example_grad(loss, parameters, batch),
                result=values)
    ladder.rung(f"{N} runs", examples, result=stacked)
    ladder.target("at once", f"{N} runs", 1 / example)
    _beside_torch(ladder, options, lambda func, torch: _torch_examples(func, torch, work))
    yield ladder


def _ladder(name: str, loop: Callable[[], list[Any]], options: Options) -> Ladder:
    return Ladder(name, lambda: stacked(loop()), tolerance=1e-4, device=options.device)


def _first(loop: Callable[[], list[Any]]) -> Callable[[Any], Any]:
    """For a rung that computes one of N: checked for that one, shown as all of them."""

    def result(found: Any) -> Any:
        rest = stacked(loop())
        rest[0] = values(found[0])
        return rest

    return result


def _tree(change: Callable[[Any], Any], tree: Any) -> Any:
    return [change(leaf) for leaf in tree] if isinstance(tree, list) else change(tree)


def _beside_torch(
    ladder: Ladder, options: Options, make: Callable[[Any, Any], Callable[[], Any]]
) -> None:
    """PyTorch's rung, which takes at least as long; its tensors are made on the same device."""
    reason = left_out("torch", options.device)
    if reason is not None:
        ladder.note(reason)
        return
    import torch

    with torch.device(options.device):
        run = make(torch.func, torch)
    ladder.rung("torch.func", run, result=values)
    ladder.target("at once", "torch.func", TORCH_TARGET)


def _torch_forward(func: Any, torch: Any, work: Any) -> Callable[[], Any]:
    theirs = work.function(torch, torch.tensor)
    x, shadows = torch.tensor(work.x), torch.tensor(work.shadows)
    along = func.vmap(lambda shadow: func.jvp(theirs, (x,), (shadow,))[1])
    return lambda: along(shadows)


def _torch_pullback(func: Any, torch: Any, work: Any) -> Callable[[], Any]:
    pull = func.vjp(work.function(torch, torch.tensor), torch.tensor(work.x))[1]
    shadows = torch.tensor(work.shadows)
    many = func.vmap(lambda shadow: pull(shadow)[0])
    return lambda: many(shadows)


def _torch_examples(func: Any, torch: Any, work: Any) -> Callable[[], Any]:
    many = func.vmap(func.grad(work.loss(torch, torch.tensor)), (None, 0))
    parameters, batch = _tree(torch.tensor, work.parameters()), torch.tensor(work.batch)
    return lambda: many(parameters, batch)


def jacobians(options: Options) -> Iterator[Part]:
    """Whole Jacobians and a Hessian, against `torch.func`."""
    rng = np.random.default_rng(0)
    for name, shape in (("jacfwd", (2048, 32)), ("jacrev", (32, 2048))):
        w = (rng.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32)
        x = rng.standard_normal(shape[1]).astype(np.float32)
        yield _jacobian(name, w, x, options)
    work = Mlp()
    row = rng.standard_normal(WIDTH).astype(np.float32)
    loss, weights = work.loss(gt, gt.asarray), _tree(gt.asarray, work.weights)
    ladder = Ladder(f"Hessian of the MLP's loss in {WIDTH} inputs",
                    lambda: _by_differences(loss, weights, row), tolerance=2e-2,
                    device=options.device)
    x, hessian = gt.asarray(row), gt.func.hessian(lambda x: loss(weights, x))
    ladder.rung("at once", lambda: hessian(x), result=values)

    def theirs(func: Any, torch: Any) -> Callable[[], Any]:
        loss, weights = work.loss(torch, torch.tensor), _tree(torch.tensor, work.weights)
        hessian, x = func.hessian(lambda x: loss(weights, x)), torch.tensor(row)
        return lambda: hessian(x)

    _beside_torch(ladder, options, theirs)
    yield ladder


def _jacobian(name: str, w: np.ndarray, x: np.ndarray, options: Options) -> Ladder:
    """Of tanh(w @ x)."""
    ladder = Ladder(f"{name} of tanh(W @ x), W {w.shape[0]}x{w.shape[1]}",
                    lambda: (1 - np.tanh(w @ x)[:, None] ** 2) * w, tolerance=1e-4,
                    device=options.device)

    def of(lib: Any, func: Any, tensor: Callable[[Any], Any]) -> Callable[[], Any]:
        matrix, point = tensor(w), tensor(x)
        jacobian = getattr(func, name)(lambda x: lib.tanh(matrix @ x))
        return lambda: jacobian(point)

    ladder.rung("at once", of(gt, gt.func, gt.asarray), result=values)
    _beside_torch(ladder, options, lambda func, torch: of(torch, func, torch.tensor))
    return ladder


def _by_differences(loss: Callable[[Any, Any], Any], weights: Any, row: np.ndarray) -> np.ndarray:
    """Central differences of gradients, in float64."""
    wide = [gt.asarray(w.numpy().astype(np.float64)) for w in weights]
    gradient, step = gt.func.grad(lambda x: loss(wide, x)), 1e-5
    columns = []
    for i in range(row.size):
        ahead, behind = (row.astype(np.float64) for _ in range(2))
        ahead[i] += step
        behind[i] -= step
        columns.append((gradient(gt.asarray(ahead)) - gradient(gt.asarray(behind))).numpy())
    return np.stack(columns) / (2 * step)


def _smooth(x: Any) -> Any:
    return gt.tanh(gt.sin(x) * x + x)


def wide(options: Options) -> Iterator[Part]:
    """16 gradients of 65,536 values: where memory decides, and no buffer is made in vain."""
    rng = np.random.default_rng(0)
    x = gt.asarray(rng.standard_normal(WIDE).astype(np.float32))
    seeds = rng.standard_normal((N, WIDE)).astype(np.float32)
    pull = gt.func.vjp(_smooth, x)[1]
    whole, each = gt.asarray(seeds), [gt.asarray(seed) for seed in seeds]

    def walks() -> list[Any]:
        return [pull(seed)[0] for seed in each]

    ladder = _ladder(f"{N} pullbacks of {WIDE} values", walks, options)
    ladder.rung("at once", lambda: pull(whole, batched=True)[0], result=values)
    ladder.rung(f"{N} runs", walks, result=stacked)
    ladder.target("at once", f"{N} runs", 1.0)
    yield ladder
    held = peak_bytes(lambda: pull(whole, batched=True), options) / seeds.nbytes
    yield Figure("buffers held by the walk of all", held, BUFFERS + 0.1, "x all gradients",
                 "tiles and records beside them are a few per cent")


def peak_bytes(run: Callable[[], Any], options: Options) -> int:
    """The most bytes that a run holds at once, beyond what was held before, by the arena."""
    with gt.settings.override(arena_min_bytes=0):
        run()
        gt.memory.empty_cache(options.device)
        before = gt.memory.stats(options.device).allocated
        gt.memory.reset_peak(options.device)
        run()
        return gt.memory.stats(options.device).peak_allocated - before


def peaks(options: Options) -> Iterator[Part]:
    """The bytes of N forward derivatives: those of one run, and of N - 1 further tangents."""
    x = gt.asarray(np.random.default_rng(0).standard_normal(WIDE).astype(np.float32))
    alone = peak_bytes(lambda: _smooth(x), options) / x.nbytes
    held = {}
    for n in (1, 4, 16, 64):
        shadows = gt.ones((n, WIDE))
        held[n] = peak_bytes(lambda shadows=shadows: gt.func.jvp_batched(
            _smooth, (x,), (shadows,)), options) / x.nbytes
        yield Figure(f"{n} forward derivatives: peak", held[n], alone + n * (held[1] - alone),
                     "x one array", f"the function alone holds {alone:g}")


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_autodiff", clock="cpu"))
