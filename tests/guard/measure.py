"""Values, gradients and counts of one run, on the CPU and on a CUDA device.

Every run is made once before it is measured, so that what Python code keeps from its first call on
(constants, plans, kernels) is there. Arrays are counted where NumPy allocates them, so the smallest
count, too; those that gtensor asks its resource for are `asked` besides.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

import gtensor as gt
from gtensor.backend import Device, get_device, owner
from gtensor.engine.handle.namespaces import raw
from gtensor.engine.handle.node import Node
from gtensor.engine.handle.storage import BORROWED, Storage
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import registry
from gtensor.engine.tape.record import Record
from gtensor.engine.walk.slots import RawStep
from gtensor.settings import settings
from gtensor.testing.compare import to_numpy

from .cases import THROUGH, Run, runs
from .numpy_memory import Resource, Tally, counted

Counts = dict[str, Any]


@dataclass
class Measured:
    """What one run gave and took."""

    counts: Counts = field(default_factory=dict)
    values: list[tuple[str, np.ndarray]] = field(default_factory=list)  # with what they are


# -- watching the engine ---------------------------------------------------------------------------


class Watch:
    """Counts of the engine's copies and of the verbs by which rules write gradients."""

    def __init__(self) -> None:
        self.found: Counts = {}
        self.slots: list[str] = []

    def note(self, name: str, count: int = 1) -> None:
        self.found[name] = self.found.get(name, 0) + count

    def take(self) -> Counts:
        found, self.found = self.found, {}
        return found


@contextmanager
def watched(device: Device) -> Iterator[Watch]:
    """Count copies (`Device.copy`, and ops that could not overwrite) and the verbs of a step.

    `given`, `lent`: gradients by verb. `added`: those of them that met another one in the slot.
    `into`: buffers that a rule accumulated in. `reused`: gradients that a rule overwrote. `slots`:
    the holders of each gradient when the walk ends.
    """
    watch = Watch()

    def counting(kind: Any, name: str, note: Callable[..., Any], first: bool = False) -> Any:
        before = getattr(kind, name)

        def call(self: Any, *given: Any, **named: Any) -> Any:
            if first:
                note(self, *given)
                return before(self, *given, **named)
            result = before(self, *given, **named)
            note(self, result, *given)
            return result

        return patch.object(kind, name, call)

    def arriving(step: Any, i: int, a: Any) -> None:
        slot = step.slots.get(step.parents[i])
        if slot is not None and slot[0] is not a:
            watch.note("added")

    def copied(self: Any, result: Any, *given: Any) -> None:
        watch.note("copies")
        watch.note("copied bytes", result.nbytes)

    def noted(self: Any, result: Any, name: str, nbytes: int) -> None:
        watch.note("not overwritten")

    def into(self: Any, result: Any, i: int) -> None:
        watch.note("into", result[0] is not None)

    def reused(self: Any, result: Any, g: Any) -> None:
        watch.note("reused", result is not None)

    def verb(name: str) -> Any:
        return lambda self, result, *given: watch.note(name)

    def ending(step: Any, node: Node, slot: Any) -> None:
        hold = "none" if slot is None else _holds(slot[1])
        watch.slots.append(hold)

    with ExitStack() as stack:
        for kind, name, note in (
                (type(device), "copy", copied), (type(device), "note_copy", noted),
                (RawStep, "give", verb("given")), (RawStep, "lend", verb("lent")),
                (RawStep, "into", into), (RawStep, "reuse", reused)):
            stack.enter_context(counting(kind, name, note))
        for name, note in (("give", arriving), ("lend", arriving), ("result", ending)):
            stack.enter_context(counting(RawStep, name, note, first=True))
        yield watch


def _holds(hold: Storage | None) -> str:
    """How many holders; "b": the engine never writes it."""
    return "1" if hold is None else "b" if hold is BORROWED else str(hold.holds)


def records_of(outputs: Sequence[Tensor]) -> list[Record]:
    """The graph behind the outputs, newest first."""
    found: set[Node] = set()
    stack = [output._node for output in outputs]
    while stack:
        node = stack.pop()
        if isinstance(node, Record) and node not in found:
            found.add(node)
            stack += node.parents
    return sorted((n for n in found if isinstance(n, Record)), key=lambda n: -n.seq)


