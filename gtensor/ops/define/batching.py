"""Batch rules by kind: how an op runs on values whose first axis is that of the examples.

A rule `batch(ns, run, inputs, mapped, params)` is given the inputs of all examples; where `mapped`,
the first axis is the batch. It returns the output with the batch axis first, by a call of the op
itself, `run(*inputs, **params)`, wherever that is possible: parameters count axes from the end.
Other ops it finds in the namespace `ns`. As a backward rule it is written once for raw arrays and
for Tensors. Of an op with extra results, `run` returns the tuple of output and extras, and so does
the rule, each with the batch axis first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gtensor.backend import device_of
from gtensor.engine.handle.errors import SizeError
from gtensor.engine.handle.tensor import Tensor, wrap

if TYPE_CHECKING:
    from gtensor.backend.typing import Params, Path
    from gtensor.engine.handle.namespaces import Namespace

Inputs = Sequence[Any]
Mapped = Sequence[bool]
_SINGLE = (float, int, type(None))


def _ndim(x: Any) -> int:
    if type(x) in _SINGLE:
        return 0
    try:
        return x.ndim
    except AttributeError:
        return np.ndim(x)


def broadcasting(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of ops that broadcast their inputs (products: but the last two axes), aligned at the end."""
    if len(inputs) == 2:  # most calls have nothing to align
        (x1, x2), (m1, m2) = inputs, mapped
        n1, n2 = _ndim(x1) - m1, _ndim(x2) - m2
        if n1 == n2 or not (m1 if n1 < n2 else m2):
            return run(x1, x2, **params)
    return run(*aligned(ns, inputs, mapped), **params)


broadcasting.aligns = True  # type: ignore[attr-defined]  # it does no more than that
broadcasting.writes = True  # type: ignore[attr-defined]  # it hands on a buffer to write


def aligned(ns: Namespace, inputs: Inputs, mapped: Mapped) -> list[Any]:
    """The inputs, with axes of size 1 behind the batch axis where an example has fewer axes."""
    ndim = max(_ndim(x) - m for x, m in zip(inputs, mapped, strict=True))
    return [behind(ns, x, m, ndim) for x, m in zip(inputs, mapped, strict=True)]


