"""The memory that live modules, parameters and optimizers hold, for recordings.

A recording of memory sees blocks; only the objects that hold them tell their use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gtensor.memory.trace.owners import Found, find_with
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter
from gtensor.nn.running import paths_in
from gtensor.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


def held(objects: Sequence[object]) -> Iterator[Found]:
    """Where parameters and buffers, their gradients and the state of optimizers lie.

    Objects whose `__init__` has raised, or still runs, are left out.
    """
    objects = [thing for thing in objects if _is_made(thing)]
    places = _places([thing for thing in objects if isinstance(thing, Module)])
    for thing in objects:
        if isinstance(thing, Parameter):
            module, name = places.get(id(thing), ("", ""))
            yield Found(address_of(thing._array), "parameters", module, name)
            if thing.grad is not None:
                yield Found(address_of(thing.grad._array), "gradients", module)
        elif isinstance(thing, Module):
            for buffer in thing.buffers(recurse=False):
                module, name = places.get(id(buffer), ("", ""))
                yield Found(address_of(buffer._array), "parameters", module, name)
        elif isinstance(thing, Optimizer):
            for slot in (slot for slots in thing._slots for slot in slots):
                module, name = places.get(id(slot.parameter), ("", ""))
                for array in slot.state:
                    yield Found(address_of(array), "optimizer", module, name)


def _is_made(thing: object) -> bool:
    """Whether it has all attributes that `held` reads."""
    if isinstance(thing, Module):
        return "training" in vars(thing)
    return hasattr(thing, "_slots" if isinstance(thing, Optimizer) else "_version")


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


def address_of(array: Array) -> int:
    """Of the first byte."""
    pointer = getattr(array.data, "ptr", None)  # CuPy's
    return int(array.ctypes.data if pointer is None else pointer)


find_with(held, Parameter, Module, Optimizer)
