"""The dotted path of the running module, kept only while there are listeners."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from gtensor.system.bus import ModuleEvent, around, bus, here

R = TypeVar("R")


class WithModules(Protocol):
    """A module, as far as paths need it."""

    @property
    def _modules(self) -> Mapping[str, Any]: ...


class _Outermost(threading.local):
    """The paths of all modules in the outermost running module."""

    paths: dict[int, str] | None = None


_outermost = _Outermost()


def run(module: WithModules, call: Callable[..., R], *args: Any) -> R:
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


def paths_in(root: WithModules) -> dict[int, str]:
    """The paths of a module and all its submodules, from its class on, by `id`; the first of each.

    As `named_modules` names them, in a fifth of its time: a listener needs them at every call.
    """
    found: dict[int, str] = {}

    def add(module: WithModules, path: str) -> None:
        if id(module) not in found:
            found[id(module)] = path
            for name, inner in module._modules.items():
                if inner is not None:
                    add(inner, f"{path}.{name}")

    add(root, type(root).__name__)
    return found
