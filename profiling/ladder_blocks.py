"""Blocks and models against PyTorch: a training step, a generated token, memory.

    python profiling/ladder_blocks.py                       # all parts, one thread
    python profiling/ladder_blocks.py --only step           # forward, backward, AdamW of a GPT
    python profiling/ladder_blocks.py --only token          # a token with the KV cache
    python profiling/ladder_blocks.py --only memory         # peak and saved bytes of a step
    python profiling/ladder_blocks.py --only allocations    # of a block, with and without workspace
    python profiling/ladder_blocks.py --device cuda         # steps and tokens on a GPU

PyTorch runs eagerly, the same equations from the same weights (`peer_gpt.py`), with as many
threads. Losses are compared after two updates. The peak is the arena's, from which every array
comes in that part, and what `tracemalloc` counts of Python's own objects. Saved bytes are those
that a step holds for backward and that are no parameters: the arena's count by category, and on
PyTorch's side the storages that `saved_tensors_hooks` sees.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np
from ladder import Ladder
from ladder_command import Figure, Options, Part, left_out, main

import gtensor as gt
from gtensor import models
from gtensor.memory.trace.curves import curves
from gtensor.models import GPT, GPTConfig
from gtensor.nn import functional as F
from gtensor.nn.blocks import TransformerBlock

STEP_TARGET = 1.3  # x PyTorch
TOKEN_TARGET = 1.0  # x PyTorch
PEAK_TARGET = 1.05  # x what a step must hold
SAVED_TARGET = 1.0  # x PyTorch
SMALL = GPTConfig(layers=6, width=256, heads=8, length=1024)  # of steps and tokens
LARGE = GPTConfig(layers=12, width=256, heads=8, length=256)  # of memory
TOKENS = 32  # in one call


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts, by name."""
    if not (why := left_out("torch", options.device)):
        import torch

        torch.set_num_threads(options.threads or torch.get_num_threads())
        device = options.device
        yield "step", lambda: step(quick(SMALL, options), 8, 128, device)
        yield "token", lambda: token(quick(SMALL, options), device)
    else:
        print(why, file=sys.stderr)
    if options.device == "cpu":
        yield "memory", lambda: memory(quick(LARGE, options), 4, 256)
    yield "allocations", lambda: allocations(options.device)


def quick(config: GPTConfig, options: Options) -> GPTConfig:
    """Two layers with --quick."""
    return GPTConfig(**{**vars(config), "layers": 2}) if options.quick else config


def twins(config: GPTConfig, device: str = "cpu") -> tuple[GPT, Any]:
    """A GPT, and PyTorch's with its weights."""
    import torch
    from peer_gpt import PeerGPT

    gt.manual_seed(0)
    mine = GPT(config)
    hidden = mine.blocks[0].linear2.weight.shape[1]
    theirs = PeerGPT(config.vocabulary, config.layers, config.width, config.heads, hidden,
                     config.length)
    theirs.load_state_dict({name: torch.tensor(value.numpy().copy())
                            for name, value in mine.state_dict().items()})
    return mine.to(device), theirs.to(device)


def tokens(batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (batch, length + 1))


# -- a training step -------------------------------------------------------------------------------


def own_step(model: GPT, given: np.ndarray) -> Callable[[], float]:
    """Forward, backward, update; the loss."""
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
    windows = gt.tensor(given, device=model.head.weight.device)

    def run() -> float:
        scores = model(windows[:, :-1]).reshape((-1, model.config.vocabulary))
        loss = F.cross_entropy(scores, windows[:, 1:].reshape(-1))
        del scores
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def peer_step(model: Any, given: np.ndarray) -> Callable[[], float]:
    """The same in PyTorch."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    windows = torch.tensor(given, device=model.head.weight.device)

    def run() -> float:
        loss = torch.nn.functional.cross_entropy(
            model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def step(
    config: GPTConfig, batch: int, length: int, device: str, most: float = STEP_TARGET
) -> Iterator[Part]:
    """A ladder of the step, which should take at most `most` times PyTorch's time."""
    given = tokens(batch, length)
    mine, theirs = twins(config, device)
    runs = {"gtensor": own_step(mine, given), "pytorch": peer_step(theirs, given)}
    reference = peer_step(twins(config, device)[1], given)
    for run in (*runs.values(), reference):
        run(), run()
    ladder = Ladder(f"GPT step, {config.layers} layers", reference, tolerance=1e-4, device=device)
    for name, run in runs.items():
        ladder.rung(name, run)
    ladder.target("gtensor", "pytorch", most)
    yield ladder


