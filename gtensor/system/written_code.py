"""Functions written as text: for call paths and rules, whose cost is Python's own.

Equal texts share one code object, and tracebacks show their lines.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any


def written(text: str, scope: dict[str, Any], function: str, name: str) -> Callable[..., Any]:
    """The `function` that the text defines over the names of `scope`, called `name`."""
    names = dict(scope)
    exec(_compiled(text), names)
    made: Callable[..., Any] = names[function]
    made.__name__ = made.__qualname__ = name
    return made


@cache
def _compiled(text: str) -> CodeType:
    name = f"{__file__} (text {_compiled.cache_info().currsize})"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return compile(text, name, "exec")
