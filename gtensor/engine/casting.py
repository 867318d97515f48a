"""Mixed precision: under `gt.autocast` an op with a policy runs on casts of its inputs.

The casts are ops and are recorded, so a gradient arrives in the dtype of what was cast. Rules,
batch rules and compositions of an op run without further casts: its inputs decide their dtypes.

Source: Micikevicius et al., "Mixed precision training", 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from gtensor.backend import device_of
from gtensor.engine.bind import FLOAT32, SCALARS, as_numpy
from gtensor.engine.context import grad_enabled, no_grad, set_casts
from gtensor.engine.levels import Traced
from gtensor.engine.namespaces import recorded
from gtensor.engine.op import registry
from gtensor.engine.tape import Guards, Leaf, new_record, overwritten, replayed
from gtensor.engine.tensor import Tensor, wrap

if TYPE_CHECKING:
    from gtensor.backend.typing import Params
    from gtensor.engine.op import Op

_CAST = {FLOAT32, np.dtype("float16"), np.dtype("bfloat16")}  # float64 is left as it is


class Casts:
    """The casts of a block: the lower dtype, and the casts of leaves while the block runs."""

    __slots__ = ("_leaves", "dtype")

    def __init__(self, dtype: np.dtype, cached: bool, around: Casts | None = None) -> None:
        self.dtype = dtype
        self._leaves: WeakKeyDictionary[Leaf, _LeafCast] | None = None
        if cached:
            self._leaves = around._leaves if around is not None else None
            if self._leaves is None:
                self._leaves = WeakKeyDictionary()

    def apart(self) -> Casts:
        """The same without a cast yet, for a block whose casts are its own."""
        return Casts(self.dtype, self._leaves is not None)

    def run(self, op: Op, inputs: tuple[Any, ...], params: Params) -> Tensor:
        """Run an op that has a policy."""
        set_casts(None)
        try:
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
        if (dtype == FLOAT32 or self._leaves is None or type(x._node) is not Leaf
                or isinstance(x, Traced)):
            return recorded.astype(x, dtype=dtype)
        found = self._leaves.get(x._node)
        if found is None or not found.serves(x, dtype):
            found = self._leaves[x._node] = _LeafCast(x, dtype)
        return found.of(x)

    def unites(self, dtypes: Sequence[np.dtype]) -> bool:
        """Whether a policy makes one floating dtype of them."""
        return all(dtype in _CAST for dtype in dtypes)


class _LeafCast:
    """The cast of a leaf, until the leaf's memory is written, or may be by other code."""

    __slots__ = ("exports", "guards", "params", "result")

    def __init__(self, x: Tensor, dtype: np.dtype) -> None:
        self.params: Params = {"dtype": dtype}
        storage = x._own_storage()
        exports = storage.exports  # before `outside`, as `Storage.leave` wants, and the values
        self.exports = -1 if storage.outside else exports
        with no_grad():
            self.result = recorded.astype(x, **self.params)
        self.guards: Guards = ((storage, x._version, 0),)
        if x._device.graphs:
            self.guards += replayed(x._array, x._device)

    def serves(self, x: Tensor, dtype: np.dtype) -> bool:
        """Whether it is the cast of x still."""
        storage, version, _ = self.guards[0]
        return (self.result.dtype == dtype and storage is x._storage and version == x._version
                and storage.exports == self.exports and not overwritten(self.guards))

    def of(self, x: Tensor) -> Tensor:
        """The cast, with a record of its own: walks that share nothing else may both pass."""
        made = self.result.detach()
        if grad_enabled():
            op = registry["astype"]
            made._node = new_record(op, (x._node,), 1, *op.nothing_saved, self.params, made._array,
                                    made._device)
        return made
