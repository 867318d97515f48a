"""The dotted path of the running module, kept only while there are listeners."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gtensor.system.bus import ModuleEvent, around, bus, here

if TYPE_CHECKING:
    from gtensor.nn.module import Module


R = TypeVar("R")


class Named(Protocol):
    """A module, as far as its path needs it."""

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """It and all below, with their dotted names."""


class _Outermost(threading.local):
    """The paths of all modules in the outermost running module."""

    paths: dict[int, str] | None = None


_outermost = _Outermost()


def run(module: Named, call: Callable[..., R], *args: Any) -> R:
    """`call(*args)`, the call of `module`: "Net.layer1.conv" in that of a Net, "Linear" alone.

    A module that is not a part of its caller is named by its class after the caller's path.
    """
    before, paths = here.module, _outermost.paths
    outermost = paths is None
    try:
        if paths is None:
            paths = _outermost.paths = paths_in(module)
        here.module = path = paths.get(id(module)) or f"{before}.{type(module).__name__}"
        told = bus.modules
        if not told:
            return call(*args)
        with around(told, ModuleEvent(path, path)):
            return call(*args)
    finally:
        here.module = before
        if outermost:
            _outermost.paths = None


def paths_in(root: Named) -> dict[int, str]:
    """The paths of a module and all its submodules, from its class on, by `id`."""
    name = type(root).__name__
    return {id(module): f"{name}.{path}" if path else name for path, module in root.named_modules()}