def held(records: Sequence[Record]) -> tuple[str, int, int]:
    """Per record the saved values with their storages' holders; how many arrays, and their bytes.

    A value that no handle can write has no storage ("-").
    """
    owners: dict[int, Any] = {}
    texts = []
    for record in records:
        storages = {place: count for count, _, place in record.guards
                    if isinstance(count, Storage)}
        words = []
        for place, value in enumerate(record.saved):
            if value is None:
                continue
            names = record.op.save_names
            name = names[min(place, len(names) - 1)]  # the last may stand for several
            if not isinstance(value, record.device.array_type):
                words.append(f"{name} {type(value).__name__}")
                continue
            owners[id(owner(value))] = owner(value)
            hold = _holds(storages[place]) if place in storages else "-"
            words.append(f"{name} {hold}")
        texts.append(f"{record.op.name}({', '.join(words)})")
    return " ".join(texts), len(owners), sum(a.nbytes for a in owners.values())


def facts(output: Tensor, inputs: Sequence[Tensor | None]) -> str:
    """The facts of the output's storage that decide who may write it."""
    storage = output._storage
    words = [_holds(storage)]
    words += [name for name in ("made", "saved", "leaf", "history", "exported")
              if getattr(storage, name)]
    words += [f"of input {i}" for i, x in enumerate(inputs)
              if x is not None and x._storage is storage and storage.handles is not None]
    return " ".join(words)


# -- a run -----------------------------------------------------------------------------------------


@contextmanager
def quiet() -> Iterator[None]:
    """One thread, no warnings of values out of an op's domain."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), threadpool_limits(1):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def on_the_cpu() -> Iterator[Resource]:
    """Every array of the CPU's that gtensor asks for is counted as one."""
    device, resource = get_device("cpu"), Resource()
    with quiet(), patch.object(device, "resource", resource), device, \
            settings.override(arena_min_bytes=0, tile_elements=32768):
        yield resource


