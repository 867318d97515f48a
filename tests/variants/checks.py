"""The variants of a plain call, each compared with the plain call on the same numbers.

The reference is the same function in float64 on contiguous arrays on the CPU; for examples along
leading axes, on one after the other. Each call also runs where no gradient is due. A variant may be
refused, by one ValueError or TypeError that says what is wanted; a layout and a dtype may not,
unless the plain call is.

    check(call, "negative strides", seed)       # raises CheckError
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import gtensor as gt
from gtensor.backend import get_device
from gtensor.engine.handle.tensor import FLOATING, Tensor, wrap
from gtensor.testing.cases import LAYOUTS, Layout
from gtensor.testing.compare import TOLERANCES, CheckError, close, to_numpy, unwritten

from .calls import Call, public_functions

Arrays = list[Any]
DTYPES = {t.name: t for t in map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16))}
EQUAL = 1e-9  # of each element and of the largest one: two orders of the same float64 operations


# -- one run of a call ---------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a call gave: its results and the gradients of its floating inputs, or an error."""

    values: Arrays
    gradients: Arrays = field(default_factory=list)  # per input, None where there is none
    dtypes: list[np.dtype | None] = field(default_factory=list)  # None for Python's numbers
    flowing: list[int] = field(default_factory=list)  # the results that have a gradient
    error: Exception | None = None  # of the call
    gradient_error: gt.GradientError | None = None

    def upstreams(self, seed: int) -> list[np.ndarray]:
        """Random gradients of the results that have one."""
        return random_upstreams([self.values[k] for k in self.flowing], seed)


def _flat(result: Any) -> Arrays:
    if isinstance(result, (tuple, list)):
        return [part for one in result for part in _flat(one)]
    return [result]


def run(
    call: Call, arrays: Sequence[Any], seed: int, *, device: str = "cpu",
    layout: Layout | None = None, places: Sequence[int] | None = None,
    upstreams: Sequence[np.ndarray] | None = None,
) -> Outcome:
    """The call on fresh tensors of the arrays, and the gradients of random upstream gradients.

    The layout is that of all inputs and of upstream gradients, or of the inputs at `places`.
    """
    place = get_device(device)
    inputs: list[Tensor | None] = []
    for i, a in enumerate(arrays):
        if a is None:
            inputs.append(None)
            continue
        array = place.copy(place.from_numpy(np.asarray(a)))
        wanted = a.dtype.kind in FLOATING and i not in call.constants and not (
            call.writes and i == 0)
        if layout is not None and (i in places if places is not None else not (
                call.writes and i == 0 and layout is LAYOUTS["stride 0"])):
            array = layout(place.xp, array)
        inputs.append(wrap(array, place)
                      .requires_grad_(wanted))
    check = unwritten((f"input {i}", x) for i, x in enumerate(inputs)
                      if not (call.writes and i == 0))
    try:
        with np.errstate(all="ignore"):
            found = _flat(call.function(*inputs, **call.sample.params))
            result = Outcome([to_numpy(v) if isinstance(v, Tensor) else np.asarray(v)
                              for v in found], dtypes=[getattr(v, "dtype", None) for v in found],
                             flowing=[k for k, v in enumerate(found) if isinstance(v, Tensor)
                                      and v.requires_grad])
            try:
                result.gradients = _gradients(
                    found, inputs, seed, None if places is not None else layout, upstreams)
            except gt.GradientError as error:
                result.gradient_error = error
            check()
            if result.flowing and not call.writes:
                _unrecorded(call, inputs, found)
    except CheckError:
        raise
    except Exception as error:  # the caller compares it, whatever it is
        return Outcome([], error=error)
    return result


def _unrecorded(call: Call, inputs: Sequence[Tensor | None], recorded: Arrays) -> None:
    """Raise unless the results are the same where no gradient is due, for which paths differ."""
    with gt.no_grad():
        results = _flat(call.function(*inputs, **call.sample.params))
    for i, (a, b) in enumerate(zip(results, recorded, strict=True)):
        what = f"{call}: result {i}"
        if a.dtype != b.dtype:
            raise CheckError(f"{what} has dtype {a.dtype} without a gradient, {b.dtype} with one")
        tolerance = TOLERANCES.get(a.dtype, (EQUAL, EQUAL)) if a.dtype.itemsize < 8 else EQUAL
        close(what, a, b.detach(), tolerance, ("without a gradient", "with one"))


