"""The linear recurrence h[t] = a[t] * h[t - 1] + b[t] of state-space layers, along axis -2.

Forward and backward are one pass each. Saved are a and h, not b: the gradient of b is the same scan
from the other end, and that of a is its product with the h before.
"""

from __future__ import annotations

from itertools import chain, repeat
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import BLOCK, NULL, raw
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.arrange.shape import broadcast_to
from gtensor.ops.define.arguments import same_dtype, takes_arrays
from gtensor.ops.define.batching import Inputs, Mapped, trailing
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.path_builders import settled
from gtensor.ops.scan.scan import shifted_keys

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # linear_scan is public in gtensor.nn.functional

# -- CPU: one step of all sequences at a time ------------------------------------------------------


def _steps(x: Array, reverse: bool) -> Array:
    """A view with the axis of the sequence first, in the order of the scan."""
    steps = np.moveaxis(x, -2, 0)
    return steps[::-1] if reverse else steps


def _step_shape(x: Array) -> tuple[int, ...]:
    return (*x.shape[:-2], x.shape[-1])


def _buffers(x: Array, stored: bool) -> tuple[Array, Array | None]:
    """One step each: for a product, and for the value where no array holds it unrounded."""
    work, shape = computed_in(x.dtype), _step_shape(x)
    return np.empty(shape, work), None if stored and work == x.dtype else np.empty(shape, work)


def _advance(
    link: Array, before: Array | None, start: Array, store: Array | None, product: Array,
    state: Array | None
) -> Array:
    """start + link * before, in `state` (else in `store`) and rounded in `store`, if given."""
    value: Any = store if state is None else state
    if before is None:
        value[...] = start
    else:
        np.multiply(link, before, out=product)  # not in `value`, which may be `start`
        np.add(product, start, out=value)
    if state is not None and store is not None:
        store[...] = state
    return value


def _forward_cpu(
    a: Array, b: Array, initial: Array | None = None, *, reverse: bool, out: Array | None = None
) -> Array:
    if out is None:
        out = host().empty(b.shape, b.dtype, "linear_scan")
    product, state = _buffers(b, True)
    before = None if initial is None else initial.astype(product.dtype, copy=False)
    for link, start, store in zip(*(_steps(x, reverse) for x in (a, b, out)), strict=True):
        before = _advance(link, before, start, store, product, state)
    return out


def _grad_cpu(
    g: Array, a: Array, h: Array | None, initial: Array | None, *, reverse: bool,
    wanted: tuple[bool, ...], out: Array | None = None
) -> tuple[Array | None, Array | None, Array | None]:
    """`out` may be g."""
    product, state = _buffers(g, wanted[1])
    db = _wanted(g.shape, g, wanted[1]) if out is None else out
    da, first = _wanted(g.shape, g, wanted[0]), _wanted(product.shape, g, wanted[2])
    back = not reverse
    none: Any = repeat(None)
    earlier = none if h is None else chain(_steps(h, back)[1:], [initial])
    value: Any = None
    following: Any = None
    for link, slope, store, change, source in zip(
            _steps(a, back), _steps(g, back), none if db is None else _steps(db, back),
            none if da is None else _steps(da, back), earlier, strict=False):
        value = _advance(following, value, slope, store, product, state)
        following = link
        if change is not None and source is not None:
            np.multiply(value, source, out=change)
        elif change is not None:
            change[...] = 0
    if first is not None and following is not None:
        np.multiply(following, value, out=first)
    elif first is not None:
        first[...] = 0
    return db, da, first


def _wanted(shape: tuple[int, ...], like: Array, wanted: bool) -> Array | None:
    return host().empty(shape, like.dtype, "linear_scan_grad") if wanted else None


# -- GPU: kernels/linear_scan.cu ------------------------------------------------------------------

_STEPS = 16  # of a sequence, in a thread's registers: GT_STEPS of the kernel
_WIDTH = 32  # neighbouring channels of a block, at most: one transaction where they are float32
_FORWARD = raw("linear_scan.cu", "linear_scan_forward")
_BACKWARD = raw("linear_scan.cu", "linear_scan_backward")


