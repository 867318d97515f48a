"""What users run on a CPU, against PyTorch: training steps, single ops, transforms, updates.

    python profiling/ladder_users.py                       # all parts, one thread
    python profiling/ladder_users.py --list                # their names
    python profiling/ladder_users.py --only step           # training steps of networks
    python profiling/ladder_users.py --only "op gelu"      # an op, forward and backward
    python profiling/ladder_users.py --only transform      # per example, vmap, a gradient penalty
    python profiling/ladder_users.py --only adamw          # updates, against `fused=True`
    python profiling/ladder_users.py --only host           # chain, MLP by hand, garbage collector
    python profiling/ladder_users.py --only threads --clock wall   # two threads against one
    python profiling/ladder_users.py --quick               # small sizes, 5 rounds: does it run?

Both libraries run the same text from the same weights, in float32, alternated in one process, with
one thread. Every rung is compared with PyTorch in float64 before anything is timed: losses after
an update, or outputs and gradients. Each ratio is printed with its goal. The clock is the processor
time of the thread that works. Ops of small tensors are in `ladder_overhead.py`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from ladder import Ladder
from ladder_command import Options, Part, left_out, main
from workloads import Mlp, TensorChain, values

import gtensor as gt

Run = Callable[[], Any]
STEP_GOALS = {  # x PyTorch, a training step
    "digits epoch": 1.2, "convolutions": 1.1, "20 in-place norms": 1.2, "ResNet-18": 1.2,
    "GPT": 1.05, "DiT": 1.05, "LSTM": 1.0, "GRU": 0.8,
}
TRANSFORM_GOAL = 1.0  # x torch.func, and a walk of PyTorch that is itself recorded
ADAMW_GOAL = 1.0  # x PyTorch's fused update
CHAIN_GOAL = 0.95  # x PyTorch
MLP_GOAL = 1.0  # x NumPy by hand
THREADS_GOALS = {"gelu": 1.7, "softmax": 1.7, "layer_norm": 1.7, "add": 1.0, "multiply": 1.0}
COLLECTOR_GOAL = 1.05  # x the same without a collector
OPS = 1e-4  # largest relative distance of an op's results
STEPS = 1e-2  # and of losses: AdamW's first update is the gradients' signs, also of tiny ones


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts, by name; all want PyTorch, and none is for a GPU."""
    if options.device != "cpu":
        return
    if reason := left_out("torch", "cpu"):
        print(reason, file=sys.stderr)
        return
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    quick = options.quick
    for name, make in steps(quick).items():
        yield f"step {name}", partial(against, f"{name}, a step", make, STEP_GOALS[name], STEPS)
    yield "step GPT", partial(gpt, options)
    for name, op in OPERATIONS.items():
        yield f"op {name}", partial(single, name, op, quick)
    for name, make in transforms(4 if quick else 16).items():
        yield f"transform {name}", partial(against, name, make, TRANSFORM_GOAL, OPS)
    for count, shape in ((2, (5, 7)),) if quick else ((50, (256, 256)), (1000, (32, 32))):
        yield f"adamw {count}", partial(update, count, shape)
    if getattr(options.own, "clock", "") == "wall":
        yield "threads", partial(two_threads, FEW[0] if quick else (4096, 1024))
    yield "host chain", chain
    yield "host mlp", mlp
    yield "host collector", partial(collector, 50 if quick else 100_000)


def ladder_of(name: str, runs: dict[str, Run], reference: Run, goal: float,
              tolerance: float) -> Ladder:
    """gtensor's rung and its one peer's."""
    ladder = Ladder(name, lambda: values(reference()), tolerance=tolerance)
    for rung, run in runs.items():
        ladder.rung(rung, run, result=values)
    ladder.target(*runs, goal)
    return ladder


