"""Causal attention of halves on a GPU: own kernels on tensor cores against PyTorch's.

    python profiling/ladder_attention.py --device cuda                      # everything
    python profiling/ladder_attention.py --device cuda --only "12 heads of 64 bfloat16"

Forward alone, then forward and backward together, each as a graph: the times are the device's
alone, in which the host has no part. PyTorch takes the kernel that it chooses, which
is FlashAttention where it serves. Results are compared with gtensor's in float32. Rates count the
products of the half of the scores that is seen, backward 2.5 times forward's. Needs a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ladder import Ladder
from ladder_command import Options, Part, left_out, main, on_cuda

import gtensor as gt
from gtensor.nn import functional as F

TOLERANCE = 2e-2
Runs = tuple[Callable[[], list[Any]], ...]  # forward, and forward with backward


@dataclass(frozen=True)
class Size:
    """Queries, keys and values of (batch, heads, length, features)."""

    name: str
    shape: tuple[int, int, int, int]

    def small(self) -> Size:
        return replace(self, shape=(1, 2, 80, self.shape[3]))

    @property
    def flops(self) -> int:
        batch, heads, length, features = self.shape
        return 2 * batch * heads * length * length * features


SIZES = (Size("8 x 1,024, 12 heads of 64", (8, 12, 1024, 64)),
         Size("2 x 4,096, 16 heads of 128", (2, 16, 4096, 128)))


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterable[Part]]]]:
    """One part per size and dtype; none on the CPU."""
    return on_cuda(options, SIZES, ("bfloat16", "float16"), climb)


def climb(size: Size, dtype: str) -> Iterator[Part]:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(size.shape).astype(np.float32) for _ in range(4)]
    makers: dict[str, Callable[..., Runs]] = {"gtensor": own}
    note = left_out("torch", "cuda")
    if not note:
        makers["pytorch"] = peer
    runs = {name: make(given, dtype) for name, make in makers.items()}
    reference = own(given, "float32")
    for place, (what, flops) in enumerate((("forward", size.flops),
                                           ("forward and backward", int(3.5 * size.flops)))):
        ladder = Ladder(f"attention {size.name} {dtype}, {what}",
                        lambda run=reference[place]: on_host(run()),
                        tolerance=TOLERANCE, device="cuda")
        for name, run in runs.items():
            ladder.rung(name, run[place], result=on_host, flops=flops)
        if "pytorch" in runs:
            ladder.compare("gtensor", "pytorch")
        if note:
            ladder.notes.append(note)
        yield ladder


def on_host(results: list[Any]) -> list[np.ndarray]:
    """What a rung gives, in float32."""
    return [(x.to(gt.float32) if isinstance(x, gt.Tensor) else x.float().cpu()).numpy()
            for x in results]


def own(given: list[np.ndarray], dtype: str) -> Runs:
    """Forward, and forward with backward; results in float32."""
    *leaves, seed = (gt.tensor(x, device="cuda").to(getattr(gt, dtype)) for x in given)

    def forward() -> list[Any]:
        with gt.no_grad():
            return [F.scaled_dot_product_attention(*leaves, is_causal=True)]

    def both() -> list[Any]:
        for leaf in leaves:
            leaf.requires_grad_().grad = None
        F.scaled_dot_product_attention(*leaves, is_causal=True).backward(seed)
        return [leaf.grad for leaf in leaves]

    return captured(forward), captured(both)


def captured(run: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """Replays of the run."""
    run()
    graph = gt.Graph("cuda")
    with graph.capture():
        out = run()
    return lambda: graph.replay() or out


def peer(given: list[np.ndarray], dtype: str) -> Runs:
    """The same in PyTorch."""
    import torch

    *leaves, seed = (torch.tensor(x, device="cuda").to(getattr(torch, dtype)) for x in given)
    attention = torch.nn.functional.scaled_dot_product_attention

    def forward() -> list[Any]:
        with torch.no_grad():
            return [attention(*leaves, is_causal=True)]

    def both() -> list[Any]:
        for leaf in leaves:
            leaf.requires_grad_().grad = None
        attention(*leaves, is_causal=True).backward(seed)
        return [leaf.grad for leaf in leaves]

    return captured_by_torch(forward), captured_by_torch(both)


def captured_by_torch(run: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """The same; what is captured has to have run on another stream than the default one."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run(), run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return lambda: graph.replay() or out


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_attention"))
