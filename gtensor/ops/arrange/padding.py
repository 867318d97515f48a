"""Padding: with a constant as an op of its own, by the input's own elements as views joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.index import get_item
from gtensor.ops.arrange.joining import concat
from gtensor.ops.arrange.shape import broadcast_to
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import unchanged
from gtensor.ops.define.path_builders import placed

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # pad is public in gtensor.nn.functional

Pads = tuple[tuple[int, int], ...]  # before and after, for each of the last axes
_MODES = ("constant", "reflect", "replicate", "circular")


def _inside(shape: tuple[int, ...], pads: Pads) -> tuple[slice, ...]:
    """Where the last axes of an array of `shape` lie in those of the padded one."""
    padded = shape[len(shape) - len(pads):]
    return tuple(slice(before, before + n) for n, (before, _) in zip(padded, pads, strict=True))


def _pad_path(
    device: Device, x: Array, *, pads: Pads, value: float, out: Array | None = None
) -> Array:
    lead = x.ndim - len(pads)
    if out is None:
        sizes = (n + sum(p) for n, p in zip(x.shape[lead:], pads, strict=True))
        out = device.empty((*x.shape[:lead], *sizes), x.dtype, "pad")
    inside: tuple[Any, ...] = _inside(x.shape, pads)  # NumPy's overloads refuse such a key
    value = device.assignable(value, out.dtype)
    for axis, (place, n) in enumerate(zip(inside, out.shape[lead:], strict=True)):  # the border
        behind = (slice(None),) * (len(pads) - axis - 1)
        for border in (slice(0, place.start), slice(place.stop, n)):
            out[(..., *inside[:axis], border, *behind)] = value
    out[(..., *inside)] = x
    return out


def _pad_backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, ns.slice(g, key=(..., *_inside(step.shape(0), step.params["pads"]))))


def _pad_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    return ns.pad(tangents[0], pads=params["pads"], value=0.0)


def _pad_reference(torch: Any, x: Any, pads: Pads, value: float) -> Any:
    flat = [n for pair in reversed(pads) for n in pair]
    return torch.nn.functional.pad(x, flat, value=value)


pad_op = op(
    "pad", flops=0, **placed(_pad_path), backward=_pad_backward, tangent=_pad_tangent,
    batch=unchanged,
    samples=[Sample((shape,), normal, {"pads": pads, "value": value}) for shape, pads, value in (
        ((4,), ((1, 2),), 0.0), ((2, 3), ((0, 1), (2, 0)), 1.5), ((2, 0), ((1, 1), (0, 2)), 2.0))],
    reference=_pad_reference,
    doc="x with a border of `value`; pads holds before and after for each of the last axes.",
)


@takes_arrays
def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """The input with more (or, where negative, fewer) elements around its last axes.

    Args:
        input: of any shape.
        pad: (before, after) of the last axis, then of the one before it, and so on: one flat
            sequence.
        mode: "constant"; "reflect" (mirrored, without the border itself: less than the axis'
            size), "replicate" (the border repeated) or "circular" (from the other end: at most the
            axis' size).
        value: the constant; 0 by default.

    Padding by the input's own elements makes one array for each padded axis. Elements removed at
    one end may still be mirrored or repeated at the other, but not used by "circular".

    Raises ValueError for an unknown mode, a `value` with another mode than "constant", and a `pad`
    that does not fit the input.
    """
    counts = tuple(pad)
    if len(counts) % 2 or len(counts) > 2 * input.ndim or any(
            not isinstance(n, int) for n in counts):
        raise ValueError(f"pad was given pad={counts} for an input of shape {input.shape}; wanted "
                         "two integers for each padded axis, the last axis first")
    if mode not in _MODES:
        raise ValueError(f"pad was given mode={mode!r}; wanted one of {', '.join(_MODES)}")
    if value is not None and mode != "constant":
        raise ValueError(f"pad was given value={value} with mode={mode!r}; wanted no value, which "
                         "is of mode 'constant'")
    pads = ((0, 0),) * (input.ndim - len(counts) // 2) + tuple(
        (counts[i], counts[i + 1]) for i in range(len(counts) - 2, -1, -2))
    more = tuple((max(before, 0), max(after, 0)) for before, after in pads)
    if mode == "constant":
        return pad_op(_cut(input, pads), pads=more, value=0.0 if value is None else value)
    if mode == "circular":
        input = _cut(input, pads)
    for axis, (before, after) in enumerate(more):
        if before or after:
            input = _with_own(input, axis, before, after, mode)
    return input if mode == "circular" else _cut(input, pads)


def _cut(x: Tensor, pads: Pads) -> Tensor:
    """x without the elements that negative pads remove: a view."""
    for n, (before, after) in zip(x.shape, pads, strict=True):
        if n + min(before, 0) + min(after, 0) < 0:
            raise ValueError(f"pad was asked to take ({before}, {after}) from an axis of {n}; "
                             "wanted at most its size")
    if all(min(p) >= 0 for p in pads):
        return x
    return get_item(x, tuple(slice(max(-before, 0), n + min(after, 0))
                             for n, (before, after) in zip(x.shape, pads, strict=True)))


def _with_own(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """x padded along one axis by its own elements."""
    n = x.shape[axis]
    most = {"reflect": n - 1, "circular": n, "replicate": max(before, after) if n else 0}[mode]
    if max(before, after) > most:
        raise ValueError(f"pad was given ({before}, {after}) with mode={mode!r} for an axis of {n} "
                         f"elements; wanted 0 to {max(most, 0)}")

    def part(start: int, stop: int | None, step: int = 1) -> Tensor:
        return get_item(x, (slice(None),) * axis + (slice(start, stop, step),))

    def repeated(edge: Tensor, count: int) -> Tensor:
        return broadcast_to(edge, (*x.shape[:axis], count, *x.shape[axis + 1:]))

    if mode == "circular":
        ends = part(n - before, None), part(0, after)
    elif mode == "reflect":
        ends = part(before, 0, -1), part(n - 2, n - 2 - after if after < n - 1 else None, -1)
    else:
        ends = repeated(part(0, 1), before), repeated(part(n - 1, n), after)
    return concat([end for end in (ends[0], x, ends[1]) if end.shape[axis]], axis)
