"""Gradients by central differences, and `gradcheck` on top of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gtensor.backend import Device
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.func.gradients import grad
from gtensor.testing.compare import CheckError, GradcheckError, close, to_numpy, unwritten

Function = Callable[..., Any]
_DIRECTIONS = 3


def outputs_of(function: Function, inputs: Sequence[object]) -> tuple[Tensor, ...]:
    """The function's results as a tuple of tensors."""
    result = function(*inputs)
    found = (result,) if isinstance(result, Tensor) else tuple(result)
    if not found or not all(isinstance(t, Tensor) for t in found):
        raise TypeError(f"the checked function returned {type(result).__name__}; wanted a Tensor "
                        "or a sequence of Tensors")
    return found


def random_like(tensor: Tensor, rng: np.random.Generator) -> Tensor:
    """Standard normal values of a tensor's shape, dtype and device."""
    values = np.asarray(rng.standard_normal(tensor.shape)).astype(tensor.dtype)
    device = tensor._device
    return wrap(device.copy(device.from_numpy(values)), device)


def difference(
    function: Function, inputs: Sequence[object], i: int, direction: np.ndarray,
    upstreams: Sequence[object], step: float,
) -> float:
    """d/dt of <upstreams, function(inputs with inputs[i] + t * direction)> at t = 0, estimated."""
    ends = []
    for sign in (1.0, -1.0):
        moved = to_numpy(inputs[i]) + sign * step * direction
        ends.append(outputs_of(function, _with(inputs, i, moved)))
    total = 0.0
    for high, low, u in zip(*ends, upstreams, strict=True):
        if u is not None:
            change = to_numpy(high).astype(np.float64) - to_numpy(low)
            total += float((change * to_numpy(u)).sum())
    return total / (2 * step)


def _with(inputs: Sequence[object], i: int, values: np.ndarray) -> list[Any]:
    """The inputs with other values at i; all are fresh handles, so nothing accumulates on them."""
    fresh = []
    for j, x in enumerate(inputs):
        if not isinstance(x, Tensor):
            fresh.append(x)
            continue
        array = x._array
        if i == j:
            array = x._device.from_numpy(np.asarray(values, dtype=x.dtype))
        fresh.append(wrap(array, x._device).requires_grad_(x.requires_grad))
    return fresh


def elements(
    function: Function, inputs: Sequence[Any], i: int, upstreams: Sequence[Any], step: float
) -> np.ndarray:
    """The gradient of <upstreams, function(inputs)> by inputs[i], element by element."""
    shape = inputs[i].shape
    found = np.zeros(shape)
    for index in np.ndindex(*shape):
        direction = np.zeros(shape)
        direction[index] = 1.0
        found[index] = difference(function, inputs, i, direction, upstreams, step)
    return found


