"""The operators that write in place, by the name of their op."""

from __future__ import annotations

from typing import Any

from gtensor.core import inplace
from gtensor.core.op import registry
from gtensor.core.tensor import Tensor

METHODS = ("assign",)
_RECORDS = {"pow": "power"}  # operators whose op has another name


def assign(name: str, target: Tensor, other: Any) -> Tensor:
    """target = op(target, other) in target's memory."""
    return inplace.assign(registry[_RECORDS.get(name, name)], target, other)
