"""Launch every CUDA kernel on small arrays, forward and backward, and compare with the CPU.

    python profiling/touch_kernels.py --processes 8                  # all ops, all dtypes
    python profiling/touch_kernels.py --only arena,softmax,gelu:float16 --traceback
    compute-sanitizer python profiling/touch_kernels.py --exact-allocations --dtypes float32 \\
        --job-seconds 0

The ops come from the registry with the samples of their records. Beside them stand a few checks
of what has no record: optimizers, averages, more of in-place norms, products into buffers,
the arena under CuPy, stream ids, a captured step. A job is one check, or one op in one dtype. Jobs
run in this order: those of `--only` as named there; else all checks, then all ops in the first
dtype, in the next one, and so on. Kernels that exist but were never launched are named at the end.

Each result is printed as soon as it is there. These formats are stable:

    ok     softmax float32 (0.12 s)
    FAILED softmax float16: CheckError: sample 0: ...
    FAILED arena: CheckError: ...

Further lines of a reason or traceback are indented. The words between FAILED and the first colon
name the job. `--only` accepts them as they are, so a second run can repeat what failed.

With several processes a job that fails in any way costs itself only: one that ends its process, one
that destroys the CUDA context (its process is replaced), one that hangs (it is killed after
`--job-seconds`, and its traceback printed). With one process the work runs in this process. Then a
lost context or a job that takes too long ends the run. SIGINT and SIGTERM end every run; in all
these cases the report follows, and says what did not run.

`--exact-allocations` gives each array a cudaMalloc of its own. A memory checker needs that: an
arena cuts many arrays from one segment, so an access just beyond one of them would be legal. The
checks of the arena and of graphs, which need its pools, are then left out.

Exit status: 0, or 1 if anything failed or did not run, if a kernel was never launched or `--only`
has an unknown name, or 2 without a CUDA device and for other wrong usage.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from lost_context import lost
from processes import InThisProcess, Pool, Result, Stopped, stoppable

import gtensor as gt
import gtensor.nn.functional  # registers its ops
from gtensor.backend import kernels
from gtensor.backend.matmul_kernel import matmul_into
from gtensor.engine.tape.op import Op, registry
from gtensor.nn.blocks.transformer import KVCache
from gtensor.ops.attention.attention import attention
from gtensor.ops.norms.layer_norm import layer_norm_for_products
from gtensor.testing.cases import Case, samples_of
from gtensor.testing.compare import TOLERANCES, CheckError, close, to_numpy

SEED = 0
REFERENCES = ("batch_norm.cu", "matmul_naive.cu")  # launched by ladders and tests/kernels only
NAMED = 10  # jobs that did not run, at most so many by name
# What matters most is first, for a run that is ended before its end.
DTYPES = {dtype.name: dtype for dtype in sorted(TOLERANCES, key=lambda d: d.name != "float32")}


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    device: str
    dtypes: tuple[str, ...]
    exact: bool
    traceback: bool
    files: tuple[str, ...]  # run before the work, in each process
    compares: bool = True  # values of ops


@dataclass(frozen=True)
class Job:
    """One check, or one op in one dtype. Its label is what lines and `--only` call it."""

    name: str
    dtype: str  # empty for a check
    work: Callable[[Options], None]

    @property
    def label(self) -> str:
        return f"{self.name} {self.dtype}".rstrip()


@dataclass
class Outcome:
    """What was run, what failed (label -> reason), which kernels were launched or exist."""

    ran: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    launched: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)

    def add(self, result: Result) -> None:
        """Count a result, and print it."""
        self.ran.append(result.job)
        if result.news is not None:
            launched, known = result.news
            self.launched |= launched
            self.known |= known
        if not result.failure:
            print(f"ok     {result.job} ({result.seconds:.2f} s)", flush=True)
            return
        self.failed[result.job] = result.failure
        first, _, rest = result.failure.partition("\n")
        more = "\n".join(filter(None, (rest, result.detail.rstrip())))
        print(f"FAILED {result.job}: {first}", flush=not more)
        if more:
            print(textwrap.indent(more, "    "), flush=True)


# -- ops -------------------------------------------------------------------------------------------


def touch_op(op: Op, dtype_name: str, options: Options) -> None:
    """Value and gradients of every sample in one dtype, on the device and on the CPU."""
    dtype = DTYPES[dtype_name]
    rtol, atol = TOLERANCES[dtype]
    for number, sample in enumerate(samples_of(op)):
        given, wanted = (_value_and_gradients(op, sample, place, dtype)
                         for place in (options.device, "cpu"))
        for i, (a, b) in enumerate(zip(given, wanted, strict=True) if options.compares else ()):
            what = f"sample {number}: " + (f"the gradient of input {i - 1}" if i else "the value")
            if a is not None and b is not None:
                if a.dtype != b.dtype:
                    raise CheckError(f"{what} is {a.dtype}, on the CPU {b.dtype}")
                largest = float(np.abs(b.astype(np.float64)).max(initial=1.0)) if i else 1.0
                tolerance = (rtol, atol * largest) if a.dtype in TOLERANCES else None
                close(what, a, b, tolerance, (options.device, "cpu"))


def _value_and_gradients(
    op: Op, sample: gt.Sample, place: str, dtype: Any
) -> list[np.ndarray | None]:
    case = Case.of(op, sample, gt.device(place), SEED, [dtype], None)
    inputs = case.inputs(dtype=dtype, requires=case.floats if case.differentiable else ())
    output = case.call(inputs)
    gradients: list[np.ndarray | None] = []
    if output.requires_grad:
        gradients = case.walk(output, case.upstream(output), inputs)
    return [to_numpy(output), *gradients]


# -- what has no record ----------------------------------------------------------------------------


def touch_optimizers(options: Options) -> None:
    """Three steps of every optimizer equal the CPU's."""
    makers: dict[str, Callable[[Any], Any]] = {
        "SGD": lambda p: gt.optim.SGD(p, lr=0.1, weight_decay=0.01),
        "SGD with momentum": lambda p: gt.optim.SGD(p, lr=0.1, momentum=0.9),
        "SGD with Nesterov's": lambda p: gt.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "Adam": lambda p: gt.optim.Adam(p, lr=0.1, weight_decay=0.01),
        "AdamW": lambda p: gt.optim.AdamW(p, lr=0.1),
        "AdamW with AMSGrad": lambda p: gt.optim.AdamW(p, lr=0.1, amsgrad=True),
        "Adam that maximizes": lambda p: gt.optim.Adam(p, lr=0.1, maximize=True),
        "Lion": lambda p: gt.optim.Lion(p, lr=0.1, weight_decay=0.01),
        "RMSprop": lambda p: gt.optim.RMSprop(p, lr=0.1, weight_decay=0.01),
        "RMSprop with momentum": lambda p: gt.optim.RMSprop(p, lr=0.1, momentum=0.9),
        "RMSprop, centered": lambda p: gt.optim.RMSprop(p, lr=0.1, eps=0.1, centered=True),
        "Adagrad": lambda p: gt.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    }
    rng = np.random.default_rng(SEED)
    start, gradients = rng.standard_normal((3, 5)), rng.standard_normal((3, 3, 5))
    for dtype in options.dtypes:
        for name, make in makers.items():
            results = []
            for place in (options.device, "cpu"):
                w = gt.tensor(start, dtype=DTYPES[dtype], device=place, requires_grad=True)
                optimizer = make([w])
                for g in gradients:
                    w.grad = gt.tensor(g, dtype=DTYPES[dtype], device=place)
                    optimizer.step()
                results.append(to_numpy(w.detach()))
            close(f"{name}, {dtype}", *results, names=(options.device, "cpu"))


