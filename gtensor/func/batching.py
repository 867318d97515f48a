"""`vmap`: a function written for one example, run once for a batch of them, or in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gtensor import memory
from gtensor.backend import Device
from gtensor.creation.generators import repetition
from gtensor.engine.handle.errors import LevelError
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.levels import running
from gtensor.engine.transforms.batched import Vectorized
from gtensor.func.trees import P, R, Tree, at_leaves, leaves, rebuilt
from gtensor.ops.arrange.joining import concat, stack
from gtensor.ops.arrange.shape import moveaxis
from gtensor.settings import settings
from gtensor.system.bus import MemoryEvent, listen

if TYPE_CHECKING:
    from gtensor.backend.typing import Params, Path
    from gtensor.engine.handle.namespaces import Namespace

Randomness = Literal["error", "different", "same"]
T = TypeVar("T")
ChunkSize = int | Literal["auto"] | None


def vmap(
    function: Callable[P, R],
    in_axes: Tree = 0,
    out_axes: Tree = 0,
    randomness: Randomness = "error",
    *,
    chunk_size: ChunkSize = None,
    fallback: Literal["loop"] | None = None,
) -> Callable[P, R]:
    """A function that runs `function`, written for one example, once for a batch of them.

    It nests with itself, `jvp`, `vjp` and `grad`: `vmap(grad(loss), (None, 0))` gives gradients
    per example. Values within the function have the shape of one example but no memory:
    `.numpy()`, `.item()`, branches on values and in-place writes raise LevelError.

    Args:
        function: takes trees (dicts, lists, tuples, dataclasses) of tensors, returns one.
        in_axes: of each argument the axis of the examples, None for one that all share. One number
            is for all arguments; a tree for an argument has the axes of its parts. Keyword
            arguments are shared.
        out_axes: where the axis of the examples is in the results, a number or a tree of them; None
            for a result that is the same for all examples, which then has no such axis.
        randomness: of random functions within: "error" refuses them, "different" draws for each
            example, "same" draws once for all.
        chunk_size: run at most so many examples at a time. "auto" runs one example and then two,
            and fits the chunks into half of the free bytes: of the limit of the device's arena, or
            of its memory; on the CPU without a limit of GTENSOR_CHUNK_BYTES.
        fallback: "loop" runs an op without a batch rule (gtensor's own have one) for one example
            after the other; by default it is refused.

    Raises ValueError for axes that do not fit the arguments, TypeError for results that are not
    tensors, LevelError for an op without a batch rule.

    Source: `torch.func.vmap` and `jax.vmap`.
    """
    check_chunk_size("vmap()", chunk_size)
    rule = None if fallback is None else _looped
    for path, axis in leaves(out_axes, "out_axes"):
        if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
            raise TypeError(f"vmap() was given {path} {axis!r}; wanted an integer or None")

    def vectorized(*args: P.args, **kwargs: P.kwargs) -> Any:
        batch = _Batch(args, in_axes)

        def run(start: int, stop: int) -> tuple[Tree, list[tuple[Any, int | None]]]:
            with running(Vectorized(stop - start, randomness, rule)) as level:
                found = function(*batch.examples(level, start, stop), **kwargs)
                axes = at_leaves(found, out_axes, "out_axes")
                return found, [_out(level, path, y, axis) for (path, y), axis in zip(
                    leaves(found), axes, strict=True)]

        if chunk_size is None:
            found, results = run(0, batch.size)
            return rebuilt(found, [y for y, _ in results])
        once = randomness == "same"  # one draw for all chunks
        parts = list(in_chunks(run, batch.size, chunk_size, batch.device,
                               repetition() if once else nullcontext))
        return rebuilt(parts[0][0], [
            joined([part[i][0] for _, part in parts], axis)
            for i, (_, axis) in enumerate(parts[0][1])])

    return vectorized


def _looped(
    ns: Namespace, run: Path, inputs: Sequence[Any], mapped: Sequence[bool], params: Params
) -> Any:
    """The batch rule of an op without one: it runs for one example after the other."""
    size = next(x.shape[0] for x, m in zip(inputs, mapped, strict=True) if m)
    if not size:
        raise LevelError("an op without a batch rule was to run for no examples, which do not tell "
                         "the shape of its result; wanted at least one")
    each = [run(*[x[i] if m else x for x, m in zip(inputs, mapped, strict=True)], **params)
            for i in range(size)]
    if isinstance(each[0], tuple):
        return tuple([stack(list(parts)) for parts in zip(*each, strict=True)])
    return stack(each)


def check_chunk_size(name: str, chunk_size: object) -> None:
    """Raise unless it is None, "auto" or an integer of 1 or more."""
    if chunk_size not in (None, "auto") and (
            not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size < 1):
        raise ValueError(f"{name} was given chunk_size {chunk_size!r}; wanted an integer of 1 or "
                         "more, 'auto' or None")


class _Batch:
    """The arguments of one call, with the axis of the examples first."""

    def __init__(self, args: tuple[Any, ...], in_axes: Tree) -> None:
        self.args = args
        self.values: list[Any] = []
        self.mapped: list[bool] = []
        sizes: dict[str, int] = {}
        for i, (arg, axes) in enumerate(zip(args, _axes_of_each(in_axes, args), strict=True)):
            given = at_leaves(arg, axes, f"in_axes of argument {i}")
            for (path, x), axis in zip(leaves(arg, f"argument {i}"), given, strict=True):
                if axis is not None and x is not None:
                    x = _first(path, x, axis)
                    sizes[path] = x.shape[0]
                self.values.append(x)
                self.mapped.append(axis is not None and x is not None)
        if len(set(sizes.values())) != 1:
            found = ", ".join(f"{n} in {path}" for path, n in sizes.items())
            raise ValueError(f"vmap() was given {found or 'no mapped argument'}; wanted the same "
                             "number of examples in each, and one at least with an axis")
        self.size = next(iter(sizes.values()))
        self.device: Device = self.values[self.mapped.index(True)].device

    def examples(self, level: Vectorized, start: int, stop: int) -> tuple[Any, ...]:
        """The arguments as handles of the level."""
        whole = stop - start == self.size
        return rebuilt(self.args, [
            x if not m else level.start(x if whole else x[start:stop])
            for x, m in zip(self.values, self.mapped, strict=True)])


def _axes_of_each(in_axes: Tree, args: Sequence[object]) -> Sequence[Tree]:
    if in_axes is None or isinstance(in_axes, int):
        return [in_axes] * len(args)
    if not isinstance(in_axes, (tuple, list)):
        raise TypeError(f"vmap() was given in_axes {in_axes!r}; wanted an integer, None, or a "
                        "tuple with those of each argument")
    if len(in_axes) != len(args):
        raise ValueError(f"vmap() was given in_axes for {len(in_axes)} arguments and called with "
                         f"{len(args)}")
    return in_axes


def _first(path: str, x: object, axis: object) -> Tensor:
    """x with that axis first."""
    if not isinstance(x, Tensor):
        raise TypeError(f"vmap() was given {path} of type {type(x).__name__} with axis {axis}; "
                        "wanted a Tensor, or None as its axis")
    x._current_node("vmap()")  # refuses a handle that left another transform
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise TypeError(f"vmap() was given axis {axis!r} for {path}; wanted an integer or None")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"vmap() was given axis {axis} for {path} of shape {x.shape}; wanted one "
                         "that it has")
    return moved_axis(x, axis, 0)


def moved_axis(x: Tensor, source: int, target: int) -> Tensor:
    """x with an axis at another place."""
    return x if source % x.ndim == target % x.ndim else moveaxis(x, source, target)


def _out(level: Vectorized, path: str, y: Any, axis: int | None) -> tuple[Any, int | None]:
    """A result with the axis of the examples at `axis`, and that axis."""
    if not isinstance(y, Tensor):
        if axis is None:
            return y, None
        raise TypeError(f"the function given to vmap() returned {type(y).__name__}"
                        f"{f' as result{path}' if path else ''}; wanted a Tensor, or a tree of "
                        "Tensors")
    values, mapped = level.end(y)
    if axis is None:
        if mapped:
            raise ValueError(f"vmap() was given out_axes None for result{path}, which differs "
                             "between examples; wanted its axis")
        return values, None
    if not mapped:
        values = recorded.broadcast_to(values, shape=(level.size, *values.shape))
    if not -values.ndim <= axis < values.ndim:
        raise ValueError(f"vmap() was given out_axes {axis} for a result of shape "
                         f"{values.shape[1:]} per example; wanted one of its axes")
    return moved_axis(values, 0, axis), axis


def joined(parts: list[Any], axis: int | None) -> Any:
    """The results of all chunks as one."""
    return parts[0] if axis is None or len(parts) == 1 else concat(parts, axis=axis)


# -- chunks ----------------------------------------------------------------------------------------


def in_chunks(
    run: Callable[[int, int], T], size: int, chunk_size: ChunkSize, device: Device,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[T]:
    """The results of `run(start, stop)` of all chunks, each made in the context `around()`."""
    start = 0
    if chunk_size == "auto":
        peaks: list[int] = []
        for stop in (1, 3):
            if start < (stop := min(stop, size)):
                with _measured(peaks), around():
                    part = run(start, stop)
                yield part
                start = stop
        chunk_size = _fitting(peaks, device) if start < size else None
    step = chunk_size or max(1, size)
    for first in range(start, size, step) if size else (0,):
        with around():
            part = run(first, min(first + step, size))
        yield part


class _Peak:
    """A listener that counts the live bytes which this thread allocated."""

    def __init__(self) -> None:
        self.thread, self.live, self.most = get_ident(), 0, 0
        self.own: set[tuple[str, int]] = set()

    def allocated(self, event: MemoryEvent) -> None:
        """Count a block."""
        if get_ident() == self.thread:
            self.own.add((event.device, event.serial))
            self.live += event.nbytes
            self.most = max(self.most, self.live)

    def freed(self, event: MemoryEvent) -> None:
        """Take a block off."""
        if (event.device, event.serial) in self.own:
            self.own.remove((event.device, event.serial))
            self.live -= event.nbytes


@contextmanager
def _measured(peaks: list[int]) -> Iterator[None]:
    """Append the most bytes that were live of those allocated in the block, by this thread."""
    with settings.override(arena_min_bytes=0), listen(_Peak()) as peak:
        yield
    peaks.append(peak.most)


def _fitting(peaks: list[int], device: Device) -> int:
    """How many examples fit into half of the free bytes, by the peaks of one and of two."""
    per_example = max(1, peaks[-1] - peaks[0])
    shared = max(0, peaks[0] - per_example)
    return max(1, (_free_bytes(device) // 2 - shared) // per_example)


def _free_bytes(device: Device) -> int:
    """Bytes that the device's arena can hand out."""
    limit = memory.arena_of(device).limit
    if limit is None and device.type == "cpu":
        return settings.chunk_bytes
    return (limit or device.describe()[1]) - memory.stats(device).allocated
