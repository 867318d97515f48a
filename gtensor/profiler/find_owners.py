"""The memory that live modules, optimizers, averages and workspaces hold, for recordings.

A recording of memory sees blocks; only the objects that hold them tell their use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from gtensor.backend.layouts import address
from gtensor.memory.trace.owners import Found, find_with
from gtensor.memory.workspace import Workspace
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter
from gtensor.nn.running import paths_in
from gtensor.optim.averaging import EMA
from gtensor.optim.optimizer import Optimizer


def held(objects: Sequence[object]) -> Iterator[Found]:
    """Where parameters and buffers, their gradients, the state of optimizers, averaged weights and
    the buffers of workspaces lie.

    Objects whose `__init__` has raised, or still runs, are left out.
    """
    objects = [thing for thing in objects if _is_made(thing)]
    places = _places([thing for thing in objects if isinstance(thing, Module)])
    for thing in objects:
        if isinstance(thing, Parameter):
            module, name = places.get(id(thing), ("", ""))
            yield Found(address(thing._array), "parameters", module, name)
            if thing.grad is not None:
                yield Found(address(thing.grad._array), "gradients", module)
        elif isinstance(thing, Module):
            for buffer in thing.buffers(recurse=False):
                module, name = places.get(id(buffer), ("", ""))
                yield Found(address(buffer._array), "parameters", module, name)
        elif isinstance(thing, Optimizer):
            for slot in (slot for slots in thing._slots for slot in slots):
                module, name = places.get(id(slot.parameter), ("", ""))
                for array in slot.state:
                    yield Found(address(array), "optimizer", module, name)
        elif isinstance(thing, EMA):
            weights = thing._weights()
            for name, average in thing._averages.items():
                module, name = places.get(id(weights.get(name)), ("", ""))
                yield Found(address(average._array), "optimizer", module, name)
        elif isinstance(thing, Workspace):
            for place in thing.addresses():
                yield Found(place, "workspace", "")


_LAST = {Module: "training", Optimizer: "_slots", EMA: "_averages", Workspace: "_lock",
         Parameter: "_version"}  # attributes, set when all that `held` reads are


def _is_made(thing: object) -> bool:
    """Whether it has all attributes that `held` reads."""
    return any(isinstance(thing, kind) and hasattr(thing, last) for kind, last in _LAST.items())


def _places(modules: Iterable[Module]) -> dict[int, tuple[str, str]]:
    """Of each parameter and buffer: the module's path from the outermost class on, its name."""
    modules = list(modules)
    inner = {id(child) for module in modules for child in module.children()}
    found: dict[int, tuple[str, str]] = {}
    for root in modules:
        if id(root) in inner:
            continue
        with suppress(KeyError, AttributeError):  # a module in it is half made
            paths = paths_in(root)
            for module in root.modules():
                for name, tensor in (*module.named_parameters(recurse=False),
                                     *module.named_buffers(recurse=False)):
                    found.setdefault(id(tensor), (paths[id(module)], name))
    return found


find_with(held, *_LAST)
