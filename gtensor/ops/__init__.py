"""The op definitions by family, and the public functions over them: each module's `__all__`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gtensor.core.methods import Methods
from gtensor.core.namespaces import public
from gtensor.core.op import Op, registry
from gtensor.ops import (
    along,
    arithmetic,
    calculus,
    comparison,
    complexes,
    contractions,
    decompositions,
    einstein,
    fft,
    index,
    joining,
    linalg,
    moving,
    norms,
    packed,
    products,
    reduce,
    rounding,
    scan,
    searching,
    selection,
    sets,
    shape,
    singular,
    solving,
    sorting,
    statistics,
    triangles,
    trigonometry,
    writing,
)
from gtensor.ops.along import *  # noqa: F403
from gtensor.ops.arithmetic import *  # noqa: F403
from gtensor.ops.calculus import *  # noqa: F403
from gtensor.ops.comparison import *  # noqa: F403
from gtensor.ops.complexes import *  # noqa: F403
from gtensor.ops.contractions import *  # noqa: F403
from gtensor.ops.einstein import *  # noqa: F403
from gtensor.ops.index import *  # noqa: F403
from gtensor.ops.joining import *  # noqa: F403
from gtensor.ops.linalg import *  # noqa: F403
from gtensor.ops.moving import *  # noqa: F403
from gtensor.ops.products import *  # noqa: F403
from gtensor.ops.reduce import *  # noqa: F403
from gtensor.ops.rounding import *  # noqa: F403
from gtensor.ops.scan import *  # noqa: F403
from gtensor.ops.searching import *  # noqa: F403
from gtensor.ops.selection import *  # noqa: F403
from gtensor.ops.sets import *  # noqa: F403
from gtensor.ops.shape import *  # noqa: F403
from gtensor.ops.sorting import *  # noqa: F403
from gtensor.ops.statistics import *  # noqa: F403
from gtensor.ops.triangles import *  # noqa: F403
from gtensor.ops.trigonometry import *  # noqa: F403

_MODULES: tuple[ModuleType, ...] = (
    along, joining, moving, triangles,
    arithmetic, calculus, comparison, complexes, contractions, decompositions, einstein, fft,
    index, linalg, norms, packed, products, reduce, rounding, scan, searching, selection, sets,
    shape, singular, solving, sorting, statistics, trigonometry, writing,
)

__all__ = sorted(name for module in _MODULES for name in getattr(module, "__all__", ()))


def _publish() -> None:
    """Connect the methods and operators of Tensor to the public functions."""
    functions: dict[str, Any] = dict(registry)
    for module in _MODULES:
        for name in (*getattr(module, "__all__", ()), *getattr(module, "METHODS", ())):
            functions[name] = getattr(module, name)
    for name, function in functions.items():
        # a bound method is faster to call than an object
        setattr(public, name, function.__call__ if isinstance(function, Op) else function)
    for name, method in vars(Methods).items():  # a method's text is its function's
        if callable(method) and not method.__doc__ and name in functions:
            method.__doc__ = functions[name].__doc__


_publish()
