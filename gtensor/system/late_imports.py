"""Names of a package that are imported when they are first used, and what follows an import.

`import gtensor` then costs less, and only what is used is loaded. Python's import lock makes it
safe in threads. An error of the import is the error of the first use.

    if TYPE_CHECKING:
        from gtensor.memory.trace.lifetimes import History
    else:
        __getattr__, __dir__ = late(__name__, {"History": "gtensor.memory.trace.lifetimes"})

`after` is for what a library asks of us: it is made when the program imports that library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def late(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's `__getattr__`, and its `__dir__`, which lists the public names.

    Args:
        package: its full name.
        modules: the module that has the name; `package.name` is the module itself.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(modules[name])
        found = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, found)  # so that the next use finds it there
        return found

    def listed() -> list[str]:
        return sorted({*sys.modules[package].__all__, *modules})

    return load, listed


_awaited: dict[str, tuple[str, str]] = {}  # a module of a library -> our module, its function


class _Awaiting:
    """Finds a module that is awaited as the other finders do; loading it calls our function."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = _awaited.pop(name, None)
        if ours is None:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            load: Any = spec.loader
            execute = load.exec_module

            def then(module: ModuleType) -> None:
                execute(module)
                _serve(module, ours)

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
        _serve(sys.modules[name], _awaited.pop(name))
