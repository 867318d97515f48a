"""A step on the host device, launch by launch, with what each moves and computes.

    recorder = Recorder()                       # before CuPy is imported
    with recorder.recording():
        with recorder.phase("forward"):
            loss = model(x)
    recorder.works                              # of `cost_model`
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from cost_arguments import distinct_bytes, kernel_work
from cost_model import Work
from cost_sass import Code, count

from gtensor import hostcuda
from gtensor.hostcuda import Launch

PHASES = ("forward", "backward", "update")


class Recorder:
    """Listens to gtensor's ops and watches the host device.

    Bytes that an op must move: each of its inputs read once, and its results written once; of a
    backward rule the gradient and what was saved, and the gradients of its inputs. An op that moves
    less (rows of a table) needs what it moves. Launches outside of ops need what they move.
    """

    def __init__(self) -> None:
        import cupy
        from cupy.cuda import compiler, function

        self.works: list[Work] = []
        self.events: Counter[tuple[str, str]] = Counter()  # phase, and what was done
        self._cupy = cupy
        self._phase = "forward"
        self._queued: Callable[[], list[Launch]] | None = None
        self._ops: list[tuple[str, int, int]] = []  # running: bytes needed, and the first launch
        self._texts: dict[int, str] = {}
        self._cubins: dict[int, bytes] = {}
        self._codes: dict[int, dict[str, Code]] = {}
        self._arguments: tuple[Any, ...] = ()
        self._watch_compiler(compiler, function)
        self._watch_launchers()

    def _watch_compiler(self, compiler: Any, function: Any) -> None:
        """Keep the text and the machine code of each module."""
        cubins, texts = self._cubins, self._texts

        class Module(function.Module):
            def load(self, cubin: bytes) -> None:
                super().load(cubin)
                cubins[self.ptr] = cubin

        compile_ = compiler._compile_module_with_cache

        def compiled(source: str, *args: Any, **kwargs: Any) -> Any:
            module = compile_(source, *args, **kwargs)
            found = module[1] if isinstance(module, tuple) else module
            texts[found.ptr] = source
            return module

        function.Module = Module
        compiler._compile_module_with_cache = compiled

    def _watch_launchers(self) -> None:
        """Keep the arrays of a kernel that gets addresses until its launch was read."""
        from gtensor.backend.kernels import Launcher

        launch, recorder = Launcher.__call__, self

        def launched(self: Launcher, grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
            if recorder._queued is None:
                launch(self, grid, block, args, shared_mem)
                return
            recorder._read()
            launch(self, grid, block, args, shared_mem)
            recorder._arguments = args
            recorder._read()
            recorder._arguments = ()

        Launcher.__call__ = launched  # type: ignore[method-assign]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Note the launches of the block."""
        import gtensor as gt

        with hostcuda.watch() as self._queued, gt.listen(self):
            try:
                yield
                self._read()
            finally:
                self._queued = None

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Launches of the block belong to this phase of a step."""
        self._read()
        self._phase = name
        yield
        self._read()

    # -- gtensor's events

    def op_begins(self, event: Any) -> None:
        self._read()
        needs = 0
        if event.phase == "backward":
            _, step, _ = event.args
            needs = distinct_bytes(event.arrays) + sum(
                prod(parent.shape) * parent.dtype.itemsize
                for parent in step.parents if parent is not None)
        self._ops.append((f"{event.name} {event.phase}", needs, len(self.works)))

    def op_ends(self, event: Any) -> None:
        self._read()
        _, needs, begins = self._ops.pop()
        if event.phase == "forward":
            made = event.result if isinstance(event.result, tuple) else (event.result,)
            arrays = [array for array in made if hasattr(array, "strides")]
            needs = distinct_bytes(event.arrays) + distinct_bytes(arrays)
        mine = self.works[begins:]
        if mine and not self._ops:
            moved = sum(work.nbytes for work in mine)
            # An update's parameters hold its state: it needs what it moves.
            needs = moved if self._phase == "update" else min(needs, moved)
            for place, work in enumerate(mine):
                work.needed = 0.0 if place else float(needs)
        self._flops(event, mine)

    def _flops(self, event: Any, works: list[Work]) -> None:
        """Kernels of attention have the FLOPs that their op declares, in equal parts."""
        matrix = [work for work in works if work.rate]
        if not matrix or not callable(event.op.flops):
            return
        shapes = [array.shape for array in event.arrays]
        if event.phase == "backward":
            _, step, g = event.args
            shapes = [parent.shape for parent in step.parents if parent is not None]
            total = 2.5 * event.op.flops(*shapes, g.shape)
        else:
            total = float(event.op.flops(*shapes, event.result[0].shape if isinstance(
                event.result, tuple) else event.result.shape))
        for work in matrix:
            work.flops = total / len(matrix)

    # -- the host device's events

    def _read(self) -> None:
        if self._queued is None:
            return
        for launch in self._queued():
            if launch.kind == "other":
                self.events[self._phase, launch.name] += 1
                continue
            work = self._work(launch)
            work.kind, work.phase = launch.kind, self._phase
            work.op = self._ops[-1][0] if self._ops else ""
            self.works.append(work)

    def _work(self, launch: Launch) -> Work:
        if launch.kind == "copies":
            inside = launch.name == "device to device"
            return Work(launch.name, reads=launch.nbytes, writes=launch.nbytes if inside else 0)
        if launch.kind == "memsets":
            return Work(launch.name, writes=launch.nbytes)
        if launch.kind == "library":
            moved = launch.traffic
            if moved is None:
                return Work(launch.name, known=False)
            return Work(launch.name, reads=moved.reads, writes=moved.writes, product=moved.product,
                        inputs=moved.inputs, aligned=moved.aligned)
        code = self._code(launch)
        work = kernel_work(launch, self._texts.get(launch.module, ""), code, self._arguments)
        single = launch.name.startswith("attention_") and launch.name.endswith("<float>")
        if code is not None and (code.matrix or single):
            kind = "" if not single else " tf32" if code.matrix else " float32"
            work.rate = f"attention{kind}" + " backward" * (self._phase == "backward")
        return work

    def _code(self, launch: Launch) -> Code | None:
        if launch.module not in self._codes:
            cubin = self._cubins.get(launch.module)
            self._codes[launch.module] = {} if cubin is None else count(cubin)
        return self._codes[launch.module].get(launch.function)
