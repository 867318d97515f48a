"""Names found when first used: late imports, other libraries' names; and what awaits an import.

`import gtensor` then costs less, and only what is used is loaded. Python's import lock makes it
safe in threads. An error of the import is the error of the first use.

    if TYPE_CHECKING:
        from gtensor.memory.trace.lifetimes import History
    else:
        __getattr__, __dir__ = late(__name__, {"History": "gtensor.memory.trace.lifetimes"})

A name that is none of the room's is looked up in `gtensor.system.foreign_names`, the table of what
PyTorch, NumPy, CuPy and JAX call it. That is loaded when such a name is first asked for.

`after` is for what a library asks of us: it is made when the program imports that library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import MappingProxyType, ModuleType
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
    # Libraries often ask for protocols; of this one Pillow shows the error.
    if name.startswith("_") and name != "__array_interface__":
        raise AttributeError(f"{subject} has no attribute {name!r}")
    from gtensor.system.foreign_names import ALIASES, SENTENCES

    alias = ALIASES.get(room, _NONE).get(name)
    if alias is None:
        raise MissingName(subject, name, SENTENCES.get(room, _NONE).get(name),
                          lambda: [*names(), *ALIASES.get(room, ())])
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


MissingName.__name__ = MissingName.__qualname__ = "AttributeError"  # so tracebacks say
MissingName.__module__ = "builtins"
_awaited: dict[str, tuple[str, str]] = {}  # a module of a library -> our module, its function


class _Awaiting:
    """Finds a module that is awaited as the other finders do; loading it calls our function."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = _awaited.pop(name, None)  # other finders may ask this one
        if ours is None:
            return None
        try:
            specs = (finder.find_spec(name, path, target) for finder in sys.meta_path
                     if hasattr(finder, "find_spec"))
            spec = next(filter(None, specs), None)
        finally:
            _awaited[name] = ours  # for another try, or a reload
        load: Any = None if spec is None else spec.loader
        if isinstance(load, type):  # one for all modules
            return spec

        def then(module: ModuleType) -> None:
            del load.exec_module  # the loader is as it was, for pickles and other modules
            load.exec_module(module)
            _serve(module, ours)

        with suppress(AttributeError, TypeError):  # a loader that takes no attributes
            load.exec_module = then
        return spec


def _serve(module: ModuleType, ours: tuple[str, str]) -> None:
    """Call the function that awaits a module. One that has changed is imported all the same."""
    with suppress(AttributeError):
        getattr(import_module(ours[0]), ours[1])(module)


def after(awaited: Mapping[str, tuple[str, str]]) -> None:
    """Call functions of ours with modules of other libraries, once these are imported.

    Args:
        awaited: the full name of a library's module -> the module and the name of the function.
    """
    _awaited.update(awaited)
    finder: Any = _Awaiting()
    sys.meta_path.insert(0, finder)
    for name in [name for name in awaited if name in sys.modules]:
        _serve(sys.modules[name], awaited[name])
