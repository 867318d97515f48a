"""The host's time of an op on CUDA: what Python, gtensor and CuPy take until the work is queued.

    python profiling/host_time.py                   # limits, single ops, a Transformer layer's step
    python profiling/host_time.py --only limits     # the ratios that have a limit
    python profiling/host_time.py --only matmul     # one op
    python profiling/host_time.py --clock cpu       # on a machine with other work

It needs no GPU: CuPy runs on the host device (`gtensor.hostcuda`). Every rung is checked with its
kernels run, and is timed dry: work is queued and counted, and does nothing. What the host device
itself takes for a launch is in every rung, and the floor shows it; a real driver takes another
time. So compare rungs, and read differences as gtensor's share.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from ladder import Ladder, Spread
from ladder_command import Figure, Options, Part, main
from workloads import values

from gtensor import hostcuda

WIDTH = 32  # of square arrays: dry, a size costs nothing
CHAIN = 16  # adds in a chain
OPS = {"add": 2, "multiply": 2, "exp": 1, "tanh": 1, "sum": 1, "matmul": 2}  # name -> inputs


class DryLadder(Ladder):
    """Checked with kernels, timed without them."""

    def check(self) -> None:
        super().check()
        hostcuda.configure(dry=True)

    def climb(self, *args: Any, **kwargs: Any) -> Ladder:
        try:
            return super().climb(*args, **kwargs)
        finally:
            hostcuda.configure()


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts, by name."""
    yield "limits", limits
    for name, inputs in OPS.items():
        yield name, lambda name=name, inputs=inputs: one_op(name, inputs)
    yield "transformer", transformer


def limits() -> Iterator[Part]:
    """`gt.add`, its backward pass and an array's memory, by CuPy's times for the same.

    The backward pass is what a call with it takes beyond one without. That of one add includes what
    `backward()` costs once, and two new gradients; that of a chain shows what each add adds.
    """
    import cupy

    import gtensor as gt

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(WIDTH).astype(np.float32) for _ in range(CHAIN + 1)]
    bare = [cupy.asarray(array) for array in arrays[:2]]
    plain = [gt.tensor(array, device="cuda") for array in arrays[:2]]
    leaves = [gt.tensor(array, device="cuda", requires_grad=True) for array in arrays]
    seed = gt.ones((WIDTH,), device="cuda")
    own = partial(cupy.cuda.using_allocator, cupy.cuda.MemoryPool().malloc)

    def recorded(count: int) -> Any:
        total = leaves[0]
        total.grad = None
        for leaf in leaves[1:count + 1]:
            leaf.grad = None
            total = gt.add(total, leaf)
        return total

    def whole(count: int) -> Any:
        out = recorded(count)
        out.backward(seed)
        return out

    ladder = DryLadder("add, 32 float32", lambda: arrays[0] + arrays[1])
    ladder.rung("cupy", lambda: cupy.add(*bare), result=lambda out: out.get())
    ladder.rung("cupy, its own pool", lambda: cupy.add(*bare), within=own,
                result=lambda out: out.get())
    ladder.rung("gtensor", lambda: gt.add(*plain), result=values)
    ladder.rung("gtensor, recorded", lambda: recorded(1), result=lambda out: values(out.detach()))
    ladder.rung("gtensor, backward too", lambda: whole(1), result=lambda out: values(out.detach()))
    ladder.floor("a chain, recorded", lambda: recorded(CHAIN))
    ladder.floor("a chain, backward too", lambda: whole(CHAIN))
    ladder.target("gtensor", "cupy", 1.35)
    ladder.compare("gtensor", "cupy, its own pool")
    ladder.compare("gtensor, recorded", "cupy")
    yield ladder
    for name, more, less, count, most in (
            ("the backward pass of one add", "gtensor, backward too", "gtensor, recorded", 1, 2.5),
            ("the backward pass of a chain, per add", "a chain, backward too", "a chain, recorded",
             CHAIN, 1.7)):
        samples = [next(rung.samples for rung in ladder.rungs if rung.name == wanted)
                   for wanted in (more, less, "cupy")]
        ratio = Spread.of([(a - b) / count / c for a, b, c in zip(*samples, strict=True)])
        yield Figure(f"{name} / cupy", ratio.median, most,
                     note=f"quartiles {ratio.low:.3f} .. {ratio.high:.3f}")

    ladder = DryLadder("an array of CuPy's made and dropped", lambda: np.zeros(WIDTH))
    empty, dtype = cupy.empty, np.float32
    for name, within in (("CuPy's pool", {"within": own}), ("the arena", {})):
        ladder.rung(name, lambda: empty(WIDTH, dtype), result=lambda out: np.zeros(out.shape),
                    **within)
    ladder.target("the arena", "CuPy's pool", 1.3)
    yield ladder


def one_op(name: str, inputs: int) -> Iterator[Part]:
    """CuPy's function, gtensor's, the same recorded, and with its backward pass."""
    import cupy

    import gtensor as gt

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(inputs)]
    bare = [cupy.asarray(array) for array in arrays]
    plain = [gt.tensor(array, device="cuda") for array in arrays]
    leaves = [gt.tensor(array, device="cuda", requires_grad=True) for array in arrays]
    theirs, ours = getattr(cupy, name), getattr(gt, name)
    seed = gt.ones(ours(*plain).shape, device="cuda")

    def whole() -> Any:
        for leaf in leaves:
            leaf.grad = None
        out = ours(*leaves)
        out.backward(seed)
        return out

    ladder = DryLadder(f"{name} on the host", lambda: getattr(np, name)(*arrays))
    ladder.rung("cupy", lambda: theirs(*bare), result=lambda out: out.get())
    ladder.rung("gtensor", lambda: ours(*plain), result=values)
    ladder.rung("gtensor, recorded", lambda: ours(*leaves), result=lambda out: values(out.detach()))
    ladder.rung("gtensor, backward too", whole, result=lambda out: values(out.detach()))
    ladder.floor("one memset queued", lambda: bare[0].data.memset_async(0, 4))
    ladder.compare("gtensor", "cupy")
    ladder.compare("gtensor, recorded", "gtensor")
    ladder.compare("gtensor, backward too", "gtensor, recorded")
    yield ladder


def transformer() -> Iterator[Part]:
    """Forward and backward of a Transformer layer; times are shown for one launch."""
    import gtensor as gt

    gt.manual_seed(0)
    rng = np.random.default_rng(0)
    layer = gt.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True,
                                          device="cuda")
    x = gt.tensor(rng.standard_normal((2, 8, WIDTH)).astype(np.float32), device="cuda")

    def step() -> Any:
        layer.zero_grad()
        out = layer(x).sum()
        out.backward()
        return out

    step()
    hostcuda.reset_counters()
    reference = values(step().detach())
    ladder = DryLadder("transformer layer on the host", lambda: reference,
                       per=hostcuda.counters().launches, unit="launch")
    ladder.rung("gtensor", step, result=lambda out: values(out.detach()))
    yield ladder


if __name__ == "__main__":
    hostcuda.install()
    sys.exit(main(__doc__, build, "host_time"))
