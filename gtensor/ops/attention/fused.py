"""Attention where its kernels serve: forward as one launch, backward as two.

They serve halves and float32 on devices from sm_80 on, with a positive scale, head sizes up to 256
(float32: 128) of which a row has a multiple of 16 bytes, any strides that are such multiples, and
features side by side; masks that are boolean or of the dtype of the others, of any strides; dropout
of as many keys as are a multiple of 8. Backward sums over the leading axes along which keys and
values both repeat. The gradient of a mask is a third launch
(kernels/attention_mask_gradient.cuh), which writes nothing else. All other calls take the blocks of
blocks.py, among them float32 with larger heads, also by TF32: as the profiler says, `unserved`.

Halves are multiplied by tensor cores, float32 without them, or with `settings.tf32` by TF32: the
same blocks of kernels/attention_forward.cuh and the other headers, with other tiles.
The kernels with a mask or dropout have files of their own for halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import e, log2, prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from gtensor.backend.kernels import NULL, Launcher, raw
from gtensor.backend.layouts import Axis, merged
from gtensor.ops.activations.dropout import keep_factor, keep_threshold
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array

_LEAD_AXES = 4  # `GT_LEAD_AXES` of the kernels' header
_MASK_QUERIES, _MASK_THREADS = 64, 128  # of a block for a mask's gradient
_MOST_MASK_TILES = 2048  # that one block adds up: beyond, blocks.py has more at work
_DTYPES = ("float16", "bfloat16", "float32")
_ARCHITECTURE = 80
_ALIGNED = 16  # bytes
_AT_ONCE = 8  # elements of a mask
_TERM_NUMBERS = 3  # float32 of a query, for backward with a mask or dropout, and of float32
_MOST_ROWS, _MOST_BLOCKS = 1 << 30, 2**31 - 1


class Tiles(NamedTuple):
    """Rows of a block's tile and of one that passes, and the threads of a block."""

    queries: int  # forward
    keys: int
    threads: int
    owned: int  # backward
    passing: int
    gradient_threads: int
    masked_threads: int  # of keys, with a mask or dropout
    mask_keys: int  # of a block for a mask's gradient


# By bytes of an element and the most features: what the kernels' files say.
# Of float32 there is no 256: with 16 rows of sums a warp for keys spilled, 8 to 68 bytes a thread.
_TILES = {
    (2, 64): Tiles(128, 64, 256, 128, 32, 128, 256, 64),
    (2, 128): Tiles(128, 64, 256, 128, 32, 256, 256, 64),
    (2, 256): Tiles(64, 32, 128, 64, 16, 128, 128, 32),
    (4, 64): Tiles(128, 32, 128, 128, 32, 128, 256, 64),
    (4, 128): Tiles(64, 32, 128, 64, 16, 128, 128, 32),
}
_ONE_GRADIENT = 256  # of this size of heads a block has keys' gradient or values'
_FILES = {("halves", ""): "attention", ("halves", "terms_"): "attention_terms",
          **{(kind, terms): file for kind, file in (("float32", "attention_float"),
                                                    ("tf32", "attention_tf32"))
             for terms in ("", "terms_")}}


def _sizes(kind: str) -> list[int]:
    """Of heads, at most."""
    return [size for itemsize, size in _TILES if itemsize == (2 if kind == "halves" else 4)]


_KERNELS = {
    (kind, which, size, bool(terms)): raw(file + suffix, f"attention_{terms}{which}_{size}")
    for (kind, terms), file in _FILES.items() for size in _sizes(kind)
    for which, suffix in (("forward", ".cu"), ("backward_queries", "_backward.cu"),
                          ("backward_keys", "_backward.cu"))}
_KERNELS |= {
    (kind, "mask_gradient", size, True): raw(
        f"{file}_mask_gradient.cu", f"attention_mask_gradient_{size}")
    for (kind, terms), file in _FILES.items() if not terms for size in _sizes(kind)}