def touch_clipping(options: Options) -> None:
    """Gradients clipped by norms and by value equal the CPU's."""
    rng = np.random.default_rng(SEED)
    values = [rng.standard_normal(s) for s in ((3, 5), (7,), (0, 2))]
    clips: dict[str, Callable[[Any], Any]] = {
        **{f"norm of order {p}": lambda w, p=p: gt.optim.clip_grad_norm_(w, 0.5, norm_type=p)
           for p in (2.0, 1.0, float("inf"))},
        "value": lambda w: gt.optim.clip_grad_value_(w, 0.3),
    }
    for dtype in options.dtypes:
        for name, clip in clips.items():
            results = []
            for place in (options.device, "cpu"):
                leaves = [gt.tensor(v, dtype=DTYPES[dtype], device=place, requires_grad=True)
                          for v in values]
                for w in leaves:
                    w.grad = w.detach() * 2
                clip(leaves)
                results.append([to_numpy(w.grad) for w in leaves])
            for i, (there, here) in enumerate(zip(*results, strict=True)):
                close(f"clip by {name}, gradient {i}, {dtype}", there, here,
                      names=(options.device, "cpu"))


def touch_averages(options: Options) -> None:
    """Three updates of averaged weights equal the CPU's."""
    weights = np.random.default_rng(SEED).standard_normal((3, 3, 5))
    for dtype in options.dtypes:
        results = []
        for place in (options.device, "cpu"):
            net = gt.nn.Linear(5, 3, bias=False).to(place).to(DTYPES[dtype])
            average = gt.optim.EMA(net, decay=0.9)
            for w in weights:
                with gt.no_grad():
                    net.weight[...] = gt.tensor(w, dtype=DTYPES[dtype], device=place)
                average.update()
            results.append(to_numpy(average.state_dict()["module.weight"]))
        close(f"averages, {dtype}", *results, names=(options.device, "cpu"))