def _gradients(
    found: Arrays, inputs: Sequence[Tensor | None], seed: int, layout: Layout | None,
    upstreams: Sequence[np.ndarray] | None,
) -> Arrays:
    """Of each input: an array of its dtype, None where there is none."""
    outputs = [y for y in found if isinstance(y, Tensor) and y.requires_grad]
    leaves = [x for x in inputs if x is not None and x.requires_grad]
    if not outputs or not leaves:
        return [None] * len(inputs)
    given = upstreams or random_upstreams(outputs, seed)
    laid = []
    for y, u in zip(outputs, given, strict=True):
        array = y._device.copy(y._device.from_numpy(np.asarray(u).astype(y.dtype)))
        laid.append(wrap(array if layout is None else layout(y._device.xp, array), y._device))
    answers = iter(gt.grad(outputs, leaves, laid, allow_unused=True))
    result: Arrays = []
    for x in inputs:
        g = next(answers) if x is not None and x.requires_grad else None
        if g is not None and x is not None and (g.shape, g.dtype) != (x.shape, x.dtype):
            raise CheckError(f"a gradient has shape {g.shape}, dtype {g.dtype}; its input has "
                             f"{x.shape}, {x.dtype}")
        result.append(None if g is None else to_numpy(g))
    return result


def random_upstreams(outputs: Sequence[Any], seed: int) -> list[np.ndarray]:
    """One for each output, never uniform."""
    rng = np.random.default_rng(seed)
    made = []
    for y in outputs:
        u = np.asarray(rng.standard_normal(y.shape))
        made.append(u + 1j * rng.standard_normal(y.shape) if y.dtype.kind == "c" else u)
    return made


# -- comparison ------------------------------------------------------------------------------------


def compare(
    what: str, found: Outcome, wanted: Outcome, tolerance: Any = EQUAL,
    gradients: bool = True,
) -> None:
    """Raise unless both gave equal results and gradients, or both the same kind of error."""
    if wanted.error is not None:
        if type(found.error) is not type(wanted.error):
            raise CheckError(f"{what} gave {found.error!r}; the reference gave {wanted.error!r}")
        return
    if found.error is not None:
        raise CheckError(f"{what} raised {found.error!r}") from found.error
    if len(found.values) != len(wanted.values):
        raise CheckError(f"{what} has {len(found.values)} results; wanted {len(wanted.values)}")
    for i, (a, b) in enumerate(zip(found.values, wanted.values, strict=True)):
        close(f"{what}: result {i}", a, b, tolerance, ("found", "wanted"))
    if not gradients:
        return
    if wanted.gradient_error or found.gradient_error:
        if type(wanted.gradient_error) is not type(found.gradient_error):
            raise CheckError(f"{what}: the gradient gave {found.gradient_error!r}; the reference "
                             f"gave {wanted.gradient_error!r}")
        return
    for i, (a, b) in enumerate(zip(found.gradients, wanted.gradients, strict=True)):
        if (a is None) != (b is None):
            raise CheckError(f"{what}: the gradient of input {i} is {a}; wanted {b}")
        if a is not None:
            close(f"{what}: the gradient of input {i}", a, b, tolerance, ("found", "wanted"))


def refused(what: str, error: Exception) -> None:
    """Raise unless an error is one sentence of ours that says what is wanted.

    NumPy's AxisError is both a ValueError and an IndexError. As in Python, an index that is out of
    bounds, such as any index of an empty axis, is an IndexError.
    """
    if isinstance(error, IndexError) and any(words in str(error) for words in (
            "is out of bounds", "too many indices")):
        return
    ours = isinstance(error, (ValueError, TypeError)) and not isinstance(
        error, np.linalg.LinAlgError)
    if not ours or "wanted" not in str(error):
        raise CheckError(f"{what} raised {type(error).__name__}: {error}; wanted a ValueError or "
                         "TypeError that says what is wanted") from error


