"""Reverse mode: `grad`, gradients of tensors or of functions, `value_and_grad` and `vjp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from gtensor.backend import owner
from gtensor.engine.handle.context import differentiating
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.node import Node, hangs_on
from gtensor.engine.handle.tensor import Tensor, is_floating, wrap, zeros
from gtensor.engine.tape.levels import Traced, innermost, is_recording, lifted, recording
from gtensor.engine.tape.record import Record
from gtensor.engine.walk.backward import depends_on_others, gradients, root_node
from gtensor.func.batching import vmap
from gtensor.func.forward import result_tensors, split
from gtensor.func.trees import M, P, R, Tree, at_leaves, leaves, mapped, rebuilt

if TYPE_CHECKING:
    from gtensor.func.typing import AnyArguments, Gradient, ValueAndGradient

Tensors = Tensor | Sequence[Tensor]
Ends = Sequence[tuple[Tensor, Tensor | None]]  # results of a function, and their cotangents


@overload
def grad(
    outputs: Callable[P, Tensor], inputs: Literal[0] = 0, *, has_aux: Literal[False] = False,
    allow_unused: bool = False,
) -> Gradient[P]: ...


@overload
def grad(
    outputs: AnyArguments, inputs: Literal[0] = 0, *, has_aux: Literal[False] = False,
    allow_unused: bool = False,
) -> Callable[..., Any]: ...


@overload
def grad(
    outputs: Callable[P, tuple[Tensor, M]], inputs: Literal[0] = 0, *, has_aux: Literal[True],
    allow_unused: bool = False,
) -> Callable[P, tuple[Any, M]]: ...


@overload
def grad(
    outputs: Callable[P, Any], inputs: int | Sequence[int], *, has_aux: bool = False,
    allow_unused: bool = False,
) -> Callable[P, Any]: ...


@overload
def grad(
    outputs: Callable[P, Any], *, argnums: int | Sequence[int], has_aux: bool = False,
    allow_unused: bool = False,
) -> Callable[P, Any]: ...


@overload
def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensors | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: Literal[False] = False,
) -> tuple[Tensor, ...]: ...


@overload
def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensors | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: bool,
) -> tuple[Tensor | None, ...]: ...


def grad(outputs: Any, inputs: Any = 0, grad_outputs: Any = None, **options: Any) -> Any:
    """Gradients as values: `grad(loss, [w, b])` (PyTorch's), or `grad(f)`, a function (autograd's).

    grad(outputs, inputs, grad_outputs=None, *, create_graph, retain_graph, allow_unused) returns
    one gradient per input, of its shape, for the sum of the outputs; `.grad` is not touched. Raises
    GradientError for an input that the outputs do not depend on, unless allow_unused (then None).

    grad(f, argnums=0, *, has_aux, allow_unused) returns a function of f's arguments that returns
    the gradient of f's scalar result with respect to the argument at that position (a tuple of
    gradients for several positions). It nests: `grad(grad(f))` is the second derivative. An
    argument may be a tree of tensors (dicts, lists, tuples, dataclasses); so is its gradient. With
    has_aux f returns (scalar, more), and the function returns (gradient, more).

    No part of that gradient is lost silently. In f, `.numpy()` and `.array` of a value that depends
    on the arguments raise an error; detach() makes the value a constant. Numbers (`.item()`,
    `float`) and branches are constants, as in PyTorch. Raises GradientError if the result does not
    depend on an argument, unless allow_unused (then zeros); TypeError for arguments that are not
    floating-point tensors.

    Source: PyTorch's `torch.autograd.grad`; `grad` of the library autograd.
    """
    if callable(outputs) and not isinstance(outputs, Tensor):
        argnums = options.pop("argnums", inputs)
        has_aux, allow_unused = (options.pop(name, False) for name in ("has_aux", "allow_unused"))
        if grad_outputs is not None or options:
            extra = ["grad_outputs"] * (grad_outputs is not None) + list(options)
            raise TypeError(f"grad() of a function was given {', '.join(extra)}; wanted the "
                            "function, and the positions of the arguments to differentiate")
        return _grad_function(outputs, argnums, has_aux, allow_unused)
    return _grad_values(outputs, inputs, grad_outputs, **options)


def _grad_values(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensors | None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    many = _as_list("outputs", outputs)
    given = [None] * len(many) if grad_outputs is None else _as_list("grad_outputs", grad_outputs)
    if len(given) != len(many):
        raise ValueError(f"{len(given)} grad_outputs given for {len(many)} outputs")
    keep = create_graph if retain_graph is None else retain_graph
    targets = [root_node(x, "grad()") for x in _as_list("inputs", inputs)]
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
    function: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, allow_unused: bool
) -> Callable[..., Any]:
    def gradient(*args: Any, **kwargs: Any) -> Any:
        run = Run("grad()", function, args, kwargs, argnums, has_aux)
        found = run.gradient(run.scalar(), allow_unused)
        return (found, run.aux) if has_aux else found

    return gradient


@overload
def value_and_grad(  # type: ignore[overload-overlap]  # 0 is an int, too
    function: Callable[P, R], argnums: Literal[0] = 0, *, has_aux: bool = False,
    allow_unused: bool = False,
) -> ValueAndGradient[P, R]: ...


@overload
def value_and_grad(
    function: AnyArguments, argnums: Literal[0] = 0, *, has_aux: bool = False,
    allow_unused: bool = False,
) -> Callable[..., Any]: ...


@overload
def value_and_grad(
    function: Callable[P, R], argnums: int | Sequence[int], *, has_aux: bool = False,
    allow_unused: bool = False,
) -> Callable[P, tuple[R, Any]]: ...


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False,
    allow_unused: bool = False,
) -> Callable[..., Any]:
    """A function that returns (value, gradient); `grad(f)` with the value, in one run.

    With has_aux the function returns (scalar, more), and so the value is that pair.
    Arguments, errors: as `grad` of a function.

    Source: `torch.func.grad_and_value`, in JAX's order.
    """

    def with_value(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        run = Run("grad()", function, args, kwargs, argnums, has_aux)
        result = run.scalar()
        found = run.gradient(result, allow_unused)
        value = run.outside_of(result)
        return (value, run.aux) if has_aux else value, found

    return with_value


@overload
def vjp(
    function: Callable[..., R], *primals: Tree, has_aux: Literal[False] = False
) -> tuple[R, Callable[..., tuple[Any, ...]]]: ...


@overload
def vjp(
    function: Callable[..., tuple[R, M]], *primals: Tree, has_aux: Literal[True]
) -> tuple[R, Callable[..., tuple[Any, ...]], M]: ...


@overload
def vjp(function: Callable[..., Any], *primals: Tree, has_aux: bool) -> Any: ...


def vjp(
    function: Callable[..., Any], *primals: Tree, has_aux: bool = False
) -> Any:
    """(function(*primals), its pullback): reverse mode.

    `pullback(cotangents)` returns a tuple with, per primal, the gradient of the sum of the result
    times the cotangents, zeros where the result does not depend on it. It can be called again;
    the graph is freed with it. `pullback(cotangents, batched=True)` takes N cotangents along a
    first axis, (N, *S) for a result of shape S, and returns gradients (N, *shape) of the primals.

    Args:
        function: takes a tree of tensors per primal (a tensor, or dicts, lists, tuples, dataclasses
            of them) and returns one.
        primals: the arguments, with floating-point tensors.
        has_aux: the function returns (result, more), and `more` is returned third, as values.

    Cotangents are a tree of the result's structure, None in it for zero. Raises ValueError or
    TypeError if they do not fit, TypeError for arguments or results that are not floating-point
    tensors.

    Source: `torch.func.vjp`.
    """
    run = Run("vjp()", function, primals, {}, range(len(primals)), has_aux)
    results = result_tensors("vjp()", run.result)
    for y in results:
        _check_floating("vjp()", y)
    form = mapped(lambda y: None, run.result)

    def pullback(cotangents: Tree, batched: bool = False) -> tuple[Any, ...]:
        given = at_leaves(form, cotangents, "cotangents")
        _check_cotangents(results, given, batched)
        ends = [(y, c) for y, c in zip(results, given, strict=True) if c is not None]
        return run.arranged(_batched_pullback(run, ends) if batched else
                            run.completed(run.walk(ends, True)))

    value = rebuilt(form, [run.outside_of(y) for y in results])
    return (value, pullback, run.aux) if has_aux else (value, pullback)


def _batched_pullback(run: Run, ends: list[tuple[Tensor, Any]]) -> Sequence[Tensor]:
    """Gradients for N stacked cotangents per result, with their axis first.

    One walk on raw stacks, unless a history or a transform wants recorded rules.
    """
    results, cotangents = zip(*ends, strict=True)
    count = cotangents[0].shape[0]
    if not run.outside and not run.graph(ends) and not any(
            isinstance(x, Traced) for end in ends for x in end):
        return [zeros(node.device, (count, *node.shape), node.dtype) if g is None else g
                for node, g in zip(run.own, run.walk(ends, True, True), strict=True)]

    def walk(*given: Tensor) -> list[Tensor]:
        return run.completed(run.walk(list(zip(results, given, strict=True)), True))

    found = vmap(walk, randomness="same")(*cotangents)
    return found if run.graph(ends) else [without_history(g) for g in found]


def _check_cotangents(results: list[Tensor], given: list[Any], batched: bool) -> None:
    """Raise unless the cotangents fit the results, and are as many for each."""
    counts = set()
    for y, c in zip(results, given, strict=True):
        if c is None:
            continue
        if not isinstance(c, Tensor):
            raise TypeError(f"the pullback was given {type(c).__name__} as a cotangent; wanted a "
                            "Tensor (gt.asarray makes one)")
        c._current_node("the pullback")
        wanted = ("N", *y.shape) if batched else y.shape
        if c.ndim != len(wanted) or c.shape[batched:] != y.shape:
            raise ValueError(f"the pullback was given a cotangent of shape {c.shape} for a result "
                             f"of shape {y.shape}; wanted ({', '.join(map(str, wanted))})")
        if (c.dtype, c.device) != (y.dtype, y.device):
            raise TypeError(f"the pullback was given a cotangent of dtype {c.dtype} on {c.device} "
                            f"for a result of dtype {y.dtype} on {y.device}; wanted the same")
        counts.add(c.shape[0] if batched else 1)
    if len(counts) != 1:
        raise ValueError(f"the pullback was given {sorted(counts) or 'no'} cotangents for its "
                         "results; wanted the same number for each, and for one at least")


class Run:
    """One run of a function with gradients: its result on handles with nodes of their own.

    The nodes tell an inner derivative's arguments from those of an outer one. `result` and
    `aux` are trees, `own` the nodes of the tensors among the arguments `argnums`, and `paths` their
    names.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], args: Sequence[Tree],
        kwargs: dict[str, Any], argnums: int | Sequence[int], has_aux: bool,
    ) -> None:
        self.level = innermost()  # on whose tape it is
        self.recording = is_recording(self.level)
        self._known: dict[Node, bool] = {}
        self.single = isinstance(argnums, int)
        positions = [argnums] if isinstance(argnums, int) else list(argnums)
        for i in positions:
            if not -len(args) <= i < len(args):
                raise ValueError(f"a gradient function for argument {i} was called with "
                                 f"{len(args)} positional arguments; wanted it among them")
        positions = [i % len(args) for i in positions]
        arguments = list(args)
        self.trees, handles = [args[i] for i in positions], []
        self.paths: list[str] = []
        for i in positions:
            own: list[Any] = []
            for path, x in leaves(args[i], f"argument {i}"):
                own.append(None if x is None else self._handle(path, x))
                if x is not None:
                    self.paths.append(path)
                    handles.append(own[-1])
            arguments[i] = rebuilt(args[i], own)
        self.own: list[Node] = [x._node for x in handles]  # the function may write the handles
        self.outside = self._outside(
            [x for i, x in enumerate(args) if i not in positions] + list(kwargs.values()))
        with recording(), differentiating(self.own):
            self.result, aux = split(name, function(*arguments, **kwargs), has_aux)
        self.aux_recorded, self.aux = False, None
        if has_aux:
            self.aux_recorded = any(isinstance(y, Tensor) and y._node is not None
                                    for _, y in leaves(aux))
            self.aux = mapped(lambda y: self.outside_of(y) if isinstance(y, Tensor) else y, aux)

    def _handle(self, path: str, value: object) -> Any:
        """A handle on an argument with a node of its own."""
        if not isinstance(value, Tensor):
            raise TypeError(f"{path} of a gradient function is {type(value).__name__}; wanted a "
                            "Tensor (gt.asarray makes one)")
        if not is_floating(value.dtype):
            raise TypeError(f"{path} of a gradient function has dtype {value.dtype}; wanted a "
                            "floating-point one")
        value = lifted(value)
        if value._current_node("grad()") is not None and self.recording:
            return recorded.reshape(value, shape=value.shape)
        return without_history(value)._begin_as_leaf()

    def _outside(self, others: list[Tree]) -> list[Node]:
        """Arguments of outer derivatives among the others, and behind the own ones."""
        level = self.own[0].level if self.own else None
        found = [x._node for tree in others for _, x in leaves(tree)
                 if isinstance(x, Tensor) and x._node is not None and x._node.level is level]
        return [*(found if self.recording else []),
                *(node for node in self.own if isinstance(node, Record))]

    def scalar(self) -> Tensor:
        """The result, which must be one floating-point number."""
        result = self.result
        if not isinstance(result, Tensor):
            raise TypeError(f"the function given to grad() returned {type(result).__name__}; "
                            "wanted a Tensor of one element")
        result._current_node("grad()")  # refuses stale handles
        _check_floating("grad()", result)
        if result.size != 1:
            raise GradientError(f"the function given to grad() returned a tensor of shape "
                                f"{result.shape}; wanted one element (jacrev gives all gradients)")
        return result

    def graph(self, ends: Ends) -> bool:
        """Whether an outer derivative can reach the gradients, which then need a history."""
        return is_recording(self.level) and self.recording and any(
            c is not None and c._node is not None or y._node is not None and self._open(y._node)
            for y, c in ends)

    def _open(self, node: Node) -> bool:
        """Whether a result depends on others than the arguments: found once, as the tape stays."""
        if node not in self._known:
            self._known[node] = depends_on_others(node, self.own)
        return self._known[node]

    def walk(self, ends: Ends, keep: bool, batched: bool = False) -> list[Tensor | None]:
        """Gradients at the own nodes for results and cotangents (None: of one element, 1).

        None where the results do not depend on a node. If `batched`, cotangents and gradients are
        stacks along a first axis.
        """
        ends = [(y, c) for y, c in ends if y._current_node("grad()") is not None]
        if not ends:
            return [None] * len(self.own)
        graph = self.graph(ends)
        traced = any(isinstance(c, Traced) for _, c in ends)  # only recorded rules take those
        results, cotangents = zip(*ends, strict=True)
        return _apart(gradients(results, self.own, cotangents, graph or traced, graph or keep,
                                batched), cotangents)

    def gradient(self, result: Tensor, allow_unused: bool) -> Any:
        """The gradient of a scalar result; consumes its graph unless it is needed further."""
        found = self.walk([(result, None)], self.aux_recorded)
        unused = [path for path, g in zip(self.paths, found, strict=True) if g is None]
        if unused and not allow_unused:
            raise GradientError("the result of the function given to grad() does not depend on "
                                f"its {', '.join(unused)}; allow_unused=True gives zeros for it")
        return self.arranged(self.completed(found))

    def completed(self, found: Sequence[Tensor | None]) -> list[Tensor]:
        """Gradients for all arguments, made dependent on those of outer derivatives."""
        return [_as_function_of(self.outside, zeros(node.device, node.shape, node.dtype)
                                if g is None else g)
                for node, g in zip(self.own, found, strict=True)]

    def arranged(self, found: Sequence[Any]) -> Any:
        """Gradients in the structure of the arguments: of one, or a tuple of those of several."""
        rest = iter(found)
        trees = tuple(mapped(lambda x: None if x is None else next(rest), tree)
                      for tree in self.trees)
        return trees[0] if self.single else trees

    def outside_of(self, result: Tensor) -> Tensor:
        """A result without its history, unless an outer derivative can reach it."""
        node = result._current_node("grad()")
        if node is None or self.recording and self._open(node):
            return result
        return without_history(result)


