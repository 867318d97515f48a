"""What profiling costs: an op, a range, a file, and the page of a long training.

    python profiling/ladder_profiler.py
    python profiling/ladder_profiler.py --only op          # beside torch.profiler, if installed
    python profiling/ladder_profiler.py --only page        # needs npm, which fetches a Chromium

`op`: a chain of small additions, forward and backward, and a training step of a small network, with
and without a profile: the difference per op. `range`: `with gt.profiler.range("name")` where nobody
listens, and with NVTX switched on without a tool. `files`: 100,000 ops as every file of a profile.
`page`: 1,000 steps of a training in a headless Chromium, from the address to the drawn page, and
from a click on an op to the drawn answer. Times are of this thread's processor, since the machine
may be busy, and the least of the rounds; those of the page are the wall clock's.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from ladder_command import Figure, Options, Part, left_out, main
from ladder_snapshot import least

import gtensor as gt
from gtensor.profiler import Profile
from gtensor.settings import settings

OP_TARGET = 3.0  # us
RANGE_TARGET = 150.0  # ns
TRACE_TARGET = 2.0  # s
CLICK_TARGET = 1.0  # s
OPS = 100_000
STEPS = 1_000


# -- work ------------------------------------------------------------------------------------------


def chain(device: str, length: int = 64) -> tuple[Callable[[], None], int]:
    """A chain of additions and its backward pass; how many ops that is."""
    x = gt.ones(32, device=device, requires_grad=True)
    one = gt.ones(32, device=device)

    def work() -> None:
        y = x
        for _ in range(length):
            y = y + one
        y.backward(one)
        x.grad = None

    return work, counted(work)


def training(device: str) -> tuple[Callable[[], None], int]:
    """A training step of two layers on 32 examples; how many ops that is."""
    net = gt.nn.Sequential(gt.nn.Linear(16, 32, device=device), gt.nn.ReLU(),
                           gt.nn.Linear(32, 4, device=device))
    optimizer = gt.optim.Adam(net.parameters())
    x = gt.ones((32, 16), device=device)

    def step() -> None:
        optimizer.zero_grad()
        (net(x) ** 2).mean().backward()
        optimizer.step()

    return step, counted(step)


def counted(work: Callable[[], None]) -> int:
    """The ops of a second call."""
    work()
    with gt.profiler.profile() as found:
        work()
    return sum(span.kind == "op" for span in found.spans)


# -- parts -----------------------------------------------------------------------------------------


def per_op(options: Options) -> Iterator[Part]:
    """Microseconds that a profile adds to an op."""
    times = 20 if options.quick else 200
    for name, make in (("a chain of additions", chain), ("a training step", training)):
        work, ops = make(options.device)

        def run(work: Callable[[], None] = work) -> None:
            for _ in range(times):
                work()

        def profiled(run: Callable[[], None] = run) -> None:
            with gt.profiler.profile():
                run()

        plain = least(run, options.rounds)
        more = least(profiled, options.rounds) - plain
        yield Figure(f"a profile, per op of {name}", more / (times * ops) * 1e6,
                     OP_TARGET if options.device == "cpu" else None, "us",
                     f"{ops} ops, {plain / (times * ops) * 1e6:.2f} us each without")
    if left_out("torch", options.device) is None and options.device == "cpu":
        yield peer(options, times)


def peer(options: Options, times: int, length: int = 64) -> Figure:
    """The same of torch.profiler for that chain: forward and backward make two ops a link."""
    import torch

    x, one = torch.ones(32, requires_grad=True), torch.ones(32)

    def run() -> None:
        for _ in range(times):
            y = x
            for _ in range(length):
                y = y + one
            y.backward(one)
            x.grad = None

    def profiled() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            run()

    run()
    plain = least(run, options.rounds)
    more = least(profiled, min(options.rounds, 5)) - plain
    return Figure(
        "torch.profiler, per op of the chain", more / (times * 2 * length) * 1e6, None, "us",
        f"PyTorch {torch.__version__}, CPU activity; its backward pass runs in this thread, too")


def ranges(options: Options) -> Iterator[Part]:
    """Nanoseconds of a range of the user's."""
    times = 10_000 if options.quick else 100_000
    mark = gt.profiler.range

    def itself() -> None:
        for _ in range(times):
            with mark("name"):
                pass

    def by_full_name() -> None:
        for _ in range(times):
            with gt.profiler.range("name"):
                pass

    empty = least(lambda: [None for _ in range(times)], options.rounds)
    for name, mode, run, target in (
            ("nobody listens", -1, itself, RANGE_TARGET),
            ("NVTX is on, without a tool", 1, itself, RANGE_TARGET),
            ("nobody listens, looked up as gt.profiler.range", -1, by_full_name, None)):
        with settings.override(nvtx=mode):
            took = least(run, options.rounds) - empty
        yield Figure(f"a range while {name}", took / times * 1e9, target, "ns")


