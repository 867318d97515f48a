"""Which module runs, by its dotted path; followed only while somebody records memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gtensor.backend.scopes import here


class _Outermost(threading.local):
    """Of the running module that no other module called: the paths of all modules in it."""

    paths: dict[int, str] | None = None


_outermost = _Outermost()


@contextmanager
def running(module: Any) -> Iterator[None]:
    """The block is the call of `module`: "Net.layer1.conv" in the call of a Net, "Linear" alone.

    A module that is no part of the one that called it stands behind the caller's path by its class.
    """
    before, paths = here.module, _outermost.paths
    outermost = paths is None
    try:
        if paths is None:
            paths = _outermost.paths = paths_in(module)
        here.module = paths.get(id(module)) or f"{before}.{type(module).__name__}"
        yield
    finally:
        here.module = before
        if outermost:
            _outermost.paths = None


def paths_in(root: Any) -> dict[int, str]:
    """Of a module and all in it: their paths from its class on, by `id`."""
    name = type(root).__name__
    return {id(module): f"{name}.{path}" if path else name for path, module in root.named_modules()}
