"""Mixed precision: under `gt.autocast` an op with a policy runs on casts of its inputs.

A gradient arrives in the dtype of what was cast. Casts to the lower dtype are not recorded: their
results are handles of the node of what was cast, so a product can write its gradient as float32,
unrounded, and any other gradient is cast when it arrives. Rules, batch rules and compositions of an
op run without further casts: its inputs decide their dtypes.

Source: Micikevicius et al., "Mixed precision training", 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from gtensor.backend import device_of
from gtensor.engine.handle.context import grad_enabled, no_grad, set_casts
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.node import Leaf
from gtensor.engine.handle.saved import Guards, overwritten, replayed
from gtensor.engine.handle.storage import FRESH_ELSEWHERE
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.run.bind import FLOAT32, SCALARS, as_numpy
from gtensor.engine.run.grouped_writes import Write, write_all
from gtensor.engine.tape.execute import run_noted
from gtensor.engine.tape.levels import Traced

if TYPE_CHECKING:
    from gtensor.backend.typing import Params
    from gtensor.engine.tape.op import Op

_CAST = {FLOAT32, np.dtype("float16"), np.dtype("bfloat16")}  # float64 is left as it is


class Casts:
    """The casts of a block: the lower dtype, and the casts of leaves while the block runs.

    `op` writes the casts of several arrays: one launch on a GPU. Within `lasting()` new arrays lie
    in memory that no workspace counts on.
    """

    __slots__ = ("_lasting", "_leaves", "_op", "dtype")

    def __init__(
        self, dtype: np.dtype, cached: bool, op: Op,
        lasting: Callable[[], AbstractContextManager[None]], around: Casts | None = None,
    ) -> None:
        self.dtype = dtype
        self._op, self._lasting = op, lasting
        self._leaves: _LeafCasts | None = None
        if cached:
            self._leaves = around._leaves if around is not None else None
            if self._leaves is None:
                self._leaves = _LeafCasts()

    def apart(self) -> Casts:
        """The same without a cast yet, for a block whose casts are its own."""
        return Casts(self.dtype, self._leaves is not None, self._op, self._lasting)

    def run(self, op: Op, inputs: tuple[Any, ...], params: Params) -> Tensor:
        """Run an op that has a policy."""
        try:
            set_casts(None)
            if params.get("dtype") is None:  # one that the caller asked for stands
                inputs = self.cast(op.autocast, inputs)
            return op.call(*inputs, **params)
        finally:
            set_casts(self)

    def cast(self, policy: str | None, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Inputs of half types or float32 in the dtype of a policy; others as they are."""
        dtype = self.dtype if policy == "low" else FLOAT32
        return tuple([self._cast(x, dtype) for x in inputs])

    def _cast(self, x: Any, dtype: np.dtype) -> Any:
        if not isinstance(x, Tensor):
            if x is None or type(x) in SCALARS:
                return x
            if not hasattr(x, "__cuda_array_interface__"):
                array = as_numpy("autocast", x)
                return array.astype(dtype, copy=False) if array.dtype in _CAST else array
            x = wrap(x, device_of(x))
        if x.dtype == dtype or x.dtype not in _CAST:
            return x
        if dtype == FLOAT32 or isinstance(x, Traced):
            return recorded.astype(x, dtype=dtype)
        if self._leaves is None or type(x._node) is not Leaf:
            return _in_place_of(x, _cast_alone(x, dtype))
        found = self._leaves.get(x._node)
        if found is None or not found.serves(x, dtype):
            with self._lasting():
                found = self._leaves.cast(x, dtype, self._op)
        return _in_place_of(x, self._leaves.used(x, found))

    def unites(self, dtypes: Sequence[np.dtype]) -> bool:
        """Whether a policy makes one floating dtype of them."""
        return all(dtype in _CAST for dtype in dtypes)


def _cast_alone(x: Tensor, dtype: np.dtype) -> Tensor:
    """x in another dtype, without history."""
    with no_grad():
        return recorded.astype(x, dtype=dtype)


def _in_place_of(x: Tensor, made: Tensor) -> Tensor:
    """A handle without history of x's values, as one of x's node."""
    if grad_enabled():
        made._node = x._node
    return made


class _LeafCasts(WeakKeyDictionary["Leaf", "_LeafCast"]):
    """The casts of leaves within a block.

    A leaf on a GPU knows the leaves that were cast in the same block the last time: all of them are
    cast when the first one is. Those that this block then does not use are left out the next time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._used: list[ref[Tensor]] = []  # another thread may read it

    def used(self, x: Tensor, cast: _LeafCast) -> Tensor:
        """The result of x's cast."""
        if not cast.used:
            cast.used = True
            self._used.append(ref(x))
            x._node.cast_beside = self._used  # type: ignore[union-attr]  # a leaf's
        return cast.result.detach()

    def cast(self, x: Tensor, dtype: np.dtype, op: Op) -> _LeafCast:
        """Cast x, and on a GPU what was cast beside it."""
        return self._keep([x, *(self._beside(x, dtype) if x._device.type != "cpu" else ())],
                          dtype, op)

    def _beside(self, x: Tensor, dtype: np.dtype) -> list[Tensor]:
        """The leaves that were cast in the same block as x and are not in this one."""
        found = []
        beside = x._node.cast_beside  # type: ignore[union-attr]  # a leaf's
        for handle in beside or ():
            y = handle()
            if (y is None or y is x or type(y._node) is not Leaf or y._device is not x._device
                    or y.dtype == dtype or y.dtype not in _CAST
                    or y._version != y._storage.version or y._storage.outside):
                continue  # of what other code may write no cast is kept
            known = self.get(y._node)
            if known is None or not known.serves(y, dtype):
                found.append(y)
        if beside is self._used:  # the leaves were written in this block
            self._used = []
        return found

    def _keep(self, tensors: list[Tensor], dtype: np.dtype, op: Op) -> _LeafCast:
        """Cast the tensors, which are leaves; returns the cast of the first one."""
        casts = [_LeafCast(x) for x in tensors]
        if len(tensors) == 1:
            results = [_cast_alone(tensors[0], dtype)]
        else:
            results = [wrap(run_noted(op.name, x._device, x._device.empty, x.shape, dtype, op.name),
                            x._device, FRESH_ELSEWHERE) for x in tensors]
            write_all([Write(op, results, tensors, {})])
        for x, cast, result in zip(tensors, casts, results, strict=True):
            cast.result = result
            self[x._node] = cast  # type: ignore[index]  # a leaf
        return casts[0]


class _LeafCast:
    """The cast of a leaf, until the leaf's memory is written, or may be by other code."""

    __slots__ = ("exports", "guards", "result", "used")

    result: Tensor

    def __init__(self, x: Tensor) -> None:
        self.used = False
        storage = x._own_storage()
        exports = storage.exports  # before `outside`, as `Storage.leave` wants, and the values
        self.exports = -1 if storage.outside else exports
        self.guards: Guards = ((storage, x._version, 0),)
        if x._device.graphs:
            self.guards += replayed(x._array, x._device)

    def serves(self, x: Tensor, dtype: np.dtype) -> bool:
        """Whether it is the cast of x still."""
        storage, version, _ = self.guards[0]
        return (self.result.dtype == dtype and storage is x._storage and version == x._version
                and storage.exports == self.exports and not overwritten(self.guards))