def without_history(x: Tensor) -> Tensor:
    """A handle on the same values, tangents included, without a place on the tape of its level."""
    return x._copied() if isinstance(x, Traced) else x.detach()


def _check_floating(name: str, result: Tensor) -> None:
    if not is_floating(result.dtype):
        raise TypeError(f"the function given to {name} returned a tensor of dtype {result.dtype}; "
                        "wanted a floating-point one")


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
    """A tensor of g's shape or of one element, which depends on the argument; values are unused."""
    alike = (node.shape, node.dtype, node.device) == (g.shape, g.dtype, g._device)
    if alike and not isinstance(g, Traced):
        x = wrap(g._array, g._device)
        x._node = node
        return x
    zero = zeros(node.device, (), node.dtype)
    x = wrap(recorded.broadcast_to(zero, shape=node.shape)._array, node.device)
    if node.level is not None:
        x = node.level.lift(x)
    x._node = node
    total = recorded.sum(x, axis=tuple(range(-x.ndim, 0)), keepdims=False)
    if node.dtype.kind == "c" and g.dtype.kind != "c":
        total = recorded.real(total)
    if total.dtype != g.dtype:
        total = recorded.astype(total, dtype=g.dtype)
    return total if total._device is g._device else recorded.to_device(total, device=g._device)


def _as_list(name: str, value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return [value]
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"grad() was given {name} of type {type(value).__name__}; wanted a Tensor "
                        "or several") from None