def touch_scaler(options: Options) -> None:
    """A step with a loss scale, and one that is left out, equal the CPU's."""
    for dtype in options.dtypes:
        results = []
        for place in (options.device, "cpu"):
            w = gt.tensor([0.5, -1.0, 2.0], dtype=DTYPES[dtype], device=place, requires_grad=True)
            optimizer, scaler = gt.optim.AdamW([w], lr=0.1), gt.optim.GradScaler(
                init_scale=4.0, growth_interval=1)
            for factor in (1.0, float("inf"), 2.0):
                w.grad = w.detach() * 4 * factor
                scaler.step(optimizer)
                scaler.update()
            results.append([to_numpy(w.detach()), scaler.get_scale()])
        for there, here in zip(*results, strict=True):
            close(f"a scaled step, {dtype}", there, here, names=(options.device, "cpu"))


def touch_running_statistics(options: Options) -> None:
    """Averages and counts of batch norm, also without some of them, equal the CPU's.

    With sums over replicas they are moved by a launch of their own.
    """
    x = np.random.default_rng(SEED).standard_normal((6, 3))
    for dtype in (DTYPES[name] for name in options.dtypes):
        for var, counted, gather in product(*[(False, True)] * 2, (None, lambda a: a[None])):
            results = []
            for place in (options.device, "cpu"):
                given = gt.tensor(x, dtype=dtype, device=place)
                kept = [gt.zeros(3, device=place), gt.ones(3, device=place) if var else None,
                        gt.asarray(4, device=place) if counted else None]
                gt.nn.functional.batch_norm(given, *kept[:2], training=True,
                                            num_batches_tracked=kept[2], gather=gather)
                results.append([to_numpy(a) for a in kept if a is not None])
            for there, here in zip(*results, strict=True):
                close(f"running statistics, {dtype.name}", there, here, TOLERANCES[dtype],
                      (options.device, "cpu"))


def touch_other_ways(options: Options) -> None:
    """What the small samples of records do not reach: many rows, many channels, lower dtypes."""
    rng = np.random.default_rng(SEED)
    targets = rng.integers(0, 5, 300)
    rows, images, weights = (rng.standard_normal(shape) for shape in (
        (300, 5), (2, 24, 6, 6), (24, 24, 3, 3)))
    functions = gt.nn.functional

    def results(place: str, dtype: Any) -> Iterator[tuple[str, Any]]:
        x, image, weight = (gt.tensor(a, dtype=dtype, device=place, requires_grad=True)
                            for a in (rows, images, weights / 15))
        loss = functions.cross_entropy(x, gt.tensor(targets, device=place))
        yield "cross entropy", loss
        yield "its gradient", gt.grad([loss], [x])[0]
        out = functions.conv2d(image, weight)
        yield "the gradient of a convolution's weight", gt.grad(
            [out], [weight], [gt.ones(out.shape, dtype=dtype, device=place)])[0]

    def low(place: str, dtype: Any) -> Iterator[tuple[str, Any]]:
        x = gt.tensor(rows, dtype="float32", device=place)
        with gt.autocast(dtype.name):
            yield "a row norm for products", layer_norm_for_products(x, (5,), None, None, 1e-5)
        yield "nextafter", gt.nextafter(x, x + 1)

    for call, names in ((results, options.dtypes), (low, ("float16", "bfloat16"))):
        for dtype in (DTYPES[name] for name in names):
            for (what, there), (_, here) in zip(
                    call(options.device, dtype), call("cpu", dtype), strict=True):
                close(f"{what}, {dtype.name}", to_numpy(there.detach()), to_numpy(here.detach()),
                      TOLERANCES[dtype], (options.device, "cpu"))


