"""Functions written as text: for call paths and rules, whose cost is Python's own.

Equal texts share one code object, and tracebacks show their lines.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import WRAPPER_ASSIGNMENTS, cache
from types import CodeType, FunctionType
from typing import Any


def written(text: str, scope: dict[str, Any], function: str, name: str) -> Callable[..., Any]:
    """The `function` that the text defines over the names of `scope`, called `name`."""
    names = dict(scope)
    exec(_compiled(text), names)
    made: Callable[..., Any] = names[function]
    made.__name__ = made.__qualname__ = name
    return made


def _first(*args: Any, **params: Any) -> Any:
    return WRITE()(*args, **params)  # type: ignore[name-defined]  # noqa: F821


def written_when_called(
    function: FunctionType, write: Callable[[], tuple[str, dict[str, Any]]]
) -> FunctionType:
    """A function in the place of another, which it wraps; its first call writes its text.

    Texts are compiled at import no more than ops' calls are: each takes some 70 us.

    Args:
        function: what the text calls, as `function`.
        write: the text, of a function of the same name, and its scope.
    """
    scope: dict[str, Any] = {"__name__": __name__}
    call = FunctionType(_first.__code__, scope, function.__name__)
    for name in WRAPPER_ASSIGNMENTS:
        setattr(call, name, getattr(function, name))
    call.__wrapped__ = function  # type: ignore[attr-defined]

    def write_once() -> FunctionType:
        text, names = write()
        made = written(text, names, function.__name__, function.__name__)
        scope.update(made.__globals__)
        # In this order, so that another thread's call finds what it needs: `_first` has no defaults
        call.__defaults__, call.__kwdefaults__ = made.__defaults__, made.__kwdefaults__
        call.__code__ = made.__code__
        return call

    scope["WRITE"] = write_once
    return call


def is_written(function: FunctionType) -> bool:
    """Whether it stands in the place of another."""
    return "WRITE" in function.__globals__


@cache
def _compiled(text: str) -> CodeType:
    name = f"{__file__} (text {_compiled.cache_info().currsize})"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return compile(text, name, "exec")
