"""The names of a package whose modules declare theirs in `__all__`.

    from gtensor.ops.scan.products import *
    from gtensor.ops.scan.scan import *

    if not TYPE_CHECKING:
        __all__ = declared(__name__)

Type checkers take the public names from the star imports. mypy reads no `__all__` but a literal
list, and would hide every name that such a list lacks, so checkers are not shown this one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType


def declared(package: str) -> list[str]:
    """What the modules that lie in a package declare in their `__all__`, sorted."""
    return sorted({name for module in modules_in(package)
                   for name in getattr(module, "__all__", ())})


def modules_in(package: str) -> Iterator[ModuleType]:
    """The modules, and packages, that lie in a package and are loaded."""
    for value in vars(sys.modules[package]).values():
        if isinstance(value, ModuleType) and value.__name__.rpartition(".")[0] == package:
            yield value