def touch_abn(options: Options) -> None:
    """In-place norms equal the CPU's where x is found again, and with sums over replicas."""
    rng = np.random.default_rng(SEED)
    for dtype in (DTYPES[name] for name in options.dtypes):
        for shape in ((4, 3), (2, 3, 5)):  # channels last, and first
            values, upstream = rng.standard_normal(shape), rng.standard_normal(shape)
            for gather in (None, lambda a: a[None]):
                results = []
                for place in (options.device, "cpu"):
                    x, w, g = (gt.tensor(v, dtype=dtype, device=place, requires_grad=r)
                               for v, r in ((values, True), (np.ones(3), True), (upstream, False)))
                    y = gt.nn.functional.inplace_abn(
                        x * 1.0, w, activation="sigmoid", gather=gather)
                    gradients = gt.grad([y], [x, w], [g], create_graph=gather is None)
                    results.append([to_numpy(a.detach()) for a in (y, *gradients)])
                names = ("the value", "the gradient of x", "the gradient of weight")
                for what, there, here in zip(names, *results, strict=True):
                    close(f"{what}, {shape}, {dtype.name}", there, here, TOLERANCES[dtype],
                          (options.device, "cpu"))


def touch_context(options: Options) -> None:
    """An attention context is moved as on the CPU, from values that are not finite, too."""
    rng = np.random.default_rng(SEED)
    for dtype in (DTYPES[name] for name in options.dtypes):
        x, y = (rng.standard_normal((2, 50, 6)) for _ in range(2))
        y[0, 0, 0] = np.nan
        results = []
        for place in (options.device, "cpu"):
            context = gt.nn.SharedAttentionContext(6, rate=0.5)
            for _ in range(2):
                context.update(*(gt.tensor(v, dtype=dtype, device=place) for v in (x, y)))
            results.append(to_numpy(context.context))
        close(f"the context, {dtype.name}", *results, TOLERANCES[dtype], (options.device, "cpu"))


def touch_attention(options: Options) -> None:
    """Attention and its gradients, whatever `dtypes` are: in halves, float32, and by TF32.

    Two heads of queries share one of keys and values. Causal, and with dropout and a mask, which
    has a gradient. TF32 has as many bits as float16.
    """
    rng = np.random.default_rng(SEED)
    for name, tf32 in (("float16", 0), ("bfloat16", 0), ("float32", 0), ("float32", 1)):
        tolerance = TOLERANCES[DTYPES["float16" if tf32 else name]]
        sizes = [(168, 64), (168, 72), (72, 136)][:2 if name == "float32" else 3]
        for (length, size), p in product(sizes, (0.0, 0.3)):
            arrays = [rng.standard_normal((2, 2, heads, length, size)) for heads in (2, 1, 1, 2)]
            added = rng.standard_normal((2, length, length))
            results = []
            for place in (options.device, "cpu"):
                q, k, v, g, mask = (gt.tensor(a, dtype=DTYPES[name], device=place)
                                    for a in (*arrays, added))
                leaves = (q, k, v, mask) if p else (q, k, v)
                for x in leaves:
                    x.requires_grad_()
                with gt.settings.override(tf32=tf32):
                    y = attention(q, k, v, mask if p else None, scale=size**-0.5,
                                  is_causal=not p, dropout_p=p, seed=SEED)
                    y.backward(g)
                results.append([to_numpy(a.detach()) for a in (y, *(x.grad for x in leaves))])
            for what, there, here in zip(("value", "q", "k", "v", "mask"), *results, strict=False):
                close(f"{what} of {size} features, {name}{' by TF32' * tf32}", there, here,
                      tolerance, (options.device, "cpu"))


