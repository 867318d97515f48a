"""What an op costs beside its arithmetic, against PyTorch, HIPS autograd, MyGrad and bare NumPy.

    python profiling/ladder_overhead.py                     # all parts, one thread
    python profiling/ladder_overhead.py --only chain        # 300 multiply-adds of 32 values
    python profiling/ladder_overhead.py --only saves        # 300 sines, which save their inputs
    python profiling/ladder_overhead.py --only own          # 300 sines with a rule of their own
    python profiling/ladder_overhead.py --only small        # sum, reshape, slice of 32 values
    python profiling/ladder_overhead.py --only calls        # x[3], stack, matmul, ...: one call
    python profiling/ladder_overhead.py --only mlp          # an MLP step against NumPy by hand
    python profiling/ladder_overhead.py --only large        # softmax, GELU, ... of 1e6 values
    python profiling/ladder_overhead.py --only softmax      # one of these (--list names them)
    python profiling/ladder_overhead.py --only ops          # single ops at 1e3 and 1e6 elements
    python profiling/ladder_overhead.py --only import       # processes that import gtensor or NumPy
    python profiling/ladder_overhead.py --only listener     # a listener that does nothing
    python profiling/ladder_overhead.py --device cuda       # against PyTorch and CuPy on a GPU

On the CPU the clock is the processor time of the one thread that works: other programs on the
machine take less from it than from the time on the wall, and most of what they take cancels in the
ratios. Ratios of several threads need `--threads N --clock wall`.

Peers that are not installed, or cannot use the device, are left out and named under the table.
Every rung is compared with gradients derived by hand before anything is timed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from subprocess import run
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

import numpy as np
from ceilings import product_floor
from ladder import Ladder
from ladder_command import Figure, Options, Part, left_out, main
from small_calls import SMALL_CALLS, SmallCall
from workloads import (
    CHAIN,
    LARGE_OPS,
    LAYERS,
    SMALL_OPS,
    Chain,
    Mlp,
    SavingChain,
    SmallOp,
    TensorChain,
    values,
)

import gtensor as gt

CHAIN_TARGETS = {"pytorch": 0.4, "autograd": 0.28, "mygrad": 0.35}
SAVING_TARGET = 1.0  # x PyTorch
OWN_TARGET = 3.0  # x the op, whose rule is the same
OWN_TORCH_TARGET = 1.0  # x PyTorch's autograd.Function
SMALL_TARGET = 1.0  # x PyTorch
STEP_TARGET = 1.08  # x hand-written NumPy
ARENA_TARGET = 1.03  # x the same without the arena
LISTENER_TARGET = 1.5  # us per call of a path or a rule
IMPORT_TARGET = 2.0  # x the CPU time of a process that imports NumPy
PROGRAMS = {
    "import numpy": "import numpy",
    "import gtensor": "import gtensor",
    "import gtensor and a sum": "import gtensor as gt; gt.ones((3,)).sum()",
    "import gtensor and a layer": "import gtensor as gt; gt.nn.Linear(3, 2)(gt.ones((4, 3)))",
}
OPS = ("add", "multiply", "exp", "tanh", "sum")
SIZES = (1_000, 1_000_000)
LARGE_SHAPES = ((1_000, 1_000), (10_000, 100), (1_000_000,))


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts, by name."""
    if options.threads and find_spec("torch"):
        import torch

        torch.set_num_threads(options.threads)
    gt.set_default_device(options.device)
    yield "chain", lambda: chains(options)
    yield "saves", lambda: saving_chain(options)
    yield "own", lambda: own_rules(options)
    yield "small", lambda: small_ops(options)
    yield "mlp", lambda: mlp(options)
    if options.device == "cpu":
        for name in SMALL_CALLS:
            yield f"calls {name}", partial(small_call, name, options)
        yield "memory", lambda: step_memory(options)
        yield "import", lambda: import_cost(options)
        yield "listener", lambda: listener(options)
        for name in LARGE_OPS:
            yield f"large {name}", partial(large_op, name, options)
    yield "ops", lambda: single_ops(options)


def array_module(device: str) -> tuple[str, Any]:
    """The library without gradients on the device."""
    if device == "cpu":
        return "numpy", np
    import cupy

    return "cupy", cupy