def against(name: str, make: Callable[[Any], Run], goal: float,
            tolerance: float) -> Iterator[Part]:
    """What `make` gives for a `Library`, of both; the reference is PyTorch's in float64."""
    import torch
    from user_networks import Library

    runs = {"gtensor": make(Library(gt)), "pytorch": make(Library(torch))}
    yield ladder_of(name, runs, lambda: make(Library(torch, "float64"))(), goal, tolerance)


# -- training steps --------------------------------------------------------------------------------


def steps(quick: bool) -> dict[str, Callable[[Any], Run]]:
    """By their names, what makes them; `quick` has the same programs at small sizes."""
    import user_networks as nets

    from gtensor.models import DenoiserConfig

    n, size = (2, 8) if quick else (32, 32)
    count = 100 if quick else 1437
    widths, side = ((4, 8), 8) if quick else ((64, 128, 256, 512), 64)
    image = DenoiserConfig(size=8, layers=1) if quick else DenoiserConfig(
        size=16, width=256, heads=8)
    length, width = (3, 5) if quick else (64, 128)
    return {
        "digits epoch": partial(epoch, nets.digits, images(count, 1, 8), 64),
        "convolutions": partial(classify, nets.convolutions, images(n, 3, size)),
        "20 in-place norms": partial(classify, nets.stack(2 if quick else 20), images(n, 3, size)),
        "ResNet-18": partial(classify, nets.resnet(widths, 2), images(max(2, n // 4), 3, side)),
        "DiT": partial(denoise, nets.denoiser(image), images(max(2, n // 4), 1, image.size)[0]),
        "LSTM": partial(follow, nets.recurrent("LSTM", width), length, n, width),
        "GRU": partial(follow, nets.recurrent("GRU", width), length, n, width),
    }


def images(count: int, channels: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Random ones, and a class of ten for each."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((count, channels, side, side)), rng.integers(0, 10, count)


def training(library: Any, net: Any, loss: Callable[..., Any],
             batches: list[tuple[Any, ...]]) -> Run:
    """Forward, backward and AdamW's update for each batch; the losses."""
    optimizer = library.lib.optim.AdamW(net.parameters(), lr=1e-3)

    def run() -> list[Any]:
        losses = []
        for batch in batches:
            found = loss(*batch)
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            losses.append(found.detach())
        return losses

    return run


def after_one(run: Run) -> Run:
    """The same, its first update made: the next loss shows that update, too."""
    run()
    return run


def classify(make: Callable[[Any], Any], data: tuple[np.ndarray, np.ndarray], library: Any) -> Run:
    """Images by their class, one batch."""
    return after_one(epoch(make, data, len(data[0]), library))


def epoch(make: Callable[[Any], Any], data: tuple[np.ndarray, np.ndarray], batch: int,
          library: Any) -> Run:
    """Images by their class, batch after batch, in order and without a loader."""
    net, cross_entropy = library.network(make), library.functional.cross_entropy
    x, labels = map(library.tensor, data)
    parts = [slice(start, start + batch) for start in range(0, len(data[0]), batch)]
    return training(library, net, lambda part: cross_entropy(net(x[part]), labels[part]),
                    [(part,) for part in parts])


def denoise(make: Callable[[Any], Any], clean: np.ndarray, library: Any) -> Run:
    """Images out of noise."""
    rng = np.random.default_rng(1)
    sigma = np.exp(rng.standard_normal(len(clean)))
    noisy = clean + sigma[:, None, None, None] * rng.standard_normal(clean.shape)
    net, mse = library.network(make), library.functional.mse_loss
    batch = tuple(map(library.tensor, (noisy, sigma, clean)))
    return after_one(training(library, net, lambda x, s, y: mse(net(x, s), y), [batch]))


def follow(make: Callable[[Any], Any], length: int, count: int, width: int, library: Any) -> Run:
    """(T, N, 64) -> (T, N, width) by a recurrent network."""
    rng = np.random.default_rng(0)
    net, mse = library.network(make), library.functional.mse_loss
    batch = tuple(library.tensor(rng.standard_normal((length, count, features)))
                  for features in (64, width))
    return after_one(training(library, net, lambda x, y: mse(net(x)[0], y), [batch]))


def gpt(options: Options) -> Iterator[Part]:
    """Six layers of width 256, the step of `ladder_blocks.py`."""
    import ladder_blocks

    config = ladder_blocks.quick(ladder_blocks.SMALL, options)
    batch, length = (2, 8) if options.quick else (8, 128)
    yield from ladder_blocks.step(config, batch, length, "cpu", STEP_GOALS["GPT"])


# -- single ops ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """An op, forward and backward; `op(library, *inputs)` does it in the words of either library.

    `quick` are small shapes of the inputs. A gradient is wanted of every floating-point input;
    `whole` are the shape and the limit of an input of integers, which comes last.
    """

    goal: float
    op: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    quick: tuple[tuple[int, ...], ...]
    whole: tuple[tuple[int, ...], int] | None = None
    quick_whole: tuple[tuple[int, ...], int] | None = None

    def run(self, quick: bool, library: Any) -> Run:
        """The output and the gradients for a fixed gradient of the output."""
        rng = np.random.default_rng(0)
        leaves = [library.tensor(rng.standard_normal(shape), requires_grad=True)
                  for shape in (self.quick if quick else self.shapes)]
        inputs, whole = list(leaves), self.quick_whole if quick else self.whole
        if whole:
            inputs.append(library.tensor(rng.integers(0, whole[1], whole[0])))
        upstream = library.tensor(rng.standard_normal(tuple(self.op(library, *inputs).shape)))

        def run() -> list[Any]:
            for leaf in leaves:
                leaf.grad = None
            y = self.op(library, *inputs)
            y.backward(upstream)
            return [y.detach(), *(leaf.grad for leaf in leaves)]

        return run


def _conv(goal: float, shapes: tuple[tuple[int, ...], ...], quick: tuple[tuple[int, ...], ...],
          groups: int | None) -> Operation:
    """A convolution of 3 x 3 pixels, padded by 1; depthwise without a number of groups."""
    return Operation(goal, lambda lib, x, w: lib.functional.conv2d(
        x, w, padding=1, groups=groups or len(w)), shapes, quick)


def _gather(lib: Any, x: Any, index: Any) -> Any:
    return gt.take_along_axis(x, index, axis=1) if lib.is_own else x.gather(1, index)


def _running_sum(lib: Any, x: Any) -> Any:
    return gt.cumulative_sum(x, axis=-1) if lib.is_own else x.cumsum(-1)


def _batch_norm(lib: Any, x: Any, w: Any, b: Any) -> Any:
    return lib.functional.batch_norm(x, None, None, w, b, training=True)


def _cholesky(lib: Any, x: Any) -> Any:
    """Of x @ x.mT + I."""
    n = x.shape[-1]
    return lib.lib.linalg.cholesky(x @ x.mT + lib.lib.eye(n, dtype=x.dtype))


MILLION, FEW = ((1024, 1024),), ((3, 5),)
PLANES, FEW_PLANES = (16, 64, 32, 32), (2, 8, 3, 5)
OPERATIONS = {
    "layer_norm": Operation(
        1.0, lambda lib, x, w, b: lib.functional.layer_norm(x, x.shape[-1:], w, b),
        ((1024, 1024), (1024,), (1024,)), ((3, 5), (5,), (5,))),
    "group_norm": Operation(
        1.0, lambda lib, x, w, b: lib.functional.group_norm(x, 8, w, b),
        (PLANES, (64,), (64,)), (FEW_PLANES, (8,), (8,))),
    "gelu": Operation(1.0, lambda lib, x: lib.functional.gelu(x), MILLION, FEW),
    "silu": Operation(1.0, lambda lib, x: lib.functional.silu(x), MILLION, FEW),
    "softmax": Operation(1.0, lambda lib, x: lib.functional.softmax(x, -1), MILLION, FEW),
    "attention": Operation(
        1.2, lambda lib, q, k, v: lib.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True), ((4, 8, 256, 32),) * 3, ((1, 2, 5, 4),) * 3),
    "depthwise": _conv(1.0, ((8, 64, 32, 32), (64, 1, 3, 3)), (FEW_PLANES, (8, 1, 3, 3)), None),
    "3 -> 32": _conv(1.0, ((16, 3, 64, 64), (32, 3, 3, 3)), ((2, 3, 4, 5), (4, 3, 3, 3)), 1),
    "groups": _conv(1.3, ((8, 64, 32, 32), (64, 16, 3, 3)), (FEW_PLANES, (8, 2, 3, 3)), 4),
    "gather": Operation(1.3, _gather, MILLION, FEW, ((1024, 512), 1024), ((3, 4), 5)),
    "transposed copy": Operation(1.3, lambda lib, x: x.T.reshape(-1), MILLION, FEW),
    "cumsum": Operation(1.3, _running_sum, MILLION, FEW),
    "batch norm": Operation(1.3, _batch_norm, (PLANES, (64,), (64,)), (FEW_PLANES, (8,), (8,))),
    "embedding": Operation(
        1.3, lambda lib, w, index: lib.functional.embedding(index, w),
        ((10_000, 128),), ((7, 3),), ((32, 128), 10_000), ((2, 4), 7)),
    "Cholesky": Operation(1.3, _cholesky, ((16, 16),), ((3, 3),)),
}


def single(name: str, operation: Operation, quick: bool) -> Iterator[Part]:
    """An op's ladder."""
    shapes = operation.quick if quick else operation.shapes
    yield from against(f"{name} of {shapes[0]}, forward and backward",
                       partial(operation.run, quick), operation.goal, OPS)


# -- transforms ------------------------------------------------------------------------------------


def transforms(count: int) -> dict[str, Callable[[Any], Run]]:
    """Of a network of 8, 16 and 1 values, for `count` examples."""
    rng = np.random.default_rng(0)
    arrays = [0.3 * rng.standard_normal(shape) for shape in ((16, 8), (16,), (1, 16), (1,))]
    examples = rng.standard_normal((count, 8))

    def network(library: Any, weights: Any, x: Any) -> Any:
        w1, b1, w2, b2 = weights
        linear = library.functional.linear
        return linear(library.lib.tanh(linear(x, w1, b1)), w2, b2)

    def placed(library: Any, requires_grad: bool = False) -> tuple[tuple[Any, ...], Any]:
        return (tuple(library.tensor(array, requires_grad) for array in arrays),
                library.tensor(examples, requires_grad))

    def per_example(library: Any) -> Run:
        func, (weights, x) = library.lib.func, placed(library)

        def loss(weights: Any, x: Any) -> Any:
            return network(library, weights, x).sum()

        if library.is_own:
            return lambda: list(gt.func.per_example_grad(loss, weights, x))
        many = func.vmap(func.grad(loss), (None, 0))
        return lambda: list(many(weights, x))

    def mapped(library: Any) -> Run:
        weights, x = placed(library)
        many = library.lib.func.vmap(lambda x: network(library, weights, x))
        return lambda: [many(x)]

    def penalty(library: Any) -> Run:
        weights, x = placed(library, requires_grad=True)

        def run() -> list[Any]:
            for weight in weights:
                weight.grad = None
            score = network(library, weights, x).sum()
            slope, = library.lib.autograd.grad(score, [x], create_graph=True)
            loss = (((slope * slope).sum(1) ** 0.5 - 1) ** 2).mean()
            loss.backward()
            return [loss.detach(), *(weight.grad for weight in weights[:3])]

        return run

    return {"per-example gradients": per_example, "vmap": mapped, "gradient penalty": penalty}


# -- updates ---------------------------------------------------------------------------------------


def update(count: int, shape: tuple[int, ...]) -> Iterator[Part]:
    """AdamW of `count` parameters; their values after it."""

    def make(library: Any) -> Run:
        rng = np.random.default_rng(0)
        parameters = [library.tensor(rng.standard_normal(shape), requires_grad=True)
                      for _ in range(count)]
        for parameter in parameters:
            parameter.grad = library.tensor(rng.standard_normal(shape))
        how = {} if library.is_own else {"fused": True}
        optimizer = library.lib.optim.AdamW(parameters, lr=1e-3, **how)

        def run() -> list[Any]:
            optimizer.step()
            return parameters[:2]

        return run

    yield from against(f"AdamW of {count} x {shape}", make, ADAMW_GOAL, OPS)


# -- threads ---------------------------------------------------------------------------------------


def two_threads(shape: tuple[int, ...]) -> Iterator[Part]:
    """Ops of large arrays by two threads and by one; with kernels in C, on two free cores."""
    x = gt.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    functional = gt.nn.functional
    ops: dict[str, Run] = {
        "gelu": lambda: functional.gelu(x), "softmax": lambda: functional.softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, x.shape[-1:]),
        "add": lambda: x + x, "multiply": lambda: x * x}
    for name, op in ops.items():
        ladder = Ladder(f"{name} of {shape} by two threads", lambda op=op: values(op()),
                        tolerance=0.0)
        for rung, count in (("two threads", 2), ("one thread", 1)):
            ladder.rung(rung, op, result=values, within=partial(threads_within, count))
        ladder.target("two threads", "one thread", 1 / THREADS_GOALS[name])
        yield ladder


@contextmanager
def threads_within(count: int) -> Iterator[None]:
    """Calls have that many threads."""
    before = gt.get_num_threads()
    gt.set_num_threads(count)
    try:
        yield
    finally:
        gt.set_num_threads(before)


# -- what the host does ----------------------------------------------------------------------------


def chain() -> Iterator[Part]:
    """300 multiply-adds of small tensors, each of which saves its factors."""
    work = TensorChain("cpu")
    yield ladder_of("multiply-add chain that saves", {"gtensor": work.gtensor(),
                    "pytorch": work.torch()}, work.reference, CHAIN_GOAL, OPS)


def mlp() -> Iterator[Part]:
    """A step of an MLP against the one that a person writes in NumPy."""
    work = Mlp("cpu")
    yield ladder_of("MLP, loss and gradients", {"gtensor": work.gtensor(),
                    "numpy by hand": work.by_hand(np)}, work.reference, MLP_GOAL, OPS)


def collector(count: int) -> Iterator[Part]:
    """A trainer's step of `count` multiplications, with and without Python's garbage collector."""
    data = np.ones((1, 4), np.float32)
    net = gt.nn.Linear(4, 1, bias=False)
    optimizer = gt.optim.SGD(net.parameters(), lr=0.0)

    def loss(net: Any, x: Any) -> Any:
        y = net(x)
        for _ in range(count):
            y = y * 1.0
        return y.sum()

    trainer = gt.train.Trainer(net, optimizer, loss, gt.data.ArrayDataset(data), batch_size=1,
                               capture=False)
    x, = trainer.first_batch()

    def recorded() -> Any:
        return trainer.gradients(x)[0]

    def alone() -> Any:
        gc.disable()
        try:
            return recorded()
        finally:
            gc.enable()

    ladder = Ladder(f"a trainer's step of {count:,} ops", recorded, tolerance=0.0)
    ladder.rung("gtensor", lambda: trainer.step(x))
    ladder.rung("with the collector", recorded, result=values)
    ladder.rung("without", alone, result=values)
    ladder.target("gtensor", "without", COLLECTOR_GOAL)
    ladder.compare("with the collector", "without")
    yield ladder


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_users", clock="cpu"))
