"""Checks of an op's value: references, dtypes, layouts, out=, tiles, and what it must not write."""

from __future__ import annotations

import inspect
import tracemalloc
from typing import Any

import numpy as np

from gtensor.backend import device_of, get_device
from gtensor.backend.compiled import NUMBERS
from gtensor.engine.handle.errors import SizeError
from gtensor.engine.handle.tensor import FLOATING, Tensor
from gtensor.func.batching import vmap
from gtensor.settings import settings
from gtensor.testing.cases import FLOAT64, LAYOUTS, NEVER, Case, chosen, strided
from gtensor.testing.compare import TOLERANCES, CheckError, close, to_numpy, unwritten

_MANY = 1 << 16  # elements of an array beside which a tile is small
_TILE = 1 << 10


def reference(case: Case) -> None:
    """The value equals PyTorch's."""
    if case.torch is None or case.op.reference is None:
        return
    tensors = [None if a is None else case.torch.from_numpy(a.copy()) for a in case.arrays]
    wanted = case.op.reference(case.torch, *tensors, **case.sample.params)
    close("the value", case.value(case.inputs()), wanted, names=("gtensor", "PyTorch"))


def dtypes(case: Case) -> None:
    """In less precision the value is float64's on the same rounded inputs, in the inputs' dtype.

    Statistics of half precision, through which no gradient flows, may be kept in float32.
    """
    if not case.floats:
        return
    full = case.value(case.inputs())
    for dtype in case.dtypes:
        rounded = case.rounded(dtype)
        given = case.value(case.inputs(rounded, dtype=dtype))
        expected = dtype if full.dtype == FLOAT64 else full.dtype
        if full.dtype.kind == "c":  # of half precision: the smallest complex dtype
            expected = np.result_type(
                np.float32 if dtype.itemsize == 2 else dtype, np.complex64)
        wider = not case.differentiable and dtype.itemsize == 2 and given.dtype == np.float32
        if given.dtype != expected and not wider:
            raise CheckError(f"{dtype} inputs give a value of {given.dtype}; wanted {expected}")
        if given.dtype.kind in FLOATING:
            wanted = case.value(case.inputs(rounded))
            close(f"the value in {dtype}", given, wanted, TOLERANCES[dtype],
                  (dtype.name, "float64"))


def batch(case: Case) -> None:
    """Under vmap the value is a loop's, whichever inputs have a batch axis; also of no example.

    A rule may refuse inputs whose values decide the size of the output, by SizeError.
    """
    if case.op.batch is None:
        return
    examples: list[list[Any]] = [case.arrays, *(case.sample.arrays(case.rng) for _ in range(2))]
    given = [i for i, a in enumerate(case.arrays) if a is not None]
    for mapped in chosen(given):
        each: list[list[Any]] = [
            [own if i in mapped else shared for i, (own, shared) in enumerate(
                zip(example, case.arrays, strict=True))] for example in examples]
        stacks: list[Any] = [np.stack(values) if i in mapped else values[0]
                             for i, values in enumerate(zip(*each, strict=True))]
        axes = tuple(0 if i in mapped else None for i in range(len(stacks)))
        run = vmap(case.function, axes)
        try:
            found = run(*case.inputs(stacks))
        except SizeError:
            continue
        none = run(*case.inputs([a if i not in mapped else a[:0] for i, a in enumerate(stacks)]))
        what = f"with a batch axis in inputs {list(mapped)}"
        for k, arrays in enumerate(each):
            wanted = case.value(case.inputs(arrays))
            close(f"example {k} {what}", found[k], wanted, names=("under vmap", "by itself"))
        if (none.shape, none.dtype) != ((0, *wanted.shape), wanted.dtype):
            raise CheckError(f"no example {what} gives a value of shape {none.shape}, dtype "
                             f"{none.dtype}; wanted {(0, *wanted.shape)}, {wanted.dtype}")


def device(case: Case) -> None:
    """On a GPU the value is the CPU's, in every dtype."""
    if case.device.type == "cpu":
        return
    cpu = get_device("cpu")
    for dtype in case.dtypes:
        wanted = case.value(case.inputs(dtype=dtype, device=cpu), cpu)
        given = case.value(case.inputs(dtype=dtype))
        if given.dtype != wanted.dtype:
            raise CheckError(f"{dtype} inputs give {given.dtype} on {case.device}, "
                             f"{wanted.dtype} on cpu")
        close(f"the value in {dtype}", given, wanted, TOLERANCES[dtype], (str(case.device), "cpu"))


def compiled(case: Case) -> None:
    """By kernels in C, at any size, value and gradients are those of NumPy's paths."""
    if case.device.type != "cpu" or not NUMBERS:
        return
    for dtype in {FLOAT64, *case.dtypes} & {FLOAT64, np.dtype(np.float32)}:
        ways: list[list[Any]] = []
        upstream: Any = None
        for way in (2, 0):
            with settings.override(compiled=way):
                inputs = case.inputs(dtype=dtype, requires=case.floats)
                output = case.call(inputs)
                ways.append([output])
                if case.differentiable:
                    upstream = case.upstream(output) if upstream is None else upstream
                    ways[-1] += case.walk(output, upstream, inputs)
        for k, (given, wanted) in enumerate(zip(*ways, strict=True)):
            if given is not None:
                close(f"the gradient of input {k - 1} in {dtype}" if k else f"the value in {dtype}",
                      given, wanted, TOLERANCES.get(dtype), ("C", "NumPy"))


