"""`check_derivatives`: every way to differentiate a function, against each other and numerically.

A function is differentiated as <u, f(arguments)> with a random u, which gives one number per
element of an argument in each mode. So one comparison serves all modes, and names the element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gtensor.backend import Device
from gtensor.engine.handle.tensor import Tensor, is_floating, wrap
from gtensor.func.batching import vmap
from gtensor.func.forward import jvp, jvp_batched
from gtensor.func.gradients import vjp
from gtensor.func.trees import leaves, rebuilt
from gtensor.testing.compare import CheckError, DerivativeError, close, to_numpy
from gtensor.testing.numeric import fresh_seed, random_like

Flat = Callable[..., tuple[Tensor, ...]]
_ELEMENTS = 16  # arguments up to this size are moved element by element, others in directions
_DIRECTIONS = 3
_ALIKE = 1e-7  # how far two modes may be apart, as a share of the largest element


def check_derivatives(
    function: Callable[..., Any],
    *args: Any,
    order: int = 2,
    eps: float = 1e-6,
    atol: float = 1e-6,
    rtol: float = 1e-5,
    seed: int | None = None,
) -> None:
    """Compare all derivatives of a function: forward, reverse, batched, numeric; to second order.

    Forward (`jvp`) and reverse (`vjp`) are compared with central differences in float64, batched
    forward (`jvp_batched`) and batched reverse with those, and `vmap` with a loop. Second order is
    the same for the gradient, so that forward over reverse and reverse over reverse are checked.

    Args:
        function: takes the arguments, returns a tensor or a tree of them; the same each time.
        args: trees. Their floating-point tensors, which must be float64, are moved; they lie away
            from kinks by more than eps. Everything else is a constant.
        order: 1 or 2.
        eps: step of the differences.
        atol, rtol: allowed is |derivative - difference| <= atol + rtol * |difference|.
        seed: of the directions; by default another one each time, named in the error.

    Raises:
        DerivativeError: (an AssertionError) a sentence with the order, the mode that disagrees, the
            argument, its element, both values and their difference; `mode` and `order` are
            attributes. Errors of the function within a mode are its cause.
        TypeError: if a floating-point argument is not float64, or there is none.
        ValueError: if `order` is neither 1 nor 2.
    """
    if order not in (1, 2):
        raise ValueError(f"check_derivatives was given order {order!r}; wanted 1 or 2")
    named = [leaf for i, arg in enumerate(args) for leaf in leaves(arg, f"argument {i}")]
    moved = [i for i, (_, x) in enumerate(named) if isinstance(x, Tensor) and is_floating(x.dtype)]
    for path, x in (named[i] for i in moved):
        if x.dtype != np.float64:
            raise TypeError(f"check_derivatives was given {path} of dtype {x.dtype}; wanted "
                            "float64: differences in less are too coarse")
    if not moved:
        raise TypeError("check_derivatives was given no floating-point tensor; wanted one at least")
    seed = fresh_seed() if seed is None else seed
    values = [x for _, x in named]

    def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
        whole = list(values)
        for i, x in zip(moved, inputs, strict=True):
            whole[i] = x
        results = [y for _, y in leaves(function(*rebuilt(args, whole)))]
        found = tuple(y for y in results if isinstance(y, Tensor) and is_floating(y.dtype))
        if not found:
            raise TypeError("the function given to check_derivatives returned no floating-point "
                            "tensor; wanted one at least")
        return found

    check = _Check(function, [named[i][0] for i in moved], seed, (rtol, atol), eps)
    inputs = [wrap(named[i][1]._array, named[i][1]._device) for i in moved]
    upstream = check.run(1, flat, inputs)
    if order == 2:
        check.run(2, lambda *x: vjp(flat, *x)[1](upstream), inputs)


class _Check:
    """The comparisons of one function, of one order after the other."""

    def __init__(
        self, function: object, paths: list[str], seed: int, tolerance: tuple[float, float],
        eps: float,
    ) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        self.paths, self.seed, self.tolerance, self.eps = paths, seed, tolerance, eps
        self.rng = np.random.default_rng(seed)
        self.order, self.mode = 1, "value"

    def run(self, order: int, flat: Flat, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """Compare all modes; returns the upstream gradient u that was used."""
        self.order = order
        try:
            return self._modes(flat, inputs)
        except Exception as error:
            failed = isinstance(error, CheckError)
            said = str(error) if failed else f"{type(error).__name__}: {error}"
            raise DerivativeError(
                f"{self.mode} of order {order} of {self.name} fails at {said} (seed {self.seed})"
                if failed else f"{self.mode} of order {order} of {self.name} raised {said}",
                self.mode, order) from (None if failed else error)

    def _modes(self, flat: Flat, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        self.mode = "value"
        u = tuple(random_like(y, self.rng) for y in flat(*inputs))
        self.mode = "reverse mode"
        _, pullback = vjp(flat, *inputs)
        slopes = pullback(u)
        for i, x in enumerate(inputs):
            ways = self._ways(x)
            numbers = np.array([self._difference(flat, inputs, i, way, u) for way in ways])
            alone = [None if j != i else ways for j in range(len(inputs))]
            self.mode = "reverse mode"
            slope = np.array([(to_numpy(slopes[i]) * way).sum() for way in ways])
            self._compare(i, x, slope, numbers, self.tolerance)
            self.mode = "forward mode"
            each = [_tensor(way, x) for way in ways]
            tangents = [jvp(flat, inputs, [None if w is None else t for w in alone])[1]
                        for t in each]
            self._compare(i, x, np.array([_dot(t, u) for t in tangents]), numbers, self.tolerance)
            self.mode = "batched forward mode"
            stacked = jvp_batched(flat, inputs, [None if w is None else each for w in alone])[1]
            for k in range(len(ways)):
                for y, t in zip(stacked, tangents[k], strict=True):
                    close(f"{self.paths[i]}, direction {k}, result", y[k], t, _ALIKE,
                          ("batched", "by itself"))
        self._batched_reverse(pullback, u)
        self._batch(flat, inputs)
        return u

    def _ways(self, x: Tensor) -> list[np.ndarray]:
        """Directions in which to move an argument: those of its elements, or random ones."""
        if x.size <= _ELEMENTS:
            return list(np.eye(x.size).reshape(x.size, *x.shape))
        return [self.rng.standard_normal(x.shape) for _ in range(_DIRECTIONS)]

    def _difference(
        self, flat: Flat, inputs: list[Tensor], i: int, way: np.ndarray, u: Sequence[Tensor]
    ) -> float:
        """The central difference of <u, f> by argument i in one direction."""
        self.mode = "the central difference"
        ends = [flat(*inputs[:i], _tensor(to_numpy(inputs[i]) + step * way, inputs[i]),
                     *inputs[i + 1:]) for step in (self.eps, -self.eps)]
        return sum(float(((to_numpy(high) - to_numpy(low)) * to_numpy(w)).sum())
                   for high, low, w in zip(*ends, u, strict=True)) / (2 * self.eps)

    def _compare(
        self, i: int, x: Tensor, found: np.ndarray, numbers: np.ndarray, tolerance: object
    ) -> None:
        if x.size <= _ELEMENTS:
            found, numbers = found.reshape(x.shape), numbers.reshape(x.shape)
            what = self.paths[i]
        else:
            what = f"{self.paths[i]} along random directions"
        close(what, found, numbers, tolerance, (self.mode, "central difference"))

    def _batched_reverse(self, pullback: Callable[..., Any], u: Sequence[Tensor]) -> None:
        self.mode = "batched reverse mode"
        more = [u, tuple(random_like(w, self.rng) for w in u)]
        stacks = tuple(_stack(parts) for parts in zip(*more, strict=True))
        found = pullback(stacks, batched=True)
        for k, one in enumerate(more):
            for path, g, wanted in zip(self.paths, found, pullback(one), strict=True):
                close(f"{path}, cotangent {k}", g[k], wanted, _ALIKE, ("batched", "by itself"))

    def _batch(self, flat: Flat, inputs: list[Tensor]) -> None:
        self.mode = "vmap"
        near = [_tensor(to_numpy(x) + self.eps * self.rng.standard_normal(x.shape), x)
                for x in inputs]
        found = vmap(flat)(*(_stack(pair) for pair in zip(inputs, near, strict=True)))
        for k, one in enumerate((inputs, near)):
            for j, (y, wanted) in enumerate(zip(found, flat(*one), strict=True)):
                close(f"result {j}, example {k}", y[k], wanted, _ALIKE, ("batched", "by itself"))


def _tensor(values: np.ndarray, like: Tensor) -> Tensor:
    device: Device = like._device
    return wrap(device.from_numpy(np.array(values, like.dtype, order="C")), device)


def _stack(parts: Sequence[Tensor]) -> Tensor:
    return _tensor(np.stack([to_numpy(p) for p in parts]), parts[0])


def _dot(tangents: Sequence[Tensor], u: Sequence[Tensor]) -> float:
    return sum(float((to_numpy(t) * to_numpy(w)).sum())
               for t, w in zip(tangents, u, strict=True))
