"""Names of a room that are found when they are first used: late imports, and names of others.

`import gtensor` then costs less, and only what is used is loaded. Python's import lock makes it
safe in threads. An error of the import is the error of the first use.

    if TYPE_CHECKING:
        from gtensor.memory.trace.lifetimes import History
    else:
        __getattr__, __dir__ = late(__name__, {"History": "gtensor.memory.trace.lifetimes"})

A name that is none of the room's is looked up in `gtensor.system.foreign_names`, the table of what
PyTorch, NumPy, CuPy and JAX call it. That is loaded when such a name is first asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType
from typing import Any

_NONE: Mapping[str, str] = MappingProxyType({})


def late(
    room: str, modules: Mapping[str, str] = _NONE
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The room's `__getattr__`, and its `__dir__`, which lists the public names.

    Args:
        room: the module's full name.
        modules: of each late name the module that has it; `room.name` is the module itself.
    """

    def load(name: str) -> Any:
        found = (named(name, modules[name], room) if name in modules
                 else foreign(room, name, f"module {room!r}", listed))
        setattr(sys.modules[room], name, found)  # so that the next use finds it there
        return found

    def listed() -> list[str]:
        return sorted({*sys.modules[room].__all__, *modules})

    return load, listed


def named(name: str, module: str, room: str) -> Any:
    """The module `room.name`, or what a module has under the name."""
    found = import_module(module)
    return found if module == f"{room}.{name}" else getattr(found, name)


def foreign(room: str, name: str, subject: str, names: Callable[[], Iterable[str]]) -> Any:
    """What a foreign name is an alias of; AttributeError, with what to type, if of nothing.

    Args:
        room: its name in the table.
        name: the name that the room lacks.
        subject: the room, as the error names it.
        names: the room's own names, the nearest of which the error gives.
    """
    if name.startswith("_"):  # protocols, which libraries ask for often
        raise AttributeError(f"{subject} has no attribute {name!r}")
    from gtensor.system.foreign_names import ALIASES, SENTENCES

    alias = ALIASES.get(room, _NONE).get(name)
    if alias is None:
        raise MissingName(subject, name, SENTENCES.get(room, _NONE).get(name), names)
    module, _, path = alias.rpartition(":")
    home = import_module(module or room)
    return attrgetter(path)(home) if path else home


class MissingName(AttributeError):
    """An AttributeError whose sentence is written when it is read, as `hasattr` never does."""

    def __init__(
        self, subject: str, name: str, sentence: str | None, names: Callable[[], Iterable[str]]
    ) -> None:
        super().__init__(f"{subject} has no attribute {name!r}")
        self._found = name, sentence, names

    def __str__(self) -> str:
        name, sentence, names = self._found
        if sentence is not None:
            return f"{self.args[0]}; here: {sentence}"
        from difflib import get_close_matches

        nearest = get_close_matches(name, names(), 1)
        return f"{self.args[0]}; did you mean {nearest[0]!r}?" if nearest else str(self.args[0])

    def __reduce__(self) -> tuple[type[AttributeError], tuple[str]]:
        return AttributeError, (str(self),)  # the room stays in its process


MissingName.__qualname__, MissingName.__module__ = "AttributeError", "builtins"  # in tracebacks
