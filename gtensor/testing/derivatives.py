"""Checks of an op's derivatives: backward, masks, accumulation, second order, tangent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import get_device
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import FLOATING, Tensor, wrap
from gtensor.func.gradients import grad
from gtensor.settings import settings
from gtensor.testing.cases import FLOAT64, NEVER, Case
from gtensor.testing.compare import (
    NUMERIC,
    STEP,
    TOLERANCES,
    CheckError,
    close,
    to_numpy,
    unwritten,
)
from gtensor.testing.numeric import compare_all, random_like, second_order

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

_ELEMENTS = 16  # inputs up to this size are differentiated element by element, others by directions
Gradients = Sequence[np.ndarray | None]


def backward(case: Case) -> None:
    """The gradients equal central differences, of the CPU's values on all devices."""
    if case.differentiable and case.precise:
        compare_all(case.function, case.inputs(requires=case.floats), case.floats, case.rng, STEP,
                    NUMERIC, _ELEMENTS, get_device("cpu"))


def torch_gradients(case: Case) -> None:
    """The gradients equal PyTorch's."""
    if case.torch is None or case.op.reference is None or not case.differentiable:
        return
    tensors = [None if a is None else case.torch.from_numpy(a.copy()) for a in case.arrays]
    leaves = [tensors[i].requires_grad_() for i in case.floats]  # type: ignore[union-attr]
    output = case.op.reference(case.torch, *tensors, **case.sample.params)
    if not output.requires_grad:
        return
    inputs = case.inputs(requires=case.floats)
    ours = case.call(inputs)
    upstream = case.upstream(ours)
    theirs = case.torch.autograd.grad(
        output, leaves, case.torch.from_numpy(to_numpy(upstream).copy()), allow_unused=True)
    grads = case.walk(ours, upstream, inputs)
    for i, t in zip(case.floats, theirs, strict=True):
        wanted = np.zeros(inputs[i].shape) if t is None else t  # type: ignore[union-attr]
        close(f"the gradient of input {i}", grads[i], wanted, names=("gtensor", "PyTorch"))


def precision(case: Case) -> None:
    """In less precision gradients are float64's on the same rounded inputs, in their own dtype."""
    if not case.differentiable or not case.precise:
        return
    for dtype in case.dtypes:
        rtol, atol = TOLERANCES[dtype]
        rounded = case.rounded(dtype)
        inputs = case.inputs(rounded, requires=case.floats)
        output = case.call(inputs)
        values = to_numpy(case.upstream(output)).astype(dtype)
        place = output._device
        upstream = case.inputs([values], dtype=FLOAT64, device=place)[0]
        assert upstream is not None
        wanted = case.walk(output, upstream, inputs)
        low = case.inputs(rounded, requires=case.floats, dtype=dtype)
        low_upstream = case.inputs([values], dtype=dtype, device=place)[0]
        assert low_upstream is not None
        grads = case.walk(case.call(low), low_upstream, low)
        for i, (g, w) in enumerate(zip(grads, wanted, strict=True)):
            if g is not None and w is not None:
                largest = float(np.abs(w).max(initial=1.0))
                close(f"the gradient of input {i} in {dtype}", g, w, (rtol, atol * largest),
                      (dtype.name, "float64"))


def masks(case: Case) -> None:
    """Each input's gradient is the same whichever other inputs require one."""
    if not case.differentiable:
        return
    inputs = case.inputs(requires=case.floats)
    output = case.call(inputs)
    upstream = case.upstream(output)
    wanted = case.walk(output, upstream, inputs)
    for mask in case.masks():
        inputs = case.inputs(requires=mask)
        grads = case.walk(case.call(inputs), upstream, inputs)
        for i in mask:
            close(f"the gradient of input {i} when {list(mask)} require one", grads[i], wanted[i],
                  names=("given", "when all do"))
        if len(mask) < len(case.floats):  # asked of some although all require one
            inputs = case.inputs(requires=case.floats)
            asked: list[Any] = [inputs[i] for i in mask]
            found = grad([case.call(inputs)], asked, [upstream], allow_unused=True)
            for i, g in zip(mask, found, strict=True):
                if g is not None:
                    close(f"the gradient of input {i} when {list(mask)} are asked for", g,
                          wanted[i], names=("given", "when all are"))


