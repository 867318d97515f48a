"""Batch rules of indexing: from the key of one example follows one that selects in each of them.

Where the index arrays are shared, the batch axis is a whole one before the key. Where they differ,
the numbers of the examples index it, broadcast with the arrays. NumPy then puts the axes of the
index arrays elsewhere than for one example, so that the selection's axes are moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.handle.errors import SizeError
from gtensor.ops.arrange.index_keys import ARRAY, Key, Selection, filled
from gtensor.ops.define.batching import batch_size, numbers, spread

if TYPE_CHECKING:
    from gtensor.backend.typing import Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.ops.define.batching import Inputs, Mapped

_FULL = slice(None)


class _Examples:
    """How to index all examples of an array of `shape`, each by its part of the index arrays.

    key      the key for all of them
    indices  its index arrays
    order    of its selection's axes: that of the examples, then those of one example's selection
    lead     the number of axes that the index arrays have together, in one example
    behind   the number of the selection's axes behind those
    """

    def __init__(
        self, ns: Namespace, key: Key, shape: tuple[int, ...], indices: Inputs, mapped: Mapped,
        size: int, whole: bool = True,
    ) -> None:
        """Of `size` examples; not `whole`: the indexed array is shared, without a batch axis."""
        if any(m and i.dtype.kind == "b" for i, m in zip(indices, mapped, strict=True)):
            raise SizeError("a boolean index that differs between the examples of vmap() selects "
                            "as many elements of each as its values say; wanted where(), or "
                            "integers")
        one = Selection((_FULL, *filled(key, tuple(map(_stand_in, indices, mapped)))), (1, *shape))
        self.lead = lead = len(one.lead)
        apart = bool(indices) and one.place == 0  # arrays on both sides of a slice: axes come first
        place = one.place - 1 if indices and not apart else 0
        rest = len(one.shape) - 1 - lead
        self.behind = rest - place
        self.key, self.indices = (_FULL, *key), list(indices)
        if not any(mapped):
            self.order = [lead, *range(lead), *range(lead + 1, lead + 1 + rest)] if apart else [
                *range(1 + lead + rest)]
            return
        self.indices = [
            ns.reshape(i, shape=(size, *(1,) * (lead + 1 - i.ndim), *i.shape[1:])) if m else i
            for i, m in zip(indices, mapped, strict=True)]
        if whole:
            self.key = (ARRAY, *key)
            self.indices.insert(0, numbers(indices[0], size, lead))
            self.order = [0, *range(1 + lead, 1 + lead + place), *range(1, 1 + lead),
                          *range(1 + lead + place, 1 + lead + rest)]
        else:
            self.key = key
            self.order = [place, *range(place), *range(place + 1, 1 + lead + rest)]

    def ordered(self, ns: Namespace, selection: Any) -> Any:
        """The selection with the axes of the examples first."""
        return _permuted(ns, selection, self.order)

    def back(self, ns: Namespace, values: Any) -> Any:
        """Values in `order`, as the key selects them."""
        return _permuted(ns, values, [self.order.index(i) for i in range(len(self.order))])


def _stand_in(index: Any, mapped: bool) -> np.ndarray:
    """An index array of the shape of one example's: the shape of what it selects tells enough."""
    shape = tuple(index.shape[mapped:])
    if index.dtype.kind != "b":
        return np.broadcast_to(np.zeros((), np.int64), shape)
    mask = np.zeros(shape, np.bool_)
    mask.reshape(-1)[:1] = True
    return mask


def _permuted(ns: Namespace, x: Any, order: list[int]) -> Any:
    if order == [*range(len(order))]:
        return x
    return ns.permute_dims(x, axes=tuple([i - len(order) for i in order]))


def gather_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    x, *indices = inputs
    each = _Examples(ns, params["key"], x.shape[mapped[0]:], indices, mapped[1:],
                     batch_size(inputs, mapped), mapped[0])
    return each.ordered(ns, run(x, *each.indices, key=each.key))


def scatter_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    (g, *indices), size, shape = inputs, batch_size(inputs, mapped), params["shape"]
    g = spread(ns, g, mapped[0], size)
    each = _Examples(ns, params["key"], shape, indices, mapped[1:], size)
    return run(each.back(ns, g), *each.indices, key=each.key, shape=(size, *shape))


def set_batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    (x, value, *indices), size = inputs, batch_size(inputs, mapped)
    x = spread(ns, x, mapped[0], size)
    each = _Examples(ns, params["key"], x.shape[1:], indices, mapped[2:], size)
    if getattr(value, "ndim", 0):
        first, own = (size, value.shape[1:]) if mapped[1] else (1, value.shape)
        ones = (1,) * (len(each.order) - 1 - len(own))
        value = each.back(ns, ns.reshape(value, shape=(first, *ones, *own)))
    return run(x, value, *each.indices, key=each.key)


def last_batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    size = batch_size(inputs, mapped)
    each = _Examples(ns, params["key"], params["shape"], inputs, mapped, size)
    last = run(*each.indices, key=each.key, shape=(size, *params["shape"]))
    return ns.reshape(last, shape=(*last.shape[:1 + each.lead], *(1,) * each.behind))
