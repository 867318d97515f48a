"""A stack of convolution, batch norm and activation: in place against out of place.

    python profiling/ladder_abn.py                          # depth 8, 20, 50; leaky_relu and relu
    python profiling/ladder_abn.py --depth 20 --only leaky  # a part of it
    python profiling/ladder_abn.py --only bytes             # without times
    python profiling/ladder_abn.py --width 64 --size 56 --batch 8 --activation elu
    python profiling/ladder_abn.py --device cuda            # float32 and bfloat16; PyTorch, too

Every layer is a 3x3 convolution without bias and with as many outputs as inputs, and a batch norm
with its activation: `nn.ABN` keeps what it was given and what it gives (the next convolution's
input), `nn.InPlaceABN` one buffer for both. relu cannot be inverted: in place it keeps its input,
and the next convolution a recipe. A mean over each image's pixels and a sum make the loss.

Figures, per depth and activation, in place / out of place, and both / PyTorch:

    saved    bytes that live after the forward pass because backward needs them: all but parameters
             and input. Columns of a convolution would count; none outlives its op. Counted by the
             arena, which here holds arrays of all sizes, and on the CPU once more by tracemalloc,
             with arrays from NumPy's allocator.
    peak     most bytes above parameters and input in forward and backward, gradients of parameters
             and workspaces included. A CPU's workspace of 4 MiB weighs much in small stacks; that
             of PyTorch's convolutions on a CPU is oneDNN's, which is not counted.

A stack of n equal layers keeps 2 n - 1 buffers out of place (the last output feeds a mean, which
needs none of it) and n in place: n / (2 n - 1) of them, 0.533 for 8 layers and 0.513 for 20.

Time is that of forward and backward, with gtensor's settings as shipped. PyTorch computes the same
by batch_norm and activation; its convolutions are cuDNN's (TF32 off) or oneDNN's, gtensor's columns
and matrix products. torch.compile takes part on a GPU, but not with --quick: compiling takes long.

Gradients are compared with those of the stack out of place in float64. The norms' biases are 2: of
such a stack with biases of 0 every layer magnifies what rounding did to the layers before, and with
50 of them no gradient in float32 is near that in float64, in whichever library.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from ladder import Ladder
from ladder_command import Figure, Options, Part, left_out, main
from workloads import values

import gtensor as gt
from gtensor import nn
from gtensor.ops.activations.activation import ACTIVATIONS

SAVED_TARGETS = ((20, 0.52), (8, 0.55))  # from so many layers on: in place / out of place, at most
TOLERANCES = {"float32": 1e-2, "bfloat16": 0.5}
BIAS = 2.0
OUT_OF_PLACE, IN_PLACE = "ABN", "InPlaceABN"


class Sizes(NamedTuple):
    """Channels of every layer, height and width of the images, images in the batch."""

    width: int
    size: int
    batch: int


DEFAULTS = {"cpu": Sizes(16, 16, 4), "cuda": Sizes(64, 56, 64)}
DTYPES = {"cpu": ["float32"], "cuda": ["float32", "bfloat16"]}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a stack is made of."""
    parser.add_argument("--depth", type=int, nargs="+", default=[8, 20, 50], metavar="N",
                        help="layers (default 8 20 50)")
    for name in Sizes._fields:
        low, high = (getattr(DEFAULTS[device], name) for device in ("cpu", "cuda"))
        text = {"width": "channels of every layer", "size": "height and width of the images",
                "batch": "images"}[name]
        parser.add_argument(f"--{name}", type=int, metavar="N",
                            help=f"{text} (default {low}, on cuda {high})")
    parser.add_argument("--activation", nargs="+", default=["leaky_relu", "relu"], metavar="NAME",
                        choices=list(ACTIVATIONS), help=f"some of {', '.join(ACTIVATIONS)} "
                        "(default leaky_relu relu)")
    parser.add_argument("--dtype", nargs="+", choices=list(TOLERANCES), metavar="NAME",
                        help="float32, bfloat16 (default float32, on cuda both)")


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """One part per depth, activation and dtype."""
    own, device = options.own, options.device
    if options.threads and find_spec("torch"):
        import torch

        torch.set_num_threads(options.threads)
    gt.set_default_device(device)
    sizes = Sizes(*(given or default for given, default in zip(
        (own.width, own.size, own.batch), DEFAULTS[device], strict=True)))
    for depth in own.depth:
        for activation in own.activation:
            for dtype in own.dtype or DTYPES[device]:
                stack = Stack(depth, sizes, activation, dtype, device)
                yield f"bytes, {stack.name}", lambda stack=stack: figures(stack, options)
                yield f"times, {stack.name}", lambda stack=stack: iter([times(stack, options)])


