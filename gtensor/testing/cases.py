"""A case: one op, one sample, one device, and fresh random arrays in any dtype and layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gtensor.backend import Device
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import FLOATING, Tensor, wrap
from gtensor.engine.tape.op import Op
from gtensor.engine.tape.samples import Sample
from gtensor.func.gradients import grad
from gtensor.ops.define import formula_numpy, path_builders
from gtensor.testing.compare import CheckError, to_numpy

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, DTypeLike, Params
    from gtensor.engine.handle.tensor import Operand

Layout: TypeAlias = "Callable[[Any, Array], Array]"
FLOAT64 = np.dtype(np.float64)
NEVER = 1 << 60  # bytes: no array is that large, so none comes from the arena


# -- layouts: the same values, laid out differently in memory ------------------------------------


def strided(xp: Any, a: Array) -> Array:
    """Every second element of a larger array, along each axis."""
    big = xp.empty(tuple(2 * n + 1 for n in a.shape), a.dtype)
    big[...] = 1
    view = big[(..., *(slice(1, None, 2),) * a.ndim)]
    view[...] = a
    return view


def transposed(xp: Any, a: Array) -> Array:
    """The axes in the opposite order in memory."""
    return xp.ascontiguousarray(a.T).T if a.ndim else a


def offset(xp: Any, a: Array) -> Array:
    """Rows of a larger array, not from its start: contiguous along the last axis only."""
    big = xp.empty(tuple(n + 2 for n in a.shape), a.dtype)
    big[...] = 1
    view = big[(..., *(slice(1, -1),) * a.ndim)]
    view[...] = a
    return view


def reversed_(xp: Any, a: Array) -> Array:
    """Negative strides along each axis."""
    back = (slice(None, None, -1),) * a.ndim
    return xp.ascontiguousarray(a[back])[back] if a.ndim else a


def repeated(xp: Any, a: Array) -> Array:
    """Stride 0: the first element along the first axis, for all of them. Other values than a's."""
    if not (a.ndim and a.size):
        return a
    first = a[:1]
    if first.dtype.kind == "f":
        # Of few bits, so that the mean of equal elements is exact: a standard deviation of rounding
        # errors has a gradient of noise.
        first = xp.round(first * 64) / 64
    return xp.broadcast_to(first, a.shape)


LAYOUTS: dict[str, Layout] = {
    "strided": strided, "transposed": transposed, "offset": offset, "negative strides": reversed_,
    "stride 0": repeated,
}


# -- cases -----------------------------------------------------------------------------------------