def dtypes(what: str, found: Outcome, wanted: Sequence[np.dtype]) -> None:
    """Raise unless the results have these dtypes."""
    if any(a is not None and a != b for a, b in zip(found.dtypes, wanted, strict=True)):
        raise CheckError(f"{what} has results of dtype {[str(t) for t in found.dtypes]}; wanted "
                         f"{[t.name for t in wanted]}")


# -- the variants ----------------------------------------------------------------------------------


def layout(name: str, call: Call, seed: int, device: str) -> None:
    """Inputs and the upstream gradient lie otherwise in memory: strided, reversed, stride 0."""
    given = drawn(call, seed)
    kept = (0,) if call.writes and name == "stride 0" else ()  # it would be refused
    laid = [a if a is None or i in kept else LAYOUTS[name](np, a) for i, a in enumerate(given)]
    plain = [None if a is None else np.ascontiguousarray(a).reshape(a.shape) for a in laid]
    wanted = run(call, plain, seed)
    if device != "cpu" and isinstance(wanted.error, np.linalg.LinAlgError):
        return  # at a singular matrix a GPU's result is not finite instead
    upstreams = [LAYOUTS[name](np, u) for u in wanted.upstreams(seed)]
    # a nuclear norm has many gradients at a singular matrix
    one = not (name == "stride 0" and call.sample.params.get("ord") == "nuc")
    compare(f"{call} with {name}",
            run(call, plain, seed, device=device, layout=LAYOUTS[name], upstreams=upstreams),
            run(call, plain, seed, upstreams=upstreams), gradients=one)


def precision(name: str, call: Call, seed: int, device: str) -> None:
    """In less precision the results are float64's on the rounded inputs, in the inputs' dtype."""
    dtype = DTYPES[name]
    smaller = {"f": dtype, **({"c": np.dtype(np.complex64)} if name == "float32" else {})}
    given = drawn(call, seed)
    kinds = ["" if a is None else a.dtype.kind for a in given]
    if not set(kinds) & set(smaller) or "c" in kinds and name != "float32":
        return
    less = [a.astype(smaller[kind]) if kind in smaller else a
            for a, kind in zip(given, kinds, strict=True)]
    wanted = run(call, [a.astype(b.dtype) if kind in smaller else a
                        for a, b, kind in zip(less, given, kinds, strict=True)], seed)
    found = run(call, less, seed, device=device)
    what = f"{call} in {name}"
    tolerance = max(TOLERANCES[dtype])
    compare(what, found, wanted, tolerance)
    dtypes(what, found, [in_dtype(call, v.dtype, dtype) for v in wanted.values])


_OF_A_SPECTRUM = (  # half types count as complex64
    "fft.irfft", "fft.hfft", "fft.irfftn", "fft.irfft2", "fft.hfftn", "fft.hfft2", "istft")


def in_dtype(call: Call, full: np.dtype, dtype: np.dtype) -> np.dtype:
    """The dtype of a result that is `full` for inputs of float64, for inputs of `dtype`."""
    if full == np.float64:
        return DTYPES["float32"] if call.name in _OF_A_SPECTRUM else dtype
    return np.dtype(np.complex64) if full == np.complex128 else full


def _led(arrays: Sequence[Any], lead: Sequence[int], examples: Sequence[Sequence[Any]]) -> Arrays:
    """Examples stacked in the inputs of `lead`."""
    return [np.stack([e[i] for e in examples]) if i in lead else a for i, a in enumerate(arrays)]


def leading_inputs(call: Call, seed: int) -> list[tuple[int, ...]]:
    """Which inputs may have a leading axis of examples, that the result then has: all, or one."""
    given = drawn(call, seed)
    present = tuple(i for i, a in enumerate(given) if a is not None)
    if len({given[i].ndim for i in present}) == 1 and _leads(call, present, seed):
        return [present]
    return [(i,) for i in present if len(present) > 1 and _leads(call, (i,), seed)]