def arena(case: Case) -> None:
    """Value and gradients are the same where every array, also of one number, is the arena's."""
    if case.device.type != "cpu":
        return
    found = []
    for smallest in (0, NEVER):
        with settings.override(arena_min_bytes=smallest):
            inputs = case.inputs(requires=case.floats if case.differentiable else ())
            output = case.call(inputs)
            upstream = case.inputs([np.ones(output.shape, output.dtype)], device=output._device)[0]
            assert upstream is not None
            found.append((output, case.walk(output, upstream, inputs)))
    (output, grads), (wanted, expected) = found
    names = ("from the arena", "else")
    close("the value", output, wanted, names=names)
    for i, (g, e) in enumerate(zip(grads, expected, strict=True)):
        if g is not None:
            close(f"the gradient of input {i}", g, e, names=names)


def upstreams(case: Case) -> None:
    """The upstream gradient is only read, in any layout; one that the walk owns gives the same."""
    if not case.differentiable:
        return
    for name, layout in (("", None), (" (stride 0)", _stride_zero)):
        inputs = case.inputs(requires=case.floats)
        output = case.call(inputs)
        upstream = case.upstream(output, layout)
        check = unwritten([(f"the upstream gradient{name}", upstream)])
        _backward(output, upstream)
        check()
        lent = _grads_of(inputs)
        owned = case.inputs(requires=case.floats)
        _backward(_weighted(case.call(owned), upstream), _ones(output))
        _all_close("with an upstream gradient of the walk's own", _grads_of(owned), lent,
                   ("given", "with the caller's"))


def accumulate(case: Case) -> None:
    """Gradients add up: in a walk before and after other consumers, in `.grad`, in op(x, x)."""
    if not case.differentiable:
        return
    inputs = case.inputs(requires=case.floats)
    output = case.call(inputs)
    upstream = case.upstream(output)
    single = case.walk(output, upstream, inputs)
    more = [random_like(x, case.rng) if x is not None and x.requires_grad else None for x in inputs]
    total = [None if g is None or m is None else g + to_numpy(m)
             for g, m in zip(single, more, strict=True)]
    twice = [None if g is None else 2 * g for g in single]

    for order in ("before", "after"):
        for owned in (False, True):
            grads = _beside_others(case, upstream, more, order == "before", owned)
            what = f"recorded {order} another consumer{' (own upstream)' * owned}"
            _all_close(what, grads, total, ("given", "the sum"))
    inputs = case.inputs(requires=case.floats)
    for _ in range(2):
        _backward(case.call(inputs), upstream)
    _all_close("added to .grad", _grads_of(inputs), twice, ("given", "twice the gradient"))
    _same_twice(case)


def _weighted(output: Tensor, upstream: Tensor) -> Tensor:
    """What has the upstream gradient at `output`, and ones at itself."""
    weight = recorded.conj(upstream) if upstream.dtype.kind == "c" else upstream
    return recorded.multiply(output, weight)


def _beside_others(
    case: Case, upstream: Tensor, more: Sequence[Tensor | None], first: bool, owned: bool
) -> list[np.ndarray | None]:
    """Gradients when each input has another consumer, recorded after the op (`first`) or before.

    `owned`: the upstream gradient reaches the op in a buffer of the walk's own: it may reuse it.
    """
    inputs = case.inputs(requires=case.floats)
    check = unwritten((f"input {i}", x) for i, x in enumerate(inputs))
    output = case.call(inputs) if first else None
    ends = [recorded.multiply(x, 1.0) for x, m in zip(inputs, more, strict=True) if m is not None]
    given = [m for m in more if m is not None]
    output = case.call(inputs) if output is None else output
    if owned:
        ends.append(_weighted(output, upstream))
        given.append(_ones(output))
    else:
        ends.append(output)
        given.append(upstream)
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    found = iter(grad(ends, wanted, given, allow_unused=True))
    check()
    return [None if m is None else to_numpy(next(found)) for m in more]