def _listed(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def _walk(outputs: Sequence[Tensor], targets: Sequence[Tensor], upstreams: Sequence[Tensor],
          create_graph: bool = False) -> Any:
    return gt.grad(outputs, targets, upstreams, allow_unused=True, create_graph=create_graph)


def on_cpu(run: Run, resource: Resource, device: Device) -> Measured:
    """Counts of the forward pass, of the backward pass, and of one through two calls of the op."""
    call = run.prepare(device)
    _tried(run, call, device)
    measured = Measured()
    with watched(device) as watch:
        asked = resource.asked

        def phase(tally: Tally) -> Counts:
            nonlocal asked
            found = {"arrays": tally.arrays, "bytes": tally.nbytes, "peak": tally.above,
                     "asked": resource.asked - asked, **watch.take()}
            asked = resource.asked
            return {name: count for name, count in found.items() if count}

        for times in (1, 2):
            if times == 2 and (run.dtype == "float32" or not run.gradients):
                break
            inputs = run.inputs(device)
            watch.take()
            asked = resource.asked
            with counted() as tally:
                alive = tally.alive
                outputs = [output for _ in range(times) for output in _listed(call(*inputs))]
                forward = phase(tally)
            if times == 1:
                measured.counts |= {
                    "of": run.shapes, "forward": forward,
                    "out": "; ".join(facts(output, inputs) for output in outputs)}
                measured.values += [("value", to_numpy(o).copy()) for o in outputs]
            tracked = [output for output in outputs if output.requires_grad]
            targets = [x for i, x in enumerate(inputs) if i in run.gradients]
            if tracked and targets:
                _backward(run, measured, times, tracked, targets, watch, phase)
            del inputs, outputs, tracked, targets
            left = tally.alive - alive
            if left:
                measured.counts["left"] = measured.counts.get("left", 0) + left
    return measured


def _backward(run: Run, measured: Measured, times: int, outputs: list[Tensor], targets: list[Any],
              watch: Watch, phase: Callable[[Tally], Counts]) -> None:
    """The walk's counts and, of the first one, the gradients; and what the graph holds."""
    records = records_of(outputs)
    if times == 1:
        text, arrays, nbytes = held(records)
        measured.counts |= {"graph": text} | ({"held": [arrays, nbytes]} if arrays else {})
    upstreams = [run.upstream(output) for output in outputs]
    watch.take()
    watch.slots.clear()
    with counted() as tally:
        grads = _walk(outputs, targets, upstreams)
        found = phase(tally)
    found["slots"] = " ".join(watch.slots)
    measured.counts["backward" if times == 1 else "twice"] = found
    if times == 1:
        measured.values += [
            (f"gradient {i}", to_numpy(g).copy())
            for i, g in zip(run.gradients, grads, strict=True) if g is not None]
    still = held(records)[1]
    if still:
        measured.counts["held after"] = still


def _tried(run: Run, call: Any, device: Device, create_graph: bool = False) -> None:
    """Everything that will be measured, once."""
    inputs = run.inputs(device)
    outputs = [o for o in _listed(call(*inputs)) if o.requires_grad]
    if outputs and run.gradients:
        _walk(outputs, [x for i, x in enumerate(inputs) if i in run.gradients],
              [run.upstream(o) for o in outputs], create_graph)


def _tangent(run: Run, call: Any, device: Device) -> None:
    """The op's tangent rule, along the inputs themselves."""
    arrays = [None if x is None else x._array for x in run.inputs(device)]
    tangents = [a if i in run.gradients else None for i, a in enumerate(arrays)]
    op = call.func
    out = op.cpu(*arrays, **call.keywords)
    op.tangent(raw["cpu"], arrays, tangents, out[0] if op.extra_names else out, call.keywords)


def through(name: str, run: Run, device: Device) -> Measured | None:
    """The calls of an op's path in the run of another op; None if there are none."""
    measured = Measured()
    calls: list[Counts] = []
    path = registry[name].cpu

    def spied(*arrays: Any, **params: Any) -> Any:
        with counted() as tally:
            result = path(*arrays, **params)
            calls.append({"arrays": tally.arrays, "bytes": tally.nbytes, "peak": tally.above})
        measured.values += [
            (f"result {i} of call {len(calls) - 1}", np.array(array))
            for i, array in enumerate(result if isinstance(result, tuple) else (result,))
            if array is not None]
        return result

    call = run.prepare(device)
    _tried(run, call, device)
    with patch.object(raw["cpu"], name, spied), patch.object(registry[name], "cpu", spied):
        _tried(run, call, device)
        if not calls:  # the rule calls it only where the backward pass is recorded
            _tried(run, call, device, create_graph=True)
        if not calls:
            _tangent(run, call, device)
    measured.counts = {"in": run.key, "of": run.shapes, "calls": calls}
    return measured if calls else None


def measured_on_cpu(name: str) -> dict[str, Measured]:
    """Every run of an op by its key."""
    device = get_device("cpu")
    found: dict[str, Measured] = {}
    with on_the_cpu() as resource:
        for run in runs(name):
            if name in THROUGH:
                result = through(name, run, device)
                if result is not None:
                    found[f"{name} {run.number} {run.dtype}"] = result
            else:
                found[run.key] = on_cpu(run, resource, device)
    return found


# -- CUDA ------------------------------------------------------------------------------------------


def measured_on_cuda(name: str) -> dict[str, Counts]:
    """What each run in single precision took of the device; an op without samples has none.

    Memory is that of the arena. How often it asked CUDA for a segment is left out: that depends on
    what ran before.
    """
    device = get_device("cuda")
    if name in THROUGH:
        return {}
    with quiet(), device:
        return {run.key: on_cuda(run, device) for run in runs(name) if run.dtype != "float64"}


def on_cuda(run: Run, device: Device) -> Counts:
    """Counts of the forward and of the backward pass.

    An FFT is ordered behind those of all plans that CuPy keeps, so it keeps none of other runs.
    """
    device.xp.fft.config.get_plan_cache().clear()
    call = run.prepare(device)
    _tried(run, call, device)
    counts: Counts = {"of": run.shapes}
    inputs = run.inputs(device)
    with spent(device) as found:
        outputs = _listed(call(*inputs))
    counts["forward"] = found
    tracked = [output for output in outputs if output.requires_grad]
    targets: list[Any] = [x for i, x in enumerate(inputs) if i in run.gradients]
    if tracked and targets:
        upstreams = [run.upstream(output) for output in tracked]
        with spent(device) as found:
            grads = _walk(tracked, targets, upstreams)
        counts["backward"] = found
        del grads
    return counts


@contextmanager
def spent(device: Device) -> Iterator[Counts]:
    """What the block launches, copies, waits for, and takes of the arena."""
    from gtensor.hostcuda import counters, reset_counters

    found: Counts = {}
    enabled = gc.isenabled()
    gc.disable()
    device.synchronize()
    gt.memory.reset_peak(device)
    before = gt.memory.stats(device)
    reset_counters()
    try:
        yield found
    finally:
        if enabled:
            gc.enable()
    made = counters()
    after = gt.memory.stats(device)
    for kind in ("kernels", "library", "copies", "memsets", "other"):
        names = {name: count for name, count in sorted(getattr(made, kind).items())
                 if name.split()[0] not in ("allocate", "free")}
        if names:
            found[kind] = names
    moved = {name: count for name, count in sorted(made.bytes.items())
             if name.split()[0] != "allocate"}
    found |= {"moved": moved} if moved else {}
    blocks = after.hits + after.misses - before.hits - before.misses
    if blocks:
        found |= {"blocks": blocks, "peak": after.peak_allocated - before.allocated}
