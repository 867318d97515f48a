"""Attention context: a similarity of features, mixed into a layer's input and moved by its output.

`context_mix` is x + strength / width * x @ context. Its gradient by x is the same op of the
transposed context. That by strength is the sum of g * (x @ context) / width: the product g @
context.T / width, which the gradient by x needs, too, is made once, and multiplied by x.

`context_update` moves a context towards the similarity of two arrays. Its work arrays come from the
caller, who keeps them: `scratch(name, shape, dtype)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import BLOCK, elementwise, raw
from gtensor.backend.layouts import check_apart
from gtensor.engine.handle.context import grad_enabled
from gtensor.engine.handle.errors import GradientError, LevelError
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.in_place import write
from gtensor.engine.tape.levels import Traced, newest
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.define.batching import Inputs, Mapped
from gtensor.ops.define.cpu_tiles import computed_in, whole_tiles
from gtensor.ops.define.path_builders import into, placed, tiled
from gtensor.ops.linalg.matrix_products import swapped

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, DTypeLike, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

    Scratch = Callable[[str, tuple[int, ...], DTypeLike], Array]

__all__: list[str] = []

_MOST_ROWS = 32  # that an update reads; `GT_ROWS` in attention_context.cu
_TINY = 1e-12  # a product of two columns' lengths up to which they are not alike
_PARTS = 512  # sums of blocks, of which a second launch makes one


# -- mixing: paths ---------------------------------------------------------------------------------


def _number(strength: object) -> bool:
    """Whether a strength is known on the host."""
    return not hasattr(strength, "dtype") or isinstance(strength, (np.ndarray, np.generic))


def _mix_path(
    device: Device, x: Array, context: Array, strength: Any, *,
    scratch: Scratch | None = None, out: Array | None = None, beta: float = 0.0,
) -> Array:
    """x + strength / width * x @ context + beta * out.

    A strength on the device cannot be a factor of its product, so it multiplies in a second pass.
    """
    if out is None:
        out, beta = device.empty(x.shape, x.dtype, "context_mix"), 0.0
    width = context.shape[-1]
    rows, target = (x[None], out[None]) if x.ndim == 1 else (x, out)
    if _number(strength):
        if beta:
            out += x
        else:
            out[...] = x
        device.matmul(rows, context, target, 1.0, float(strength) / width)
        return out
    into = device.empty(out.shape, out.dtype, "context_mix") if beta else out
    device.matmul(rows, context, into.reshape(rows.shape), 0.0, 1 / width)
    _ADD(x, into, strength, out=into)
    if beta:
        out += into
    return out


def _into_path(
    device: Device, target: Array, x: Array, context: Array, strength: Any, *,
    scratch: Scratch | None = None, out: Array | None = None,
) -> Array:
    return _mix_path(device, x, context, strength, out=out)


_ADD = elementwise(
    "T x, T mixed, S strength", "T out",
    "out = gt_down<T>(gt_up(x) + gt_up(strength) * gt_up(mixed))", "number.cuh",
    name="gt_context_add")
_add_tiled = tiled("context_add", lambda ns, x, mixed, strength: x + strength * mixed)


def _add_path(
    device: Device, x: Array, mixed: Array, strength: Array, *, out: Array | None = None
) -> Array:
    """x + strength * mixed, in the dtype of x; a strength on the CPU is one number."""
    if device.type == "cpu":
        factor = float(strength)
        if out is not mixed or x.itemsize == 2:
            return _add_tiled(x, mixed, factor, out=out)
        for key in whole_tiles(x.shape):  # without a temporary
            part = np.multiply(mixed[key], factor, out=out[key])
            part += x[key]
        return out
    return _ADD(x, mixed, strength, out=device.empty(x.shape, x.dtype) if out is None else out)


def _dot_path(
    device: Device, x: Array, y: Array, *, scratch: Scratch | None = None,
    out: Array | None = None,
) -> Array:
    """The sum of x * y, added up in float64; of the dtype that x is computed in."""
    total = device.empty((), computed_in(x.dtype), "context_dot") if out is None else out
    if device.type == "cpu":
        axes = [*range(x.ndim)]
        parts = (np.einsum(x[key], axes[:x[key].ndim], y[key], axes[:x[key].ndim], [],
                           dtype=np.float64, casting="unsafe") for key in whole_tiles(x.shape))
        total[...] = sum(parts, np.float64(0))
        return total
    x, y = (cupy().ascontiguousarray(a) for a in (x, y))
    blocks = min(_PARTS, max(1, -(-x.size // (4 * BLOCK))))
    sums = (device.empty((blocks,), np.float64, "workspace") if scratch is None
            else scratch("dot", (blocks,), np.float64))
    _DOT[x.dtype]((blocks,), (BLOCK,), (x, y, sums, x.size))
    _DOT_OF_PARTS[total.dtype]((1,), (BLOCK,), (sums, total, blocks))
    return total


_DOT = raw("attention_context.cu", "context_dot")
_DOT_OF_PARTS = raw("attention_context.cu", "context_dot_of_parts")


# -- mixing: rules ---------------------------------------------------------------------------------


def _as_rows(ns: Namespace, x: Any) -> Any:
    """x as one matrix or more."""
    return x if len(x.shape) > 1 else ns.reshape(x, shape=(1, *x.shape))


def _mixed(ns: Namespace, x: Any, context: Any) -> Any:
    """x @ context / width, of the shape of x."""
    y = ns.scaled_matmul(_as_rows(ns, x), context, alpha=1 / context.shape[-1])
    return y if len(x.shape) > 1 else ns.reshape(y, shape=x.shape)


def _backward(first: int) -> Callable[[Namespace, Step, Any], None]:
    """The rule; x is the input of number `first`."""

    def backward(ns: Namespace, step: Step, g: Any) -> None:
        if not (step.needs(first) or step.needs(first + 2)):
            return  # what was in the target has no effect
        x, context, strength = step.saved
        scratch = step.params.get("scratch")
        turned = swapped(ns, context)
        if not step.needs(first + 2):
            buffer, beta = step.into(first) if isinstance(strength, float) else (None, 0.0)
            step.give(first, ns.context_mix(
                g, turned, strength, scratch=scratch, out=buffer, beta=beta))
            return
        mixed = _mixed(ns, g, turned)
        step.give(first + 2, ns.context_dot(mixed, x, scratch=scratch))
        if step.needs(first):
            step.give(first, ns.context_add(g, mixed, strength, out=mixed))

    return backward


def _tangent(first: int) -> Callable[[Namespace, Values, Values, Any, Params], Any]:
    def tangent(ns: Namespace, primals: Values, tangents: Values, out: Any, params: Params) -> Any:
        x, context, strength = primals[first:]
        dx, _, dstrength = tangents[first:]
        terms = [] if dx is None else [ns.context_mix(dx, context, strength)]
        if dstrength is not None:
            terms.append(ns.multiply(dstrength, _mixed(ns, x, context)))
        return ns.add(*terms) if len(terms) == 2 else terms[0] if terms else None

    return tangent


def _batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """The op itself where only x is mapped: its rows may be those of all examples."""
    x, context, strength = inputs[-3:]
    of_x, of_context, of_strength = mapped[-3:]
    if len(inputs) == 3 and not (of_context or of_strength):
        return run(*inputs, **params)
    size = next(a.shape[0] for a, m in zip(inputs, mapped, strict=True) if m)
    shape = x.shape[of_x:]
    rows = ns.reshape(x, shape=(size if of_x else 1, prod(shape[:-1]), shape[-1]))
    mixed = ns.scaled_matmul(rows, context, alpha=1 / shape[-1])
    factor = ns.reshape(strength, shape=(size, 1, 1)) if of_strength else strength
    y = ns.add(rows, ns.multiply(mixed, factor))
    return ns.reshape(ns.broadcast_to(y, shape=(size, *y.shape[1:])), shape=(size, *shape))


def _mix_op(name: str, path: Path, first: int, doc: str, samples: Any, reference: Any) -> Op:
    return op(name, **placed(path), constants="context",
              saves={"strength": "x context strength", "x": "context strength"},
              backward=_backward(first), tangent=_tangent(first), batch=_batch, samples=samples,
              reference=reference, doc=doc)


def _reference(torch: Any, x: Any, context: Any, strength: Any) -> Any:
    return x + strength / x.shape[-1] * (x @ context)


_SHAPES: tuple[tuple[int, ...], ...] = ((3, 5), (2, 3, 4), (4,), (0, 3))

context_mix_op = _mix_op(
    "context_mix", _mix_path, 0, "x + strength / width * x @ context, for a square context.",
    [Sample((shape, shape[-1:] * 2, ())) for shape in _SHAPES], _reference)
context_mix_into_op = _mix_op(
    "context_mix_into", _into_path, 1, "context_mix, which is written over the first input.",
    [Sample((shape, shape, shape[-1:] * 2, ())) for shape in _SHAPES],
    lambda torch, target, *others: _reference(torch, *others) + 0 * target)


def _dot_batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    axes = min(len(x.shape) - m for x, m in zip(inputs, mapped, strict=True))
    return ns.sum(ns.multiply(*inputs), axis=tuple(range(-axes, 0)))


def _dot_composed(x: Tensor, y: Tensor, *, scratch: Scratch | None = None) -> Tensor:
    return recorded.sum(recorded.multiply(x, y), axis=tuple(range(-x.ndim, 0)))


def _add_batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    x, mixed, strength = inputs
    if mapped[2]:
        strength = ns.reshape(strength, shape=(-1, *(1,) * (len(x.shape) - mapped[0])))
    return ns.add(x, ns.multiply(mixed, strength))


context_dot = op(
    "context_dot", **placed(_dot_path), backward=None, tangent=None, composed=_dot_composed,
    batch=_dot_batch, samples=None,  # float32 for half types: tested through context_mix
    doc="The sum of x * y, added up in float64: the gradient of context_mix's strength.",
)

context_add = op(
    "context_add", **placed(_add_path), backward=None, tangent=None,
    composed=lambda x, mixed, strength: x + mixed * strength, batch=_add_batch,
    samples=[Sample((shape, shape, ())) for shape in _SHAPES],
    doc="x + strength * mixed, in the dtype of x: the end of context_mix's gradient.",
)

# -- the update ------------------------------------------------------------------------------------


_finite = into(np.isfinite)
_AVERAGE = elementwise(
    "T cov, T denom, T context, float64 rate", "T out",
    "typedef gt_float<T> F; const F ratio = gt_up(cov) / gt_up(denom), share = F(rate); "
    "const bool alike = gt_up(denom) > F(1e-12) && ratio - ratio == F(0); "
    "out = T((F(1) - share) * gt_up(context) + share * (alike ? tanh(ratio) : F(0)))",
    "number.cuh", name="gt_context_average")


def _average_cpu(
    scratch: Scratch, cov: np.ndarray, denom: np.ndarray, context: np.ndarray, rate: float,
    out: np.ndarray,
) -> None:
    """What _AVERAGE computes, tile by tile; cov is overwritten, and out may be the context."""
    unknown = scratch("unknown", cov.shape, np.bool_)
    for key in whole_tiles(cov.shape):
        ratio, length, no = cov[key], denom[key], unknown[key]
        np.copyto(ratio, 0, where=np.less_equal(length, _TINY, out=no))
        np.divide(ratio, length, out=ratio, where=np.logical_not(no, out=no))
        np.copyto(ratio, 0, where=np.logical_not(_finite(ratio, no), out=no))
        np.tanh(ratio, out=ratio)
        ratio *= rate
        target = np.multiply(context[key], 1 - rate, out=out[key])
        target += ratio


def _sampled(rows: int) -> range:
    """The numbers of the rows that an update reads."""
    return range(0, rows, max(1, rows // _MOST_ROWS))[:_MOST_ROWS]


def _centred_cpu(scratch: Scratch, name: str, x: np.ndarray, width: int) -> tuple[Array, Array]:
    """The sampled rows (n, width) minus their mean, and the lengths (width,) of the columns."""
    lead = x.shape[:-1]
    numbers, work = _sampled(prod(lead)), computed_in(x.dtype)
    rows = scratch(f"rows of {name}", (len(numbers), width), work)
    if x.flags.c_contiguous:
        rows[...] = x.reshape(-1, width)[::numbers.step][:len(numbers)]
    else:
        for row, number in zip(rows, numbers, strict=True):
            row[...] = x[np.unravel_index(number, lead)]
    unknown = scratch("unknown", rows.shape, np.bool_)
    np.logical_not(_finite(rows, unknown), out=unknown)
    np.copyto(rows, 0, where=unknown)
    mean = scratch("mean", (width,), np.float64)
    rows -= np.mean(rows, axis=0, dtype=np.float64, out=mean)
    lengths = scratch(f"lengths of {name}", (width,), work)
    np.einsum("ij,ij->j", rows, rows, out=lengths)
    return rows, np.sqrt(lengths, out=lengths)


@lru_cache(256)
def _offsets(*strided: tuple[tuple[int, ...], tuple[int, ...]]) -> np.void:
    """The kernel's structure gt_rows, of shapes and steps in elements."""
    table = np.zeros((len(strided), _MOST_ROWS), np.int64)
    for offsets, (shape, steps) in zip(table, strided, strict=True):
        for place, number in enumerate(_sampled(prod(shape[:-1]))):
            index = np.unravel_index(number, shape[:-1])
            offsets[place] = np.dot(index, steps[:-1])
    structure: Any = np.array((table,), [("of", np.int64, table.shape)])
    return structure[()]