def unchanged(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of ops of one input whose parameters name axes from the end: the op itself."""
    return run(*inputs, **params)


unchanged.writes = True  # type: ignore[attr-defined]


def to_shape(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of reshape: the batch axis stays before the shape."""
    return run(*inputs, shape=(inputs[0].shape[0], *params["shape"]))


def broadcast_shape(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of broadcast_to: new axes come behind the batch axis."""
    (x,) = inputs
    size, *axes = x.shape
    ones = (1,) * (len(params["shape"]) - len(axes))
    return run(ns.reshape(x, shape=(size, *ones, *axes)), shape=(size, *params["shape"]))


def in_order(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of permute_dims: the batch axis stays first."""
    (x,) = inputs
    return run(x, axes=(-x.ndim, *params["axes"]))


def whole_axis_first(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of slice and its adjoint: the key selects within each example."""
    shape = {"shape": (inputs[0].shape[0], *params["shape"])} if "shape" in params else {}
    return run(*inputs, key=(slice(None), *params["key"]), **shape)


# -- parts of rules --------------------------------------------------------------------------------


def in_dtype(ns: Namespace, x: Any, dtype: np.dtype) -> Any:
    """x, cast if it has another dtype."""
    return x if x is None or x.dtype == dtype else ns.astype(x, dtype=dtype)


def batch_size(inputs: Inputs, mapped: Mapped) -> int:
    """The number of examples."""
    size: int = next(x.shape[0] for x, m in zip(inputs, mapped, strict=True) if m)
    return size


def spread(ns: Namespace, x: Any, mapped: bool, size: int) -> Any:
    """x with the batch axis: where all examples share it, a view that repeats it."""
    return x if mapped or x is None else ns.broadcast_to(x, shape=(size, *x.shape))


def batch_axis_at(ns: Namespace, x: Any, place: int) -> Any:
    """A view of x (N, a, b, ...) with the batch axis behind `place` others."""
    return _moved(ns, x, 0, place)


def batch_axis_first(ns: Namespace, x: Any, place: int) -> Any:
    """The inverse of `batch_axis_at`."""
    return _moved(ns, x, place, 0)


def _moved(ns: Namespace, x: Any, source: int, target: int) -> Any:
    order = [*range(-x.ndim, 0)]
    order.insert(target, order.pop(source))
    return x if source == target else ns.permute_dims(x, axes=tuple(order))


def behind(ns: Namespace, x: Any, mapped: bool, ndim: int) -> Any:
    """x aligned at the end with examples of `ndim` axes."""
    if not mapped or x.ndim > ndim:
        return x
    return ns.reshape(x, shape=(x.shape[0], *(1,) * (ndim + 1 - x.ndim), *x.shape[1:]))


def merged(ns: Namespace, x: Any, axis: int, groups: int = 1) -> Any:
    """x (N, ..., G c, ...) with N in that axis of an example: (..., G N c, ...)."""
    n, *shape = x.shape
    each = shape[axis] // groups
    split = ns.reshape(x, shape=(n, *shape[:axis], groups, each, *shape[axis + 1:]))
    shape[axis] = groups * n * each
    return ns.reshape(batch_axis_at(ns, split, axis + 1), shape=tuple(shape))


def apart(ns: Namespace, y: Any, axis: int, n: int, groups: int = 1) -> Any:
    """The inverse of `merged`."""
    shape = [*y.shape]
    each = shape[axis] // (groups * n)
    split = ns.reshape(y, shape=(*shape[:axis], groups, n, each, *shape[axis + 1:]))
    shape[axis] = groups * each
    return ns.reshape(batch_axis_first(ns, split, axis + 1), shape=(n, *shape))


# -- several inputs whose axes correspond ----------------------------------------------------------


def trailing(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of ops whose inputs have as many axes, named from the end: the op itself.

    Inputs that all examples share are repeated as views; a `shape` gets the batch axis in front.
    """
    size = batch_size(inputs, mapped)
    if "shape" in params:
        params = {**params, "shape": (size, *params["shape"])}
    if False in mapped:
        inputs = [spread(ns, x, m, size) for x, m in zip(inputs, mapped, strict=True)]
    return run(*inputs, **params)


trailing.writes = True  # type: ignore[attr-defined]


def in_channels(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of ops on planes (N, C, H, W): images are folded into channels, examples are the images.

    So an input that all examples share is a view (batch, N * C, H, W), which is not copied.
    """
    size = batch_size(inputs, mapped)
    folded = [spread(ns, ns.reshape(x, shape=(
        *x.shape[:m], prod(x.shape[m:m + 2]), *x.shape[m + 2:])), m, size)
        for x, m in zip(inputs, mapped, strict=True)]
    lead = inputs[0].shape[mapped[0]:mapped[0] + 2]
    made = run(*folded, **params)
    if not isinstance(made, tuple):
        return ns.reshape(made, shape=(made.shape[0], *lead, *made.shape[2:]))
    return tuple([ns.reshape(y, shape=(y.shape[0], *lead, *y.shape[2:])) for y in made])


def or_none(rule: Path) -> Path:
    """The rule, but for a batch of no examples one run on zeros, which gives the shapes.

    Of ops whose axes a rule folds with the batch axis: no size may be 0 there.
    """

    @wraps(rule)
    def batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
        if batch_size(inputs, mapped):
            return rule(ns, run, inputs, mapped, params)
        zeros = [ns.sum(x, axis=(-x.ndim,)) if m else x
                 for x, m in zip(inputs, mapped, strict=True)]
        made = run(*zeros, **params)
        several = isinstance(made, tuple)
        empty = [None if y is None else ns.broadcast_to(y, shape=(0, *y.shape))
                 for y in (made if several else (made,))]
        return tuple(empty) if several else empty[0]

    return batch


# -- indices ---------------------------------------------------------------------------------------


def numbers(like: Any, size: int, axes: int) -> Any:
    """0, 1, ..., size - 1 along a first axis, with so many axes of size 1 behind; int64."""
    device = like.device if isinstance(like, Tensor) else device_of(like)
    array = device.xp.arange(size).reshape(size, *(1,) * axes)
    return wrap(array, device) if isinstance(like, Tensor) else array


def sized_by_values(name: str) -> Any:
    """The rule of an op whose output has a shape that depends on values: it refuses."""

    def refused(
        ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
    ) -> NoReturn:
        raise SizeError(f"{name} under vmap() would give each example a size of its own, by its "
                         "values; wanted a result of one shape, as where() gives it")

    return refused
