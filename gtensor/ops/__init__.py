"""The op definitions by family, and the public functions over them: each module's `__all__`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gtensor.engine.methods import Methods
from gtensor.engine.namespaces import public
from gtensor.engine.op import Op, registry
from gtensor.ops.arrange import flip_roll, gather_along, index, joining, shape, triangles, writing
from gtensor.ops.arrange.flip_roll import *  # noqa: F403
from gtensor.ops.arrange.gather_along import *  # noqa: F403
from gtensor.ops.arrange.index import *  # noqa: F403
from gtensor.ops.arrange.joining import *  # noqa: F403
from gtensor.ops.arrange.shape import *  # noqa: F403
from gtensor.ops.arrange.triangles import *  # noqa: F403
from gtensor.ops.elementwise import (
    arithmetic,
    comparison,
    complex_parts,
    exponentials,
    rounding,
    selection,
    trigonometry,
)
from gtensor.ops.elementwise.arithmetic import *  # noqa: F403
from gtensor.ops.elementwise.comparison import *  # noqa: F403
from gtensor.ops.elementwise.complex_parts import *  # noqa: F403
from gtensor.ops.elementwise.exponentials import *  # noqa: F403
from gtensor.ops.elementwise.rounding import *  # noqa: F403
from gtensor.ops.elementwise.selection import *  # noqa: F403
from gtensor.ops.elementwise.trigonometry import *  # noqa: F403
from gtensor.ops.fft import transforms
from gtensor.ops.linalg import (
    contractions,
    decompositions,
    einstein,
    matrix_products,
    multi_output,
    norms,
    singular_values,
    solving,
)
from gtensor.ops.linalg.contractions import *  # noqa: F403
from gtensor.ops.linalg.einstein import *  # noqa: F403
from gtensor.ops.linalg.matrix_products import *  # noqa: F403
from gtensor.ops.order import searching, sets, sorting
from gtensor.ops.order.searching import *  # noqa: F403
from gtensor.ops.order.sets import *  # noqa: F403
from gtensor.ops.order.sorting import *  # noqa: F403
from gtensor.ops.reduce import reductions, statistics
from gtensor.ops.reduce.reductions import *  # noqa: F403
from gtensor.ops.reduce.statistics import *  # noqa: F403
from gtensor.ops.scan import products, scan
from gtensor.ops.scan.products import *  # noqa: F403
from gtensor.ops.scan.scan import *  # noqa: F403

_MODULES: tuple[ModuleType, ...] = (
    arithmetic, comparison, complex_parts, contractions, decompositions, einstein, exponentials,
    flip_roll, gather_along, index, joining, matrix_products, multi_output, norms, products,
    reductions, rounding, scan, searching, selection, sets, shape, singular_values, solving,
    sorting, statistics, transforms, triangles, trigonometry, writing,
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
