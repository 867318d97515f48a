"""Batches from items: tensors with a new first axis, through tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gtensor.backend import Device, get_default_dtype, host_array
from gtensor.creation.new_tensors import asarray, empty
from gtensor.engine.handle.context import no_grad
from gtensor.engine.handle.tensor import Tensor


def default_collate(items: Sequence[Any]) -> Any:
    """One batch of equally built items.

    Arrays, tensors and numbers become a tensor with the items along a new first axis (Python floats
    float32, integers int64); tuples, lists and dicts are batched part by part; text stays a list.

    Python floats have the default dtype, where PyTorch makes float64.

    Raises ValueError or TypeError, which names the item that differs from the first.
    """
    if len(items) == 0:
        raise ValueError("no items given to batch; wanted at least one")
    first = items[0]
    if isinstance(first, Mapping):
        _alike([sorted(item) for item in items], "keys")
        return {key: default_collate([item[key] for item in items]) for key in first}
    if isinstance(first, (tuple, list)):
        _alike([len(item) for item in items], "length")
        parts = [default_collate(column) for column in zip(*items, strict=True)]
        if hasattr(first, "_fields"):  # a named tuple
            return type(first)(*parts)
        return type(first)(parts)
    if isinstance(first, (str, bytes)):
        return list(items)
    if isinstance(first, Tensor):
        for item in items:
            item._refuse_cut("a batch")
        with no_grad():
            return _stacked([item.detach().to("cpu")._array for item in items])
    try:
        arrays = [host_array(item, "a batch") for item in items]
    except TypeError as error:
        raise TypeError(f"{error}; text, or tuples, lists and dicts of them (or give "
                        "collate_fn)") from None
    return _stacked(arrays, get_default_dtype() if type(first) is float else None)


def _stacked(arrays: list[np.ndarray], dtype: np.dtype | None = None) -> Tensor:
    _alike([array.shape for array in arrays], "shape")
    kind = dtype or np.result_type(*{array.dtype for array in arrays})
    batch = empty((len(arrays), *arrays[0].shape), kind, "cpu")
    np.stack(arrays, out=batch._array, casting="same_kind")
    return batch


def _alike(found: list[Any], what: str) -> None:
    for number, value in enumerate(found):
        if value != found[0]:
            raise ValueError(f"item {number} of a batch has {what} {value}, and item 0 {found[0]}; "
                             "wanted the same (or give collate_fn)")


def to_device(batch: object, device: Device) -> Any:
    """The batch with its arrays as tensors on the device; other values are unchanged.

    Only this function copies batches to a GPU.
    """
    if isinstance(batch, Tensor):
        if batch.device is device:
            return batch
        with no_grad():
            return batch.to(device)
    if isinstance(batch, np.ndarray):
        return asarray(batch, device=device)
    if isinstance(batch, Mapping):
        return {key: to_device(part, device) for key, part in batch.items()}
    if isinstance(batch, (tuple, list)):
        parts = [to_device(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def emptied(batch: object) -> Any:
    """The batch without its items. Raises TypeError for values that have no first axis."""
    if isinstance(batch, Mapping):
        return {key: emptied(part) for key, part in batch.items()}
    if isinstance(batch, tuple):
        parts = [emptied(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, list) and not all(isinstance(part, (str, bytes)) for part in batch):
        return [emptied(part) for part in batch]
    if isinstance(batch, (list, np.ndarray, Tensor)):
        return batch[:0]
    raise TypeError(f"a batch with a {type(batch).__name__} has a part without items on this rank; "
                    "wanted tensors, arrays, and tuples, lists and dicts of them")