def _leads(call: Call, lead: tuple[int, ...], seed: int) -> bool:
    """Whether two examples in the inputs of `lead` give the two results."""
    first, second = drawn(call, seed), drawn(call, seed + 1)
    other = [second[i] if i in lead else a for i, a in enumerate(first)]
    wanted = [run(call, a, seed) for a in (first, other)]
    found = run(call, _led(first, lead, [first, other]), seed)
    if any(o.error is not None for o in (found, *wanted)) or len(
            {tuple(v.shape for v in o.values) for o in wanted}) != 1:
        return False
    try:
        compare("", Outcome(found.values), Outcome(
            [np.stack(pair) for pair in zip(*[o.values for o in wanted], strict=True)]))
    except CheckError:
        return False
    return True


# of one input, and of the others
_LEADS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1,), (1,)), ((0,), (0,)), ((1,), (2,)), ((), (2,)), ((), (1,)), ((1, 1), (2,)),
    ((1, 1), (1,)))


def leading(call: Call, seed: int, device: str) -> None:
    """Leading axes of 1 are kept, and broadcast to those of other inputs, in gradients, too.

    The reference has as many examples in each input. Of none there is a result of size 0.
    """
    found = leading_inputs(call, seed)
    if not found:
        _first_row(call, seed, device)
    for lead in found:
        _leading(call, lead, seed, device)


def _leading(call: Call, lead: Sequence[int], seed: int, device: str) -> None:
    examples = [drawn(call, seed), drawn(call, seed + 1)]
    for own, others in _LEADS:
        alike = own == others
        for i in lead[:1] if alike else lead[call.writes:] if len(lead) > 1 else ():
            count = max((*own, *others))
            each = [[a if k in lead and (alike or k != i) else examples[0][k]
                     for k, a in enumerate(e)] for e in examples[:count]]
            wanted, upstreams = _loop(call, each or examples[:1], lead, seed)
            wanted = _broadcast(wanted, examples[0], lead, i, own, others)
            shape = np.broadcast_shapes(own, others)
            upstreams = [(u if count else u[:0]).reshape((*shape, *u.shape[1:])) for u in upstreams]
            given = [a if k not in lead else a[:0] if not count else
                     a if alike or k != i else a[0].reshape((*own, *a.shape[1:]))
                     for k, a in enumerate(_led(examples[0], lead, each or examples[:1]))]
            found = run(call, given, seed, device=device, upstreams=upstreams)
            what = (f"{call} with leading axes {own} in input{'s' * alike} "
                    f"{list(lead) if alike else i}" + f", {others} in others" * (not alike))
            if found.error is not None and not alike:
                refused(what, found.error)
                continue
            compare(what, found, wanted)
            dtypes(what, found, [v.dtype for v in wanted.values])


def rows_of(call: Call, seed: int) -> tuple[list[int], Arrays] | None:
    """The inputs whose first axis is that of rows which do not depend on each other, in arrays.

    None for a function without such rows. They are three: parts of two tell.
    """
    shapes = call.sample.shapes
    if not shapes or not shapes[0] or call.writes or call.name in _SIZED_OTHERWISE:
        return None
    places = [i for i, s in enumerate(shapes) if s and s[0] == shapes[0][0]]
    given = _draw(call, [(3, *(s or ())[1:]) if i in places else s
                         for i, s in enumerate(shapes)], seed)
    whole = run(call, given, seed)
    if whole.error is not None or any(v.shape[:1] != (3,) for v in whole.values):
        return None
    for part in (slice(2), slice(1, None)):
        some = run(call, [a[part] if i in places else a for i, a in enumerate(given)], seed)
        try:
            compare("", Outcome(some.values), Outcome([v[part] for v in whole.values], error=(
                some.error)))
        except CheckError:
            return None
    return places, given


def _first_row(call: Call, seed: int, device: str) -> None:
    """One row, and none, give what they give among others: images of a convolution, for one."""
    found = rows_of(call, seed)
    if found is None:
        return
    places, given = found
    upstreams = run(call, given, seed).upstreams(seed)
    for count in (1, 0):
        whole = run(call, given, seed, upstreams=[
            np.where(np.arange(3).reshape(3, *(1,) * (u.ndim - 1)) < count, u, 0)
            for u in upstreams])
        some = run(call, [a[:count] if i in places else a for i, a in enumerate(given)], seed,
                   device=device, upstreams=[u[:count] for u in upstreams])
        compare(f"{call} with {count} rows", some, replace(
            whole, values=[v[:count] for v in whole.values],
            gradients=[g[:count] if g is not None and i in places else g
                       for i, g in enumerate(whole.gradients)]))


