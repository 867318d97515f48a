"""The level of `jvp`: a value with its tangent, through a function in one run."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.errors import LevelError
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.bind import Extras, bind
from gtensor.engine.tape.levels import Level, Traced, traced

if TYPE_CHECKING:
    from gtensor.backend.typing import Params
    from gtensor.engine.tape.op import Op


class Dual(Traced):
    """A value and its derivative in one direction; without a tangent it is a constant."""

    __slots__ = ("primal", "tangent")

    primal: Tensor
    tangent: Tensor | None

    def _parts(self) -> tuple[Tensor | None, ...]:
        return self.primal, self.tangent

    def _copied(self) -> Dual:
        return _dual(self._level, self.primal, self.tangent)

    def _sharing(self) -> Dual:
        return _dual(self._level, copy(self.primal), self.tangent)

    def detach(self) -> Dual:
        return _dual(self._level, self.primal.detach(), None)


def _dual(level: Level, primal: Tensor, tangent: Tensor | None) -> Dual:
    handle: Dual = traced(Dual, level, primal.shape, primal.dtype, primal._device)
    handle.primal, handle.tangent = primal, tangent
    return handle


class Directional(Level):
    """The level of one `jvp`."""

    name = "jvp"

    def lift(self, x: Tensor) -> Dual:
        return _dual(self, x, None)

    def handle(self, primal: Tensor, tangent: Tensor | None) -> Dual:
        """A value and its tangent as a handle."""
        return _dual(self, primal, tangent)

    def start(self, primal: Tensor, tangent: Tensor | None) -> Dual:
        """An argument of the function; without a tangent it is a constant."""
        return _dual(self, copy(primal), tangent)  # the caller has the memory, too

    def end(self, result: Tensor) -> tuple[Tensor, Tensor | None]:
        """Value and tangent of a result; without a tangent if that is zero."""
        result._current_node("jvp()")  # refuses a handle that left another transform
        if isinstance(result, Dual) and self.owns(result):
            return result.primal, result.tangent
        return result, None

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
