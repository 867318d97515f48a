"""What an op costs beside its arithmetic, against PyTorch, HIPS autograd, MyGrad and bare NumPy.

    python profiling/ladder_overhead.py                     # all parts, one thread
    python profiling/ladder_overhead.py --only chain        # tiny arrays: the library's own time
    python profiling/ladder_overhead.py --only mlp          # an MLP step against NumPy by hand
    python profiling/ladder_overhead.py --only ops          # single ops at 1e3 and 1e6 elements
    python profiling/ladder_overhead.py --only activations  # GELU, softplus, ELU at 1e6 elements
    python profiling/ladder_overhead.py --only import       # processes that import gtensor or NumPy
    python profiling/ladder_overhead.py --device cuda       # against PyTorch and CuPy on a GPU

Peers that are not installed, or cannot use the device, are left out and named under the table.
Every rung is compared with gradients derived by hand before anything is timed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
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
from workloads import CHAIN, LAYERS, Chain, Mlp, TensorChain, values

import gtensor as gt

CHAIN_TARGETS = {"pytorch": 0.6, "autograd": 0.35, "mygrad": 0.35}
STEP_TARGET = 1.05  # x hand-written NumPy
ARENA_TARGET = 1.03  # x the same without the arena
IMPORT_TARGET = 2.0  # x the CPU time of a process that imports NumPy
PROGRAMS = {
    "import numpy": "import numpy",
    "import gtensor": "import gtensor",
    "import gtensor and a sum": "import gtensor as gt; gt.ones((3,)).sum()",
    "import gtensor and a layer": "import gtensor as gt; gt.nn.Linear(3, 2)(gt.ones((4, 3)))",
}
ACTIVATIONS = {"gelu": (6.0, 3.0), "softplus": (2.0, 2.0), "elu": (2.0, 2.0)}
"""At most x PyTorch: forward, and with backward."""
OPS = ("add", "multiply", "exp", "tanh", "sum")
SIZES = (1_000, 1_000_000)


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts, by name."""
    if options.threads and find_spec("torch"):
        import torch

        torch.set_num_threads(options.threads)
    gt.set_default_device(options.device)
    yield "chain", lambda: chains(options)
    yield "mlp", lambda: mlp(options)
    if options.device == "cpu":
        yield "memory", lambda: step_memory(options)
        yield "import", lambda: import_cost(options)
        yield "activations", lambda: activations()
    yield "ops", lambda: single_ops(options)


def array_module(device: str) -> tuple[str, Any]:
    """The library without gradients on the device."""
    if device == "cpu":
        return "numpy", np
    import cupy

    return "cupy", cupy


def chains(options: Options) -> Iterator[Part]:
    """(a) 300 chained multiply-adds on 32 elements, forward and backward."""
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


def mlp(options: Options) -> Iterator[Part]:
    """(b) One step of an MLP: loss and all gradients."""
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
    """(c) The peak of that step, counted by the arena down to the smallest array."""
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
    """(e) The CPU time of processes that import gtensor, over one that imports NumPy."""
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


def single_ops(options: Options) -> Iterator[Part]:
    """(d) One op: bare, through gtensor, and recorded for a gradient."""
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


def activations() -> Iterator[Part]:
    """(e) Activations of a million float32 against PyTorch, forward and with backward, by the time
    of this thread."""
    if not find_spec("torch"):
        return
    import torch

    x, g = np.random.default_rng(0).standard_normal((2, 1_000_000)).astype(np.float32)
    for name, targets in ACTIVATIONS.items():
        sides = (
            (getattr(gt.nn.functional, name), gt.tensor(x), gt.tensor(x, requires_grad=True),
             gt.tensor(g)),
            (getattr(torch.nn.functional, name), torch.tensor(x),
             torch.tensor(x, requires_grad=True), torch.tensor(g)))
        for label, calls, target in zip(
                ("forward", "with backward"), zip(*map(_both, sides), strict=True), targets,
                strict=True):
            yield Figure(f"{name} of 1,000,000, {label}", _ratio(*calls), target, "x PyTorch")


def _both(side: tuple[Any, ...]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    function, x, leaf, g = side

    def step() -> None:
        leaf.grad = None
        function(leaf).backward(g)

    return lambda: function(x), step


def _ratio(own: Callable[[], Any], other: Callable[[], Any], rounds: int = 25) -> float:
    """The median ratio of two calls' times on this thread, each pair taken close together."""
    ratios = []
    for _ in range(rounds):
        times = []
        for call in (own, other):
            call()  # not timed: the caches of the other
            start = thread_time()
            call()
            times.append(thread_time() - start)
        ratios.append(times[0] / times[1])
    return median(ratios)


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_overhead"))