def long_profile(device: str, ops: int) -> Profile:
    """A profile of training steps, of about so many ops."""
    step, each = training(device)
    with gt.profiler.profile() as found:
        for _ in range(ops // each):
            step()
    found.recorded  # noqa: B018 - read now, so that it is not part of the first file's time
    return found


def files(options: Options) -> Iterator[Part]:
    """Seconds per file."""
    found = long_profile(options.device, OPS // 10 if options.quick else OPS)
    ops = sum(span.kind == "op" for span in found.spans)
    with tempfile.TemporaryDirectory() as folder:
        for name, write, target in (
                ("a trace", found.chrome_trace, TRACE_TARGET), ("a page", found.html, None),
                ("itself", found.save, None)):
            path = Path(folder) / ("p.html" if name == "a page" else "p.json")
            seconds = least(lambda write=write, path=path: write(path), min(options.rounds, 5))
            yield Figure(f"a profile of {ops:,} ops as {name}", seconds, target, "s",
                         f"{path.stat().st_size / 2**20:.1f} MiB, {len(found.spans):,} spans")


def page(options: Options) -> Iterator[Part]:
    """Seconds until the page of a long training is drawn, and until a click is answered."""
    root = str(Path(__file__).resolve().parents[1])
    if root not in sys.path:
        sys.path.append(root)
    from tests.browser import browser

    steps = STEPS // 10 if options.quick else STEPS
    step, _ = training(options.device)
    with gt.profiler.profile() as found:
        for _ in range(steps):
            step()
    drawn = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
    with tempfile.TemporaryDirectory() as folder, browser() as tab:
        path = Path(folder) / "p.html"
        found.html(path)
        tab.open(path)
        opened, clicked = [], []
        for _ in range(min(options.rounds, 5)):
            start = perf_counter()
            tab.open(path)
            tab.run(drawn)
            opened.append(perf_counter() - start)
            at = next(i for i in reversed(range(len(found.spans)))
                      if found.spans[i].link is not None)
            x, y = tab.run(f"zoomTo({at}); (() => {{ const r = plot.getBoundingClientRect(), "
                           f"[x, y] = middle({at}); return [r.left + x, r.top + y]; }})()")
            start = perf_counter()
            tab.click(x, y)
            tab.run(drawn)
            clicked.append(perf_counter() - start)
            if tab.run("chosen") != at or tab.errors:
                raise RuntimeError(f"the page chose op {tab.run('chosen')}, wanted {at}; its "
                                   f"errors: {tab.errors}")
        size = path.stat().st_size / 2**20
    about = f"{steps:,} steps, {len(found.spans):,} spans, {size:.1f} MiB, no console error"
    yield Figure("the page of a training is drawn", min(opened), None, "s", about)
    yield Figure("a click on an op is answered", min(clicked), CLICK_TARGET, "s", about)


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts, by name."""
    yield "op", lambda: per_op(options)
    yield "range", lambda: ranges(options)
    yield "files", lambda: files(options)
    if options.device == "cpu":
        yield "page", lambda: page(options)


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_profiler"))