@dataclass
class Case:
    """One op on the inputs of one sample. `arrays` are NumPy's, floats in float64."""

    op: Op
    sample: Sample
    device: Device
    rng: np.random.Generator
    arrays: list[np.ndarray | None]
    dtypes: Sequence[np.dtype]
    torch: Any  # the module, or None

    @classmethod
    def of(
        cls, op: Op, sample: Sample, device: Device, seed: int, dtypes: Sequence[np.dtype],
        torch: object,
    ) -> Case:
        """The sample's values by the seed, the same in every check."""
        rng = np.random.default_rng(seed)
        return cls(op, sample, device, rng, sample.arrays(rng), dtypes, torch)

    @property
    def floats(self) -> list[int]:
        """The inputs that can require a gradient, by their dtype and the op's constants."""
        return [i for i, a in enumerate(self.arrays)
                if a is not None and a.dtype.kind in FLOATING and i not in self.op.constants]

    @property
    def differentiable(self) -> bool:
        """Whether gradients flow through the op at this sample."""
        return bool(self.floats) and (self.op.backward is not None or self.op.composed is not None)

    @property
    def precise(self) -> bool:
        """Whether the output is float64 as the inputs are: differences in less are too coarse."""
        return self.value(self.inputs()).dtype == FLOAT64

    @property
    def elementwise(self) -> bool:
        """Whether the CPU path promises that `out` may be one of its inputs, and works in tiles."""
        builder = self.op.cpu.__qualname__.partition(".")[0]
        return (self.op.cpu.__module__, builder) in (
            (path_builders.__name__, "ufunc"), (path_builders.__name__, "tiled"),
            (formula_numpy.__name__, "numpy_path"))

    def params(self, device: Device | None = None) -> Params:
        """The sample's parameters; index arrays among them on the device."""
        return {k: _placed(v, device or self.device) for k, v in self.sample.params.items()}

    def inputs(
        self, arrays: Sequence[Any] | None = None, *, requires: Iterable[int] = (),
        dtype: DTypeLike | None = None, layout: Layout | None = None, device: Device | None = None,
    ) -> list[Tensor | None]:
        """Fresh tensors of the arrays, floats in `dtype`."""
        device = device or self.device
        made: list[Tensor | None] = []
        wanted = set(requires)
        for i, a in enumerate(self.arrays if arrays is None else arrays):
            if a is None:
                made.append(None)
                continue
            if dtype is not None and a.dtype.kind in FLOATING:
                a = a.astype(dtype)
            array = device.copy(device.from_numpy(np.asarray(a)))
            if layout is not None:
                array = layout(device.xp, array)
            made.append(wrap(array, device).requires_grad_(i in wanted))
        return made

    def rounded(self, dtype: DTypeLike) -> list[np.ndarray | None]:
        """The arrays with floats rounded to what `dtype` can hold, still in float64."""
        return [a.astype(dtype).astype(FLOAT64) if i in self.floats and a is not None else a
                for i, a in enumerate(self.arrays)]

    def call(self, inputs: Sequence[Operand | None], device: Device | None = None) -> Tensor:
        """The op on tensors, recorded where one requires a gradient."""
        return self.op(*inputs, **self.params(device))

    def function(self, *inputs: Operand | None) -> Tensor:
        """The op as a function of its inputs alone, on their device."""
        device = next((x._device for x in inputs if isinstance(x, Tensor)), None)
        return self.call(inputs, device)

    def value(self, inputs: Sequence[Operand | None], device: Device | None = None) -> Tensor:
        """The op's output, not recorded."""
        with no_grad():
            return self.call(inputs, device)

    def run_path(self, arrays: Sequence[object], **out: object) -> Any:
        """The device's path on raw arrays: the output, and the extras if there are some."""
        path = self.op.cpu
        if self.device.type != "cpu":
            path = self.device.path(self.op.name, self.op.gpu)
        return path(*arrays, **self.params(), **out)

    def upstream(self, output: Tensor, layout: Layout | None = None) -> Tensor:
        """A random gradient of an output, never uniform."""
        values = np.asarray(self.rng.standard_normal(output.shape))
        if output.dtype.kind == "c":
            values = values + 1j * self.rng.standard_normal(output.shape)
        values = values.astype(output.dtype)
        device = output._device  # not ours for an op that moves its input
        array = device.copy(device.from_numpy(values))
        return wrap(array if layout is None else layout(device.xp, array), device)

    def walk(
        self, output: Tensor, upstream: Tensor, inputs: Sequence[Any]
    ) -> list[np.ndarray | None]:
        """The gradients of <output, upstream>: per input None if it requires none, else an array.

        Zeros where the op gives an input nothing.
        """
        wanted = [i for i, x in enumerate(inputs) if x is not None and x.requires_grad]
        found: Any = [None] * len(wanted)
        if output.requires_grad:  # a composed form may leave these inputs out
            found = grad([output], [inputs[i] for i in wanted], [upstream], allow_unused=True)
        result: list[np.ndarray | None] = [None] * len(inputs)
        for i, g in zip(wanted, found, strict=True):
            if g is None:
                result[i] = np.zeros(inputs[i].shape)
                continue
            if g.dtype != inputs[i].dtype or g.shape != inputs[i].shape:
                raise CheckError(f"the gradient of input {i} has shape {g.shape}, dtype {g.dtype}; "
                                 f"the input has {inputs[i].shape}, {inputs[i].dtype}")
            result[i] = to_numpy(g)
        return result

    def masks(self) -> Iterator[tuple[int, ...]]:
        """Which inputs require gradients: every choice of up to three, else each, and all."""
        return chosen(self.floats)


def chosen(inputs: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every choice of up to three inputs, else each, and all."""
    sizes: Iterable[int] = range(1, len(inputs) + 1) if len(inputs) <= 3 else (1, len(inputs))
    for size in sizes:
        yield from combinations(inputs, size)


def _placed(value: object, device: Device) -> Any:
    if isinstance(value, np.ndarray):
        return device.from_numpy(value)
    if isinstance(value, tuple):
        return tuple(_placed(v, device) for v in value)
    return value


def samples_of(op: Op) -> list[Sample]:
    """The definition's samples; a bare shape stands for one of that shape per input.

    Raises ValueError for an op without samples.
    """
    given = op.samples() if callable(op.samples) else op.samples
    count = max(1, len(op.input_names))
    found = [s if isinstance(s, Sample) else Sample((tuple(s),) * count) for s in given or ()]
    if not found:
        raise ValueError(f"op {op.name!r} has no samples; opcheck wants at least one")
    return found