def _steps(x: Array) -> tuple[int, ...]:
    return tuple(stride // x.itemsize for stride in x.strides)


_ROWS = raw("attention_context.cu", "context_rows")


def _centred_gpu(
    scratch: Scratch, x: Array, y: Array, width: int
) -> tuple[Array, Array, Array, Array]:
    """As `_centred_cpu`, of both arrays by one launch."""
    count, work = len(_sampled(prod(x.shape[:-1]))), computed_in(x.dtype)
    rows = scratch("rows", (2, count, width), work)
    lengths = scratch("lengths", (2, width), work)
    _ROWS[x.dtype]((-(-width // BLOCK), 2), (BLOCK,), (
        x, y, rows, lengths, _offsets((x.shape, _steps(x)), (y.shape, _steps(y))),
        _steps(x)[-1], _steps(y)[-1], count, width))
    return rows[0], lengths[0], rows[1], lengths[1]


def _update_path(
    device: Device, target: Array, context: Array, x: Array, y: Array, *, rate: float,
    scratch: Scratch, out: Array,
) -> Array:
    """Two products of the sampled rows into work arrays, and one pass that moves the context."""
    width = x.shape[-1]
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows counts as 0 in the end
        if device.type == "cpu":
            a, lengths_a = _centred_cpu(scratch, "x", x, width)
            b, lengths_b = _centred_cpu(scratch, "y", y, width)
        else:
            a, lengths_a, b, lengths_b = _centred_gpu(scratch, x, y, width)
        cov, denom = (scratch(name, (width, width), a.dtype) for name in ("cov", "denom"))
        device.matmul(a.T, b, cov)
        device.matmul(lengths_a[:, None], lengths_b[None], denom)
        if device.type == "cpu":
            _average_cpu(scratch, cov, denom, context, rate, out)
        else:
            _AVERAGE(cov, denom, context, rate, out=out)
    return out


context_update_op = Op(
    "context_update", **placed(_update_path), backward=None, tangent=None, samples=None,
    doc="A context moved towards the similarity of x and y by the fraction rate, written over the "
        "first input. Parameters: rate, scratch (which makes named work arrays).",
)


# -- public functions ------------------------------------------------------------------------------


def check_context(name: str, width: int, **arrays: Tensor) -> None:
    """Raise unless the tensors are floating with rows of that width."""
    for which, x in arrays.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} was given {which} of type {type(x).__name__}; wanted a Tensor")
        if not x.ndim or x.shape[-1] != width:
            raise ValueError(f"{name} was given {which} of shape {x.shape} for a context of width "
                             f"{width}; wanted (..., {width})")
        if x.dtype.kind not in "fV":
            raise TypeError(f"{name} was given {which} of dtype {x.dtype}; wanted a "
                            "floating-point one")


def _strength(strength: float | Tensor, x: Tensor) -> float | Tensor:
    """The strength as an input of the op; a tensor in the dtype of x or in that it is computed in.
    """
    if not isinstance(strength, Tensor):
        return float(strength)
    if strength.dtype in (x.dtype, computed_in(x.dtype)):
        return strength
    return recorded.astype(strength, dtype=x.dtype)


def context_mix(
    x: Tensor, context: Tensor, strength: float | Tensor, scratch: Scratch | None = None
) -> Tensor:
    """x + strength / width * x @ context: (..., width) and (width, width), of one dtype.

    `strength` is a number, or a tensor of shape (), which gets a gradient; the context gets none.
    `scratch` makes the work array of that gradient on CUDA, by default the device.
    """
    return context_mix_op(x, context, _strength(strength, x), scratch=scratch)


def context_mix_into(
    out: Tensor, x: Tensor, context: Tensor, strength: float | Tensor,
    scratch: Scratch | None = None,
) -> Tensor:
    """`context_mix` into memory of the caller, of the shape and dtype of x; returns `out`.

    Raises, before anything is written, ValueError for an out that overlaps x or the context, and
    GradientError for one that is a leaf which requires a gradient, or that a record saved.
    """
    if not any(isinstance(a, Traced) for a in (out, x, context)):
        check_apart(out._array, x._array, context._array)
    if grad_enabled() and out._storage.saved:
        raise GradientError("context_mix_into was given an out that an op saved for its gradient; "
                            "wanted other memory, or the call under no_grad()")
    return write(context_mix_into_op, out, x, {"scratch": scratch},
                 (context, _strength(strength, x)))  # type: ignore[arg-type]


def refuse_traced_update(x: Tensor, y: Tensor) -> None:
    """Raise LevelError within a transform, where nothing is written."""
    level = newest("context_update", (x, y))
    if level is not None:
        raise LevelError(f"a context would be updated within {level.name}(), where nothing is "
                         "written; wanted no update there")


def context_update(
    target: Tensor, context: Tensor, x: Tensor, y: Tensor, rate: float, scratch: Scratch
) -> None:
    """target = (1 - rate) * context + rate * similarity of the columns of x and y; not recorded.

    `target` and `context` (width, width), of the dtype that x is computed in, may be one tensor.
    Call it under `no_grad`.
    """
    write(context_update_op, target, context, {"rate": rate, "scratch": scratch}, (x, y))