def _structure(arrays: tuple[str, ...], numbers: tuple[str, ...]) -> np.dtype:
    """Of a kernel's file: strides of arrays along leading axes and along rows, and numbers."""
    axis = np.dtype([(name, np.int64) for name in ("length", *arrays)])
    return np.dtype([("lead", axis, (_LEAD_AXES,)), ("rows", axis),
                     *((name, np.int64) for name in numbers)])


_NUMBERS = ("keys", "features", "value_features", "causal")
_SPACE = _structure(("q", "k", "v", "out"), ("matrices", *_NUMBERS))
_GRADIENT_SPACE = _structure(("q", "k", "v", "out", "g", "saved", "dq", "dk", "dv"),
                             ("matrices", "repeats", "of_mask", *_NUMBERS))
_MASK_SPACE = _structure(
    ("q", "k", "v", "g", "numbers", "dmask"),
    ("matrices", "repeats", "one_query", "one_key", "key_step", *_NUMBERS))

# Of leading axes and of queries: the length, steps of the mask, of numbers of matrices.
_TERM_AXIS = np.dtype([(name, np.int64) for name in ("length", "mask", "number")])
_TERMS = np.dtype([("lead", _TERM_AXIS, (_LEAD_AXES,)), ("rows", _TERM_AXIS),
                   *((name, np.int64) for name in ("key_step", "keys", "itemsize", "wide"))])

At: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # shape, and strides in bytes
Steps: TypeAlias = tuple[int, ...]  # elements from one index to the next; all axes but the last


class Terms(NamedTuple):
    """How a mask lies, and whether weights are dropped."""

    mask: At | None  # broadcasts to the shape of the weights
    itemsize: int  # of the mask: 1 is boolean
    drops: bool
    shared: int  # leading axes along which the dropout repeats
    aligned: bool = False  # the mask begins where eight elements may be read at once


class Plan(NamedTuple):
    """How the kernel is launched."""

    size: int  # of heads, at most
    grid: tuple[int, ...]
    threads: int
    shared_bytes: int
    space: np.void  # gt_attention
    terms: np.void | None  # gt_attention_terms, where there are such


class GradientPlan(NamedTuple):
    """How the kernels of backward are launched."""

    size: int
    query_grid: tuple[int, ...]
    key_grid: tuple[int, ...]
    query_threads: int
    key_threads: int
    shared_bytes: int
    numbers: int  # float32 that the first one computes for the second one
    space: np.void  # gt_attention_gradients
    terms: np.void | None