def touch_cached_attention(options: Options) -> None:
    """A new position, and what is in a cache."""
    rng = np.random.default_rng(SEED)
    for name in kernels.dtypes("attention_cached.cu"):
        for size in (40, 128, 200):
            arrays = [rng.standard_normal(shape) for shape in (
                (2, 1, 8, size), (2, 2, 300, size), (2, 2, 300, size))]
            results = []
            for place in (options.device, "cpu"):
                given = [gt.tensor(a, dtype=DTYPES[name], device=place) for a in arrays]
                cache = KVCache(2, 2, 300, size, place, DTYPES[name])
                cache.keys[...], cache.values[...] = given[1:]
                cache.length = 250
                results.append(to_numpy(cache.attend(given[0], None)))
            close(f"{size} features, {name}", *results, TOLERANCES[DTYPES[name]],
                  (options.device, "cpu"))


def touch_products(options: Options) -> None:
    """A product is added to what a buffer holds, in the buffer."""
    rng = np.random.default_rng(SEED)
    device = gt.device(options.device)
    for dtype in (DTYPES[name] for name in options.dtypes):
        for transposed in (False, True):
            a, b, c = (rng.standard_normal(shape).astype(dtype)
                       for shape in ((4, 3), (3, 5), (4, 5)))
            wanted = c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
            ours = [device.copy(device.from_numpy(np.ascontiguousarray(x.T if transposed else x)))
                    for x in (a, b)]
            left, right = (x.T for x in ours) if transposed else ours
            out = device.copy(device.from_numpy(c))
            device.matmul(left, right, out, 1.0)
            close(f"a product, {dtype.name}", out, wanted, TOLERANCES[dtype],
                  (options.device, "float64"))
        # Heads (B, T, H, D), which lie between each other: a batch by a table of their addresses.
        # Matrices of halves begin at 16 bytes here; in samples of ops few do.
        a, b, c = (rng.standard_normal((2, rows, 3, 8)).astype(dtype) for rows in (4, 8, 4))
        left, right, out = (device.copy(device.from_numpy(x)).transpose(0, 2, 1, 3)
                            for x in (a, b, c))
        wanted = c.astype(np.float64) + np.einsum(
            "bthd,bdhe->bthe", a.astype(np.float64), b.astype(np.float64))
        device.matmul(left, right, out, 1.0)
        close(f"products of heads, {dtype.name}", out.transpose(0, 2, 1, 3), wanted,
              TOLERANCES[dtype], (options.device, "float64"))


def touch_inverse(options: Options) -> None:
    """Of one matrix, which goes by other functions than the batches of the ops' samples."""
    values = np.random.default_rng(SEED).standard_normal((5, 5)) + 4 * np.eye(5)
    found = gt.linalg.inv(gt.tensor(values, device=options.device))
    close("the inverse", to_numpy(found), np.linalg.inv(values), (1e-12, 1e-12))


def touch_own_products(options: Options) -> None:
    """x + 2 x @ c by the library's own kernel, in few large tiles and in small ones."""
    rng = np.random.default_rng(SEED)
    device = gt.device(options.device)
    wider = {np.dtype(np.float32): [np.complex64], np.dtype(np.float64): [np.complex128]}
    for dtype in (DTYPES[name] for name in options.dtypes):
        for rows, columns in ((5, 7), (1500, 1500)):
            x, a, c = (rng.standard_normal(shape).astype(dtype)
                       for shape in ((rows, columns), (rows, 3), (columns, 3)))
            wanted = x.astype(np.float64) + 2 * a.astype(np.float64) @ c.T.astype(np.float64)
            for of in [dtype, *wider.get(dtype, [np.complex64])]:
                out, left, right = (device.from_numpy(v.astype(of)) for v in (x, a, c))
                matmul_into(left, right.T, out, alpha=2.0, beta=1.0)
                close(f"a product of its own, {np.dtype(of).name}", out.real, wanted,
                      TOLERANCES[dtype], (options.device, "float64"))


def touch_arena(options: Options) -> None:
    """CuPy's arrays lie in the arena, views hold their block, a repeated step needs no segment."""
    device = gt.device(options.device)
    stats = gt.memory.stats
    before = stats(device).allocated
    array = device.xp.empty(1000, np.float32)
    held = stats(device).allocated
    view = array[10:20]
    del array
    with_view = stats(device).allocated
    del view
    if not (held >= before + 4000 and with_view == held and stats(device).allocated == before):
        raise CheckError(f"allocated bytes were {before}, {held} with an array of 4000 bytes, "
                         f"{with_view} with a view of it, {stats(device).allocated} without it")
    if array_pointer(device) % 512:
        raise CheckError("a block on the device is not aligned to 512 bytes")
    net = gt.nn.Linear(64, 64).to(device)
    x = gt.ones((32, 64), device=device)
    misses = []
    for _ in range(4):
        (net(x) * 2.0).sum().backward()
        misses.append(stats(device).misses)
        for parameter in net.parameters():
            parameter.grad = None
    if misses[1:] != [misses[0]] * 3:
        raise CheckError(f"segments requested after steps 1 to 4 of a fixed shape: {misses}")


