"""The walk for N gradients at once: each is a stack of N along a first axis, in one buffer.

Backward rules run unedited. A rule sees a stack with the shape of one gradient, and its namespace
runs each op by the op's batch rule, on raw arrays: saved arrays are read once for all N, and
gradients are moved, lent and accumulated as in any other walk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gtensor.engine.handle.errors import GradientError, LevelError
from gtensor.engine.handle.namespaces import raw
from gtensor.engine.walk.slots import RawStep, Slot

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path
    from gtensor.engine.handle.node import Node
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.engine.tape.record import Record


class Stack:
    """An array (N, *shape) of which a rule sees one gradient's shape."""

    __slots__ = ("array", "dtype", "shape")
    __array_ufunc__ = None  # NumPy's functions refuse it

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape = array.shape[1:]
        self.dtype = array.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getattr__(self, name: str) -> NoReturn:
        raise LevelError(f"{name!r} of a gradient was asked for, which stands for several; a "
                         "backward rule may ask it for shape, dtype and ndim")


class StackedNamespace:
    """The ops of a raw namespace on stacks, each made at its first use."""

    def __init__(self, ns: Any) -> None:
        self._raw = ns

    def __getattr__(self, name: str) -> Path:
        from gtensor.engine.tape.op import registry

        path, op = getattr(self._raw, name), registry.get(name)
        rule = path.batch if op is None else op.batch  # `ns.formula` is no op of its own
        made = _on_stacks(self._raw, name, path, rule)
        if op is not None and len(op.input_names) == 2 and getattr(rule, "aligns", False):
            made = _of_pair(made, path)
        setattr(self, name, made)
        return made


_NAMESPACES = {device: StackedNamespace(ns) for device, ns in raw.items()}


def _on_stacks(ns: Any, name: str, path: Path, rule: Any) -> Path:
    """An op's path for stacks and arrays, which all N share, by its batch rule.

    An array as `out` is memory that a rule made from what all N share: too small for a stack.
    """
    writes = getattr(rule, "writes", False)  # whether it hands `out` and `beta` on to the path

    def call(*inputs: Any, out: Any = None, beta: float = 0, **params: Any) -> Any:
        mapped = tuple([type(x) is Stack for x in inputs])
        if True not in mapped:
            if type(out) is Stack:
                return _into(ns, out, path(*inputs, **params), beta)
            return path(*inputs, **params, **_buffer(out, beta))
        if rule is None:
            raise LevelError(f"{name} has no batch rule, which a walk for several gradients "
                             "needs; call backward() for each of them")
        arrays = tuple([x.array if m else x for x, m in zip(inputs, mapped, strict=True)])
        if writes and type(out) is Stack:
            rule(ns, path, arrays, mapped, {**params, **_buffer(out.array, beta)})
            return out
        made = rule(ns, path, arrays, mapped, params)
        if type(made) is not tuple:
            return _into(ns, out, made, beta) if type(out) is Stack else Stack(made)
        first, *rest = [None if a is None else Stack(a) for a in made]
        return (first if type(out) is not Stack else _into(ns, out, made[0], beta), *rest)

    return call


def _of_pair(call: Path, path: Path) -> Path:
    """`call` of an op that aligns two inputs at their last axes, where it has nothing to do."""

    def of_pair(x1: Any, x2: Any, out: Any = None, **params: Any) -> Any:
        if type(x1) is Stack and not params:
            axes = len(x1.shape)
            a2 = None
            if type(x2) is Stack:
                if len(x2.shape) == axes:
                    a2 = x2.array
            elif getattr(x2, "ndim", 0) <= axes:
                a2 = x2
            if a2 is not None:
                if type(out) is not Stack:
                    return Stack(path(x1.array, a2))
                path(x1.array, a2, out=out.array)
                return out
        return call(x1, x2, out=out, **params)

    return of_pair


def _buffer(out: Array | None, beta: float) -> dict[str, Any]:
    """The parameters of a path that say what to write; not every path takes a beta."""
    return {} if out is None else {"out": out, "beta": beta} if beta else {"out": out}


def _into(ns: Any, out: Stack, made: Array, beta: float) -> Stack:
    """out = made + beta * out, for beta 0 or 1."""
    if beta:
        ns.add(out.array, made, out=out.array)
    else:
        ns.clone(made, out=out.array)
    return out


class StackedStep(RawStep):
    """As `RawStep`, with stacks in place of arrays."""

    namespaces = _NAMESPACES
    count = 0  # N

    def seed(self, node: Node, grad: Tensor) -> None:
        """Put the caller's gradients into a root's slot; they are never written."""
        self.count = grad.shape[0]
        super().seed(node, grad)

    def hooked(self, node: Node, slot: Slot) -> Slot:
        """Refuse hooks: they take one gradient."""
        raise GradientError("a walk for several gradients came to a tensor with a hook, which "
                            "takes one; remove the hook, or call backward() for each gradient")

    def enter(self, record: Record, slot: Slot | None) -> Any:
        """Make a record with its gradients current."""
        g = super().enter(record, slot)
        return None if g is None else Stack(g)

    def give(self, i: int, a: Any) -> None:
        """Move the rule's hold on a's storage to input i."""
        node = self.parents[i]
        if node is not None and type(a) is Stack and a.dtype is node.dtype and (
                a.shape == node.shape):
            super().give(i, a.array)
        else:
            super().give(i, self._whole(i, a))

    def lend(self, i: int, a: Any) -> None:
        """Give input i another hold on g, or on an array that is kept elsewhere."""
        array = self._whole(i, a)
        if type(a) is Stack and (array is a.array or self._mine(array)):
            super().lend(i, array)
        else:
            super().give(i, array)  # it is new

    def into(
        self, i: int, wide: bool = False, dtype: np.dtype | None = None
    ) -> tuple[Any, float]:
        """(buffer, 1.0) to accumulate into, or (None, 0.0) when input i has no gradients yet."""
        buffer, beta = super().into(i, dtype=dtype)
        return (None if buffer is None else Stack(buffer)), beta

    def reuse(self, g: Any) -> Any:
        """g, if this walk is its last holder and may overwrite it; else None."""
        return None if super().reuse(g.array) is None else g

    def take(self, a: Any) -> None:
        """None: a saved array is one, the gradients are several."""
        return None

    def _whole(self, i: int, a: Any) -> Array:
        """All gradients of input i, (N, *its shape), of its dtype."""
        node = self.parents[i]
        if node is None:
            self._refuse_unneeded(i)
        if a.shape != node.shape or a.dtype != node.dtype:
            a = super()._fit(node, a)
        if type(a) is Stack:
            return a.array
        shape = (self.count, *node.shape)  # the same for all
        ns = self.arrays[node.device.type]
        return ns.clone(ns.broadcast_to(a, shape=shape))

    def _fit(self, node: Node, a: Any) -> Any:
        return a  # by `_whole`
