"""Captured steps against the same steps run eagerly: recorded calls, and fused ones.

    python profiling/ladder_capture.py                      # everything
    python profiling/ladder_capture.py --only chain         # 600 small ops, forward and backward
    python profiling/ladder_capture.py --only loss          # losses written by hand on 1e6 elements
    python profiling/ladder_capture.py --only mlp           # a step of a small network and AdamW
    python profiling/ladder_capture.py --only token         # texts of a small GPT, token by token
    python profiling/ladder_capture.py --only gpt           # of a GPT of two layers, 128 wide
    python profiling/ladder_capture.py --only one           # what a captured step of one op adds

Every rung runs the same function; a captured one is replayed when it is timed. Results must be
equal bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import thread_time
from typing import Any

import numpy as np
from ladder import Ladder
from ladder_command import Figure, Options, Part, main

import gtensor as gt
from gtensor.models import GPT, GPTConfig, generate

UNFUSED, FUSED = 0.28, 0.15  # of eager, a chain of small ops
LOSS = 0.6
MLP = 0.4
TOKEN, TEXT = 0.6, 0.8  # of eager: replays alone, a text with its recordings
TEXT_TOKENS = 120
NETWORK = 0.8  # a GPT
ADDED = 1.0  # us of a step that is one op
VOCABULARY = 65  # of the GPT
LOSSES = (1_000, 1_000)  # their shape
WIDTH = 64  # of the chain
CHAIN = 300  # multiply-adds

Step = Callable[..., Any]
Made = tuple[Step, tuple[gt.Tensor, ...]]


def chain(device: str) -> Made:
    """300 times y = y * 1.01 + 0.01 on 64 elements, and the gradient of the sum."""
    def step(x: gt.Tensor) -> Any:
        x.grad = None
        y = x
        for _ in range(CHAIN):
            y = y * 1.01 + 0.01
        y.sum().backward()
        return y

    return step, (_drawn((WIDTH,), device, 0),)


def chain_of_tensors(device: str) -> Made:
    """The same with tensors that require gradients in place of the numbers."""
    def step(x: gt.Tensor, a: gt.Tensor, b: gt.Tensor) -> Any:
        x.grad = a.grad = b.grad = None
        y = x
        for _ in range(CHAIN):
            y = y * a + b
        y.sum().backward()
        return y

    leaves = [(_drawn((WIDTH,), device, k).detach() * 0.1 + 0.5).requires_grad_()
              for k in range(3)]
    return step, tuple(leaves)


def cross_entropy(device: str) -> Made:
    """Of soft targets, by a logarithm of a softmax."""
    def step(z: gt.Tensor, t: gt.Tensor) -> Any:
        z.grad = None
        shifted = z - z.max(axis=1, keepdims=True).detach()
        logs = shifted - gt.log(gt.exp(shifted).sum(axis=1, keepdims=True))
        loss = -(t * logs).sum() / z.shape[0]
        loss.backward()
        return loss

    return step, _loss_data(device)


def focal(device: str) -> Made:
    """The focal loss of logits, with its probabilities."""
    def step(z: gt.Tensor, t: gt.Tensor) -> Any:
        z.grad = None
        p = 1 / (1 + gt.exp(-z))
        q = 1 - p
        loss = -(t * q * q * gt.log(p + 1e-7) + (1 - t) * p * p * gt.log(q + 1e-7)).mean()
        loss.backward()
        return loss

    return step, _loss_data(device)


def huber(device: str) -> Made:
    """Quadratic near 0, linear beyond."""
    def step(z: gt.Tensor, t: gt.Tensor) -> Any:
        z.grad = None
        size = gt.abs(z - t)
        near = gt.minimum(size, 1.0)
        loss = (0.5 * near * near + (size - near)).mean()
        loss.backward()
        return loss

    return step, _loss_data(device)


def mlp(device: str) -> Made:
    """32 rows through 64-128-10 with a ReLU, cross entropy, backward, AdamW."""
    gt.random.seed(0)
    with gt.device(device):
        net = gt.nn.Sequential(gt.nn.Linear(64, 128), gt.nn.ReLU(), gt.nn.Linear(128, 10))
    optimizer = gt.optim.AdamW(net.parameters(), lr=0.0)  # so that all rungs have one result
    rng = np.random.default_rng(0)

    def step(x: gt.Tensor, y: gt.Tensor) -> Any:
        optimizer.zero_grad()
        loss = gt.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, (gt.tensor(rng.standard_normal((32, 64)).astype(np.float32), device=device),
                  gt.tensor(rng.integers(0, 10, 32), device=device))


def gpt(batch: int, length: int, device: str) -> Made:
    """Two layers of width 128, cross entropy, backward, AdamW."""
    gt.random.seed(0)
    config = GPTConfig(VOCABULARY, layers=2, width=128, heads=4, length=length)
    net = GPT(config, device)
    optimizer = gt.optim.AdamW(net.parameters(), lr=0.0)
    rng = np.random.default_rng(0)

    def step(x: gt.Tensor, y: gt.Tensor) -> Any:
        optimizer.zero_grad()
        loss = gt.nn.functional.cross_entropy(net(x).reshape((-1, VOCABULARY)), y.reshape((-1,)))
        loss.backward()
        optimizer.step()
        return loss

    x, y = rng.integers(0, VOCABULARY, (2, batch, length))
    return step, (gt.tensor(x, device=device), gt.tensor(y, device=device))


def one_op(options: Options) -> Iterator[Part]:
    """What a replay of one multiplication of 32 elements adds to it."""
    def step(x: gt.Tensor) -> Any:
        return x * 2.0

    x, captured = gt.ones(32), gt.capture(step)
    for _ in range(3):
        captured(x)
    added, alone = [], []
    for _ in range(options.rounds):
        eager = _thread_us(step, x)
        added.append(_thread_us(captured, x) - eager)
        alone.append(eager)
    yield Figure("added to one op", median(added), ADDED, "us",
                 f"median of {len(added)} rounds; the op alone takes {median(alone):.2f} us")


def _thread_us(step: Step, x: gt.Tensor, times: int = 5_000) -> float:
    """Processor time of a call."""
    start = thread_time()
    for _ in range(times):
        step(x)
    return 1e6 * (thread_time() - start) / times


def _drawn(shape: tuple[int, ...], device: str, seed: int) -> gt.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return gt.tensor(values, device=device, requires_grad=True)


def _loss_data(device: str) -> tuple[gt.Tensor, ...]:
    rng = np.random.default_rng(1)
    t = rng.random(LOSSES).astype(np.float32)
    return _drawn(LOSSES, device, 0), gt.tensor(t / t.sum(1, keepdims=True), device=device)


def climbed(
    name: str, make: Callable[[str], Made], targets: dict[str, float], options: Options
) -> Iterator[Part]:
    """Eager, captured without fusing, and fused."""
    step, given = make(options.device)
    wanted = _values(step(*given), given)
    ladder = Ladder(name, reference=lambda: wanted, tolerance=0.0)
    ladder.rung("eager", partial(step, *given), result=lambda y: _values(y, given))
    for rung, fuse in (("captured", False), ("fused", True)):
        captured = gt.capture(step, fuse=fuse)
        ladder.rung(rung, partial(captured, *given), result=lambda y: _values(y, given))
        if rung in targets:
            ladder.target(rung, "eager", targets[rung])
    yield ladder


def tokens(options: Options) -> Iterator[Part]:
    """Steps of the model that `gtensor train text` makes, and `generate` with its recordings."""
    gt.random.manual_seed(0)
    with gt.device(options.device):
        model = GPT(GPTConfig(256, 4, 128, 4, length=128)).eval()
        given = gt.arange(TEXT_TOKENS).reshape((-1, 1))

    def steps(capture: bool) -> Callable[[], np.ndarray]:
        state = model.initial_state()

        def step(token: gt.Tensor) -> gt.Tensor:
            return model.step(token, state)

        run = gt.capture(step) if capture else step

        def text() -> np.ndarray:
            model.clear(state)
            for token in given:
                scores = run(token)
            return scores.numpy()

        return text

    ladder = Ladder("tokens: steps of a GPT", steps(False), tolerance=0.0, per=TEXT_TOKENS,
                    unit="token", device=options.device)
    ladder.rung("eager", steps(False))
    ladder.rung("captured", steps(True))
    ladder.target("captured", "eager", TOKEN)
    yield ladder

    def text(capture: bool) -> list[int]:
        return list(generate(model, [1, 2, 3], TEXT_TOKENS, 0.8, capture=capture))

    ladder = Ladder("tokens: a text of a GPT", partial(text, False), tolerance=0.0,
                    per=TEXT_TOKENS, unit="token", device=options.device)
    ladder.rung("eager", partial(text, False))
    ladder.rung("captured", partial(text, True))
    ladder.target("captured", "eager", TEXT)
    yield ladder


def _values(y: gt.Tensor, given: tuple[gt.Tensor, ...]) -> list[np.ndarray]:
    return [y.numpy(), *[x.grad.numpy() for x in given if x.grad is not None]]


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts, by name."""
    parts: dict[str, tuple[Callable[[str], Made], dict[str, float]]] = {
        "chain of 600 small ops": (chain, {"captured": UNFUSED, "fused": FUSED}),
        "chain of tensors": (chain_of_tensors, {"captured": UNFUSED}),
        "loss: cross entropy of 1e6": (cross_entropy, {"fused": LOSS}),
        "loss: focal of 1e6": (focal, {"fused": LOSS}),
        "loss: huber of 1e6": (huber, {"fused": LOSS}),
        "mlp 64-128-10": (mlp, {"fused": MLP}),
        "gpt 2 x 128, 4 x 64": (partial(gpt, 4, 64), {"fused": NETWORK}),
        "gpt 2 x 128, 1 x 32": (partial(gpt, 1, 32), {"fused": NETWORK}),
    }
    for name, (make, targets) in parts.items():
        yield name, partial(climbed, name, make, targets, options)
    yield "tokens of a GPT", partial(tokens, options)
    if options.device == "cpu":
        yield "one op", lambda: one_op(options)


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_capture", clock="cpu"))