def _loop(
    call: Call, examples: Sequence[Arrays], lead: Sequence[int], seed: int
) -> tuple[Outcome, list[np.ndarray]]:
    """The outcome of the examples one by one, stacked; and the upstream gradients."""
    upstreams = [run(call, one, seed).upstreams(seed + k) for k, one in enumerate(examples)]
    each = [run(call, one, seed, upstreams=u) for one, u in zip(examples, upstreams, strict=True)]
    gradients: Arrays = [
        None if parts[0] is None else np.stack(parts) if i in lead else np.sum(parts, axis=0)
        for i, parts in enumerate(zip(*[o.gradients for o in each], strict=True))]
    return replace(each[0], values=[np.stack(v) for v in zip(*[o.values for o in each],
                                                             strict=True)],
                   gradients=gradients), [np.stack(u) for u in zip(*upstreams, strict=True)]


def _broadcast(
    wanted: Outcome, arrays: Arrays, lead: Sequence[int], i: int, own: tuple[int, ...],
    others: tuple[int, ...],
) -> Outcome:
    """The outcome of as many examples in each input, as if one had the axes `own` instead."""
    shape = np.broadcast_shapes(own, others)
    if shape == (0,):
        return replace(wanted, values=[v[:0] for v in wanted.values], gradients=[
            g[:0] if g is not None and k in lead else g if g is None else g * 0
            for k, g in enumerate(wanted.gradients)])
    gradients: Arrays = []
    for k, g in enumerate(wanted.gradients):
        if g is not None and k == i and own != others:
            g = g.sum(axis=0).reshape((*own, *arrays[k].shape))
        gradients.append(g)
    return replace(wanted, values=[v.reshape((*shape, *v.shape[1:])) for v in wanted.values],
                   gradients=gradients)


def empty(call: Call, seed: int, device: str) -> None:
    """Any size of the shapes becomes 0: right shape and dtype, the identity, a gradient's shape."""
    shapes = call.sample.shapes
    sizes = sorted({n for s in shapes if s is not None for n in s if n > 1})
    for size in [*sizes, None] if len(sizes) > 1 else sizes:
        what = f"{call} with {'all sizes' if size is None else f'sizes {size}'} replaced by 0"
        arrays = sized(call, size, 0, seed)
        found = run(call, arrays, seed, device=device)
        if found.error is not None:
            refused(what, found.error)
            continue
        plain = run(call, drawn(call, seed), seed)
        if len(found.values) == len(plain.values):
            dtypes(what, found, [v.dtype for v in plain.values])
        elif call.name not in _AS_MANY_AS_ROWS:
            raise CheckError(f"{what} has {len(found.values)} results")
        if size is not None:
            _shapes(what, call, size, seed, found)
            if call.name not in _AT_INDICES:
                _identity(what, call, size, seed, found)
        if any(a is not None and a.dtype.kind == "f" for a in arrays):
            half = run(call, [a.astype(np.float16) if a is not None and a.dtype.kind == "f" else a
                              for a in arrays], seed, device=device)
            if half.error is not None:
                raise CheckError(f"{what} in float16 raised {half.error!r}")
            dtypes(f"{what} in float16", half,
                   [in_dtype(call, v.dtype, np.dtype(np.float16)) for v in found.values])


_AS_MANY_AS_ROWS = ("unstack", "Tensor.__iter__", "Tensor.tolist")  # results
_SIZED_OTHERWISE = (  # by values, or by steps
    "unique_all", "unique_counts", "unique_inverse", "unique_values", "nonzero", "unique",
    "argwhere", "bincount", "repeat of counts", "Tensor.__getitem__", "stft with a window")