# -- the stack -------------------------------------------------------------------------------------


class Net(NamedTuple):
    """A network with what belongs to it: `loss()` has a `backward()`, which fills the leaves."""

    leaves: list[Any]
    loss: Callable[[], Any]

    def clear(self) -> None:
        """Drop the gradients."""
        for leaf in self.leaves:
            leaf.grad = None

    def step(self) -> list[Any]:
        """Forward and backward; the gradients of the first and of the last convolution."""
        self.clear()
        self.loss().backward()
        weights = [leaf for leaf in self.leaves if leaf.ndim == 4]
        return [weights[0].grad, weights[-1].grad]


class Stack:
    """The same stack of layers in several libraries, with the same numbers."""

    def __init__(self, depth: int, sizes: Sizes, activation: str, dtype: str, device: str) -> None:
        self.depth, self.sizes, self.activation = depth, sizes, activation
        self.dtype, self.device = dtype, device
        self.name = f"depth {depth}, {activation}, {dtype}"
        self.shape = (sizes.batch, sizes.width, sizes.size, sizes.size)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """The input, what the output's means are weighted by, the kernels; the same every time."""
        rng = np.random.default_rng(0)
        width = self.sizes.width
        x = rng.standard_normal(self.shape, np.float32)
        target = rng.standard_normal(self.shape[:2], np.float32)
        kernels = [rng.standard_normal((width, width, 3, 3), np.float32) / (9 * width) ** 0.5
                   for _ in range(self.depth)]
        return x, target, kernels

    def gtensor(self, norm: type[nn.ABN], dtype: str | None = None) -> Net:
        """By the module given."""
        x, target, kernels = (self._tensors(part, dtype or self.dtype) for part in self.arrays())
        layers: list[nn.Module] = []
        for kernel in kernels:
            convolution = nn.Conv2d(*kernel.shape[:2], 3, padding=1, bias=False)
            convolution.weight = nn.Parameter(kernel)
            layers += [convolution, norm(len(kernel), activation=self.activation)]
            nn.init.constant_(layers[-1].bias, BIAS)
        network = nn.Sequential(*layers).to(dtype or self.dtype)
        return Net(list(network.parameters()),
                   lambda: (network(x).mean(axis=(2, 3)) * target).sum())

    def _tensors(self, part: Any, dtype: str) -> Any:
        if isinstance(part, list):
            return [self._tensors(array, dtype) for array in part]
        return gt.asarray(part, device=self.device).astype(dtype)

    def torch(self, compiled: bool) -> Net:
        """By batch_norm and the activation, in eager mode or compiled."""
        import torch

        if self.device == "cuda":
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        place = {"device": self.device, "dtype": getattr(torch, self.dtype)}
        x, target, kernels = self.arrays()
        x, target = (torch.tensor(array, **place) for array in (x, target))
        activate = torch_activation(torch, self.activation)
        layers: list[Any] = []
        for kernel in kernels:
            convolution = torch.nn.Conv2d(*kernel.shape[:2], 3, padding=1, bias=False)
            convolution.weight.data = torch.tensor(kernel)
            norm = torch.nn.BatchNorm2d(len(kernel))
            norm.weight.data += norm.eps  # as |weight| + eps
            norm.bias.data += BIAS
            layers += [convolution, norm, activate]
        network = torch.nn.Sequential(*layers).to(**place)
        run = torch.compile(network) if compiled else network
        return Net(list(network.parameters()), lambda: (run(x).mean((2, 3)) * target).sum())


def torch_activation(torch: Any, name: str) -> Any:
    """PyTorch's module for an activation of gtensor's, with the same parameter."""
    modules = torch.nn
    return {"identity": modules.Identity, "relu": modules.ReLU, "silu": modules.SiLU,
            "leaky_relu": lambda: modules.LeakyReLU(0.01), "elu": lambda: modules.ELU(0.01),
            "gelu": modules.GELU, "gelu_tanh": lambda: modules.GELU("tanh"),
            "sigmoid": modules.Sigmoid, "tanh": modules.Tanh,
            "softplus": lambda: modules.Softplus(0.01)}[name]()


# -- bytes -----------------------------------------------------------------------------------------


class Bytes(NamedTuple):
    """Above what is there before the step."""

    saved: int  # after forward
    peak: int  # in forward and backward


def arena_bytes(net: Net, device: str) -> Bytes:
    """By the arena, down to the smallest array."""
    with gt.settings.override(arena_min_bytes=0):
        net.step()  # what is made once and kept
        net.clear()
        gc.collect()
        gt.memory.reset_peak(device)
        before = gt.memory.stats(device).allocated
        loss = net.loss()
        saved = gt.memory.stats(device).allocated - before
        loss.backward()
        peak = gt.memory.stats(device).peak_allocated - before
    net.clear()
    return Bytes(saved, peak)