def chains(options: Options) -> Iterator[Part]:
    """300 chained multiply-adds on 32 elements, forward and backward."""
    plain, xp = array_module(options.device)
    for work, label, judged in ((Chain(options.device), "numbers", options.device == "cpu"),
                                (TensorChain(options.device), "tensors", False)):
        ladder = Ladder(f"chain of {CHAIN} multiply-adds by {label}, forward and backward",
                        work.reference, tolerance=1e-4, per=2 * CHAIN, unit="op",
                        device=options.device)
        ladder.rung("gtensor", work.gtensor(), result=values)
        peers = [("pytorch", "torch")]
        if options.device == "cpu":
            peers += [("autograd", "autograd"), ("mygrad", "mygrad"),
                      ("mygrad, unguarded", "mygrad_unguarded")]
        for name, module in peers:
            reason = left_out(module.removesuffix("_unguarded"), options.device)
            if reason is not None:
                ladder.note(reason)
                continue
            ladder.rung(name, getattr(work, module)(), result=values)
            if judged and name in CHAIN_TARGETS:
                ladder.target("gtensor", name, CHAIN_TARGETS[name])
            else:
                ladder.compare("gtensor", name)
        ladder.floor(f"{plain}, forward only", work.by_hand(xp))
        ladder.compare("gtensor", f"{plain}, forward only")
        yield ladder


def saving_chain(options: Options) -> Iterator[Part]:
    """300 sines of products on 32 elements, forward and backward."""
    plain, xp = array_module(options.device)
    for label, tensors in (("numbers", False), ("tensors", True)):
        work = SavingChain(options.device, tensors)
        ladder = Ladder(f"chain of {CHAIN} sines of products by {label}, forward and backward",
                        work.reference, tolerance=1e-4, per=2 * CHAIN, unit="op",
                        device=options.device)
        ladder.rung("gtensor", work.gtensor(), result=values)
        _beside_pytorch(ladder, options, work.torch, SAVING_TARGET)
        ladder.floor(f"{plain}, forward only", work.by_hand(xp))
        ladder.compare("gtensor", f"{plain}, forward only")
        yield ladder


