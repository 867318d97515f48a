"""Batch norm + leaky ReLU on a GPU: bn_act.cu against a copy, naive kernels and PyTorch.

    python profiling/ladder_bn_act.py --device cuda                     # everything
    python profiling/ladder_bn_act.py --device cuda --only "1 GiB"      # what has targets
    python profiling/ladder_bn_act.py --device cuda --only bfloat16

Forward moves 3 passes over the tensor (statistics read it, the second kernel reads and writes it),
backward 5 (two reads for the sums; two reads and a write for dx). A copy moves 2, so the target of
90 % of the copy's bandwidth is a time of 3 / 2 / 0.9 and of 5 / 2 / 0.9 copies of the same tensor.
A channel of the "on chip" tensors fits into shared memory: 2 and 3 passes, and one launch each.

"naive" are the kernels of batch_norm.cu, a thread to an element and a block to a channel; results
are compared with theirs, at a sample of the elements. PyTorch runs batch_norm and leaky_relu, eager
and compiled, on the same memory, out of place. Needs a GPU: on a CPU there is nothing to measure.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from ladder import Ladder
from ladder_command import Options, Part, left_out, main, on_cuda

from gtensor.backend.kernels import ACTIVATIONS, flat_launch, raw, row_launch
from gtensor.ops.norms.inplace_abn import forward_gpu, grad_gpu

EPS, SLOPE = 1e-5, 0.01
SETTINGS = {"training": True, "eps": EPS, "activation": "leaky_relu", "parameter": SLOPE}
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
SAMPLE = 1_009  # elements between two that are compared: a prime, so all channels are met
BANDWIDTH = 0.90  # of the copy's
EAGER, COMPILED = 1.5, 1.0  # times as fast as PyTorch

NAIVE = {name: raw("batch_norm.cu", f"batch_norm_{name}")
         for name in ("statistics", "forward", "backward_reduce", "backward")}


@dataclass(frozen=True)
class Size:
    """A tensor (N, C, H, W), by its shape in float32; halves have twice the images."""

    name: str
    shape: tuple[int, int, int, int]
    passes: tuple[int, int] = (3, 5)  # over the tensor, forward and backward
    last: bool = False  # channels last
    targets: bool = False

    def of(self, dtype: np.dtype) -> tuple[int, int, int, int]:
        n, c, h, w = self.shape
        return n * 4 // dtype.itemsize, c, h, w

    def small(self) -> Size:
        """With a 16th of the images, to see that it runs."""
        n, c, h, w = self.shape
        return replace(self, name=f"a 16th of {self.name}", shape=(n // 16, c, h, w))


SIZES = [
    Size("1 GiB first", (256, 256, 64, 64), targets=True),
    Size("1 GiB last", (256, 256, 64, 64), last=True, targets=True),
    Size("64 MiB first", (16, 256, 64, 64)), Size("64 MiB last", (16, 256, 64, 64), last=True),
    Size("odd rows", (512, 256, 7, 7)), Size("on chip", (32, 512, 14, 14), passes=(2, 3)),
]


class Data:
    """One tensor on the device, its gradient, and buffers that the rungs write."""

    def __init__(self, size: Size, dtype: np.dtype) -> None:
        import cupy

        self.cupy, self.size, self.dtype = cupy, size, dtype
        n, c, h, w = self.shape = size.of(dtype)
        memory = (n, h, w, c) if size.last else self.shape
        random = cupy.random.RandomState(0)

        def drawn(mean: float) -> Any:
            values = random.standard_normal(prod(memory), dtype=np.float32) + np.float32(mean)
            return values.astype(dtype).reshape(memory)

        self.memory = {"x": drawn(0.5), "g": drawn(0.0)}
        self.memory |= {name: cupy.empty(memory, dtype) for name in ("z", "dx", "naive")}
        self.weight = cupy.linspace(0.5, 2, c, dtype=np.float32)
        self.bias = cupy.linspace(-1, 1, c, dtype=np.float32)
        self.nbytes = self.memory["x"].nbytes
        self.mean, self.var, self.sums = (cupy.empty(k, np.float32) for k in (c, c, (2, c)))

    def __getitem__(self, name: str) -> Any:
        """An array as (N, C, H, W), whatever its memory."""
        a = self.memory[name]
        return a.transpose(0, 3, 1, 2) if self.size.last else a

    def sampled(self, a: Any) -> Any:
        """Some elements of an array in this memory, in float32."""
        return a.reshape(-1)[::SAMPLE].astype(np.float32).get()

    # -- rungs -------------------------------------------------------------------------------------

    def forward(self) -> Any:
        self.statistics = forward_gpu(
            self["x"], self.weight, self.bias, None, None, out=self["z"], **SETTINGS)[1:]
        return self.memory["z"]

    def backward(self) -> Any:
        grad_gpu(self["g"], self["z"], self.weight, self.bias, *self.statistics, out=self["dx"],
                 **SETTINGS)
        return self.memory["dx"]

    def both(self) -> Any:
        self.forward()
        return self.backward()

    def copy(self) -> None:
        self.cupy.copyto(self.memory["naive"], self.memory["x"])

    def naive_forward(self) -> Any:
        sizes, (x, out) = self._naive_sizes(), (self.memory["x"], self.memory["naive"])
        NAIVE["statistics"][self.dtype](*row_launch(sizes[1]), (x, self.mean, self.var, *sizes))
        NAIVE["forward"][self.dtype](*flat_launch(x.size), (
            x, self.mean, self.var, self.weight, self.bias, out, *sizes, EPS,
            ACTIVATIONS["leaky_relu"], SLOPE))
        return out

    def naive_backward(self) -> Any:
        sizes, (x, out) = self._naive_sizes(), (self.memory["x"], self.memory["naive"])
        given = (self.memory["g"], x, self.mean, self.var, self.weight, self.bias, self.sums[0],
                 self.sums[1])
        options = (*sizes, EPS, ACTIVATIONS["leaky_relu"], SLOPE)
        NAIVE["backward_reduce"][self.dtype](*row_launch(sizes[1]), (*given, *options))
        NAIVE["backward"][self.dtype](*flat_launch(x.size), (*given, out, *options, 1))
        return out

    def naive_both(self) -> Any:
        self.naive_forward()
        return self.naive_backward()

    def _naive_sizes(self) -> tuple[int, int, int]:
        n, c, h, w = self.shape
        return (n * h * w, c, 1) if self.size.last else (n, c, h * w)

    # -- PyTorch -----------------------------------------------------------------------------------

    def torch(self, compiled: bool) -> Callable[[], Any]:
        """Forward and backward; the gradient of x in this memory."""
        import torch

        def shared(name: str) -> Any:
            bits = self.memory[name].view(np.int16 if self.dtype.itemsize == 2 else np.float32)
            tensor = torch.as_tensor(bits, device="cuda")
            tensor = tensor.view(torch.bfloat16) if self.dtype.itemsize == 2 else tensor
            return tensor.permute(0, 3, 1, 2) if self.size.last else tensor

        def step(x: Any, weight: Any, bias: Any) -> Any:
            y = torch.nn.functional.batch_norm(x, None, None, weight, bias, True, 0.1, EPS)
            return torch.nn.functional.leaky_relu(y, SLOPE)

        function = torch.compile(step) if compiled else step
        x, g = shared("x").requires_grad_(), shared("g")
        affine = [torch.as_tensor(a, device="cuda").requires_grad_()
                  for a in (self.weight, self.bias)]

        def run() -> Any:
            for leaf in (x, *affine):
                leaf.grad = None
            function(x, *affine).backward(g)
            return x.grad

        return run

    def of_torch(self, gradient: Any) -> Any:
        dense = gradient.permute(0, 2, 3, 1) if self.size.last else gradient
        return dense.reshape(-1)[::SAMPLE].float().cpu().numpy()


# -- ladders ---------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-compile", action="store_true",
                        help="leave out torch.compile, which takes half a minute to compile")


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterable[Part]]]]:
    """One part per tensor and dtype: forward, backward, both."""
    compiled = not options.own.no_compile
    return on_cuda(options, SIZES, DTYPES, lambda s, d: climb(Data(s, DTYPES[d]), d, compiled))


def climb(data: Data, dtype: str, compiled: bool) -> Iterator[Ladder]:
    """Forward and backward against the copy; both together against PyTorch."""
    name = f"{data.size.name} {dtype}"
    data.both(), data.naive_forward()  # each phase alone needs what the one before it made
    phases = {"forward": (data.forward, data.naive_forward, data.size.passes[0]),
              "backward": (data.backward, data.naive_backward, data.size.passes[1])}
    for phase, (run, naive, passes) in phases.items():
        ladder = _ladder(data, f"{name}, {phase}", naive, dtype)
        ladder.floor("copy", data.copy, moved=2 * data.nbytes)
        ladder.rung("gtensor", run, result=data.sampled, moved=passes * data.nbytes)
        ladder.rung("naive", naive, result=data.sampled)
        if data.size.targets:
            ladder.target("gtensor", "copy", round(passes / 2 / BANDWIDTH, 4))
        else:
            ladder.compare("gtensor", "copy")
        ladder.compare("gtensor", "naive")
        yield ladder
    yield against_torch(data, name, dtype, compiled)


def against_torch(data: Data, name: str, dtype: str, compiled: bool) -> Ladder:
    """Forward and backward together."""
    ladder = _ladder(data, f"{name}, both", data.naive_both, dtype)
    moved = sum(data.size.passes) * data.nbytes
    ladder.rung("gtensor", data.both, result=data.sampled, moved=moved)
    reason = left_out("torch", "cuda")
    if reason is not None:
        ladder.note(reason)
        return ladder
    for peer, faster in (("torch eager", EAGER), ("torch.compile", COMPILED))[:1 + compiled]:
        try:
            run = data.torch(compiled=peer == "torch.compile")
            run()
        except Exception as error:  # torch.compile wants a compiler that may not be there
            ladder.note(f"{peer} does not run here: {type(error).__name__}")
            continue
        ladder.rung(peer, run, result=data.of_torch)
        if data.size.targets:
            ladder.target("gtensor", peer, round(1 / faster, 4))
        else:
            ladder.compare("gtensor", peer)
    return ladder


def _ladder(data: Data, name: str, reference: Callable[[], Any], dtype: str) -> Ladder:
    return Ladder(name, lambda: data.sampled(reference()), tolerance=TOLERANCES[dtype],
                  device="cuda")


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_bn_act", more=add_options))
