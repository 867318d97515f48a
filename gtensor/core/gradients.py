"""`grad`: gradients as values, of tensors or of functions, to any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from gtensor.backend import owner
from gtensor.core.backward import depends_on_others, gradients
from gtensor.core.errors import GradientError
from gtensor.core.modes import enable_grad, is_grad_enabled
from gtensor.core.namespaces import recorded
from gtensor.core.tensor import Tensor, is_floating, make

Tensors = Tensor | Sequence[Tensor]


@overload
def grad(
    outputs: Callable[..., Tensor], inputs: int | Sequence[int] = 0
) -> Callable[..., Any]: ...


@overload
def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensors | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]: ...


def grad(outputs: Any, inputs: Any = 0, grad_outputs: Any = None, **options: Any) -> Any:
    """Gradients as values: `grad(loss, [w, b])` (PyTorch's), or `grad(f)`, a function (autograd's).

    grad(outputs, inputs, grad_outputs=None, *, create_graph, retain_graph, allow_unused) returns
    one gradient per input, of its shape, for the sum of the outputs; `.grad` is not touched. Raises
    GradientError for an input that the outputs do not depend on, unless allow_unused (then None).

    grad(f, 0) returns a function of f's arguments that returns the gradient of f's scalar result
    with respect to the argument at that position (a tuple of gradients for several positions).
    It nests: `grad(grad(f))` is the second derivative.
    """
    if callable(outputs) and not isinstance(outputs, Tensor):
        if grad_outputs is not None or options:
            extra = ["grad_outputs"] * (grad_outputs is not None) + list(options)
            raise TypeError(f"grad() of a function was given {', '.join(extra)}; wanted the "
                            "function, and the positions of the arguments to differentiate")
        return _grad_function(outputs, inputs)
    return _grad_values(outputs, inputs, grad_outputs, **options)


def _grad_values(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensors | None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    many = _as_list(outputs)
    given = [None] * len(many) if grad_outputs is None else _as_list(grad_outputs)
    if len(given) != len(many):
        raise ValueError(f"{len(given)} grad_outputs given for {len(many)} outputs")
    keep = create_graph if retain_graph is None else retain_graph
    found = _apart(gradients(many, _as_list(inputs), given, create_graph, keep), given)
    unused = [i for i, g in enumerate(found) if g is None]
    if unused and not allow_unused:
        raise GradientError(f"grad() was asked for inputs {unused}, which the outputs do not "
                            "depend on; allow_unused=True gives None for them")
    return tuple(found)


def _apart(found: list[Tensor | None], given: list[Any]) -> list[Tensor | None]:
    """Gradients in memory of their own: none is another's, or one the caller started from."""
    taken = {id(owner(g._array)) for g in given if g is not None}
    for i, g in enumerate(found):
        if g is not None:
            if id(owner(g._array)) in taken:
                found[i] = g = recorded.clone(g)
            taken.add(id(owner(g._array)))
    return found


def _grad_function(
    function: Callable[..., Tensor], argnums: int | Sequence[int]
) -> Callable[..., Any]:
    single = isinstance(argnums, int)
    positions: Sequence[int] = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        recording = is_grad_enabled()
        arguments = list(args)
        for i in positions:
            arguments[i] = _inner_handle(args[i], i, recording)
        own = [arguments[i] for i in positions]
        with enable_grad():
            result = function(*arguments, **kwargs)
            _check_result(result)
            # Only if somebody outside can differentiate the result does it need a history.
            if not result.requires_grad:  # it does not depend on them
                found: tuple[Any, ...] = (None,) * len(own)
            else:
                outer = recording and depends_on_others(result, own)
                found = _grad_values(result, own, None, create_graph=outer, allow_unused=True)
        found = tuple(_zeros_like(x) if g is None else g for g, x in zip(found, own, strict=True))
        return found[0] if single else found

    return gradient


def _check_result(result: Any) -> None:
    """What a function returns must be a tensor that a gradient can start from."""
    if not isinstance(result, Tensor):
        raise TypeError(f"the function given to grad() returned {type(result).__name__}; wanted a "
                        "Tensor of one element")
    if not is_floating(result.dtype):
        raise TypeError(f"the function given to grad() returned a tensor of dtype {result.dtype}; "
                        "wanted a floating-point one")


def _inner_handle(value: Any, position: int, recording: bool) -> Tensor:
    """A handle that the inner derivative can tell from the outer: an alias or a leaf of its own."""
    if not isinstance(value, Tensor):
        raise TypeError(f"argument {position} of a gradient function is {type(value).__name__}; "
                        "wanted a Tensor")
    if value.requires_grad and recording:
        return recorded.reshape(value, shape=value.shape)
    return value.detach().requires_grad_()


def _zeros_like(x: Tensor) -> Tensor:
    """The derivative of what does not depend on x."""
    device = x._device
    return make(device.fill(device.empty(x.shape, x.dtype, "gradient"), 0), device)


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, Tensor) else list(value)
