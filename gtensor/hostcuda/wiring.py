"""How libhostcuda reaches what is written in Python: the compiler and the libraries."""

from __future__ import annotations

from typing import Any


def connect(native: Any) -> list[Any]:
    """Register the parts; what is returned has to be kept for as long as the process runs."""
    return []