def array_pointer(device: Any) -> int:
    """The address of a small array of CuPy's."""
    return int(device.xp.empty(3, np.float32).data.ptr)


def touch_streams(options: Options) -> None:
    """Stream ids differ, stay, and are not recycled with handles; one stream waits for another."""
    device = gt.device(options.device)
    cuda = device.xp.cuda
    seen = [device.stream_from(cuda.Stream.null).id]
    for _ in range(4):
        stream = cuda.Stream(non_blocking=True)
        ours = device.stream_from(stream)
        if ours.id != device.stream_from(stream).id:
            raise CheckError("a stream's id differs between two calls")
        seen.append(ours.id)
        del stream, ours  # its handle may be handed out again, its id must not
    if len(set(seen)) != len(seen):
        raise CheckError(f"streams have the ids {seen}; wanted five different ones")
    first, second = (cuda.Stream(non_blocking=True) for _ in range(2))
    with first:
        x = device.xp.ones(1 << 20, np.float32)
        for _ in range(10):
            x = x * 1.5
        event = device.stream_from(first).record()
    device.stream_from(second).wait(event)
    with second:
        y = x + 1
    device.stream_from(second).synchronize()
    if not event.done():
        raise CheckError("an event is not done although a stream that waited for it is")
    close("the sum on the second stream", y[:1], np.array([1.5**10 + 1], np.float32))


def touch_captured_step(options: Options) -> None:
    """Training steps that a graph replays on a stream equal steps without a graph."""
    rng = np.random.default_rng(SEED)
    batches, classes = rng.standard_normal((4, 8, 6)), rng.integers(0, 3, 8)
    device = gt.device(options.device)
    for dtype in (DTYPES[name] for name in options.dtypes):
        results = []
        for captured in (True, False):
            gt.manual_seed(SEED)
            layers = gt.nn.Linear(6, 16), gt.nn.GELU(), gt.nn.Linear(16, 3)
            net = gt.nn.Sequential(*layers).to(device).to(dtype)
            optimizer = gt.optim.AdamW(net.parameters(), lr=0.01)
            x = gt.zeros((8, 6), dtype=dtype, device=device)
            target = gt.tensor(classes, device=device)
            with gt.stream(device):
                training = _Training(net, optimizer, x, target)
                losses = training.replayed(batches) if captured else training.eager(batches)
            results.append([losses, *(to_numpy(p.detach()) for p in net.parameters())])
        names = ("the losses", *(name for name, _ in net.named_parameters()))
        for what, replayed, eager in zip(names, *results, strict=True):
            close(f"{what}, {dtype.name}", replayed, eager, TOLERANCES[dtype],
                  ("replayed", "without a graph"))