@lru_cache(1024)
def plan(
    q: At, k: At, v: At, out: At, is_causal: bool, terms: Terms | None = None, itemsize: int = 2
) -> Plan | None:
    """The launch for arrays that begin at multiples of 16 bytes; None if there is none.

    Args:
        q: (..., L, E).
        k: (..., S, E).
        v: (..., S, E_v).
        out: (..., L, E_v), with all leading axes.
        is_causal: a query sees no keys behind its own position.
        terms: of a mask or dropout.
        itemsize: bytes of an element: 2 of halves, 4 of float32.
    """
    lead = out[0][:-2]
    size = _size(q, v, lead, itemsize)
    steps = [_steps(x, len(lead), itemsize) for x in (q, k, v, out)]
    if not size or None in steps:
        return None
    tiles = _TILES[itemsize, size]
    blocks = prod(lead) * -(-q[0][-2] // tiles.queries)
    if blocks > _MOST_BLOCKS:
        return None
    space = _filled(_SPACE, q, v, lead, steps, range(len(lead)), is_causal, terms)
    return None if space is None else Plan(
        size, (blocks,), tiles.threads, (tiles.queries + 4 * tiles.keys) * size * itemsize, *space)


@lru_cache(1024)
def gradient_plan(
    q: At, k: At, v: At, out: At, g: At, saved: At, dq: At | None, dk: At | None, dv: At | None,
    is_causal: bool, terms: Terms | None = None, itemsize: int = 2, of_mask: bool = False,
) -> GradientPlan | None:
    """The launches of backward; as `plan`.

    Keys and values may repeat along leading axes, both along the same ones; queries may not.

    Args:
        g: as out: the gradient that arrived.
        saved: (..., L, 1), float32: how both of the numbers lie that are kept of each query.
        dq, dk, dv: the gradients, in the shapes of q, k and v; None for those not wanted.
        of_mask: a launch of `mask_plan` follows, for which the numbers are to be exact.
    """
    lead = g[0][:-2]
    size = _size(q, v, lead, itemsize)
    steps = [_steps(x, len(lead), itemsize) for x in (q, k, v, out, g)]
    steps += [_steps(saved, len(lead), 4, 4)]
    steps += [(0,) * (len(lead) + 1) if x is None else _steps(x, len(lead), itemsize)
              for x in (dq, dk, dv)]
    whole, shared, shared_values = (
        (1,) * (len(lead) + 2 - len(x[0])) + x[0][:-2] for x in (q, k, v))
    if not size or None in steps or whole != lead or shared != shared_values:
        return None
    order = _shared_last(shared, lead)
    tiles = _TILES[itemsize, size]
    matrices, rows = prod(lead), -(-q[0][-2] // tiles.owned)
    each = 2 if size == _ONE_GRADIENT and dk and dv else 1
    blocks = matrices * rows, prod(shared) * -(-k[0][-2] // tiles.owned) * each
    if max(blocks) > _MOST_BLOCKS:
        return None
    space = _filled(_GRADIENT_SPACE, q, v, lead, steps, order, is_causal, terms,
                    repeats=matrices // prod(shared), of_mask=of_mask)
    return None if space is None else GradientPlan(
        size, blocks[:1], blocks[1:], tiles.gradient_threads,
        tiles.gradient_threads if terms is None else tiles.masked_threads,
        (2 * tiles.owned + 4 * tiles.passing) * size * itemsize,
        matrices * rows * tiles.owned * (2 if terms is None and itemsize == 2 else _TERM_NUMBERS),
        *space)


@lru_cache(1024)
def mask_plan(
    q: At, k: At, v: At, g: At, dmask: At, is_causal: bool, terms: Terms, itemsize: int = 2
) -> Plan | None:
    """The launch that makes the gradient of a mask, for what has a `gradient_plan`.

    Args:
        dmask: the gradient, in the shape of the mask.
    """
    lead, axes = g[0][:-2], len(g[0]) - 2
    masks, shared = ((1,) * (axes + 2 - len(x[0])) + x[0][:-2] for x in (dmask, k))
    (rows, columns), (length, keys) = dmask[0][-2:], (q[0][-2], k[0][-2])
    size = _size(q, v, lead, itemsize)
    laid = _TILES[itemsize, size]
    tiles = -(-length // _MASK_QUERIES), -(-keys // laid.mask_keys)
    own = tiles[0] if rows == length else 1, tiles[1] if columns == keys else 1
    repeats = prod(lead) // prod(masks)
    blocks = prod(masks) * prod(own)
    steps: list[Any] = [_steps(x, axes, itemsize) for x in (q, k, v, g)]
    counted = _shared_last(shared, lead)  # numbers lie as the first launch has counted matrices
    each = -(-length // laid.owned) * laid.owned * _TERM_NUMBERS
    numbers = {i: each * prod(lead[j] for j in counted[at + 1:]) for at, i in enumerate(counted)}
    mask_steps = [0 if n == 1 else stride // itemsize for n, stride in zip(*dmask, strict=True)]
    mask_steps = [0] * (axes + 2 - len(mask_steps)) + mask_steps
    steps += [(*(numbers[i] for i in range(axes)), _TERM_NUMBERS), tuple(mask_steps[:-1])]
    if blocks > _MOST_BLOCKS or repeats * prod(tiles) // prod(own) > _MOST_MASK_TILES:
        return None
    space = _filled(_MASK_SPACE, q, v, lead, steps, _shared_last(masks, lead), is_causal, terms,
                    repeats=repeats, one_query=rows != length, one_key=columns != keys,
                    key_step=mask_steps[-1])
    return None if space is None else Plan(
        size, (blocks,), _MASK_THREADS, 2 * (_MASK_QUERIES + laid.mask_keys) * size * itemsize,
        *space)


def _shared_last(shared: tuple[int, ...], lead: tuple[int, ...]) -> list[int]:
    """The leading axes in the order in which matrices count; those that repeat are the last."""
    return sorted(range(len(lead)), key=lambda i: shared[i] < lead[i])


def _size(q: At, v: At, lead: tuple[int, ...], itemsize: int) -> int:
    """The kernels' size of heads; 0 if none serves."""
    (length, features), (keys, value_features) = q[0][-2:], v[0][-2:]
    size = next((size for each, size in _TILES
                 if each == itemsize and max(features, value_features) <= size), 0)
    fits = (0 < length <= _MOST_ROWS and 0 < keys <= _MOST_ROWS and features and value_features
            and features * itemsize % _ALIGNED == value_features * itemsize % _ALIGNED == 0
            and prod(lead) > 0)
    return size if fits else 0


def _steps(x: At, lead: int, itemsize: int, aligned: int = _ALIGNED) -> Steps | None:
    """Along `lead` leading axes and rows, 0 where the array repeats; None if it lies otherwise.

    Features are to lie side by side, rows to begin at multiples of `aligned` bytes.
    """
    strides = [0 if n == 1 else stride for n, stride in zip(*x, strict=True)]
    if strides.pop() != (x[0][-1] > 1) * itemsize or any(n % aligned for n in strides):
        return None
    return (0,) * (lead + 1 - len(strides)) + tuple(n // itemsize for n in strides)


def _filled(
    structure: np.dtype, q: At, v: At, lead: tuple[int, ...], steps: list[Any],
    order: Iterable[int], is_causal: bool, terms: Terms | None, **numbers: int,
) -> tuple[Any, Any] | None:
    """A kernel's structures with the leading axes in this order; None if there are too many."""
    length, keys = q[0][-2], v[0][-2]
    count = len(steps)
    found = None if terms is None else _term_steps(terms, (*lead, length, keys))
    if found is not None:
        steps = [*steps, *(step[:-1] for step in found)]
    elif terms is not None:
        return None
    axes = merged(Axis(lead[i], tuple(step[i] for step in steps)) for i in order)
    if len(axes) > _LEAD_AXES:
        return None
    axes = [Axis(1, (0,) * len(steps))] * (_LEAD_AXES - len(axes)) + axes
    rows = Axis(length, tuple(step[-1] for step in steps))
    space: Any = np.zeros((), structure)
    space["lead"] = [(axis.length, *axis.steps[:count]) for axis in reversed(axes)]
    space["rows"] = (length, *rows.steps[:count])
    numbers |= {"matrices": prod(lead), "keys": keys, "features": q[0][-1],
                "value_features": v[0][-1], "causal": is_causal}
    for name, number in numbers.items():
        space[name] = number
    if terms is None or found is None:
        return space[()], None
    more: Any = np.zeros((), _TERMS)
    more["lead"] = [(axis.length, *axis.steps[count:]) for axis in reversed(axes)]
    more["rows"] = (length, *rows.steps[count:])
    *mask_steps, key_step = found[0]
    more["key_step"], more["keys"], more["itemsize"] = key_step, keys, terms.itemsize
    more["wide"] = terms.aligned and key_step == 1 and not any(n % _AT_ONCE for n in mask_steps)
    return space[()], more[()]


def _term_steps(terms: Terms, whole: tuple[int, ...]) -> tuple[Steps, Steps] | None:
    """Of the mask, and of the numbers of matrices; all axes. None if the kernels do not serve.

    In the kernels places within a matrix of the mask have 32 bits; eight keys share random bits.
    """
    if terms.drops and whole[-1] % 8:
        return None
    mask: Steps = (0,) * len(whole)
    if terms.mask is not None:
        shape, strides = terms.mask
        mask = mask[len(shape):] + tuple(
            0 if n == 1 else stride // terms.itemsize
            for n, stride in zip(shape, strides, strict=True))
        if sum(n * abs(step) for n, step in zip(whole[-2:], mask[-2:], strict=True)) >= 1 << 31:
            return None
    own = whole[terms.shared:-2]
    numbers = (0,) * terms.shared + tuple(prod(own[i + 1:]) for i in range(len(own))) + (0, 0)
    return mask, numbers


def serves(device: Device, dtype: Any, scale: float) -> bool:
    """Whether attention of this dtype may be so few launches."""
    return (device.architecture >= _ARCHITECTURE and dtype.name in _DTYPES
            and 0 < scale < np.inf)


def unserved(
    device: Device, arrays: Sequence[Any], mask: Array | None, scale: float, dropout_p: float
) -> str:
    """Why these kernels do not serve a call, for profiles. Arrays: q, k, v, and others laid so."""
    q, k, v = arrays[:3]
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))
    if not serves(device, q.dtype, scale):
        return f"{q.dtype.name} with scale {scale:g} on sm_{device.architecture}"
    features = max(q.shape[-1], v.shape[-1])
    most = max(size for itemsize, size in _TILES if itemsize == q.itemsize)
    if features > most:
        return f"heads of {features} features, of which {q.dtype.name} has at most {most}"
    if not _size(_at(q), _at(v), lead, q.itemsize):
        return (f"{q.shape[-2]} queries, {k.shape[-2]} keys, heads of {q.shape[-1]} and "
                f"{v.shape[-1]} features")
    if any(x.dtype != q.dtype or x.data.ptr % _ALIGNED
           or _steps(_at(x), len(lead), q.itemsize) is None for x in arrays):
        return "features lie apart, or rows begin at other places than multiples of 16 bytes"
    if mask is not None and not _of_dtype(mask, q):
        return f"a mask of {mask.dtype.name} beside {q.dtype.name}"
    if dropout_p and k.shape[-2] % 8:
        return f"dropout of {k.shape[-2]} keys, no multiple of 8"
    return "leading axes, or a mask whose gradient adds up too many weights"


def laid_as(device: Device, shape: tuple[int, ...], like: Array, label: str) -> Array:
    """New memory with the axes in the order that those of `like` have in theirs.

    Heads that lie side by side in a row of q then do so in the output, for the product behind.
    """
    order = [*range(len(shape))]
    if like.ndim == len(shape) and 0 not in like.strides:
        order = [*sorted(order[:-1], key=lambda i: -like.strides[i]), len(shape) - 1]
    made = device.empty(tuple(shape[i] for i in order), like.dtype, label)
    return made.transpose([*map(order.index, range(len(shape)))])


def _at(x: Array) -> At:
    return x.shape, x.strides


def _terms(mask: Any, dropout_p: float, shared: int) -> Terms | None:
    """None without a mask and dropout."""
    if mask is None:
        return Terms(None, 0, True, shared) if dropout_p else None
    size = mask.dtype.itemsize
    return Terms(_at(mask), size, dropout_p > 0, shared, mask.data.ptr % (_AT_ONCE * size) == 0)


def _kernel(which: str, size: int, terms: object, dtype: Any) -> Launcher:
    kind = "halves" if dtype.itemsize == 2 else "tf32" if settings.tf32 else "float32"
    return _KERNELS[kind, which, size, terms is not None][dtype]


def _of_dtype(mask: Array | None, q: Array) -> bool:
    return mask is None or mask.dtype.kind == "b" or mask.dtype == q.dtype


def _last(
    terms: np.void | None, dtype: Any, scale: float, mask: Array | None, dropout_p: float,
    seed: int | Array,
) -> tuple[Any, ...]:
    """The last arguments of a kernel: the scale, that of a mask and of dropout, where there are."""
    if terms is None:
        return (scale * log2(e) if dtype.itemsize == 2 else scale,)
    place, number = (NULL, seed) if isinstance(seed, int) else (seed, 0)
    dropped = (keep_threshold(dropout_p), keep_factor(dropout_p)) if dropout_p else (0, 1.0)
    return scale, NULL if mask is None else mask, terms, place, number, *dropped


def attend(
    device: Device, q: Array, k: Array, v: Array, mask: Array | None, out: Array, *, scale: float,
    is_causal: bool, dropout_p: float, seed: int | Array, shared: int,
) -> tuple[Array, Array] | None:
    """Write the output; what blocks.py keeps of each query, (..., L, 1): a number and a sum.

    Of halves without a mask and dropout the number is the logarithm of the sum of exponentials,
    relative to which the sum is 1; else it is the largest score. None, and nothing is written,
    where the kernel does not serve.
    """
    arrays: tuple[Any, ...] = (q, k, v, out)
    if any(x.dtype != q.dtype or x.data.ptr % _ALIGNED for x in arrays):
        return None
    terms = _terms(mask, dropout_p, shared)
    launch = plan(*map(_at, arrays), is_causal, terms, q.itemsize)
    if launch is None or not _of_dtype(mask, q):
        return None
    logs, totals = device.empty((2, *out.shape[:-1], 1), np.float32, "attention")
    _kernel("forward", launch.size, terms, q.dtype)(
        launch.grid, (launch.threads,),
        (*arrays, logs, totals, launch.space,
         *_last(launch.terms, q.dtype, scale, mask, dropout_p, seed)),
        shared_mem=launch.shared_bytes)
    return logs, totals


def gradients(
    device: Device, g: Any, q: Array, k: Array, v: Array, mask: Array | None, attended: Array,
    largest: Array, totals: Array, made: Sequence[Any], *, scale: float, is_causal: bool,
    dropout_p: float, seed: int | Array, shared: int,
) -> bool:
    """Write the gradients of q, k, v and mask; False, nothing written, where no kernel serves.

    Args:
        attended: what forward wrote.
        largest, totals: the numbers and sums that it kept.
        made: where the gradients are written, None where they are not needed.
    """
    if _steps(_at(g), g.ndim - 2, g.itemsize) is None or g.data.ptr % _ALIGNED:
        # as the gradient of a sum
        g = device.xp.ascontiguousarray(g)
    read: tuple[Any, ...] = (q, k, v, attended, g)
    *of_inputs, of_mask = made
    if any(x.dtype != q.dtype or x.data.ptr % _ALIGNED for x in read) or (
            largest.strides != totals.strides) or any(
            x is not None and x.data.ptr % _ALIGNED for x in of_inputs):
        return False
    terms = _terms(mask, dropout_p, shared)
    launch = gradient_plan(*map(_at, (*read, largest)),
                           *(None if x is None else _at(x) for x in of_inputs), is_causal, terms,
                           q.itemsize, of_mask is not None)
    if launch is None or not _of_dtype(mask, q):
        return False
    mask_launch = None
    if terms is not None and of_mask is not None:
        mask_launch = mask_plan(
            *map(_at, (q, k, v, g, of_mask)), is_causal, terms, q.itemsize)
        if mask_launch is None:
            return False
    numbers = device.empty((launch.numbers,), np.float32, "attention_grad")
    dq, dk, dv = (NULL if x is None else x for x in of_inputs)
    last = _last(launch.terms, q.dtype, scale, mask, dropout_p, seed)
    _kernel("backward_queries", launch.size, terms, q.dtype)(
        launch.query_grid, (launch.query_threads,),
        (*read, largest, totals, numbers, dq, launch.space, *last),
        shared_mem=launch.shared_bytes)
    if of_inputs[1] is not None or of_inputs[2] is not None:
        _kernel("backward_keys", launch.size, terms, q.dtype)(
            launch.key_grid, (launch.key_threads,),
            (q, k, v, g, numbers, dk, dv, launch.space, *last), shared_mem=launch.shared_bytes)
    if mask_launch is not None:
        _kernel("mask_gradient", mask_launch.size, terms, q.dtype)(
            mask_launch.grid, (mask_launch.threads,),
            (q, k, v, g, numbers, of_mask, mask_launch.space,
             *_last(mask_launch.terms, q.dtype, scale, mask, dropout_p, seed)),
            shared_mem=mask_launch.shared_bytes)
    return True
