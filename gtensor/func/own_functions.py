"""`gt.autograd.Function`: a derivative of one's own as a class with static methods, PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from gtensor.engine.handle.context import grad_enabled
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.tensor import Tensor, zeros
from gtensor.engine.tape.levels import Traced
from gtensor.func.own_rules import (
    Nodes,
    Ran,
    Rule,
    Values,
    apply,
    differentiable,
    named,
    unrecorded,
)

F = TypeVar("F", bound=Callable[..., Any])


class FunctionCtx:
    """What the methods of a `Function` share in one call; `forward` may set attributes.

    `needs_input_grad`: of each argument of `forward`, whether it needs a gradient. In `backward`
    only those of this walk do.
    """

    needs_input_grad: tuple[bool, ...] = ()
    _saved: tuple[Tensor | None, ...] | None = ()  # None between the methods: the record has them
    _saved_forward: tuple[Tensor | None, ...] | None = None  # by `save_for_forward`
    _constants: tuple[Tensor, ...] = ()
    _materialize = True
    _shapes: Sequence[Any] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save inputs, outputs or other tensors for `backward`, in place of attributes.

        The record keeps them under the tape's rules: a write to one since is noticed, and they are
        freed when the walk has passed. Raises TypeError for what is neither a tensor nor None.
        """
        self._saved = _tensors("save_for_backward", tensors)

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Save tensors for `jvp`. Raises TypeError for what is neither a tensor nor None."""
        self._saved_forward = _tensors("save_for_forward", tensors)

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors that were saved; they must not be written.

        Raises GradientError outside of the function's methods.
        """
        if self._saved is None:
            raise GradientError("ctx.saved_tensors was read outside of forward, backward and jvp; "
                                "wanted it there")
        return self._saved

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Give these outputs of `forward` no gradient."""
        self._constants = outputs

    def set_materialize_grads(self, value: bool) -> None:
        """Whether `backward` gets zeros for an output without a gradient (the default), or None."""
        self._materialize = bool(value)

    def mark_dirty(self, *tensors: Tensor) -> NoReturn:
        """Raise TypeError: a function writes none of its inputs."""
        raise TypeError("ctx.mark_dirty() was called, for inputs written in place; wanted a "
                        "function that returns a new tensor")


def _tensors(name: str, given: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    for x in given:
        if x is not None and not isinstance(x, Tensor):
            raise TypeError(f"ctx.{name}() was given {type(x).__name__}; wanted tensors or None, "
                            "and attributes of ctx for anything else")
    return given


class Function:
    """A function with its own derivative: a subclass with static methods, called by `apply`.

        class Exp(gt.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = gt.exp(x)
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, g):
                (y,) = ctx.saved_tensors
                return g * y

        y = Exp.apply(x)

    `forward` takes ctx and the arguments, of which only tensors that are arguments themselves have
    gradients, and returns a tensor or a tuple of them. Its ops are not recorded. `backward` takes a
    gradient for each output and returns one for each argument, of its shape and dtype, None where
    it requires none. Both are functions of tensors, so they work within `vmap` and `jvp`, and a
    gradient of a gradient differentiates `backward`: through saved inputs and outputs, while a
    derivative through another saved tensor is refused. `gt.autograd.once_differentiable` marks a
    backward that is not to be differentiated.

    `ctx` has `save_for_backward`, `saved_tensors`, `needs_input_grad`, `mark_non_differentiable`,
    `set_materialize_grads` and `save_for_forward`, and takes attributes.

    With a method `setup_context(ctx, inputs, output)`, `forward` takes the arguments alone. A
    method `jvp(ctx, *tangents)` gives forward mode, which otherwise takes the pullback of
    `backward`; tangents are zeros, or None, where an argument has none.

    Raises TypeError if the class is called itself.

    Source: `torch.autograd.Function`.
    """

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__}() was called; wanted "
                        f"{type(self).__name__}.apply(...), without an object")

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    setup_context: Callable[[Any, tuple[Any, ...], Any], None] | None = None
    jvp: Callable[..., Any] | None = None

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """What `forward` returns for the arguments, recorded with `backward` as its derivative.

        Raises TypeError for a class without `forward`.
        """
        if not hasattr(cls, "forward"):
            raise TypeError(f"{cls.__name__} has no method forward; wanted static methods forward "
                            "and backward")
        call = _FunctionCall(cls, args)
        every = len(call.places) == len(args)
        return call.result(apply(call, args if every else [args[n] for n in call.places]))


def once_differentiable(backward: F) -> F:
    """Mark a backward rule, of a `Function` or `gt.custom_vjp`: its result has no derivative.

    With `create_graph` it runs without records, and a derivative of what it returns is refused.
    """
    backward.once_differentiable = True  # type: ignore[attr-defined]
    return backward


class _FunctionCall(Rule):
    """One call of a `Function`."""

    closes = True

    def __init__(self, own: type[Function], args: tuple[Any, ...]) -> None:
        self.own, self.name = own, own.__name__
        self._count = len(args)
        self._args: Sequence[Any] = ()  # if some are no tensors: those
        self._several = False  # whether forward returned a tuple
        for x in args:
            if not isinstance(x, Tensor):
                self.places: Sequence[int] = [
                    n for n, x in enumerate(args) if isinstance(x, Tensor)]
                self._args = [None if isinstance(x, Tensor) else x for x in args]
                return
        self.places = range(len(args))

    @property
    def once(self) -> bool:  # type: ignore[override]
        return getattr(self.own.backward, "once_differentiable", False)

    def result(self, outputs: Values) -> Any:
        """What `forward` returned, with these outputs."""
        return tuple(outputs) if self._several else outputs[0]

    def _all(self, values: Values) -> Values:
        """One for each argument; None for what is no tensor."""
        if len(values) == self._count:
            return values
        found: list[Any] = [None] * self._count
        for n, x in zip(self.places, values, strict=True):
            found[n] = x
        return found

    def _run(self, ctx: FunctionCtx, inputs: Values) -> list[Any]:
        """The outputs of `forward`."""
        args: Any = inputs
        if len(inputs) < self._count:
            args = list(self._args)
            for n, x in zip(self.places, inputs, strict=True):
                args[n] = x
        if self.own.setup_context is None:
            found = self.own.forward(ctx, *args)
        else:
            found = self.own.forward(*args)
            self.own.setup_context(ctx, tuple(args), found)
        self._several = isinstance(found, (tuple, list))
        return list(found) if self._several else [found]

    def primal(self, inputs: Values) -> Values:
        return unrecorded(None, self._run, _context([None] * self._count), inputs)

    def forward(self, inputs: Values, nodes: Nodes) -> Ran:
        if not hasattr(self.own, "backward"):
            raise TypeError(f"{self.name} has no method backward, and an argument of it requires a "
                            "gradient; wanted the method, or the argument's detach()")
        ctx = _context(self._all(nodes))
        outputs = self._run(ctx, inputs)
        kept, ctx._saved = ctx._saved or (), None
        if ctx._saved_forward is not None:
            ctx._saved_forward = None
        constants: Sequence[int] = ()
        if ctx._constants:
            constants = [j for j, y in enumerate(outputs) if any(y is x for x in ctx._constants)]
            ctx._constants = ()
        if len(outputs) > 1:
            ctx._shapes = [(y.device, y.shape, y.dtype) if isinstance(y, Tensor) else None
                           for y in outputs]
        return outputs, kept, ctx, constants

    def backward(
        self, context: Any, kept: Values, grads: Values, nodes: Nodes
    ) -> Values:
        ctx: FunctionCtx = context
        if ctx._shapes and ctx._materialize:
            grads = [zeros(*like) if g is None and like is not None else g
                     for g, like in zip(grads, ctx._shapes, strict=True)]
        before = ctx.needs_input_grad
        try:
            ctx._saved, ctx.needs_input_grad = tuple(kept), _needed(self._all(nodes))
            found = self.own.backward(ctx, *grads)
        finally:
            ctx._saved, ctx.needs_input_grad = None, before
        count = self._count
        if not isinstance(found, (tuple, list)):
            found = found,
        if len(found) < count or any(x is not None for x in found[count:]):
            raise GradientError(f"the backward rule of {self.name} returned {len(found)} "
                                f"gradient{'s' * (len(found) != 1)}; wanted {count}, one for each "
                                "argument of forward")
        return found if len(self.places) == count else [found[n] for n in self.places]

    def tangent(self, inputs: Values, tangents: Values) -> tuple[Values, Values]:
        """By the method `jvp`, if there is one."""
        if self.own.jvp is None:
            return super().tangent(inputs, tangents)
        ctx = _context([None] * self._count)
        plain = not grad_enabled() or not any(
            isinstance(x, Traced) or x._node is not None for x in inputs)
        outputs = unrecorded(None, self._run, ctx, inputs)
        saved = ctx._saved_forward if ctx._saved_forward is not None else ctx._saved
        if not plain:  # the outputs have histories by `backward`
            own = apply(self, inputs)
            saved = tuple([next((z for y, z in zip(outputs, own, strict=True) if y is x), x)
                           for x in saved or ()])
            outputs = list(own)
        ctx._saved = saved
        if ctx._materialize:
            tangents = [zeros(x.device, x.shape, x.dtype) if t is None and differentiable(x) else t
                        for x, t in zip(inputs, tangents, strict=True)]
        found = self.own.jvp(ctx, *self._all(tangents))
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(found) != len(outputs):
            raise GradientError(f"jvp of {self.name} returned {len(found)} tangents; wanted "
                                f"{len(outputs)}, one for each output of forward")
        for t, y in zip(found, outputs, strict=True):
            if isinstance(t, Tensor) and isinstance(y, Tensor) and t.shape != y.shape:
                raise GradientError(f"jvp of {self.name} returned a tangent of shape {t.shape} for "
                                    f"an output of shape {y.shape}; wanted the same")
        return outputs, found

    def argument(self, i: int) -> str:
        return named(self.own.forward, self.places[i], self.own.setup_context is None)


def _context(nodes: Values) -> FunctionCtx:
    ctx = FunctionCtx()
    ctx.needs_input_grad = _needed(nodes)
    return ctx


def _needed(nodes: Values) -> tuple[bool, ...]:
    return tuple([node is not None for node in nodes])