@dataclass
class _Training:
    """A network, its optimizer, and the address of its batches."""

    net: gt.nn.Module
    optimizer: Any
    x: gt.Tensor
    target: gt.Tensor

    def step(self) -> gt.Tensor:
        self.optimizer.zero_grad()
        loss = gt.nn.functional.cross_entropy(self.net(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        return loss

    def eager(self, batches: np.ndarray) -> np.ndarray:
        """The losses of a first step, which is not counted, and one for each batch."""
        self.step()
        return np.array([self._on(batch, self.step).item() for batch in batches])

    def replayed(self, batches: np.ndarray) -> np.ndarray:
        """The same by a graph. The first step compiles the kernels."""
        self.step()
        graph = gt.Graph(self.x.device)
        with graph.capture():
            loss = self.step()
        losses = []
        for batch in batches:
            self._on(batch, graph.replay)
            losses.append(loss.item())
        return np.array(losses)

    def _on(self, batch: np.ndarray, work: Callable[[], Any]) -> Any:
        self.x[...] = gt.tensor(batch, dtype=self.x.dtype, device=self.x.device)
        return work()


CHECKS = {"optimizers": touch_optimizers, "clipping": touch_clipping, "averages": touch_averages,
          "scaler": touch_scaler, "running statistics": touch_running_statistics,
          "other ways": touch_other_ways, "abn": touch_abn, "context": touch_context}
CUDA_CHECKS = {"arena": touch_arena, "streams": touch_streams, "products": touch_products,
               "fused attention": touch_attention, "cached attention": touch_cached_attention,
               "inverse": touch_inverse,
               "own products": touch_own_products, "captured step": touch_captured_step}
NEED_THE_ARENA = {"arena", "captured step"}


# -- which kernels were launched -------------------------------------------------------------------


def watch_launches(launched: set[str]) -> None:
    """Note from now on every kernel that is launched in this process."""
    load, call = kernels.Raw._load, kernels.Elementwise.__call__

    def noting_load(self: kernels.Raw, ctype: str) -> Any:
        launcher = load(self, ctype)

        def launch(grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
            if 0 not in grid:
                launched.add(f"{self.file}: {self.function}")
            launcher(grid, block, args, shared_mem)

        return launch

    def noting_call(self: kernels.Elementwise, *inputs: Any, out: Any = None, **named: Any) -> Any:
        result = call(self, *inputs, out=out, **named)
        first = result[0] if isinstance(result, tuple) else result
        if first.size:
            launched.add(f"elementwise: {self.body}")
        return result

    kernels.Raw._load = noting_load  # type: ignore[method-assign]
    kernels.Elementwise.__call__ = noting_call  # type: ignore[method-assign]


def known_kernels() -> set[str]:
    """All kernels that the library launches here: those of the text and all elementwise ones."""
    here = gt.device("cuda").architecture if gt.cuda_device_count() else np.inf
    raw = {f"{file}: {name}" for file in kernels.files()
           if file not in REFERENCES and kernels.architecture(file) <= here
           for name in kernels.functions(file)}
    return raw | {f"elementwise: {kernel.body}" for kernel in kernels.registered}


# -- jobs ------------------------------------------------------------------------------------------


def include(files: Iterable[str]) -> None:
    """Run files of the user's, which may register ops and add checks to CHECKS."""
    for file in files:
        runpy.run_path(file, {"CHECKS": CHECKS}, Path(file).stem)


def jobs(options: Options) -> list[Job]:
    """Everything there is to run, in its order."""
    checks = CHECKS if options.device == "cpu" else {**CUDA_CHECKS, **CHECKS}
    found = [Job(name, "", check) for name, check in checks.items()
             if not (options.exact and name in NEED_THE_ARENA)]
    return found + [
        Job(name, dtype, lambda options, op=op, dtype=dtype: touch_op(op, dtype, options))
        for dtype in options.dtypes
        for name, op in sorted(registry.items()) if op.samples is not None]


def chosen(found: list[Job], only: list[str]) -> list[Job]:
    """The jobs that were asked for. Raises SystemExit for a name that is not there."""
    taken = {}
    for word in only:
        taken[word] = [job for job in found if word.replace(":", " ") in (job.name, job.label)]
    unknown = [word for word, named in taken.items() if not named]
    if unknown:
        names = dict.fromkeys(job.name for job in found)
        raise SystemExit(f"{', '.join(unknown)} given; wanted some of {', '.join(names)}")
    return list(dict.fromkeys(job for named in taken.values() for job in named))


def begin(options: Options) -> Callable[[str], Result]:
    """Make this process ready for work: returns what runs a job by its label."""
    launched: set[str] = set()
    watch_launches(launched)
    gt.set_default_device(options.device)
    if options.exact:
        gt.device(options.device).xp.cuda.set_allocator(None)
    work = {job.label: job.work for job in jobs(options)}
    gt.zeros(1)  # makes the context before a job's time is measured

    def run(label: str) -> Result:
        start = time.perf_counter()
        failure, detail = "", ""
        try:
            work[label](options)
        except Exception as error:
            failure = _reason(error)
            detail = "".join(traceback.format_exception(error)) if options.traceback else ""
        code = lost()
        if code:
            failure = f"context lost, CUDA error {code}: {failure or 'after the job had ended'}"
        return Result(label, failure, detail, time.perf_counter() - start, last=bool(code),
                      news=(launched.copy(), known_kernels()))

    return run


def begin_worker(options: Options) -> Callable[[str], Result]:
    """The same in a process of several."""
    include(options.files)
    return begin(options)


def _reason(error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, CheckError):
        return reason
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{reason} ({where.name}, line {where.lineno})"


# -- the program -----------------------------------------------------------------------------------


def report(total: Outcome, device: str, *, complete: bool, labels: Iterable[str] = ()) -> int:
    """Print which of the jobs did not run, which kernels were never launched; the exit status."""
    left = [label for label in labels if label not in set(total.ran)]
    idle = sorted(total.known - total.launched) if complete and not left else []
    print()
    if left:
        more = ", ..." if len(left) > NAMED else ""
        print(f"{len(left)} not run: {', '.join(left[:NAMED])}{more}")
    for kernel in idle:
        print(f"never launched: {kernel}")
    print(f"{len(total.ran)} run on {device}, {len(total.failed)} failed; "
          f"{len(total.launched & total.known)} of {len(total.known)} kernels launched", flush=True)
    return int(bool(total.failed or left or idle))


def arguments() -> argparse.Namespace:
    """The command line, whose values are possible."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="what is compared with the CPU; cpu tries this program out")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="default: %(default)s")
    parser.add_argument("--only", default="",
                        help="names of ops and checks, or NAME:DTYPE of ops, with commas")
    parser.add_argument("--processes", type=int, default=1, help="that share the work (default 1)")
    parser.add_argument("--job-seconds", type=float, default=60, metavar="S",
                        help="end a job that takes longer (default 60; 0: no limit)")
    parser.add_argument("--with", dest="files", action="append", default=[], metavar="FILE",
                        help="Python to run in each process before the work, this one first. It "
                        "may register ops by gt.op, and add checks to the global dict CHECKS: keys "
                        "are names, values are functions that are called with the Options of "
                        "this program and raise if something is wrong. May be repeated")
    parser.add_argument("--traceback", action="store_true", help="print each failure's traceback")
    parser.add_argument("--launch-only", action="store_true",
                        help="compare no values of ops: for devices on which no kernel runs")
    parser.add_argument("--exact-allocations", action="store_true",
                        help="one cudaMalloc per array in place of the arena")
    given = parser.parse_args()
    given.dtypes = tuple(given.dtypes.split(","))
    if not set(given.dtypes) <= set(DTYPES):
        parser.error(f"--dtypes {','.join(given.dtypes)} given; wanted some of {','.join(DTYPES)}")
    if given.processes < 1:
        parser.error(f"--processes {given.processes} given; wanted at least 1")
    if not 0 <= given.job_seconds <= threading.TIMEOUT_MAX:
        parser.error(f"--job-seconds {given.job_seconds:g} given; wanted 0 (no limit) or more")
    absent = [file for file in given.files if not Path(file).is_file()]
    if absent:
        parser.error(f"--with {absent[0]} given; there is no such file")
    return given


def main() -> int:
    """Parse, run, report."""
    given = arguments()
    if given.device == "cuda" and not gt.cuda_device_count():
        print("no CUDA device on this machine; nothing was launched", file=sys.stderr)
        return 2
    exact = given.exact_allocations and given.device == "cuda"
    options = Options(given.device, given.dtypes, exact, given.traceback, tuple(given.files),
                      not given.launch_only)
    include(options.files)
    only = [name for name in given.only.split(",") if name]
    found = jobs(options)
    labels = [job.label for job in (chosen(found, only) if only else found)]
    total = Outcome()

    def end() -> int:
        return report(total, given.device, complete=given.device == "cuda" and not only,
                      labels=labels)

    def overdue(result: Result) -> None:
        total.add(result)
        end()
        os._exit(1)

    work = (InThisProcess(labels, begin, (options,), given.job_seconds, overdue)
            if given.processes == 1 else
            Pool(labels, begin_worker, (options,), given.processes, given.job_seconds))
    try:
        with stoppable(), work:
            for result in work.results():
                total.add(result)
    except Stopped as stopped:
        print(f"\nended by {stopped} during: {', '.join(work.running()) or 'no job'}")
    for ending in work.unable:
        print(f"before its first job {ending}")
    return end()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The usual end frees memory, maybe of a device that answers with errors, and waits for workers,
    # maybe for one that nothing can end.
    os._exit(status)
