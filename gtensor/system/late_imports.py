"""Names of a package that are imported when they are first used.

`import gtensor` then costs less, and only what is used is loaded. Python's import lock makes it
safe in threads. An error of the import is the error of the first use.

    if TYPE_CHECKING:
        from gtensor.memory.trace.lifetimes import History
    else:
        __getattr__, __dir__ = late(__name__, {"History": "gtensor.memory.trace.lifetimes"})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
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
