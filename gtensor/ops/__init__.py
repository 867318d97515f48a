"""The op records, by family, and the public functions over them: each module's `__all__`."""

from __future__ import annotations

from types import ModuleType

from gtensor.core.apply import apply_pair
from gtensor.core.namespaces import public
from gtensor.core.op import registry
from gtensor.ops import arithmetic, calculus, index, linalg, reduce, shape, writing
from gtensor.ops.arithmetic import *  # noqa: F403
from gtensor.ops.calculus import *  # noqa: F403
from gtensor.ops.index import *  # noqa: F403
from gtensor.ops.linalg import *  # noqa: F403
from gtensor.ops.reduce import *  # noqa: F403
from gtensor.ops.shape import *  # noqa: F403

_MODULES: tuple[ModuleType, ...] = (
    arithmetic, calculus, index, linalg, reduce, shape, writing,
)

__all__ = sorted(name for module in _MODULES for name in getattr(module, "__all__", ()))


def _publish() -> None:
    """Hand the methods and operators of Tensor their functions."""
    for name, record in registry.items():
        setattr(public, name, record)
    for module in _MODULES:
        for name in (*getattr(module, "__all__", ()), *getattr(module, "METHODS", ())):
            setattr(public, name, getattr(module, name))
    public.pair = apply_pair


_publish()