def sine_of(library: Any) -> Callable[[Any], Any]:
    """A sine whose rule is that of the op, as programs for PyTorch write it."""
    class Sine(library.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return library.sin(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * library.cos(x)

    return Sine.apply


def own_rules(options: Options) -> Iterator[Part]:
    """300 sines of 32 elements, forward and backward: the op, and functions with the same rule."""
    by_vjp = gt.custom_vjp(gt.sin)
    by_vjp.defvjp(lambda x: (gt.sin(x), x), lambda x, g: (g * gt.cos(x),))
    by_jvp = gt.custom_jvp(gt.sin)
    by_jvp.defjvp(lambda xs, ts: (gt.sin(xs[0]), ts[0] * gt.cos(xs[0])))
    start = np.linspace(0.1, 1.5, 32).astype(np.float32)

    def chain(library: Any, sine: Callable[[Any], Any]) -> Any:
        x = library.tensor(start, device=options.device, requires_grad=True)
        y = x
        for _ in range(CHAIN):
            y = sine(y)
        y.sum().backward()
        return x.grad

    def reference() -> np.ndarray:
        y, slope = start.astype(np.float64), np.ones(32)
        for _ in range(CHAIN):
            y, slope = np.sin(y), slope * np.cos(y)
        return slope

    ladder = Ladder(f"chain of {CHAIN} sines, forward and backward", reference, tolerance=1e-4,
                    per=2 * CHAIN, unit="op", device=options.device)
    for name, sine in (("the op", gt.sin), ("gtensor", sine_of(gt)), ("custom_vjp", by_vjp),
                       ("custom_jvp", by_jvp)):
        ladder.rung(name, partial(chain, gt, sine), result=values)
    for name in ("gtensor", "custom_vjp"):
        ladder.target(name, "the op", OWN_TARGET)
    ladder.compare("custom_jvp", "the op")
    _beside_pytorch(ladder, options, lambda: partial(chain, *_torch_sine()), OWN_TORCH_TARGET)
    yield ladder


def _torch_sine() -> tuple[Any, Callable[[Any], Any]]:
    import torch

    return torch, sine_of(torch)


def small_ops(options: Options) -> Iterator[Part]:
    """Ops that compute little or nothing, on 32 elements, forward and backward."""
    for name in SMALL_OPS:
        work = SmallOp(name, options.device)
        ladder = Ladder(f"{name} of 32 elements, forward and backward", work.reference,
                        device=options.device)
        ladder.rung("gtensor", work.gtensor(), result=values)
        _beside_pytorch(ladder, options, work.torch, SMALL_TARGET)
        yield ladder


def small_call(name: str, options: Options) -> Iterator[Part]:
    """A call on small tensors, as it is and recorded for a gradient."""
    work = SMALL_CALLS[name]
    for recorded in (False, True)[:1 + work.recorded]:
        ladder = Ladder(f"{name} of {work.shapes or ''}" + ", recorded" * recorded,
                        work.reference, tolerance=1e-4, device=options.device)
        ladder.rung("gtensor", work.run(gt, recorded), result=_detached)
        _beside_pytorch(ladder, options, partial(_of_torch, work, recorded), work.most)
        yield ladder


def _of_torch(work: SmallCall, recorded: bool) -> Callable[[], Any]:
    import torch

    return work.run(torch, recorded)


def _detached(result: Any) -> Any:
    return values(result.detach() if isinstance(result, gt.Tensor) else result)


def large_op(name: str, options: Options) -> Iterator[Part]:
    """An op of 10^6 elements, forward, and forward and backward."""
    work = LARGE_OPS[name]
    for shape in LARGE_SHAPES:
        for backward, most in ((False, work.forward), (True, work.both)):
            ladder = Ladder(f"{name} of {shape}" + ", forward and backward" * backward,
                            partial(work.reference, shape, backward), device=options.device)
            ladder.rung("gtensor", work.gtensor(shape, backward), result=values)
            _beside_pytorch(ladder, options, partial(work.torch, shape, backward), most)
            yield ladder


def _beside_pytorch(
    ladder: Ladder, options: Options, make: Callable[[], Callable[[], Any]], most: float
) -> None:
    """Add PyTorch's rung; on the CPU gtensor should take at most `most` times its time."""
    reason = left_out("torch", options.device)
    if reason is not None:
        ladder.note(reason)
        return
    ladder.rung("pytorch", make(), result=values)
    if options.device == "cpu":
        ladder.target("gtensor", "pytorch", most)
    else:
        ladder.compare("gtensor", "pytorch")


def mlp(options: Options) -> Iterator[Part]:
    """One step of an MLP: loss and all gradients."""
    plain, xp = array_module(options.device)
    work, flops = Mlp(options.device), Mlp(options.device).flops()
    by_hand = f"{plain} by hand"
    ladder = Ladder(f"mlp step {'-'.join(map(str, LAYERS))}", work.reference, tolerance=1e-4,
                    unit="step", device=options.device, min_sample=2e-2)
    ladder.rung("gtensor", work.gtensor(), result=values, flops=flops)
    ladder.rung(by_hand, work.by_hand(xp), flops=flops)
    ladder.rung("gtensor, no arena", without_arena(work.gtensor()), result=values, flops=flops)
    reason = left_out("torch", options.device)
    if reason is None:
        ladder.rung("pytorch", work.torch(), result=values, flops=flops)
        ladder.compare("gtensor", "pytorch")
    else:
        ladder.note(reason)
    if options.device == "cpu":
        ladder.target("gtensor", by_hand, STEP_TARGET)
        ladder.target("gtensor", "gtensor, no arena", ARENA_TARGET)
    else:
        ladder.compare("gtensor", by_hand, "gtensor, no arena")
    product_floor(ladder, xp, 1024 if options.device == "cpu" else 4096)
    yield ladder


def without_arena(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same work with arrays from the array library's own allocator."""

    def switched() -> Any:
        with gt.memory.use_arena(False):
            return run()

    return switched


def step_memory(options: Options) -> Iterator[Part]:
    """The peak of that step, counted by the arena down to the smallest array."""
    work = Mlp("cpu")
    with gt.settings.override(arena_min_bytes=0):
        gt.memory.empty_cache("cpu")
        before = gt.memory.stats("cpu").allocated
        step = work.gtensor()
        inputs = work.x.nbytes + work.target.nbytes
        step()
        gt.memory.reset_peak("cpu")
        step()
        peak = gt.memory.stats("cpu").peak_allocated - before - inputs
    parameters = sum(p.nbytes for p in work.parameters)
    activations = [len(work.x) * width * work.x.itemsize for width in LAYERS[1:]]
    target = 2 * parameters + sum(activations) + 2 * max(activations)
    yield Figure(
        "peak of an mlp step", peak, target, "bytes",
        f"parameters and gradients {2 * parameters:,}, saved activations {sum(activations):,}, "
        "twice "
        f"the largest {2 * max(activations):,}")


def import_cost(options: Options) -> Iterator[Part]:
    """The CPU time of processes that import gtensor, over one that imports NumPy."""
    with TemporaryDirectory() as bytecode:
        child = dict(os.environ, PYTHONPYCACHEPREFIX=bytecode,
                     PYTHONPATH=str(Path(gt.__file__).parents[1]))
        child.pop("PYTHONDONTWRITEBYTECODE", None)
        for text in PROGRAMS.values():
            _cpu_seconds(text, child)  # which writes the bytecode
        rounds = [{name: _cpu_seconds(text, child) for name, text in PROGRAMS.items()}
                  for _ in range(options.rounds)]
    times = {name: median(one[name] for one in rounds) for name in PROGRAMS}
    numpy, *others = times
    for name in others:
        yield Figure(
            f"{name}, over {numpy}", times[name] / times[numpy],
            IMPORT_TARGET if name == "import gtensor" else None, "x",
            f"medians of CPU time {1e3 * times[name]:.0f} and {1e3 * times[numpy]:.0f} ms, "
            "user and system, from the start to the end of the process")


def _cpu_seconds(text: str, environment: dict[str, str]) -> float:
    """User and system time of a process that runs the text."""
    before = getrusage(RUSAGE_CHILDREN)
    run([sys.executable, "-c", text], env=environment, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Nothing:
    """A listener of all ops that does nothing; `Counting` counts them."""

    def op_begins(self, event: Any) -> None:
        """Do nothing."""

    def op_ends(self, event: Any) -> None:
        """Do nothing."""


class Counting(Nothing):
    """How many paths and rules were called."""

    calls = 0

    def op_ends(self, event: Any) -> None:
        """Count it."""
        self.calls += 1


def listener(options: Options) -> Iterator[Part]:
    """(f) The chain under a listener that does nothing: the time it adds to a path or a rule."""
    for work, label in ((Chain("cpu"), "numbers"), (TensorChain("cpu"), "tensors")):
        run_chain = work.gtensor()
        with gt.listen(Counting()) as counting:
            run_chain()
        added, alone = [], []
        for _ in range(options.rounds):
            plain = _thread_seconds(run_chain)
            with gt.listen(Nothing()):
                heard = _thread_seconds(run_chain)
            added.append(1e6 * (heard - plain) / counting.calls)
            alone.append(1e6 * plain / counting.calls)
        yield Figure(f"a listener that does nothing, chain by {label}", median(added),
                     LISTENER_TARGET, "us",
                     f"median of {len(added)} rounds, least {min(added):.2f}; without a listener "
                     f"{min(alone):.2f} us per call of a path or a rule, {counting.calls} calls")


def _thread_seconds(run_chain: Callable[[], Any], times: int = 20) -> float:
    """Processor seconds of this thread per call."""
    start = thread_time()
    for _ in range(times):
        run_chain()
    return (thread_time() - start) / times


def single_ops(options: Options) -> Iterator[Part]:
    """One op: bare, through gtensor, and recorded for a gradient."""
    plain, xp = array_module(options.device)
    rng = np.random.default_rng(0)
    for size in SIZES:
        x, y = (xp.asarray(rng.standard_normal(size).astype(np.float32)) for _ in range(2))
        for name in OPS:
            yield _one_op(name, x, y, plain, xp, options.device)


def _one_op(name: str, x: Any, y: Any, plain: str, xp: Any, device: str) -> Ladder:
    function, own = getattr(xp, name), getattr(gt, name)
    arrays = (x, y) if name in ("add", "multiply") else (x,)
    tensors = tuple(gt.asarray(a) for a in arrays)
    leaves = tuple(gt.tensor(a, device=device, requires_grad=True) for a in arrays)
    ladder = Ladder(f"{name} of {x.size:,} elements", lambda: function(*arrays), tolerance=1e-5,
                    device=device)
    moved = sum(a.nbytes for a in arrays) + (x.itemsize if name == "sum" else x.nbytes)
    ladder.rung("gtensor", lambda: own(*tensors), result=values, moved=moved)
    ladder.rung("gtensor, recorded", lambda: own(*leaves), result=lambda t: values(t.detach()),
                moved=moved)
    ladder.rung(plain, lambda: function(*arrays), moved=moved)
    ladder.compare("gtensor", plain)
    ladder.compare("gtensor, recorded", plain)
    return ladder


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_overhead", clock="cpu"))
