"""`custom_vjp` and `custom_jvp`: derivatives of one's own for functions of trees of tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from types import MappingProxyType, MethodType
from typing import Any, Generic, TypeVar, cast

from gtensor.engine.handle.context import differentiating
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor, check_like, zeros
from gtensor.engine.tape.levels import Traced, innermost, is_recording, lifted, recording
from gtensor.engine.walk.backward import gradients
from gtensor.func.own_rules import Nodes, Ran, Rule, Values, apply, differentiable, named
from gtensor.func.trees import P, R, Tree, leaves, mapped, rebuilt

F = TypeVar("F", bound=Callable[..., Any])
Indices = int | Sequence[int]


class _Custom(Generic[P, R]):
    """A function, and which of its arguments have derivatives."""

    _kind = ""  # its name, and how a rule is given, for messages
    _defined_by = ""
    _call: type[_TreeCall] | None = None  # None: it has no rule yet

    def __init__(
        self, function: Callable[P, R], nondiff_argnums: Indices = (),
        nondiff_argnames: str | Iterable[str] = (),
    ) -> None:
        if not callable(function):
            raise TypeError(f"{self._kind} was given {type(function).__name__}; wanted a function")
        update_wrapper(cast(Any, self), function)
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        try:
            self._parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            self._parameters = inspect.Signature().parameters
        names = [*self._parameters]
        numbers = [nondiff_argnums] if isinstance(nondiff_argnums, int) else [*nondiff_argnums]
        for name in [nondiff_argnames] if isinstance(nondiff_argnames, str) else nondiff_argnames:
            if name not in names:
                raise ValueError(f"{self._kind} of {self.name} was given the argument {name!r}; "
                                 f"wanted one of {', '.join(names)}")
            numbers.append(names.index(name))
        for number in numbers:
            if not isinstance(number, int) or number < 0:
                raise ValueError(f"{self._kind} of {self.name} was given {number!r} as the number "
                                 "of an argument; wanted 0 or more")
        self.constants = frozenset(numbers)
        self._defaults = any(p.default is not p.empty for p in self._parameters.values())

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As of a function: copies are itself, and a pickle has its name."""
        name = getattr(self, "__qualname__", None)
        return super().__reduce_ex__(protocol) if name is None else name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As of a function in a class: the method of an instance, which is its first argument."""
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result."""
        if self._call is None:
            raise TypeError(f"{self._kind} of {self.name} was called before it had a rule; wanted "
                            f"{self.name}.{self._defined_by} first")
        given: Any = args
        if kwargs or self._defaults:
            given = self._bound(args, kwargs)
        call = self._call(self, len(given))
        if self.constants:
            if max(self.constants) >= len(given):
                raise ValueError(f"{self.name} was called with {len(given)} arguments, and "
                                 f"argument {max(self.constants)} of it is one without a "
                                 "derivative")
            call.fixed = {n: given[n] for n in self.constants}
        outputs: Any = apply(call, call.inputs(given))
        result: R = outputs[0] if call.form is None else _together(call.form, outputs)
        return result

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position."""
        bound = inspect.Signature([*self._parameters.values()]).bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise TypeError(f"{self.name} takes {', '.join(bound.kwargs)} by keyword only; "
                            f"{self._kind} wanted arguments that have a position")
        return bound.args


class custom_vjp(_Custom[P, R]):
    """A function with a rule of its own for gradients, which `defvjp` gives it.

        @gt.custom_vjp
        def log1pexp(x):
            return gt.log1p(gt.exp(x))

        def forward(x):
            return log1pexp(x), x                   # the result, and what backward needs

        def backward(x, g):
            return (g * (1 - 1 / (1 + gt.exp(x))),)  # a gradient for each argument

        log1pexp.defvjp(forward, backward)

    Arguments, result and residuals are tensors or trees of them (dicts, lists, tuples,
    dataclasses). The function may read other tensors, as constants: one that requires a gradient is
    refused. The rules are functions of tensors, so they work within `vmap` and `jvp`, and a
    gradient of a gradient differentiates them. Forward mode takes the pullback of `backward`.

    A residual that `forward` computed, other than its arguments and results, makes the record keep
    the arguments, too: a second derivative runs `forward` again. Mark the backward with
    `gt.autograd.once_differentiable` to keep residuals alone.

    Args:
        function: takes arguments by position.
        nondiff_argnums: numbers of arguments without a derivative, which may be anything. They are
            the first arguments of `backward`.
        nondiff_argnames: the same by their names.

    Raises TypeError if it is called before `defvjp`.

    Source: `jax.custom_vjp`.
    """

    _kind, _defined_by = "custom_vjp", "defvjp(forward, backward)"
    forward: Callable[..., tuple[R, Any]]
    backward: Callable[..., Any]
    once = False  # whether the gradients have no derivative

    def defvjp(
        self, forward: Callable[..., tuple[R, Any]], backward: Callable[..., Any]
    ) -> None:
        """Give the function its rule.

        Args:
            forward: takes the function's arguments, returns (its result, residuals).
            backward: takes the arguments without derivative, the residuals and the gradient of the
                result (a tree of its structure), and returns a tuple with the gradient of each
                other argument: of its shapes and dtypes, None where it requires none.

        Raises TypeError for what is no function.
        """
        for rule in (forward, backward):
            if not callable(rule):
                raise TypeError(f"defvjp of {self.name} was given {type(rule).__name__}; wanted "
                                "two functions, forward and backward")
        self.forward, self.backward, self._call = forward, backward, _VjpCall
        self.once = getattr(backward, "once_differentiable", False)


class custom_jvp(_Custom[P, R]):
    """A function with a rule of its own for tangents, which `defjvp` gives it.

        @gt.custom_jvp
        def f(x, y):
            return gt.sin(x) * y

        @f.defjvp
        def rule(primals, tangents):
            (x, y), (dx, dy) = primals, tangents
            return f(x, y), gt.cos(x) * dx * y + gt.sin(x) * dy

    The rule is linear in the tangents, so gradients follow from it: `backward` runs it once and
    takes its pullback. Arguments and results are as of `custom_vjp`.

    Args:
        function: takes arguments by position.
        nondiff_argnums: numbers of arguments without a derivative, which may be anything. They are
            the first arguments of the rule.
        nondiff_argnames: the same by their names.

    Raises TypeError if it is called before `defjvp`.

    Source: `jax.custom_jvp`.
    """

    _kind, _defined_by = "custom_jvp", "defjvp(rule)"
    rule: Callable[..., Any]

    def defjvp(self, rule: F) -> F:
        """Give the function its rule, and return that.

        Args:
            rule: takes the arguments without derivative, then a tuple of the others and one of
                their tangents, trees of the same structures (zeros where an argument has none), and
                returns (result, its tangent).

        Raises TypeError for what is no function.
        """
        if not callable(rule):
            raise TypeError(f"defjvp of {self.name} was given {type(rule).__name__}; wanted a "
                            "function")
        self.rule, self._call = rule, _JvpCall
        return rule

    def defjvps(self, *rules: Callable[..., Tree] | None) -> None:
        """Give the function a rule for each argument: `rule(tangent, result, *arguments)`.

        Args:
            rules: each returns what that argument's tangent adds to the result's; None for an
                argument without a derivative.

        Raises TypeError for a function with arguments that have none by their number.
        """
        if self.constants:
            raise TypeError(f"defjvps of {self.name}, some arguments of which have no derivative; "
                            "wanted defjvp, or None as their rule")

        def rule(primals: tuple[Tree, ...], tangents: tuple[Tree, ...]) -> tuple[Tree, Tree]:
            if len(rules) != len(primals):
                raise TypeError(f"defjvps of {self.name} was given {len(rules)} rules, and it was "
                                f"called with {len(primals)} arguments; wanted as many")
            function: Any = self
            out = function(*primals)
            total: list[Any] = [zeros(y.device, y.shape, y.dtype) for _, y in leaves(out)]
            for one, t in zip(rules, tangents, strict=True):
                if one is not None:
                    total = [recorded.add(a, b) for a, (_, b) in zip(
                        total, leaves(one(t, out, *primals)), strict=True)]
            return out, rebuilt(out, total)

        self.rule, self._call = rule, _JvpCall


# -- one call --------------------------------------------------------------------------------------


def _apart(tree: Tree) -> tuple[list[Any], Tree]:
    """The leaves, and the tree with None in place of each."""
    if isinstance(tree, Tensor) or tree is None:
        return [tree], None
    if type(tree) is tuple and all(isinstance(x, Tensor) for x in tree):
        return [*tree], (None,) * len(tree)
    return [x for _, x in leaves(tree)], mapped(lambda x: None, tree)


def _together(form: Tree, values: Values) -> Tree:
    """The tree of that form with these leaves."""
    if form is None:
        return values[0]
    if type(form) is tuple and form.count(None) == len(form):
        return tuple(values)
    return rebuilt(form, values)


class _TreeCall(Rule):
    """One call: the structure of arguments and result, and what among the arguments is no tensor.
    """

    fixed: Mapping[int, Any] = MappingProxyType({})  # arguments without derivatives, by number
    _form: Tree = None  # of the others; None: each is a tensor
    _leaves: Sequence[Any] = ()  # theirs, None in place of tensors
    _tensors: Sequence[int] = ()  # which of the leaves are tensors
    form: Tree = None  # of the result

    def __init__(self, own: Any, count: int) -> None:
        self.own, self.name = own, own.name
        self._count = count  # of all arguments

    def inputs(self, args: tuple[Any, ...]) -> Values:
        """The tensors among the arguments."""
        if not self.fixed:
            for x in args:
                if not isinstance(x, Tensor):
                    break
            else:
                return args
        found, self._form = _apart(tuple([
            x for n, x in enumerate(args) if n not in self.fixed]))
        self._tensors = [k for k, x in enumerate(found) if isinstance(x, Tensor)]
        self._leaves = [None if isinstance(x, Tensor) else x for x in found]
        return [found[k] for k in self._tensors]

    def _trees(self, inputs: Values, constants: bool = True) -> tuple[Tree, ...]:
        """The arguments that have derivatives, with these tensors; without constants None there."""
        if self._form is None:
            return tuple(inputs)
        values = list(self._leaves) if constants else [None] * len(self._leaves)
        for k, x in zip(self._tensors, inputs, strict=True):
            values[k] = x
        trees: tuple[Tree, ...] = rebuilt(self._form, values)
        return trees

    def _arguments(self, inputs: Values) -> Sequence[Any]:
        """All arguments in their order."""
        if not self.fixed:
            return self._trees(inputs)
        rest = iter(self._trees(inputs))
        return [self.fixed[n] if n in self.fixed else next(rest) for n in range(self._count)]

    def _first(self) -> list[Any]:
        """The arguments without derivatives."""
        return [self.fixed[n] for n in sorted(self.fixed)]

    def _outputs(self, result: Tree) -> list[Any]:
        """The leaves of the result, whose form is noted."""
        found, self.form = _apart(result)
        return found

    def primal(self, inputs: Values) -> Values:
        return self._outputs(self.own.function(*self._arguments(inputs)))

    def _named(self, n: int) -> str:
        """Argument n of those with derivatives."""
        return named(self.own.function,
                     [k for k in range(self._count) if k not in self.fixed][n])

    def argument(self, i: int) -> str:
        if self._form is None:
            return self._named(i)
        paths = [path for n, tree in enumerate(self._form)
                 for path, _ in leaves(tree, self._named(n))]
        return paths[self._tensors[i]]


class _VjpCall(_TreeCall):
    """A call of a `custom_vjp`."""

    @property
    def once(self) -> bool:  # type: ignore[override]
        return self.own.once

    @property
    def repeats(self) -> bool:  # type: ignore[override]
        return not self.own.once

    def forward(self, inputs: Values, nodes: Nodes) -> Ran:
        plain = self._form is None and not self.fixed
        found = self.own.forward(*(inputs if plain else self._arguments(inputs)))
        if type(found) is not tuple or len(found) != 2:
            raise TypeError(f"the forward rule of {self.name} returned {_told(found)}; wanted a "
                            "pair (result, residuals)")
        result, residuals = found
        outputs, self.form = _apart(result)
        kept, form = _apart(residuals)
        shapes = [(y.device, y.shape, y.dtype) if differentiable(y) else None
                  for y in outputs] if len(outputs) > 1 else None
        return outputs, kept, (form, shapes), ()

    def backward(
        self, context: Any, kept: Values, grads: Values, nodes: Nodes
    ) -> Values:
        form, shapes = context
        if shapes:
            grads = [zeros(*like) if g is None and like is not None else g
                     for g, like in zip(grads, shapes, strict=True)]
        g = grads[0] if self.form is None else _together(self.form, grads)
        residuals = kept[0] if form is None else _together(form, kept)
        first = self._first() if self.fixed else ()
        found = self.own.backward(*first, residuals, g)
        count = self._count - len(self.fixed)
        if not isinstance(found, (tuple, list)) or len(found) != count:
            raise GradientError(
                f"the backward rule of {self.name} returned {_told(found)}; wanted a tuple of "
                f"{count} gradients, for {', '.join(map(self._named, range(count)))}")
        if self._form is None:
            return found
        flat: list[Any] = []
        for n, (tree, given) in enumerate(zip(self._form, found, strict=True)):
            flat += self._leaves_of(n, tree, given)
        return [flat[k] for k in self._tensors]

    def _leaves_of(self, n: int, tree: Tree, given: Tree) -> list[Any]:
        """The gradients of an argument's leaves; None stands for all of them."""
        wanted = [path for path, _ in leaves(tree)]
        if given is None:
            return [None] * len(wanted)
        found = leaves(given)
        if [path for path, _ in found] != wanted:
            has = ", ".join(path or type(x).__name__ for path, x in found)
            raise GradientError(f"the backward rule of {self.name} returned a gradient for "
                                f"{self._named(n)} with the parts {has}; wanted "
                                f"{', '.join(wanted) or 'one tensor'}")
        return [x for _, x in found]


