"""Forward-mode derivatives: a value with its tangent, through a function in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gtensor.engine.bind import Extras, bind
from gtensor.engine.errors import LevelError
from gtensor.engine.levels import Level, Traced, running, traced
from gtensor.engine.namespaces import recorded
from gtensor.engine.tensor import Tensor, check_like, is_floating, zeros

if TYPE_CHECKING:
    from gtensor.backend.typing import Params
    from gtensor.engine.op import Op


class Dual(Traced):
    """A value and its derivative in one direction; without a tangent it is a constant."""

    __slots__ = ("primal", "tangent")

    primal: Tensor
    tangent: Tensor | None

    def _parts(self) -> tuple[Tensor | None, ...]:
        return self.primal, self.tangent

    def _copied(self) -> Dual:
        return _dual(self._level, self.primal, self.tangent)

    def detach(self) -> Dual:
        return _dual(self._level, self.primal.detach(), None)


def _dual(level: Level, primal: Tensor, tangent: Tensor | None) -> Dual:
    handle: Dual = traced(Dual, level, primal.shape, primal.dtype, primal._device)
    handle.primal, handle.tangent = primal, tangent
    return handle


class _Directional(Level):
    """The level of one `jvp`."""

    name = "jvp"

    def lift(self, x: Tensor) -> Dual:
        return _dual(self, x, None)

    def run(
        self, op: Op, inputs: tuple[Any, ...], params: Params, keep: bool
    ) -> tuple[Traced, tuple[Traced, ...]]:
        primals: list[Any] = []
        tangents: list[Tensor | None] = []
        moves = False
        for x in inputs:
            if isinstance(x, Dual) and x._level is self:
                primals.append(x.primal)
                tangents.append(x.tangent)
                moves = moves or x.tangent is not None
            else:
                primals.append(x)
                tangents.append(None)
        if moves and op.tangent is None and op.composed is not None:
            composed: Any = op.composed(*inputs, **params)
            return composed, ()
        store = Extras() if keep and op.extra_names else None
        out = bind(op, tuple(primals), params, store) if store else op.call(*primals, **params)
        # rules that derive by an extra result compute it anew, so it is a constant here
        extras = tuple(_dual(self, e, None) for e in store.extras) if store else ()
        if not moves or out._array.dtype.kind not in "fVc":
            return _dual(self, out, None), extras
        if op.tangent is None:
            raise LevelError(f"{op.name} has no tangent rule, which jvp() needs; detach() its "
                             "input to treat it as a constant")
        rule: Any = op.tangent  # typed for arrays, which handles stand for
        return _dual(self, out, rule(recorded, primals, tangents, out, params)), extras


def jvp(
    function: Callable[..., Tensor], primals: Sequence[Tensor], tangents: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """function(*primals), and its derivative in the direction of the tangents (forward mode).

    The function runs once. It nests with itself, `vmap` and `grad`: grad of a jvp, or a jvp of
    `grad(f)`, which is a Hessian-vector product. Values within the function have shape and dtype
    but no memory: `.numpy()`, `.item()` and in-place writes raise LevelError.

    Args:
        function: takes one tensor per primal and returns a tensor.
        primals: the arguments.
        tangents: per primal, a tensor of its shape, dtype and device.

    Raises ValueError or TypeError for tangents that do not fit their primals, TypeError if the
    function returns something else than a tensor, LevelError for an op without a tangent rule.

    Source: `torch.func.jvp`; Griewank and Walther, "Evaluating Derivatives", 2008, chapter 3.
    """
    _check(primals, tangents)
    with running(_Directional()) as level:
        out = function(*(_dual(level, x, t) for x, t in zip(primals, tangents, strict=True)))
        if not isinstance(out, Tensor):
            raise TypeError(f"the function given to jvp() returned {type(out).__name__}; wanted a "
                            "Tensor")
        out._current_node("jvp()")  # refuses a handle that left another transform
        value, tangent = (out.primal, out.tangent) if isinstance(out, Dual) and level.owns(
            out) else (out, None)
    if tangent is None:
        tangent = zeros(value._device, value.shape, value.dtype)
    return value, tangent


def _check(primals: Sequence[Tensor], tangents: Sequence[Tensor]) -> None:
    """Raise unless there is one fitting tangent per primal."""
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise TypeError(f"jvp() was given {name} of type {type(given).__name__}; wanted a "
                            "tuple of Tensors")
        for x in given:
            if not isinstance(x, Tensor):
                raise TypeError(f"jvp() was given {type(x).__name__} among its {name}; wanted "
                                "Tensors (gt.asarray makes one)")
            x._current_node("jvp()")
    if len(primals) != len(tangents):
        raise ValueError(f"jvp() was given {len(primals)} primals and {len(tangents)} tangents; "
                         "wanted one tangent per primal")
    for x, t in zip(primals, tangents, strict=True):
        if not is_floating(x.dtype) and x.dtype.kind != "c":
            raise TypeError(f"jvp() was given a primal of dtype {x.dtype}; wanted a floating-point "
                            "or complex one")
        check_like("a tangent", t, x)