def _same_twice(case: Case) -> None:
    """op(x, x) against op(x, copy of x), for inputs of one shape."""
    floats = case.floats
    shapes = {case.arrays[i].shape for i in floats}  # type: ignore[union-attr]
    if len(floats) < 2 or len(shapes) > 1:
        return
    with np.errstate(all="ignore"):  # x may be outside the domain of the other inputs
        x = case.arrays[floats[0]]
        arrays = [x if i in floats else a for i, a in enumerate(case.arrays)]
        apart = case.inputs(arrays, requires=floats)
        output = case.call(apart)
        upstream = case.upstream(output)
        grads = [g for g in case.walk(output, upstream, apart) if g is not None]
        same = case.inputs(arrays)
        shared = same[floats[0]]
        assert shared is not None
        shared.requires_grad_()
        given = case.walk(case.call([shared if i in floats else t for i, t in enumerate(same)]),
                          upstream, [shared])[0]
        size = max((float(np.abs(g[np.isfinite(g)]).max(initial=0.0)) for g in grads), default=0.0)
        wanted = np.sum(grads, axis=0)
    close("the gradient of x in op(x, x)", given, wanted, (1e-7, 1e-9 + 1e-12 * size),
          ("given", "the sum"))


def recorded_mode(case: Case) -> None:
    """With create_graph the gradients are the same, and leave the graph and its saves alone."""
    if not case.differentiable:
        return
    inputs = case.inputs(requires=case.floats)
    output = case.call(inputs)
    upstream = case.upstream(output)
    wanted = [inputs[i] for i in case.floats]
    check = unwritten((f"input {i}", x) for i, x in enumerate(inputs))
    first = grad([output], wanted, [upstream], create_graph=True, allow_unused=True)  # type: ignore
    check()
    raw = case.walk(output, upstream, inputs)
    for i, g in zip(case.floats, first, strict=True):
        expected = raw[i]
        assert expected is not None
        given = np.zeros(expected.shape) if g is None else g
        close(f"the gradient of input {i}", given, expected, names=("recorded", "raw"))


def second(case: Case) -> None:
    """The gradients of the gradients equal central differences of the gradients on the CPU.

    Random directions cost a third of elements, and a wrong gradient changes all of them.
    """
    if not case.differentiable or not case.precise:
        return
    inputs = case.inputs(requires=case.floats)
    upstream = case.upstream(case.call(inputs)).requires_grad_()
    gradients = second_order(case.function, case.floats, 1)
    if all(g._node is None for g in gradients(*inputs, upstream)):
        raise CheckError("the recorded gradients have no history, not even of the upstream one")
    compare_all(gradients, [*inputs, upstream], [*case.floats, len(inputs)], case.rng, STEP,
                NUMERIC, 1, get_device("cpu"))