# The result over no elements is that over one neutral element: 0, or one of these.
_NEUTRAL = {"prod": 1.0, "all": 1.0, "linalg.det": 1.0, "linalg.slogdet": 1.0,
            "logsumexp": -np.inf, "searchsorted": np.inf, "digitize": np.inf, "isin": 99,
            "histogram": np.nan, "histogramdd": np.nan}
# Functions whose result is not one over elements: what no index points at is as it was.
_AT_INDICES = (
    "put_along_axis", "scatter", "scatter_add", "scatter_reduce", "segment_max", "segment_min")
_MEANS = ("mean", "var", "std", "cov", "nanmean")


def _shapes(what: str, call: Call, size: int, seed: int, found: Outcome) -> None:
    """The shapes of the results continue those at sizes 1 and 2."""
    one, two = (run(call, sized(call, size, n, seed), seed) for n in (1, 2))
    if call.name in _SIZED_OTHERWISE or not (
            len(one.values) == len(two.values) == len(found.values)):
        return
    for v, a, b in zip(found.values, one.values, two.values, strict=True):
        if a.ndim != b.ndim:
            continue
        shape = tuple(2 * n - m for n, m in zip(a.shape, b.shape, strict=True))
        if min(shape, default=0) >= 0 and v.shape != shape:
            raise CheckError(f"{what} has a result of shape {v.shape}; wanted {shape}")


def _identity(what: str, call: Call, size: int, seed: int, found: Outcome) -> None:
    """The result over no elements is the neutral element, or NaN for a mean; gradients are 0."""
    reduction = call.sample.params.get("reduction", _reduction(call))
    mean = call.name in _MEANS or reduction == "mean"
    value = _NEUTRAL.get(call.name, 0.0)
    if call.sample.params.get("order", 1.0) < 0:  # of a norm
        value = np.inf
    arrays = [np.full_like(a, value) if s is not None and size in s else a for a, s in zip(
        sized(call, size, 1, seed), call.sample.shapes, strict=True)]
    wanted = run(call, arrays, seed)
    for v, w in zip(found.values, wanted.values, strict=False):
        if v.size and v.shape == w.shape:
            w = np.full_like(v, np.nan) if mean else np.zeros_like(v) if reduction == "sum" else w
            close(what, v, w, EQUAL, ("found", "wanted"))
    for i, g in enumerate(found.gradients):
        if g is not None and not mean and all(v.size == 0 for v in found.values) and np.any(g):
            raise CheckError(f"{what}: the gradient of input {i} is not 0")


def _reduction(call: Call) -> str | None:
    """What a loss does with the losses of the elements if no parameter says so."""
    function = public_functions().get(call.name.partition(" ")[0])
    parameters = inspect.signature(function).parameters if function else {}
    return parameters["reduction"].default if "reduction" in parameters else None


def sized(call: Call, old: int | None, new: int, seed: int) -> Arrays:
    """The sample's arrays with every size `old` replaced, all for None; a parameter's stays."""
    shapes = tuple(None if s is None else tuple(
        new if n == old or old is None and n > 1 else n for n in s) for s in call.sample.shapes)
    return _draw(call, shapes, seed)


def zero_d(call: Call, seed: int, device: str) -> None:
    """0-d inputs, all or one alone, are refused, or act as one element along an axis."""
    given = drawn(call, seed)
    present = [i for i, a in enumerate(given) if a is not None and a.size and a.ndim]
    alone = [(i,) for i in present[call.writes:]] if len(present) > 1 else []
    for chosen in [tuple(present), *alone] if present else []:
        what = f"{call} with 0-d inputs {list(chosen)}"
        one = [a.ravel()[:1] if i in chosen else a for i, a in enumerate(given)]
        found = run(call, [a.reshape(()) if i in chosen else a for i, a in enumerate(one)], seed,
                    device=device)
        if found.error is not None:
            refused(what, found.error)
            continue
        wanted = run(call, one, seed)
        if wanted.error is None and len(chosen) == len(one) and call.name not in _AXES_OF_0D:
            ndims = [max(0, v.ndim - 1) for v in wanted.values]
            if [v.ndim for v in found.values] != ndims:
                raise CheckError(f"{what} has results of shapes "
                                 f"{[v.shape for v in found.values]}; wanted {ndims} axes")
        if wanted.error is not None:  # a number that stands for elements of any shape
            wanted = run(call, [np.full_like(g, a[0]) if i in chosen else a for i, (a, g) in
                                enumerate(zip(one, given, strict=True))], seed)
        else:
            wanted.values = _as(found.values, wanted.values)
            wanted.gradients = _as(found.gradients, wanted.gradients)
        compare(what, found, wanted, gradients=wanted.gradients == [] or all(
            g is None or g.shape == f.shape for f, g in zip(
                found.gradients, wanted.gradients, strict=True)))
        dtypes(what, found, [v.dtype for v in wanted.values])