class _JvpCall(_TreeCall):
    """A call of a `custom_jvp`."""

    def forward(self, inputs: Values, nodes: Nodes) -> Ran:
        return self._outputs(self.own.function(*self._arguments(inputs))), inputs, None, ()

    def backward(
        self, context: Any, kept: Values, grads: Values, nodes: Nodes
    ) -> Values:
        """The pullback of the rule, which is linear in the tangents: a walk of it at zeros."""
        moves: list[Any] = [None] * len(kept)
        for i, node in enumerate(nodes):
            if node is not None:
                moves[i] = lifted(_zeros_like(kept[i])).requires_grad_()
        leaves_of = [x._node for x in moves if x is not None]
        graph = is_recording(innermost()) or any(isinstance(g, Traced) for g in grads)
        with recording(), differentiating(leaves_of):
            along = self.tangent(kept, moves)[1]
        ends = [(t, g) for t, g in zip(along, grads, strict=True)
                if g is not None and t._node is not None]
        found = iter(gradients([t for t, _ in ends], leaves_of, [g for _, g in ends], graph, graph)
                     if ends else [None] * len(leaves_of))
        slopes = [None if x is None else next(found) for x in moves]
        return [_zeros_like(kept[i]) if x is None and nodes[i] is not None else x
                for i, x in enumerate(slopes)]

    def tangent(self, inputs: Values, tangents: Values) -> tuple[Values, Values]:
        moves = [_zeros_like(x) if t is None and differentiable(x) else t
                 for x, t in zip(inputs, tangents, strict=True)]
        found = self.own.rule(*self._first(), self._trees(inputs), self._trees(moves, False))
        if type(found) is not tuple or len(found) != 2:
            raise TypeError(f"the rule of {self.name} returned {_told(found)}; wanted a pair "
                            "(result, tangent)")
        outputs = self._outputs(found[0])
        places = leaves(found[0], "the tangent")
        along = leaves(found[1], "the tangent")
        if [path for path, _ in along] != [path for path, _ in places]:
            raise GradientError(f"the rule of {self.name} returned a tangent with "
                                f"{len(along)} parts for a result with {len(places)}; wanted the "
                                "structure of the result")
        return outputs, [self._checked(path, t, y) if differentiable(y) else None
                         for (path, t), y in zip(along, outputs, strict=True)]

    def _checked(self, path: str, t: Any, y: Tensor) -> Tensor:
        """A tangent of an output."""
        if not isinstance(t, Tensor):
            raise GradientError(f"the rule of {self.name} returned {type(t).__name__} as {path} of "
                                f"its result; wanted a tensor of shape {y.shape}, zeros for none")
        check_like(f"{path} that the rule of {self.name} returned,", t, y)
        return t


def _zeros_like(x: Tensor) -> Tensor:
    return zeros(x.device, x.shape, x.dtype)


def _told(found: object) -> str:
    """What a rule returned, for a message."""
    if not isinstance(found, (tuple, list)):
        return type(found).__name__
    return f"a {type(found).__name__} of {len(found)}"