def tangent(case: Case) -> None:
    """<tangent(v), u> = <v, backward(u)>, for tangents of all inputs, and of some.

    Without a backward rule the tangent equals central differences: that of a constant is 0.
    """
    rule: Any = case.op.tangent  # on Tensors
    if rule is None or not case.floats:
        return
    if not case.differentiable:
        _differences(case)
        return
    inputs = case.inputs(requires=case.floats)
    output = case.call(inputs)
    upstream = case.upstream(output)
    grads = case.walk(output, upstream, inputs)
    primals = tuple(case.inputs())
    value = case.value(primals)
    for mask in case.masks():
        vs = [random_like(x, case.rng) if i in mask and x is not None else None
              for i, x in enumerate(primals)]
        moved = rule(recorded, primals, tuple(vs), value, case.params())
        if moved is None:
            moved = recorded.zero_gradient(value)
        if moved.shape != output.shape or moved.dtype != output.dtype:
            raise CheckError(f"the tangent has shape {moved.shape} and dtype {moved.dtype}; the "
                             f"output has {output.shape} and {output.dtype}")
        ahead = _dot(moved, upstream)
        back = sum((_dot(v, g) for v, g in zip(vs, grads, strict=True) if v is not None), 0.0)
        size = sum((_dot(np.abs(to_numpy(v)), np.abs(g)) for v, g in zip(vs, grads, strict=True)
                    if v is not None and g is not None), 1.0)
        if abs(ahead - back) > _tangent_tolerance(output) * size:
            raise CheckError(f"with tangents of inputs {list(mask)}: <tangent(v), u> is "
                             f"{ahead:.12g}, <v, backward(u)> is {back:.12g}")


def _differences(case: Case) -> None:
    """The tangent against central differences; of True and False as 1 and 0."""
    rule: Any = case.op.tangent
    primals = tuple(case.inputs())
    vs = [random_like(x, case.rng) if i in case.floats and x is not None else None
          for i, x in enumerate(primals)]
    moved = rule(recorded, primals, tuple(vs), case.value(primals), case.params())
    ends = []
    for step in (STEP, -STEP):
        arrays = [a if a is None or v is None else a + step * to_numpy(v)
                  for a, v in zip(case.arrays, vs, strict=True)]
        ends.append(to_numpy(case.value(case.inputs(arrays))).astype(np.float64))
    wanted = (ends[0] - ends[1]) / (2 * STEP)
    close("the tangent", np.zeros(wanted.shape) if moved is None else moved, wanted, NUMERIC,
          ("given", "central differences"))


def _tangent_tolerance(output: Tensor) -> float:
    return 1e-9 if output.dtype == np.float64 else 1e-5


def refusal(case: Case) -> None:
    """An op without a derivative gives no history, or one whose backward says so."""
    if case.differentiable or not case.floats:
        return
    inputs = case.inputs(requires=case.floats)
    output = case.call(inputs)
    if output.dtype.kind not in FLOATING:
        if output.requires_grad:
            raise CheckError(f"a value of dtype {output.dtype} requires a gradient")
        return
    try:
        output.backward(case.upstream(output))
    except GradientError as error:
        if case.op.name not in str(error):
            raise CheckError(f"the refusal does not name the op: {error}") from None
    else:
        raise CheckError("an op without a backward rule let backward() pass")


def _stride_zero(xp: Any, a: Array) -> Array:
    """One value everywhere, at one place of memory that a write would reach."""
    if not a.size:
        return a
    one = xp.ascontiguousarray(a.reshape(-1)[:1])
    return xp.lib.stride_tricks.as_strided(one, a.shape, (0,) * a.ndim)


def _backward(output: Tensor, upstream: Tensor) -> None:
    output.backward(upstream)


def _ones(like: Tensor) -> Tensor:
    return wrap(like._device.xp.ones(like.shape, like.dtype), like._device)


def _grads_of(inputs: Sequence[Tensor | None]) -> list[np.ndarray | None]:
    return [None if x is None or not x.requires_grad else
            np.zeros(x.shape) if x.grad is None else to_numpy(x.grad) for x in inputs]


def _all_close(what: str, given: Gradients, wanted: Gradients, names: tuple[str, str]) -> None:
    for i, (g, w) in enumerate(zip(given, wanted, strict=True)):
        if w is not None:
            close(f"the gradient of input {i}, {what}", g, w, names=names)


def _dot(a: object, b: object) -> float:
    """The real inner product, also of complex arrays."""
    return float((to_numpy(a).astype(np.complex128) * to_numpy(b).conj()).sum().real)