def scan_launch(
    rows: int, steps: int, channels: int
) -> tuple[tuple[int], tuple[int], int]:
    """Grid and block of the kernels, and the channels of a block: powers of two of threads."""
    width = min(_WIDTH, 1 << max(0, channels - 1).bit_length())
    lanes = min(BLOCK // width, 1 << max(0, -(-steps // _STEPS) - 1).bit_length())
    return (min(rows * -(-channels // width), 2**31 - 1),), (width * lanes,), width


def _launch(kernel: Any, x: Array, reverse: bool, *arrays: Array | None) -> None:
    """Run a kernel on arrays of x's dtype; inputs that are not contiguous are copied."""
    steps, channels = x.shape[-2:]
    rows = prod(x.shape[:-2])
    grid, block, width = scan_launch(rows, steps, channels)
    given = [NULL if array is None else array for array in arrays]
    kernel[x.dtype](grid, block, (*given, rows, steps, channels, width, int(reverse)))


def _dense(x: Array | None) -> Array | None:
    return None if x is None else cupy().ascontiguousarray(x)


def forward_gpu(
    a: Array, b: Array, initial: Array | None = None, *, reverse: bool, out: Array | None = None
) -> Array:
    direct = out if out is not None and out.flags.c_contiguous else None
    h = cupy().empty(b.shape, b.dtype) if direct is None else direct
    _launch(_FORWARD, b, reverse, _dense(a), _dense(b), _dense(initial), h)
    return settled(h, out) if direct is None else h


def _grad_gpu(
    g: Array, a: Array, h: Array | None, initial: Array | None, *, reverse: bool,
    wanted: tuple[bool, ...], out: Array | None = None
) -> tuple[Array | None, Array | None, Array | None]:
    """As _grad_cpu."""
    direct = out is not None and out.flags.c_contiguous
    da, db, first = (
        cupy().empty(shape, g.dtype) if want else None for shape, want in (
            (g.shape, wanted[0]), (g.shape, wanted[1] and not direct), (_step_shape(g), wanted[2])))
    if direct:
        db = out
    if first is not None and not g.shape[-2]:
        first[...] = 0
    _launch(_BACKWARD, g, reverse, _dense(g), _dense(a), _dense(h), _dense(initial), da, db, first)
    if out is not None and not direct:
        out[...] = db
        db = out
    return db, da, first


# -- rules -----------------------------------------------------------------------------------------


def _earlier(ns: Namespace, h: Any, initial: Any, reverse: bool) -> Any:
    """For each step the h before: of the first step `initial`, or 0."""
    to, origin = shifted_keys(-2, reverse)
    moved = ns.unslice(ns.slice(h, key=origin), key=to, shape=h.shape)
    if initial is None or not h.shape[-2]:
        return moved
    return ns.add(moved, _at_first(ns, initial, h, reverse))


def _at_first(ns: Namespace, x: Any, like: Any, reverse: bool) -> Any:
    """x (..., C) at the first step of a scan of like's shape, 0 at the others."""
    return ns.unslice(x, key=_first(like, reverse), shape=like.shape)


def _first(like: Any, reverse: bool) -> tuple[Any, ...]:
    return (..., like.shape[-2] - 1 if reverse else 0, slice(None))


def _grad_recorded(
    g: Tensor, a: Tensor, h: Tensor | None, initial: Tensor | None, *, reverse: bool,
    wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    ns = recorded
    later, earlier = shifted_keys(-2, reverse)
    links = ns.unslice(ns.slice(a, key=later), key=earlier, shape=a.shape)
    db = ns.linear_scan(links, g, None, reverse=not reverse)
    da = ns.multiply(db, _earlier(ns, h, initial, reverse)) if wanted[0] else None
    if not wanted[2]:
        return db, da, None
    if not a.shape[-2]:
        return db, da, ns.sum(g, axis=(-2,))
    key = _first(a, reverse)
    return db, da, ns.multiply(ns.slice(a, key=key), ns.slice(db, key=key))


def _grad_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """As `trailing`, but of several results, so that a buffer for one is not all of them."""
    return trailing(ns, _grad_recorded if ns is recorded else run, inputs, mapped, params)


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    wanted = tuple([step.needs(i) for i in range(3)])
    a, initial, h = step.saved
    reuse = step.reuse(g) if wanted[1] else None
    options = {**step.params, "wanted": wanted}
    found: Any = (g, a, h, initial)
    gradients: Any = (_grad_recorded(*found, **options) if ns is recorded else
                      ns.linear_scan_grad(*found, out=reuse, **options))
    db, da, first = gradients
    for i, gradient in ((0, da), (2, first), (1, db)):
        if wanted[i]:
            step.give(i, gradient)


def _tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    (a, _, initial), (da, db, dinitial) = primals, tangents
    reverse = params["reverse"]
    if da is not None:
        moved = ns.multiply(da, _earlier(ns, out, initial, reverse))
        db = moved if db is None else ns.add(db, moved)
    if db is None:
        nothing = (..., slice(0, 0), slice(None))
        db = ns.unslice(ns.slice(out, key=nothing), key=nothing, shape=out.shape)
    return ns.linear_scan(a, db, dinitial, **params)


# -- definitions -----------------------------------------------------------------------------------


def _reference(torch: Any, a: Any, b: Any, initial: Any, *, reverse: bool) -> Any:
    before, found = 0 if initial is None else initial, []
    order = range(a.shape[-2])
    for t in reversed(order) if reverse else order:
        before = a[..., t, :] * before + b[..., t, :]
        found.append(before)
    return torch.stack(found[::-1] if reverse else found, dim=-2) if found else b * 1


linear_scan_grad = op(
    "linear_scan_grad", inputs="g a h initial", cpu=_grad_cpu, gpu=_grad_gpu,
    backward=None, tangent=None, composed=_grad_recorded, batch=_grad_batch,
    samples=None,  # h must be a's and b's: tested through linear_scan
    doc="The gradients of linear_scan's b, a and initial.",
)

linear_scan_op = op(
    "linear_scan", autocast="float32", cpu=_forward_cpu, gpu=forward_gpu,
    saves={"a": "a initial out", "b": "a", "initial": "a"},
    backward=_backward, tangent=_tangent, batch=trailing,
    samples=[Sample((shape, shape, (*shape[:-2], shape[-1]) if begun else None),
                    params={"reverse": reverse})
             for shape, begun in (((5, 3), False), ((2, 7, 4), True), ((1, 2), True),
                                  ((2, 3, 2, 1), True), ((0, 3), True), ((2, 3, 0), False))
             for reverse in (False, True)],
    reference=_reference,
    doc="h[t] = a[t] * h[t - 1] + b[t] along axis -2, with `initial` before the first step. "
        "Parameters: reverse (from the last step to the first).",
)


@takes_arrays
def linear_scan(
    a: Tensor, b: Tensor, initial: Tensor | None = None, reverse: bool = False
) -> Tensor:
    """h[t] = a[t] * h[t - 1] + b[t] for each channel of each sequence: (..., T, C).

    Half types are added up in float32. On CUDA products of neighbouring a must not overflow, as
    parts of a sequence run at the same time.

    Args:
        a: (..., T, C), factors of the state.
        b: (..., T, C), what is added. a and b are broadcast against each other.
        initial: (..., C), the state before the first step, which broadcasts to theirs; None for 0.
        reverse: from the last step to the first: h[t] = a[t] * h[t + 1] + b[t].

    The fastest layout on the CPU has the time as first axis: (T, N * C).

    Raises ValueError for shapes that do not fit, TypeError for different dtypes or integers.

    Source: Martin and Cundy, "Parallelizing linear recurrent neural nets over sequence length",
    2018.
    """
    same_dtype("linear_scan", a=a, b=b, initial=initial)
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
        fits = len(shape) > 1
        state = (*shape[:-2], *shape[-1:])
        if fits and initial is not None:
            fits = np.broadcast_shapes(initial.shape, state) == state
    except ValueError:
        fits = False
    if not fits:
        begun = "" if initial is None else f" and initial of shape {initial.shape}"
        raise ValueError(f"linear_scan was given a of shape {a.shape}, b of shape {b.shape}{begun};"
                         " wanted (..., T, C) twice, and (..., C) of initial")
    a, b = (x if x.shape == shape else broadcast_to(x, shape) for x in (a, b))
    if initial is not None and initial.shape != state:
        initial = broadcast_to(initial, state)
    return linear_scan_op(a, b, initial, reverse=bool(reverse))