def analytic(
    function: Function, inputs: Sequence[Any], wanted: Sequence[int], rng: np.random.Generator
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """A random upstream gradient per output (None: it has none), a gradient per wanted input."""
    outputs = outputs_of(function, inputs)
    upstreams = [random_like(t, rng) if t.requires_grad else None for t in outputs]
    used = [(t, u) for t, u in zip(outputs, upstreams, strict=True) if u is not None]
    if not used:
        raise CheckError("the result does not depend on an input that requires a gradient; wanted "
                         "one that was made by differentiable ops")
    grads = grad([t for t, _ in used], [inputs[i] for i in wanted], [u for _, u in used],
                 allow_unused=True)
    return upstreams, list(grads)


def compare_all(
    function: Function, inputs: Sequence[Any], wanted: Sequence[int], rng: np.random.Generator,
    step: float, tolerance: tuple[float, float], most: int | None, on: Device | None = None,
) -> None:
    """Compare gradients with numeric ones: elements, or random directions if more than `most`.

    The function is called with inputs on the device `on` for the differences, by default theirs.
    """
    upstreams, grads = analytic(function, inputs, wanted, rng)
    if on is not None:
        inputs = [x if x is None else x.detach().to(on).requires_grad_(x.requires_grad)
                  for x in inputs]
    for i, g in zip(wanted, grads, strict=True):
        shape = inputs[i].shape
        given = np.zeros(shape) if g is None else to_numpy(g)
        what = f"the gradient of input {i} (shape {shape})"
        names = ("analytic", "numeric")
        if g is not None and g.shape != shape:
            raise CheckError(f"{what} has shape {g.shape}")
        if most is None or given.size <= most:
            close(what, given, elements(function, inputs, i, upstreams, step), tolerance, names)
            continue
        for k in range(_DIRECTIONS):
            direction = rng.standard_normal(shape)
            slope = np.asarray((given * direction).sum())
            number = np.asarray(difference(function, inputs, i, direction, upstreams, step))
            close(f"{what} along random direction {k}", slope, number, tolerance, names)


def second_order(function: Function, wanted: Sequence[int], outputs: int) -> Function:
    """The function (inputs..., upstream gradients...) -> gradients of the wanted inputs."""

    def gradients(*arguments: Any) -> tuple[Tensor, ...]:
        inputs, upstreams = arguments[:-outputs], arguments[-outputs:]
        found = grad(list(outputs_of(function, inputs)), [inputs[i] for i in wanted],
                     list(upstreams), create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    return gradients


def gradcheck(
    function: Function,
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-6,
    rtol: float = 1e-5,
    order: int = 1,
    seed: int | None = None,
) -> None:
    """Compare a function's gradients with central differences, (f(x + eps) - f(x - eps)) / (2 eps).

    Every element of every input that requires a gradient is moved, and the upstream gradient is
    random, not uniform. So it takes two calls of the function per element.

    Args:
        function: takes the inputs, returns a Tensor or a sequence of them; the same each time.
        inputs: a Tensor, or what the function takes; the differentiable ones of dtype float64, away
            from kinks by more than eps.
        eps: step of the differences.
        atol, rtol: allowed is |analytic - numeric| <= atol + rtol * |numeric|.
        order: 1, or 2 to check also the gradients of the gradients that `create_graph=True` makes.
        seed: of the upstream gradient; by default another one each time, named in the error.

    Raises:
        GradcheckError: (an AssertionError) naming input, element, analytic and numeric value; or
            if the function wrote an input.
        TypeError: if a differentiable input is not float64.
        ValueError: if no input requires a gradient, or `order` is neither 1 nor 2.
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    wanted = [i for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    if not wanted:
        raise ValueError("gradcheck was given no input that requires a gradient; wanted one")
    for i in wanted:
        if given[i].dtype != np.float64:
            raise TypeError(f"gradcheck was given input {i} of dtype {given[i].dtype}; wanted "
                            "float64: differences in less are too coarse")
    if order not in (1, 2):
        raise ValueError(f"gradcheck was given order {order!r}; wanted 1 or 2")
    seed = fresh_seed() if seed is None else seed
    rng = np.random.default_rng(seed)
    leaves = [wrap(x._array, x._device).requires_grad_(i in wanted) if isinstance(x, Tensor) else x
              for i, x in enumerate(given)]
    check = unwritten((f"input {i}", x) for i, x in enumerate(leaves) if isinstance(x, Tensor))
    label = f"gradcheck of {getattr(function, '__name__', type(function).__name__)}"
    try:
        compare_all(function, leaves, wanted, rng, eps, (rtol, atol), None)
        if order == 2:
            label += ", second order"
            upstreams = [random_like(t, rng).requires_grad_() for t in outputs_of(function, leaves)]
            gradients = second_order(function, wanted, len(upstreams))
            more = range(len(leaves), len(leaves) + len(upstreams))
            compare_all(gradients, [*leaves, *upstreams], [*wanted, *more], rng, eps, (rtol, atol),
                        None)
        check()
    except CheckError as error:
        raise GradcheckError(f"{label}: {error} (seed {seed})") from None


def fresh_seed() -> int:
    """A seed that no earlier run had; short enough to be typed again."""
    return int(np.random.SeedSequence().generate_state(1)[0])
