"""What the recurrent layers share: places along the time axis, inputs, checks, examples.

A layer has one output for its whole sequence: the initial hidden state, all later ones, and for an
LSTM the final cell state, one after another along axis -3. So one op has one output, its rule sees
the gradients of all states at once, the states before the steps are one view, and the gradient of
the recurrent weight is one product over all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.creation.new_tensors import zeros
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.tape.samples import Sample
from gtensor.ops.define.arguments import same_dtype
from gtensor.ops.define.batching import Inputs, Mapped, batch_size, behind, spread
from gtensor.ops.define.path_builders import settled
from gtensor.ops.linalg.linear import give_parameters
from gtensor.ops.linalg.matrix_products import swapped

if TYPE_CHECKING:
    import numpy as np

    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.engine.walk.typing import ArrayOrTensor, Step, Values

Key = tuple[Any, ...]

# -- places along the time axis --------------------------------------------------------------------


class Places:
    """Where the states of `steps` steps lie; step t has row t of the gates."""

    def __init__(self, steps: int, reverse: bool) -> None:
        self.reverse = reverse
        self.order = range(steps)[::-1] if reverse else range(steps)  # of the steps
        self.first = steps if reverse else 0  # of the initial state
        self.last = 0 if reverse else steps  # of the final one
        self.made = slice(0, steps) if reverse else slice(1, steps + 1)  # of the outputs
        self.read = slice(1, steps + 1) if reverse else slice(0, steps)  # of the states before

    def before(self, step: int) -> int:
        """Of the state that a step reads."""
        return step + self.reverse

    def after(self, step: int) -> int:
        """Of the state that it makes."""
        return step + 1 - self.reverse


def at(place: int | slice) -> Key:
    """The key of a place, or of several, along the time axis."""
    return (..., place, slice(None), slice(None))


def columns(start: int, stop: int) -> Key:
    """The key of columns."""
    return (..., slice(start, stop))


def state(ns: Namespace, x: ArrayOrTensor, place: int) -> Any:
    """The state at a place: a view."""
    return ns.slice(x, key=at(place))


def parts(ns: Namespace, x: ArrayOrTensor, count: int) -> list[Any]:
    """The columns cut into so many equal parts: views."""
    width = x.shape[-1] // count
    return [ns.slice(x, key=columns(i * width, (i + 1) * width)) for i in range(count)]


def joined(states: Sequence[Tensor]) -> Tensor:
    """States one after another along a new time axis."""
    apart = [recorded.reshape(s, shape=(*s.shape[:-2], 1, *s.shape[-2:])) for s in states]
    return recorded.concat(*apart, axis=-3, sizes=(1,) * len(apart))


# -- parts of the paths ----------------------------------------------------------------------------


def write_inputs(
    device: Any, x: Array, weight: Array, bias: Array | None, out: Array
) -> None:
    """x @ weight.T + bias for all steps: one product. Leading axes of a weight broadcast."""
    if weight.ndim == 2 and (bias is None or bias.ndim == 1):
        raw[device.type].linear(x, weight, bias, out=out)
        return
    device.matmul(x, weight.swapaxes(-1, -2)[..., None, :, :], out)
    if bias is not None:
        out += bias[..., None, None, :]


def contiguous(out: Array | None, shape: tuple[int, ...], dtype: np.dtype, make: Any) -> Array:
    """The caller's buffer where a kernel can write it, else a new one."""
    return out if out is not None and out.flags.c_contiguous else make(shape, dtype)


def dense(a: Array, dtype: np.dtype) -> Array:
    """A GPU array as kernels read it."""
    return cupy().ascontiguousarray(a, dtype=dtype)


def in_time(a: np.ndarray) -> np.ndarray:
    """A view with the time axis first."""
    axes = range(a.ndim)
    return a.transpose(a.ndim - 3, *axes[:-3], a.ndim - 2, a.ndim - 1)


def widened(arrays: Sequence[Array | None], dtype: np.dtype) -> list[Array | None]:
    """Host arrays in the dtype; those that are not there stay so."""
    return [a if a is None or a.dtype == dtype else host().copy(a, dtype) for a in arrays]


def narrowed(a: np.ndarray, dtype: np.dtype, out: Array | None = None) -> np.ndarray:
    """A host array in the dtype, in `out` if given."""
    return host().copy(a, dtype) if out is None else settled(a, out)


# -- parts of the rules ----------------------------------------------------------------------------


def total(ns: Namespace, *terms: Any) -> Any:
    """The sum of the terms that are there; None without any."""
    given = [term for term in terms if term is not None]
    return reduce(ns.add, given) if given else None


def times(change: Any, slope: Any) -> Any:
    """A change times a slope, where there is one."""
    return None if change is None else change * slope


def _between(ns: Namespace, parameter: Any, own: int, more: int) -> Any:
    """Axes of size 1 between the leading axes of a parameter and its own."""
    shape = parameter.shape
    lead = len(shape) - own
    return parameter if not lead else ns.reshape(
        parameter, shape=(*shape[:lead], *(1,) * more, *shape[lead:]))


def affine(
    ns: Namespace, x: Any, weight: Any, bias: Any, axes: int, out: Any = None, beta: float = 0.0
) -> Any:
    """x @ weight.T + bias, of a sequence (`axes` 3) or a state (2).

    A parameter that differs between examples of a `vmap` has leading axes, which are x's.
    """
    within = bias is None or len(bias.shape) == 1
    if len(weight.shape) == 2:
        y = ns.linear(x, weight, bias if within else None, out=out, beta=beta)
        if within:
            return y
    else:
        y = ns.matmul(x, swapped(ns, _between(ns, weight, 2, axes - 2)), out=out, beta=beta)
    return y if bias is None else ns.add(y, _between(ns, bias, 1, axes - 1))


