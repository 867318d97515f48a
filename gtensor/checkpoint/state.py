"""State as JSON and tensors: packs a `state_dict` and unpacks it.

Numbers, texts, lists, tuples and dicts become JSON, exactly: integers of any size, floats to the
last bit, infinities, keys of other types. A tensor or an array becomes {"$tensor": name} or
{"$array": name}, and is stored once under that name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import refuse_mask
from gtensor.engine.handle.tensor import Tensor

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

MARK = "$"  # begins the key of a packed value; a state's own dict with such a key becomes $items


class Packer:
    """Collects tensors by name while states are packed."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor | Array] = {}
        self._names: dict[object, str] = {}

    def pack(self, value: object, path: str) -> Any:
        """`value` as JSON; its tensors are kept under names that start with `path`.

        Raises TypeError, which names a value that is neither plain nor a tensor.
        """
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, (int, np.integer)):
            return int(value)
        if isinstance(value, (float, np.floating)):
            return float(value) if math.isfinite(value) else {"$float": str(float(value))}
        if isinstance(value, np.bool_):
            return bool(value)
        if isinstance(value, Tensor):
            return {"$tensor": self._name(value, path)}
        if isinstance(value, np.ndarray):
            refuse_mask(value, path)
            return {"$array": self._name(value, path)}
        if isinstance(value, Mapping):
            return self._pack_mapping(value, path)
        if isinstance(value, (list, tuple)):
            packed = [self.pack(item, f"{path}.{number}") for number, item in enumerate(value)]
            return packed if isinstance(value, list) else {"$tuple": packed}
        raise TypeError(f"{path} is {type(value).__name__}; wanted numbers, texts, tensors, and "
                        "lists, tuples and dicts of them")

    def _pack_mapping(self, value: Mapping[Any, object], path: str) -> Any:
        if all(isinstance(key, str) and not key.startswith(MARK) for key in value):
            return {key: self.pack(item, f"{path}.{key}") for key, item in value.items()}
        return {"$items": [[self.pack(key, f"{path}.keys"), self.pack(item, f"{path}.{key}")]
                           for key, item in value.items()]}

    def _name(self, value: Tensor | Array, path: str) -> str:
        key = memory_of(value)
        if key is not None and key in self._names:
            return self._names[key]
        name, number = path, 1
        while name in self.tensors:  # {"a.b": x, "a": {"b": y}}
            number += 1
            name = f"{path}~{number}"
        self.tensors[name] = value
        if key is not None:
            self._names[key] = name
        return name


def unpack(packed: object, tensor_of: Callable[[str], Tensor]) -> Any:
    """The state that `Packer.pack` packed. Raises ValueError if `pack` cannot have made it."""
    if isinstance(packed, list):
        return [unpack(item, tensor_of) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if not any(key.startswith(MARK) for key in packed):
        return {key: unpack(item, tensor_of) for key, item in packed.items()}
    kind, content = next(iter(packed.items()))
    if kind == "$tensor":
        return tensor_of(content)
    if kind == "$array":
        return tensor_of(content).numpy()
    if kind == "$float":
        return float(content)
    if kind == "$tuple":
        return tuple(unpack(item, tensor_of) for item in content)
    if kind == "$items":
        return {unpack(key, tensor_of): unpack(item, tensor_of) for key, item in content}
    raise ValueError(f"{kind!r} is no kind of value")


def names_in(packed: object) -> Iterator[str]:
    """The names of all tensors of a packed state. Raises ValueError for what is no name."""
    if isinstance(packed, list):
        for item in packed:
            yield from names_in(item)
    elif isinstance(packed, dict):
        for key, item in packed.items():
            if key in ("$tensor", "$array"):
                if not isinstance(item, str):
                    raise ValueError(f"the name {item!r} of a tensor")
                yield item
            else:
                yield from names_in(item)


def to_text(packed: object) -> str:
    """JSON, strictly."""
    return json.dumps(packed, allow_nan=False, separators=(",", ":"))


def memory_of(value: Tensor | Array) -> tuple[object, ...] | None:
    """A key that is equal for handles on the same elements; None if there are no elements."""
    array: Any = value._array if isinstance(value, Tensor) else value
    if array.size == 0:
        return None
    on_host = isinstance(array, np.ndarray)
    start = array.ctypes.data if on_host else array.data.ptr
    where = "cpu" if on_host else array.device.id
    return where, start, array.shape, array.strides, array.dtype