def layouts(case: Case) -> None:
    """Value and gradients do not depend on how inputs and the upstream gradient lie in memory."""
    requires = case.floats if case.differentiable else ()
    for name, layout in LAYOUTS.items():
        laid = case.inputs(requires=requires, layout=layout)
        plain = case.inputs([None if x is None else to_numpy(x) for x in laid], requires=requires)
        names = (name, "contiguous")
        with np.errstate(all="ignore"):  # with equal elements a derivative may be 0 / 0
            output, wanted = case.call(laid), case.call(plain)
            close(f"the value of {name} inputs", output, wanted, names=names)
            if not case.differentiable:
                continue
            upstream = case.upstream(output, layout)
            contiguous = case.inputs([to_numpy(upstream)], device=output._device)[0]
            assert contiguous is not None
            grads = case.walk(output, upstream, laid)
            expected = case.walk(wanted, contiguous, plain)
        for i, (g, e) in enumerate(zip(grads, expected, strict=True)):
            if g is not None:
                close(f"the gradient of input {i}, {name}", g, e, names=names)


def out(case: Case) -> None:
    """The path writes into a buffer of the caller's and answers it, whatever the buffer held."""
    wanted = _first(case.run_path(_arrays(case)))
    path = case.op.cpu if case.device.type == "cpu" else case.op.gpu
    if not _takes_out(path):
        raise CheckError("the path has no parameter `out`; every path writes into a given buffer")
    buffers = {"a fresh buffer": device_of(wanted).empty(wanted.shape, wanted.dtype)}
    if case.elementwise:
        buffers["a strided buffer"] = strided(case.device.xp, buffers["a fresh buffer"])
    for name, buffer in buffers.items():
        buffer[...] = np.nan if wanted.dtype.kind in FLOATING else 1
        given = _first(case.run_path(_arrays(case), out=buffer))
        if given is not buffer:
            raise CheckError(f"the path was given {name} as `out` and answered another array")
        close(f"the value in {name}", buffer, wanted)


def alias(case: Case) -> None:
    """An elementwise path may write over any of its inputs."""
    if not case.elementwise:
        return
    wanted = _first(case.run_path(_arrays(case)))
    for i in range(len(case.arrays)):
        arrays = _arrays(case)
        target = arrays[i]
        if target is None or (target.shape, target.dtype) != (wanted.shape, wanted.dtype):
            continue
        given = _first(case.run_path(arrays, out=target))
        close(f"the value written over input {i}", given, wanted)


def tiles(case: Case) -> None:
    """Tile by tile the value is the same, and no temporary is as large as the output."""
    if not case.elementwise or case.device.type != "cpu":
        return
    inputs = case.inputs()
    whole = case.value(inputs)
    for size in (1, 4):
        with settings.override(compiled=0, tile_elements=size):
            close(f"the value in tiles of {size}", case.value(inputs), whole)
    if not case.sample.shapes or len(set(case.sample.shapes)) > 1 or whole.ndim != 1:
        return
    draws = case.sample.draws
    many = [draw(case.rng, (_MANY,)) for draw in
            (draws if isinstance(draws, tuple) else (draws,) * len(case.arrays))]
    with settings.override(compiled=0, tile_elements=_TILE, arena_min_bytes=NEVER):
        buffer = _first(case.run_path(many))
        extra = _peak(lambda: case.run_path(many, out=buffer))
    if extra > many[0].nbytes // 4:
        raise CheckError(f"a path on {_MANY} elements ({many[0].nbytes} bytes) took {extra} bytes "
                         f"beside its output; wanted a few tiles of {_TILE} elements")


def _peak(call: Any) -> int:
    """Most bytes that Python and NumPy held during the call, above what they held before."""
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()


def writes(case: Case) -> None:
    """Inputs keep every bit, forward and backward; results share memory only where they may."""
    requires = case.floats if case.differentiable else ()
    for layout in (None, strided):
        inputs = case.inputs(requires=requires, layout=layout)
        tensors = [(f"input {i}", x) for i, x in enumerate(inputs) if x is not None]
        check = unwritten(tensors)
        output = case.call(inputs)
        check()
        for name, x in tensors:
            if not _shared(case, output, x):
                continue
            if not case.op.view:
                raise CheckError(f"the output shares memory with {name}; an op with view=True may")
            if output._storage is not x._storage:
                raise CheckError(f"the output is a view of {name} with a storage of its own")
        if not case.differentiable:
            continue
        upstream = case.upstream(output)
        tensors += [("the output", output), ("the upstream gradient", upstream)]
        check = unwritten(tensors)
        grads = case.walk(output, upstream, inputs)
        check()
        for i, g in enumerate(grads):
            for name, x in tensors:
                if g is not None and case.device.type == "cpu" and np.may_share_memory(g, x._array):
                    raise CheckError(f"the gradient of input {i} shares memory with {name}")


def _shared(case: Case, a: Tensor, b: Tensor) -> bool:
    return bool(a.size and b.size and a._device is b._device
                and case.device.xp.may_share_memory(a._array, b._array))


def composed(case: Case) -> None:
    """The path's value is that of the composed form."""
    if case.op.composed is None:
        return
    inputs = case.inputs()
    given = case.value(inputs)
    close("the value", given, case.op.composed(*inputs, **case.params()),
          names=("the path", "the composed form"))


def _arrays(case: Case) -> list[Any]:
    """Fresh raw arrays of the inputs."""
    return [None if x is None else x._array for x in case.inputs()]


def _first(result: object) -> Any:
    return result[0] if isinstance(result, tuple) else result


def _takes_out(path: Any) -> bool:
    parameters = inspect.signature(path).parameters.values()
    return any(p.name == "out" or p.kind is p.VAR_KEYWORD for p in parameters)
