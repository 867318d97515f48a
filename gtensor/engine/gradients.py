"""`grad`: gradients as values, of tensors or of functions, to any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from gtensor.backend import owner
from gtensor.engine.backward import depends_on_others, gradients, root_node
from gtensor.engine.context import differentiating, enable_grad, is_grad_enabled
from gtensor.engine.errors import GradientError
from gtensor.engine.levels import Traced, lifted
from gtensor.engine.namespaces import recorded
from gtensor.engine.tape import Node, Record, hangs_on
from gtensor.engine.tensor import Tensor, is_floating, wrap, zeros

Tensors = Tensor | Sequence[Tensor]


@overload
def grad(
    outputs: Callable[..., Tensor], inputs: int = 0, *, allow_unused: bool = False
) -> Callable[..., Tensor]: ...


@overload
def grad(
    outputs: Callable[..., Tensor], inputs: Sequence[int], *, allow_unused: bool = False
) -> Callable[..., tuple[Tensor, ...]]: ...


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

    grad(f, 0, *, allow_unused) returns a function of f's arguments that returns the gradient of f's
    scalar result with respect to the argument at that position (a tuple of gradients for several
    positions). It nests: `grad(grad(f))` is the second derivative.

    No part of that gradient is lost silently. In f, `.numpy()` and `.array` of a value that depends
    on the arguments raise an error; detach() makes the value a constant. Numbers (`.item()`,
    `float`) and branches are constants, as in PyTorch. Raises GradientError if the result does not
    depend on an argument, unless allow_unused (then zeros).
    """
    if callable(outputs) and not isinstance(outputs, Tensor):
        allow_unused = options.pop("allow_unused", False)
        if grad_outputs is not None or options:
            extra = ["grad_outputs"] * (grad_outputs is not None) + list(options)
            raise TypeError(f"grad() of a function was given {', '.join(extra)}; wanted the "
                            "function, and the positions of the arguments to differentiate")
        return _grad_function(outputs, inputs, allow_unused)
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
    targets = [root_node(x, "grad()") for x in _as_list(inputs)]
    found = _apart(gradients(many, targets, given, create_graph, keep), given)
    unused = [i for i, g in enumerate(found) if g is None]
    if unused and not allow_unused:
        raise GradientError(f"grad() was asked for inputs {unused}, which the outputs do not "
                            "depend on; allow_unused=True gives None for them")
    return tuple(found)


def _apart(found: list[Tensor | None], given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients in separate memory: none shares with another one or with a given one."""
    taken = {id(owner(g._array)) for g in given if g is not None and not isinstance(g, Traced)}
    for i, g in enumerate(found):
        if g is not None and not isinstance(g, Traced):
            if id(owner(g._array)) in taken:
                found[i] = g = recorded.clone(g)
            taken.add(id(owner(g._array)))
    return found


def _grad_function(
    function: Callable[..., Tensor], argnums: int | Sequence[int], allow_unused: bool
) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    single = isinstance(argnums, int)
    positions: Sequence[int] = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def gradient(*args: object, **kwargs: object) -> Tensor | tuple[Tensor, ...]:
        recording = is_grad_enabled()
        arguments: list[Any] = list(args)
        for i in positions:
            if not -len(args) <= i < len(args):
                raise ValueError(f"a gradient function for argument {i} was called with "
                                 f"{len(args)} positional arguments; wanted it among them")
            arguments[i] = _inner_handle(args[i], i, recording)
        own = [arguments[i]._node for i in positions]  # the function may write the handles
        others = (*(x for i, x in enumerate(args) if arguments[i] is x), *kwargs.values())
        level = own[0].level if own else None
        outside = [x._node for x in others if recording and isinstance(x, Tensor)
                   and x._node is not None and x._node.level is level]
        with enable_grad():
            with differentiating(own):
                result = function(*arguments, **kwargs)
            found = _function_gradients(result, own, recording)
        unused = [i for i, g in zip(positions, found, strict=True) if g is None]
        if unused and not allow_unused:
            raise GradientError(f"the result of the function given to grad() does not depend on "
                                f"its arguments {unused}; allow_unused=True gives zeros for them")
        outside += [node for node in own if isinstance(node, Record)]  # aliases of outer arguments
        whole = [_as_function_of(outside, zeros(node.device, node.shape, node.dtype)
                                 if g is None else g) for node, g in zip(own, found, strict=True)]
        return whole[0] if single else tuple(whole)

    return gradient


def _function_gradients(
    result: object, own: Sequence[Node], recording: bool
) -> list[Tensor | None]:
    """Gradients of the function's result, None for arguments that it does not depend on."""
    if not isinstance(result, Tensor):
        raise TypeError(f"the function given to grad() returned {type(result).__name__}; wanted a "
                        "Tensor of one element")
    if not is_floating(result.dtype):
        raise TypeError(f"the function given to grad() returned a tensor of dtype {result.dtype}; "
                        "wanted a floating-point one")
    node = result._current_node("grad()")
    if node is None:
        return [None] * len(own)
    # The result needs a history only if an outer derivative can reach it.
    graph = recording and depends_on_others(node, own)
    return _apart(gradients([result], own, [None], graph, graph), [])


def _inner_handle(value: object, position: int, recording: bool) -> Tensor:
    """A handle with a node of its own, which the inner derivative can tell from the outer one's."""
    if not isinstance(value, Tensor):
        raise TypeError(f"argument {position} of a gradient function is {type(value).__name__}; "
                        "wanted a Tensor")
    value = lifted(value)
    if value._current_node("grad()") is not None and recording:
        return recorded.reshape(value, shape=value.shape)
    inner = value._copied() if isinstance(value, Traced) else value.detach()
    return inner.requires_grad_()


def _as_function_of(arguments: list[Node], g: Tensor) -> Tensor:
    """The gradient, made dependent on every argument of an outer derivative.

    Without a path between them the outer derivative is 0, as that of `floor` is: the function is
    linear almost everywhere.
    """
    for node in arguments:
        if g._node is None or not hangs_on(g._node, frozenset([node])):
            never = zeros(g._device, (), np.dtype(bool))
            g = recorded.where(never, _standing_for(node, g), g)
    return g


def _standing_for(node: Node, g: Tensor) -> Tensor:
    """A tensor of g's shape that depends on the argument; its values are not used."""
    if (node.shape, node.dtype, node.device) == (g.shape, g.dtype, g._device):
        x = wrap(g._array, g._device)
        x._node = node
        return x
    zero = zeros(node.device, (), node.dtype)
    x = wrap(recorded.broadcast_to(zero, shape=node.shape)._array, node.device)
    x._node = node
    total = recorded.sum(x, axis=tuple(range(-x.ndim, 0)), keepdims=False)
    if node.dtype.kind == "c" and g.dtype.kind != "c":
        total = recorded.real(total)
    if total.dtype != g.dtype:
        total = recorded.astype(total, dtype=g.dtype)
    return total if total._device is g._device else recorded.to_device(total, device=g._device)


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, Tensor) else list(value)