# -- a token ---------------------------------------------------------------------------------------


def token(config: GPTConfig, device: str) -> Iterator[Part]:
    """Greedy text from one prompt: the tokens must be the same."""
    import torch
    from peer_gpt import Cache

    mine, theirs = (model.eval() for model in twins(config, device))
    prompt = [1, 2, 3]

    def own() -> list[int]:
        return list(models.generate(mine, prompt, TOKENS, temperature=0))

    @torch.no_grad()
    def peer() -> list[int]:
        caches = [Cache(config.heads, config.length, config.width // config.heads, device)
                  for _ in range(config.layers)]
        given, made = torch.tensor([prompt], device=device), []
        for _ in range(TOKENS):
            made.append(int(theirs(given, caches)[0, -1].argmax()))
            given = torch.tensor([[made[-1]]], device=device)
        return made

    ladder = Ladder(f"{TOKENS} tokens, {config.layers} layers", peer, tolerance=0, per=TOKENS,
                    unit="token", device=device)
    ladder.rung("gtensor", own)
    ladder.rung("pytorch", peer)
    ladder.target("gtensor", "pytorch", TOKEN_TARGET)
    yield ladder


# -- memory ----------------------------------------------------------------------------------------


def memory(config: GPTConfig, batch: int, length: int) -> Iterator[Part]:
    """What a step holds at its peak, and what it saves."""
    given = tokens(batch, length)
    gc.collect()
    others = gt.memory.stats().allocated  # of the parts before
    with gt.settings.override(arena_min_bytes=0):
        gt.manual_seed(0)
        model = GPT(config)
        run = own_step(model, given)
        run(), run()
        with gt.memory.timeline() as recording:
            run()
        found = curves(recording.history())
        gt.memory.reset_peak()
        tracemalloc.start()
        run()
        peak = gt.memory.stats().peak_allocated - others + tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    most = {name: max(row) for name, row in zip(found.categories, found.rows.tolist(), strict=True)}
    largest = max(life.nbytes for life in recording.history().lives
                  if life.category in ("", "temporary"))
    parameters = sum(p.nbytes for p in model.parameters())
    held = 4 * parameters + most["saved"] + largest  # with gradients and two moments
    yield Figure("peak of a step over parameters, gradients, moments, saved values and the largest "
                 "temporary", peak / held, PEAK_TARGET, "x", f"{peak / 2**20:.1f} MiB")
    if find_spec("torch"):
        yield Figure("saved bytes over PyTorch's", most["saved"] / peer_saved(config, given),
                     SAVED_TARGET, "x", f"{most['saved'] / 2**20:.1f} MiB")


def peer_saved(config: GPTConfig, given: np.ndarray) -> int:
    """Bytes of the storages that PyTorch saves, without parameters."""
    import torch

    _, model = twins(config)
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held: dict[int, int] = {}

    def pack(x: Any) -> Any:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            held[storage.data_ptr()] = storage.nbytes()
        return x

    windows = torch.tensor(given)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = torch.nn.functional.cross_entropy(
            model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        del loss
    return sum(held.values())


def allocations(device: str) -> Iterator[Part]:
    """Requests to the arena by a warm block beside its result, with its workspace and without."""
    for what in ("inference", "training"):
        for how in ("with", "without"):
            with gt.device(device):
                made, saved = requests(what == "training", how == "with")
            yield Figure(f"a block's allocations at {what} {how} workspace", made - 1,
                         0 if (what, how) == ("inference", "with") else None,
                         note=f"{saved / 2**20:.2f} MiB not allocated")


@contextmanager
def unserved(device: gt.device) -> Iterator[Any]:
    """A block's places without a workspace."""
    yield Nowhere()


class Nowhere:
    """Names that put nothing anywhere."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    saved = __call__


def requests(training: bool, served: bool) -> tuple[int, int]:
    """Of one call, and the bytes that its workspace saved it."""
    gt.manual_seed(0)
    with gt.settings.override(arena_min_bytes=0):
        block = TransformerBlock(256, 8)
        if not served:
            block.places = unserved  # type: ignore[method-assign]
        x = gt.ones((4, 64, 256), requires_grad=training)
        for _ in range(3):
            before, block.bytes_saved = gt.memory.stats(), 0
            if training:
                block.zero_grad()
                block(x).sum().backward()
            else:
                with gt.no_grad():
                    block(x)
            after = gt.memory.stats()
    return after.hits + after.misses - before.hits - before.misses, block.bytes_saved


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_blocks", clock="cpu"))