def give_products(
    ns: Namespace, step: Step, g: Any, x: Any, places: tuple[int, int]
) -> None:
    """The gradients of the parameters of `affine` at these places among the inputs."""
    weight, bias = places
    own = ((weight, 2), (bias, 1))
    if all(not step.needs(i) or len(step.shape(i)) == axes for i, axes in own):
        give_parameters(ns, step, g, x, places)
        return
    if step.needs(bias):
        step.give(bias, ns.sum(g, axis=(-3, -2)))  # (..., G): the step sums what is left
    if step.needs(weight):
        step.give(weight, weight_gradient(ns, g, x))


def weight_gradient(ns: Namespace, g: Any, x: Any) -> Any:
    """That of the weight of `affine`, (..., out, in) with the leading axes of the sequences."""
    if len(g.shape) == 3:
        return ns.linear_grad_weight(g, x)
    rows = [ns.reshape(a, shape=(*a.shape[:-3], a.shape[-3] * a.shape[-2], a.shape[-1]))
            for a in (g, x)]
    return ns.matmul(swapped(ns, rows[0]), rows[1])


def affine_tangent(
    ns: Namespace, primals: Values, tangents: Values, axes: int
) -> Any:
    """The tangent of `affine` for x, weight, bias; None where none reaches it."""
    (x, weight, _), (dx, dweight, dbias) = primals, tangents
    own: Any = dbias
    if dbias is not None:
        x_shape: Any = x.shape
        own = _between(ns, dbias, 1, axes - 1)
        own = ns.broadcast_to(own, shape=(*x_shape[:-1], own.shape[-1]))
    return total(ns, None if dx is None else affine(ns, dx, weight, None, axes),
                 None if dweight is None else affine(ns, x, dweight, None, axes), own)


def filled(changes: Sequence[Any], like: Any) -> list[Any]:
    """The changes, zeros in place of those that are None."""
    return [zeros(like.shape, like.dtype, like.device) if c is None else c for c in changes]


def spread_inputs(
    ns: Namespace, inputs: Inputs, mapped: Mapped, axes: Sequence[int]
) -> list[Any]:
    """The inputs of all examples: sequences and states repeated as views, parameters as they are.

    `axes` are those of one example of each input, 0 for a sequence or a state.
    """
    size = batch_size(inputs, mapped)
    lead = inputs[0].ndim - mapped[0] - 3
    return [behind(ns, a, m, lead + own) if own and a is not None else spread(ns, a, m, size)
            for a, m, own in zip(inputs, mapped, axes, strict=True)]


# -- checks and samples ----------------------------------------------------------------------------


def check_layer(
    name: str, gates: int, input: Tensor, states: dict[str, Tensor], w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None, b_hh: Tensor | None,
) -> None:
    """Raise TypeError or ValueError unless the inputs of a layer fit each other."""
    same_dtype(name, input=input, **states, w_ih=w_ih, w_hh=w_hh, b_ih=b_ih, b_hh=b_hh)
    if input.ndim != 3 or not input.shape[0]:
        raise ValueError(f"{name} was given an input of shape {input.shape}; wanted (T, N, I) with "
                         "a step at least")
    _, n, features = input.shape
    width = w_hh.shape[-1]
    wanted: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        **{label: (given, (n, width)) for label, given in states.items()},
        "w_ih": (w_ih, (gates * width, features)), "w_hh": (w_hh, (gates * width, width)),
        "b_ih": (b_ih, (gates * width,)), "b_hh": (b_hh, (gates * width,))}
    if (b_ih is None) != (b_hh is None):
        raise ValueError(f"{name} was given one bias; wanted both or none")
    for label, (given, shape) in wanted.items():
        if given is not None and given.shape != shape:
            raise ValueError(f"{name} was given {label} of shape {given.shape}; wanted {shape} for "
                             f"an input of shape {input.shape} and {width} features")


def samples(gates: int, states: int) -> list[Sample]:
    """Both directions, with and without biases, one step, no example."""
    found = []
    for steps, n, features, width, biased, reverse in (
            (3, 2, 2, 3, True, False), (3, 2, 3, 2, False, True), (1, 1, 1, 1, True, True),
            (2, 0, 2, 2, True, False)):
        bias = (gates * width,) if biased else None
        shapes = ((steps, n, features), *[(n, width)] * states, (gates * width, features),
                  (gates * width, width), bias, bias)
        found.append(Sample(shapes, params={"reverse": reverse}))
    return found


def pytorchs(
    network: Callable[..., Any], torch: Any, x: Any, states: tuple[Any, ...],
    parameters: tuple[Any, ...], reverse: bool,
) -> Any:
    """Of one of PyTorch's functions: the output of a layer, as it is laid out here."""
    given = [p for p in parameters if p is not None]
    sequence = x.flip(0) if reverse else x
    if not x.shape[1]:
        return torch.zeros((x.shape[0] + len(states), 0, states[0].shape[-1]),
                           dtype=x.dtype, requires_grad=True)
    first = [s[None] for s in states]
    y, *final = network(sequence, first if len(first) > 1 else first[0], given,
                        len(given) > 2, 1, 0.0, False, False, False)
    y = [y.flip(0), first[0]] if reverse else [first[0], y]
    return torch.cat([*y, *final[1:]])