_AXES_OF_0D = (  # whose results have axes where their input has none
    "broadcast_to", "flatten", "tile", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "unique", "vstack", "hstack", "quantile", "nanquantile", "histogram",
    "histogram of weights")


def _as(shaped: Arrays, arrays: Arrays) -> Arrays:
    """Arrays in the shapes of others, where these have as many elements."""
    if len(shaped) != len(arrays):
        return arrays
    return [a if a is None or s is None or a.size != s.size else a.reshape(s.shape)
            for s, a in zip(shaped, arrays, strict=True)]


def other_sizes(call: Call, seed: int, device: str) -> None:
    """An axis of one of several inputs is longer by one: that is right, or refused in words."""
    shapes = call.sample.shapes
    if sum(s is not None for s in shapes) < 2:
        return
    for i, shape in enumerate(shapes):
        for axis, size in enumerate(shape or ()):
            if size < 2:
                continue
            longer = list(shapes)
            longer[i] = tuple(n + (k == axis) for k, n in enumerate(shape or ()))
            try:
                arrays = _draw(call, longer, seed)
            except ValueError:  # such as of matrices that must be square
                continue
            found = run(call, arrays, seed, device=device)
            if found.error is not None:
                refused(f"{call} of shapes {longer}", found.error)


VARIANTS: dict[str, Callable[[Call, int, str], None]] = {
    **{name: partial(layout, name) for name in LAYOUTS},
    **{name: partial(precision, name) for name in DTYPES},
    "leading axes": leading, "empty": empty, "0-d": zero_d,
    "other sizes": other_sizes,
}


def drawn(call: Call, seed: int) -> Arrays:
    """The sample's arrays, by the seed."""
    return _draw(call, call.sample.shapes, seed)


def _draw(call: Call, shapes: Sequence[Any], seed: int) -> Arrays:
    """Arrays of these shapes, each by a seed of its own: one that keeps its shape keeps values."""
    draws = call.sample.draws
    each = draws if isinstance(draws, tuple) else (draws,) * len(shapes)
    return [None if shape is None else np.asarray(draw(np.random.default_rng((seed, i)), shape))
            for i, (shape, draw) in enumerate(zip(shapes, each, strict=True))]


def check(call: Call, variant: str, seed: int, device: str = "cpu") -> None:
    """Raise CheckError if the variant of a call disagrees with the plain one."""
    try:
        VARIANTS[variant](call, seed, device)
    except CheckError as error:
        raise CheckError(f"{error}\n  repeat with seed {seed}") from error


def mixed(call: Call, name: str, less: str | None, seed: int) -> None:
    """Each input alone in another layout, the others contiguous, in a dtype."""
    given = drawn(call, seed)
    if less is not None:
        if not any(a is not None and a.dtype.kind == "f" for a in given):
            return
        given = [a.astype(DTYPES[less]) if a is not None and a.dtype.kind == "f" else a
                 for a in given]
    change = LAYOUTS[name]
    for i in (i for i, a in enumerate(given) if a is not None):
        if call.writes and i == 0 and name == "stride 0":
            continue
        plain = [np.ascontiguousarray(change(np, a)).reshape(a.shape) if k == i else a
                 for k, a in enumerate(given)]
        compare(f"{call} with {name} in input {i} in {less or 'float64'}",
                run(call, plain, seed, layout=change, places=(i,)), run(call, plain, seed),
                EQUAL if less is None else max(TOLERANCES[DTYPES[less]]))