def traced_saved(net: Net) -> int:
    """The saved bytes of NumPy's arrays by tracemalloc, without the arena."""
    with gt.memory.use_arena(False):
        net.step()
        net.clear()
        gc.collect()
        tracemalloc.start()
        try:
            loss = net.loss()
            snapshot = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
        del loss
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(trace.size for trace in snapshot.filter_traces([domain]).traces)


def torch_bytes(net: Net, device: str) -> Bytes:
    """By PyTorch's allocators."""
    from torch import cuda

    net.step()
    net.clear()
    gc.collect()
    if device == "cpu":
        saved, whole = (sums_of_allocations(run) for run in (net.loss, net.step))
        net.clear()
        return Bytes(saved[-1], max(whole))
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    loss = net.loss()
    saved = cuda.memory_allocated() - before
    loss.backward()
    peak = cuda.max_memory_allocated() - before
    net.clear()
    return Bytes(saved, peak)


def sums_of_allocations(run: Callable[[], Any]) -> list[int]:
    """The bytes above those before, after each change in PyTorch's memory on the CPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        kept = run()
    del kept
    return [*accumulate(event.nbytes() for event in found.profiler.kineto_results.events()
                        if event.name() == "[memory]")]


# -- measuring -------------------------------------------------------------------------------------


def of_libraries(stack: Stack, options: Options) -> tuple[dict[str, Net], dict[str, Net]]:
    """The stack by gtensor, and by PyTorch."""
    return ({OUT_OF_PLACE: stack.gtensor(nn.ABN), IN_PLACE: stack.gtensor(nn.InPlaceABN)},
            {f"pytorch{' compiled' * compiled}": stack.torch(compiled)
             for compiled in modes(options)})


def modes(options: Options) -> list[bool]:
    """Whether PyTorch is compiled, once per way to measure it."""
    if left_out("torch", options.device):
        return []
    return [False] if options.quick or options.device == "cpu" else [False, True]


def figures(stack: Stack, options: Options) -> Iterator[Part]:
    """Bytes, as ratios to out of place and to PyTorch."""
    nets, peers = of_libraries(stack, options)
    target = next((most for depth, most in SAVED_TARGETS if stack.depth >= depth), None)
    found = {name: arena_bytes(net, stack.device) for name, net in nets.items()}
    own, base = found[IN_PLACE], found[OUT_OF_PLACE]
    pair = f"{IN_PLACE} / {OUT_OF_PLACE}"
    yield ratio(f"{stack.name}: saved, {pair}", own.saved, base.saved, target)
    if stack.device == "cpu":
        traced = [traced_saved(nets[which]) for which in (IN_PLACE, OUT_OF_PLACE)]
        yield ratio(f"{stack.name}: saved by tracemalloc, {pair}", *traced, target)
    yield ratio(f"{stack.name}: peak, {pair}", own.peak, base.peak)
    for peer, net in peers.items():
        theirs = torch_bytes(net, stack.device)
        for name, own in found.items():
            yield ratio(f"{stack.name}: saved, {name} / {peer}", own.saved, theirs.saved)
            yield ratio(f"{stack.name}: peak, {name} / {peer}", own.peak, theirs.peak)


def ratio(name: str, own: int, base: int, target: float | None = None) -> Figure:
    """One number of bytes over another."""
    return Figure(name, own / base, target, note=f"{own:,} / {base:,} bytes")


def times(stack: Stack, options: Options) -> Ladder:
    """Forward and backward."""
    nets, peers = of_libraries(stack, options)
    ladder = Ladder(
        f"{stack.name}: forward and backward of {stack.shape}",
        lambda: values(stack.gtensor(nn.ABN, "float64").step()),
        tolerance=TOLERANCES[stack.dtype], unit="step", device=stack.device)
    for name, net in {**nets, **peers}.items():
        ladder.rung(name, net.step, result=lambda gradients: [as_float(g) for g in gradients])
    ladder.compare(IN_PLACE, OUT_OF_PLACE, *peers)
    reason = left_out("torch", stack.device)
    if reason is not None:
        ladder.note(reason)
    return ladder


def as_float(gradient: Any) -> np.ndarray:
    """A gradient of any library and dtype for comparison, on the CPU."""
    if hasattr(gradient, "detach") and hasattr(gradient, "double"):  # PyTorch
        gradient = gradient.detach().double()
    else:
        gradient = gradient.detach().astype("float64").to("cpu")
    return values(gradient)


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_abn", more=add_options))
